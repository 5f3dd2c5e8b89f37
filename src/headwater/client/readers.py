"""Readers of a served bus for threads: consumers, live subscriptions, and history.

They have the names, signatures and errors of those in `headwater.delivery`, where their docstrings are, too.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, cast

from headwater import verdicts
from headwater.client.feed import Feed
from headwater.client.link import LinkState
from headwater.client.operations import seek_of
from headwater.delivery.consumer import Consumer as EmbeddedConsumer
from headwater.delivery.live import BUS_CLOSED, CLOSED_BY_USER
from headwater.delivery.live import Live as EmbeddedLive
from headwater.delivery.reader import Reader, check_take
from headwater.delivery.replay import Reading as EmbeddedReading
from headwater.delivery.start import Start
from headwater.errors import Closed, HeadwaterError
from headwater.forgotten import warn_of
from headwater.log.publish import Publish
from headwater.message import Message, Receipt
from headwater.payload import Payload
from headwater.surface import documented
from headwater.wire import requests as wire
from headwater.wire.contents import Deliver
from headwater.wire.request import Request

if TYPE_CHECKING:
    from headwater.client.bus import Bus


class Verbs:
    """Sends acks and the like, and waits in the caller's thread."""

    __slots__ = ("_found",)

    def __init__(self, bus: Bus) -> None:
        self._found = weakref.ref(bus)  # what is there for a bus does not hold one that was forgotten

    @property
    def _bus(self) -> Bus:
        bus = self._found()
        if bus is None:
            raise Closed("the bus that this message came over was forgotten, and is closed; keep it until you are done")
        return bus

    def ack(self, feed: Feed, messages: Sequence[Message], wait: bool) -> None:
        if not feed.is_durable:
            return feed.refuse("ack")
        bus = self._bus
        bus._check_open()
        epoch = feed.epoch
        ranges = feed.ranges_of(messages, wait)
        if wait:
            bus._wait(bus._client.ack_and_wait(feed, epoch, ranges))
        else:
            bus._loop.call_soon_threadsafe(bus._client.ack_only, feed, epoch, ranges)
        return None

    def tell(self, feed: Feed, verb: str, message: Message, make: Callable[..., Request[None]]) -> None:
        feed.refuse(verb)
        self._bus._run(self._bus._client.tell(feed, message, make))

    def reply(self, message: Message, payload: Payload) -> Receipt:
        bus = self._bus
        bus._check_open()
        answer = bus._client.reply_to(message, payload)
        if isinstance(answer, Publish):
            return cast(Receipt, bus._submit(answer).result())
        item, said = answer
        bus._send_now(item)
        return said


class SentAcks:
    """Acks that are on their way to the server."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Future[None]) -> None:
        self._answer = answer

    def wait(self) -> None:
        """Return when they are on the server's disk."""
        try:
            self._answer.result()
        except CancelledError:
            raise Closed(BUS_CLOSED) from None

    def hurry(self) -> None:
        """They are under way already."""


@documented(EmbeddedConsumer)
class FeedReader(Reader):
    """Takes messages of a feed."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        self._bus = bus
        self._feed = feed
        self.filter = feed.filter
        self._closed = False
        self._forgetting: weakref.finalize[..., Any] | None = None

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        check_take(max, timeout_s)
        self._bus._check_thread()
        return self._feed.wait(max, timeout_s, self._check_open, self._bus._client.link.read_until)

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call this, from the client's thread, when there may be something to take."""
        self._feed.add_waker(wake)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(self._closed_text)

    @property
    def _is_done(self) -> bool:
        """Whether its user, and not the server, has ended it."""
        return self._closed or self._bus._client.link.state is LinkState.CLOSED

    def close(self) -> None:
        if self._closed:
            return
        self._bus._check_thread()
        self._closed = True
        if self._forgetting is not None:
            self._forgetting.detach()
        self._feed.wake()
        if not self._bus._closed:
            try:
                self._bus._wait(self._bus._client.leave(self._feed, id(self)))
            except HeadwaterError as error:
                if error.code != Closed.code:
                    raise

    _closed_text = CLOSED_BY_USER


@documented(EmbeddedConsumer)
class Consumer(FeedReader):
    """Takes messages of one durable subscription, and acks them."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        super().__init__(bus, feed)
        assert feed.id is not None
        self.id = feed.id
        self._closed_text = f'this consumer of "{feed.id}" is closed; subscribe again to go on'

    def __del__(self) -> None:
        if not self._closed and self._bus._client.forget(self._feed, id(self), self._last):
            warn_of(self, f'a consumer of "{self.id}"')

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        found = self._last = super().batch(max, timeout_s)
        if found:
            self._feed.takers.add(id(self))
        return found

    def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        Verbs(self._bus).ack(self._feed, messages, wait)
        verdicts.note(messages, "ack")

    def ack_later(self, messages: Sequence[Message]) -> SentAcks:
        bus, feed = self._bus, self._feed
        bus._check_open()
        acking = bus._client.ack_and_wait(feed, feed.epoch, feed.ranges_of(messages, wait=True))
        return SentAcks(asyncio.run_coroutine_threadsafe(acking, bus._loop))

    def seek(self, to: Start) -> None:
        self._bus.ask(seek_of(self._feed, to))

    def pause(self) -> None:
        self._bus.ask(wire.Pause(number=self._feed.number, paused=True))

    def resume(self) -> None:
        self._bus.ask(wire.Pause(number=self._feed.number, paused=False))


@documented(EmbeddedLive)
class Live(FeedReader):
    """A live subscription."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        super().__init__(bus, feed)
        self._forgetting = bus._client.leave_with(self, feed)

    @property
    def dropped(self) -> int:
        """Messages that were dropped because this reader was too slow."""
        return self._feed.dropped

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                found = self.batch(1000)
            except Closed:
                if self._is_done:
                    return
                raise
            yield from found


@documented(EmbeddedReading)
class Reading(FeedReader):
    """Messages one after another; iterate it, or ask with `next` and `batch`."""

    def __init__(self, bus: Bus, feed: Feed) -> None:
        super().__init__(bus, feed)
        self._ready: list[Message] = []
        self._forgetting = bus._client.leave_with(self, feed)

    def batch(self, max: int = 1000, timeout_s: float | None = None) -> list[Message]:
        try:
            if self._ready:
                check_take(max, timeout_s)
                found = self._ready[: -max - 1 : -1]
                del self._ready[-max:]
                return found
            return super().batch(max, timeout_s)
        except Closed:
            if self._is_done:
                return []
            raise

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if not self._ready:
            self._ready = self.batch(1000)[::-1]
            if not self._ready:
                raise StopIteration
        return self._ready.pop()

    def take_batch(self) -> Deliver | None:
        """The next batch as the server sent it, with the messages that match alone; None at the end of history.

        For readers that make no objects of messages, as Spark's do.
        """
        return self._feed.wait_batch(self._check_open)

    @property
    def is_over(self) -> bool:
        return self._closed or (not self._ready and self._feed.is_over)
