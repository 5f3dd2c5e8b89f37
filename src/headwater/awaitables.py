"""What the embedded and the served bus for asyncio share: messages whose verbs are coroutines, and openings."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, Unpack, cast, overload

from headwater import arrow, surface, verdicts
from headwater.config import Config
from headwater.delivery.consumer import Consumer as ThreadConsumer
from headwater.delivery.live import CLOSED_BY_USER, Policy
from headwater.delivery.live import Live as ThreadLive
from headwater.delivery.reader import check_take, told_of
from headwater.delivery.replay import After
from headwater.delivery.start import Start
from headwater.errors import Closed, HeadwaterError, Malformed, Reject, Retry, TimedOut
from headwater.log.checks import Checks
from headwater.message import Envelope, Receipt
from headwater.message import Message as ThreadMessage
from headwater.payload import Payload
from headwater.surface import Durable, documented, like
from headwater.values import Retained as ThreadRetained
from headwater.values import Values
from headwater.values import Watch as ThreadWatch
from headwater.verdicts import Verdict, verdict_of
from headwater.work.comparison import Comparison
from headwater.work.handlers import Function, H, Handlers, decorator, handler_of
from headwater.work.past import Past
from headwater.work.rehearsal import rehearse_async
from headwater.work.shadow import MESSAGES_MAX, Shadow
from headwater.work.shift import Shift
from headwater.work.tasks import TaskWorkers

if TYPE_CHECKING:
    import pyarrow

    from headwater.arrow.reader import Asked
    from headwater.arrow.result import Result
    from headwater.arrow.source import Readable, Source


class Closing(ABC):
    """Something that an `async with` closes at its end."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class Batches(Closing):
    """Record batches of Arrow, one after another: `async for batch in bus.arrow("home/#")`.

    They are made in a thread, each when it is asked for.
    """

    def __init__(self, bus: Readable, asked: Asked) -> None:
        self._bus = bus
        self._asked = asked
        self._reader: Any = None
        self._source: Source | None = None
        self._taking: asyncio.Future[Any] | None = None
        self._closed = False

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns and their types."""
        return self._asked.schema

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pyarrow.RecordBatch:
        if self._closed:
            raise StopAsyncIteration
        # A thread that nobody waits for any more goes on, and the next to ask has what it found.
        taking = self._taking = self._taking or asyncio.ensure_future(asyncio.to_thread(self._take))
        try:
            found = await asyncio.shield(taking)
        finally:
            if taking.done():
                self._taking = None
        if found is None:
            await self.close()
            raise StopAsyncIteration
        return found

    def _take(self) -> Any:
        if self._reader is None:
            self._reader, self._source = self._asked.open(self._bus)
        return next(self._reader, None)

    async def read_all(self) -> pyarrow.Table:
        """All that is left, as one table."""
        import pyarrow

        return pyarrow.Table.from_batches([batch async for batch in self], self.schema)

    async def close(self) -> None:
        self._closed = True
        if self._source is not None:
            await asyncio.to_thread(self._source.close)
        self._reader = None


C = TypeVar("C", bound=Closing)
R = TypeVar("R", bound="Reader")
STILL_TO_OPEN = "still to be opened; await it, or use it in `async with`"


class Opening(Generic[C]):
    """What is still to be opened: `await` it, or use it in `async with`."""

    _what: ClassVar[str]
    """In words."""

    def __init__(self, make: Callable[[], Awaitable[C]]) -> None:
        self._make = make
        self._made: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._make().__await__()

    async def __aenter__(self) -> C:
        self._made = await self._make()
        return self._made

    async def __aexit__(self, *left: Any) -> None:
        assert self._made is not None
        await self._made.__aexit__(*left)

    def __repr__(self) -> str:
        return f"<{self._what}, {STILL_TO_OPEN}>"

    if not TYPE_CHECKING:  # for whom it would have any attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{self._what} has no {name} yet: it is {STILL_TO_OPEN}", name=name, obj=self)


class ReaderOpening(Opening[R]):
    """A subscription that is still to be opened; `async for` does that, too, and closes it where it ends."""

    _what = "a subscription"

    async def __aiter__(self) -> AsyncIterator[Message]:
        async with await self._make() as reader:
            async for message in reader:
                yield message


class Working(ABC):
    """What both buses for asyncio do with subscriptions and handlers."""

    _workers: TaskWorkers

    @overload
    def subscribe(
        self, filter: str, *, id: str, kind: Literal["named"] | None = None, **options: Unpack[Durable]
    ) -> ReaderOpening[Consumer]: ...
    @overload
    def subscribe(
        self, filter: str, *, kind: Literal["session"], **options: Unpack[Durable]
    ) -> ReaderOpening[Consumer]: ...
    @overload
    def subscribe(
        self, filter: str, *, kind: Literal["live"] | None = None, when_full: Policy = ...
    ) -> ReaderOpening[Live]: ...
    @overload
    def subscribe(
        self, filter: str, *, destination: tuple[str, int], id: str | None = None, **options: Unpack[Durable]
    ) -> Awaitable[str]: ...
    def subscribe(self, filter: str, **options: Any) -> Any:
        return ReaderOpening(lambda: self._subscribe(filter, **options))

    @abstractmethod
    async def _subscribe(self, filter: str, **options: Any) -> Any:
        """A durable subscription, a live one, or the id of a channel."""

    @property
    @abstractmethod
    def config(self) -> Config: ...

    @abstractmethod
    def _readable(self) -> Readable:
        """The same bus for a thread that reads columns."""

    @like(surface.Bus.arrow)
    def arrow(self, filter: str, **options: Any) -> Batches:
        return Batches(self._readable(), arrow.asked(filter, **options))

    @abstractmethod
    def _sql_memory_bytes(self) -> int: ...

    @like(surface.Bus.frame)
    async def frame(self, filter: str, *, library: Literal["pandas", "polars"] | None = None, **options: Any) -> Any:
        return await asyncio.to_thread(arrow.frame, self._readable(), filter, library, **options)

    @like(surface.Bus.sql)
    async def sql(
        self, query: str, params: Mapping[str, object] | Sequence[object] | None = None, **options: Any
    ) -> Result:
        asked = arrow.query(self._readable(), query, params, self._sql_memory_bytes(), **options)
        try:
            return await asyncio.to_thread(asked.answer)
        except asyncio.CancelledError:
            asked.interrupt()
            raise

    @like(surface.Bus.handler)
    def handler(self, filter: str, **options: Any) -> Callable[[H], H]:
        return decorator(self.consume, filter, options)

    @like(surface.Bus.consume)
    def consume(self, filter: str, handler: Function, **options: Any) -> None:
        self._workers.handlers.add(handler_of(filter, handler, **options), self.config)

    @like(surface.Bus.run)
    async def run(self, *, workers: int | None = None) -> Shift:
        return await self._workers.run(workers)

    @like(surface.Bus.stop)
    def stop(self) -> None:
        self._workers.stop()

    @abstractmethod
    def _checking(self) -> Checks: ...

    @abstractmethod
    async def _past(self, id: str) -> Past: ...

    @like(surface.Bus.what_if)
    async def what_if(
        self,
        id: str,
        handler: Function,
        *,
        since: datetime | None = None,
        after: After = None,
        against: Function | None = None,
        messages_max: int = MESSAGES_MAX,
    ) -> Comparison:
        making = (self._checking(), self._workers.clock, messages_max)
        shadow = Shadow(await self._past(id), handler, against, *making, is_asynchronous=True)
        return await rehearse_async(self, shadow, after, since, asynchronous)


like(cast("Callable[..., Any]", surface.Bus.subscribe))(Working.subscribe)  # an overloaded method has no type


class WorkingBus(Closing, Working):
    """A bus that can run handlers."""


B = TypeVar("B", bound=WorkingBus)


class BusOpening(Opening[B]):
    """A bus that is still to be opened: `await` it, use it in `async with`, or register handlers and `run` it."""

    _what = "a bus"

    def __init__(self, make: Callable[[Handlers], Awaitable[B]]) -> None:
        self._handlers = Handlers(is_asynchronous=True)
        self._bus: B | None = None

        async def opened() -> B:
            self._bus = await make(self._handlers)
            return self._bus

        super().__init__(opened)

    @like(surface.Bus.handler)
    def handler(self, filter: str, **options: Any) -> Callable[[H], H]:
        return decorator(self.consume, filter, options)

    @like(surface.Bus.consume)
    def consume(self, filter: str, handler: Function, **options: Any) -> None:
        self._handlers.add(handler_of(filter, handler, **options), Config())

    async def run(self, *, workers: int | None = None) -> Shift:
        """Open the bus, run its handlers until SIGTERM or Ctrl-C, and close it."""
        async with self as bus:
            return await bus.run(workers=workers)

    @like(surface.Bus.stop)
    def stop(self) -> None:
        if self._bus is not None:
            self._bus.stop()


class Message(Envelope, frozen=True, gc=False, eq=False):
    """A message whose verbs are coroutines."""

    async def ack(self, wait: bool = True) -> None:
        """Done with it: never delivered again; on disk when this returns, unless wait=False."""
        await ack((self,), wait)

    async def nack(self, error: str | BaseException = "", delay_s: float | None = None) -> None:
        """It failed this time: redeliver it, after `delay_s` or an exponential backoff."""
        await self._say("nack", error, delay_s)

    async def reject(self, error: str | BaseException = "") -> None:
        """It will never succeed: move it to the dead letters now."""
        await self._say("reject", error)

    async def extend(self, seconds: float) -> None:
        """Give this consumer so many more seconds, from now, before the ack times out."""
        await self._say("extend", seconds)

    async def _say(self, verb: Literal["nack", "reject", "extend"], *said: object) -> None:
        origin = served(self)
        if origin is not None:
            await getattr(origin, verb)(self, *said)
        else:
            await asyncio.to_thread(getattr(plain(self), verb), *said)
        if verb != "extend":
            verdicts.note((self,), verb)

    async def reply(self, payload: Payload) -> Receipt:
        """Answer a request."""
        if served(self) is not None:
            replying: Any = plain(self).reply(payload)  # a coroutine, of such an origin
            receipt: Receipt = await replying
            return receipt
        return await asyncio.to_thread(plain(self).reply, payload)

    async def __aenter__(self) -> Self:
        """Acked at the end of the block, nacked with what leaves it; Reject and Retry go no further."""
        self._origin("ack")
        verdicts.begin(self)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        if verdicts.end(self):
            pass
        elif error is None:
            await self.ack()
        elif isinstance(error, Exception):  # a task that is cancelled is not the message's fault
            with suppress(HeadwaterError):  # what left the block is what its user is to hear of
                await fail(self, verdict_of(error, trace))
        return isinstance(error, Reject | Retry)


async def answered(answer: asyncio.Future[ThreadMessage], topic: str, timeout_s: float) -> Message:
    """The answer to a request, once it is there."""
    timer = answer.get_loop().call_later(timeout_s, answer.cancel)  # a third of what `asyncio.timeout` takes
    try:
        return asynchronous(await answer)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not answer.cancelled() or (task is not None and task.cancelling()):
            raise
        raise TimedOut(f'nobody answered on "{topic}" within {timeout_s} s; is its service running?') from None
    finally:
        timer.cancel()


def plain(message: Envelope) -> ThreadMessage:
    """The same message with verbs for threads."""
    return ThreadMessage(*(getattr(message, name) for name in Envelope.__struct_fields__))


def asynchronous(m: Envelope) -> Message:
    """The same message with coroutines as its verbs."""
    return Message(
        m.topic, m.offset, m.payload, m.time_us, m.key, m.header_pairs, m.retained, m.attempt, m.origin, m.retain
    )


def served(message: Envelope) -> Any:
    """The origin of a message that came over a connection: its verbs are coroutines."""
    origin = message.origin
    return origin if getattr(getattr(origin, "verbs", None), "is_asynchronous", False) else None


async def fail(message: Message, verdict: Verdict) -> None:
    """Nack or reject a message, as was said."""
    if verdict.is_final:
        await message.reject(verdict.text)
        return
    try:
        await message.nack(verdict.text, verdict.delay_s)
    except Malformed:
        if verdict.delay_s is None:
            raise
        await message.nack(verdict.text)  # longer than the bus allows: after a delay of its own, and at once noted


async def ack(messages: Sequence[Message], wait: bool = True) -> None:
    """Done with these messages of one origin."""
    if messages:
        remote = served(messages[0])
        if remote is not None:
            await remote.ack(messages, wait)
            verdicts.note(messages, "ack")
            return
        threaded = [plain(message) for message in messages]
        origin = threaded[0]._origin("ack")
        settlement = getattr(origin, "settlement", None)
        if settlement is not None and wait:
            await asyncio.wrap_future(settlement.ack_soon(threaded))
        else:
            origin.ack(threaded, wait)
        verdicts.note(messages, "ack")


@documented(ThreadConsumer)
class Reader(Closing):
    """Async iteration over a source that is polled without waiting, and calls back when there is more."""

    _ahead = 1000
    """How many an iteration takes at once."""
    _is_done = False
    """Whether it is its user who has ended it."""
    _last: Sequence[Message] = ()
    """What a consumer handed out last."""
    _is_acked = False
    """Whether what it hands out is acked: a consumer of a durable subscription."""

    def __new__(cls, *_: object, **__: object) -> Self:
        if inspect.isabstract(cls):
            raise surface.not_made(cls)
        return super().__new__(cls)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._more = more = asyncio.Event()
        self._wakers: list[Callable[[], None]] = []
        wakers = self._wakers

        def ring() -> None:  # whoever has it does not hold a reader that was forgotten
            more.set()
            for wake in wakers:
                wake()

        self._ring = ring
        """There may be something to take; in the loop."""

    def __repr__(self) -> str:
        return told_of(self)

    @abstractmethod
    def _take(self, max: int) -> list[ThreadMessage] | None:
        """What is there, without waiting; None at the end."""

    def _wake(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:
            return  # the loop is closed; nobody waits any more

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call this, in the loop, when there may be something to take."""
        self._wakers.append(wake)

    def poll(self, max: int) -> list[Message]:
        """What is there, without waiting; Closed at the end."""
        found = self._take(max)
        if found is None:
            raise Closed(CLOSED_BY_USER)
        return [asynchronous(message) for message in found]

    async def _prepare(self) -> None:  # few have anything to do
        """Do what is to be done before `_take` need not wait."""

    async def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        check_take(max, timeout_s)
        if timeout_s is None:  # no timer, as for most: it would take as long as all else here
            return await self._batch(max)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._batch(max)
        except TimeoutError:
            return []

    async def _batch(self, max: int) -> list[Message]:
        while True:
            await self._prepare()
            self._more.clear()
            found = self._take(max)
            if found is None:
                return []
            if found:
                messages = [asynchronous(message) for message in found]
                if self._is_acked:
                    self._last = messages
                return messages
            await self._more.wait()

    async def __aexit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if isinstance(error, Exception) and self._last:
                verdict = verdict_of(error, trace)
                for message in self._last:
                    with suppress(HeadwaterError):  # done already, or taken back behind one that failed
                        await fail(message, verdict)
        finally:
            await self.close()

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


