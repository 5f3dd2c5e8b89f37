"""/v1/topics: the tree, level by level, with counts, rates and retained values."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Asking, Body, Broker, Id, Limit, example, needs
from headwater.admin.api.dependencies import Topic as Name
from headwater.admin.api.growth import Growth
from headwater.admin.api.messages import StoredMessage
from headwater.admin.api.payload import shown_message
from headwater.admin.client import Admin
from headwater.errors import Malformed, NotFound
from headwater.topics.name import check_topic
from headwater.wire import requests as wire

VALUES_MAX = 100
"""Levels of a page that shows retained values."""

router = APIRouter(prefix="/v1/topics", tags=["topics"])


class TopicLevel(BaseModel):
    """A level of the topic tree."""

    name: str
    path: str = Field(description="The whole topic up to here.")
    topics: int = Field(description="Topics at and below it.")
    messages: int = Field(description="Messages at and below it.")
    rate: float | None = Field(description="Messages a second since somebody last looked; null the first time.")
    is_topic: bool = Field(description="Whether something was published to this very path.")
    last_offset: int
    retained: bool
    value: StoredMessage | None = Field(None, description="The retained message, with `values`.")


class TopicLevels(BaseModel):
    """Levels in order."""

    levels: list[TopicLevel]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


class Topic(BaseModel):
    """A topic."""

    topic: str
    messages: int
    last_offset: int
    rate: float | None
    retained: StoredMessage | None


class Purging(Body):
    """What to remove."""

    model_config = example(filter="home/old/#")

    filter: str = Field(examples=["home/old/#"])


class Purged(BaseModel):
    """What was removed."""

    topics: int


@router.get("", summary="List the levels below a topic", **needs("reader"))
async def levels(
    request: Request,
    caller: Asking,
    broker: Broker,
    parent: Annotated[str, Query(description="A topic; empty: the roots.", examples=["home"])] = "",
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    limit: Limit = 100,
    values: Annotated[bool, Query(description=f"Show retained values; then at most {VALUES_MAX} levels.")] = False,
) -> TopicLevels:
    """A page of them, in order; the roots, if no parent is named."""
    if parent:
        check_topic(parent, broker.bus.config)
    if values and limit > VALUES_MAX:
        raise Malformed(f"limit is {limit}; with values at most {VALUES_MAX}")
    if values and parent:
        caller.check_sight(f"{parent}/#")
    found = await broker.levels(parent, after=after, limit=limit + 1)
    growth: Growth = request.app.state.growth
    shown = [
        TopicLevel(
            **msgspec.structs.asdict(one),
            rate=growth.rate(one.path, one.messages),
            value=await _retained(broker, one.path) if values and one.retained else None,
        )
        for one in found[:limit]
    ]
    return TopicLevels(levels=shown, next=shown[-1].name if len(found) > limit else None)


@router.get("/{topic:levels}", summary="Show a topic", **needs("reader"))
async def show(request: Request, topic: Name, caller: Asking, broker: Broker) -> Topic:
    """Its counts, and its retained message."""
    check_topic(topic, broker.bus.config)
    caller.check_sight(topic)
    found = await broker.bus.topics(topic)
    if not found:
        raise NotFound(f'nothing was published to "{topic}"; GET /v1/topics lists what there is')
    growth: Growth = request.app.state.growth
    return Topic(
        topic=topic,
        messages=found[0].messages,
        last_offset=found[0].last_offset,
        rate=growth.rate(f"{topic}/", found[0].messages),
        retained=await _retained(broker, topic) if found[0].retained else None,
    )


@router.post("/purge", summary="Remove the messages that a filter matches", **needs("admin"))
async def purge(purging: Purging, broker: Broker) -> Purged:
    """For good; answers how many topics had some."""
    return Purged(topics=await broker.ask(wire.Purge(filter=purging.filter)))


@router.delete("/{root:segment}", status_code=204, summary="Remove a root", **needs("admin"))
async def remove_root(
    root: Id,
    broker: Broker,
    force: Annotated[
        bool, Query(description="Also if subscriptions cover nothing else, or have messages of it to do.")
    ] = False,
) -> None:
    """With all that it has, for good; 409 if subscriptions need it."""
    await broker.ask(wire.RemoveRoot(name=root, force=force))


async def _retained(broker: Admin, topic: str) -> Any:
    found = (await broker.bus.retained(topic)).get(topic)
    return StoredMessage.model_validate(shown_message(found)) if found is not None else None
