"""Frames that carry batches, and those that speak about them: binary, so that nothing is parsed message by message.

All numbers are little-endian. A batch's body is the one of docs/reference/storage.md, byte for byte: what a publisher
encodes is what is stored, and what subscribers receive.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

from headwater.errors import Malformed, TooLarge
from headwater.wire.contents import Deliver, Publish, Published
from headwater.wire.frame import Frame, Kind, pack, pack_head

ZEROS = bytes(8)

RANGES_MAX = 100_000
"""Ranges in one frame, unless its reader says otherwise: nobody has more messages in flight to speak about."""

MESSAGE_BYTES_MIN = 8
"""What each message takes in a body at the very least, as `store/body.py` has it."""

# PUBLISH: messages of one root. The id is the request's number.
#
#     0               4               8       10      12              16
#     ├───────────────┼───────────────┼───────┼───────┼───────────────┤
#  0  │ count         │ body crc      │ root  │ prod. │ 0             │
#     ├───────────────┴───────────────┼───────┴───────┴───────────────┤
# 16  │ sequence (u64)                │ root, producer, zeros to 8…   │
#     ├───────────────────────────────┴───────────────────────────────┤
#     │ body                                                          │
#     └───────────────────────────────────────────────────────────────┘
PUBLISH = struct.Struct("<IIHHIQ")

NAMES_BYTES_MAX = PUBLISH.size + 2 * 0xFFFF + 7
"""By then the body has begun."""

QUIET = 1
"""Flag of PUBLISH: nobody waits, no PUBLISHED is sent."""
ASKS = 2
"""Flag of PUBLISH, beside QUIET: a question. Where nobody hears of it, it is refused, and not stored."""

# PUBLISHED: for each publish that is on disk, in one frame what was committed together.
#
#     0               4               8               16              24
#     ├───────────────┼───────────────┼───────────────┼───────────────┤
#     │ id (u32)      │ repeat (u32)  │ first offset  │ time, µs      │ …
#     └───────────────┴───────────────┴───────────────┴───────────────┘
PUBLISHED = struct.Struct("<IIQq")

# DELIVER: messages of one root for one subscription. The id is the subscription's number.
#
#     0               4               8               12              16
#     ├───────────────┴───────────────┼───────────────┴───────────────┤
#  0  │ lease (u64), 0: none          │ first offset (u64)            │
#     ├───────────────┬───────────────┼───────────────┬───────┬───────┤
# 16  │ count         │ body crc      │ attempt       │ root  │ 0     │
#     ├───────────────┴───────────────┴───────────────┴───────┴───────┤
# 32  │ root (UTF-8), zeros to a multiple of 8                        │
#     │ u32[count], zeros to a multiple of 8: each offset less the    │
#     │   first one; only with the flag PICKED, else they are dense   │
#     │ body                                                          │
#     └───────────────────────────────────────────────────────────────┘
DELIVER = struct.Struct("<QQIIIHH")

RETAINED = 1
"""Flag of DELIVER: these are retained messages, sent first."""
PICKED = 2
"""Flag of DELIVER: the offsets are listed."""

# ACK: id is the request's number; answered with REPLY once durable. TAKEN: id is the subscription's number, which then
# stands here as 0. RECALL: the same.
#
#     0               4               8               16              24
#     ├───────────────┼───────────────┼───────────────┼───────────────┄
#     │ subscription  │ ranges        │ lease (u64)   │ first, last (u64 each), for each range
#     └───────────────┴───────────────┴───────────────┴───────────────┄
RANGES = struct.Struct("<II")
RANGE = struct.Struct("<QQQ")

# CREDIT: how many more messages and bytes the client takes for a subscription. The id is its number.
#
#     0                               8                               16
#     ├───────────────────────────────┼───────────────────────────────┤
#     │ messages (u64)                │ bytes (u64)                   │
#     └───────────────────────────────┴───────────────────────────────┘
CREDIT = struct.Struct("<QQ")

Range = tuple[int, int, int]
"""A lease, and the first and last offset of it that are meant."""


def pack_publish(
    id: int,
    root: str,
    count: int,
    crc: int,
    body: bytes,
    producer: str | None = None,
    sequence: int = 0,
    flags: int = 0,
) -> list[bytes]:
    """A PUBLISH frame, its body apart so that it is not copied."""
    name, by = root.encode(), (producer or "").encode()
    head = PUBLISH.pack(count, crc, len(name), len(by), 0, sequence) + name + by
    head += ZEROS[: -len(head) & 7]
    return [pack_head(Kind.PUBLISH, id, len(head) + len(body), flags) + head, body]


def read_publish(frame: Frame) -> Publish:
    """What a PUBLISH frame says; the body is looked at by whoever stores it."""
    payload, pieces = frame.payload, frame.pieces
    while pieces and len(payload) < NAMES_BYTES_MAX:
        payload, pieces = payload + pieces[0], pieces[1:]
    if len(payload) < PUBLISH.size:
        raise Malformed("a PUBLISH frame is too short")
    count, crc, root_bytes, producer_bytes, zero, sequence = PUBLISH.unpack_from(payload)
    if zero:
        raise Malformed(f"a PUBLISH frame has {zero} where 0 has to be")
    if sequence and not producer_bytes:
        raise Malformed("a PUBLISH frame has a sequence and no producer")
    names = PUBLISH.size + root_bytes + producer_bytes
    start = (names + 7) & ~7
    if start > len(payload):
        raise Malformed("the names in a PUBLISH frame end outside of it")
    try:
        root = payload[PUBLISH.size : PUBLISH.size + root_bytes].decode()
        producer = payload[PUBLISH.size + root_bytes : names].decode() if producer_bytes else None
    except UnicodeDecodeError:
        raise Malformed("a name in a PUBLISH frame is not UTF-8") from None
    body = b"".join((payload[start:], *pieces)) if pieces else payload[start:]
    check_count(count, body)
    return Publish(root, count, crc, producer, sequence, body)


def check_count(count: int, body: bytes) -> None:
    """Malformed unless a body says the same number of messages, and has room for them.

    So that nobody reckons with a number that a client made up. The columns are checked by whoever stores the body.
    """
    if not 0 < count * MESSAGE_BYTES_MIN <= len(body) or int.from_bytes(body[:4], "little") != count:
        raise Malformed(f"a body of {len(body)} bytes does not hold the {count} messages that were announced")


def pack_published(done: Iterable[tuple[int, bool, int, int]]) -> bytes:
    """A PUBLISHED frame: of each publish that was committed its id, whether it is a repeat, its first offset, and the
    time."""
    return pack(Kind.PUBLISHED, 0, b"".join([PUBLISHED.pack(*one) for one in done]))


def read_published(frame: Frame) -> list[Published]:
    """The publishes that are on disk."""
    if len(frame.payload) % PUBLISHED.size:
        raise Malformed("a PUBLISHED frame ends in the middle of an entry")
    return [
        Published(number, bool(repeat), first, time_us)
        for number, repeat, first, time_us in PUBLISHED.iter_unpack(frame.payload)
    ]


def pack_deliver(
    subscription: int,
    lease: int,
    root: bytes,
    first_offset: int,
    count: int,
    crc: int,
    body_bytes: int,
    attempt: int = 1,
    deltas: Sequence[int] | None = None,
    flags: int = 0,
) -> bytes:
    """A DELIVER frame up to its body, which is sent as it is, to however many."""
    head = DELIVER.pack(lease, first_offset, count, crc, attempt, len(root), 0) + root
    head += ZEROS[: -len(head) & 7]
    if deltas is not None:
        flags |= PICKED
        head += array("I", deltas).tobytes()
        head += ZEROS[: -len(head) & 7]
    return pack_head(Kind.DELIVER, subscription, len(head) + body_bytes, flags) + head


def read_deliver(frame: Frame) -> Deliver:
    """What a DELIVER frame brings."""
    payload = frame.payload
    if len(payload) < DELIVER.size:
        raise Malformed("a DELIVER frame is too short")
    lease, first, count, crc, attempt, root_bytes, zero = DELIVER.unpack_from(payload)
    if zero:
        raise Malformed(f"a DELIVER frame has {zero} where 0 has to be")
    at = DELIVER.size + root_bytes
    try:
        root = payload[DELIVER.size : at].decode()
    except UnicodeDecodeError:
        raise Malformed("the root in a DELIVER frame is not UTF-8") from None
    at = (at + 7) & ~7
    deltas: Sequence[int] | None = None
    if frame.flags & PICKED:
        end = at + 4 * count
        if end > len(payload):
            raise Malformed("the offsets in a DELIVER frame end outside of it")
        deltas = array("I", payload[at:end])
        at = (end + 7) & ~7
    if at > len(payload):
        raise Malformed("the body of a DELIVER frame starts outside of it")
    is_retained = bool(frame.flags & RETAINED)
    return Deliver(frame.id, lease, root, first, count, attempt, is_retained, deltas, crc, payload[at:])


def pack_ranges(kind: int, id: int, subscription: int, ranges: Sequence[Range]) -> bytes:
    """An ACK, TAKEN or RECALL frame."""
    return pack(kind, id, RANGES.pack(subscription, len(ranges)) + b"".join([RANGE.pack(*one) for one in ranges]))


def read_ranges(frame: Frame, ranges_max: int = RANGES_MAX) -> tuple[int, list[Range]]:
    """The subscription and the ranges of an ACK, TAKEN or RECALL frame.

    A range may span any number of offsets, and ranges may overlap: look up what is in flight, never count through.
    """
    payload = frame.payload
    if len(payload) < RANGES.size:
        raise Malformed("a frame of ranges is too short")
    subscription, count = RANGES.unpack_from(payload)
    if len(payload) != RANGES.size + count * RANGE.size:
        raise Malformed(f"a frame of {count} ranges has {len(payload)} bytes")
    if count > ranges_max:
        raise TooLarge(f"a frame of {count} ranges is over the limit of {ranges_max}; send several")
    ranges = list(RANGE.iter_unpack(memoryview(payload)[RANGES.size :]))
    if any(first > last for _, first, last in ranges):
        raise Malformed("a range ends before it begins")
    return subscription, ranges


def pack_credit(subscription: int, messages: int, bytes: int) -> bytes:
    """A CREDIT frame."""
    return pack(Kind.CREDIT, subscription, CREDIT.pack(messages, bytes))


def read_credit(frame: Frame) -> tuple[int, int]:
    """Messages and bytes that the client takes more."""
    if len(frame.payload) != CREDIT.size:
        raise Malformed(f"a CREDIT frame has {CREDIT.size} bytes, not {len(frame.payload)}")
    messages, size = CREDIT.unpack(frame.payload)
    return messages, size
