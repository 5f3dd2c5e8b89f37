"""/v1/messages: publish, read history in pages, and follow what is new."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from headwater.admin.api.cursor import Cursor
from headwater.admin.api.dependencies import (
    NUMBER_MAX,
    Asking,
    Body,
    Broker,
    Limit,
    Moment,
    Topic,
    example,
    needs,
    shown,
)
from headwater.admin.api.following import Followers
from headwater.admin.api.payload import Encoding, Shown, shown_message, to_bytes
from headwater.errors import Gap, Malformed, TimedOut
from headwater.message import Outgoing
from headwater.payload import said_json
from headwater.topics.name import check_filter
from headwater.wire.request import SECONDS_MAX

BATCH_MAX = 10_000
"""Messages that one request publishes."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Payloads of a page together; it ends with the message that reaches this."""
READ_S = 20.0
"""How long a page may take; then it has what was read by then."""

router = APIRouter(prefix="/v1", tags=["messages"])

Headers = dict[str, str] | list[tuple[str, str]]
Ttl = Annotated[float, Field(ge=0, le=SECONDS_MAX)]


class NewMessage(Body):
    """A message to publish."""

    topic: str = Field(examples=["home/kitchen/temp"])
    payload: Any = Field("", examples=["21.5"], description="A string; with encoding json, any value.")
    encoding: Encoding = "text"
    key: str | None = None
    key_encoding: Shown = "text"
    headers: Headers = Field(default_factory=dict, examples=[{"unit": "C"}])
    retain: bool = Field(False, description="Keep it as the topic's retained message; an empty payload clears that.")
    ttl_s: Ttl | None = None

    def outgoing(self) -> Outgoing:
        """The same, as the bus publishes it."""
        key = None if self.key is None else to_bytes(self.key, self.key_encoding, "key")
        headers = self.headers if isinstance(self.headers, dict) else tuple(self.headers)
        if self.encoding == "json":
            headers = said_json(headers)
        return Outgoing(self.topic, to_bytes(self.payload, self.encoding), self.retain, key, headers, self.ttl_s)


class SingleMessage(NewMessage):
    """A message to publish by itself."""

    model_config = example(topic="home/kitchen/temp", payload="21.5", headers={"unit": "C"}, retain=True)

    producer: str | None = Field(None, description="With `sequence`: a repeat is stored once.")
    sequence: Annotated[int, Field(ge=0, le=NUMBER_MAX)] | None = None
    deliver_at: Moment | None = Field(None, description="Not before then.")


class NewBatch(Body):
    """Messages to publish together: of each root all or none."""

    model_config = example(
        messages=[
            {"topic": "home/kitchen/temp", "payload": "21.6"},
            {"topic": "home/door", "payload": {"open": True}, "encoding": "json"},
        ]
    )

    messages: list[NewMessage] = Field(min_length=1, max_length=BATCH_MAX)
    producer: str | None = None
    sequence: Annotated[int, Field(ge=0, le=NUMBER_MAX)] | None = None


class PublishReceipt(BaseModel):
    """A message is on disk."""

    topic: str
    offset: int = Field(description="Its id within the topic's root; 0 for one that is delivered later.")
    time: datetime
    duplicate: bool = Field(description="An idempotent producer's repeat: this is the receipt of the first time.")


class BatchReceipts(BaseModel):
    """Messages are on disk."""

    receipts: list[PublishReceipt]


class StoredMessage(BaseModel):
    """A message."""

    topic: str
    offset: int
    time: datetime
    payload: str
    encoding: Shown = Field(description="base64 if the payload is no text.")
    key: str | None = None
    key_encoding: Shown | None = None
    headers: list[tuple[str, str]]
    retained: bool


class MissingMessages(BaseModel):
    """Messages that are gone."""

    root: str
    first: int
    last: int
    reason: str


class MessagesPage(BaseModel):
    """Messages in order."""

    messages: list[StoredMessage]
    gaps: list[MissingMessages] = Field(description="What would be among them, and is gone.")
    next: str = Field(description="Where to go on: send it as `after`.")
    is_end: bool = Field(description="Whether there was nothing more just now.")


Filter = Annotated[str, Query(examples=["home/#"], description="A topic, with wildcards + and #.")]
After = Annotated[
    str | None, Query(description="After this offset (of a filter within one root), or a cursor from `next`.")
]
Since = Annotated[Moment | None, Query(description="From this moment on.")]


