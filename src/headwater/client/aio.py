"""The served bus for asyncio: the names of `headwater.aio`, over a connection, in the loop that connects.

    async with headwater.aio.connect("headwater://name:secret@127.0.0.1:7411") as bus:
        await bus.publish("home/kitchen/temp", b"21.5")

A thin shell around `client.client`, which runs in the same loop: nothing here has a thread.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from headwater.aio import Message, Opening
from headwater.client.admin import Acl, Channels, Clients
from headwater.client.bus import (
    GivenHeaders,
    extend_of,
    extents_of,
    mending,
    nack_of,
    one_letter,
    places_of,
    refuse,
    reject_of,
    retained_message,
    seek_of,
    staged,
)
from headwater.client.client import Client
from headwater.client.feed import Feed
from headwater.client.link import LinkState
from headwater.client.url import Address, parse_url
from headwater.clock import to_datetime
from headwater.config import Config, Connecting
from headwater.delivery.dead_letters import Position
from headwater.delivery.live import check_max
from headwater.delivery.mending import write_of
from headwater.delivery.replay import After
from headwater.delivery.start import Start
from headwater.errors import Closed, HeadwaterError, TimedOut
from headwater.events import Event
from headwater.log.publish import Publish
from headwater.message import DeadLetter, Envelope, Extent, Outgoing, Receipt, Receipts, SubscriptionInfo, TopicInfo
from headwater.message import Message as ThreadMessage
from headwater.wire import requests as wire
from headwater.wire.administration import ChannelInfo
from headwater.wire.request import A, Request


def asynchronous(m: Envelope) -> Message:
    """The same message with coroutines as its verbs."""
    return Message(m.topic, m.offset, m.payload, m.time_us, m.key, m.headers, m.retained, m.attempt, m.origin)


class _Verbs:
    """What is said about a message, for asyncio."""

    __slots__ = ("_client",)

    is_asynchronous = True

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ack(self, feed: Feed, messages: Sequence[Any], wait: bool) -> None:
        refuse(feed, "ack")
        if not feed.is_durable:
            return
        epoch, ranges = feed.epoch, feed.ranges_of(messages, wait)
        if wait:
            await self._client.ack_and_wait(feed, epoch, ranges)
        else:
            self._client.ack_only(feed, epoch, ranges)

    async def nack(self, feed: Feed, message: Any, error: str | BaseException, delay_s: float | None) -> None:
        await self._tell(feed, "nack", message, nack_of(feed, message, error, delay_s))

    async def reject(self, feed: Feed, message: Any, error: str | BaseException) -> None:
        await self._tell(feed, "reject", message, reject_of(feed, message, error))

    async def extend(self, feed: Feed, message: Any, seconds: float) -> None:
        await self._tell(feed, "extend", message, extend_of(feed, message, seconds))

    async def _tell(self, feed: Feed, verb: str, message: Any, make: Callable[[int], Request[Any]]) -> None:
        refuse(feed, verb)
        await self._client.tell(feed, message, make)

    async def reply(self, message: Any, payload: bytes) -> Receipt:
        return cast(Receipt, await self._client.publish(self._client.reply_to(message, payload)))


class _Reader:
    """Takes messages of a feed."""

    _ahead = 1000
    """How many an iteration takes at once."""

    def __init__(self, client: Client, feed: Feed) -> None:
        self._client = client
        self._feed = feed
        self.filter = feed.filter
        self._closed = False
        self._more = asyncio.Event()
        self._forgetting: weakref.finalize[..., Any] | None = None
        feed.add_waker(self._more.set)

    def _leave_when_forgotten(self) -> None:
        """Let go of its place at the server when nobody has it any more, as after a `break` out of `async for`.

        A consumer does not: messages that it handed out may be acked without it.
        """
        self._forgetting = weakref.finalize(self, self._client.forget_soon, self._feed)
        self._forgetting.atexit = False

    def _leave_now(self) -> None:
        """Its user lets go of it: nothing is left to be done later."""
        if self._forgetting is not None:
            self._forgetting.detach()

    def _poll(self, max: int) -> list[ThreadMessage] | None:
        """What is there, without waiting; None at the end."""
        if self._closed:
            self._after_close()
            return None
        found = self._feed.take(max)
        return None if not found and self._feed.is_over else found

    def _after_close(self) -> None:
        """Raises, where reading on after the end is a mistake."""

    async def _begin(self) -> None:
        """Be ready to be read."""

    async def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""
        check_max(max)
        try:
            async with asyncio.timeout(timeout_s):
                await self._begin()
                while True:
                    self._more.clear()
                    found = self._poll(max)
                    if found is None:
                        return []
                    if found:
                        return [asynchronous(message) for message in found]
                    await self._more.wait()
        except TimeoutError:
            return []

    async def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when the time has passed."""
        found = await self.batch(1, timeout_s)
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                found = await self.batch(self._ahead)
            except Closed:
                if self._closed or self._client.link.state is LinkState.CLOSED:
                    return
                raise
            if not found:
                return
            for message in found:
                yield message

    async def close(self) -> None:
        """Leave."""
        if not self._closed:
            self._closed = True
            self._leave_now()
            self._more.set()
            await self._client.leave(self._feed)


