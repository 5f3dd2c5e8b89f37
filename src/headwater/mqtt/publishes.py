"""Messages on their way out: the PUBLISH packets of a batch, encoded once for all who get them alike.

    with QoS 0      head │ tail, head │ tail, …           one object, the same for every subscriber
    with QoS 1, 2   head │ number │ tail, …               heads and tails are shared, numbers are each session's own

The head is the fixed header and the topic; the tail the properties, in MQTT 5, and the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.mqtt.fields import text_bytes, variable_bytes
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.properties import EMPTY

FIELDS_CACHED_MAX: Final = 10_000
FIELD_CACHED_CHARS_MAX: Final = 200

_topic_fields: dict[str, bytes] = {}
"""Topics as packets have them, as the same topics are delivered again and again."""


class Publishes:
    """The packets of some messages, in their order."""

    __slots__ = ("_pieces", "count", "longest_bytes", "qos")

    def __init__(
        self,
        topics: Sequence[str],
        payloads: Sequence[bytes],
        *,
        version: int,
        qos: int = 0,
        retain: bool = False,
        properties: Sequence[bytes] | None = None,
    ) -> None:
        """Properties are encoded blocks, one for each message; without them, none has any."""
        self.qos = qos
        self.count = len(topics)
        self.longest_bytes = 0
        """The length of the longest packet: whether a client takes them all."""
        if version == V5:
            blocks = [EMPTY] * len(payloads) if properties is None else properties
            payloads = [block + payload for block, payload in zip(blocks, payloads, strict=True)]
        heads = self._heads(topics, payloads, bytes((Kind.PUBLISH << 4 | qos << 1 | retain,)), 2 if qos else 0)
        width = 3 if qos else 2
        pieces = [b""] * (width * self.count)
        pieces[::width] = heads
        pieces[width - 1 :: width] = payloads
        self._pieces = pieces if qos else [b"".join(pieces)]

    def _heads(self, topics: Sequence[str], tails: Sequence[bytes], first: bytes, number_bytes: int) -> list[bytes]:
        heads: list[bytes] = []
        starts: dict[int, bytes] = {}  # by remaining length
        last_topic, last_bytes, head = None, 0, b""
        for topic, tail in zip(topics, tails, strict=True):
            if topic is not last_topic or len(tail) != last_bytes:
                last_topic, last_bytes = topic, len(tail)
                field = _topic_fields.get(topic) or _topic_field(topic)
                length = len(field) + number_bytes + last_bytes
                start = starts.get(length)
                if start is None:
                    start = starts[length] = first + variable_bytes(length)
                head = start + field
            heads.append(head)
        if starts:
            longest = max(starts)
            self.longest_bytes = len(starts[longest]) + longest
        return heads

    @property
    def data(self) -> bytes:
        """The packets with QoS 0."""
        return self._pieces[0]

    def numbered(self, packet_ids: Sequence[int]) -> bytes:
        """The packets with QoS 1 or 2, under these numbers."""
        pieces = self._pieces.copy()
        pieces[1::3] = [number.to_bytes(2, "big") for number in packet_ids]
        return b"".join(pieces)


def _topic_field(topic: str) -> bytes:
    field = text_bytes(topic)
    if len(topic) <= FIELD_CACHED_CHARS_MAX:
        if len(_topic_fields) >= FIELDS_CACHED_MAX:
            _topic_fields.clear()
        _topic_fields[topic] = field
    return field
