"""The greeting of an MQTT client: who it is, and which session is its own.

Promises: unknown users and wrong passwords take the same time and get the same answer; a client's session is its own,
though another user's client may have the same id; a CONNACK leaves after the session is on disk.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, cast

import msgspec

from headwater.access.jwt import Bearer
from headwater.access.name import check_name
from headwater.access.oauthbearer import Said
from headwater.access.scram import REFUSED
from headwater.errors import Conflict, HeadwaterError, Malformed, SchemaMismatch, Unauthenticated
from headwater.log.publish import Part
from headwater.mqtt import bearer
from headwater.mqtt.aliases import Aliases
from headwater.mqtt.authentication import Authentication, answer
from headwater.mqtt.bearer import BearerAuthentication
from headwater.mqtt.connection import PACKET_BYTES_MAX, MqttConnection
from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Connack, Connect, Will
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reasons import MqttError, Reason, violation
from headwater.mqtt.wills import item_of
from headwater.mqtt.window import NUMBER_MAX
from headwater.requests import REPLY_ROOT
from headwater.server.listener import is_local
from headwater.server.session_row import SessionRow
from headwater.server.tls import peer_name
from headwater.topics.name import check_topic, root_of

if TYPE_CHECKING:
    from headwater.mqtt.protocol import MqttProtocol
    from headwater.mqtt.session import MqttSession
    from headwater.server.bearers import Bearers
    from headwater.server.session import Session


class Greeter:
    """Greets all MQTT clients of a server."""

    def __init__(self, mqtt: MqttProtocol) -> None:
        server = mqtt.server
        self._mqtt = mqtt
        self._broker = server.broker
        self._sessions = server.sessions
        self._serving = server.serving
        self._listener = server.listener
        self._loop = server.loop
        self._proofs = server.proofs
        self.refused = mqtt.refused
        self.wills = mqtt.wills

    def greet(self, connection: MqttConnection, connect: Connect) -> None:
        """Find out who it is; the connection is held meanwhile."""
        methods = self._broker.methods
        connection.bytes_max = connect.properties.maximum_packet_size or PACKET_BYTES_MAX
        if len(connect.client_id) > self._serving.mqtt_client_id_chars_max or (
            not connect.client_id and connect.version != V5 and not connect.clean_start
        ):
            raise MqttError("this client id cannot be one", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        if connect.properties.authentication_method is not None:
            self._authenticate(connection, connect)
            return
        if connect.password is not None and methods.is_token(connect.password):
            self._check_token(connection, connect, connect.user_name or "", connect.password)
            return
        name, password = connect.user_name, connect.password
        if name is not None and password is not None and methods.reads_passwords(*self._peer(connection)):
            self._check_secret(connection, connect, name, password)
            return
        self._admit(connection, connect, self._trusted(connection, connect))

    def _authenticate(self, connection: MqttConnection, connect: Connect) -> None:
        """Have the client prove who it is, in as many packets as its method takes."""
        bearers, method = self._broker.bearers, connect.properties.authentication_method
        if bearers is not None and method == bearer.METHOD:
            self._authenticate_bearer(connection, connect, bearers)
            return
        if not self._broker.methods.takes_secrets:
            raise MqttError("this server knows no such authentication method", Reason.BAD_AUTHENTICATION_METHOD)

        def proven(user: str, final: bytes) -> None:
            connection.hold()
            connection.proof = answer(final)
            self._admit(connection, connect, user)

        connection.check_nothing_follows()
        connection.authentication = Authentication(self._broker, self._proofs, connection)
        connection.authentication.begin(connect.properties)
        connection.on_proven = proven
        connection.release()

    def _authenticate_bearer(self, connection: MqttConnection, connect: Connect, bearers: Bearers) -> None:
        """Let a client in that brings its token by the method for it."""
        authentication = BearerAuthentication(self._broker, self._proofs, connection, bearers)

        def holds(found: Bearer) -> None:
            bearers.let_in(connection, found)
            connection.proof = bearer.ANSWER
            self._admit(connection, connect, found.user)

        authentication.check(connect.properties, holds)
        connection.authentication = authentication

    def _check_token(self, connection: MqttConnection, connect: Connect, name: str, password: bytes) -> None:
        """Let a client in whose password is the token of an issuer."""
        bearers = self._broker.bearers
        assert bearers is not None

        def holds(found: Bearer) -> None:
            bearers.let_in(connection, found)
            self._admit(connection, connect, found.user)

        bearers.check(connection, Said(password.decode("ascii", "replace"), name), holds, connection.refuse)

    @staticmethod
    def _peer(connection: MqttConnection) -> tuple[str | None, bool]:
        """The name in a peer's certificate, and whether it is on this machine itself."""
        return peer_name(connection.peer_certificate), is_local(connection.address) and not connection.is_tunnelled

    def _trusted(self, connection: MqttConnection, connect: Connect) -> str:
        """Who it is by its word or its certificate, where that is enough."""
        try:
            return self._broker.methods.trusted(connect.user_name or "", *self._peer(connection))
        except Malformed as error:  # a name that can be none is nobody's
            raise Unauthenticated(str(error)) from None

    def _check_secret(self, connection: MqttConnection, connect: Connect, name: str, password: bytes) -> None:
        """Look at a secret, which takes a while."""

        def check() -> tuple[str, object]:
            clients = self._broker.clients
            try:
                held = clients.credential_of(check_name(name))
                return clients.check_secret(name, password.decode()), held
            except (Malformed, UnicodeDecodeError):
                raise Unauthenticated("the name or the secret is wrong") from None

        def checked(known: tuple[str, object] | None, error: HeadwaterError | None) -> None:
            if known is None:  # not raised: what was raised holds its frames, and they hold it
                connection.refuse(error or Unauthenticated(REFUSED))
                return
            user, connection.credential = known
            try:
                self._admit(connection, connect, user)
            except HeadwaterError as refusal:
                connection.refuse(refusal)

        try:
            guessed = check_name(name)  # however it is written, it is one name that is guessed at
        except Malformed:
            guessed = name
        self._proofs.prove(connection, guessed, check, checked, is_slow=True)

    def _admit(self, connection: MqttConnection, connect: Connect, user: str) -> None:
        """Give a client that is known its session."""
        connection.user = user
        assigned = "" if connect.client_id else f"auto-{secrets.token_urlsafe(12)}"
        client = connect.client_id or assigned
        connection.client_id = client
        self._sessions.check(connection)
        self._note(connection, connect)
        if connect.will is not None:
            self._check_will(connection, connect.will)
        expire_s = self._expire_after_s(connect)
        known = self._mqtt.of_client(user, client)
        # One that is not to be kept ends with its connection, also where that is not seen to be gone.
        is_stale = known is not None and self._broker.is_disowned(user, known.row.owner_id)
        if known is not None and (connect.clean_start or not known.row.expire_after_s or is_stale):
            if known.connection is not None:
                known.connection.say_goodbye(Conflict("another connection has begun anew"))
            self._sessions.end(known)
            known = None
        if known is not None:
            self._take_up(known, connection, connect, expire_s)
            return
        row = SessionRow(
            id=secrets.token_hex(16),
            user=user,
            expire_after_s=expire_s,
            client=client,
            began_us=self._broker.clock.now_us(),
            owner_id=self._broker.owner_id(connection),
        )
        self._take_will(connection, connect, row)
        try:
            self._sessions.open(
                row,
                connection,
                lambda _, error: self._greeted(connection, connect, False, assigned, error),
                self.wills.rows(connection.will),
            )
        except HeadwaterError:
            self._forget_will(connection)
            raise
        cast("MqttSession", connection.session).is_whole = True

    def _check_will(self, connection: MqttConnection, will: Will) -> None:
        """A will that could never be published is refused while there is somebody to tell."""
        core, topic = self._broker.core, will.topic
        try:
            check_topic(topic, core.config)
        except Malformed as error:
            raise MqttError(str(error), Reason.TOPIC_NAME_INVALID) from None
        try:
            part = item_of(will, core.checks, self._broker, (connection.user, "")).parts[0]
        except SchemaMismatch:  # which only those are told of who may publish there
            named = Part(root_of(topic), (topic,), (), ())
            self._broker.check_publish(connection.user, "", named, connection.grant)
            raise
        self._broker.check_publish(connection.user, "", part, connection.grant)

    def _take_will(self, connection: MqttConnection, connect: Connect, row: SessionRow) -> None:
        """A client's will is stored with its session, and published by whoever finds that it is gone."""
        if connect.will is not None:
            connection.will = self.wills.take(connect.will, row, connection.grant)

    def _forget_will(self, connection: MqttConnection) -> None:
        """A client was not let in: its will is none."""
        left = connection.take_will()
        if left is not None:
            self.wills.drop(left)

    def _take_up(self, known: MqttSession, connection: MqttConnection, connect: Connect, expire_s: float) -> None:
        """Serve a session that is there over this connection, as soon as it is whole."""
        self._take_will(connection, connect, known.row)
        known.row = msgspec.structs.replace(known.row, expire_after_s=expire_s)
        self._sessions.take_up(known, connection)

        def greeted(error: BaseException | None) -> None:
            if connection is known.connection:
                self._greeted(connection, connect, True, "", error)

        def whole(error: BaseException | None) -> None:
            if error is not None:
                greeted(error)
            else:
                # Without the will, if it is out of this connection's hands by now.
                self._sessions.keep(known.row, lambda _, error: greeted(error), self.wills.rows(connection.will))

        known.recover(whole)

    def _note(self, connection: MqttConnection, connect: Connect) -> None:
        """What the client said about itself."""
        properties = connect.properties
        connection.keep_alive_s = float(self._keep_alive_s(connect))
        connection.receive_max = min(properties.receive_maximum or NUMBER_MAX, self._serving.mqtt_in_flight_max)
        connection.has_reasons = properties.request_problem_information != 0
        if properties.topic_alias_maximum:
            connection.aliases = Aliases(min(properties.topic_alias_maximum, self._serving.mqtt_aliases_max))

    def _keep_alive_s(self, connect: Connect) -> int:
        """How long a client may be silent; one of 3.1.1 cannot be told another time than its own."""
        longest_s = self._serving.mqtt_keep_alive_s_max
        if connect.version != V5:
            return connect.keep_alive_s
        return min(connect.keep_alive_s or longest_s, longest_s)

    def _expire_after_s(self, connect: Connect) -> float:
        longest_s = self._serving.session_expire_after_s_max
        if connect.version != V5:
            return 0.0 if connect.clean_start else longest_s
        return min(float(connect.properties.session_expiry_interval or 0), longest_s)

    def on_greeted(self, connection: MqttConnection) -> None:
        """A connection has its session."""
        self._listener.on_registered(connection)

    def change_expiry(self, connection: MqttConnection, expiry_s: int) -> None:
        """A client that leaves says how long its session is to be kept."""
        session = cast("Session", connection.session)
        if session.row.expire_after_s == 0 and expiry_s:
            raise violation("a session that was not to be kept cannot be kept after all")
        expire_s = min(float(expiry_s), self._serving.session_expire_after_s_max)
        session.row = msgspec.structs.replace(session.row, expire_after_s=expire_s)
        self._sessions.keep(session.row)

    def _greeted(
        self,
        connection: MqttConnection,
        connect: Connect,
        is_resumed: bool,
        assigned: str,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            self._forget_will(connection)
        if connection.is_closed:
            return
        if error is not None:
            refusal = error if isinstance(error, HeadwaterError) else Malformed("the session could not be stored")
            connection.refuse(refusal)
            return
        properties = self._properties(connection, connect, assigned) if connect.version == V5 else NONE
        connection.on_greeted(Connack(is_resumed, Reason.SUCCESS, properties))

    def _properties(self, connection: MqttConnection, connect: Connect, assigned: str) -> Properties:
        """What the server says about itself."""
        row = cast("Session", connection.session).row
        expire_s = int(row.expire_after_s)
        asked = connect.properties.session_expiry_interval or 0
        keep_alive_s = int(connection.keep_alive_s)
        reply = f"{REPLY_ROOT}/{row.id}"
        return msgspec.structs.replace(
            connection.proof,
            session_expiry_interval=expire_s if expire_s != asked else None,
            receive_maximum=self._serving.mqtt_receive_max,
            server_keep_alive=keep_alive_s if keep_alive_s != connect.keep_alive_s else None,
            response_information=reply if connect.properties.request_response_information else None,
            assigned_client_identifier=assigned or None,
            topic_alias_maximum=connection.alias_max,
            maximum_packet_size=connection.packet_bytes_max,
        )