class Consumer(_Reader):
    """Takes messages of one durable subscription."""

    _ahead = 1  # the ack timer of a message starts when it is taken

    def __init__(self, client: Client, feed: Feed) -> None:
        super().__init__(client, feed)
        assert feed.id is not None
        self.id = feed.id

    def _after_close(self) -> None:
        raise Closed(f'this consumer of "{self.id}" is closed; subscribe again to go on')

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                found = await self.batch(self._ahead)
            except Closed:
                return
            for message in found:
                yield message

    async def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        """Done with these: one commit for all of them."""
        await _Verbs(self._client).ack(self._feed, messages, wait)

    async def seek(self, to: Start) -> None:
        """Go on from "earliest", "latest", an offset or a moment; what is in flight is taken back."""
        await self._client.link.request(seek_of(self._feed, to))

    async def pause(self) -> None:
        """Hand out nothing until `resume`; remembered."""
        await self._client.link.request(wire.Pause(number=self._feed.number, paused=True))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._client.link.request(wire.Pause(number=self._feed.number, paused=False))


class Live(_Reader):
    """A live subscription."""

    def __init__(self, client: Client, feed: Feed) -> None:
        super().__init__(client, feed)
        self._leave_when_forgotten()

    @property
    def dropped(self) -> int:
        """Messages that were dropped because this reader was too slow."""
        return self._feed.dropped


class Reading(_Reader):
    """History, and with `follow` everything after; asked for when it is first read."""

    _feed: Feed

    def __init__(self, client: Client, asked: wire.Subscribe) -> None:
        self._client = client
        self.filter = asked.filter
        self._closed = False
        self._more = asyncio.Event()
        self._forgetting = None
        self._opening: asyncio.Task[None] | None = asyncio.ensure_future(self._open(asked))
        self._opening.add_done_callback(_looked_at)

    async def _open(self, asked: wire.Subscribe) -> None:
        self._feed = await self._client.subscribe(asked, _Verbs(self._client))
        self._feed.add_waker(self._more.set)
        self._leave_when_forgotten()

    async def _begin(self) -> None:
        if self._opening is not None:
            await asyncio.shield(self._opening)
            self._opening = None

    async def close(self) -> None:
        """Stop reading."""
        if self._closed:
            return
        self._closed = True
        self._more.set()
        opening = self._opening  # whoever waits for its first messages takes it away meanwhile
        if opening is not None:
            await asyncio.wait((opening,))
            if opening.cancelled() or opening.exception() is not None:
                return
        self._leave_now()
        await self._client.leave(self._feed)


def _looked_at(done: asyncio.Task[None]) -> None:
    if not done.cancelled():
        done.exception()


