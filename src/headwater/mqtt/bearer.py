"""Enhanced authentication with the token of an issuer: OAUTHBEARER (RFC 7628) in CONNECT, and again in AUTH.

    client                                    server
    CONNECT method, message             →
                                        ←     CONNACK method
    AUTH    re-authenticate, method, message  →
                                        ←     AUTH    success, method

Promises: a client that brings a new token keeps its session and its subscriptions, as far as the new one allows them;
one of another user, or that does not hold, ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.access import oauthbearer
from headwater.access.jwt import Bearer
from headwater.errors import HeadwaterError
from headwater.mqtt.authentication import Authentication
from headwater.mqtt.packets import Auth
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import MqttError, Reason, violation

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.server.bearers import Bearers
    from headwater.server.broker import Broker
    from headwater.server.proofs import Proofs

METHOD: Final = "OAUTHBEARER"
ANSWER = Properties(authentication_method=METHOD)


class BearerAuthentication(Authentication):
    """That of one connection that came with a token."""

    __slots__ = ("_bearers",)

    def __init__(self, broker: Broker, proofs: Proofs, connection: MqttConnection, bearers: Bearers) -> None:
        super().__init__(broker, proofs, connection)
        self._bearers = bearers

    def check(self, said: Properties, then: Callable[[Bearer], None]) -> None:
        """Find out whose token it is; the connection is held meanwhile."""
        if said.authentication_method != METHOD:
            raise MqttError(
                f"the authentication method of this connection is {METHOD}", Reason.BAD_AUTHENTICATION_METHOD
            )
        try:
            message = oauthbearer.read(said.authentication_data or b"")
        except HeadwaterError as error:
            raise MqttError(str(error.args[0]), Reason.NOT_AUTHORIZED) from None
        self._bearers.check(self._connection, message, then, self._refuse)

    def _refuse(self, error: HeadwaterError) -> None:
        refusal = error if isinstance(error, MqttError) else MqttError(str(error.args[0]), Reason.NOT_AUTHORIZED)
        self._connection.refuse(refusal)

    def again(self, packet: Auth) -> None:
        """The client of a session brings another token."""
        if packet.reason != Reason.RE_AUTHENTICATE:
            raise violation("this AUTH answers nothing that was asked")
        self._connection.hold()
        self.check(packet.properties, self._renewed)

    def _renewed(self, bearer: Bearer) -> None:
        connection = self._connection
        if bearer.user != connection.user:
            raise MqttError("another user's token; a session stays with its user", Reason.NOT_AUTHORIZED)
        self._bearers.let_in(connection, bearer)
        self._broker.regrant(connection)
        if connection.will is not None:
            connection.will.grant = connection.grant
        connection.release()
        connection.send(Auth(Reason.SUCCESS, ANSWER))
