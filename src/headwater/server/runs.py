"""Publishes of one message each that came together, to be one batch.

Those of a device that reports again and again are alike but for checksum, time and payload: how they are laid out is
found out about the first, and compared for the others. Promises: what is taken is whole and right, each message against
its own checksum; what is not is left to be taken frame by frame, where it is said what is wrong; the work is linear in
the frames that are taken.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from headwater.errors import Malformed
from headwater.outgoing import Desk
from headwater.store.batch import checksum
from headwater.store.body import place_of_one
from headwater.store.early import Early
from headwater.wire import batches
from headwater.wire.frame import Frame

RUN_MIN = 2
"""Fewer publishes are not worth a batch of their own,"""
ALIKE_MIN = 8
"""and fewer that are alike not worth the trouble."""
CRC_AT, CRC_END = 4, 8
TIME_BYTES = 8
LAYOUTS_MAX = 256

_layouts: dict[tuple[int, int, int, int], struct.Struct] = {}
"""Where time and payload are, by their places and the length of the whole."""


class Run(NamedTuple):
    """Messages of frames that follow one another, to one root."""

    root: str
    topics: Sequence[str]
    payloads: Sequence[bytes]
    times: Sequence[int]


def read_alike(frames: Sequence[Frame], at: int) -> Run | None:
    """The frames from here on that are alike, and right; None if they are few."""
    first = frames[at]
    try:
        publish = batches.read_publish(first)
        place = place_of_one(publish.body)
    except Malformed:
        return None
    if place is None or publish.producer is not None:
        return None
    size = len(first.payload)
    begin = size - len(publish.body)
    time_at, data_at = begin + place.time_at, begin + place.payload_at
    before, after = first.payload[CRC_END:time_at], first.payload[time_at + TIME_BYTES : data_at]
    kind, flags = first.kind, first.flags
    found: list[bytes] = []
    for frame in islice(frames, at, None):
        payload = frame.payload
        if (
            len(payload) != size
            or frame.kind != kind
            or frame.flags != flags
            or payload[CRC_END:time_at] != before
            or payload[time_at + TIME_BYTES : data_at] != after
            or not payload.startswith(batches.SINGLE)
            or checksum(payload[begin:]).to_bytes(4, "little") != payload[CRC_AT:CRC_END]
        ):
            break
        found.append(payload)
    if len(found) < ALIKE_MIN:
        return None
    layout = _layout(time_at, data_at, place.payload_bytes, size)
    times, payloads = zip(*layout.iter_unpack(b"".join(found)), strict=True)
    return Run(publish.root, [place.topic] * len(found), payloads, times)


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
    return Run(run[0].root, [one.topic for one in run], [one.payload for one in run], [one.time_us for one in run])


def _early(desk: Desk, frame: Frame) -> Early | None:
    try:
        publish = batches.read_publish(frame)
    except Malformed:
        return None
    return desk.early_body(publish.root, publish.crc, publish.body) if publish.producer is None else None


def _layout(time_at: int, data_at: int, payload_bytes: int, size: int) -> struct.Struct:
    key = (time_at, data_at, payload_bytes, size)
    layout = _layouts.get(key)
    if layout is None:
        rest = size - data_at - payload_bytes
        layout = struct.Struct(f"<{time_at}xq{data_at - time_at - TIME_BYTES}x{payload_bytes}s{rest}x")
        if len(_layouts) >= LAYOUTS_MAX:
            _layouts.clear()
        _layouts[key] = layout
    return layout
