"""The served bus for asyncio: the names of `headwater.aio`, over a connection, in the loop that connects.

    async with headwater.aio.connect("headwater://name:secret@127.0.0.1:7411") as bus:
        await bus.publish("home/kitchen/temp", b"21.5")

A thin shell around `client.client`, which runs in the same loop: nothing here has a thread.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headwater import surface, verdicts
from headwater.awaitables import (
    BusOpening,
    Message,
    Reader,
    Retained,
    WorkingBus,
    answered,
    asynchronous,
    fail,
)
from headwater.awaitables import Consumer as AnyConsumer
from headwater.awaitables import Live as AnyLive
from headwater.client.client import Client
from headwater.client.feed import Feed
from headwater.client.kept_session import KeptSession
from headwater.client.link import LinkState
from headwater.client.operations import Operations, retained_message, seek_of
from headwater.client.url import Address, Token, address_of
from headwater.config import Connecting
from headwater.delivery.consumer import Consumer as EmbeddedConsumer
from headwater.delivery.live import CLOSED_BY_USER
from headwater.delivery.live import Live as EmbeddedLive
from headwater.delivery.options import OnResume
from headwater.delivery.reader import check_timeout
from headwater.delivery.replay import Reading as EmbeddedReading
from headwater.delivery.start import Start
from headwater.errors import Closed
from headwater.forgotten import close_at_end, warn_of, weakly
from headwater.log.publish import Publish
from headwater.message import Extent, Receipt, Receipts, TopicInfo
from headwater.message import Message as ThreadMessage
from headwater.payload import Payload
from headwater.surface import Messages, documented, like
from headwater.wire import requests as wire
from headwater.wire.contents import Deliver
from headwater.wire.request import Request
from headwater.work.handlers import Handlers
from headwater.work.tasks import TaskWorkers

if TYPE_CHECKING:
    from headwater.arrow.source import Source
    from headwater.parts import AwaitedAcl, AwaitedChannels, AwaitedClients

T = TypeVar("T", bound="FeedReader")


class _Verbs:
    """Sends acks and the like, as coroutines."""

    __slots__ = ("_client",)

    is_asynchronous = True

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ack(self, feed: Feed, messages: Sequence[Any], wait: bool) -> None:
        feed.refuse("ack")
        if not feed.is_durable:
            return
        epoch, ranges = feed.epoch, feed.ranges_of(messages, wait)
        if wait:
            await self._client.ack_and_wait(feed, epoch, ranges)
        else:
            self._client.ack_only(feed, epoch, ranges)

    async def tell(self, feed: Feed, verb: str, message: Any, make: Callable[..., Request[None]]) -> None:
        feed.refuse(verb)
        await self._client.tell(feed, message, make)

    async def reply(self, message: Any, payload: Payload) -> Receipt:
        answer = self._client.reply_to(message, payload)
        if isinstance(answer, Publish):
            return cast(Receipt, await self._client.publish(answer))
        item, said = answer
        await self._client.send(item)
        return said


@documented(EmbeddedConsumer)
class FeedReader(Reader):
    """Takes messages of a feed."""

    _feed: Feed

    def __init__(self, client: Client, filter: str) -> None:
        super().__init__()
        self._client = client
        self.filter = filter
        self._keeps: object = None
        """What lives as long as it: the bus that it was made by."""
        self._closed = False
        self._forgetting: weakref.finalize[..., Any] | None = None

    def _read(self, feed: Feed) -> None:
        """Take from a feed from now on."""
        self._feed = feed
        feed.add_waker(self._ring)

    def _take(self, max: int) -> list[ThreadMessage] | None:
        if self._closed:
            self._after_close()
            return None
        found = self._feed.take(max)
        if found:
            self._feed.takers.add(id(self))
        return None if not found and self._feed.is_over else found

    def _after_close(self) -> None:
        """Raises, where reading on after the end is a mistake."""

    @property
    def _is_done(self) -> bool:  # type: ignore[override]  # looked up when it is asked for
        return self._closed or self._client.link.state is LinkState.CLOSED

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._more.set()
            await self._leave()

    async def _leave(self) -> None:
        if self._forgetting is not None:
            self._forgetting.detach()
        await self._client.leave(self._feed, id(self))


@documented(EmbeddedConsumer)
class Consumer(FeedReader, AnyConsumer):
    """Takes messages of one durable subscription."""

    _is_done = True

    def __init__(self, client: Client, feed: Feed) -> None:
        super().__init__(client, feed.filter)
        assert feed.id is not None
        self.id = feed.id
        self._read(feed)

    def _after_close(self) -> None:
        raise Closed(f'this consumer of "{self.id}" is closed; subscribe again to go on')

    def __del__(self) -> None:
        if not self._closed and self._client.forget(self._feed, id(self), self._last):
            warn_of(self, f'a consumer of "{self.id}"')

    async def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        await _Verbs(self._client).ack(self._feed, messages, wait)
        verdicts.note(messages, "ack")

    async def seek(self, to: Start) -> None:
        await self._client.link.request(seek_of(self._feed, to))

    async def pause(self) -> None:
        await self._client.link.request(wire.Pause(number=self._feed.number, paused=True))

    async def resume(self) -> None:
        await self._client.link.request(wire.Pause(number=self._feed.number, paused=False))


@documented(EmbeddedLive)
class Live(FeedReader, AnyLive):
    """A live subscription."""

    def __init__(self, client: Client, feed: Feed) -> None:
        super().__init__(client, feed.filter)
        self._read(feed)
        self._forgetting = self._client.leave_with(self, self._feed)

    @property
    def dropped(self) -> int:
        """Messages that were dropped because this reader was too slow."""
        return self._feed.dropped


@documented(EmbeddedReading)
class Reading(FeedReader):
    """History, and with `follow` everything after; asked for when it is first read."""

    def __init__(self, client: Client, asked: wire.Subscribe) -> None:
        super().__init__(client, asked.filter)
        self._opening: asyncio.Task[None] | None = asyncio.ensure_future(self._open(asked))
        self._opening.add_done_callback(_looked_at)

    async def _open(self, asked: wire.Subscribe) -> None:
        self._read(await self._client.subscribe(asked, _Verbs(self._client)))
        self._forgetting = self._client.leave_with(self, self._feed)

    async def _prepare(self) -> None:
        if self._opening is not None:
            await asyncio.shield(self._opening)
            self._opening = None

    async def batch(self, max: int = 1000, timeout_s: float | None = None) -> list[Message]:
        return await super().batch(max, timeout_s)

    @property
    def is_over(self) -> bool:
        return self._closed or (self._opening is None and self._feed.is_over)

    async def _leave(self) -> None:
        opening = self._opening  # whoever waits for its first messages takes it away meanwhile
        if opening is not None:
            await asyncio.wait((opening,))
            if opening.cancelled() or opening.exception() is not None:
                return
        await super()._leave()


def _looked_at(done: asyncio.Task[None]) -> None:
    if not done.cancelled():
        done.exception()


class SentReading:
    """What the server sends of a reading, for a thread that takes it while the loop goes on."""

    def __init__(self, client: Client, asked: wire.Subscribe, window: tuple[int, int]) -> None:
        """In a thread that may wait."""
        self._client = client
        self._closed = False
        subscribing = client.subscribe(asked, _Verbs(client), window)
        self._feed = asyncio.run_coroutine_threadsafe(subscribing, client.loop).result()
        self._forgetting = client.leave_with(self, self._feed)

    def take_batch(self) -> Deliver | None:
        """The next batch; None at the end of history."""
        return self._feed.wait_batch(self._check_open)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(CLOSED_BY_USER)

    def close(self) -> None:
        """Take no more."""
        if not self._closed:
            self._closed = True
            self._forgetting()
            self._feed.wake()


class FromThread:
    """The bus as a thread sees it that reads columns."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def now(self) -> datetime:
        return self._bus.now

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        return asyncio.run_coroutine_threadsafe(self._bus.extents(filter, moments), self._bus._client.loop).result()

    def topics(self, filter: str = "#") -> list[TopicInfo]:
        return asyncio.run_coroutine_threadsafe(self._bus.topics(filter), self._bus._client.loop).result()

    def _columns(self, filter: str, columns: Sequence[str], **options: Any) -> Source:
        from headwater.arrow.source import Received, window

        client = self._bus._client
        asked = client.history(filter, follows=False, **options)
        return Received(SentReading(client, asked, window(client.settings)))


