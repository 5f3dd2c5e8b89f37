"""A tcp channel: pushes batches as they are stored, over a connection of the native protocol that the broker makes.

It is a party as a session is: the receiver at the other side takes, acks and refuses messages of its one subscription
as a client would, and a pump serves it. Promises: a receiver that breaks the rules is cut off, and what it had
comes again; what it says of messages that it was never sent changes nothing.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from headwater.channels.channel import ERROR_CHARS_MAX, Channel
from headwater.channels.row import ChannelRow
from headwater.delivery.rows import RowsItem
from headwater.errors import Disconnected, HeadwaterError, Malformed, NotFound, TimedOut
from headwater.native.connection import NativeConnection
from headwater.native.speech import Speech
from headwater.server import pump as served
from headwater.server.connection import Connection
from headwater.server.durable_pump import DurablePump
from headwater.server.log import Log
from headwater.server.pump import Pump
from headwater.server.slices import Slices
from headwater.version import __version__
from headwater.wire import batches, handshake, requests
from headwater.wire.channel import NUMBER, ChannelHello, ChannelWelcome
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.operations import read_request
from headwater.wire.requests import Goodbye, decode, encode, error_of, pack_error

if TYPE_CHECKING:
    from headwater.channels.runner import ChannelRunner

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""The longest frame that a receiver may send: as many ranges as it could have in flight."""

log = Log("headwater.server")


