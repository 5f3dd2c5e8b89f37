"""/metrics: figures of the broker for Prometheus; /v1/figures: the same as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Broker, needs
from headwater.admin.metrics import CONTENT_TYPE_LATEST, exposition

router = APIRouter(tags=["figures"])


class Figures(BaseModel):
    """Figures of the broker; counters count from its start."""

    time_us: int
    started_us: int
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
    """In its text format; a scrape asks the broker once."""
    return Response(exposition(await broker.metrics()), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/figures", summary="Show figures of the broker", **needs("reader"))
async def figures(broker: Broker) -> Figures:
    """As they are now; a rate is the difference of two."""
    return Figures(**msgspec.to_builtins(await broker.metrics()))
