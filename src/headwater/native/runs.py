"""Publishes of one message each that came together, to be one batch.

    0        4     8                                    tail_at       … + 8  … + 16  … + 20   … + 24
    ├────────┼─────┼───────────────┼───────────────────┼─────────────┼──────┼───────┼────────┼─────────┤
    │ 1      │ crc │ names, 0, 0 … │ 1, 1, 0 … topic … │ index 0 …   │ time │ 0     │ length │ payload │
    └────────┴─────┴───────────────┴───────────────────┴─────────────┴──────┴───────┴────────┴─────────┘
                   ╰─────────────── head ──────────────╯
                                   ╰──────────────────────── body ─────────────────────────────────────╯

Those of devices that report again and again have few heads, each of which is read once. Promises: what is taken is
whole and right, each message against its own checksum; what is not is left to be taken frame by frame, where it is said
what is wrong; the work is linear in the frames.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice, takewhile
from operator import eq
from typing import NamedTuple, TypeVar

from headwater.errors import Malformed
from headwater.store.batch import checksums
from headwater.store.body import NAME_AT, ONE_TAIL, place_of_one
from headwater.wire import batches
from headwater.wire.frame import HEADER_BYTES, Frame
from headwater.wire.stretch import ID_AT, STRETCH_MIN, Stretch

RUN_MIN = 2
"""Fewer publishes are not worth a batch of their own."""
CRC_AT, HEAD_AT = 4, 8
CACHED_MAX = 10_000
CACHED_BYTES_MAX = 300
"""Longer ones are not remembered."""

T = TypeVar("T")


class Head(NamedTuple):
    """What the beginning of a publish says about it."""

    root: str
    topic: str
    body_at: int
    name_at: int
    """Where the topic's length is, and its bytes behind it."""
    tail_at: int


class Run(NamedTuple):
    """Messages of frames that follow one another, to one root."""

    root: str
    topics: Sequence[str]
    payloads: Sequence[bytes]
    times: Sequence[int]
    ids: Sequence[int]

    def part(self, some: slice) -> Run:
        """Some of them."""
        return Run(self.root, self.topics[some], self.payloads[some], self.times[some], self.ids[some])


_heads: dict[bytes, Head] = {}
"""Heads that were found to be good;"""
_topics: dict[bytes, str] = {}
"""and topics, by how they stand in one, their length before them."""


def read_stretch(stretch: Stretch) -> Run | None:
    """The publishes from a stretch's first one on that are laid out as it is, and right; None if they are few."""
    head = _head(stretch.frames(0, 1)[0])
    if head is None:
        return None
    tail_at = HEADER_BYTES + head.tail_at
    time_at, zero_at, length_at, payload_at = tail_at + 8, tail_at + 16, tail_at + 20, tail_at + 24
    fixed = (*range(HEADER_BYTES + HEAD_AT, HEADER_BYTES + head.name_at), *range(tail_at, time_at))
    count = stretch.alike((*fixed, *range(zero_at, length_at)), stretch.count)
    topics = _read_topics(stretch, head, count)
    bodies = stretch.values(HEADER_BYTES + head.body_at, stretch.frame_bytes - HEADER_BYTES - head.body_at, len(topics))
    count = _count_whole(bodies, array("I", stretch.column(HEADER_BYTES + CRC_AT, 4))[: len(bodies)])
    payloads = _read_payloads(stretch, length_at, payload_at, count)
    count = len(payloads)
    if count < STRETCH_MIN:
        return None
    times, ids = array("q", stretch.column(time_at, 8)), array("I", stretch.column(ID_AT, 4))
    return Run(head.root, topics[:count], payloads, times[:count], ids[:count])


def _read_topics(stretch: Stretch, first: Head, count: int) -> list[str]:
    """The topic of each, up to the first whose head is no good."""
    at, end = HEADER_BYTES + first.name_at, HEADER_BYTES + first.tail_at
    if stretch.alike(range(at, end), count) == count:
        return [first.topic] * count
    names = stretch.values(at, end - at, count)
    topics = [*filter(None, map(_topics.get, names))]
    if len(topics) == count:
        return topics
    topics.clear()
    for place, name in enumerate(names):
        topic = _topics.get(name)
        if topic is None:
            head = _head(stretch.frames(place, place + 1)[0])
            if head is None or head.tail_at != first.tail_at:
                break
            topic = head.topic
            _remember(_topics, name, topic)
        topics.append(topic)
    return topics


def _read_payloads(stretch: Stretch, length_at: int, at: int, count: int) -> list[bytes]:
    """The payload of each, up to the first whose length is not one of such frames."""
    if count and stretch.alike(range(length_at, at), count) == count:
        return stretch.values(at, int.from_bytes(stretch.data[length_at:at], "little"), count)
    most = stretch.frame_bytes - at
    fitting = range(max(0, most - 7), most + 1)
    lengths = takewhile(fitting.__contains__, array("i", stretch.column(length_at, 4)))
    return [padded[:length] for padded, length in zip(stretch.values(at, most, count), lengths, strict=False)]


def read_run(frames: Sequence[Frame], at: int) -> Run | None:
    """The publishes from here on that have one message each, to one root, read one by one; None if it is one alone."""
    first = frames[at]
    head = _head(first)
    if head is None:
        return None
    root, flags, tail_at = head.root, first.flags, head.tail_at
    run = Run(root, topics := [], payloads := [], times := [], ids := [])
    bodies: list[bytes] = []
    sums: list[bytes] = []
    for frame in islice(frames, at, None):
        payload = frame.payload
        if frame.flags != flags or not batches.is_single(frame):
            break
        head = _heads.get(payload[HEAD_AT:tail_at]) or _head(frame)
        if head is None or head.root != root:
            break
        tail_at = head.tail_at
        start = tail_at + ONE_TAIL.size
        if start > len(payload):
            break
        index, _, time_us, zero, length = ONE_TAIL.unpack_from(payload, tail_at)
        if index or zero or length < 0 or (start + length + 7) & ~7 != len(payload):
            break
        topics.append(head.topic)
        payloads.append(payload[start : start + length])
        times.append(time_us)
        ids.append(frame.id)
        bodies.append(payload[head.body_at :])
        sums.append(payload[CRC_AT:HEAD_AT])
    count = _count_whole(bodies, array("I", b"".join(sums)))
    return run.part(slice(count)) if count >= RUN_MIN else None


def _count_whole(bodies: Sequence[bytes], said: array[int]) -> int:
    """How many bodies there are before the first that has not the checksum that was said."""
    sums = checksums(bodies)
    return len(sums) if sums == said else list(map(eq, sums, said)).index(False)


def _head(frame: Frame) -> Head | None:
    """How a publish begins that has one message without options, and no producer; None if it is another, or wrong."""
    payload = frame.payload
    try:
        publish = batches.read_publish(frame)
    except Malformed:
        return None
    place = place_of_one(publish.body)
    if place is None or publish.producer is not None:
        return None
    body_at = len(payload) - len(publish.body)
    head = Head(publish.root, place.topic, body_at, body_at + NAME_AT, body_at + place.tail_at)
    _remember(_heads, payload[HEAD_AT : head.tail_at], head)
    return head


def _remember(cache: dict[bytes, T], key: bytes, value: T) -> None:
    if len(key) <= CACHED_BYTES_MAX:
        if len(cache) >= CACHED_MAX:
            cache.clear()
        cache[key] = value
