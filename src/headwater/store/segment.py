"""A segment: a file of batches whose offsets follow each other, and the index that says where each one is.

The index has one entry a batch: first offset u64, position u64, append time i64. It is a hint: what cannot be right is
left out when it is read, so that no position leads beyond the log; and it is checked at use: `locate` answers a
position, and whoever reads there must find the batch that was asked for, else makes the index anew from the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import le, lt

from headwater.store.batch import ALIGN, HEADER_BYTES_MAX, MAGIC, BadBatch, Header, Seed, open_body, read_header
from headwater.store.files import File, Files

LOG = ".log"
INDEX = ".idx"
NAME_DIGITS = 20
ENTRY_BYTES = 24
ALIGNED = bytes(range(0, 256, ALIGN))
"""What the lowest byte of a position can be."""
UNBOUNDED = 1 << 64
"""More than any offset."""
SCAN_BYTES = 1 << 20


class Index:
    """The places of a segment's batches."""

    __slots__ = ("is_fresh", "offsets", "positions", "stored", "times")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self.stored = 0
        """How many entries are in the file."""
        self.is_fresh = False
        """Whether it was made from the whole log, by this process."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, first_offset: int, position: int, time_us: int) -> None:
        self.offsets.append(first_offset)
        self.positions.append(position)
        self.times.append(time_us)

    def extend(self, first_offsets: Sequence[int], positions: Sequence[int], time_us: int) -> None:
        """Batches that were appended together."""
        self.offsets.extend(first_offsets)
        self.positions.extend(positions)
        self.times.extend(array("q", (time_us,)) * len(positions))

    def cut(self, position: int) -> int | None:
        """Forget batches that start at or after a position; answers the first offset of them, if there are any."""
        keep = bisect_left(self.positions, position)
        first = self.offsets[keep] if keep < len(self) else None
        del self.offsets[keep:], self.positions[keep:], self.times[keep:]
        self.stored = min(self.stored, keep)
        return first

    def locate(self, offset: int) -> int:
        """Number of the entry whose batch may hold an offset; -1 if it lies before all."""
        return bisect_right(self.offsets, offset) - 1

    def first_at(self, time_us: int) -> int | None:
        """The first offset of the first batch appended at or after a time."""
        place = bisect_left(self.times, time_us)
        return self.offsets[place] if place < len(self.offsets) else None

    def pack(self) -> bytes:
        """The entries that are not in the file yet."""
        fresh = array("Q", bytes(ENTRY_BYTES * (len(self) - self.stored)))
        fresh[0::3] = self.offsets[self.stored :]
        fresh[1::3] = self.positions[self.stored :]
        fresh[2::3] = array("Q", self.times[self.stored :].tobytes())
        return fresh.tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> Index:
        """Entries as they stand in a file."""
        index = cls()
        entries = array("Q", data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
        index.offsets = entries[0::3]
        index.positions = entries[1::3]
        index.times = array("q", entries[2::3].tobytes())
        index.stored = len(index)
        return index

    def keep_possible(self, base: int, below: int, end: int) -> bool:
        """Leave out the first entry that cannot be right, with all after it; answers whether all can be.

        Offsets are between the segment's own and the next one's, positions are multiples of 8 within the log, both
        ascend, and times do not go back.
        """
        count = self._ascending()
        if count and self.offsets[0] < base:
            count = 0
        count = min(bisect_left(self.offsets, below, 0, count), bisect_left(self.positions, end, 0, count))
        if count == len(self):
            return True
        del self.offsets[count:], self.positions[count:], self.times[count:]
        self.stored = 0  # so that the file is written anew, as far as it is right too
        return False

    def _ascending(self) -> int:
        """How many entries there are before one that cannot come after the last."""
        offsets, positions, times = self.offsets, self.positions, self.times
        if (
            not positions.tobytes()[::8].translate(None, ALIGNED)
            and all(map(lt, offsets, offsets[1:]))
            and all(map(lt, positions, positions[1:]))
            and all(map(le, times, times[1:]))
        ):
            return len(self)
        for place in range(len(self)):
            if positions[place] % ALIGN:
                return place
            if place and (
                offsets[place] <= offsets[place - 1]
                or positions[place] <= positions[place - 1]
                or times[place] < times[place - 1]
            ):
                return place
        return len(self)

    def has_all_of(self, other: Index, upto: int = UNBOUNDED) -> bool:
        """Whether every entry of another index, up to an offset, is in this one; it may have more, of batches that went
        bad since."""
        place = 0
        for offset, position, time_us in zip(other.offsets, other.positions, other.times, strict=True):
            if offset > upto:
                return True
            place = bisect_left(self.offsets, offset, place)
            if place == len(self) or self.offsets[place] != offset:
                return False
            if self.positions[place] != position or self.times[place] != time_us:
                return False
        return True


class Segment:
    """One file of a stream."""

    __slots__ = ("allocated", "base", "cached_from", "end", "index", "index_path", "log_path", "mended")

    def __init__(self, folder: str, base: int) -> None:
        self.base = base
        """Offset that the first batch has, and that names the file."""
        self.log_path = f"{folder}/{base:0{NAME_DIGITS}d}{LOG}"
        self.index_path = f"{folder}/{base:0{NAME_DIGITS}d}{INDEX}"
        self.end = 0
        """Where the next batch goes."""
        self.allocated = 0
        """How far the file reaches, zeros ahead included."""
        self.cached_from = 0
        """Up to where memory was let go of."""
        self.index: Index | None = None
        self.mended: tuple[Index, int] | None = None
        """While it is written to: an index that a reader made anew, and up to which position; the writer takes it."""


def bases(files: Files, folder: str) -> list[int]:
    """First offsets of the segments in a folder, ascending."""
    names = [name.removesuffix(LOG) for name in files.list(folder) if name.endswith(LOG)]
    return [int(name) for name in names if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()]


def load_index(files: Files, segment: Segment, below: int) -> tuple[Index, bool]:
    """The index as it stands in the file, empty if there is none, without what cannot be right; and whether there was
    nothing of that. `below` is the first offset that a later segment has."""
    try:
        index = Index.unpack(files.read(segment.index_path))
    except OSError:  # it is missing, or the disk cannot read it: then it is made from the log
        return Index(), True
    return index, index.keep_possible(segment.base, below, segment.end)


def store_index(files: Files, segment: Segment, sync: bool) -> None:
    """Bring the file up to what is known."""
    index = segment.index
    if index is None or index.stored == len(index):
        return
    file = files.open(segment.index_path, create=True)
    try:
        file.pwritev([index.pack()], index.stored * ENTRY_BYTES)
        file.truncate(len(index) * ENTRY_BYTES)
        if sync:
            file.datasync()
    finally:
        file.close()
    index.stored = len(index)


def header_at(seed: Seed, file: File, position: int) -> Header | None:
    """The header of the batch at a position; None if there is no whole and right one."""
    data = file.pread(4096, position)
    try:
        header = read_header(seed, data)
        if header is None and len(data) == 4096:
            header = read_header(seed, file.pread(HEADER_BYTES_MAX, position))
    except BadBatch:
        return None
    return header


def walk(seed: Seed, file: File, position: int, bytes_at_once: int = SCAN_BYTES) -> Iterator[tuple[int, Header, bytes]]:
    """Whole headers and their stored bodies one after another, unchecked bodies, until something is not one."""
    data = b""
    start = position
    while True:
        at = position - start
        try:
            header = read_header(seed, data, at)
        except BadBatch:
            return
        if header is None or len(data) - at < header.header_bytes + header.body_bytes:
            wanted = max(bytes_at_once, header.header_bytes + header.body_bytes if header else HEADER_BYTES_MAX)
            more = file.pread(wanted, position)
            if len(more) <= len(data) - at:
                return
            data, start = more, position
            continue
        body = at + header.header_bytes
        yield position, header, data[body : body + header.body_bytes]
        position += header.bytes


def find_next(seed: Seed, file: File, position: int, root: str | None) -> int | None:
    """Where the next whole header of a stream stands, at or after a position."""
    position = (position + ALIGN - 1) // ALIGN * ALIGN
    while True:
        data = file.pread(SCAN_BYTES + HEADER_BYTES_MAX, position)
        at = data.find(MAGIC)
        while 0 <= at < SCAN_BYTES:
            if at % ALIGN == 0:
                try:
                    header = read_header(seed, data, at)
                except BadBatch:
                    header = None
                if header is not None and root in (None, header.root):
                    return position + at
            at = data.find(MAGIC, at + 1)
        if len(data) <= SCAN_BYTES:
            return None
        position += SCAN_BYTES


def whole_batches(seed: Seed, file: File, position: int, root: str | None) -> Iterator[tuple[int, Header, bytes]]:
    """Every batch from a position on whose checksums are right, with its body as stored; bad bytes are passed over."""
    following: int | None = position
    while following is not None:
        after = following
        for place, header, stored in walk(seed, file, following):
            after = place + header.bytes
            if root not in (None, header.root):
                continue
            try:
                open_body(header, stored)
            except BadBatch:
                # Its header is right, so its length is: what stands within it is a payload, whatever it looks like.
                continue
            yield place, header, stored
        following = find_next(seed, file, max(after, following + ALIGN) if after == following else after, root)
