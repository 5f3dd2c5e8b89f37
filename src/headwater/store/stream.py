"""The stream of one root: an append-only log of batches in segment files.

Promises: offsets are dense and strictly increasing; readers see a batch once it is durable and never before; a batch
whose checksum is wrong is answered as a `Hole` that names its offsets, and what follows stays readable; a failed sync
makes the stream read-only until it is opened again.

One thread appends (the one that commits); any thread reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from headwater import threads
from headwater.config import Config
from headwater.errors import Failed, ReadOnly
from headwater.store.batch import BadBatch, Batch, Header, Seed, read_batch, seal_header, stored_body
from headwater.store.files import Files
from headwater.store.log import Hole, Write
from headwater.store.segment import (
    FilePool,
    Index,
    Segment,
    bases,
    header_at,
    load_index,
    store_index,
    walk,
    whole_batches,
)

ZEROS = bytes(8)
RETENTION = "deleted by retention"
INDEXES_LOADED_MAX = 32
PREALLOCATE_BYTES_MIN = 64 * 1024
LET_GO_BYTES = 8 << 20
"""How much of the page cache is let go at once."""


class DiskStream:
    """A stream in segment files."""

    def __init__(
        self, files: Files, pool: FilePool, seed: Seed, config: Config, folder: str, number: int, root: str
    ) -> None:
        self.number = number
        self.root = root
        self.folder = folder
        self.seed = seed
        self.root_bytes = root.encode()
        self._files = files
        self._pool = pool
        self._config = config
        self.segments: list[Segment] = []
        self.holes: list[Hole] = []
        """Known gaps, ascending."""
        self.end = 0
        """The newest offset written, durable or not."""
        self.durable = 0
        self.time_us = 0
        self.failed: str | None = None
        """Why nothing is appended any more."""
        self.on_failure: Callable[[], None] = lambda: None
        self._mark = (0, 0, 0)
        """Where the stream stood before the last group: newest offset, base and end of the active segment."""
        self._tail: list[Batch] = []
        self.tail_bytes = 0
        self._loaded: list[Segment] = []
        self._lock = threads.Lock()

    # Appending: by the thread that commits.

    @property
    def first_offset(self) -> int:
        return self.segments[0].base if self.segments else self.end + 1

    @property
    def rolls(self) -> int:
        """Changes whenever there may be something more to trim: the base of the active segment."""
        return self.segments[-1].base if self.segments else 0

    @property
    def size(self) -> tuple[int, int]:
        """Bytes, and in how many segments; from any thread."""
        segments = tuple(self.segments)
        return sum(segment.end for segment in segments), len(segments)

    def beyond(self, bytes_max: int) -> int:
        """The last offset of the oldest segments without which the stream would be so small; 0 if it is."""
        total, upto = sum(segment.end for segment in self.segments), 0
        for segment, following in pairwise(self.segments):
            if total <= bytes_max:
                break
            total -= segment.end
            upto = following.base - 1
        return upto

    def place(self, writes: Sequence[Write], now_us: int) -> list[bytes]:
        """Give each batch its offsets, time and header; answers the bytes to write, in order."""
        if self.failed is not None:
            raise ReadOnly(f'stream "{self.root}" takes no messages: {self.failed}; close the bus and open it again')
        buffers: list[bytes] = []
        time_us = max(now_us, self.time_us)
        offset = self.end + 1
        durable = self.durable
        config = self._config
        segment = self.segments[-1] if self.segments else None
        self._mark = (self.end, segment.base, segment.end) if segment is not None else (self.end, 0, 0)
        for write in writes:
            body, flags = stored_body(write.body, config.compression, config.compression_bytes_min)
            flags |= write.flags
            count, crc, sequence = write.count, write.crc, write.sequence
            producer, body_bytes = write.producer, len(body)
            header = seal_header(
                self.seed,
                self.root_bytes,
                offset,
                count,
                time_us,
                durable,
                body_bytes,
                crc,
                producer,
                sequence,
                flags,
            )
            header_bytes = len(header)
            buffers += (header, body)
            padding = -(header_bytes + body_bytes) & 7
            if padding:
                buffers.append(ZEROS[:padding])
            write.room = header_bytes + body_bytes + padding
            name = producer.decode() if producer is not None else None
            write.batch = Batch(
                Header(
                    self.root, offset, count, time_us, durable, name, sequence, flags, header_bytes, body_bytes, crc
                ),
                write.body,
                write.columns,
            )
            offset += count
        return buffers

    def write(self, writes: Sequence[Write], buffers: Sequence[bytes], length: int) -> None:
        """Append what `place` made, without a sync. Nothing has changed if it raises."""
        segment = self._active(length)
        self._let_go()
        start = segment.end
        if start + length > segment.allocated:
            self._preallocate(segment, length)
        try:
            self._pool.write(segment.log_path, buffers, start)
        except OSError:
            self.undo(self.end, start)
            raise
        index = segment.index if segment.index is not None else self.index_of(segment)
        batches = [batch for write in writes if (batch := write.batch) is not None]
        *positions, end = accumulate([write.room for write in writes], initial=start)
        newest = batches[-1]
        index.extend([batch.first_offset for batch in batches], positions, newest.header.time_us)
        self.end, self.time_us = newest.last_offset, newest.header.time_us
        segment.end = end

    def sync(self) -> None:
        """Make what was written durable; if that fails, the stream takes no more."""
        path = self.segments[-1].log_path
        try:
            self._pool.get(path).datasync()
        except OSError as error:
            raise self._failed_sync(path, error) from error
        self._pool.synced(path)

    def _failed_sync(self, path: str, error: OSError) -> Failed:
        self.fail(f"a sync of {path} failed ({error})")
        return Failed(f'the message is not on disk: {self.failed}; stream "{self.root}" is read-only now')

    def fail(self, reason: str) -> None:
        """Append nothing any more."""
        self.failed = reason
        self.on_failure()

    def commit(self, writes: Sequence[Write]) -> int:
        """What was written is durable: let readers see it; answers by how many bytes the tail has grown."""
        before = self.tail_bytes
        self._tail += [batch for write in writes if (batch := write.batch) is not None]
        self.tail_bytes += sum([len(write.body) for write in writes])
        if self.tail_bytes > self._config.tail_bytes:
            self._shorten_tail()
        self.durable = self.end
        return self.tail_bytes - before

    def _let_go(self) -> None:
        """Let the page cache keep the newest alone. What is written next then takes memory that was in use a moment
        ago, rather than more and more of the machine's: in a virtual one, which has to be given each page of it,
        appending is several times as fast."""
        active = self.segments[-1]
        upto = active.end - self._config.page_cache_bytes
        if upto - active.cached_from < LET_GO_BYTES:
            return
        for before in self.segments[-2:-1]:
            self._let_go_of(before, before.end)
        self._let_go_of(active, upto)

    def _let_go_of(self, segment: Segment, upto: int) -> None:
        if segment.cached_from < upto:
            try:
                self._pool.get(segment.log_path).let_go(segment.cached_from, upto - segment.cached_from)
            except OSError:
                pass  # memory alone is at stake
            segment.cached_from = upto

    def take_back(self) -> None:
        """Undo the writes since the last `place`, if there were any."""
        end, base, position = self._mark
        if self.end != end:
            self.undo(end, position if self.segments[-1].base == base else 0)

    def undo(self, end: int, position: int) -> None:
        """Take back writes that were never synced, durably: they must not be found by the next process."""
        segment = self.segments[-1]
        self.index_of(segment).cut(position)
        segment.end = position
        self.end = end
        try:
            file = self._pool.get(segment.log_path)
            file.truncate(position)
            segment.allocated = position
            file.datasync()
        except OSError as error:
            self.fail(f"{segment.log_path} could not be cut back ({error})")

    def drop_tail(self) -> None:
        """Give back the memory of the newest batches; readers find them on disk."""
        self._tail, self.tail_bytes = [], 0

    def _shorten_tail(self) -> None:
        keep = len(self._tail)
        kept_bytes = 0
        while keep > 0 and kept_bytes + len(self._tail[keep - 1].data) <= self._config.tail_bytes // 2:
            keep -= 1
            kept_bytes += len(self._tail[keep].data)
        self._tail, self.tail_bytes = self._tail[keep:], kept_bytes

    def _active(self, length: int) -> Segment:
        if not self.segments:
            return self.start_segment(self.end + 1)
        segment = self.segments[-1]
        if segment.end and segment.end + length > self._config.segment_bytes:
            return self.roll()
        return segment

    def _preallocate(self, segment: Segment, length: int) -> None:
        """Zeros ahead: a sync that need not record a new length is a third faster."""
        needed = segment.end + length
        ahead = min(max(segment.end, PREALLOCATE_BYTES_MIN), self._config.preallocate_bytes)
        target = max(needed, min(needed + ahead, self._config.segment_bytes))
        try:
            self._pool.get(segment.log_path).allocate(segment.allocated, target - segment.allocated)
        except OSError:
            return  # no room to be generous; whether there is enough, the write itself will tell
        segment.allocated = target

    # Segments: by the thread that commits.

    def start_segment(self, base: int) -> Segment:
        """Make an empty segment for the messages from `base` on."""
        segment = Segment(self.folder, base)
        if not self._files.exists(self.folder):
            self._files.make_folder(self.folder)
        self._files.open(segment.log_path, create=True).close()
        try:
            self._files.sync_folder(self.folder)
        except OSError as error:
            raise self._failed_sync(self.folder, error) from error
        segment.index = Index()
        self.segments.append(segment)
        return segment

    def roll(self) -> Segment:
        """Close the active segment for good, and start the next."""
        segment = self.segments[-1]
        file = self._pool.get(segment.log_path)
        file.truncate(segment.end)
        segment.allocated = segment.end
        self.sync()
        self._store_index(segment, sync=True)
        fresh = self.start_segment(self.end + 1)
        self._remember(segment)
        return fresh

    def trim(self, upto: int) -> int:
        """Delete whole segments that end at or before an offset; answers the new first offset."""
        if self.segments and self.segments[-1].end and upto >= self.durable == self.end and self.failed is None:
            self.roll()
        while len(self.segments) > 1 and self.segments[1].base - 1 <= upto:
            segment = self.segments.pop(0)
            self._pool.forget(segment.log_path)
            self._files.remove(segment.index_path)
            self._files.remove(segment.log_path)
        self._tail = [batch for batch in self._tail if batch.last_offset >= self.first_offset]
        self.tail_bytes = sum(len(batch.data) for batch in self._tail)
        self.holes = [hole for hole in self.holes if hole.last >= self.first_offset]
        return self.first_offset

    def store_indexes(self) -> None:
        """Bring the active segment's index file up to date; a hint, so not synced."""
        if self.segments:
            self._store_index(self.segments[-1], sync=False)

    def _store_index(self, segment: Segment, sync: bool) -> None:
        try:
            store_index(self._files, segment, sync)
        except OSError:
            pass  # what the file lacks is found in the log; whether that has room, its own writes tell

    def place_of_end(self) -> tuple[int, int]:
        """The segment and position where the newest durable batch ends."""
        if not self.segments:
            return 0, 0
        segment = self.segments[-1]
        if self.end == self.durable:
            return segment.base, segment.end
        # A sync failed: batches that were written stand behind the last that is durable.
        index = self.index_of(segment)
        return segment.base, index.positions[index.locate(self.durable + 1)]

    # Reading: by any thread.

    def read(self, offset: int, bytes_max: int) -> Sequence[Batch | Hole]:
        """Batches from the one that holds an offset on; empty if it is not there yet."""
        if offset > self.durable:
            return ()
        tail = self._tail
        if tail and tail[0].first_offset <= offset:
            place = bisect_right(tail, offset, key=_first_offset) - 1
            if tail[place].last_offset >= offset:
                return self._from_tail(tail, place, bytes_max)
        first = self.first_offset
        if offset < first:
            return (Hole(offset, first - 1, RETENTION),)
        for hole in self.holes:
            if hole.first <= offset <= hole.last:
                return (hole,)
        try:
            return self._from_disk(offset, bytes_max)
        except FileNotFoundError:
            # Retention took the segment meanwhile, in this process or beside it.
            later = [segment.base for segment in self.segments if segment.base > offset]
            return (Hole(offset, min(later, default=self.durable + 1) - 1, RETENTION),)

    def _from_tail(self, tail: list[Batch], place: int, bytes_max: int) -> list[Batch]:
        found: list[Batch] = []
        expected = tail[place].first_offset
        for batch in tail[place:]:
            if batch.first_offset != expected or batch.last_offset > self.durable:
                break
            found.append(batch)
            expected = batch.last_offset + 1
            bytes_max -= len(batch.data)
            if bytes_max <= 0:
                break
        return found

    def _from_disk(self, offset: int, bytes_max: int) -> Sequence[Batch | Hole]:
        segment = self._segment_of(offset)
        index = self.index_of(segment)
        entry = index.locate(offset)
        entry = max(entry, 0)
        data = self._pool.get(segment.log_path).pread(max(bytes_max, 4096), index.positions[entry] if len(index) else 0)
        found = self._parse(data, offset, bytes_max)
        if found:
            return found
        return self._one_from_disk(segment, offset)

    def _parse(self, data: bytes, offset: int, bytes_max: int) -> list[Batch | Hole]:
        """Whole batches in a piece of a segment, from the one that holds an offset, while they follow each other."""
        found: list[Batch | Hole] = []
        at = 0
        expected = offset
        while at < min(len(data), bytes_max):
            try:
                batch = read_batch(self.seed, data, at)
            except BadBatch:
                break
            if batch is None or batch.header.root != self.root or batch.last_offset > self.durable:
                break
            if not (batch.first_offset <= expected <= batch.last_offset) or (found and batch.first_offset != expected):
                break
            found.append(batch)
            expected = batch.last_offset + 1
            at += batch.header.bytes
        return found

    def _one_from_disk(self, segment: Segment, offset: int) -> Sequence[Batch | Hole]:
        """The slow way: a large batch, a stale index, or a damaged batch."""
        file = self._pool.get(segment.log_path)
        for attempt in ("index", "rebuilt"):
            index = self.index_of(segment)
            entry = max(0, index.locate(offset))
            position = index.positions[entry] if len(index) else 0
            header = header_at(self.seed, file, position)
            if header is not None and header.root == self.root and header.first_offset <= offset <= header.last_offset:
                data = file.pread(header.header_bytes + header.body_bytes, position)
                try:
                    batch = read_batch(self.seed, data)
                except BadBatch as error:
                    return self._note_damage(Hole(offset, header.last_offset, f"damaged: {error}"))
                if batch is not None:
                    return (batch,)
            if attempt == "index":
                self._rebuild_index(segment)
        last = self._next_known(segment, offset) - 1
        return self._note_damage(Hole(offset, last, "damaged: no batch where one was written"))

    def _note_damage(self, hole: Hole) -> tuple[Hole]:
        """Remember bad bytes, so that the next reader need not search for them."""
        with self._lock:
            self.holes = sorted((*self.holes, hole), key=lambda known: known.first)
        return (hole,)

    def _next_known(self, segment: Segment, offset: int) -> int:
        """The next offset, after a damaged place, that the index or the next segment knows."""
        index = self.index_of(segment)
        place = index.locate(offset) + 1
        if place < len(index):
            return index.offsets[place]
        later = [other.base for other in self.segments if other.base > segment.base]
        return min(later) if later else self.durable + 1

    def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after a time; one past the end if there is none."""
        looked_at: list[Segment] = []
        found = self._find_time(time_us, looked_at)
        if not self._is_first_at(found, time_us):
            for segment in looked_at:
                self._rebuild_index(segment)
            found = self._find_time(time_us, looked_at)
        return found

    def _find_time(self, time_us: int, looked_at: list[Segment]) -> int:
        """What the indexes say."""
        segments = list(self.segments)
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            looked_at.append(segments[middle])
            index = self.index_of(segments[middle])
            if len(index) and index.times[-1] < time_us:
                low = middle + 1
            else:
                high = middle
        if low == len(segments):
            return self.durable + 1
        found = self.index_of(segments[low]).first_at(time_us)
        return min(found, self.durable + 1) if found is not None else self.durable + 1

    def _is_first_at(self, offset: int, time_us: int) -> bool:
        """Whether the log agrees: the batch before was appended earlier, and one starts here that was not."""
        before = self._header_of(offset - 1) if offset > self.first_offset else None
        if before is not None and before.time_us >= time_us:
            return False
        if offset > self.durable:
            return True
        here = self._header_of(offset)
        return here is None or (here.first_offset == offset and here.time_us >= time_us)

    def _header_of(self, offset: int) -> Header | None:
        """The header of the batch that holds an offset; None if it is not where the index says."""
        segment = self._segment_of(offset)
        index = self.index_of(segment)
        entry = index.locate(offset)
        if entry < 0:
            return None
        header = header_at(self.seed, self._pool.get(segment.log_path), index.positions[entry])
        is_it = header is not None and header.root == self.root and header.first_offset <= offset <= header.last_offset
        return header if is_it else None

    def _segment_of(self, offset: int) -> Segment:
        segments = self.segments
        return segments[max(0, bisect_right(segments, offset, key=_base) - 1)]

    def index_of(self, segment: Segment) -> Index:
        """A segment's index, from memory, its file, or its log."""
        index = segment.index
        if index is not None:
            return index
        index = load_index(self._files, segment)
        if not len(index) or index.offsets[0] != segment.base or index.positions[0] != 0:
            return self._rebuild_index(segment)
        segment.index = index
        self._remember(segment)
        return index

    def _rebuild_index(self, segment: Segment) -> Index:
        fresh = Index()
        last = 0
        for place, header, _ in whole_batches(self.seed, self._pool.get(segment.log_path), 0, self.root):
            if last < header.first_offset <= self.end and place < segment.end:
                fresh.add(header.first_offset, place, header.time_us)
                last = header.last_offset
        segment.index = fresh
        self._remember(segment)
        return fresh

    def catch_up(self, segments: list[Segment], durable: int) -> None:
        """See what the owner of the folder wrote meanwhile; for a reader beside it."""
        known = {segment.base: segment for segment in self.segments}
        for segment in segments:
            old = known.get(segment.base)
            if old is not None:
                segment.index = old.index
        self.segments = segments
        self.end = self.durable = durable
        self.drop_tail()
        if segments:
            self._extend_index(segments[-1])

    def _extend_index(self, segment: Segment) -> None:
        """Add what the active segment's index file does not have yet."""
        index = segment.index if segment.index is not None else load_index(self._files, segment)
        last = index.positions[-1] if len(index) else -1
        for place, header, _ in walk(self.seed, self._pool.get(segment.log_path), max(0, last)):
            if header.root != self.root or header.last_offset > self.durable:
                break
            if place > last:
                index.add(header.first_offset, place, header.time_us)
        segment.index = index

    def _remember(self, segment: Segment) -> None:
        """Keep the indexes of the segments used last; the active one's is always there."""
        with self._lock:
            if segment in self._loaded:
                self._loaded.remove(segment)
            self._loaded.append(segment)
            if len(self._loaded) > INDEXES_LOADED_MAX:
                oldest = self._loaded.pop(0)
                if self.segments and oldest is not self.segments[-1]:
                    oldest.index = None


def open_segments(files: Files, folder: str) -> list[Segment]:
    """The segments of a stream as they lie on disk; all but the last are as long as their files."""
    segments = []
    for base in bases(files, folder):
        segment = Segment(folder, base)
        file = files.open(segment.log_path, write=False)
        segment.end = segment.allocated = file.size()
        file.close()
        segments.append(segment)
    return segments


def length_of(buffers: Sequence[bytes]) -> int:
    """Bytes that a group takes on disk."""
    return sum(map(len, buffers))


def _first_offset(batch: Batch) -> int:
    return batch.first_offset


def _base(segment: Segment) -> int:
    return segment.base
