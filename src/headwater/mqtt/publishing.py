"""Publishing: PUBLISH packets of one session on their way to the roots.

Packets that arrived together become one batch for each root. Promises: an acknowledgement leaves after the message is
on disk; one message that may not be published does not keep those beside it from being; a message of QoS 2 that comes
again before it is released is acknowledged again, and not published again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import HeadwaterError
from headwater.message import Headers
from headwater.mqtt.kinds import Kind
from headwater.mqtt.packets import Ack, Publish, Run
from headwater.mqtt.reasons import MqttError, Reason, violation
from headwater.mqtt.translation import expiry_us, headers_of
from headwater.store.batch import ONCE, QUIET, checksum
from headwater.store.body import encode_body
from headwater.topics.name import root_of
from headwater.wire.batches import Publish as Batched

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.session import MqttSession

FLAGS = (QUIET, 0, ONCE)
"""By QoS: what a batch says about how it was published."""


class Numbers(msgspec.Struct, frozen=True):
    """Which packets a batch came in, and what answers them: PUBACK or PUBREC."""

    kind: Kind
    packet_ids: Sequence[int]


NOBODY = Numbers(Kind.PUBACK, ())


class Publishing:
    """What one session publishes."""

    __slots__ = ("_aliases", "_received", "_session")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._aliases: dict[int, str] = {}
        """Topics that the client named by a number; they last as long as the connection."""
        self._received: set[int] = set()
        """Numbers of QoS 2 messages that are not released yet."""

    def on_connected(self) -> None:
        """A new connection knows no aliases."""
        self._aliases.clear()

    def take_run(self, connection: MqttConnection, run: Run) -> None:
        """Packets without properties, one after another."""
        if run.qos == 2:
            for packet in run.publishes():
                self.take(connection, packet)
            return
        for root, part in run.by_root().items():
            self._publish(connection, root, part.topics, part.payloads, part.qos, part.retain, part.packet_ids)

    def take(self, connection: MqttConnection, packet: Publish) -> None:
        """One packet, with whatever properties."""
        topic = self._topic(connection, packet)
        if packet.qos == 2:
            if packet.packet_id in self._received:
                connection.send(Ack(Kind.PUBREC, packet.packet_id))
                return
            self._received.add(packet.packet_id)
        headers, key = headers_of(packet.properties)
        expires_us = expiry_us(packet.properties, self._session.sessions.broker.clock.now_us())
        numbers = (packet.packet_id,) if packet.qos else ()
        self._publish(
            connection,
            root_of(topic),
            (topic,),
            (packet.payload,),
            packet.qos,
            packet.retain,
            numbers,
            headers,
            key,
            expires_us,
        )

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
        packet_ids: Sequence[int],
        headers: Headers = (),
        key: bytes | None = None,
        expires_us: int = 0,
    ) -> None:
        """Messages of one root, alike but for topic and payload."""
        sessions, row = self._session.sessions, self._session.row
        count = len(topics)
        tag = self._session.tag
        headers = (*headers, *tag) if tag else headers
        body = encode_body(
            topics,
            payloads,
            sessions.broker.clock.now_us(),
            expiries=[expires_us] * count if expires_us else None,
            retain=[True] * count if retain else None,
            keys=[key] * count if key is not None else None,
            headers=[headers] * count if headers else None,
        )
        numbers = Numbers(Kind.PUBREC if qos == 2 else Kind.PUBACK, packet_ids) if qos else NOBODY
        batched = Batched(root=root, count=count, crc=checksum(body), body=body, producer=None, sequence=0)
        try:
            item, names = sessions.entry.check(connection, numbers, batched, FLAGS[qos])
            sessions.broker.check_publish(row.user, row.id, root, names)
        except HeadwaterError as error:
            if count == 1:
                self.refuse(connection, numbers, error)
                return
            for place in range(count):
                one = packet_ids[place : place + 1]
                alone = (topics[place],), (payloads[place],), qos, retain, one, headers, key, expires_us
                self._publish(connection, root, *alone)
            return
        connection.on_publish(item.weight, item.share)
        sessions.entry.commit(item)

    def refuse(self, connection: MqttConnection, numbers: Numbers, error: HeadwaterError) -> None:
        """Say that messages were not published, as far as the client's MQTT can say so."""
        if numbers.kind is Kind.PUBREC:
            self._received.difference_update(numbers.packet_ids)
        connection.write(connection.refusals(numbers, error))

    def release(self, connection: MqttConnection, packet_ids: Sequence[int]) -> None:
        """The client is done with messages of QoS 2: their numbers may stand for others."""
        for number in packet_ids:
            known = number in self._received
            self._received.discard(number)
            reason = Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND
            connection.send(Ack(Kind.PUBCOMP, number, reason))
