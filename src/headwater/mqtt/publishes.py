"""Messages on their way out: the PUBLISH packets of a batch, encoded once for all who get them alike.

    with QoS 0      head │ tail, head │ tail, …           one object, the same for every subscriber
    with QoS 1, 2   head │ number │ tail, …               heads and tails are shared, numbers are each session's own

The head is the fixed header and the topic; the tail the properties, in MQTT 5, and the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

from headwater.memo import Memo
from headwater.mqtt.fields import text_bytes, variable_bytes
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.properties import EMPTY

DUP: Final = 0x08
QUIET_FIRST: Final = bytes((Kind.PUBLISH << 4,))
FIELDS_CACHED_MAX: Final = 10_000
FIELD_CACHED_CHARS_MAX: Final = 200

_topic_fields: Memo[str, bytes] = Memo(FIELDS_CACHED_MAX)
"""Topics as packets have them, as the same topics are delivered again and again."""


class Publishes:
    """The packets of some messages, in their order."""

    __slots__ = ("_pieces", "count", "data", "longest_bytes", "qos")

    def __init__(
        self,
        topics: Sequence[str],
        payloads: Sequence[bytes],
        *,
        version: int,
        qos: int = 0,
        retain: Sequence[bool] | None = None,
        properties: Sequence[bytes] | None = None,
    ) -> None:
        """Properties are encoded blocks, one for each message; without them, none has any. The same for retain."""
        self.qos = qos
        self.count = len(topics)
        self.longest_bytes = 0
        """The length of the longest packet: whether a client takes them all."""
        if version == V5:
            blocks = [EMPTY] * len(payloads) if properties is None else properties
            payloads = [block + payload for block, payload in zip(blocks, payloads, strict=True)]
        first, number_bytes, width = Kind.PUBLISH << 4 | qos << 1, 2 if qos else 0, 3 if qos else 2
        heads: list[bytes] = []
        known: dict[tuple[str, int, bool], bytes] = {}
        for topic, tail, is_retained in zip(topics, payloads, retain or repeat(False), strict=False):
            key = (topic, len(tail), is_retained)
            head = known.get(key)
            if head is None:
                field = _topic_fields.known.get(topic) or _topic_field(topic)
                length = variable_bytes(len(field) + number_bytes + len(tail))
                head = known[key] = b"".join((bytes((first | is_retained,)), length, field))
                self.longest_bytes = max(self.longest_bytes, len(head) + number_bytes + len(tail))
            heads.append(head)
        pieces = [b""] * (width * self.count)
        pieces[::width] = heads
        pieces[width - 1 :: width] = payloads
        self._pieces = pieces if qos else []
        self.data = b"" if qos else b"".join(pieces)
        """The packets with QoS 0."""

    @staticmethod
    def received(data: bytes, count: int, longest_bytes: int) -> Publishes:
        """Packets with QoS 0 that go out as they came."""
        made = Publishes((), (), version=V4)
        made.count, made.longest_bytes, made.data = count, longest_bytes, data
        return made

    def numbered(self, packet_ids: Sequence[int], again: Sequence[int] = ()) -> bytes:
        """The packets with QoS 1 or 2, under these numbers; those at these places were sent before, and say so."""
        pieces = self._pieces.copy()
        pieces[1::3] = [number.to_bytes(2, "big") for number in packet_ids]
        for place in again:
            head = pieces[3 * place]
            pieces[3 * place] = bytes((head[0] | DUP,)) + head[1:]
        return b"".join(pieces)


def quiet_packet(topic: str, payload: bytes, version: int) -> bytes:
    """The packet of one message with QoS 0, without properties."""
    field = _topic_fields.known.get(topic) or _topic_field(topic)
    if version == V5:
        field += EMPTY
    return b"".join((QUIET_FIRST, variable_bytes(len(field) + len(payload)), field, payload))


def _topic_field(topic: str) -> bytes:
    field = text_bytes(topic)
    if len(topic) <= FIELD_CACHED_CHARS_MAX:
        _topic_fields.keep(topic, field)
    return field
