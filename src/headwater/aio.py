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
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from headwater import surface
from headwater.awaitables import BusOpening, Reader, Retained, WorkingBus, ack, answered, asynchronous, fail
from headwater.awaitables import Consumer as Consumer  # noqa: PLC0414  # names of users
from headwater.awaitables import Live as Live  # noqa: PLC0414
from headwater.awaitables import Message as Message  # noqa: PLC0414  # a name of users
from headwater.awaitables import Opening as Opening  # noqa: PLC0414
from headwater.bus import Bus as ThreadBus
from headwater.config import Config, Connecting
from headwater.delivery.consumer import Consumer as ThreadConsumer
from headwater.delivery.live import CLOSED_BY_USER
from headwater.delivery.live import Live as ThreadLive
from headwater.delivery.options import Options
from headwater.delivery.reader import check_timeout
from headwater.delivery.replay import Reading as ThreadReading
from headwater.delivery.start import Start
from headwater.errors import Closed
from headwater.forgotten import weakly
from headwater.log.checks import Checks
from headwater.message import Message as ThreadMessage
from headwater.message import Receipt, Receipts
from headwater.payload import Payload
from headwater.surface import Messages, documented, like
from headwater.work.handlers import Handlers
from headwater.work.past import Past
from headwater.work.tasks import TaskWorkers

if TYPE_CHECKING:
    from headwater.client.aio import Bus as ServedBus
    from headwater.client.url import Token
    from headwater.clock import Clock
    from headwater.core import Doors
    from headwater.delivery.options import OnResume
    from headwater.parts import AwaitedAcl, AwaitedChannels, AwaitedClients, AwaitedDurables, AwaitedTokens

P = ParamSpec("P")
R = TypeVar("R")


@documented(ThreadConsumer)
class EmbeddedConsumer(Consumer):
    """Takes messages of one durable subscription."""

    def __init__(self, consumer: ThreadConsumer) -> None:
        super().__init__()
        self._consumer = consumer
        self.id = consumer.id
        self.filter = consumer.filter
        consumer.add_waker(weakly(self._wake))

    @property
    def options(self) -> Options:
        """Those of its subscription."""
        return self._consumer.options

    def _take(self, max: int) -> list[ThreadMessage]:
        return self._consumer.batch(max, 0)

    async def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        await ack(messages, wait)

    async def seek(self, to: Start) -> None:
        await asyncio.to_thread(self._consumer.seek, to)

    async def pause(self) -> None:
        await asyncio.to_thread(self._consumer.pause)

    async def resume(self) -> None:
        await asyncio.to_thread(self._consumer.resume)

    async def close(self) -> None:
        await asyncio.to_thread(self._consumer.close)
        self._wake()


@documented(ThreadLive)
class EmbeddedLive(Live):
    """A live subscription."""

    def __init__(self, live: ThreadLive) -> None:
        super().__init__()
        self._live = live
        self.filter = live.filter
        self._fetching: asyncio.Future[None] | None = None
        live.add_waker(weakly(self._wake))

    async def _prepare(self) -> None:
        """What is retained is read in a thread, which goes on if nobody waits for it any more."""
        while self._fetching is not None or self._live.is_unread:
            fetching = self._fetching = self._fetching or asyncio.ensure_future(asyncio.to_thread(self._live.read_on))
            try:
                await asyncio.shield(fetching)
            finally:
                if fetching.done():
                    self._fetching = None

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
        reading.add_waker(weakly(self._wake))  # what it reads from does not hold one that was forgotten

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


