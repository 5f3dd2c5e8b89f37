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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from headwater import surface
from headwater.bus import Bus as ThreadBus
from headwater.config import Config, Connecting
from headwater.delivery.consumer import Consumer as ThreadConsumer
from headwater.delivery.live import CLOSED_BY_USER, check_max
from headwater.delivery.live import Live as ThreadLive
from headwater.delivery.replay import Reading as ThreadReading
from headwater.delivery.start import Start
from headwater.errors import Closed, TimedOut
from headwater.message import Envelope, Outgoing, Receipt, Receipts
from headwater.message import Message as ThreadMessage
from headwater.surface import documented, like

if TYPE_CHECKING:
    from headwater.client.aio import Bus as ServedBus

P = ParamSpec("P")
R = TypeVar("R")


class Closing(Protocol):
    """Something that an `async with` closes at its end."""

    async def close(self) -> None:
        """Let go of it."""


C = TypeVar("C", bound=Closing)


class Opening(Generic[C]):
    """What is still to be opened: `await` it, or use it in `async with`."""

    def __init__(self, make: Callable[[], Awaitable[C]]) -> None:
        self._make = make
        self._made: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._make().__await__()

    async def __aenter__(self) -> C:
        self._made = await self._make()
        return self._made

    async def __aexit__(self, *_: object) -> None:
        assert self._made is not None
        await self._made.close()


class Message(Envelope, frozen=True, gc=False, eq=False):
    """A message whose verbs are coroutines."""

    async def ack(self, wait: bool = True) -> None:
        """Done with it: never handed out again; on disk when this returns, unless wait=False."""
        await _ack((self,), wait)

    async def nack(self, error: str | BaseException = "", delay_s: float | None = None) -> None:
        """It failed this time: hand it out again, after `delay_s` or a growing delay."""
        served = _served(self)
        if served is not None:
            await served.nack(self, error, delay_s)
        else:
            await asyncio.to_thread(_plain(self).nack, error, delay_s)

    async def reject(self, error: str | BaseException = "") -> None:
        """It will never succeed: move it to the dead letters now."""
        served = _served(self)
        if served is not None:
            await served.reject(self, error)
        else:
            await asyncio.to_thread(_plain(self).reject, error)

    async def extend(self, seconds: float) -> None:
        """Give this consumer so many more seconds, from now, before the ack times out."""
        served = _served(self)
        if served is not None:
            await served.extend(self, seconds)
        else:
            _plain(self).extend(seconds)

    async def reply(self, payload: bytes) -> Receipt:
        """Answer a request."""
        if _served(self) is not None:
            replying: Any = _plain(self).reply(payload)  # a coroutine, of such an origin
            receipt: Receipt = await replying
            return receipt
        return await asyncio.to_thread(_plain(self).reply, payload)


def _plain(message: Envelope) -> ThreadMessage:
    return ThreadMessage(*(getattr(message, name) for name in Envelope.__struct_fields__))


def asynchronous(m: Envelope) -> Message:
    """The same message with coroutines as its verbs."""
    return Message(m.topic, m.offset, m.payload, m.time_us, m.key, m.headers, m.retained, m.attempt, m.origin)


def _served(message: Envelope) -> Any:
    """The origin of a message that came over a connection: its words are coroutines."""
    origin = message.origin
    return origin if getattr(getattr(origin, "verbs", None), "is_asynchronous", False) else None


async def _ack(messages: Sequence[Message], wait: bool = True) -> None:
    if messages:
        served = _served(messages[0])
        if served is not None:
            await served.ack(messages, wait)
            return
        plain = [_plain(message) for message in messages]
        origin = plain[0]._origin("ack")
        subscriber = getattr(origin, "subscriber", None)
        if subscriber is not None and wait:
            await asyncio.wrap_future(subscriber.ack_soon(plain))
        else:
            origin.ack(plain, wait)