@documented(ThreadConsumer)
class Consumer(Reader):
    """Takes messages of one durable subscription."""

    id: str
    filter: str

    _ahead = 1  # the ack timer of a message starts when it is taken
    _is_acked = True
    _is_done = True

    @abstractmethod
    async def ack(self, messages: Sequence[Message], wait: bool = True) -> None: ...
    @abstractmethod
    async def seek(self, to: Start) -> None: ...
    @abstractmethod
    async def pause(self) -> None: ...
    @abstractmethod
    async def resume(self) -> None: ...


@documented(ThreadLive)
class Live(Reader):
    """A live subscription."""

    filter: str

    @property
    @abstractmethod
    def dropped(self) -> int:
        """Messages that were dropped because this reader was too slow."""


@documented(ThreadRetained)
class Retained(Values[Message]):
    """Retained messages by topic, as they were when they were asked for."""

    def __init__(
        self,
        filter: str,
        ends: Mapping[str, int],
        found: Iterable[Message],
        follow: Callable[[str, Mapping[str, int]], Reader],
    ) -> None:
        super().__init__(filter, ends, found)
        self._follow = follow

    def watch(self) -> Watch:
        return Watch(self, self._follow(self.filter, self._ends))


@documented(ThreadWatch)
class Watch(Closing):
    """Changes of retained messages, one after another; iterate it, or ask with `next` and `batch`."""

    def __init__(self, values: Retained, reading: Reader) -> None:
        self.filter = values.filter
        self._values = values
        self._reading = reading

    async def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        check_take(max, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = await self._reading.batch(max)
                    changes = self._values.note(found)
                    if changes or not found:
                        return changes
        except TimeoutError:
            return []

    async def next(self, timeout_s: float | None = None) -> Message | None:
        """The next change; None when the time has passed."""
        found = await self.batch(1, timeout_s)
        return found[0] if found else None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while changes := await self.batch():
            for message in changes:
                yield message

    async def close(self) -> None:
        await self._reading.close()
