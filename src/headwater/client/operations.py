"""What a server is asked, once for all who ask: coroutines in the client's loop, which threads wait for.

What is said of each method stands in `headwater.surface`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from headwater import surface
from headwater.client.client import Client
from headwater.client.feed import Feed, Verbs
from headwater.client.pages import all_pages
from headwater.clock import from_datetime
from headwater.delivery.dead_letters import Position
from headwater.delivery.mending import check_letter, mended_twice, write_of
from headwater.delivery.start import Start, check_start
from headwater.delivery.subscriber import _text as text_of
from headwater.errors import HeadwaterError, Malformed, NotFound
from headwater.events import Event
from headwater.log.publish import Publish
from headwater.message import DeadLetter, Extent, Message, Outgoing, SubscriptionInfo, TopicInfo
from headwater.surface import States, documented
from headwater.topics.name import root_of
from headwater.wire import requests as wire
from headwater.wire.request import A, Request

LETTERS_BYTES = 1024 * 1024
"""Payloads of one request to mend, unless a letter alone has more."""


@documented(surface.Bus)
class Operations:
    """Everything that a client asks its server for, besides messages."""

    def __init__(self, client: Client, verbs: Verbs) -> None:
        self._client = client
        self._verbs = verbs

    async def ask(self, request: Request[A]) -> A:
        """What a request is answered with."""
        return await self._client.link.request(request)

    async def unsubscribe(self, id: str) -> None:
        await self._client.unsubscribe(id)

    async def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        return await self.ask(wire.Subscriptions(after=after, limit=limit))

    async def states(self, id: str) -> States:
        found: list[tuple[str, int, str, int, tuple[str, ...]]] = []

        async def page(_: object, limit: int) -> States:
            some = await self.ask(wire.States(id=id, after=len(found), limit=limit))
            found.extend(some)
            return some

        return await all_pages(page)

    async def topics(self, filter: str = "#") -> list[TopicInfo]:
        found = await all_pages(
            lambda last, limit: self.ask(
                wire.Topics(filter=filter, after="" if last is None else last.topic, limit=limit)
            )
        )
        return sorted(found, key=lambda one: one.topic)

    async def _retained_messages(self, filter: str) -> list[wire.RetainedMessage]:
        """Retained messages as they come over the wire, by topic within each root."""
        return await all_pages(
            lambda last, limit: self.ask(
                wire.Retained(filter=filter, after="" if last is None else last.topic, limit=limit)
            )
        )

    async def ends(self) -> dict[str, int]:
        return await self.ask(wire.Ends())

    async def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        return await self.ask(wire.Extents(filter=filter, moments_us=tuple(map(from_datetime, moments))))

    async def events(self) -> list[Event]:
        return await self.ask(wire.Events())

    async def refresh(self) -> None:
        self._client.link.check_open()

    async def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")

        def page(last: DeadLetter | None, limit: int) -> Awaitable[list[DeadLetter]]:
            place = after if last is None else (root_of(last.topic), last.offset)
            return self.ask(wire.DeadLetters(id=id, after=place, limit=limit))

        return await all_pages(page, limit)

    async def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        found = await self.ask(wire.DeadLetters(id=id, offset=offset))
        if not found:
            raise NotFound(f'subscription "{id}" has no dead letter {offset}; see bus.dead_letters("{id}")')
        return found[0]

    async def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        write = write_of(offsets, mended, write)
        if write is None:
            return await self.ask(wire.Redrive(id=id, offsets=None if offsets is None else tuple(offsets)))
        try:
            await self.mend(id, write, tuple(mended or ()))
            return await self.redrive_mended(id, write)
        except HeadwaterError as error:
            if not error.retryable:
                await self.drop_mended(id, write)
            raise

    async def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        for request in mending(id, write, letters, part):
            await self.ask(request)

    async def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        return await self.ask(wire.RedriveMended(id=id, write=write, parts=tuple(parts)))

    async def drop_mended(self, id: str, write: str) -> None:
        await self.ask(wire.DropMended(id=id, write=write))

    async def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        return await self.ask(wire.DropDeadLetters(id=id, offsets=None if offsets is None else tuple(offsets)))

    async def stage(
        self, producer: str, epoch: int, messages: Iterable[tuple[str, bytes] | Outgoing], *, part: str = ""
    ) -> None:
        await self.stage_prepared(self._client.prepare_many(messages, None, None), producer, epoch, part)

    async def stage_prepared(self, item: Publish, producer: str, epoch: int, part: str) -> None:
        """Stage messages that are checked and encoded: one request a root."""
        for one in item.parts:
            body = one.body or b""
            await self.stage_body(producer, epoch, part, one.root, len(one.topics), one.crc, body)

    async def stage_body(
        self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes
    ) -> None:
        await self.ask(
            wire.Stage(producer=producer, epoch=epoch, part=part, root=root, count=count, crc=crc, body=body)
        )

    async def commit_stage(self, producer: str, epoch: int, parts: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
        return await self.ask(wire.CommitStage(producer=producer, epoch=epoch, parts=tuple(parts)))

    async def drop_stage(self, producer: str, epoch: int) -> None:
        await self.ask(wire.DropStage(producer=producer, epoch=epoch))

    async def purge(self, filter: str) -> int:
        return await self.ask(wire.Purge(filter=filter))

    async def remove_root(self, name: str, force: bool = False) -> None:
        await self.ask(wire.RemoveRoot(name=name, force=force))

    async def backup(self, target: str | os.PathLike[str]) -> None:
        await self.ask(wire.Backup(target=os.fspath(target)))

    async def mark_archived(self, lake: str, archived: Mapping[str, int]) -> None:
        await self.ask(wire.MarkArchived(lake=lake, archived=dict(archived)))

    async def show_progress(
        self, filter: str, id: str, places: Mapping[str, int], *, expire_after_s: float | None = None
    ) -> None:
        """Have a durable subscription, made if need be, stand at the next offset to read of each root.

        For readers that keep their own place, as Spark does: nothing is handed out here.
        """
        asked = self._client.subscription(filter, id=id, start="earliest", expire_after_s=expire_after_s)
        assert isinstance(asked, wire.Subscribe)
        feed = await self._client.subscribe(asked, self._verbs, (0, 0))
        try:
            await self.ask(wire.Seek(number=feed.number, to=dict(places)))
        finally:
            await self._client.leave(feed)


def retained_message(one: wire.RetainedMessage) -> Message:
    """A retained message as users see it."""
    return Message(one.topic, one.offset, one.payload, one.time_us, one.key, one.headers, retained=True)


def mending(id: str, write: str, letters: Iterable[DeadLetter], part: str) -> list[wire.Mend]:
    """Requests that mend letters, few enough in each."""
    groups: list[list[DeadLetter]] = []
    seen: set[Position] = set()
    size = LETTERS_BYTES
    for letter in letters:
        check_letter(letter, id)
        place = (root_of(letter.topic), letter.offset)
        if place in seen:
            raise mended_twice(letter.topic, letter.offset)
        seen.add(place)
        if size >= LETTERS_BYTES or len(groups[-1]) == wire.LETTERS_MAX:
            groups.append([])
            size = 0
        groups[-1].append(letter)
        size += len(letter.payload)
    return [wire.Mend(id=id, write=write, letters=tuple(group), part=part) for group in groups]


def seek_of(feed: Feed, to: Start) -> wire.Seek:
    """A request to go on from elsewhere."""
    check_start(feed.filter, to)
    if isinstance(to, datetime):
        return wire.Seek(number=feed.number, to_us=round(to.timestamp() * 1_000_000))
    return wire.Seek(number=feed.number, to=to)  # type: ignore[arg-type]  # it was checked


def nack_of(
    feed: Feed, message: Message, error: str | BaseException, delay_s: float | None
) -> Callable[[int], Request[Any]]:
    """A request that says that a message failed."""
    text = text_of(error)
    return lambda lease: wire.Nack(number=feed.number, lease=lease, offset=message.offset, error=text, delay_s=delay_s)


def reject_of(feed: Feed, message: Message, error: str | BaseException) -> Callable[[int], Request[Any]]:
    """A request that says that a message will never succeed."""
    text = text_of(error)
    return lambda lease: wire.Reject(number=feed.number, lease=lease, offset=message.offset, error=text)


def extend_of(feed: Feed, message: Message, seconds: float) -> Callable[[int], Request[Any]]:
    """A request for more time."""
    return lambda lease: wire.Extend(number=feed.number, lease=lease, offset=message.offset, seconds=seconds)


REFUSALS = {
    "nack": "a live subscription keeps nothing to hand out again; subscribe with an id for that",
    "reject": "a live subscription has no dead letters; subscribe with an id for that",
    "extend": "a live subscription has no ack timeout; subscribe with an id for that",
}


def refuse(feed: Feed, verb: str) -> None:
    """Malformed (422) where a message's subscription does not know the word; an ack of a live one is nothing."""
    if feed.kind == "live" and verb != "ack":
        raise Malformed(REFUSALS[verb])
    if feed.kind in ("replay", "follow"):
        raise Malformed(f"cannot {verb} a message that was read from history; subscribe with an id for that")