class TcpChannel(Speech, Channel):
    """Pushes batches as they are stored, over a connection of the native protocol."""

    def __init__(self, channels: ChannelRunner, row: ChannelRow, delivered: int = 0) -> None:
        super().__init__(channels, row, delivered)
        self.sessions = channels
        """As a pump calls whoever keeps its party."""
        self.connection: Connection | None = None
        self._pump: DurablePump | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._last_words = ""
        """Why the connection ends, if it is known."""

    def _push(self) -> None:
        self._timer = None
        if not self.is_ended:
            self._dialling = self.channels.loop.create_task(self._dial())

    async def _dial(self) -> None:
        try:
            await Greeting(self).reach()
        except HeadwaterError as error:
            self.hold(str(error.args[0]), self._push)
        except Exception as error:
            log.error("channel-broken", channel=self.row.id, error=repr(error))
            self.hold(f"the broker failed at it ({type(error).__name__}); see its log", self._push)
        finally:
            self._dialling = None

    def on_greeted(self, connection: NativeConnection, welcome: ChannelWelcome) -> None:
        """The receiver takes messages."""
        assert self.durable is not None
        self.connection = connection
        connection.session = self
        credit = (welcome.credit_messages, welcome.credit_bytes)
        self._pump = DurablePump(self, NUMBER, "named", self.durable, self.ticket, credit, self.row.batch_messages_max)
        if self.error:
            log.info("channel-connected", channel=self.row.id)
        self.error = ""
        self._pump.ring()

    def on_lost(self, connection: Connection) -> None:
        """The receiver is gone: what it had comes again."""
        if connection is not self.connection:
            return
        lasted_s = self.channels.loop.time() - connection.begun_s
        if lasted_s > self.channels.serving.channel_retry_s_max:
            self._failures = 0
        self._let_go()
        said, self._last_words = self._last_words, ""
        is_given_up = bool(connection.closed_s)
        silence = "was given up: nothing was heard of it" if is_given_up else "has closed the connection"
        self.hold(said or f"{self.where} {silence}", self._push)

    def _let_go(self) -> None:
        pump, self._pump = self._pump, None
        self.connection = None
        if pump is not None:
            pump.is_left = True
            self._delivered += pump.acked
            if self.durable is not None:
                self.durable.waiters.set(self.ticket, None)

    def _stop(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        connection = self.connection
        self._let_go()
        if connection is not None:
            connection.session = None
            connection.say_goodbye(reconnect=True)

    async def try_out(self) -> str:
        """Connect and greet."""
        welcome = await Greeting(self, is_trial=True).reach()
        return f"{self.where} greeted: {welcome.software or 'a receiver'}, version {welcome.version}"

    # Frames

    def receive(self, frames: list[Frame]) -> None:
        connection = self.connection
        for frame in frames:
            if connection is None or connection is not self.connection or connection.is_closed:
                return
            try:
                self._on_frame(connection, frame)
            except HeadwaterError as error:
                if frame.id == 0 or frame.kind in (Kind.TAKEN, Kind.CREDIT, Kind.PUBLISH):
                    connection.refuse(error)
                    return
                connection.write(pack_error(frame.id, error))

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        match frame.kind:
            case Kind.ACK:
                number, ranges = batches.read_ranges(frame)
                self._tell(number, served.Ack(frame.id, ranges))
                self.went_right()
            case Kind.TAKEN:
                self._tell(frame.id, served.Taken(batches.read_ranges(frame)[1]))
            case Kind.CREDIT:
                self._tell(frame.id, served.Credit(*batches.read_credit(frame)))
            case Kind.REQUEST:
                self._on_request(frame.id, read_request(frame))
            case Kind.PING:
                connection.write(pack(Kind.PONG, 0, frame.payload))
            case Kind.GOODBYE:
                self._on_goodbye(connection, decode(frame.payload, Goodbye))
            case Kind.PONG:
                pass
            case _:
                raise Malformed(f"a receiver sends no {Kind(frame.kind).name}")

    def _on_goodbye(self, connection: Connection, goodbye: Goodbye) -> None:
        problem = goodbye.problem
        self._last_words = f"{self.where} said: {problem.text}" if problem is not None else ""
        connection.close()

    def _on_request(self, id: int, request: object) -> None:
        if not isinstance(request, requests.Nack | requests.Reject | requests.Extend):
            raise Malformed(f"a receiver asks for no {type(request).__name__}")
        self._tell(request.number, served.Failed(id, request))
        if not isinstance(request, requests.Extend):
            self.error = f"{self.where} refused message {request.offset}: {request.error}"[:ERROR_CHARS_MAX]

    def _tell(self, number: int, message: object) -> None:
        if number != NUMBER or self._pump is None:
            raise NotFound(f"a channel's only subscription is {NUMBER}, not {number}")
        self._pump.tell(message)

    # As its pump's party

    @property
    def slices(self) -> Slices:
        return self.channels.slices

    def reply(self, connection: Connection | None, id: int, value: object, error: BaseException | None) -> None:
        """Answer a request on the connection that it came from."""
        if connection is not None and connection is self.connection:
            connection.write(pack(Kind.REPLY, id, encode(value)) if error is None else pack_error(id, error))

    def answer_when(self, id: int, future: Future[object]) -> None:
        """Answer a request once rows are on disk."""
        self.channels.answers.expect(self, self.connection, id, future)

    def finish_rows(self, item: RowsItem | None, future: Future[object]) -> None:
        """Have rows written, of which the future tells."""
        if item is None:
            future.set_result(None)
        else:
            self.channels.broker.core.rows.kick()

    def on_registered(self, connection: Connection) -> None:
        """Nothing is left to do."""

    def hold_back(self, pump: Pump) -> None:
        """The only one is woken in any case."""

    def on_writable(self) -> None:
        """The connection takes more."""
        if self._pump is not None:
            self._pump.tell(served.WAKE)

    def on_over(self, pump: Pump) -> None:
        """Only history is ever over."""

    def on_ended(self, pump: Pump, error: HeadwaterError) -> None:
        """The subscription was deleted, or the bus is closing."""
        self.end()

    def on_refused(self, error: HeadwaterError) -> None:
        """The receiver broke the rules, and is cut off."""
        self._last_words = f"{self.where} does not keep to the protocol: {error.args[0]}"

    def on_broken(self, error: Exception) -> None:
        if self.connection is not None:
            self._last_words = f"the broker failed at it ({type(error).__name__}); see its log"
            self.connection.abort()

    # Looking

    @property
    def delivered(self) -> int:
        """Messages since the server's start."""
        pump = self._pump
        return self._delivered + (pump.acked if pump is not None else 0)

    @property
    def _is_ready(self) -> bool:
        return self.connection is not None

    @property
    def _is_delivering(self) -> bool:
        pump = self._pump
        return pump is not None and pump.has_any


class Greeting:
    """One try to reach the receiver of a tcp channel, up to its welcome."""

    def __init__(self, channel: TcpChannel, is_trial: bool = False) -> None:
        channels = channel.channels
        self._channel = channel
        self._is_trial = is_trial
        self._connection = NativeConnection(channels, self)
        self._connection.state = handshake.Phase.PROVEN
        self._welcome: asyncio.Future[ChannelWelcome] = channels.loop.create_future()

    async def reach(self) -> ChannelWelcome:
        """Connect, and greet; Disconnected (503) or TimedOut (504) says why it did not come to that."""
        channel = self._channel
        channels, row = channel.channels, channel.row
        within_s = channels.serving.channel_connect_s
        try:
            async with asyncio.timeout(within_s):
                await channels.loop.create_connection(lambda: self._connection, channel.address, row.destination_port)
                self._connection.write(pack(Kind.HELLO, 0, encode(self._hello())))
                welcome = await self._welcome
        except TimeoutError:
            self._connection.abort()
            raise TimedOut(f"{channel.where} did not greet within {within_s:g} s (channel_connect_s)") from None
        except OSError as error:
            self._connection.abort()
            raise Disconnected(f"{channel.where} cannot be reached: {error.strerror or error}") from None
        except BaseException:
            self._connection.abort()
            raise
        if self._is_trial:
            self._connection.say_goodbye()
        return welcome

    def _hello(self) -> ChannelHello:
        channels, row = self._channel.channels, self._channel.row
        return ChannelHello(
            software=f"headwater/{__version__}",
            channel=row.id,
            name=row.name,
            filter=row.filter,
            bus=channels.broker.core.id,
            frame_bytes_max=channels.frame_bytes_max,
            keepalive_s=channels.serving.keepalive_s,
            trial=self._is_trial,
        )

    def on_frame(self, connection: NativeConnection, frame: Frame) -> None:
        """What the receiver says before it is greeted."""
        match frame.kind:
            case Kind.OK:
                self._on_welcome(decode(frame.payload, ChannelWelcome))
            case Kind.PING:
                self._connection.write(pack(Kind.PONG, 0, frame.payload))
            case Kind.GOODBYE:
                goodbye = decode(frame.payload, Goodbye)
                self.fail(error_of(goodbye.problem) if goodbye.problem is not None else None)

    def _on_welcome(self, welcome: ChannelWelcome) -> None:
        if welcome.version not in handshake.VERSIONS:
            raise Malformed(f"version {welcome.version} is not one of those that were offered")
        self._connection.state = handshake.Phase.REGISTERED
        self._connection.open(ANSWER_BYTES_MAX)
        if not self._welcome.done():
            self._welcome.set_result(welcome)
            if not self._is_trial:
                self._channel.on_greeted(self._connection, welcome)

    def on_refused(self, error: HeadwaterError) -> None:
        """The receiver broke the rules."""
        if self._channel.connection is self._connection:
            self._channel.on_refused(error)
        # What it sent instead is not shown: it may be any service that only this machine can reach.
        self.fail(Malformed("it does not keep to the protocol of channels"))

    def fail(self, error: HeadwaterError | None) -> None:
        """It did not come to a welcome."""
        if not self._welcome.done():
            where = self._channel.where
            said = f": {error.args[0] if error.args else error}" if error is not None else ""
            self._welcome.set_exception(Disconnected(f"{where} did not greet{said}"))