@router.post("/messages", status_code=201, summary="Publish a message", **needs("operator"))
async def publish(message: SingleMessage, broker: Broker) -> PublishReceipt:
    """Answers once it is on disk."""
    out = message.outgoing()
    return shown(
        PublishReceipt,
        await broker.bus.publish(
            out.topic,
            out.payload,
            retain=out.retain,
            key=out.key,
            headers=out.headers,
            ttl_s=out.ttl_s,
            producer=message.producer,
            sequence=message.sequence,
            deliver_at=message.deliver_at,
        ),
    )


@router.post("/messages/batch", status_code=201, summary="Publish messages together", **needs("operator"))
async def publish_batch(batch: NewBatch, broker: Broker) -> BatchReceipts:
    """Answers once they are on disk: of each root all or none."""
    receipts = await broker.bus.publish_many(
        [message.outgoing() for message in batch.messages], producer=batch.producer, sequence=batch.sequence
    )
    return BatchReceipts(receipts=[shown(PublishReceipt, one) for one in receipts])


@router.post(
    "/topics/{topic:levels}/messages",
    status_code=201,
    summary="Publish the body as it is",
    **needs("operator", requestBody={"content": {"application/octet-stream": {"schema": {"type": "string"}}}}),
)
async def publish_raw(
    request: Request,
    topic: Topic,
    broker: Broker,
    retain: bool = False,
    key: str | None = None,
    ttl_s: Annotated[float | None, Query(ge=0, le=SECONDS_MAX)] = None,
    header: Annotated[list[str] | None, Query(description="name:value; may be repeated.")] = None,
) -> PublishReceipt:
    """The payload is the body, whatever its content type says."""
    pairs = tuple(_pair(text) for text in header or ())
    return shown(
        PublishReceipt,
        await broker.bus.publish(
            topic,
            await request.body(),
            retain=retain,
            key=None if key is None else to_bytes(key, "text", "key"),
            headers=pairs,
            ttl_s=ttl_s,
        ),
    )


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise Malformed(f'header is "{text}"; use name:value')
    return name, value


@router.get("/messages", response_model=MessagesPage, summary="Read messages, a page of them", **needs("reader"))
async def read(
    caller: Asking, broker: Broker, filter: Filter = "#", after: After = None, since: Since = None, limit: Limit = 100
) -> Response:
    """From an offset or a moment on, or from the oldest; in order within each root."""
    check_filter(filter, broker.bus.config)
    caller.check_sight(filter)
    cursor = Cursor.read(filter, after, since)
    reading = broker.bus.replay(filter, after=cursor.after, since=cursor.since)
    try:
        found, gaps, is_end = await _page(reading, limit)
    finally:
        await reading.close()
    for message in found:
        cursor.advance(message.root, message.offset)
    body = {
        "messages": [shown_message(message) for message in found],
        "gaps": [{"root": gap.root, "first": gap.first, "last": gap.last, "reason": gap.reason} for gap in gaps],
        "next": str(cursor),
        "is_end": is_end,
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _page(reading: Any, limit: int) -> tuple[list[Any], list[Gap], bool]:
    """Messages, what is missing among them, and whether there was nothing more."""
    found: list[Any] = []
    gaps: list[Gap] = []
    size = 0
    try:
        async with asyncio.timeout(READ_S):
            while len(found) < limit and size < PAGE_BYTES_MAX:
                try:
                    one = await reading.next()
                except Gap as gap:
                    gaps.append(gap)
                    continue
                if one is None:
                    return found, gaps, True
                found.append(one)
                size += len(one.payload)
    except TimeoutError:
        if not found:
            raise TimedOut(f"nothing was found within {READ_S:g} s; narrow the filter, or begin later") from None
    return found, gaps, False


@router.get(
    "/messages/follow",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    summary="Follow messages as server-sent events",
    **needs("reader"),
)
async def follow(
    request: Request,
    caller: Asking,
    broker: Broker,
    filter: Filter = "#",
    after: After = None,
    since: Since = None,
    last_event_id: Annotated[str | None, Header(description="Go on after this event: no gap, no repeat.")] = None,
) -> StreamingResponse:
    """What is new, or from an offset or a moment on. Each event has the id to resume with, and a message as JSON.

    `event: gap` tells of messages that are gone; `event: error` says why the stream ends.
    """
    check_filter(filter, broker.bus.config)
    caller.check_sight(filter)
    cursor = Cursor.read(filter, last_event_id or after, None if last_event_id else since)
    is_new = not (last_event_id or after or since)
    followers: Followers = request.app.state.followers
    events = await followers.follow(request, caller.name, broker, filter, cursor, from_now=is_new)
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
