"""A receiver: listens where tcp channels push to, and delivers what they bring.

    for message in headwater.receive(port=9000):
        print(message.topic, message.payload)
        message.ack()

Brokers connect to it, as many as like to; each keeps its place, and what is not acked comes again. Promises: a message
is acked on the connection that brought it; when that is gone, so is the message, which comes again over the next one,
and an ack of it is without effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from headwater import threads
from headwater.client.bus import new_loop, run_loop
from headwater.client.connection import Connection
from headwater.client.feed import Feed, Held
from headwater.client.url import Address
from headwater.clock import SECOND_US, SystemClock
from headwater.config import Connecting
from headwater.delivery.options import CHANNEL_PREFIX
from headwater.delivery.reader import Reader, check_take
from headwater.errors import (
    Closed,
    Conflict,
    Disconnected,
    Gap,
    HeadwaterError,
    Malformed,
    QuotaExceeded,
    Recalled,
    TimedOut,
)
from headwater.message import Message, Receipt
from headwater.payload import Payload
from headwater.store.batch import checksum
from headwater.version import __version__
from headwater.wire.batches import Range, pack_credit, pack_ranges, read_deliver, read_ranges
from headwater.wire.channel import NUMBER, ChannelHello, ChannelWelcome
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import choose_version
from headwater.wire.request import Request
from headwater.wire.requests import Goodbye, Notice, Problem, decode, encode, error_of, pack_request, problem_of

LINES_MAX = 64
"""Channels that may push to one receiver at once; one more is sent away (429)."""
THREAD_NAME = "headwater-receiver"
JOIN_S = 10.0
CLOSED = "this receiver is closed"


def receive(port: int = 9000, host: str = "127.0.0.1", settings: Connecting | None = None) -> Receiver:
    """Listen for tcp channels; port 0 is one that is free, and `.port` tells which."""
    return Receiver(port, host, settings)


class Receiver(Reader):
    """What tcp channels push here, from however many brokers."""

    def __init__(self, port: int = 9000, host: str = "127.0.0.1", settings: Connecting | None = None) -> None:
        self.settings = settings or Connecting()
        self.host = host
        self.port = port
        self.clock = SystemClock()
        self._lines: list[ReceiverConnection] = []
        self._turn = 0
        self._changed = threads.Condition()
        self._version = 0
        self._closed = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = new_loop()
        self._thread = threads.Thread(target=run_loop, args=(self.loop,), name=THREAD_NAME, daemon=True)
        self._thread.start()
        try:
            self._wait(self._listen())
        except OSError as error:
            self._stop()
            raise Conflict(
                f"cannot listen on port {port} of {host}: {error.strerror or error}; choose another, or 0 for any"
            ) from None

    # Listening

    async def _listen(self) -> None:
        self._server = await self.loop.create_server(self._greet, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _greet(self) -> Incoming:
        return Incoming(Address(host=self.host, port=self.port), self.settings, self._welcome_soon)

    def _welcome_soon(self, connection: Incoming) -> None:
        task = self.loop.create_task(self._welcome(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _welcome(self, connection: Incoming) -> None:
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                frame = await connection.receive()
                if frame.kind != Kind.HELLO:
                    raise Malformed(f"a broker begins with HELLO, not {Kind(frame.kind).name}")
                hello: ChannelHello = decode(frame.payload, ChannelHello)
                version = choose_version(hello.versions)
                if len(self._lines) >= LINES_MAX:
                    raise QuotaExceeded(f"{LINES_MAX} channels push to this receiver already")
        except HeadwaterError as error:
            connection.close(Goodbye(problem=problem_of(error)))
            return
        except TimeoutError:
            connection.fail(TimedOut("no HELLO came"))
            return
        self._open(connection, hello, version)

    def _open(self, connection: Incoming, hello: ChannelHello, version: int) -> None:

        window = (self.settings.prefetch_messages, self.settings.prefetch_bytes)
        welcome = ChannelWelcome(
            version=version,
            software=f"headwater-python {__version__}",
            credit_messages=window[0],
            credit_bytes=window[1],
        )
        connection.grow(min(hello.frame_bytes_max, self.settings.frame_bytes_max), hello.keepalive_s)
        connection.send((pack(Kind.OK, 0, encode(welcome)),))
        if not hello.trial:
            line = ReceiverConnection(self, connection, hello, window)
            self._lines = [*self._lines, line]
            connection.use(line.on_frame, line.on_lost, lambda: None)

    # Called by connections

    def forget(self, line: ReceiverConnection) -> None:
        """A connection is gone."""
        self._lines = [one for one in self._lines if one is not line]
        self.wake()

    def wake(self) -> None:
        """There may be something to take."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    # Taking

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages of one channel that are there; waits for the first of them."""
        check_take(max, timeout_s)
        clock = self.clock
        until_us = None if timeout_s is None else clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            seen = self._version
            if self._closed:
                raise Closed(CLOSED)
            if found := self._take(max):
                return found
            with self._changed:
                left_us = None if until_us is None else until_us - clock.monotonic_us()
                if left_us is not None and left_us <= 0:
                    return []
                if self._version == seen:
                    clock.wait(self._changed, left_us)

    def _take(self, limit: int) -> list[Message]:
        """Of the next channel that has something."""
        lines = self._lines
        for step in range(len(lines)):
            line = lines[(self._turn + step) % len(lines)]
            try:
                found = line.feed.take(limit)
            except Gap:
                raise
            except HeadwaterError as error:
                # Its connection is gone, or brought what cannot be read: what it had comes again.
                self.loop.call_soon_threadsafe(line.connection.fail, error)
                continue
            if found:
                self._turn += step + 1
                return found
        return []

    def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        """Done with these: one commit for those of each channel. Those whose connection is gone come again."""
        by_feed: dict[Feed, list[Message]] = {}
        for message in messages:
            by_feed.setdefault(_held(message).feed, []).append(message)
        for its in by_feed.values():
            _held(its[0]).verbs.ack(_held(its[0]).feed, its, wait)

    def channel_of(self, message: Message) -> str:
        """The id of the channel that a message came through."""
        return (_held(message).feed.id or "").removeprefix(CHANNEL_PREFIX)

    # The end

    def close(self) -> None:
        """Take no more; what was not acked comes again to whoever listens here next."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        self._wait(self._leave())
        self._stop()

    async def _leave(self) -> None:
        if self._server is not None:
            self._server.close()
        lines = self._lines
        for line in lines:
            line.connection.close(Goodbye())
            line.on_lost(Closed(CLOSED))  # whoever waits for an answer would wait for ever
        await asyncio.gather(*(line.connection.gone() for line in lines))

    def _stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_S)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


