"""/v1/pipelines: how far each root is archived, and the pipelines that the server runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, Field

from headwater.admin.api.dependencies import Broker, ShownTime, needs, shown
from headwater.clock import to_datetime

router = APIRouter(prefix="/v1", tags=["pipelines"])


class Pipeline(BaseModel):
    """How far a lake has a root."""

    root: str
    first: int = Field(description="The oldest offset in the hot log.")
    end: int = Field(description="One past the newest.")
    lake: str = Field(description="Its id; empty if there is none.")
    archived: int = Field(description="The last offset that the lake has; 0 if none.")
    lag: int = Field(description="Messages that the lake does not have yet.")


class PipelinesList(BaseModel):
    """Every root and what archives it."""

    pipelines: list[Pipeline]


class Job(BaseModel):
    """A pipeline that the server runs."""

    name: str
    command: str = Field(description="What the settings say of it.")
    state: Literal["beginning", "running", "waiting", "done"] = Field(
        description="waiting: it failed, and is begun again; done: it ended by itself."
    )
    since: Annotated[datetime, BeforeValidator(to_datetime)] = Field(
        validation_alias="since_us", description="When it came into that state."
    )
    restarts: int = Field(description="How often it failed.")
    rows: int = Field(description="Rows that it has worked on since it was begun.")
    worked: ShownTime = Field(validation_alias="worked_us", description="When it told so last; null if it has not.")
    lag: int | None = Field(description="Messages that wait for it; null if it does not tell.")
    error: str = Field(description="What it failed with last; empty if it did not.")


class JobsList(BaseModel):
    """Every pipeline that the server runs."""

    jobs: list[Job]


@router.get("/pipelines/jobs", summary="List the pipelines that the server runs", **needs("reader"))
async def list_jobs(broker: Broker) -> JobsList:
    """State, lag and last error of each pipeline of the settings `[pipelines]`."""
    return JobsList(jobs=[shown(Job, one) for one in await broker.jobs()])


@router.get("/pipelines", summary="List how far roots are archived", **needs("reader"))
async def list_pipelines(broker: Broker) -> PipelinesList:
    """Archived offset and lag of each root."""
    found: list[Any] = await broker.pipelines()
    return PipelinesList(pipelines=[Pipeline(**msgspec.structs.asdict(one)) for one in found])
