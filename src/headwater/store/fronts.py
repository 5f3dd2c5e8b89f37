"""The fronts of batches: which topic each message has, read without what the messages carry.

So it is told how many messages of a stretch match a filter for a few kilobytes a batch, whatever its size. (Of one that
is compressed, the first of its blocks are read.) A front alone has no checksum. What cannot be read is counted as if it
all matched: a count says how much to read at most, and whoever reads then names what is wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.store.batch import HEADER_BYTES_MAX, ZSTD, BadBatch, Header, read_header
from headwater.store.body import front_bytes, front_of
from headwater.store.compression import decompress_start
from headwater.store.files import File
from headwater.store.log import Counted, Wanted
from headwater.store.segment import Segment

if TYPE_CHECKING:
    from headwater.store.stream import DiskStream

READ_BYTES = 4096
"""Read of a batch at once, and what a small one costs."""
NAMES_MAX = 64
"""Topic dictionaries of which it is remembered, for one count, what matches in them."""

Front = tuple[tuple[str, ...], Sequence[int]]
"""Topics, and which of them each message has."""


def counted(stream: DiskStream, wanted: Wanted, first: int, last: int, messages_max: int, bytes_max: int) -> Counted:
    """Count from an offset up to another, or until there are so many, or so much was read: at least one batch."""
    if messages_max < 1 or first > last:
        return Counted(first, 0)
    messages = cost = 0
    matching = _Matching(wanted)
    for begin, upto, front, size in _fronts(stream, first, last):
        low, high, cost = max(begin, first), min(upto, last), cost + size
        left = messages_max - messages
        more, nth = matching.of(front, low - begin, high - begin + 1, left)
        if more >= left:
            return Counted(begin + nth + 1, messages_max, cost)
        messages += more
        if cost >= bytes_max:
            return Counted(high + 1, messages, cost)
    return Counted(last + 1, messages, cost)


class _Matching:
    """What matches in batches, the same few topics of which tend to come together."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._known: dict[tuple[str, ...], list[bool]] = {}

    def of(self, front: Front | None, begin: int, end: int, count: int) -> tuple[int, int]:
        """How many messages match of those from one place to before another, and the place of one that has so many
        with it, if there are as many."""
        if front is None:
            return end - begin, begin + count - 1
        names, index = front
        flags = self._flags(names)
        if False not in flags:
            return end - begin, begin + count - 1
        if True not in flags:
            return 0, 0
        places = [place for place, number in enumerate(index[begin:end], begin) if flags[number]]
        return len(places), places[count - 1] if len(places) >= count else 0

    def _flags(self, names: tuple[str, ...]) -> list[bool]:
        known = self._known.get(names)
        if known is None:
            if len(self._known) == NAMES_MAX:
                self._known.clear()
            known = self._known[names] = [self._wanted(name) for name in names]
        return known


def _fronts(stream: DiskStream, first: int, last: int) -> Iterator[tuple[int, int, Front | None, int]]:
    """First and last offset of each batch of a stretch, its front if it can be read, and what that cost."""
    segments = tuple(stream.segments)
    last = min(last, stream.durable)
    at = max(0, bisect_right([segment.base for segment in segments], first) - 1)
    for segment, following in zip_longest(segments[at:], segments[at + 1 :]):
        upto = last if following is None else min(last, following.base - 1)
        done = max(first, segment.base) - 1
        try:
            for found in _fronts_in(stream, segment, done + 1, upto):
                yield found
                done = found[1]
        except (OSError, IndexError, HeadwaterError):  # it went meanwhile, or cannot be read
            if done < upto:
                yield done + 1, upto, None, READ_BYTES
        if upto == last:
            return


def _fronts_in(
    stream: DiskStream, segment: Segment, first: int, last: int
) -> Iterator[tuple[int, int, Front | None, int]]:
    """The same within a segment."""
    index = stream.indexes.of(segment)
    file = stream.pool.get(segment.log_path)
    for entry in range(max(0, index.locate(first)), len(index)):
        begin = index.offsets[entry]
        if begin > last:
            return
        header, front, size = _front_at(stream, file, index.positions[entry], begin)
        if header is not None:
            upto = header.last_offset
        else:
            upto = min(last, index.offsets[entry + 1] - 1) if entry + 1 < len(index) else last
        if upto >= first:
            yield begin, upto, front, size


def _front_at(stream: DiskStream, file: File, position: int, begin: int) -> tuple[Header | None, Front | None, int]:
    """Header and front of the batch that should be at a position, as far as they are right, and what that cost."""
    data = file.pread(READ_BYTES, position)
    try:
        header = read_header(stream.seed, data)
        if header is None:
            data = file.pread(HEADER_BYTES_MAX, position)
            header = read_header(stream.seed, data)
    except BadBatch:
        return None, None, len(data)
    if header is None or header.root != stream.root or header.first_offset != begin:
        return None, None, len(data)
    try:
        front, size = _front(file, header, position + header.header_bytes, data[header.header_bytes :])
    except ValueError:
        return header, None, READ_BYTES
    names, index = front
    is_right = len(index) == header.count and 0 <= min(index) <= max(index) < len(names)
    return header, front if is_right else None, size


def _front(file: File, header: Header, position: int, start: bytes) -> tuple[Front, int]:
    """The front of a body at a position, of which the beginning is at hand; ValueError if there is none."""
    is_small = bool(header.flags & ZSTD)
    stored, length = start[: header.body_bytes], READ_BYTES
    while True:
        data = decompress_start(stored, length) if is_small else stored
        needed = front_bytes(data)
        if len(data) >= needed:
            return front_of(data), max(READ_BYTES, len(stored), len(data))
        if is_small and len(data) == length:
            length = needed
            continue
        size = max(READ_BYTES, 4 * len(stored) if is_small else needed)
        more = file.pread(min(size, header.body_bytes), position)
        if len(more) <= len(stored):
            raise ValueError("a column ends outside the body")
        stored = more
