"""/v1/subscriptions: the durable ones: where they are, what they have in hand, and how to move, pause or end them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StrictInt

from headwater.admin.api.cursor import place_of, place_text
from headwater.admin.api.dependencies import NUMBER_MAX, Body, Broker, Id, Limit, Moment, example, needs, or_none, page
from headwater.admin.api.problem import Exists
from headwater.admin.client import Admin
from headwater.errors import Conflict, HeadwaterError
from headwater.message import SubscriptionInfo

router = APIRouter(prefix="/v1/subscriptions", tags=["subscriptions"])

Offset = Annotated[StrictInt, Field(ge=0, le=NUMBER_MAX)]
Count = Annotated[StrictInt, Field(ge=0, le=2**31)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Start = Literal["earliest", "latest"] | Offset | Moment


class SubscriptionOptions(Body):
    """How a subscription hands out its messages; what is left out is the default. A limit that is null is none."""

    order: Literal["strict", "key", "none"] | None = None
    max_in_flight: Count | None = None
    ack_timeout_s: Seconds | None = None
    max_attempts: Count | None = None
    max_deliveries: Count | None = None
    expire_after_s: Seconds | None = None
    on_gap: Literal["raise", "skip"] | None = None
    on_resume: Literal["keep", "redrive"] | None = None
    retry_delay_s: Seconds | None = None
    retry_delay_s_max: Seconds | None = None
    states: Literal["off", "stream"] | None = None


class NewSubscription(Body):
    """A durable subscription that nobody takes from yet."""

    model_config = example(
        id="thermostat", filter="home/+/temp", start="earliest", options={"max_in_flight": 64, "max_attempts": 5}
    )

    id: str = Field(min_length=1, examples=["thermostat"])
    filter: str = Field(examples=["home/+/temp"])
    start: Start = Field("latest", description="earliest, latest, an offset or a moment.")
    options: SubscriptionOptions = Field(default_factory=SubscriptionOptions)


class Consumer(BaseModel):
    """Who takes from a subscription."""

    host: str = Field(description="The machine's name, or its address where the client told none.")
    pid: int = Field(description="Of the client's process there; 0 if that is not known.")
    user: str
    session: str


class Subscription(BaseModel):
    """A durable subscription."""

    id: str
    filter: str
    order: str
    lag: int = Field(description="Matching messages that are not acked yet, in flight and failed ones included.")
    in_flight: int | None
    retrying: int
    dead: int
    consumers: int | None
    paused: bool
    floors: dict[str, int] = Field(description="Per root: every message up to this offset is done.")
    active: list[Consumer] = Field(description="Consumers that messages go to, the first hundred.")
    standing_by: list[Consumer] | None = Field(
        None, description="In strict order: those that wait for the active one to leave."
    )


class SubscriptionDetail(Subscription):
    """A durable subscription, its options, and the sessions that take from it."""

    options: dict[str, Any]
    sessions: list[str]


class SubscriptionsPage(BaseModel):
    """Subscriptions by id."""

    subscriptions: list[Subscription]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


class MessageState(BaseModel):
    """A message of a subscription that is neither simply pending nor acked."""

    root: str
    topic: str | None = Field(description="null if the message is gone from the log.", examples=["home/hall/temp"])
    offset: int
    state: str = Field(description="in_flight, retry, pending, acked or dead.", examples=["retry"])
    attempts: int = Field(description="How often it failed, or timed out.")
    deliveries: int = Field(description="How many consumers were gone without a word while they had it.")
    retry_at: datetime | None
    error: str | None = Field(description="What went wrong the last time.")
    errors: list[str]
    since: datetime | None = Field(description="When it came to this state; null if that is not known.")
    consumer: str | None = Field(description="Who has it, or had it when it failed: a session, or a channel.")


class StatesPage(BaseModel):
    """States by root and offset."""

    states: list[MessageState]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


class Seeking(Body):
    """Where to go on from."""

    model_config = example(to="earliest")

    to: Start | dict[str, Offset] = Field(
        description="earliest, latest, an offset, a moment, or offsets by root: roots that are not named stay."
    )


@router.get("", summary="List subscriptions", **needs("reader"))
async def list_subscriptions(broker: Broker, after: str | None = None, limit: Limit = 100) -> SubscriptionsPage:
    """Every durable one, by id: cursor, lag, in flight, retrying, dead."""
    found: list[SubscriptionInfo] = await broker.bus.subscriptions(after=after, limit=limit + 1)
    shown = [Subscription(**msgspec.to_builtins(one)) for one in found[:limit]]
    return SubscriptionsPage(subscriptions=shown, next=shown[-1].id if len(found) > limit else None)


@router.post("", status_code=201, summary="Create a subscription", **needs("operator"))
async def create(new: NewSubscription, broker: Broker) -> SubscriptionDetail:
    """One of this id that differs: a conflict, which shows it."""
    options = new.options.model_dump(exclude_unset=True)
    try:
        await broker.subscriptions.create(new.id, new.filter, start=new.start, **options)
    except Conflict as error:
        existing = await or_none(_show(broker, new.id), HeadwaterError)
        if existing is None:
            raise
        raise Exists(str(error.args[0]), existing.model_dump(mode="json")) from None
    return await _show(broker, new.id)


@router.get("/{id:segment}", summary="Show a subscription", **needs("reader"))
async def show(id: Id, broker: Broker) -> SubscriptionDetail:
    """Its place, its options, and who takes from it."""
    return await _show(broker, id)


async def _show(broker: Admin, id: str) -> SubscriptionDetail:
    found = await broker.subscriptions.show(id)
    return SubscriptionDetail(**msgspec.to_builtins(found.info), options=found.options, sessions=list(found.sessions))


@router.delete("/{id:segment}", status_code=204, summary="Delete a subscription", **needs("operator"))
async def delete(
    id: Id, broker: Broker, force: Annotated[bool, Query(description="Even if somebody takes from it.")] = False
) -> None:
    """With its place and its dead letters; one that somebody takes from: a conflict, unless forced."""
    await broker.subscriptions.delete(id, force=force)


@router.get("/{id:segment}/states", summary="List what became of its messages", **needs("reader"))
async def states(id: Id, broker: Broker, after: str | None = None, limit: Limit = 100) -> StatesPage:
    """In flight, to be tried again, acked out of order: since when, by whom, with attempts and errors."""
    place = None if after is None else place_of(after)
    found, further = page(await broker.bus.states(id), lambda one: (one.root, one.offset), place, limit)
    shown = [MessageState(**{name: getattr(one, name) for name in MessageState.model_fields}) for one in found]
    return StatesPage(states=shown, next=None if further is None else place_text(*further))


@router.post("/{id:segment}/seek", status_code=204, summary="Go on from elsewhere", **needs("operator"))
async def seek(id: Id, seeking: Seeking, broker: Broker) -> None:
    """What is in flight is taken back."""
    await broker.subscriptions.seek(id, seeking.to)


@router.post("/{id:segment}/pause", status_code=204, summary="Hand out nothing", **needs("operator"))
async def pause(id: Id, broker: Broker) -> None:
    """Until it is resumed; remembered."""
    await broker.subscriptions.pause(id)


@router.post("/{id:segment}/resume", status_code=204, summary="Hand out again", **needs("operator"))
async def resume(id: Id, broker: Broker) -> None:
    """After a pause."""
    await broker.subscriptions.resume(id)