@documented(surface.Bus)
class Bus(Operations, WorkingBus):
    """A bus that a server has, whose methods are coroutines."""

    if TYPE_CHECKING:

        @property
        def clients(self) -> AwaitedClients: ...
        @property
        def acl(self) -> AwaitedAcl: ...
        @property
        def channels(self) -> AwaitedChannels: ...

    def __init__(self, client: Client, handlers: Handlers | None = None) -> None:
        super().__init__(client, _Verbs(client))
        self._workers = TaskWorkers(weakly(self.subscribe), fail, client.clock, handlers)
        self.address = client.address
        self.settings = client.settings
        close_at_end(self)

    @like(surface.Bus.publish)
    async def publish(self, topic: str, payload: Payload, **options: Any) -> Receipt:
        self._client.link.check_open()
        item = self._client.prepare(topic, payload, **options)
        if isinstance(item, Publish):
            return cast(Receipt, await self._client.publish(item))
        return await self._client.delay(item)

    @like(surface.Bus.publish_soon)
    def publish_soon(self, topic: str, payload: Payload, **options: Any) -> asyncio.Task[Receipt]:
        return asyncio.ensure_future(self.publish(topic, payload, **options))

    @like(surface.Bus.publish_many)
    async def publish_many(self, messages: Messages, **options: Any) -> Receipts:
        self._client.link.check_open()
        item = self._client.checks.many(messages, **options)
        if not item.topics:
            return Receipts((), ())
        return cast(Receipts, await self._client.publish(item))

    @like(surface.Bus.publish_many_soon)
    def publish_many_soon(self, messages: Messages, **options: Any) -> asyncio.Task[Receipts]:
        return asyncio.ensure_future(self.publish_many(messages, **options))

    @like(surface.Bus.send)
    async def send(self, topic: str, payload: Payload, **options: Any) -> None:
        await self._client.send(self._client.prepare_quiet(topic, payload, **options))

    async def _subscribe(self, filter: str, **options: Any) -> Consumer | Live | str:
        client = self._client
        asked = client.subscription(filter, **options)
        if isinstance(asked, wire.SubscribeTo):
            return (await self.ask(asked)).id
        feed = await client.subscribe(asked, self._verbs)
        return self._keeping(Live(client, feed) if asked.kind == "live" else Consumer(client, feed))

    @like(surface.Bus.replay)
    def replay(self, filter: str, **options: Any) -> Reading:
        return self._keeping(Reading(self._client, self._client.history(filter, follows=False, **options)))

    @like(surface.Bus.follow)
    def follow(self, filter: str, **options: Any) -> Reading:
        return self._keeping(Reading(self._client, self._client.history(filter, follows=True, **options)))

    def _readable(self) -> FromThread:
        return FromThread(self)

    @like(surface.Bus.request)
    async def request(
        self,
        topic: str,
        payload: Payload,
        *,
        timeout_s: float | None = None,
        headers: surface.GivenHeaders = (),
        durable: bool = False,
    ) -> Message:
        timeout_s = self.config.request_timeout_s if timeout_s is None else timeout_s
        check_timeout(timeout_s)
        client = self._client
        client.link.check_open()
        answer = client.loop.create_future()
        if not client.is_listening:
            client.checks.plain(topic, payload)
            await client.listen(self._verbs)
        if durable:
            pairs = await client.ask_durably(topic, payload, headers, answer)
        else:
            question = client.question(topic, payload, headers, answer)
            pairs = question.asks
            await client.send(question)
        try:
            return await answered(answer, topic, timeout_s)
        finally:
            client.replies.forget(pairs)

    @like(surface.Bus.retained)
    async def retained(self, filter: str) -> Retained:
        ends = await self.ends()
        found = map(retained_message, await self._retained_messages(filter))
        return Retained(filter, ends, map(asynchronous, found), lambda *place: self.follow(place[0], after=place[1]))

    async def close(self) -> None:
        await self._workers.end()
        await self._client.close()

    def _close_at_end(self) -> None:
        client = self._client
        if client.process == os.getpid():
            client.link.leave_at_end(end_session=not client.kept.is_kept)

    def __del__(self) -> None:
        client = self._client
        if client.link.state is not LinkState.CLOSED and client.process == os.getpid():
            client.close_soon()
            warn_of(self, f"the bus at {client.address}")

    def _keeping(self, reader: T) -> T:
        """A reader that is all that anybody holds of its bus can go on."""
        reader._keeps = self
        return reader


def connect(
    url: str | Address,
    settings: Connecting | None = None,
    *,
    token: Token | None = None,
    session: str | os.PathLike[str] | None = None,
    on_resume: OnResume = "keep",
) -> BusOpening[Bus]:
    """The bus that a server has: `await` it, or use it in `async with`."""
    address = address_of(url, token)

    async def make(handlers: Handlers) -> Bus:
        kept = await asyncio.to_thread(KeptSession, session, on_resume)
        client = Client(address, settings or Connecting(), kept=kept)
        await client.open()
        return Bus(client, handlers)

    return BusOpening(make)
