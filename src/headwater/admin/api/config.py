"""/v1/config and /v1/events: how the server is set up, and what happened lately that somebody should know."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Broker, needs, shown

router = APIRouter(prefix="/v1", tags=["config"])


class Setting(BaseModel):
    """A setting of the server."""

    name: str
    value: Any
    default: Any
    source: str


class SettingsList(BaseModel):
    """Every setting."""

    settings: list[Setting]


class Event(BaseModel):
    """Something that happened."""

    kind: str
    text: str
    time: datetime
    time_us: int = Field(description="The same in microseconds: an older name.", deprecated=True)


class EventsList(BaseModel):
    """What happened, oldest first."""

    events: list[Event]


@router.get("/config", summary="List settings", **needs("reader"))
async def config(broker: Broker) -> SettingsList:
    """Value, default, and where it comes from."""
    found = msgspec.to_builtins(await broker.config())
    return SettingsList(settings=[Setting(**one) for one in found])


@router.get("/events", summary="List what happened lately", **needs("reader"))
async def events(broker: Broker) -> EventsList:
    """What somebody should know: quarantined messages, retention that passed over unacked ones, and the like."""
    return EventsList(events=[shown(Event, one) for one in await broker.bus.events()])