@documented(ThreadConsumer)
class Reader:
    """Async iteration over something that can be asked without waiting, and says when there is more."""

    _ahead = 1000
    """How many an iteration takes at once."""
    _is_done = False
    """Whether it is its user who has ended it."""

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

    async def _prepare(self) -> None:
        """Do what is to be done before `_take` need not wait."""

    async def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        check_max(max)
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

    async def next(self, timeout_s: float | None = None) -> Message | None:
        found = await self.batch(1, timeout_s)
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                found = await self.batch(self._ahead)
            except Closed:
                if self._is_done:
                    return
                raise
            if not found:
                return
            for message in found:
                yield message

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@documented(ThreadConsumer)
class Consumer(Reader):
    """Takes messages of one durable subscription."""

    _ahead = 1  # the ack timer of a message starts when it is taken
    _is_done = True

    def __init__(self, consumer: ThreadConsumer) -> None:
        super().__init__()
        self._consumer = consumer
        self.id = consumer.id
        self.filter = consumer.filter
        consumer.subscriber.set_waker(consumer.ticket, self._wake)

    def _take(self, max: int) -> list[ThreadMessage]:
        return self._consumer.batch(max, 0)

    async def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        await _ack(messages, wait)

    async def seek(self, to: Start) -> None:
        await asyncio.to_thread(self._consumer.seek, to)

    async def pause(self) -> None:
        await asyncio.to_thread(self._consumer.pause)

    async def resume(self) -> None:
        await asyncio.to_thread(self._consumer.resume)

    async def close(self) -> None:
        self._consumer.subscriber.set_waker(self._consumer.ticket, None)
        await asyncio.to_thread(self._consumer.close)
        self._wake()


@documented(ThreadLive)
class Live(Reader):
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
        await asyncio.to_thread(self._live.close)


@documented(ThreadReading)
class Reading(Reader):
    """History, and with `follow` everything after."""

    def __init__(self, reading: ThreadReading) -> None:
        super().__init__()
        self._reading = reading
        self.filter = reading.filter
        self._fetching: asyncio.Future[None] | None = None
        found = weakref.WeakMethod(self._wake)  # what it reads from does not hold one that was forgotten

        def wake() -> None:
            if (known := found()) is not None:
                known()

        reading.add_waker(wake)

    async def batch(self, max: int = 1000, timeout_s: float | None = None) -> list[Message]:
        return await super().batch(max, timeout_s)

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

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._reading.is_over

    async def close(self) -> None:
        await asyncio.to_thread(self._reading.close)


