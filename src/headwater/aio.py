"""The bus for asyncio: the same names as in `headwater`, as coroutines and async iterators.

    async with headwater.aio.open("var/data") as bus:
        await bus.publish("home/kitchen/temp", b"21.5")
        async with bus.subscribe("home/#", id="thermostat") as sub:
            async for message in sub:
                await message.ack()

It is a thin shell: waiting is done by the event loop, which the committing thread wakes; work is done by the same
core. What takes long by nature (opening, backup, purge, listings) runs in a thread of asyncio's own pool.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.awaitables import Message as Message  # noqa: PLC0414  # a name of users
from headwater.awaitables import Opening as Opening  # noqa: PLC0414
from headwater.awaitables import ack, asynchronous
from headwater.bus import Bus as ThreadBus
from headwater.config import Config, Connecting
from headwater.delivery.consumer import Consumer as ThreadConsumer
from headwater.delivery.dead_letters import Position
from headwater.delivery.live import CLOSED_BY_USER
from headwater.delivery.live import Live as ThreadLive
from headwater.delivery.replay import After
from headwater.delivery.replay import Reading as ThreadReading
from headwater.delivery.start import Start
from headwater.errors import Closed, TimedOut
from headwater.events import Event
from headwater.message import DeadLetter, Extent, Outgoing, Receipt, Receipts, SubscriptionInfo, TopicInfo
from headwater.message import Message as ThreadMessage

if TYPE_CHECKING:
    from headwater.client.aio import Bus as ServedBus

R = TypeVar("R")
GivenHeaders = Mapping[str, str] | Sequence[tuple[str, str]]


class _Reader:
    """Async iteration over something that can be asked without waiting, and says when there is more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()

    def _take(self, max: int) -> list[ThreadMessage] | None:
        """What is there, without waiting; None at the end."""
        raise NotImplementedError

    def _wake(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._more.set)
        except RuntimeError:
            return  # the loop is closed; nobody waits any more

    async def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await self._prepare()
                    self._more.clear()
                    found = self._take(max)
                    if found is None:
                        return []
                    if found:
                        return [asynchronous(message) for message in found]
                    await self._more.wait()
        except TimeoutError:
            return []

    async def _prepare(self) -> None:
        """Do what is to be done before `poll` need not wait."""

    async def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when the time has passed."""
        found = await self.batch(1, timeout_s)
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            found = await self.batch(self._ahead)
            if not found:
                return
            for message in found:
                yield message

    _ahead = 1000
    """How many an iteration takes at once."""


class Consumer(_Reader):
    """Takes messages of one durable subscription."""

    _ahead = 1  # the ack timer of a message starts when it is taken

    def __init__(self, consumer: ThreadConsumer) -> None:
        super().__init__()
        self._consumer = consumer
        self.id = consumer.id
        self.filter = consumer.filter
        consumer.subscriber.set_waker(consumer.ticket, self._wake)

    def _take(self, max: int) -> list[ThreadMessage]:
        return self._consumer.batch(max, 0)

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
        await ack(messages, wait)

    async def seek(self, to: Start) -> None:
        """Go on from "earliest", "latest", an offset or a moment; what is in flight is taken back."""
        await asyncio.to_thread(self._consumer.seek, to)

    async def pause(self) -> None:
        """Hand out nothing until `resume`; remembered."""
        await asyncio.to_thread(self._consumer.pause)

    async def resume(self) -> None:
        """Go on after `pause`."""
        await asyncio.to_thread(self._consumer.resume)

    async def close(self) -> None:
        """Leave; the subscription stays."""
        self._consumer.subscriber.set_waker(self._consumer.ticket, None)
        await asyncio.to_thread(self._consumer.close)
        self._wake()


class Live(_Reader):
    """A live subscription."""

    def __init__(self, live: ThreadLive) -> None:
        super().__init__()
        self._live = live
        self.filter = live.filter
        live.add_waker(self._wake)

    @property
    def dropped(self) -> int:
        """Messages that were dropped because this reader was too slow."""
        return self._live.dropped

    def _take(self, max: int) -> list[ThreadMessage] | None:
        try:
            return self._live.batch(max, 0)
        except Closed as error:
            if error.args[0] == CLOSED_BY_USER:
                return None
            raise

    async def close(self) -> None:
        """Leave; what is buffered is gone."""
        await asyncio.to_thread(self._live.close)


class Reading(_Reader):
    """History, and with `follow` everything after."""

    def __init__(self, reading: ThreadReading) -> None:
        super().__init__()
        self._reading = reading
        self._fetching: asyncio.Future[None] | None = None
        found = weakref.WeakMethod(self._wake)  # what it reads from does not hold one that was forgotten

        def wake() -> None:
            if (known := found()) is not None:
                known()

        reading.add_waker(wake)

    async def _prepare(self) -> None:
        """What is in the lake is read in a thread, which goes on if nobody waits for it any more."""
        while self._fetching is not None or not self._reading.look():
            fetching = self._fetching = self._fetching or asyncio.ensure_future(asyncio.to_thread(self._reading.fetch))
            try:
                await asyncio.shield(fetching)
            finally:
                if fetching.done():
                    self._fetching = None

    def _take(self, max: int) -> list[ThreadMessage] | None:
        found = self._reading.batch(max, 0)
        return None if not found and self._reading.is_over else found

    async def close(self) -> None:
        """Stop reading."""
        await asyncio.to_thread(self._reading.close)


class Bus:
    """A bus whose methods are coroutines."""

    def __init__(self, bus: ThreadBus) -> None:
        self.threads = bus
        """The same bus for threads."""

    @property
    def id(self) -> str:
        """The id of the bus, by which a lake knows whose it is."""
        return self.threads.id

    async def _run(self, work: Callable[..., R], *args: Any, **options: Any) -> R:
        return await asyncio.to_thread(work, *args, **options)

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
        options: dict[str, Any] = {
            "retain": retain,
            "key": key,
            "headers": headers,
            "ttl_s": ttl_s,
            "producer": producer,
            "sequence": sequence,
            "deliver_at": deliver_at,
        }
        if self.threads.is_busy:
            return await self._run(self.threads.publish, topic, payload, **options)
        return await asyncio.wrap_future(self.threads.publish_soon(topic, payload, **options))

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
        """Store messages together, in one commit."""
        if self.threads.is_busy:
            return await self._run(self.threads.publish_many, list(messages), producer=producer, sequence=sequence)
        return await asyncio.wrap_future(self.threads.publish_many_soon(messages, producer=producer, sequence=sequence))

    def subscribe(self, filter: str, *, id: str | None = None, **options: Any) -> Opening[Any]:
        """With an id a durable subscription, without one a live one; `await` it or use it in `async with`."""

        async def make() -> Consumer | Live:
            found = await self._run(self.threads.subscribe, filter, id=id, **options)
            return Live(found) if isinstance(found, ThreadLive) else Consumer(found)

        return Opening(make)

    def replay(
        self, filter: str, *, after: After = None, since: datetime | None = None, upto: Mapping[str, int] | None = None
    ) -> Reading:
        """History, from an offset or a moment on, up to now: `async for message in bus.replay(…)`."""
        return Reading(self.threads.replay(filter, after=after, since=since, upto=upto))

    def follow(self, filter: str, *, after: After = None, since: datetime | None = None) -> Reading:
        """History and then everything new: no gap, no repeat, in order."""
        return Reading(self.threads.follow(filter, after=after, since=since))

    async def request(
        self, topic: str, payload: bytes, *, timeout_s: float | None = None, headers: GivenHeaders = ()
    ) -> Message:
        """Publish a request and wait for its answer."""
        pairs, answer = await self._run(self.threads.request_soon, topic, payload, headers=headers)
        timeout_s = self.threads.config.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                answered = await asyncio.wrap_future(answer)
                return asynchronous(answered)
        except TimeoutError:
            raise TimedOut(f'nobody answered on "{topic}" within {timeout_s} s; is its service running?') from None
        finally:
            self.threads.forget_request(pairs)

    async def topics(self, filter: str = "#") -> list[TopicInfo]:
        """Topics that have messages or a retained value, by name."""
        return await self._run(self.threads.topics, filter)

    async def retained(self, filter: str) -> list[Message]:
        """Retained messages, by topic."""
        return [asynchronous(message) for message in await self._run(self.threads.retained, filter)]

    async def subscriptions(self, *, after: str | None = None, limit: int | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, by id; with a limit a page of them, after an id."""
        return await self._run(self.threads.subscriptions, after=after, limit=limit)

    async def states(self, id: str) -> list[tuple[str, int, str, int, tuple[str, ...]]]:
        """Root, offset, state, attempts and errors of each message that is not simply pending or acked."""
        return await self._run(self.threads.states, id)

    async def ends(self) -> dict[str, int]:
        """The newest offset of each root."""
        return self.threads.ends()

    async def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]:
        """What the roots that a filter may match have, and where in them each of these moments is."""
        return await self._run(self.threads.extents, filter, moments)

    async def unsubscribe(self, id: str) -> None:
        """Delete a durable subscription, its place and its dead letters."""
        await self._run(self.threads.unsubscribe, id)

    async def dead_letters(
        self, id: str, *, after: tuple[str, int] | None = None, limit: int | None = None
    ) -> list[DeadLetter]:
        """Messages that a subscription gave up on; with a limit a page of them, after a root and an offset in it."""
        return await self._run(self.threads.dead_letters, id, after=after, limit=limit)

    async def redrive(
        self,
        id: str,
        offsets: Collection[Position] | None = None,
        *,
        mended: Iterable[DeadLetter] | None = None,
        write: str | None = None,
    ) -> int:
        """Hand dead letters to their subscription again, in order, as they are or `mended`; answers how many."""
        return await self._run(self.threads.redrive, id, offsets, mended=mended, write=write)

    async def mend(self, id: str, write: str, letters: Sequence[DeadLetter], *, part: str = "") -> None:
        """Store other contents for dead letters, which wait for `redrive_mended`; doing it again replaces them."""
        await self._run(self.threads.mend, id, write, letters, part=part)

    async def redrive_mended(self, id: str, write: str, parts: Sequence[str] = ("",)) -> int:
        """Hand the letters that parts of a write have mended to their subscription again, once; drops the others."""
        return await self._run(self.threads.redrive_mended, id, write, parts)

    async def drop_mended(self, id: str, write: str) -> None:
        """Forget what a write has mended and not redriven; the dead letters stay as they are."""
        await self._run(self.threads.drop_mended, id, write)

    async def drop_dead_letters(self, id: str, offsets: Collection[Position] | None = None) -> int:
        """Forget dead letters; answers how many."""
        return await self._run(self.threads.drop_dead_letters, id, offsets)

    async def purge(self, filter: str) -> int:
        """Remove the messages that a filter matches; answers how many topics."""
        return await self._run(self.threads.purge, filter)

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """A copy of the folder as of now, while the bus goes on."""
        await self._run(self.threads.backup, target)

    def events(self) -> list[Event]:
        """What happened lately that somebody should know, oldest first."""
        return self.threads.events()

    async def close(self) -> None:
        """Finish what is under way, and let go of the folder."""
        await self._run(self.threads.close)


def open(folder: str | os.PathLike[str], config: Config | None = None, **doors: Any) -> Opening[Bus]:
    """A bus on a folder that this process then owns: `await` it, or use it in `async with`."""

    async def make() -> Bus:
        return Bus(await asyncio.to_thread(ThreadBus, folder, config, **doors))

    return Opening(make)


def connect(url: str, settings: Connecting | None = None) -> Opening[ServedBus]:
    """The bus that a server has, in this event loop: `await` it, or use it in `async with`."""
    from headwater.client.aio import connect as connect_served

    return connect_served(url, settings)
