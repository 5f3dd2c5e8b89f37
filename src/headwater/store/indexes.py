"""Indexes of one stream's segments: where in a file a batch stands, from memory, the index file, or the log.

Promises: an index is a hint, and the log the truth: one that does not lead to a batch is made anew, and its file
mended; the thread that commits never waits for a reader that does so, and neither loses what the other has added.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from headwater import threads
from headwater.errors import TooManyFiles
from headwater.store.segment import (
    UNBOUNDED,
    Index,
    Segment,
    header_at,
    load_index,
    store_index,
    walk,
    whole_batches,
)

if TYPE_CHECKING:
    from headwater.store.stream import DiskStream

LOADED_MAX = 32
"""Segments that are no more written to whose indexes stay in memory."""


class Indexes:
    """Those of the segments of a stream."""

    def __init__(self, stream: DiskStream) -> None:
        self._stream = stream
        self._loaded: list[Segment] = []
        self._lock = threads.Lock()
        self._mending = threads.Lock()
        """Held by the one reader that makes an index anew."""

    def of(self, segment: Segment) -> Index:
        """A segment's index, from memory, its file, or its log."""
        mended = segment.mended
        if mended is not None:
            return mended[0]
        index = segment.index
        if index is not None:
            return index
        index, is_right = load_index(self._stream.files, segment, self._below(segment))
        if not is_right or not self._is_whole(segment, index):
            return self.rebuild(segment, None)
        segment.index = index
        self.remember(segment)
        return index

    def _below(self, segment: Segment) -> int:
        """The first offset that a later segment has."""
        return min((other.base for other in self._stream.segments if other.base > segment.base), default=UNBOUNDED)

    def _is_whole(self, segment: Segment, index: Index) -> bool:
        """Whether an index begins where its segment does and, if no more is written to that, ends where it does."""
        if not len(index) or index.offsets[0] != segment.base or index.positions[0] != 0:
            return False
        if not self._stream.segments or segment.base == self._stream.segments[-1].base:
            return True
        header = header_at(self._stream.seed, self._stream.pool.get(segment.log_path), index.positions[-1])
        return header is not None and index.positions[-1] + header.bytes == segment.end

    def rebuild(self, segment: Segment, doubted: Index | None) -> Index:
        """Make an index from the log, in place of one that did not lead to a batch; the file is mended with it."""
        stream = self._stream
        with self._mending:
            is_active = bool(stream.segments) and segment is stream.segments[-1]
            known = segment.mended[0] if segment.mended is not None else segment.index
            if known is not None and known.is_fresh and (known is not doubted or not is_active):
                return known  # another reader was faster, or it is the log that is damaged
            fresh, last, below, upto = Index(), segment.base - 1, self._below(segment), segment.end
            fresh.is_fresh = True
            for place, header, _ in whole_batches(stream.seed, stream.pool.get(segment.log_path), 0, stream.root):
                if last < header.first_offset <= stream.end and header.last_offset < below and place < upto:
                    fresh.add(header.first_offset, place, header.time_us)
                    last = header.last_offset
            if is_active and stream.pool.is_writable:
                segment.mended = fresh, upto  # the thread that commits adds to the one that is there, meanwhile
                if doubted is not None and not doubted.has_all_of(fresh):
                    stream.on_mended(segment.index_path)
                return fresh
            segment.index, segment.mended = fresh, None
            if stream.pool.is_writable:
                self.mend(segment, fresh)
            self.remember(segment)
            return fresh

    def to_extend(self, segment: Segment) -> Index:
        """The index of the segment that is written to; by the thread that commits."""
        return self.of(segment) if segment.mended is None else self.take_mended(segment)

    def take_mended(self, segment: Segment) -> Index:
        """Go on with the index that a reader made; by the thread that commits."""
        assert segment.mended is not None
        fresh, upto = segment.mended
        old = segment.index if segment.index is not None else fresh
        place = bisect_left(old.positions, upto)
        fresh.positions += old.positions[place:]
        fresh.times += old.times[place:]
        fresh.offsets += old.offsets[place:]  # last, as it is here that readers look first
        segment.index, segment.mended = fresh, None
        return fresh

    def store(self, segment: Segment, sync: bool) -> None:
        """Bring the file of an index up to date."""
        if segment.mended is not None:
            self.take_mended(segment)
        try:
            store_index(self._stream.files, segment, sync)
        except (OSError, TooManyFiles):
            pass  # what the file lacks is found in the log; whether that has room, its own writes tell

    def mend(self, segment: Segment, index: Index) -> None:
        """Bring the file of a segment that is no more written to in line with its log."""
        index.stored = 0
        try:
            told = Index.unpack(self._read_if_there(segment.index_path))
            is_right = told.keep_possible(segment.base, self._below(segment), segment.end)
            if not is_right or not told.has_all_of(index):
                self._stream.files.write(segment.index_path, index.pack())
                self._stream.on_mended(segment.index_path)
            index.stored = len(index)
        except (OSError, TooManyFiles):
            pass  # a hint: what the file lacks is found in the log
        if segment not in self._stream.segments:  # retention took it meanwhile
            self._stream.files.remove(segment.index_path)

    def _read_if_there(self, path: str) -> bytes:
        try:
            return self._stream.files.read(path)
        except OSError:
            return b""

    def extend(self, segment: Segment) -> None:
        """Add what the active segment's index file does not have yet."""
        index = segment.index if segment.index is not None else load_index(self._stream.files, segment, UNBOUNDED)[0]
        last = index.positions[-1] if len(index) else -1
        for place, header, _ in walk(self._stream.seed, self._stream.pool.get(segment.log_path), max(0, last)):
            if header.root != self._stream.root or header.last_offset > self._stream.durable:
                break
            if place > last:
                index.add(header.first_offset, place, header.time_us)
        segment.index = index

    def remember(self, segment: Segment) -> None:
        """Keep the indexes of the segments used last; the active one's is always there."""
        with self._lock:
            if segment in self._loaded:
                self._loaded.remove(segment)
            self._loaded.append(segment)
            if len(self._loaded) > LOADED_MAX:
                oldest = self._loaded.pop(0)
                if self._stream.segments and oldest is not self._stream.segments[-1]:
                    oldest.index = None

    def clear(self) -> None:
        """There are no segments any more."""
        self._loaded = []