def in_thread(
    verb: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """A method that is done by the bus for threads, in a thread of asyncio's own pool."""
    name = verb.__name__

    @wraps(verb)
    async def call(bus: Bus, /, *args: P.args, **options: P.kwargs) -> R:
        found: R = await asyncio.to_thread(getattr(bus.threads, name), *args, **options)
        return found

    return call


class InThreads:
    """A part of a bus whose methods are coroutines here: `await bus.clients.add("ann")`."""

    def __init__(self, bus: ThreadBus, part: str) -> None:
        self._bus = bus
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        def work(*args: Any, **options: Any) -> Any:
            return getattr(getattr(self._bus, self._part), name)(*args, **options)

        return partial(asyncio.to_thread, work)


@documented(surface.Bus)
class Bus:
    """A bus whose methods are coroutines."""

    def __init__(self, bus: ThreadBus) -> None:
        self.threads = bus
        """The same bus for threads."""
        self.clients = InThreads(bus, "clients")
        self.acl = InThreads(bus, "acl")
        self.channels = InThreads(bus, "channels")
        self.tokens = InThreads(bus, "tokens")
        self.durables = InThreads(bus, "durables")

    @property
    def id(self) -> str:
        return self.threads.id

    @property
    def config(self) -> Config:
        return self.threads.config

    @property
    def folder(self) -> str:
        return self.threads.folder

    @property
    def now(self) -> datetime:
        return self.threads.now

    @property
    def is_read_only(self) -> bool:
        """Whether it was opened to read only."""
        return self.threads.is_read_only

    @like(surface.Bus.publish)
    async def publish(self, topic: str, payload: bytes, **options: Any) -> Receipt:
        if self.threads.is_busy:
            return await asyncio.to_thread(self.threads.publish, topic, payload, **options)
        return await asyncio.wrap_future(self.threads.publish_soon(topic, payload, **options))

    @like(surface.Bus.publish_soon)
    def publish_soon(self, topic: str, payload: bytes, **options: Any) -> asyncio.Task[Receipt]:
        return asyncio.ensure_future(self.publish(topic, payload, **options))

    @like(surface.Bus.publish_many)
    async def publish_many(self, messages: Iterable[tuple[str, bytes] | Outgoing], **options: Any) -> Receipts:
        if self.threads.is_busy:
            return await asyncio.to_thread(self.threads.publish_many, list(messages), **options)
        return await asyncio.wrap_future(self.threads.publish_many_soon(messages, **options))

    @like(surface.Bus.publish_many_soon)
    def publish_many_soon(
        self, messages: Iterable[tuple[str, bytes] | Outgoing], **options: Any
    ) -> asyncio.Task[Receipts]:
        return asyncio.ensure_future(self.publish_many(messages, **options))

    @like(surface.Bus.send)
    async def send(self, topic: str, payload: bytes, **options: Any) -> None:
        if self.threads.is_busy:
            await asyncio.to_thread(self.threads.send, topic, payload, **options)
        else:
            self.threads.send(topic, payload, **options)

    @like(surface.Bus.subscribe)
    def subscribe(self, filter: str, **options: Any) -> Opening[Any]:
        async def make() -> Consumer | Live:
            found = await asyncio.to_thread(self.threads.subscribe, filter, **options)
            return Live(found) if isinstance(found, ThreadLive) else Consumer(found)

        return Opening(make)

    @like(surface.Bus.replay)
    def replay(self, filter: str, **options: Any) -> Reading:
        return Reading(self.threads.replay(filter, **options))

    @like(surface.Bus.follow)
    def follow(self, filter: str, **options: Any) -> Reading:
        return Reading(self.threads.follow(filter, **options))

    @like(surface.Bus.request)
    async def request(
        self, topic: str, payload: bytes, *, timeout_s: float | None = None, headers: surface.GivenHeaders = ()
    ) -> Message:
        pairs, answer = await asyncio.to_thread(self.threads.request_soon, topic, payload, headers=headers)
        timeout_s = self.threads.config.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                found = await asyncio.wrap_future(answer)
            return asynchronous(found)
        except TimeoutError:
            raise TimedOut(f'nobody answered on "{topic}" within {timeout_s} s; is its service running?') from None
        finally:
            self.threads.forget_request(pairs)

    @like(surface.Bus.retained)
    async def retained(self, filter: str) -> list[Message]:
        return [asynchronous(message) for message in await asyncio.to_thread(self.threads.retained, filter)]

    topics = in_thread(surface.Bus.topics)
    ends = in_thread(surface.Bus.ends)
    extents = in_thread(surface.Bus.extents)
    events = in_thread(surface.Bus.events)
    refresh = in_thread(surface.Bus.refresh)
    unsubscribe = in_thread(surface.Bus.unsubscribe)
    subscriptions = in_thread(surface.Bus.subscriptions)
    states = in_thread(surface.Bus.states)
    dead_letters = in_thread(surface.Bus.dead_letters)
    dead_letter = in_thread(surface.Bus.dead_letter)
    redrive = in_thread(surface.Bus.redrive)
    mend = in_thread(surface.Bus.mend)
    redrive_mended = in_thread(surface.Bus.redrive_mended)
    drop_mended = in_thread(surface.Bus.drop_mended)
    drop_dead_letters = in_thread(surface.Bus.drop_dead_letters)
    stage = in_thread(surface.Bus.stage)
    stage_body = in_thread(surface.Bus.stage_body)
    commit_stage = in_thread(surface.Bus.commit_stage)
    drop_stage = in_thread(surface.Bus.drop_stage)
    purge = in_thread(surface.Bus.purge)
    backup = in_thread(surface.Bus.backup)
    mark_archived = in_thread(surface.Bus.mark_archived)
    close = in_thread(surface.Bus.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open(folder: str | os.PathLike[str], config: Config | None = None, **doors: Any) -> Opening[Bus]:
    """A bus on a folder that this process then owns: `await` it, or use it in `async with`."""

    async def make() -> Bus:
        return Bus(await asyncio.to_thread(ThreadBus, folder, config, **doors))

    return Opening(make)


def connect(url: str, settings: Connecting | None = None) -> Opening[ServedBus]:
    """The bus that a server has, in this event loop: `await` it, or use it in `async with`."""
    from headwater.client.aio import connect as connect_served

    return connect_served(url, settings)
