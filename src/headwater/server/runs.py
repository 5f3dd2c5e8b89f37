"""Publishes of one message each that came together, to be one batch.

Those of devices that report again and again are alike but for checksum, topic, time and payload: how they are laid out
is found out about the first, and compared for the others. Promises: what is taken is whole and right, each message
against its own checksum; what is not is left to be taken frame by frame, where it is said what is wrong; the work is
linear in the frames.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice, takewhile
from operator import ne
from typing import NamedTuple

from headwater.errors import Malformed
from headwater.outgoing import Desk
from headwater.store.batch import checksums
from headwater.store.body import NAME_AT, place_of_one, topic_of_one
from headwater.store.early import Early
from headwater.wire import batches
from headwater.wire.frame import HEADER_BYTES, Frame
from headwater.wire.stretch import ID_AT, STRETCH_MIN, Stretch

RUN_MIN = 2
"""Fewer publishes are not worth a batch of their own."""
CRC_AT, CRC_END = HEADER_BYTES + 4, HEADER_BYTES + 8
TOPICS_CACHED_MAX = 10_000
TOPIC_CACHED_BYTES_MAX = 200

_topics: dict[bytes, str] = {}
"""By how a topic stands in a body: what it is, as the same devices publish to the same topics again and again."""


class Run(NamedTuple):
    """Messages of frames that follow one another, to one root."""

    root: str
    topics: Sequence[str]
    payloads: Sequence[bytes]
    times: Sequence[int]
    ids: Sequence[int]


def read_stretch(stretch: Stretch) -> Run | None:
    """The publishes from a stretch's first one on that are alike, and right; None if they are few.

    0        8    12  16    20                                                     frame_bytes
    ├────────┼────┼───┼─────┼─────────────────┼───────┼───────┼──────┼───┼────────┼─────────┤
    │ header │ id │ 1 │ crc │ names, 1, 1, 0… │ topic │ index │ time │ 0 │ length │ payload │
    └────────┴────┴───┴─────┴─────────────────┴───────┴───────┴──────┴───┴────────┴─────────┘
                            ╰──── alike ──────╯       ╰ alike ╯      ╰─ alike
    """
    try:
        publish = batches.read_publish(stretch.frames(0, 1)[0])
    except Malformed:
        return None
    place = place_of_one(publish.body)
    if place is None or publish.producer is not None:
        return None
    body_at = stretch.frame_bytes - len(publish.body)
    name_at, index_at = body_at + NAME_AT, body_at + place.index_at
    time_at, payload_at = body_at + place.time_at, body_at + place.payload_at
    fixed = (*range(CRC_END, name_at), *range(index_at, time_at), *range(time_at + 8, payload_at - 4))
    count = _count_whole(stretch, body_at, stretch.alike(fixed, stretch.count))
    topics = _read_topics(stretch, name_at, index_at, count)
    payloads = _read_payloads(stretch, payload_at, len(topics))
    count = len(payloads)
    if count < STRETCH_MIN:
        return None
    times, ids = array("q", stretch.column(time_at, 8)), array("I", stretch.column(ID_AT, 4))
    return Run(publish.root, topics[:count], payloads, times[:count], ids[:count])


def _count_whole(stretch: Stretch, body_at: int, count: int) -> int:
    """How many, of the first so many, have the checksums that they say."""
    sums = checksums(stretch.values(body_at, stretch.frame_bytes - body_at, count))
    said = array("I", stretch.column(CRC_AT, 4))[:count]
    return count if sums == said else list(map(ne, sums, said)).index(True)


def _read_topics(stretch: Stretch, at: int, end: int, count: int) -> list[str]:
    """The topic of each, up to the first that is none."""
    if stretch.alike(range(at, end), count) == count:
        return [_topic(stretch.data[at:end])] * count
    return list(takewhile(bool, map(_topic, stretch.values(at, end - at, count))))


def _topic(raw: bytes) -> str:
    """The topic that stands so in a body, remembered; empty if it is none."""
    topic = _topics.get(raw)
    if topic is None:
        topic = topic_of_one(raw)
        if len(raw) <= TOPIC_CACHED_BYTES_MAX:
            if len(_topics) >= TOPICS_CACHED_MAX:
                _topics.clear()
            _topics[raw] = topic
    return topic


def _read_payloads(stretch: Stretch, at: int, count: int) -> list[bytes]:
    """The payload of each, up to the first whose length is not one of such frames."""
    length_at, most = at - 4, stretch.frame_bytes - at
    if count and stretch.alike(range(length_at, at), count) == count:
        return stretch.values(at, int.from_bytes(stretch.data[length_at:at], "little"), count)
    fitting = range(max(0, most - 7), most + 1)
    lengths = takewhile(fitting.__contains__, array("i", stretch.column(length_at, 4)))
    return [padded[:length] for padded, length in zip(stretch.values(at, most, count), lengths, strict=False)]


def read_run(desk: Desk, frames: Sequence[Frame], at: int) -> Run | None:
    """The frames from here on that have one message each, to one root, read one by one; None if it is one alone."""
    run: list[Early] = []
    flags = frames[at].flags
    for frame in islice(frames, at, None):
        early = _early(desk, frame) if frame.flags == flags and batches.is_single(frame) else None
        if early is None or (run and early.root != run[0].root):
            break
        run.append(early)
    if len(run) < RUN_MIN:
        return None
    return Run(
        run[0].root,
        [one.topic for one in run],
        [one.payload for one in run],
        [one.time_us for one in run],
        [frame.id for frame in frames[at : at + len(run)]],
    )


def _early(desk: Desk, frame: Frame) -> Early | None:
    try:
        publish = batches.read_publish(frame)
    except Malformed:
        return None
    return desk.early_body(publish.root, publish.crc, publish.body) if publish.producer is None else None
