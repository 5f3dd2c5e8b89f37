"""/metrics: figures of the broker for Prometheus; /v1/figures: the same as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Broker, Moment, needs
from headwater.admin.metrics import CONTENT_TYPE_LATEST, exposition
from headwater.clock import to_datetime
from headwater.wire import administration as wire
from headwater.wire.administration import HISTORY_POINTS_MAX, HistoryLines

router = APIRouter(tags=["figures"])


class Figures(BaseModel):
    """Figures of the broker; counters count from its start."""

    time: datetime
    started: datetime
    time_us: int = Field(description="`time` in microseconds: an older name.", deprecated=True)
    started_us: int = Field(description="`started` in microseconds: an older name.", deprecated=True)
    counters: dict[str, int]
    gauges: dict[str, float]
    histograms: dict[str, dict[str, Any]] = Field(description="bounds_s, counts per bucket, sum_s")
    roots: list[dict[str, Any]] = Field(description="The largest.")
    subscriptions: list[dict[str, Any]] = Field(description="Those furthest behind.")
    slow: list[dict[str, Any]] = Field(description="Sessions that do not take what is for them as fast as it comes.")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    summary="Tell figures to Prometheus",
    **needs("reader"),
)
async def metrics(broker: Broker) -> Response:
    """In its text format; of a node of a cluster, with how that is."""
    return Response(exposition(await broker.metrics(), await broker.cluster()), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/figures", summary="Show figures of the broker", **needs("reader"))
async def figures(broker: Broker) -> Figures:
    """As they are now; a rate is the difference of two."""
    found: wire.Figures = await broker.metrics()
    return Figures(time=to_datetime(found.time_us), started=to_datetime(found.started_us), **msgspec.to_builtins(found))


class History(BaseModel):
    """What the server sampled in the last 24 hours; an interval that nobody sampled is left out."""

    every_s: float = Field(description="The length of an interval.")
    intervals: list[dict[str, Any]] = Field(
        description="`time`, and a value for each line; null for what did not happen."
    )


@router.get("/v1/history", summary="Show rates, latencies and lags of the last 24 hours", **needs("reader"))
async def history(
    broker: Broker,
    kind: Annotated[Literal["broker", "root", "subscription"], Query(description="What it is of.")] = "broker",
    name: Annotated[str, Query(description="Of the root, or the subscription: channel:ID for a channel.")] = "",
    since: Annotated[Moment | None, Query(description="24 hours ago, if it is not given.")] = None,
    points: Annotated[int, Query(ge=1, le=HISTORY_POINTS_MAX, description="Intervals at most.")] = 600,
) -> History:
    """The broker's own every 10 s, those of roots and subscriptions every minute, or several put together."""
    found: HistoryLines = await broker.history(kind, name, since=since, points=points)
    return History(
        every_s=found.every_s,
        intervals=[
            {"time": to_datetime(time_us), **dict(zip(found.lines, values, strict=True))}
            for time_us, values in zip(found.times_us, found.values, strict=True)
        ],
    )
