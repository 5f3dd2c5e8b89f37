"""/v1/channels: where messages are pushed to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Body, Broker, Id, ShownTime, example, needs, or_none, shown
from headwater.admin.api.problem import Exists
from headwater.admin.api.subscriptions import SubscriptionOptions
from headwater.admin.client import Admin
from headwater.errors import Conflict, HeadwaterError, NotFound

router = APIRouter(prefix="/v1/channels", tags=["channels"])

Port = Annotated[int, Field(ge=1, le=65535)]
Batch = Annotated[int, Field(ge=1, le=100_000)]


class NewChannel(Body):
    """What a channel is to be."""

    model_config = example(
        name="alarms", filter="home/+/alarm", destination_host="127.0.0.1", destination_port=9000, kind="tcp"
    )

    id: str | None = Field(None, min_length=1, description="Null: one is drawn.")
    name: str = Field(examples=["alarms"])
    filter: str = Field(examples=["home/+/alarm"])
    destination_host: str = Field(examples=["127.0.0.1"])
    destination_port: Port
    kind: Literal["tcp", "http"] = "tcp"
    path: str = Field("/", description="Of an http channel: where to POST.")
    secret: str | None = Field(None, description="Of an http channel: what signs its requests; null: one is drawn.")
    start: Literal["earliest", "latest"] = "latest"
    batch_messages_max: Batch | None = Field(
        None, description="Messages that are sent at once; null: 100 with http, 1000 with tcp."
    )
    options: SubscriptionOptions = Field(default_factory=SubscriptionOptions)


class ChangedChannel(Body):
    """What is to change; the rest stays."""

    model_config = example(paused=True)

    name: str | None = None
    destination_host: str | None = None
    destination_port: Port | None = None
    path: str | None = None
    secret: str | None = None
    batch_messages_max: Batch | None = None
    paused: bool | None = None


class Channel(BaseModel):
    """A channel."""

    id: str
    name: str
    filter: str
    kind: str
    destination_host: str
    destination_port: int
    path: str
    owner: str = Field(description="The client that subscribed with a destination; empty for administrators' ones.")
    created: ShownTime = Field(validation_alias="created_us")
    batch_messages_max: int
    state: str = Field(examples=["delivering"], description="connecting, delivering, idle, failing, paused")
    error: str = Field(description="What went wrong the last time, if it has not gone right since.")
    address: str = Field(description="What the host's name was found to be.")
    delivered: int = Field(description="Messages since the server's start.")
    lag: int
    retrying: int
    dead: int
    secret: str | None = Field(None, description="Told once: where it was made or changed.")


class ChannelsList(BaseModel):
    """Every channel."""

    channels: list[Channel]


class Trial(BaseModel):
    """How it went to reach a destination."""

    ok: bool
    detail: str
    took_s: float


@router.get("", summary="List channels", **needs("reader"))
async def list_channels(broker: Broker) -> ChannelsList:
    """Every one, with how it is doing."""
    return ChannelsList(channels=[shown(Channel, one) for one in await broker.channels.list()])


@router.post("", status_code=201, summary="Make a channel", **needs("operator"))
async def add(new: NewChannel, broker: Broker) -> Channel:
    """Its secret, if it has one, is told this once. One of this id already: a conflict, which shows it."""
    given: dict[str, Any] = new.model_dump(exclude={"options"})
    try:
        made = await broker.channels.add(**given, options=new.options.model_dump(exclude_none=True))
    except Conflict as error:
        existing = await or_none(_found(broker, new.id), HeadwaterError) if new.id else None
        if existing is None:
            raise
        raise Exists(str(error.args[0]), existing.model_dump(mode="json")) from None
    return shown(Channel, made[0])


@router.get("/{id:segment}", summary="Show a channel", **needs("reader"))
async def show(id: Id, broker: Broker) -> Channel:
    """How it is doing, and what went wrong last."""
    return await _found(broker, id)


@router.patch("/{id:segment}", summary="Change a channel", **needs("operator"))
async def change(id: Id, changes: ChangedChannel, broker: Broker) -> Channel:
    """What is named; its place stays. `paused` pauses and resumes it."""
    return shown(Channel, await broker.channels.change(id, **changes.model_dump(exclude_none=True)))


@router.delete("/{id:segment}", status_code=204, summary="Remove a channel", **needs("operator"))
async def remove(
    id: Id, broker: Broker, force: Annotated[bool, Query(description="Even with messages to deliver yet.")] = False
) -> None:
    """One with messages to deliver yet: a conflict, unless forced."""
    await broker.channels.remove(id, force=force)


@router.post("/{id:segment}/test", summary="Try to reach a channel's destination", **needs("operator"))
async def test(id: Id, broker: Broker) -> Trial:
    """Without a message of its own."""
    return shown(Trial, await broker.channels.test(id))


async def _found(broker: Admin, id: str) -> Channel:
    found = await broker.channels.list(id)
    if not found:
        raise NotFound(f'there is no channel "{id}"; GET /v1/channels lists those that are')
    return shown(Channel, found[0])
