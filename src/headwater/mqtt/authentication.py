"""Enhanced authentication: SCRAM-SHA-256 in AUTH packets, when a client connects and again whenever it likes.

    client                                    server
    CONNECT method, first               →
                                        ←     AUTH    continue, method, first
    AUTH    continue, method, proof     →
                                        ←     CONNACK method, final; later: AUTH success, method, final

Promises: the secret is never sent; a wrong proof and an unknown name get the same answer, which comes later with each
that was wrong; a client that proves itself again is the same as before, or is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.access.scram import REFUSED, ServerLogin
from headwater.errors import HeadwaterError
from headwater.mqtt.packets import Auth
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import MqttError, Reason, violation

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.server.broker import Broker
    from headwater.server.proofs import Proofs

METHOD: Final = "SCRAM-SHA-256"

Proven = Callable[[str, bytes], None]
"""Gets who it is, and what shows the client that the server knows the secret, too."""


class Authentication:
    """That of one connection."""

    __slots__ = ("_broker", "_connection", "_login", "_proofs")

    def __init__(self, broker: Broker, proofs: Proofs, connection: MqttConnection) -> None:
        self._broker = broker
        self._proofs = proofs
        self._connection = connection
        self._login: ServerLogin | None = None

    @property
    def waits(self) -> bool:
        """Whether the client's proof is due."""
        return self._login is not None

    def begin(self, said: Properties) -> None:
        """Ask the client for a proof."""
        _check_method(said)
        clients = self._broker.clients
        login = ServerLogin(clients.credential_of, clients.decoy)
        try:
            first = login.first(said.authentication_data or b"")
        except HeadwaterError as error:
            raise MqttError(str(error), Reason.NOT_AUTHORIZED) from None
        self._login = login
        self._connection.send(Auth(Reason.CONTINUE_AUTHENTICATION, answer(first)))

    def finish(self, packet: Auth, then: Proven) -> None:
        """Look at a proof, or have one who has guessed wrong wait before that."""
        login, self._login = self._login, None
        if login is None or packet.reason != Reason.CONTINUE_AUTHENTICATION:
            raise violation("this AUTH answers nothing that was asked")
        _check_method(packet.properties)
        proof = packet.properties.authentication_data or b""

        def looked(final: bytes | None, _: HeadwaterError | None) -> None:
            connection = self._connection
            if final is None:
                connection.refuse(MqttError(REFUSED, Reason.NOT_AUTHORIZED))
                return
            connection.credential = login.credential
            try:
                then(login.user, final)
            except HeadwaterError as error:
                connection.refuse(error)

        self._proofs.prove(self._connection, login.claimed_user, lambda: login.final(proof), looked, is_slow=False)

    def again(self, packet: Auth) -> None:
        """The client of a session proves once more who it is."""
        if packet.reason == Reason.RE_AUTHENTICATE:
            self.begin(packet.properties)
        else:
            self.finish(packet, self._proven_again)

    def _proven_again(self, user: str, final: bytes) -> None:
        if user != self._connection.user:
            raise MqttError("another user's proof; a session stays with its user", Reason.NOT_AUTHORIZED)
        self._connection.send(Auth(Reason.SUCCESS, answer(final)))


def answer(data: bytes) -> Properties:
    """What the server says of its part."""
    return Properties(authentication_method=METHOD, authentication_data=data)


def _check_method(said: Properties) -> None:
    if said.authentication_method != METHOD:
        raise MqttError(f"the authentication method that is known here is {METHOD}", Reason.BAD_AUTHENTICATION_METHOD)
