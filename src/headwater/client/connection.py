"""One connection to a server: bytes in and out, the handshake, and keepalive.

Promises: frames reach whoever owns the connection in the order in which they came, those that arrived together with
the last of the handshake too; a connection is lost once, with one reason; a server from which nothing is heard for
twice the keepalive is given up. It knows nothing of messages, but that DELIVER frames may be handed on in whatever
thread has read them, where threads beside the loop's read and write (`share`).
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from headwater.client.kept_session import KeptSession
from headwater.client.line import Line
from headwater.client.url import Address
from headwater.config import Connecting
from headwater.errors import Disconnected, HeadwaterError, Incompatible, Malformed
from headwater.version import __version__
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import READS, VERSIONS, Challenge, Hello, Mechanism, Response, Welcome
from headwater.wire.reader import FrameReader
from headwater.wire.requests import (
    Goodbye,
    Problem,
    Register,
    Registered,
    decode,
    encode,
    error_of,
    pack_request,
)

if TYPE_CHECKING:
    from headwater.access.scram import ClientLogin

BUFFER_BYTES = 256 * 1024
GREETING_BYTES_MAX = 64 * 1024
"""A longer frame before the handshake is through is not taken."""
REGISTER_ID = 1
"""Number of the first request of a connection, which registers it."""
FIRST_ID = REGISTER_ID + 1
"""Number of the first request after that."""
GONE_S = 2.0
"""How long a closing connection may take to flush what was sent last."""
OTHER_LANGUAGES = {
    b"\x15\x03": "it speaks TLS: its address begins with headwaters://",
    b"HTTP": "it speaks HTTP: that is the port of the API, and the one for clients is 7411 if nothing else was said",
}
"""What servers of other protocols send first."""
PLAIN = "if it does not speak TLS, its address begins with headwater://"
PING = pack(Kind.PING)
PONG = pack(Kind.PONG)


class Connection(asyncio.BufferedProtocol):
    """Bytes of one connection, as frames."""

    def __init__(self, address: Address, settings: Connecting) -> None:
        self.address = address
        self.is_writable = True
        self.goodbye: Goodbye | None = None
        """What the server said at the end, if it did."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self._line: Line | None = None
        """By which other threads read and write, too."""
        self._behind: deque[Frame] = deque()
        """What another thread has read, and is for the loop, with what came behind it."""
        self._reader = FrameReader(GREETING_BYTES_MAX)
        self._inbox: deque[Frame] = deque()
        self._reading: asyncio.Future[None] | None = None
        self._on_frame: Callable[[Frame], None] | None = None
        self._on_lost: Callable[[HeadwaterError], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._lost: HeadwaterError | None = None
        self._heard_s = 0.0
        self._is_heard = False
        """Whether another thread has read something since it was last looked."""
        self._has_heard = False
        self._keepalive_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_bytes_max)
        self._heard_s = self._loop.time()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        if not self._has_heard:
            self._has_heard = True
            for first, advice in OTHER_LANGUAGES.items():
                if self.buffer[: len(first)] == first:
                    self.fail(Disconnected(f"{self.address} is no port for clients: {advice}"))
                    return
        try:
            for frame in self._reader.feed(self.buffer[:nbytes]):
                self._take(frame)
        except HeadwaterError as error:
            self.fail(error)

    def _take(self, frame: Frame) -> None:
        if self._lost is not None:
            return
        if frame.kind == Kind.PING:
            self.send((PONG,))
        elif frame.kind == Kind.GOODBYE:
            self.goodbye = decode(frame.payload, Goodbye)
            self.fail(_last_words(self.goodbye, self.address))
        elif frame.kind == Kind.ERROR and frame.id == 0:
            self.fail(error_of(decode(frame.payload, Problem)))
        elif self._on_frame is not None:
            if frame.kind != Kind.PONG:
                self._on_frame(frame)
        else:
            self._inbox.append(frame)
            self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self.on_cut(exc)

    def on_cut(self, exc: Exception | None) -> None:
        """The other side ended it, or there is no way to it any more."""
        said = f": {exc}" if exc is not None else ""
        if not self._has_heard and not self.address.tls and not self.address.is_unix:
            said += (
                " before the server said anything: is this its port for clients (7411 if no other was said)? If it "
                "speaks TLS, its address begins with headwaters://"
            )
        self.fail(Disconnected(f"the connection to {self.address} was lost{said}; it is made again by itself"))

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._on_writable is not None:
            self._on_writable()

    # Called by its owner

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send bytes, in the order of these calls; nothing happens once the connection is lost."""
        if self._lost is not None or self._transport is None:
            return
        if self._line is not None:
            self._line.write(pieces)
        else:
            self._transport.writelines(pieces)

    def send_now(self, pieces: Iterable[bytes]) -> bool:
        """The same from any thread, which sends them itself; False if that cannot be at once, and nothing was done."""
        return self._line is not None and self._line.write_now(b"".join(pieces))

    def read_until(self, is_there: Callable[[], bool], timeout_s: float | None) -> None:
        """Read in this thread, if it may, until something is there; not in the loop's."""
        if self._line is not None:
            self._line.read_until(is_there, timeout_s)

    async def receive(self) -> Frame:
        """The next frame of the handshake."""
        while not self._inbox:
            if self._lost is not None:
                raise self._lost
            self._reading = self._loop.create_future()
            await self._reading
        return self._inbox.popleft()

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def use(
        self,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[HeadwaterError], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Pass frames to these callbacks from now on, first those that have arrived already."""
        self._on_frame, self._on_lost, self._on_writable = on_frame, on_lost, on_writable
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        except HeadwaterError as error:
            self.fail(error)
        if self._lost is not None:
            on_lost(self._lost)

    def share(self) -> None:
        """Let other threads read and write, too, where that can be: not through TLS, and where there is `epoll`."""
        transport = self._transport
        if self._lost is not None or transport is None or transport.is_closing() or not hasattr(select, "epoll"):
            return
        made = transport.get_extra_info("socket")
        if made is None or transport.get_extra_info("sslcontext") is not None:
            return
        with suppress(OSError):  # as many files are open as may be: the loop does it all
            self._line = Line(self, transport, made.fileno())

    @property
    def is_behind(self) -> bool:
        """Whether frames that another thread has read wait for the loop."""
        return bool(self._behind)

    def take_here(self, size: int) -> None:
        """So much was read, in the loop."""
        self._take_behind()
        self.buffer_updated(size)

    def take_elsewhere(self, size: int) -> bool:
        """So much was read in another thread, while the loop reads nothing; False if the loop has to look."""
        self._is_heard = True
        try:
            for frame in self._reader.feed(self.buffer[:size]):
                if self._behind or frame.kind != Kind.DELIVER or self._on_frame is None:
                    self._behind.append(frame)
                else:
                    self._on_frame(frame)
        except HeadwaterError as error:
            self._loop.call_soon_threadsafe(self.fail, error)
            return False
        if self._behind:
            self._loop.call_soon_threadsafe(self._take_behind)
        return not self._behind

    def _take_behind(self) -> None:
        while self._behind:
            try:
                self._take(self._behind[0])
            except HeadwaterError as error:
                self.fail(error)
            finally:
                self._behind.popleft()  # not before: what another thread reads comes after it

    def grow(self, frame_bytes_max: int, keepalive_s: float) -> None:
        """The handshake is through: frames may be long, and silence counts."""
        self._reader.bytes_max = frame_bytes_max
        self._keepalive_s = keepalive_s
        if keepalive_s > 0:
            self._timer = self._loop.call_later(keepalive_s / 4, self._check_silence)

    def _check_silence(self) -> None:
        if self._is_heard:
            self._is_heard, self._heard_s = False, self._loop.time()
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= 2 * self._keepalive_s:
            self.fail(
                Disconnected(f"nothing was heard from {self.address} for {silent_s:.1f} s; the connection was given up")
            )
            return
        if silent_s >= self._keepalive_s:
            self.send((PING,))
        self._timer = self._loop.call_later(self._keepalive_s / 4, self._check_silence)

    def fail(self, error: HeadwaterError) -> None:
        """The connection is over, for this reason."""
        if self._lost is not None:
            return
        self._lost = error
        self._stop()
        if self._line is not None:
            self._line.end()
        if self._transport is not None:
            self._transport.abort()
        self._wake()
        if self._on_lost is not None:
            self._on_lost(error)

    def close(self, goodbye: Goodbye) -> None:
        """Send GOODBYE after what waits, and close; `on_lost` is not called."""
        if self._lost is not None:
            return
        self.send((pack(Kind.GOODBYE, 0, encode(goodbye)),))
        self._lost = Disconnected(f"the connection to {self.address} was closed")
        self._stop()
        if self._line is not None:
            self._line.end(socket.SHUT_RD)
        if self._transport is not None:
            self._transport.close()

    async def gone(self) -> None:
        """Wait until what was to be sent has left and the transport is closed; not for ever, if nobody takes it."""
        try:
            async with asyncio.timeout(GONE_S):
                await self._gone.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await asyncio.sleep(0)  # in which the transport closes

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _last_words(goodbye: Goodbye, address: Address) -> HeadwaterError:
    if goodbye.problem is not None:
        return error_of(goodbye.problem)
    return Disconnected(f"the server at {address} said goodbye; it comes back when it is started again")


class Greeted(NamedTuple):
    """A connection that is registered."""

    connection: Connection
    welcome: Welcome
    registered: Registered


async def connect(
    address: Address,
    settings: Connecting,
    wanted: Register,
    heard: Callable[[int], None],
    kept: KeptSession | None,
    silence_s: float | None = None,
) -> Greeted:
    """A connection, from nothing to registered; Disconnected (503) if nobody answers in time.

    `heard` is told the server's time when it comes; `kept` says what is to be done where the session that is wanted is
    not given. With `silence_s` there are other places to go to if nothing is heard for so long.
    """
    connect_s = settings.connect_timeout_s if silence_s is None else min(settings.connect_timeout_s, silence_s)
    connection: Connection | None = None
    token = await fresh_token(address, settings) if address.token is not None else ""
    try:
        async with asyncio.timeout(connect_s):
            connection = await _open(address, settings)
            welcome = await _shake_hands(connection, heard, token)
            limits = welcome.limits
            keepalive_s = limits.keepalive_s if silence_s is None else min(limits.keepalive_s, silence_s / 2)
            connection.grow(max(settings.frame_bytes_max, limits.frame_bytes_max), keepalive_s)
            registered = await _register(connection, wanted, kept)
            return Greeted(connection, welcome, registered)
    except BaseException as error:
        if connection is not None:
            connection.fail(Disconnected("the connection was given up"))
            if isinstance(error, Exception):
                await connection.gone()
        if isinstance(error, TimeoutError):
            raise _unanswered(address, connect_s, is_one_of_several=silence_s is not None) from None
        raise


def _unanswered(address: Address, connect_s: float, *, is_one_of_several: bool) -> Disconnected:
    """That a connection did not come about in time, and why that may be."""
    setting = "silence_s_max" if is_one_of_several else "connect_timeout_s"
    nodes = " Or nobody leads the cluster at the moment: see headwater cluster status" if is_one_of_several else ""
    return Disconnected(
        f"{address} did not answer within {connect_s:g} s ({setting}); is it a Headwater server, and does it speak TLS "
        f"as the address says?{nodes}"
    )


async def _open(address: Address, settings: Connecting) -> Connection:
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(address, settings)

    try:
        if address.is_unix:
            from headwater.store.unix_socket import within_reach

            with within_reach(address.path) as near:
                _, connection = await loop.create_unix_connection(make, near)
        else:
            context = tls_context(address) if address.tls else None
            _, connection = await loop.create_connection(make, address.host, address.port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        raise Disconnected(
            f"the certificate of {address} is not trusted: {error.verify_message}; name its authority with ?ca=path"
        ) from None
    except ssl.SSLError as error:
        raise Disconnected(f"{address} does not speak TLS with us ({error.reason or error}); {PLAIN}") from None
    except ConnectionResetError:
        hint = f"; {PLAIN}" if address.tls else ""
        raise Disconnected(f"{address} ended the connection as it was made{hint}") from None
    except OSError as error:
        raise Disconnected(
            f"no server answers at {address}: {error.strerror or error}; is it running? Start one with: headwater serve"
        ) from None
    return connection


def tls_context(address: Address) -> ssl.SSLContext:
    """What TLS is to check and show; Malformed (422) if a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if not address.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if address.cert:
            context.load_cert_chain(address.cert, address.key or None)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(f"{name}={path}" for name, path in (("ca", address.ca), ("cert", address.cert)) if path)
        raise Malformed(f"the PEM files of the server's address cannot be used ({named}): {_reason(error)}") from None
    return context


def _reason(error: OSError) -> str:
    """Why a file cannot be used, without its number."""
    return error.strerror or str(error) if not isinstance(error, ssl.SSLError) else str(error.reason or error)


async def _expect(connection: Connection, kind: Kind, type: Any) -> Any:
    frame = await connection.receive()
    if frame.kind == Kind.ERROR:
        raise error_of(decode(frame.payload, Problem))
    if frame.kind != kind:
        raise Malformed(f"the server sent {Kind(frame.kind).name} where {kind.name} comes; is it a Headwater server?")
    return decode_answer(frame, type, connection.address)


def decode_answer(frame: Frame, type: Any, address: Address) -> Any:
    """What a server answered; Incompatible (502) if it is of a shape that another version gives it."""
    try:
        return decode(frame.payload, type)
    except Malformed as error:
        raise Incompatible(
            f"the answer of the server at {address} cannot be read: it is of another version than this client "
            f"({__version__}); install the server's version here, or this one there ({error.args[0]})"
        ) from None


def mechanism_of(address: Address) -> Mechanism:
    """How a client shows who it is: by its token, its secret, its certificate, or by its word, if it is trusted."""
    if address.token is not None:
        return "oauthbearer"
    if address.secret:
        return "scram-sha-256"
    if address.cert:
        return "gatekeeper" if address.user else "certificate"
    return "gatekeeper" if address.user else "none"


async def fresh_token(address: Address, settings: Connecting) -> str:
    """The token to connect with: asked for each time, where a function gives it; in a thread, as that may wait.

    One that fails is Disconnected (503), which is tried again: an issuer that cannot be reached may be later.
    """
    give = address.token
    if isinstance(give, str):
        return give
    assert give is not None
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            given = await asyncio.to_thread(give)
            found: object = given if isinstance(given, str) else await given
    except TimeoutError:
        raise Disconnected(
            f"the function for the token gave none within {settings.connect_timeout_s} s (connect_timeout_s)"
        ) from None
    except HeadwaterError:
        raise
    except Exception as error:
        raise Disconnected(f"the function for the token failed: {type(error).__name__}; see its cause") from error
    if not isinstance(found, str) or not found:
        raise Malformed(f"the function for the token gave {type(found).__name__}, and no text")
    return found


async def _shake_hands(connection: Connection, heard: Callable[[int], None], token: str = "") -> Welcome:
    address = connection.address
    login: ClientLogin | None = None
    if address.secret:
        from headwater.access.scram import ClientLogin

        login = ClientLogin(address.user, address.secret)
    if token:
        from headwater.access.oauthbearer import message
    hello = Hello(
        versions=VERSIONS,
        software=f"headwater-python {__version__}",
        mechanism=mechanism_of(address),
        user=address.user,
        first=login.first() if login is not None else message(token, address.user) if token else b"",
    )
    connection.send((pack(Kind.HELLO, 0, encode(hello), READS if address.reads_any else 0),))
    challenge: Challenge = await _expect(connection, Kind.CHALLENGE, Challenge)
    if challenge.version not in VERSIONS:
        raise Malformed(f"the server chose version {challenge.version} of the protocol, which was not offered")
    heard(challenge.time_us)
    if login is not None and not challenge.first:
        raise Malformed(
            f"the server at {address} asks for no secret, so it cannot show that it knows yours; leave the secret out "
            "of the address if you trust it all the same"
        )
    # Its hashing takes milliseconds, by design: not in the loop.
    final = await asyncio.to_thread(login.respond, challenge.first) if login is not None else b""
    connection.send((pack(Kind.RESPONSE, 0, encode(Response(final=final))),))
    welcome: Welcome = await _expect(connection, Kind.OK, Welcome)
    if login is not None:
        login.verify(welcome.final)
    connection.send((pack(Kind.OK),))
    return welcome


async def _register(connection: Connection, wanted: Register, kept: KeptSession | None) -> Registered:
    """The session that is named, if it is still there and ours; else a new one, unless its user is to be told."""
    connection.send((pack_request(REGISTER_ID, wanted),))
    try:
        found: Registered = await _expect(connection, Kind.REPLY, Registered)
    except HeadwaterError as error:
        if wanted.session is None or error.code not in (403, 404):
            raise
        refusal = None if kept is None else kept.refusal(error)
        if refusal is not None:
            raise refusal from None
        return await _register(connection, msgspec.structs.replace(wanted, session=None), kept)
    return found
