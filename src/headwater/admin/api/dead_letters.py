"""/v1/subscriptions/{id}/dead-letters: what a subscription gave up on, to look at, hand out again, or drop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field, StrictInt

from headwater.admin.api.cursor import place_of, place_text
from headwater.admin.api.dependencies import NUMBER_MAX, Asking, Body, Broker, Id, Limit, cut, example, needs
from headwater.admin.api.payload import Shown, shown_contents
from headwater.admin.client import Admin
from headwater.errors import Malformed, NotFound
from headwater.message import DeadLetter
from headwater.topics.name import root_of
from headwater.wire import requests as wire

PLACES_MAX = 10_000

router = APIRouter(prefix="/v1/subscriptions/{id:segment}/dead-letters", tags=["dead letters"])

Offset = Annotated[int, Path(ge=0, le=NUMBER_MAX)]


class Letter(BaseModel):
    """A message that a subscription gave up on."""

    subscription: str
    root: str
    topic: str
    offset: int
    time: datetime
    payload: str
    encoding: Shown
    key: str | None = None
    key_encoding: Shown | None = None
    headers: list[tuple[str, str]]
    attempts: int
    errors: list[str]
    dead_at: datetime


class LettersPage(BaseModel):
    """Dead letters by root and offset."""

    dead_letters: list[Letter]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


class LetterPlace(Body):
    """Which one."""

    root: str
    offset: Annotated[StrictInt, Field(ge=0, le=NUMBER_MAX)]


class Redriving(Body):
    """Which to hand out again."""

    model_config = example(places=[{"root": "home", "offset": 7}])

    places: list[LetterPlace] | None = Field(None, max_length=PLACES_MAX, description="None: all of them.")


class LetterCount(BaseModel):
    """How many."""

    count: int


@router.get("", summary="List dead letters", **needs("reader"))
async def list_letters(
    id: Id, caller: Asking, broker: Broker, after: str | None = None, limit: Limit = 100
) -> LettersPage:
    """A page of them, by root and offset, with attempts and errors."""
    place = None if after is None else place_of(after)
    found: list[DeadLetter] = await broker.bus.dead_letters(id, after=place, limit=limit + 1)
    for topic in {one.topic for one in found}:
        caller.check_sight(topic)
    rows, last = cut(found, limit)
    further = None if last is None else place_text(root_of(last.topic), last.offset)
    return LettersPage(dead_letters=[_letter(one) for one in rows], next=further)


@router.get("/{root:segment}/{offset}", summary="Show a dead letter", **needs("reader"))
async def show(id: Id, root: Id, offset: Offset, caller: Asking, broker: Broker) -> Letter:
    """One of them."""
    found: DeadLetter = await broker.bus.dead_letter(id, (root, offset))
    caller.check_sight(found.topic)
    return _letter(found)


@router.post("/redrive", summary="Hand dead letters out again", **needs("operator"))
async def redrive(id: Id, broker: Broker, redriving: Redriving | None = None) -> LetterCount:
    """To their subscription and to no other, in order; all of them unless places are named."""
    places = None if redriving is None else redriving.places
    offsets = None if places is None else tuple((one.root, one.offset) for one in places)
    return LetterCount(count=await broker.ask(wire.Redrive(id=id, offsets=offsets)))


@router.post("/{root:segment}/{offset}/redrive", status_code=204, summary="Hand one out again", **needs("operator"))
async def redrive_one(id: Id, root: Id, offset: Offset, broker: Broker) -> None:
    """To its subscription and to no other."""
    await _one(broker, wire.Redrive(id=id, offsets=((root, offset),)))


@router.delete("", summary="Drop all dead letters", **needs("operator"))
async def drop_all(
    id: Id, broker: Broker, all: Annotated[bool, Query(description="Has to be true, so that nobody errs.")] = False
) -> LetterCount:
    """For good."""
    if not all:
        raise Malformed("this drops every dead letter of the subscription; say ?all=true, or name one")
    return LetterCount(count=await broker.ask(wire.DropDeadLetters(id=id)))


@router.delete("/{root:segment}/{offset}", status_code=204, summary="Drop a dead letter", **needs("operator"))
async def drop(id: Id, root: Id, offset: Offset, broker: Broker) -> None:
    """For good."""
    await _one(broker, wire.DropDeadLetters(id=id, offsets=((root, offset),)))


async def _one(broker: Admin, request: Any) -> None:
    if not await broker.ask(request):
        ((root, offset),) = request.offsets
        raise NotFound(f'subscription "{request.id}" has no dead letter {offset} of "{root}"')


def _letter(letter: DeadLetter) -> Letter:
    return Letter(
        subscription=letter.subscription,
        root=root_of(letter.topic),
        topic=letter.topic,
        offset=letter.offset,
        time=letter.time,
        attempts=letter.attempts,
        errors=list(letter.errors),
        dead_at=letter.dead_at,
        **shown_contents(letter),
    )
