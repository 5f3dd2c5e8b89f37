"""Publishing: PUBLISH packets of one session on their way to the roots.

Packets that arrived together become one batch for each root. Promises: an acknowledgement leaves after the message is
on disk; one message that may not be published does not keep those beside it from being, unless it ends the connection:
then those before it are stored and acknowledged, and of those after it nothing more is taken; a message of QoS 2 that
comes again before it is released is acknowledged again, and not published again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.message import Headers
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.packet_ids import NOBODY, Which
from headwater.mqtt.packets import Ack, Publish, Run
from headwater.mqtt.publishes import Publishes
from headwater.mqtt.reasons import MqttError, Reason, violation
from headwater.mqtt.receiving import Receiving
from headwater.mqtt.translation import expiry_us, headers_of
from headwater.store.batch import ONCE, QUIET, checksum
from headwater.store.body import encode_body
from headwater.topics.name import root_of
from headwater.wire.contents import Publish as Batched

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.session import MqttSession

FLAGS = (QUIET, 0, ONCE)
"""By QoS: what a batch says about how it was published."""


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
        elif len(run.topics) == 1 and not run.retain and self._took_quiet(connection, run.topics[0], run.payloads[0]):
            return
        parts = run.by_root()
        if numbers is not NOBODY:
            numbers.left = len(parts)
        for root, part in parts.items():
            if connection.is_ending:
                part = part.before(numbers.ends_at)
                if not part.topics:
                    connection.settle((numbers, ()))
                    continue
            which = numbers, part.places if len(parts) > 1 and numbers is not NOBODY else None
            came = Publishes.received(part.data, len(part.topics), part.longest_bytes) if part.data else None
            self._publish(connection, root, part.topics, part.payloads, part.qos, part.retain, which, came=came)

    def _took_quiet(self, connection: MqttConnection, topic: str, payload: bytes) -> bool:
        """Whether a message of QoS 0 without options has taken the shortest way."""
        session = self._session
        sessions, row = session.sessions, session.row
        early = sessions.entry.desk.early(topic, payload)
        if early is None or session.tag:
            return False
        try:
            sessions.broker.check_publish(row.user, row.id, early.root, (topic,))
        except HeadwaterError:
            return False  # it is refused, and counted, where all others are
        return sessions.entry.take_quiet(connection, early)

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
        headers, key = headers_of(packet.properties)
        expires_us = expiry_us(packet.properties, self._session.sessions.broker.clock.now_us())
        numbers = NOBODY
        if packet.qos:
            kind, receiving = (Kind.PUBACK, None) if packet.qos == 1 else (Kind.PUBREC, self.receiving)
            numbers = connection.expect(kind, (packet.packet_id,), receiving)
        self._publish(
            connection,
            root_of(topic),
            (topic,),
            (packet.payload,),
            packet.qos,
            packet.retain,
            (numbers, None),
            headers,
            key,
            expires_us,
            sequence,
        )

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
        topics: Sequence[str],
        payloads: Sequence[bytes],
        qos: int,
        retain: bool,
        which: Which,
        headers: Headers = (),
        key: bytes | None = None,
        expires_us: int = 0,
        sequence: int | None = None,
        came: Publishes | None = None,
    ) -> None:
        """Messages of one root, alike but for topic and payload; with the packets that they came in, if those may go
        out as they are."""
        sessions, row = self._session.sessions, self._session.row
        count = len(topics)
        tag = self._session.tag
        if retain and not tag and len(headers) < sessions.broker.core.config.headers_max:
            tag = (self._session.mark,)  # whose it is may matter to a subscription of later
        body = encode_body(
            topics,
            payloads,
            sessions.broker.clock.now_us(),
            expiries=[expires_us] * count if expires_us else None,
            retain=[True] * count if retain else None,
            keys=[key] * count if key is not None else None,
            headers=[(*headers, *tag)] * count if headers or tag else None,
        )
        producer = self.receiving.producer if sequence is not None else None
        batched = Batched(
            root=root, count=count, crc=checksum(body), body=body, producer=producer, sequence=sequence or 0
        )
        try:
            columns = sessions.entry.check(batched, is_whole=True)
            sessions.broker.check_publish(row.user, row.id, root, columns.names)
            part = sessions.entry.foresee(batched, columns)
        except HeadwaterError as error:
            if count == 1:
                sessions.counts.refuse(error.code)
                connection.settle(which, error)
                return
            self._publish_singly(connection, root, topics, payloads, qos, retain, which)
            return
        if came is not None and not headers:
            sessions.deliveries.came(body, connection.version, came)
        sessions.entry.enter(connection, which, batched, columns, FLAGS[qos], producer, part)

    def _publish_singly(
        self,
        connection: MqttConnection,
        root: str,
        topics: Sequence[str],
        payloads: Sequence[bytes],
        qos: int,
        retain: bool,
        which: Which,
    ) -> None:
        """Messages of a run that cannot all be published: each by itself, up to one that ends the connection."""
        numbers, places = which
        count = len(topics)
        if numbers is not NOBODY:
            numbers.left += count - 1
        for at in range(count):
            if connection.is_ending:
                numbers.left -= count - at - 1
                connection.settle((numbers, ()))
                return
            place = at if places is None else places[at]
            self._publish(connection, root, (topics[at],), (payloads[at],), qos, retain, (numbers, (place,)))

    def release(self, connection: MqttConnection, packet_ids: Sequence[int]) -> None:
        """The client is done with messages of QoS 2: their numbers may stand for others."""

        def released(known: list[bool]) -> None:
            if connection is not self._session.connection:
                return
            for number, is_known in zip(packet_ids, known, strict=True):
                reason = Reason.SUCCESS if is_known else Reason.PACKET_IDENTIFIER_NOT_FOUND
                connection.send(Ack(Kind.PUBCOMP, number, reason))

        self.receiving.release(packet_ids, released)
