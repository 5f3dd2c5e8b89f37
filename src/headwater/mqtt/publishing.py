"""Publishing: PUBLISH packets of one session on their way to the roots.

Packets that arrived together become one batch for each root. Promises: an acknowledgement leaves after the message is
on disk; one message that may not be published does not keep those beside it from being, unless it ends the connection:
then those before it are stored and acknowledged, and of those after it nothing more is taken; a message of QoS 2 that
comes again before it is released is acknowledged again, and not published again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import HeadwaterError
from headwater.message import Headers
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.packet_ids import NOBODY, Which
from headwater.mqtt.packets import Ack, Publish, Run
from headwater.mqtt.publishes import Publishes
from headwater.mqtt.reasons import MqttError, Reason, violation
from headwater.mqtt.receiving import Receiving
from headwater.mqtt.translation import expiry_us, headers_of
from headwater.store.batch import ONCE, QUIET
from headwater.topics.name import root_of

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.session import MqttSession

FLAGS = (QUIET, 0, ONCE)
"""By QoS: what a batch says about how it was published."""


class Options(NamedTuple):
    """How messages are published, besides what their packets begin with."""

    headers: Headers = ()
    key: bytes | None = None
    expires_us: int = 0


PLAIN = Options()


class Publishing:
    """What one session publishes."""

    __slots__ = ("_aliases", "_session", "receiving")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._aliases: dict[int, str] = {}
        """Topics that the client named by a number; they last as long as the connection."""
        self.receiving = Receiving(session)

    def on_connected(self) -> None:
        """A new connection knows no aliases."""
        self._aliases.clear()

    def take_run(self, connection: MqttConnection, run: Run) -> None:
        """Packets without properties, one after another."""
        if run.qos == 2:
            for packet in run.publishes():
                if connection.is_ending:
                    return
                self.take(connection, packet)
            return
        numbers = NOBODY
        if run.qos:
            self._count(connection, len(run.packet_ids))
            numbers = connection.expect(Kind.PUBACK, run.packet_ids)
        parts = run.by_root()
        if len(parts) == 1:
            for root in parts:
                self._publish(connection, root, run, (numbers, None))
            return
        if numbers is not NOBODY:
            numbers.left = len(parts)
        for root, part in parts.items():
            if connection.is_ending:
                part = part.before(numbers.ends_at)
                if not part.topics:
                    connection.settle((numbers, ()))
                    continue
            self._publish(connection, root, part, (numbers, part.places if numbers is not NOBODY else None))

    def take(self, connection: MqttConnection, packet: Publish) -> None:
        """One packet, with whatever properties."""
        topic = self._topic(connection, packet)
        sequence = None
        if packet.qos == 2:
            sequence = self.receiving.take(packet.packet_id, root_of(topic))
            if sequence is None:
                connection.settle((connection.expect(Kind.PUBREC, (packet.packet_id,)), None))
                return
        elif packet.qos:
            self._count(connection, 1)
        headers, key = headers_of(packet.properties, self._may_be_answered)
        expires_us = expiry_us(packet.properties, self._session.sessions.broker.clock.now_us())
        numbers = NOBODY
        if packet.qos:
            kind, receiving = (Kind.PUBACK, None) if packet.qos == 1 else (Kind.PUBREC, self.receiving)
            numbers = connection.expect(kind, (packet.packet_id,), receiving)
        run = Run(packet.qos, packet.retain, packet.dup, [topic], [packet.payload], [])
        options = Options(headers, key, expires_us)
        self._publish(connection, root_of(topic), run, (numbers, None), options, sequence)

    def _may_be_answered(self, topic: str) -> bool:
        row = self._session.row
        return self._session.sessions.broker.may_be_answered(row.user, row.id, topic)

    def _count(self, connection: MqttConnection, count: int) -> None:
        """So many more of QoS 1 are under way; MQTT 5 has a limit for that."""
        connection.unacked += count
        most = self._session.sessions.serving.mqtt_receive_max
        if connection.version == V5 and connection.unacked + len(self.receiving) > most:
            raise MqttError("more messages are under way than the server takes", Reason.RECEIVE_MAXIMUM_EXCEEDED)

    def _topic(self, connection: MqttConnection, packet: Publish) -> str:
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        if alias > connection.alias_max:
            raise MqttError(f"topic alias {alias} is over the maximum", Reason.TOPIC_ALIAS_INVALID)
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet.topic
        known = self._aliases.get(alias)
        if known is None:
            raise violation(f"topic alias {alias} stands for no topic yet; send the topic with it first")
        return known

    def _publish(
        self,
        connection: MqttConnection,
        root: str,
        run: Run,
        which: Which,
        options: Options = PLAIN,
        sequence: int | None = None,
    ) -> None:
        """Messages of one root, if the client may publish them; the packets of many with QoS 0 go out as they came."""
        session, count = self._session, len(run.topics)
        sessions, row, tag = session.sessions, session.row, session.tag
        headers, key, expires_us = options
        if run.retain and not tag and len(headers) < sessions.broker.core.config.headers_max:
            tag = (session.mark,)  # whose it is may matter to a subscription of later
        if tag:
            headers = (*headers, *tag)
        entry, longest_bytes = sessions.entry, run.longest_bytes
        try:
            part = entry.checks.singles(
                *(root, run.topics, run.payloads, run.retain, key, headers, expires_us),
                names=run.names,
                longest_bytes=longest_bytes,
            )
            sessions.broker.check_publish(row.user, row.id, part)
            if run.data and count == 1:
                session.mqtt.deliveries.one_came(run.topics[0], run.payloads[0], connection.version, run.data)
            elif run.data:
                part.time_us = sessions.broker.clock.now_us()
                part.decode()
                came = Publishes.received(run.data, count, longest_bytes)
                session.mqtt.deliveries.came(part.body or b"", connection.version, came)
            producer = self.receiving.producer if sequence is not None else None
            entry.take(connection, which, part, FLAGS[run.qos], producer, sequence or 0)
        except HeadwaterError as error:
            if count == 1:
                sessions.counts.refuse(error.code)
                connection.settle(which, error)
            else:
                self._publish_singly(connection, root, run, which, options)

    def _publish_singly(self, connection: MqttConnection, root: str, run: Run, which: Which, options: Options) -> None:
        """Messages of a run that cannot all be published: each by itself, up to one that ends the connection."""
        numbers, places = which
        count = len(run.topics)
        if numbers is not NOBODY:
            numbers.left += count - 1
        for at in range(count):
            if connection.is_ending:
                numbers.left -= count - at - 1
                connection.settle((numbers, ()))
                return
            place = at if places is None else places[at]
            one = Run(run.qos, run.retain, run.dup, [run.topics[at]], [run.payloads[at]], [])
            self._publish(connection, root, one, (numbers, (place,)), options)

    def release(self, connection: MqttConnection, packet_ids: Sequence[int]) -> None:
        """The client is done with messages of QoS 2: their numbers may stand for others."""

        def released(known: list[bool]) -> None:
            if connection is not self._session.connection:
                return
            for number, is_known in zip(packet_ids, known, strict=True):
                reason = Reason.SUCCESS if is_known else Reason.PACKET_IDENTIFIER_NOT_FOUND
                connection.send(Ack(Kind.PUBCOMP, number, reason))

        self.receiving.release(packet_ids, released)
