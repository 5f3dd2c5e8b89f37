"""A stretch: PUBLISH frames of one message each that follow one another and are equally long, found before they are
split.

    ├────────┼─────────┼────┼───────┼─────┼──────────────┄   ├────────┼─────────┼────┼───────┼─────┼──────────────┄
    │ length │ PUBLISH │ id │ 1     │ crc │ …                │ length │ PUBLISH │ id │ 1     │ crc │ …
    ├────────┼─────────┼────┼───────┼─────┼──────────────┄   ├────────┼─────────┼────┼───────┼─────┼──────────────┄
    ╰───────────── frame_bytes ───────────────────────────╯

What stands at one place in each of them is a column, and a column is taken, or compared, by one call for all of them.
Promises: a stretch says what its frames say, each of which is whole; the work is linear in the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from headwater.memo import Memo
from headwater.wire.batches import SINGLE
from headwater.wire.frame import HEADER, HEADER_BYTES, Frame

STRETCH_MIN = 8
"""Fewer frames are not worth the trouble."""
GROWTH = 8
"""How many more are compared after each time that all were alike."""
ID_AT = 8
HEAD = (*range(ID_AT), *range(HEADER_BYTES, HEADER_BYTES + 4))
"""Where frames of a stretch are alike: all of the header but the id, and how many messages there are."""
AT_ONCE = 64
"""How many values one layout takes out of as many frames."""
LAYOUTS_MAX = 256

_layouts: Memo[tuple[int, int, int], tuple[struct.Struct, struct.Struct]] = Memo(LAYOUTS_MAX)
"""By place and width of a column, and the length of a frame: what takes one value, and what takes many."""


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Frames that are alike, undecoded."""

    kind: int
    flags: int
    count: int
    frame_bytes: int
    data: bytes

    def frames(self, first: int, end: int) -> list[Frame]:
        """These of the frames."""
        data, size = self.data, self.frame_bytes
        return [
            Frame(self.kind, self.flags, HEADER.unpack_from(data, at)[-1], data[at + HEADER_BYTES : at + size])
            for at in range(first * size, end * size, size)
        ]

    def column(self, at: int, width: int) -> bytes:
        """What stands at a place of each, all joined; for numbers, which have few bytes."""
        joined = bytearray(width * self.count)
        for place in range(width):
            joined[place::width] = self.data[at + place :: self.frame_bytes]
        return bytes(joined)

    def values(self, at: int, width: int, count: int) -> list[bytes]:
        """What stands at a place of each of the first so many."""
        one, many = _layout(at, width, self.frame_bytes)
        found: list[bytes] = []
        begin, end = 0, count * self.frame_bytes
        while end - begin >= many.size:
            found += many.unpack_from(self.data, begin)
            begin += many.size
        found += [value for (value,) in one.iter_unpack(memoryview(self.data)[begin:end])]
        return found

    def alike(self, places: Iterable[int], count: int) -> int:
        """How many, of the first so many, have the same bytes at these places."""
        return alike(self.data, 0, self.frame_bytes, count, places)


def alike(data: bytes, at: int, size: int, count: int, places: Iterable[int]) -> int:
    """How many pieces from here on, at most so many, have the bytes that the first has at these places."""
    for place in places:
        column = data[at + place : at + count * size : size]
        byte = column[:1]
        if column != byte * count:
            count -= len(column.lstrip(byte))
    return count


def measure(data: bytes, at: int, size: int) -> int:
    """How many frames from here on, where one of this size begins, are a stretch; fewer than `STRETCH_MIN` are none."""
    if not data.startswith(SINGLE, at + HEADER_BYTES) or not data.startswith(data[at : at + ID_AT], at + size):
        return 1
    most, count, step = (len(data) - at) // size, 1, STRETCH_MIN
    while count < most:
        step = min(step, most - count)
        more = alike(data, at + (count - 1) * size, size, step + 1, HEAD) - 1
        count += more
        if more < step:
            break
        step *= GROWTH
    return count


def _layout(at: int, width: int, size: int) -> tuple[struct.Struct, struct.Struct]:
    key = (at, width, size)
    layout = _layouts.known.get(key)
    if layout is None:
        one = f"{at}x{width}s{size - at - width}x"
        layout = _layouts.keep(key, (struct.Struct(f"<{one}"), struct.Struct(f"<{one * AT_ONCE}")))
    return layout
