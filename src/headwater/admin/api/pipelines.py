"""/v1/pipelines: how far each root is archived."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Broker, needs

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


@router.get("/pipelines", summary="List how far roots are archived", **needs("reader"))
async def list_pipelines(broker: Broker) -> PipelinesList:
    """Archived offset and lag of each root."""
    found: list[Any] = await broker.pipelines()
    return PipelinesList(pipelines=[Pipeline(**msgspec.structs.asdict(one)) for one in found])
