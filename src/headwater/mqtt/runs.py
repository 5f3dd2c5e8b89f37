"""Packets that come most, read many at a time: PUBLISH without properties, and acknowledgements of success.

A reader offers its bytes here first. What is taken is whole and right; what is not plain is left where it is, for
mqtt/decoding.py to read, or to say what is wrong with it. Packets that begin alike, to the byte, as those of a device
do whose messages are equally long, are taken by one call for many; the others cost a few look-ups each. The work is
linear in the bytes: what was tried for many packets in vain is not tried again before these have passed.
"""

from __future__ import annotations

import struct
from typing import Final

from headwater.memo import Memo
from headwater.mqtt.fields import check_topic_name, text_of
from headwater.mqtt.kinds import FLAGS, V5, Kind
from headwater.mqtt.packets import Acks, Received, Run
from headwater.mqtt.reasons import MqttError

PUBLISH_FIRST: Final = Kind.PUBLISH << 4
PUBLISH_BYTES_MIN: Final = 5
ACK_FIRSTS: Final = {kind << 4 | FLAGS[kind]: kind for kind in (Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP)}
ACK_BYTES: Final = 4

ALIKE: Final = (8, 32, 128, 512)
"""How many packets are taken to be alike at once: more after each time that they were."""
ALIKE_MIN: Final = ALIKE[0]
ONES: Final = [bytes((byte,)) for byte in range(256)]

TOPICS_CACHED_MAX: Final = 10_000
TOPIC_CACHED_BYTES_MAX: Final = 200
LAYOUTS_CACHED_MAX: Final = 100

TOPICS: Final[Memo[bytes, str]] = Memo(TOPICS_CACHED_MAX)
"""Topics that were found to be good, as the same devices publish to the same topics again and again."""

LAYOUTS: Final[Memo[tuple[int, int, int, int], struct.Struct]] = Memo(LAYOUTS_CACHED_MAX)
"""How packets are laid out that are alike, by the lengths of head and payload, what is between them, and how many."""


def read_run(data: bytes, at: int, version: int, bytes_max: int, found: list[Received]) -> int:
    """PUBLISH packets with the same flags, as long as they are whole and plain; where the first other begins.

    0       1               2 or 3                                with QoS      in MQTT 5
    ├───────┼───────────────┼──────────────────────┼─────────────┼─────────────┼──────────────────┼─────────┄
    │ first │ remaining     │ topic length (u16)   │ topic       │ number      │ 0: no properties │ payload
    │ byte  │ length (var)  │                      │             │ (u16)       │                  │
    └───────┴───────────────┴──────────────────────┴─────────────┴─────────────┴──────────────────┴─────────┄
    ╰──────────────────────── head ──────────────────────────────╯
    """
    first, begin, known = data[at], at, TOPICS.known
    qos = first >> 1 & 3
    if qos == 3 or (first & 8 and not qos):
        return at
    end = len(data)
    is_v5 = version == V5
    between = (2 if qos else 0) + (1 if is_v5 else 0)
    topics: list[str] = []
    names: list[str] = []
    payloads: list[bytes] = []
    numbers: list[int] = []
    head, topic = b"", ""
    head_bytes = body_at = size = 0  # of the last packet
    longest = 0
    step, alike_from = 0, 0
    while at + PUBLISH_BYTES_MIN <= end:
        if head and data.startswith(head, at):
            while step and at + ALIKE[step] * size > end:
                step -= 1
            count = ALIKE[step]
            if at + count * size <= end and at >= alike_from:
                if _take_alike(data, at, count, head, size - head_bytes - between, between, numbers, payloads):
                    topics += [topic] * count
                    at += count * size
                    step = min(step + 1, len(ALIKE) - 1)
                    continue
                step, alike_from = 0, at + count * size
        else:
            if data[at] != first:
                break
            low = data[at + 1]
            if low < 0x80:
                start, size = at + 2, low + 2
            else:
                # Two bytes hold lengths up to 16 KiB; longer packets are so few that they may take the long way.
                high = data[at + 2]
                if high >= 0x80 or not high:
                    break
                start, size = at + 3, (low & 0x7F | high << 7) + 3
            head_bytes = start - at + 2 + (data[start] << 8 | data[start + 1])
            body_at = head_bytes + between
            if body_at > size or size > bytes_max or at + size > end:
                break
            raw = data[start + 2 : at + head_bytes]
            topic = known.get(raw) or _good_topic(raw)
            if not topic:
                break
            names.append(topic)
            head = data[at : at + head_bytes]
            longest = max(longest, size)
        if at + size > end or (is_v5 and data[at + body_at - 1]):
            break
        if qos:
            number = data[at + head_bytes] << 8 | data[at + head_bytes + 1]
            if not number:
                break
            numbers.append(number)
        topics.append(topic)
        payloads.append(data[at + body_at : at + size])
        at += size
    if topics:
        came = data[begin:at] if first == PUBLISH_FIRST else b""
        found.append(Run(qos, bool(first & 1), bool(first & 8), topics, payloads, numbers, came, longest, [], names))
    return at


def _take_alike(
    data: bytes,
    at: int,
    count: int,
    head: bytes,
    payload_bytes: int,
    between: int,
    numbers: list[int],
    payloads: list[bytes],
) -> bool:
    """So many packets, if each is plain and begins with this head; else none of them.

    What they have in common is compared byte by byte, each byte for all packets at once."""
    size = len(head) + between + payload_bytes
    end = at + count * size
    for place, byte in enumerate(head + b"\0" if between == 1 else head):
        if data[at + place : end : size] != ONES[byte] * count:
            return False
    if between == 3 and data[at + len(head) + 2 : end : size] != ONES[0] * count:
        return False
    key = (len(head), between, payload_bytes, count)
    layout = LAYOUTS.known.get(key) or _new_layout(key)
    found = layout.unpack_from(data, at)
    if not between & 2:
        payloads += found
        return True
    if 0 in found[::2]:
        return False
    numbers += found[::2]
    payloads += found[1::2]
    return True


def _new_layout(key: tuple[int, int, int, int]) -> struct.Struct:
    head_bytes, between, payload_bytes, count = key
    number, properties = "H" if between & 2 else "", "x" if between & 1 else ""
    return LAYOUTS.keep(key, struct.Struct(">" + f"{head_bytes}x{number}{properties}{payload_bytes}s" * count))


def read_acks(data: bytes, at: int, found: list[Received]) -> int:
    """Acknowledgements of one kind that are whole and say success; where the first other begins."""
    first = data[at]
    head = first << 8 | 2
    numbers: list[int] = []
    count = min(ALIKE_MIN, (len(data) - at) // ACK_BYTES)
    while count:
        words = struct.unpack_from(f">{2 * count}H", data, at)
        if words[::2].count(head) == count and 0 not in words:
            numbers += words[1::2]
            at += count * ACK_BYTES
            count = min(count * 4, (len(data) - at) // ACK_BYTES)
        else:
            count //= 2
    if numbers:
        found.append(Acks(ACK_FIRSTS[first], numbers))
    return at


def _good_topic(raw: bytes) -> str:
    """The topic that these bytes are, remembered; empty if they are none."""
    try:
        topic = text_of(raw, "the topic")
        check_topic_name(topic)
    except MqttError:
        return ""
    return TOPICS.keep(raw, topic) if topic and len(raw) <= TOPIC_CACHED_BYTES_MAX else topic
