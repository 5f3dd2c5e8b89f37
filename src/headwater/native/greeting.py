"""The greeting of a native client: the handshake of docs/reference/protocol.md, each frame of it one method.

Promise: unknown users and wrong secrets take the same way and get the same answer.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol

from headwater.access import oauthbearer
from headwater.access.jwt import Bearer
from headwater.access.name import INNER, check_name
from headwater.access.scram import REFUSED, ServerLogin
from headwater.actor import Answer
from headwater.errors import HeadwaterError, Malformed, TimedOut, Unauthenticated
from headwater.native.connection import NativeConnection
from headwater.server.listener import is_local
from headwater.server.tls import peer_name
from headwater.version import __version__
from headwater.wire import handshake
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import READS, Challenge, Hello, Response, Welcome
from headwater.wire.operations import read_request
from headwater.wire.requests import Register, Registered, decode, encode, pack_error

if TYPE_CHECKING:
    from headwater.server.broker import Broker
    from headwater.server.listener import Listener
    from headwater.server.proofs import Proofs


CLIENT_ID_BYTES = 8
"""Drawn for a client that is not in the registry."""


class Greeting(Protocol):
    """Whoever leads the handshake with the other side of a connection."""

    def on_frame(self, connection: NativeConnection, frame: Frame) -> None:
        """A frame of a connection that is no party's yet; it may come now."""


class Greeter:
    """Greets all native clients of a server."""

    def __init__(self, listener: Listener, broker: Broker, proofs: Proofs) -> None:
        self._listener = listener
        self._broker = broker
        self._proofs = proofs
        self._loop = listener.loop
        self._serving = listener.serving
        self._limits = listener.limits

    def on_frame(self, connection: NativeConnection, frame: Frame) -> None:
        """A frame of a connection that is in no session yet; it may come now."""
        match frame.kind:
            case Kind.HELLO:
                connection.reads_only = bool(frame.flags & READS) or self._broker.core.is_read_only
                self._on_hello(connection, decode(frame.payload, Hello))
            case Kind.RESPONSE:
                decode(frame.payload, Response)
                self._welcome(connection, b"")
            case Kind.OK:
                pass
            case Kind.REQUEST:
                self._on_request(connection, frame)
            case Kind.PING:
                connection.write(pack(Kind.PONG, 0, frame.payload))
            case Kind.GOODBYE:
                connection.close()

    def _on_hello(self, connection: NativeConnection, hello: Hello) -> None:
        version = handshake.choose_version(hello.versions)
        first = b""
        methods = self._broker.methods
        if connection.is_inner:
            connection.user = INNER
        elif methods.is_open:
            connection.user = check_name(hello.user) if hello.user else "anonymous"
        elif hello.mechanism == "oauthbearer":
            self._on_token(connection, version, hello.first)
            return
        elif hello.mechanism == "scram-sha-256":
            if not methods.takes_secrets:
                raise Malformed(f'this server does not take secrets; its auth is "{methods.named}"')
            login = ServerLogin(self._broker.clients.credential_of, self._broker.clients.decoy)
            first = login.first(hello.first)
            connection.greeting = Proving(self, login)
        else:
            connection.user = self._trusted_user(connection, hello)
        self._challenge(connection, version, first)

    def _challenge(self, connection: NativeConnection, version: int, first: bytes = b"") -> None:
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
        methods, certified = self._broker.methods, peer_name(connection.peer_certificate)
        if hello.mechanism == "certificate":
            if methods.takes_certificates and certified is not None:
                return check_name(certified)
            raise Unauthenticated("this server asks for a client certificate of its authority, and there is none")
        if hello.mechanism == "gatekeeper" and methods.takes_gatekeepers:
            if methods.may_state(certified, is_local(connection.address)):
                if not hello.user:
                    raise Malformed("a gatekeeper states the user in its HELLO; there is none")
                return check_name(hello.user)
            raise Unauthenticated("only a gatekeeper may state a user: see the settings auth and gatekeepers")
        raise methods.refusal()

    def _on_token(self, connection: NativeConnection, version: int, message: bytes) -> None:
        """A client brings the token of an issuer: it is challenged, to nothing more, once that is known to hold."""
        bearers = self._broker.bearers
        if bearers is None:
            named = self._broker.methods.named
            raise Malformed(f'this server does not take tokens; its auth is "{named}"')
        said = oauthbearer.read(message)

        def holds(bearer: Bearer) -> None:
            bearers.let_in(connection, bearer)
            connection.release()
            self._challenge(connection, version)

        connection.hold()
        bearers.check(connection, said, holds, connection.refuse)

    def on_proof(self, connection: NativeConnection, login: ServerLogin, proof: bytes) -> None:
        """A client that logs in answers its challenge."""

        def proven(final: bytes | None, error: HeadwaterError | None) -> None:
            if final is None:
                connection.refuse(error or Unauthenticated(REFUSED))
                return
            connection.user = login.user
            connection.credential = login.credential
            self._welcome(connection, final)

        self._proofs.prove(connection, login.claimed_user, lambda: login.final(proof), proven, is_slow=False)

    def _welcome(self, connection: NativeConnection, final: bytes) -> None:
        client = self._broker.clients.get(connection.user)
        connection.client_id = client.id if client is not None else connection.user
        # Who is not in the registry is told an id of its own; its share is counted by its name.
        told = connection.client_id if client is not None else f"{connection.user}-{secrets.token_hex(CLIENT_ID_BYTES)}"
        welcome = Welcome(final=final, user=connection.user, client_id=told, limits=self._limits)
        connection.write(pack(Kind.OK, 0, encode(welcome)))

    # Registration

    def _on_request(self, connection: NativeConnection, frame: Frame) -> None:
        request = read_request(frame)
        if not isinstance(request, Register):
            raise Malformed("the first request of a connection is a registration")
        if not connection.user:
            raise Unauthenticated("nobody has logged in here")
        connection.hold()
        connection.host, connection.pid, connection.waits = request.host, request.pid, request.waits

        def registered(answer: Registered | None, error: BaseException | None) -> None:
            connection.release()
            if connection.is_closed:
                return
            if isinstance(error, TimedOut):  # whatever comes of it, this connection does not wait for it any more
                connection.refuse(error, frame.id)
                return
            if error is not None:
                self._listener.on_not_registered(connection, error)
                connection.write(pack_error(frame.id, error))
                return
            connection.state = handshake.Phase.REGISTERED
            self._listener.on_registered(connection)
            connection.open(self._limits.frame_bytes_max)
            connection.write(pack(Kind.REPLY, frame.id, encode(answer)))
            if connection.session is not None:
                connection.session.on_registered(connection)

        answer = Answer(registered, self._loop, self._serving.call_s, "the store of sessions")
        self._broker.register(connection, request, answer)


class Proving:
    """Greets one client that has to prove who it is."""

    def __init__(self, greeter: Greeter, login: ServerLogin) -> None:
        self._greeter = greeter
        self._login = login

    def on_frame(self, connection: NativeConnection, frame: Frame) -> None:
        """A frame of a connection that was challenged."""
        if frame.kind != Kind.RESPONSE:
            self._greeter.on_frame(connection, frame)
            return
        connection.greeting = self._greeter
        self._greeter.on_proof(connection, self._login, decode(frame.payload, Response).final)