class Incoming(Connection):
    """A connection that a broker made."""

    def __init__(self, address: Address, settings: Connecting, on_made: Callable[[Incoming], None]) -> None:
        super().__init__(address, settings)
        self._on_made = on_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._on_made(self)


class ReceiverConnection:
    """The connection of one channel, past its greeting."""

    def __init__(
        self, receiver: Receiver, connection: Connection, hello: ChannelHello, window: tuple[int, int]
    ) -> None:
        self.connection = connection
        self.feed = Feed(
            *(NUMBER, "named", hello.filter, CHANNEL_PREFIX + hello.channel, window, receiver.clock),
            *(Verbs(self), self._flush_soon),
        )
        self.feed.is_open = True
        self.feed.add_waker(receiver.wake)
        self.loop = receiver.loop
        self._receiver = receiver
        self._asked: dict[int, Future[None]] = {}
        self._last_id = 0
        self._is_lost = False

    # Frames of the broker

    def on_frame(self, frame: Frame) -> None:
        """A frame has come; Malformed (422) ends the connection."""
        match frame.kind:
            case Kind.DELIVER:
                deliver = read_deliver(frame)
                if checksum(deliver.body) != deliver.crc:
                    raise Malformed(f'a batch of "{deliver.root}" arrived damaged')
                self.feed.put(deliver)
            case Kind.RECALL:
                self.feed.recall(read_ranges(frame)[1])
            case Kind.NOTICE:
                notice: Notice = decode(frame.payload, Notice)
                error = error_of(notice.problem) if notice.problem is not None else None
                if isinstance(error, Gap):
                    self.feed.put_gap(error)
            case Kind.REPLY:
                self._answer(frame.id, None)
            case Kind.ERROR:
                self._answer(frame.id, error_of(decode(frame.payload, Problem)))
            case _:
                raise Malformed(f"a broker sends no {Kind(frame.kind).name} here")

    def _answer(self, id: int, error: HeadwaterError | None) -> None:
        asked = self._asked.pop(id, None)
        if asked is not None:
            asked.set_exception(error) if error is not None else asked.set_result(None)

    def on_lost(self, error: HeadwaterError) -> None:
        """The connection is gone: what was handed out over it comes again."""
        self._is_lost = True
        asked, self._asked = self._asked, {}
        for future in asked.values():
            future.set_exception(Disconnected(str(error)))
        self.feed.fail(Disconnected("the connection is gone"))
        self._receiver.forget(self)

    # Requests to the broker, from any thread

    def ask(self, make: Callable[[int], bytes]) -> Future[None]:
        """Send what is made with a number; the future is done when its answer comes."""
        future: Future[None] = Future()
        self._soon(self._ask, make, future)
        return future

    def _ask(self, make: Callable[[int], bytes], future: Future[None]) -> None:
        if self._is_lost:
            future.set_exception(Disconnected("the connection is gone"))
            return
        self._flush()
        self._last_id = self._last_id % 0xFFFF_FFFF + 1
        self._asked[self._last_id] = future
        self.connection.send((make(self._last_id),))

    def _flush_soon(self, _: Feed) -> None:
        self._soon(self._flush)

    def _flush(self) -> None:
        """Send TAKEN (ack timers start) and CREDIT (the prefetch window opens again)."""
        taken, messages, size = self.feed.owed()
        if taken:
            self.connection.send((pack_ranges(Kind.TAKEN, NUMBER, 0, taken),))
        if messages or size:
            self.connection.send((pack_credit(NUMBER, messages, size),))

    def _soon(self, call: Callable[..., object], *given: object) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *given)
        except RuntimeError:
            raise Closed(CLOSED) from None


class Verbs:
    """Sends acks and the like over the connection that brought a message."""

    def __init__(self, line: ReceiverConnection) -> None:
        self._line = line

    def ack(self, feed: Feed, messages: Sequence[Message], wait: bool) -> None:
        ranges: list[Range] = feed.ranges_of(messages, wait)
        if not ranges:
            return
        acked = self._line.ask(lambda number: pack_ranges(Kind.ACK, number, NUMBER, ranges))
        if wait:
            try:
                acked.result()
            except Disconnected:
                return  # it comes again

    def tell(self, feed: Feed, verb: str, message: Message, make: Callable[..., Request[None]]) -> None:
        request = make(lease=feed.lease_of(message))
        try:
            self._line.ask(lambda number: pack_request(number, request)).result()
        except Disconnected:
            raise Recalled("the connection that brought this message is gone; it comes again") from None

    def reply(self, message: Message, payload: Payload) -> Receipt:
        raise Malformed("a receiver has no bus to answer on; publish the answer over headwater.connect(…)")


def _held(message: Message) -> Held:
    if not isinstance(message.origin, Held):
        raise Malformed("this message did not come from a receiver; ack it where it came from")
    return message.origin
