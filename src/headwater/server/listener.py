"""The listener: greets who connects, finds out who it is, and keeps an eye on connections as long as they last.

The handshake of docs/protocol.md is here, each frame of it one method. Promises: a connection that is not through its
handshake in time is closed; unknown users and wrong secrets take the same way and get the same answer; however many
connect, no more than the limits are held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.access.name import INNER, check_name
from headwater.access.scram import ServerLogin
from headwater.actor import Answer
from headwater.config import Config, Serving
from headwater.errors import HeadwaterError, Malformed, QuotaExceeded, TimedOut, Unauthenticated
from headwater.native.connection import NativeConnection
from headwater.server.attention import Attention
from headwater.server.bell import Wakes
from headwater.server.connection import Connection
from headwater.server.log import Log
from headwater.server.outbox import Outbox
from headwater.server.tls import peer_name
from headwater.version import __version__
from headwater.wire import handshake
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import Challenge, Hello, Limits, Response, Welcome
from headwater.wire.operations import read_request
from headwater.wire.requests import Register, Registered, decode, encode, pack_error

if TYPE_CHECKING:
    from headwater.server.broker import Broker

READ_BYTES = 256 * 1024
"""How much is read from a connection at once, into one buffer for all of them."""
FRAME_SLACK_BYTES = 4096
"""What a frame may have besides its batch."""

log = Log("headwater.server")


class Listener:
    """All connections of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        config: Config,
        serving: Serving,
        wakes: Wakes,
        outbox: Outbox,
        attention: Attention,
    ) -> None:
        self.loop = loop
        self.wakes = wakes
        self.outbox = outbox
        self.attention = attention
        self.serving = serving
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._broker = broker
        self._counts = broker.core.roots.counts
        self._connections: dict[Connection, None] = {}  # in the order in which they came
        self._greeting: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._is_draining = False
        self._is_empty = asyncio.Event()
        self.limits = limits_of(config, serving)
        self._sweeper = loop.call_later(self._sweep_s, self._sweep)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Those that are open."""
        return tuple(self._connections)

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._connections)

    # Coming and going

    def on_connection(self, connection: Connection) -> None:
        """Somebody has connected."""
        peer = connection.peer
        connection.address = str(peer[0]) if isinstance(peer, tuple) and peer else "unix"
        self._counts.connections += 1
        self._connections[connection] = None
        self._greeting[connection] = None
        self._by_address[connection.address] += 1
        serving = self.serving
        if connection.is_inner:
            return
        if self._is_draining:
            connection.say_goodbye(QuotaExceeded("the server is stopping; connect again in a while"), reconnect=True)
        elif len(self._connections) > serving.connections_max:
            connection.refuse(QuotaExceeded("the server has as many connections as it takes (connections_max)"))
        elif len(self._greeting) > serving.handshakes_max:
            connection.refuse(QuotaExceeded("too many are connecting at once (handshakes_max); try again in a while"))
        elif self._by_address[connection.address] > serving.connections_per_address_max:
            connection.refuse(QuotaExceeded("too many connections from your address (connections_per_address_max)"))

    def on_address(self, connection: Connection, address: str) -> None:
        """A connection that another process passes on comes from this address."""
        self._uncount(connection)
        connection.address = address
        self._by_address[address] += 1
        if self._by_address[address] > self.serving.connections_per_address_max:
            connection.refuse(QuotaExceeded("too many connections from your address (connections_per_address_max)"))

    def _uncount(self, connection: Connection) -> None:
        self._by_address[connection.address] -= 1
        if self._by_address[connection.address] <= 0:
            del self._by_address[connection.address]

    def on_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        self._counts.handshakes_failed += connection in self._greeting
        self._greeting.pop(connection, None)
        self._uncount(connection)
        if connection.session is not None:
            connection.session.on_lost(connection)
        if not self._connections:
            self._is_empty.set()

    def on_registered(self, connection: Connection) -> None:
        """A connection has its session."""
        self._greeting.pop(connection, None)

    def on_refused(self, connection: Connection, error: HeadwaterError) -> None:
        """A connection is closed for what its client did."""
        self._counts.refuse(error.code)
        log.at_will(logging.INFO, "refused", address=connection.address, user=connection.user or "-", error=str(error))

    # The handshake

    def on_frame(self, connection: NativeConnection, frame: Frame) -> None:
        """A frame of a connection that is in no session yet; it may come now."""
        match frame.kind:
            case Kind.HELLO:
                self._on_hello(connection, decode(frame.payload, Hello))
            case Kind.RESPONSE:
                self._on_response(connection, decode(frame.payload, Response))
            case Kind.OK:
                connection.open(self.limits.frame_bytes_max)
            case Kind.REQUEST:
                self._on_request(connection, frame)
            case Kind.PING:
                connection.write(pack(Kind.PONG, 0, frame.payload))
            case Kind.GOODBYE:
                connection.close()

    def _on_hello(self, connection: NativeConnection, hello: Hello) -> None:
        version = handshake.choose_version(hello.versions)
        first = b""
        auth = self.serving.auth
        if connection.is_inner:
            connection.user = INNER
        elif auth == "none":
            connection.user = check_name(hello.user) if hello.user else "anonymous"
        elif hello.mechanism == "scram-sha-256":
            if auth != "scram":
                raise Malformed(f'this server does not take secrets; its auth is "{auth}"')
            login = ServerLogin(self._broker.clients.credential_of, self._broker.clients.decoy)
            first = login.first(hello.first)
            connection.greeting = login
        else:
            connection.user = self._trusted_user(connection, hello)
        connection.write(
            pack(
                Kind.CHALLENGE,
                0,
                encode(
                    Challenge(
                        version=version,
                        software=f"headwater/{__version__}",
                        first=first,
                        time_us=self._broker.clock.now_us(),
                    )
                ),
            )
        )

    def _trusted_user(self, connection: NativeConnection, hello: Hello) -> str:
        """Who it is by its certificate, or as a trusted gatekeeper states."""
        auth, certified = self.serving.auth, peer_name(connection.peer_certificate)
        if hello.mechanism == "certificate":
            if auth in ("scram", "certificate") and certified is not None:
                return check_name(certified)
            raise Unauthenticated("this server asks for a client certificate of its authority, and there is none")
        if hello.mechanism == "gatekeeper" and auth == "gatekeeper":
            if certified in self.serving.gatekeepers or is_local(connection.address):
                if not hello.user:
                    raise Malformed("a gatekeeper states the user in its HELLO; there is none")
                return check_name(hello.user)
            raise Unauthenticated("only a gatekeeper may state a user: see the settings auth and gatekeepers")
        raise Unauthenticated(f'this server asks who you are; its auth is "{auth}": connect with a name and a secret')

    def _on_response(self, connection: NativeConnection, response: Response) -> None:
        login, connection.greeting = connection.greeting, None
        if not isinstance(login, ServerLogin):
            self._welcome(connection, b"")
            return
        # Who has guessed wrong at this name waits before it is looked at the next guess: one who hangs up early to
        # guess again has learned nothing.
        delay_s = self._broker.guesses.delay_s(self._guesser(connection, login))
        if delay_s:
            connection.hold()
            self.loop.call_later(delay_s, self._prove_later, connection, login, response.final)
        else:
            self._prove(connection, login, response.final)

    def _guesser(self, connection: NativeConnection, login: ServerLogin) -> str:
        return f"{login.claimed_user}@{connection.address}"

    def _prove_later(self, connection: NativeConnection, login: ServerLogin, final: bytes) -> None:
        if not connection.is_closed:
            connection.release()
            try:
                self._prove(connection, login, final)
            except HeadwaterError as error:
                connection.refuse(error)

    def _prove(self, connection: NativeConnection, login: ServerLogin, proof: bytes) -> None:
        # One who guesses at many names from one place waits as long as one who guesses at one name.
        keys = (self._guesser(connection, login), connection.address)
        guesses = self._broker.guesses
        try:
            final = login.final(proof)
        except Unauthenticated as error:
            for key in keys:
                guesses.failed(key)
            delay_s = max(map(guesses.delay_s, keys))
            # It may not speak meanwhile, and its place among the greeting is taken as long as it waits.
            connection.hold()
            refusal = error
            self.loop.call_later(delay_s, lambda: connection.refuse(refusal))
            return
        guesses.succeeded(keys[0])
        connection.user = login.user
        connection.has_secret = True
        self._welcome(connection, final)

    def _welcome(self, connection: NativeConnection, final: bytes) -> None:
        client = self._broker.clients.get(connection.user)
        connection.client_id = client.id if client is not None else connection.user
        welcome = Welcome(final=final, user=connection.user, client_id=connection.client_id, limits=self.limits)
        connection.write(pack(Kind.OK, 0, encode(welcome)))

    # Registration

    def _on_request(self, connection: NativeConnection, frame: Frame) -> None:
        request = read_request(frame)
        if not isinstance(request, Register):
            raise Malformed("the first request of a connection is a registration")
        if not connection.user:
            raise Unauthenticated("nobody has logged in here")
        connection.hold()

        def registered(answer: Registered | None, error: BaseException | None) -> None:
            connection.release()
            if connection.is_closed:
                return
            if isinstance(error, TimedOut):  # whatever comes of it, this connection does not wait for it any more
                connection.refuse(error, frame.id)
                return
            if error is not None:
                connection.write(pack_error(frame.id, error))
                return
            connection.state = handshake.Phase.REGISTERED
            self.on_registered(connection)
            connection.write(pack(Kind.REPLY, frame.id, encode(answer)))
            if connection.session is not None:
                connection.session.on_registered(connection)

        answer = Answer(registered, self.loop, self.serving.call_s, "the store of sessions")
        self._broker.register(connection, request, answer)

    # While it lasts

    @property
    def _sweep_s(self) -> float:
        serving = self.serving
        shortest_s = min(serving.keepalive_s, serving.handshake_s, serving.frame_s, serving.linger_s)
        return max(0.05, min(1.0, shortest_s / 4))

    def _sweep(self) -> None:
        """Look after all connections at once: a timer for each would cost more than the connection."""
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)
        now_s, serving = self.loop.time(), self.serving
        for connection in tuple(self._greeting):
            is_waited_for = connection.is_held and connection.is_writable
            if now_s - connection.begun_s > serving.handshake_s and not is_waited_for:
                connection.refuse(TimedOut(f"the handshake took longer than {serving.handshake_s:g} s (handshake_s)"))
        for connection in tuple(self._connections):
            connection.sweep(now_s)

    def drain(self, tell: Callable[[Connection], None]) -> None:
        """Take no more, and say so to those that are here."""
        self._is_draining = True
        for connection in tuple(self._connections):
            tell(connection)

    async def emptied(self) -> None:
        """Return once nobody is connected."""
        if self._connections:
            self._is_empty.clear()
            await self._is_empty.wait()

    def close(self) -> None:
        """End every connection."""
        self._is_draining = True
        self._sweeper.cancel()
        for connection in tuple(self._connections):
            connection.abort()


def is_local(address: str) -> bool:
    """Whether a peer is on this machine."""
    return address in ("unix", "::1") or address.startswith("127.")


def limits_of(config: Config, serving: Serving) -> Limits:
    """What clients are told."""
    return Limits(
        frame_bytes_max=config.batch_bytes_max + FRAME_SLACK_BYTES,
        batch_bytes_max=config.batch_bytes_max,
        message_bytes_max=config.message_bytes_max,
        key_bytes_max=config.key_bytes_max,
        headers_max=config.headers_max,
        header_bytes_max=config.header_bytes_max,
        topic_bytes_max=config.topic_bytes_max,
        topic_levels_max=config.topic_levels_max,
        root_bytes_max=config.root_bytes_max,
        producer_bytes_max=config.producer_bytes_max,
        producer_window=config.producer_window,
        max_in_flight_max=config.max_in_flight_max,
        publishes_in_flight_max=serving.publishes_in_flight_max,
        subscriptions_per_session_max=serving.subscriptions_per_session_max,
        session_expire_after_s_max=serving.session_expire_after_s_max,
        keepalive_s=serving.keepalive_s,
    )
