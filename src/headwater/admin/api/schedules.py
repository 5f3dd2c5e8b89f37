"""/v1/schedules: messages that are published again and again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Broker, Id, Limit, cut, example, needs
from headwater.admin.api.messages import NewMessage
from headwater.admin.api.payload import Shown, shown_contents
from headwater.message import ScheduleInfo
from headwater.wire import requests as wire

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])


class NewSchedule(NewMessage):
    """A message, and when to publish it."""

    model_config = example(topic="jobs/nightly", payload="run", cron="0 3 * * *", zone="Europe/Berlin")

    cron: str = Field(examples=["0 3 * * *"], description="Minute, hour, day of month, month, day of week.")
    zone: str = Field("UTC", description="Whose time that is.")


class Schedule(BaseModel):
    """A schedule."""

    id: str
    topic: str
    cron: str
    zone: str
    next: datetime = Field(description="When it is due next.")
    last: datetime | None = Field(description="The time that it was last published for.")
    payload: str
    encoding: Shown = Field(description="base64 if the payload is no text.")
    key: str | None = None
    key_encoding: Shown | None = None
    headers: list[list[str]]
    retain: bool
    ttl_s: float | None
    client: str = Field(description="Who made it; empty for whoever owns the folder.")


class SchedulesPage(BaseModel):
    """Schedules by id."""

    schedules: list[Schedule]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


@router.get("", summary="List schedules", **needs("reader"))
async def list_schedules(broker: Broker, after: str | None = None, limit: Limit = 100) -> SchedulesPage:
    """By id, with when each is due next."""
    found: list[ScheduleInfo] = await broker.bus.schedules(after=after, limit=limit + 1)
    rows, last = cut(found, limit)
    return SchedulesPage(schedules=[_shown(one) for one in rows], next=None if last is None else last.id)


@router.put("/{id:segment}", summary="Publish a message again and again", **needs("operator"))
async def put(id: Id, new: NewSchedule, broker: Broker) -> Schedule:
    """In place of what this id had. The same again changes nothing; another message keeps the times."""
    message: Any = new.outgoing()
    made = await broker.ask(
        wire.Schedule(
            topic=message.topic,
            payload=message.payload,
            cron=new.cron,
            id=id,
            zone=new.zone,
            retain=message.retain,
            key=message.key,
            headers=tuple(message.headers.items()) if isinstance(message.headers, dict) else message.headers,
            ttl_s=message.ttl_s,
        )
    )
    return _shown(made)


@router.delete("/{id:segment}", status_code=204, summary="Publish it no more", **needs("operator"))
async def remove(id: Id, broker: Broker) -> None:
    """It is gone with its times."""
    await broker.ask(wire.Unschedule(id=id))


def _shown(one: ScheduleInfo) -> Schedule:
    return Schedule(
        id=one.id,
        topic=one.topic,
        cron=one.cron,
        zone=one.zone,
        next=one.next_at,
        last=one.last_at,
        **shown_contents(one),
        retain=one.retain,
        ttl_s=one.ttl_s,
        client=one.client,
    )
