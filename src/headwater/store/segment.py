"""A segment: a file of batches whose offsets follow each other, and the index that says where each one is.

The index has one entry a batch: first offset u64, position u64, append time i64. It is a hint that is checked at use:
`locate` answers a position, and whoever reads there must find the batch that was asked for, else calls
`Index.rebuild`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from headwater import threads
from headwater.errors import Closed
from headwater.store.batch import ALIGN, HEADER_BYTES_MAX, MAGIC, BadBatch, Header, Seed, open_body, read_header
from headwater.store.files import File, Files

LOG = ".log"
INDEX = ".idx"
ENTRY_BYTES = 24
SCAN_BYTES = 1 << 20


class FilePool:
    """Files kept open, the one unused for longest closed first; for any thread."""

    def __init__(self, files: Files, open_files_max: int, write: bool) -> None:
        self.files = files
        self._max = max(1, open_files_max)
        self._write = write
        self._open: OrderedDict[str, File] = OrderedDict()
        self._dirty: set[str] = set()
        self._lock = threads.Lock()
        self._closed = False

    def get(self, path: str) -> File:
        """The open file of a path."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
                return file
            if self._closed:
                raise Closed("the bus is closed; open it again to read on")
            file = self._open[path] = self.files.open(path, write=self._write)
            if len(self._open) > self._max:
                self._let_go_of_one()
            return file

    def write(self, path: str, buffers: Sequence[bytes], position: int) -> None:
        """Write to a file, and remember that it is not synced."""
        (self._open.get(path) or self.get(path)).pwritev(buffers, position)
        self._dirty.add(path)

    def written(self, path: str) -> None:
        """Remember that a file has writes that are not synced."""
        self._dirty.add(path)

    def synced(self, path: str) -> None:
        """Its writes are durable."""
        self._dirty.discard(path)

    @property
    def dirty(self) -> list[str]:
        """Files with writes that are not synced."""
        return sorted(self._dirty)

    def forget(self, path: str) -> None:
        """Let go of a file that is going away; it is closed when the last reader in it is done."""
        with self._lock:
            self._dirty.discard(path)
            self._open.pop(path, None)

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            self._closed = True
            for file in self._open.values():
                file.close()
            self._open.clear()

    def _let_go_of_one(self) -> None:
        # A file with unsynced writes stays open: an error of its sync must reach us through this handle.
        for path in self._open:
            if path not in self._dirty:
                del self._open[path]
                return


class Index:
    """The places of a segment's batches."""

    __slots__ = ("offsets", "positions", "stored", "times")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self.stored = 0
        """How many entries are in the file."""

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

    def cut(self, position: int) -> None:
        """Forget batches that start at or after a position."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:], self.times[keep:]
        self.stored = min(self.stored, keep)

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
        """Entries as they stand in a file; those that cannot be right are left out, with all after them."""
        index = cls()
        entries = array("Q", data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
        index.offsets = entries[0::3]
        index.positions = entries[1::3]
        index.times = array("q", entries[2::3].tobytes())
        for place in range(1, len(index)):
            if index.offsets[place] <= index.offsets[place - 1] or index.positions[place] <= index.positions[place - 1]:
                del index.offsets[place:], index.positions[place:], index.times[place:]
                break
        index.stored = len(index)
        return index


class Segment:
    """One file of a stream."""

    __slots__ = ("allocated", "base", "cached_from", "end", "index", "index_path", "log_path")

    def __init__(self, folder: str, base: int) -> None:
        self.base = base
        """Offset that the first batch has, and that names the file."""
        self.log_path = f"{folder}/{base:020d}{LOG}"
        self.index_path = f"{folder}/{base:020d}{INDEX}"
        self.end = 0
        """Where the next batch goes."""
        self.allocated = 0
        """How far the file reaches, zeros ahead included."""
        self.cached_from = 0
        """Up to where memory was let go of."""
        self.index: Index | None = None


def bases(files: Files, folder: str) -> list[int]:
    """First offsets of the segments in a folder, ascending."""
    return [int(name[: -len(LOG)]) for name in files.list(folder) if name.endswith(LOG) and name[: -len(LOG)].isdigit()]


def load_index(files: Files, segment: Segment) -> Index:
    """The index as it stands in the file; empty if there is none."""
    if not files.exists(segment.index_path):
        return Index()
    return Index.unpack(files.read(segment.index_path))


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
