"""The stream of one root: an append-only log of batches in segment files.

Promises: offsets are dense and strictly increasing; readers see a batch once it is durable and never before; a batch
whose checksum is wrong is answered as a `Hole` that names its offsets, and what follows stays readable; a failed sync
makes the stream read-only until it is opened again.

One thread appends (the one that commits); any thread reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter

from headwater import threads
from headwater.config import Config
from headwater.errors import Failed, ReadOnly, TooManyFiles
from headwater.store.batch import BadBatch, Batch, Header, Seed, read_batch, seal_header, stored_body
from headwater.store.body import COLUMNS_AT, RETAIN, held_bytes
from headwater.store.disk_file import PIECE_BYTES as AT_ONCE_BYTES
from headwater.store.file_pool import FilePool
from headwater.store.files import Files
from headwater.store.fronts import counted
from headwater.store.indexes import Indexes
from headwater.store.log import REMOVED, Counted, Hole, Share, Wanted, Write, untold
from headwater.store.manifest import Listed
from headwater.store.segment import (
    Index,
    Segment,
    bases,
    header_at,
)
from headwater.store.tail import Tail

ZEROS = bytes(8)
RETENTION = "deleted by retention"
MISSING = "its segment is missing"
PREALLOCATE_BYTES_MIN = 64 * 1024
PIECE_BYTES = 256 * 1024
"""How much of a large group is written before it is synced, where others use the disk too."""
LET_GO_BYTES = 8 << 20
"""How much of the page cache is let go at once."""
LARGE_BYTES_MIN = 256 * 1024
"""A batch that takes more memory than this is kept when it was read, one at a time of all streams, as long as it takes
less than half of `tails_bytes`: thousands who are behind may want it, and each would read and check all of it."""

_base = attrgetter("base")


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
        self.files = files
        self.pool = pool
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
        self.gone = RETENTION
        """Why what was before the first offset is not there any more."""
        self.on_failure: Callable[[], None] = lambda: None
        self.on_mended: Callable[[str], None] = lambda _: None
        """Hears of each index file that did not match its log."""
        self.on_segment: Callable[[int], None] = lambda _: None
        """Hears of each segment that was made."""
        self.on_trim: Callable[[int], None] = lambda _: None
        """Hears, before anything is deleted, where the stream is going to begin."""
        self.on_bad: Callable[[Hole], None] = lambda _: None
        """Hears of bytes that went bad, before they are a gap; what it raises is told instead of one."""
        self.kept_from = 0
        """Where it should begin, if its first segments are missing; 0 otherwise."""
        self._mark = (0, 0, 0)
        """Where the stream stood before the last group: newest offset, base and end of the active segment."""
        self.tail = Tail(config.tail_bytes)
        self.indexes = Indexes(self)
        self._lock = threads.Lock()
        """Held while `holes` changes."""

    # Appending: by the thread that commits.

    @property
    def first_offset(self) -> int:
        first = self.segments[0].base if self.segments else self.end + 1
        return min(self.kept_from, first) if self.kept_from else first

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
            body, flags = write.body, write.flags
            if config.compression != "none":
                body, how = stored_body(body, config.compression, config.compression_bytes_min)
                flags |= how
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
            last = offset + count - 1
            write.batch = Batch(
                Header(
                    self.root, offset, count, time_us, durable, name, sequence, flags, header_bytes, body_bytes, crc
                ),
                *(write.body, write.columns, False, False, self.root, offset, last, count, None, b""),
                int.from_bytes(write.body[COLUMNS_AT], "little") & RETAIN != 0,
            )
            offset = last + 1
        return buffers

    def write(self, writes: Sequence[Write], buffers: Sequence[bytes], share: Share | None = None) -> None:
        """Append what `place` made, without a sync. Nothing has changed if it raises. With a share of the disk, it is
        written in pieces, between which others have theirs."""
        config, length = self._config, sum([write.room for write in writes])
        segment = self.segments[-1] if self.segments else self.start_segment(self.end + 1)
        if segment.end and segment.end + length > config.segment_bytes:
            segment = self.roll()
        if segment.end - segment.cached_from >= config.page_cache_bytes + LET_GO_BYTES:
            self._let_go()
        start = segment.end
        if start + length > segment.allocated:
            self.pool.with_room(lambda: self._preallocate(segment, length))
        try:
            if share is None:
                self.pool.write(segment.log_path, buffers, start)
            else:
                self._write_pieces(segment.log_path, buffers, start, share)
        except OSError:
            self.undo(self.end, start)
            raise
        index = segment.index
        if index is None or segment.mended is not None:
            index = self.indexes.to_extend(segment)
        for write in writes:
            newest = write.batch
            assert newest is not None
            index.positions.append(start)
            index.times.append(newest.header.time_us)
            index.offsets.append(newest.first_offset)
            start += write.room
            self.end, self.time_us = newest.last_offset, newest.header.time_us
        segment.end = start

    def _write_pieces(self, path: str, buffers: Sequence[bytes], position: int, share: Share) -> None:
        is_written = False
        at_once = min(PIECE_BYTES, self._config.bulk_bytes_min) if share.is_shared(self.root) else AT_ONCE_BYTES
        for piece in pieces(buffers, at_once):
            if is_written:
                share.give_way(self.root, self.sync)
            self.pool.write(path, piece, position)
            position += sum(map(len, piece))
            is_written = True

    def sync(self) -> None:
        """Make what was written durable; if that fails, the stream takes no more."""
        path = self.segments[-1].log_path
        try:
            self.pool.datasync(path)
        except OSError as error:
            raise self._failed_sync(path, error) from error

    def _failed_sync(self, path: str, error: OSError) -> Failed:
        self.fail(f"a sync of {path} failed ({error})")
        return Failed(f'the message is not on disk: {self.failed}; stream "{self.root}" is read-only now')

    def fail(self, reason: str) -> None:
        """Append nothing any more."""
        self.failed = reason
        for segment in self.segments:
            self.pool.give_up(segment.log_path)
        self.on_failure()

    def _let_go(self) -> None:
        """Let the page cache keep the newest alone. What is written next then takes memory that was in use a moment
        ago, rather than more and more of the machine's: in a virtual one, which has to be given each page of it,
        appending is several times as fast."""
        active = self.segments[-1]
        for before in self.segments[-2:-1]:
            self._let_go_of(before, before.end)
        self._let_go_of(active, active.end - self._config.page_cache_bytes)

    def _let_go_of(self, segment: Segment, upto: int) -> None:
        if segment.cached_from < upto:
            try:
                self.pool.get(segment.log_path).let_go(segment.cached_from, upto - segment.cached_from)
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
        self.indexes.to_extend(segment).cut(position)
        segment.end = position
        self.end = end
        try:
            file = self.pool.with_room(lambda: self.pool.get(segment.log_path))
            file.truncate(position)
            segment.allocated = position
            file.datasync()
        except (OSError, TooManyFiles) as error:
            self.fail(f"{segment.log_path} could not be cut back ({error})")

    def _preallocate(self, segment: Segment, length: int) -> None:
        """Zeros ahead: a sync that need not record a new length is a third faster."""
        needed = segment.end + length
        ahead = min(max(segment.end, PREALLOCATE_BYTES_MIN), self._config.preallocate_bytes)
        target = max(needed, min(needed + ahead, self._config.segment_bytes))
        try:
            self.pool.get(segment.log_path).allocate(segment.allocated, target - segment.allocated)
        except OSError:
            return  # no room to be generous; whether there is enough, the write itself will tell
        segment.allocated = target

    # Segments: by the thread that commits.

    def start_segment(self, base: int) -> Segment:
        """Make an empty segment for the messages from `base` on."""
        segment = Segment(self.folder, base)
        if not self.files.exists(self.folder):
            self.pool.with_room(lambda: self.files.make_folder(self.folder))
        self.pool.with_room(lambda: self.files.open(segment.log_path, create=True)).close()
        try:
            self.pool.with_room(lambda: self.files.sync_folder(self.folder))
        except OSError as error:
            raise self._failed_sync(self.folder, error) from error
        segment.index = Index()
        self.segments.append(segment)
        self.on_segment(base)
        return segment

    def roll(self) -> Segment:
        """Close the active segment for good, and start the next."""
        segment = self.segments[-1]
        file = self.pool.with_room(lambda: self.pool.get(segment.log_path))
        file.truncate(segment.end)
        segment.allocated = segment.end
        self.sync()
        self.indexes.store(segment, sync=True)
        fresh = self.start_segment(self.end + 1)
        self.indexes.remember(segment)
        return fresh

    def trim(self, upto: int) -> int:
        """Delete whole segments that end at or before an offset; answers the new first offset."""
        if self.segments and self.segments[-1].end and upto >= self.durable == self.end and self.failed is None:
            self.roll()
        kept = max(0, bisect_right(self.segments, upto + 1, key=_base) - 1)
        if kept or (self.segments and self.first_offset < self.segments[0].base <= upto + 1):
            self.on_trim(self.segments[kept].base)
            self.kept_from = 0
        for _ in range(kept):
            segment = self.segments.pop(0)
            self.pool.forget(segment.log_path)
            self.files.remove(segment.index_path)
            self.files.remove(segment.log_path)
        self.tail.trim(self.first_offset)
        self.holes = [hole for hole in self.holes if hole.last >= self.first_offset]
        return self.first_offset

    def remove(self) -> list[str]:
        """Have nothing any more, and say so to whoever reads on; answers the files that it had."""
        paths = [path for segment in self.segments for path in (segment.index_path, segment.log_path)]
        self.failed = self.gone = REMOVED
        self.segments, self.kept_from, self.holes = [], 0, []
        self.indexes.clear()
        self.tail.drop()
        for path in paths:
            self.pool.forget(path)
        return paths

    def store_indexes(self) -> None:
        """Bring the active segment's index file up to date; a hint, so not synced."""
        if self.segments:
            self.indexes.store(self.segments[-1], sync=False)

    def place_of_end(self) -> tuple[int, int]:
        """The segment and position where the newest durable batch ends."""
        if not self.segments:
            return 0, 0
        segment = self.segments[-1]
        if self.end == self.durable:
            return segment.base, segment.end
        # A sync failed: batches that were written stand behind the last that is durable.
        index = self.indexes.of(segment)
        return segment.base, index.positions[index.locate(self.durable + 1)]

    # Reading: by any thread.

    def read(self, offset: int, bytes_max: int) -> Sequence[Batch | Hole]:
        """Batches from the one that holds an offset on; empty if it is not there yet."""
        if offset > self.durable:
            return ()
        held = self.held(offset, bytes_max)
        if held is not None:
            return held
        first = self.first_offset
        if offset < first:
            return (Hole(offset, first - 1, self.gone),)
        for hole in self.holes:
            if hole.first <= offset <= hole.last:
                return (hole,)
        try:
            return self._from_disk(offset, bytes_max)
        except FileNotFoundError:
            later = [segment.base for segment in self.segments if segment.base > offset]
            last = min(later, default=self.durable + 1) - 1
            if self.pool.is_writable and offset >= self.first_offset:
                return self._note_damage(Hole(offset, last, MISSING))
            # Retention took it meanwhile, in this process or beside it.
            return (Hole(offset, last, self.gone),)

    def held(self, offset: int, bytes_max: int) -> Sequence[Batch] | None:
        """The same out of memory; None if they are not there."""
        found = self.tail.read(offset, self.durable, bytes_max)
        if found is not None:
            return found
        stream, large = self.pool.large
        if stream is self and large is not None and large.first_offset <= offset <= large.last_offset:
            return (large,) if offset >= self.first_offset else None
        return None

    def _from_disk(self, offset: int, bytes_max: int) -> Sequence[Batch | Hole]:
        segment = self._segment_of(offset)
        index = self.indexes.of(segment)
        entry = index.locate(offset)
        entry = max(entry, 0)
        data = self.pool.get(segment.log_path).pread(max(bytes_max, 4096), index.positions[entry] if len(index) else 0)
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
        file = self.pool.get(segment.log_path)
        for attempt in ("index", "rebuilt"):
            index = self.indexes.of(segment)
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
                    if LARGE_BYTES_MIN < held_bytes(batch.data) < self._config.tails_bytes // 2:
                        self.pool.large = (self, batch)
                    return (batch,)
            if attempt == "index":
                self.indexes.rebuild(segment, index)
        last = self._next_known(segment, offset) - 1
        return self._note_damage(Hole(offset, last, "damaged: no batch where one was written"))

    def _note_damage(self, hole: Hole) -> tuple[Hole]:
        """Remember bad bytes, so that the next reader need not search for them."""
        self.on_bad(hole)
        with self._lock:
            self.holes = sorted((*self.holes, hole), key=lambda known: known.first)
        return (hole,)

    def _next_known(self, segment: Segment, offset: int) -> int:
        """The next offset, after a damaged place, that the index or the next segment knows."""
        index = self.indexes.of(segment)
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
                self.indexes.rebuild(segment, self.indexes.of(segment))
            found = self._find_time(time_us, looked_at)
        return found

    def count(self, wanted: Wanted, first: int, last: int, messages_max: int, bytes_max: int) -> Counted:
        """Messages of topics that are wanted, from an offset up to another, or until there are so many, or so much was
        read; nothing is read of what they carry."""
        return counted(self, wanted, first, last, messages_max, bytes_max)

    def _find_time(self, time_us: int, looked_at: list[Segment]) -> int:
        """What the indexes say."""
        segments = list(self.segments)
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            looked_at.append(segments[middle])
            index = self.indexes.of(segments[middle])
            if len(index) and index.times[-1] < time_us:
                low = middle + 1
            else:
                high = middle
        if low == len(segments):
            return self.durable + 1
        found = self.indexes.of(segments[low]).first_at(time_us)
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
        index = self.indexes.of(segment)
        entry = index.locate(offset)
        if entry < 0:
            return None
        header = header_at(self.seed, self.pool.get(segment.log_path), index.positions[entry])
        is_it = header is not None and header.root == self.root and header.first_offset <= offset <= header.last_offset
        return header if is_it else None

    def _segment_of(self, offset: int) -> Segment:
        segments = self.segments
        return segments[max(0, bisect_right(segments, offset, key=_base) - 1)]

    def catch_up(self, segments: list[Segment], durable: int) -> None:
        """See what the owner of the folder wrote meanwhile; for a reader beside it."""
        known = {segment.base: segment for segment in self.segments}
        if self.segments and segments and self.segments[-1].base != segments[-1].base:
            del known[self.segments[-1].base]  # it was written to meanwhile: its index is short, and the file's whole
        for segment in segments:
            old = known.get(segment.base)
            if old is not None:
                segment.index, segment.mended = old.index, old.mended
        self.segments = segments
        self.end = self.durable = durable
        self.tail.drop()
        if segments:
            self.indexes.extend(segments[-1])

    def note_missing(self, listed: Listed) -> None:
        """Know as gaps what should be there and is not; for a reader beside the owner."""
        there = [segment.base for segment in self.segments]
        for first, last in listed.missing(there, self.durable):
            for start, end in untold(self.holes, first, last):
                self.holes.append(Hole(start, end, MISSING))
        self.holes.sort(key=lambda hole: hole.first)
        self.kept_from = listed.first


def pieces(buffers: Sequence[bytes], bytes_max: int) -> Iterator[list[memoryview]]:
    """The same bytes in the same order, so many at a time."""
    piece: list[memoryview] = []
    room = bytes_max
    for buffer in buffers:
        rest = memoryview(buffer)
        while len(rest) > room:
            piece.append(rest[:room])
            rest = rest[room:]
            yield piece
            piece, room = [], bytes_max
        piece.append(rest)
        room -= len(rest)
    if piece:
        yield piece


def open_segments(files: Files, folder: str, kept: Sequence[int] | None = None) -> list[Segment]:
    """The segments of a stream, or these of them, as they lie on disk; all but the last are as long as their files."""
    segments = []
    for base in bases(files, folder) if kept is None else kept:
        segment = Segment(folder, base)
        file = files.open(segment.log_path, write=False)
        segment.end = segment.allocated = file.size()
        file.close()
        segments.append(segment)
    return segments