class Bus:
    """A bus that a server has, whose methods are coroutines."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._verbs = _Verbs(client)
        self.address = client.address
        self.clients = Clients(client.link.request)
        self.acl = Acl(client.link.request)
        self.channels = Channels(client.link.request)

    def __repr__(self) -> str:
        return f"<headwater bus at {self.address}>"

    @property
    def id(self) -> str:
        """The id of the bus, by which a lake knows whose it is; empty if the server is too old to tell."""
        return self._client.link.bus

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        ttl_s: float | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Store a message; returns once it is on disk."""
        self._client.link.check_open()
        item = self._client.prepare(topic, payload, retain, key, headers, ttl_s, producer, sequence, deliver_at)
        if isinstance(item, Publish):
            return cast(Receipt, await self._client.publish(item))
        return await self._client.delay(item)

    def publish_soon(self, topic: str, payload: bytes, **options: Any) -> asyncio.Task[Receipt]:
        """Store a message without waiting: a task of its receipt."""
        return asyncio.ensure_future(self.publish(topic, payload, **options))

    async def publish_many(
        self,
        messages: Iterable[tuple[str, bytes] | Outgoing],
        *,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipts:
        """Store messages together: all or none of each root's. PartlyStored (409) if some roots refuse theirs."""
        self._client.link.check_open()
        item = self._client.prepare_many(messages, producer, sequence)
        if not item.topics:
            return Receipts((), ())
        return cast(Receipts, await self._client.publish(item))

    def publish_many_soon(
        self, messages: Iterable[tuple[str, bytes] | Outgoing], **options: Any
    ) -> asyncio.Task[Receipts]:
        """`publish_many` without waiting."""
        return asyncio.ensure_future(self.publish_many(messages, **options))

    def subscribe(self, filter: str, *, id: str | None = None, start: Start = "latest", **options: Any) -> Opening[Any]:
        """With an id a durable subscription, without one a live one; `await` it or use it in `async with`.

        With a destination, a host and a port, messages are pushed there; `await` gives the channel's id.
        """
        when_full = options.pop("when_full", "drop_oldest")
        destination = options.pop("destination", None)

        async def make() -> Any:
            client = self._client
            if destination is not None:
                made: ChannelInfo = await self.ask(client.pushed(filter, id, start, options, destination))
                return made.id
            if id is None:
                asked = client.live(filter, when_full, start, options)
                return Live(client, await client.subscribe(asked, self._verbs))
            asked = client.durable(filter, id, start, options)
            return Consumer(client, await client.subscribe(asked, self._verbs))

        return Opening(make)

    def replay(
        self, filter: str, *, after: After = None, since: datetime | None = None, upto: Mapping[str, int] | None = None
    ) -> Reading:
        """History, from an offset or a moment on, up to now: `async for message in bus.replay(…)`."""
        return Reading(self._client, self._client.history(filter, after, since, False, upto))

    def follow(self, filter: str, *, after: After = None, since: datetime | None = None) -> Reading:
        """History and then everything new: no gap, no repeat, in order."""
        return Reading(self._client, self._client.history(filter, after, since, follows=True))

    async def request(
        self, topic: str, payload: bytes, *, timeout_s: float | None = None, headers: GivenHeaders = ()
    ) -> Message:
        """Publish a request and wait for its answer."""
        pairs, answer = await self._client.ask(self._verbs, topic, payload, headers)
        timeout_s = self._client.settings.answer_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                found: ThreadMessage = await asyncio.wrap_future(answer)
                return asynchronous(found)
        except TimeoutError:
            raise TimedOut(f'nobody answered on "{topic}" within {timeout_s} s; is its service running?') from None
        finally:
            self._client.replies.forget(pairs)

    async def ask(self, request: Request[A]) -> A:
        return await self._client.link.request(request)

    async def topics(self, filter: str = "#") -> list[TopicInfo]:
        """Topics that have messages or a retained value, by name."""
        return await self.ask(wire.Topics(filter=filter))

    async def retained(self, filter: str) -> list[Message]:
        """Retained messages, by topic."""
        return [asynchronous(retained_message(one)) for one in await self.ask(wire.Retained(filter=filter))]

    async def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, by id; with a limit a page of them, after an id."""
        return await self.ask(wire.Subscriptions(after=after, limit=limit))

    async def states(self, id: str) -> list[tuple[str, int, str, int, tuple[str, ...]]]:
        """Root, offset, state, attempts and errors of each message that is not simply pending or acked."""
        return await self.ask(wire.States(id=id))

    async def ends(self) -> dict[str, int]:
        """The newest offset of each root."""
        return await self.ask(wire.Ends())

    async def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        """What the roots that a filter may match have, and where in them each of these moments is."""
        return await self.ask(extents_of(filter, moments))

    async def events(self) -> list[Event]:
        """What happened lately that somebody should know, oldest first."""
        return await self.ask(wire.Events())

    async def unsubscribe(self, id: str) -> None:
        """Delete a durable subscription, its place and its dead letters."""
        await self._client.unsubscribe(id)

    async def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Messages that a subscription gave up on; with a limit a page of them, after a root and an offset in it."""
        return await self.ask(wire.DeadLetters(id=id, after=after, limit=limit))

    async def dead_letter(self, id: str, offset: Position) -> DeadLetter:
        """One of them."""
        return one_letter(await self.ask(wire.DeadLetters(id=id, offset=offset)), id, offset)

    async def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        """Hand dead letters to their subscription again, in order, as they are or `mended`; answers how many."""
        write = write_of(offsets, mended, write)
        if write is None:
            return await self.ask(wire.Redrive(id=id, offsets=places_of(offsets)))
        try:
            await self.mend(id, write, tuple(mended or ()))
            return await self.redrive_mended(id, write)
        except HeadwaterError as error:
            if not error.retryable:
                await self.drop_mended(id, write)
            raise

    async def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        """Store other contents for dead letters, which wait for `redrive_mended`; doing it again replaces them."""
        for request in mending(id, write, letters, part):
            await self.ask(request)

    async def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        """Hand the letters that parts of a write have mended to their subscription again, once; drops the others."""
        return await self.ask(wire.RedriveMended(id=id, write=write, parts=tuple(parts)))

    async def drop_mended(self, id: str, write: str) -> None:
        """Forget what a write has mended and not redriven; the dead letters stay as they are."""
        await self.ask(wire.DropMended(id=id, write=write))

    async def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        """Forget dead letters; answers how many."""
        return await self.ask(wire.DropDeadLetters(id=id, offsets=places_of(offsets)))

    async def stage(
        self, producer: str, epoch: int, messages: Iterable[tuple[str, bytes] | Outgoing], *, part: str = ""
    ) -> None:
        """Store a part of a producer's epoch, which nobody sees before `commit_stage`; staging it again replaces it."""
        for request in staged(self._client.prepare_many(messages, None, None), producer, epoch, part):
            await self.ask(request)

    async def stage_body(
        self, producer: str, epoch: int, part: str, root: str, count: int, crc: int, body: bytes
    ) -> None:
        """The same for messages of one root that are encoded already."""
        await self.ask(
            wire.Stage(producer=producer, epoch=epoch, part=part, root=root, count=count, crc=crc, body=body)
        )

    async def commit_stage(self, producer: str, epoch: int, parts: Sequence[str] = ("",)) -> dict[str, tuple[int, int]]:
        """Make these parts of an epoch visible, once, and drop the others; first and last offset by root."""
        asked = wire.CommitStage(producer=producer, epoch=epoch, parts=tuple(parts))
        return await self.ask(asked)

    async def drop_stage(self, producer: str, epoch: int) -> None:
        """Forget what was staged of an epoch and never committed."""
        await self.ask(wire.DropStage(producer=producer, epoch=epoch))

    async def purge(self, filter: str) -> int:
        """Remove the messages that a filter matches; answers how many topics."""
        return await self.ask(wire.Purge(filter=filter))

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """A copy of the data as of now, in a new folder on the server's machine."""
        await self.ask(wire.Backup(target=os.fspath(target)))

    @property
    def now(self) -> datetime:
        """The server's time."""
        return to_datetime(self._client.clock.now_us())

    @property
    def config(self) -> Config:
        """The settings of the server that clients are told; the others are defaults."""
        return self._client.config

    async def close(self) -> None:
        """Finish what is under way, and leave."""
        await self._client.close()


def connect(url: str | Address, settings: Connecting | None = None) -> Opening[Bus]:
    """The bus that a server has: `await` it, or use it in `async with`."""
    address = parse_url(url) if isinstance(url, str) else url

    async def make() -> Bus:
        client = Client(address, settings or Connecting())
        await client.open()
        return Bus(client)

    return Opening(make)