def in_thread(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
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
class Bus(WorkingBus):
    """A bus whose methods are coroutines."""

    def __init__(self, bus: ThreadBus, handlers: Handlers | None = None) -> None:
        if not isinstance(bus, ThreadBus):
            raise TypeError("headwater.aio.open(folder), or headwater.aio.connect(url), gives a bus for asyncio")
        self.threads = bus
        """The same bus for threads."""
        self._workers = TaskWorkers(weakly(self.subscribe), fail, bus.core.clock, handlers)
        self.clients = cast("AwaitedClients", InThreads(bus, "clients"))
        self.acl = cast("AwaitedAcl", InThreads(bus, "acl"))
        self.channels = cast("AwaitedChannels", InThreads(bus, "channels"))
        self.tokens = cast("AwaitedTokens", InThreads(bus, "tokens"))
        self.durables = cast("AwaitedDurables", InThreads(bus, "durables"))

    def __repr__(self) -> str:
        return repr(self.threads)

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
    def session(self) -> str | None:
        return self.threads.session

    @property
    def client_id(self) -> str | None:
        return self.threads.client_id

    @property
    def now(self) -> datetime:
        return self.threads.now

    @property
    def is_read_only(self) -> bool:
        """Whether it was opened to read only."""
        return self.threads.is_read_only

    @like(surface.Bus.publish)
    async def publish(self, topic: str, payload: Payload, **options: Any) -> Receipt:
        if self.threads.is_busy:
            return await asyncio.to_thread(self.threads.publish, topic, payload, **options)
        return await asyncio.wrap_future(self.threads.publish_soon(topic, payload, **options))

    @like(surface.Bus.publish_soon)
    def publish_soon(self, topic: str, payload: Payload, **options: Any) -> asyncio.Task[Receipt]:
        return asyncio.ensure_future(self.publish(topic, payload, **options))

    @like(surface.Bus.publish_many)
    async def publish_many(self, messages: Messages, **options: Any) -> Receipts:
        if self.threads.is_busy:
            return await asyncio.to_thread(self.threads.publish_many, list(messages), **options)
        return await asyncio.wrap_future(self.threads.publish_many_soon(messages, **options))

    @like(surface.Bus.publish_many_soon)
    def publish_many_soon(self, messages: Messages, **options: Any) -> asyncio.Task[Receipts]:
        return asyncio.ensure_future(self.publish_many(messages, **options))

    @like(surface.Bus.send)
    async def send(self, topic: str, payload: Payload, **options: Any) -> None:
        if self.threads.is_busy:
            await asyncio.to_thread(self.threads.send, topic, payload, **options)
        else:
            self.threads.send(topic, payload, **options)

    async def _subscribe(self, filter: str, **options: Any) -> Consumer | Live:
        found = await asyncio.to_thread(self.threads._subscribe, filter, **options)
        return EmbeddedLive(found) if isinstance(found, ThreadLive) else EmbeddedConsumer(found)

    @like(surface.Bus.replay)
    def replay(self, filter: str, **options: Any) -> Reading:
        return Reading(self.threads.replay(filter, **options))

    @like(surface.Bus.follow)
    def follow(self, filter: str, **options: Any) -> Reading:
        return Reading(self.threads.follow(filter, **options))

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
        ask = partial(self.threads._ask_soon, topic, payload, headers, durable, may_wait=False)
        is_at_once = not durable and self.threads._asks_at_once(topic, payload)
        pairs, answer = ask() if is_at_once else await asyncio.to_thread(ask)
        try:
            return await answered(asyncio.wrap_future(answer), topic, timeout_s)
        finally:
            self.threads.forget_request(pairs)

    @like(surface.Bus.retained)
    async def retained(self, filter: str) -> Retained:
        self.threads.core.check_open()
        ends = await self.ends()
        found = await asyncio.to_thread(self.threads.core.retained, filter)
        return Retained(filter, ends, map(asynchronous, found), lambda *place: self.follow(place[0], after=place[1]))

    def _sql_memory_bytes(self) -> int:
        return self.config.sql_memory_bytes

    def _readable(self) -> ThreadBus:
        return self.threads

    def _checking(self) -> Checks:
        return self.threads._checking()

    async def _past(self, id: str) -> Past:
        return await asyncio.to_thread(self.threads._past, id)

    topics = in_thread(surface.Bus.topics)
    ends = in_thread(surface.Bus.ends)
    extents = in_thread(surface.Bus.extents)
    purges = in_thread(surface.Bus.purges)
    events = in_thread(surface.Bus.events)
    refresh = in_thread(surface.Bus.refresh)
    unsubscribe = in_thread(surface.Bus.unsubscribe)
    subscriptions = in_thread(surface.Bus.subscriptions)
    schedule = in_thread(surface.Bus.schedule)
    schedules = in_thread(surface.Bus.schedules)
    unschedule = in_thread(surface.Bus.unschedule)
    schema = in_thread(surface.Bus.schema)
    schemas = in_thread(surface.Bus.schemas)
    remove_schema = in_thread(surface.Bus.remove_schema)
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
    erase = in_thread(surface.Bus.erase)
    remove_root = in_thread(surface.Bus.remove_root)
    backup = in_thread(surface.Bus.backup)
    mark_archived = in_thread(surface.Bus.mark_archived)

    async def close(self) -> None:
        await self._workers.end()
        await asyncio.to_thread(self.threads.close)


def open(
    folder: str | os.PathLike[str],
    config: Config | None = None,
    *,
    lake: str | os.PathLike[str] | None = None,
    read_only: bool = False,
    clock: Clock | None = None,
    **doors: Unpack[Doors],
) -> BusOpening[Bus]:
    """A bus on a folder that this process then owns: `await` it, or use it in `async with`.

    Handlers can be registered before it is opened, and `await bus.run()` then opens it, works, and closes it.
    """

    opened = partial(ThreadBus, folder, config, lake=lake, read_only=read_only, clock=clock, **doors)

    async def make(handlers: Handlers) -> Bus:
        return Bus(await asyncio.to_thread(opened), handlers)

    return BusOpening(make)


def connect(
    url: str,
    settings: Connecting | None = None,
    *,
    token: Token | None = None,
    session: str | os.PathLike[str] | None = None,
    on_resume: OnResume = "keep",
) -> BusOpening[ServedBus]:
    """The bus that a server has, in this event loop: `await` it, or use it in `async with`.

    With token=…, a text or a function (a coroutine function, too) that gives a fresh one, by a token of an issuer. With
    session=…, a file or an id, it goes on with that session, as `headwater.connect` does.
    """
    from headwater.client.aio import connect as connect_served

    return connect_served(url, settings, token=token, session=session, on_resume=on_resume)
