"""Recovery of a stream: what is whole is kept, what was never acknowledged is cut, what was and went bad is set apart.

A bad batch is torn only if nothing says that it was durable. **Evidence** is the highest offset known to have been:
the watermark in a later batch's header, the offset that the state reflects, an acked floor, the `watermarks` file.
Reading starts at the last checkpoint, so that its cost does not grow with what is stored; or at the first batch that is
in the journal too, since a segment that the journal covers may have lost any part of it. What the journal has is put
back where it stood: it is no damage, and nothing of it is set apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from headwater.store.batch import Batch, Header, open_body, seal_header
from headwater.store.file_pool import FilePool
from headwater.store.files import Files
from headwater.store.log import Checkpoint, Found, Hole, untold
from headwater.store.manifest import Listed
from headwater.store.segment import UNBOUNDED, Index, Segment, header_at, load_index, whole_batches
from headwater.store.stream import MISSING, DiskStream, open_segments

Journaled = Mapping[int, tuple[Header, bytes]]


class Recovery:
    """Brings one stream back to a state in which it can be read and appended to."""

    def __init__(
        self,
        files: Files,
        pool: FilePool,
        stream: DiskStream,
        checkpoint: Checkpoint,
        evidence: int,
        journaled: Journaled,
        quarantine: str,
        apply: Callable[[Batch], None],
        listed: Listed | None = None,
    ) -> None:
        self._files = files
        self._pool = pool
        self._stream = stream
        self._checkpoint = checkpoint
        self._listed = listed
        """What the stream should have, if that is known."""
        self._evidence = max(evidence, checkpoint.applied, listed.rolled_upto if listed is not None else 0)
        self._journaled = dict(journaled)
        self._quarantine = quarantine
        self._apply = apply
        self._doubted: tuple[Segment, Index, int] | None = None
        """An index whose last entry leads to no batch, and how far it goes: either it is wrong, or its log."""
        self.found = Found()

    def run(self) -> Found:
        """Recover the stream; every batch after the checkpoint is handed to `apply`, in order."""
        stream = self._stream
        stream.segments = open_segments(self._files, stream.folder)
        if self._listed is not None:
            self._delete_before(self._listed.first)
            stream.kept_from = self._listed.first
            stream.end = self._listed.first - 1
        first, start = self._starting_place()
        self._note_missing(first)
        if start == 0 and first > 0:
            stream.time_us = self._last_time_us(stream.segments[first - 1])
        for place, segment in enumerate(stream.segments[first:], first):
            if place + 1 < len(stream.segments):
                self._walk_closed(segment, start, stream.segments[place + 1].base)
                assert segment.index is not None
                stream.indexes.mend(segment, segment.index)
            else:
                self._cut(segment, self._walk_last(segment, start))
            start = 0
        self._judge_doubted()
        self._append_from_journal()
        self._pass_over_missing()
        stream.durable = stream.end
        stream.holes = sorted((*stream.holes, *self.found.holes), key=lambda hole: hole.first)
        return self.found

    def _delete_before(self, first: int) -> None:
        """Finish what a crash interrupted: these segments were being deleted."""
        stream = self._stream
        old = [segment for segment in stream.segments if segment.base < first]
        if len(old) < len(stream.segments):
            for segment in old:
                self._files.remove(segment.index_path)
                self._files.remove(segment.log_path)
            del stream.segments[: len(old)]

    def _note_missing(self, walked: int) -> None:
        """Segments that should be there and are not, before the first that is walked: the walk finds the others."""
        stream = self._stream
        there = [segment.base for segment in stream.segments]
        if self._listed is None or not there:
            return
        for first, last in self._listed.missing(there, there[walked] - 1):
            if last < there[walked]:
                self.found.holes += [Hole(start, end, MISSING) for start, end in untold(stream.holes, first, last)]

    def _starting_place(self) -> tuple[int, int]:
        """The segment and position where the checkpoint stands, or the first batch that is in the journal too, if that
        comes before it: its segment may have lost what the state reflects."""
        checkpoint = self._checkpoint
        for place, segment in enumerate(self._stream.segments):
            if segment.base != checkpoint.base or checkpoint.position > segment.end:
                continue
            following = self._stream.segments[place + 1 : place + 2]
            index, is_right = load_index(self._files, segment, following[0].base if following else UNBOUNDED)
            beyond = index.cut(checkpoint.position)
            is_right = is_right and not (beyond is not None and beyond <= checkpoint.applied)
            covered = [offset for offset in self._journaled if segment.base <= offset <= checkpoint.applied]
            position, applied = checkpoint.position, checkpoint.applied
            if covered and (entry := index.locate(min(covered))) >= 0:
                position, applied = index.positions[entry], index.offsets[entry] - 1
                index.cut(position)
            header = self._header_at(segment, index.positions[-1]) if len(index) else None
            if not is_right:
                self._stream.on_mended(segment.index_path)
            elif len(index) and not self._is_of(header, index.offsets[-1]):
                self._doubted = segment, index, applied
            if self._is_complete(segment, index, header, position, applied):
                segment.index = index
                self._stream.end = applied
                return place, position
            break
        return self._first_after_checkpoint(), 0

    def _first_after_checkpoint(self) -> int:
        """Without a usable place: from the segment that holds the last offset that is applied, lest a gap before the
        next one is passed over."""
        bases = [segment.base for segment in self._stream.segments]
        if not bases:
            return 0
        later = [place for place, base in enumerate(bases) if base > max(1, self._checkpoint.applied)]
        first = max(0, later[0] - 1 if later else len(bases) - 1)
        self._stream.end = bases[first] - 1
        return first

    def _judge_doubted(self) -> None:
        if self._doubted is not None:
            segment, index, upto = self._doubted
            if segment.index is not None and not index.has_all_of(segment.index, upto):
                self._stream.on_mended(segment.index_path)

    def _is_of(self, header: Header | None, offset: int) -> bool:
        return header is not None and header.root == self._stream.root and header.first_offset == offset

    def _is_complete(self, segment: Segment, index: Index, header: Header | None, position: int, applied: int) -> bool:
        """Whether the index, whose last batch has this header, reaches up to a position, where one with this offset
        ends."""
        if not len(index):
            return position == 0 and applied == segment.base - 1
        if header is None or not self._is_of(header, index.offsets[-1]):
            return False
        self._stream.time_us = header.time_us
        return index.positions[-1] + header.bytes == position and header.last_offset == applied

    def _last_time_us(self, segment: Segment) -> int:
        """When the last batch of a closed segment was appended."""
        index = self._stream.indexes.of(segment)
        header = self._header_at(segment, index.positions[-1]) if len(index) else None
        return header.time_us if header is not None else 0

    def _walk_closed(self, segment: Segment, start: int, next_base: int) -> None:
        """A segment that was synced when the next was made: what is missing in it was acknowledged."""
        stream = self._stream
        position = self._begin(segment, start)
        for place, header, stored in self._whole(segment, start):
            if not stream.end < header.first_offset <= header.last_offset < next_base:
                continue
            if header.first_offset == stream.end + 1 and place != position:
                continue
            if header.first_offset > stream.end + 1:
                position = self._put_back(segment, position, place, header.first_offset - 1)
                self._set_rest_apart(segment, position, place, header.first_offset - 1)
            self._accept(segment, place, Batch.of(header, open_body(header, stored)))
            position = place + header.bytes
        if stream.end < next_base - 1:
            position = self._put_back(segment, position, None, next_base - 1)
            self._set_rest_apart(segment, position, segment.end, next_base - 1)

    def _walk_last(self, segment: Segment, start: int) -> int:
        """The segment that was being written; answers where its last good batch ends."""
        stream = self._stream
        position = self._begin(segment, start)
        for place, header, stored in self._whole(segment, start):
            if header.first_offset <= stream.end:
                continue
            if header.first_offset == stream.end + 1 and place != position:
                break  # the next batch stands right behind the last; this is part of what was torn, a payload perhaps
            if header.first_offset > stream.end + 1:
                self._evidence = max(self._evidence, self._later_evidence(segment, place))
                position = self._put_back(segment, position, place, header.first_offset - 1)
                if self._evidence <= stream.end < header.first_offset - 1:
                    break
                self._set_rest_apart(segment, position, place, header.first_offset - 1)
            self._accept(segment, place, Batch.of(header, open_body(header, stored)))
            position = place + header.bytes
        return position

    def _begin(self, segment: Segment, start: int) -> int:
        if start == 0:
            segment.index = Index()
            if segment.base > self._stream.end + 1:
                self._set_apart(segment, 0, 0, segment.base - 1)
        return start

    def _whole(self, segment: Segment, start: int) -> Iterator[tuple[int, Header, bytes]]:
        return whole_batches(self._stream.seed, self._pool.get(segment.log_path), start, self._stream.root)

    def _header_at(self, segment: Segment, position: int) -> Header | None:
        return header_at(self._stream.seed, self._pool.get(segment.log_path), position)

    def _later_evidence(self, segment: Segment, position: int) -> int:
        """The highest watermark that a whole batch from here on states."""
        return max(header.durable for _, header, _ in self._whole(segment, position))

    def _accept(self, segment: Segment, place: int, batch: Batch) -> None:
        index = segment.index
        assert index is not None
        index.add(batch.first_offset, place, batch.header.time_us)
        self._take(batch)

    def _take(self, batch: Batch) -> None:
        stream = self._stream
        stream.end = batch.last_offset
        stream.time_us = max(stream.time_us, batch.header.time_us)
        self._evidence = max(self._evidence, batch.header.durable)
        self.found.batches += 1
        if batch.first_offset > self._checkpoint.applied:
            self._apply(batch)

    def _put_back(self, segment: Segment, position: int, end: int | None, last: int) -> int:
        """Where bytes are no batch, put back what the journal has of the messages up to an offset: batches that follow
        the last good one. Answers where they end. What would not fit, up to the next good one, never stood there."""
        supplied: list[tuple[int, Batch, bytes]] = []
        expected, at = self._stream.end + 1, position
        while (found := self._journaled.get(expected)) is not None and found[0].last_offset <= last:
            header, stored = found
            supplied.append((at, Batch.of(header, open_body(header, stored)), stored))
            expected, at = header.last_offset + 1, at + header.bytes
        if end is not None and (at > end or (expected > last and at < end)):
            return position
        for place, batch, stored in supplied:
            self._put(segment, place, batch, stored)
        return at

    def _set_rest_apart(self, segment: Segment, position: int, end: int, last: int) -> None:
        """Set apart what was acknowledged and went bad, up to where the journal has what comes before the next good
        batch; that is put back."""
        supplied: list[tuple[Batch, bytes]] = []
        upto, start = last, end
        ends = {header.last_offset: offset for offset, (header, _) in self._journaled.items()}
        while (first := ends.get(upto)) is not None and first > self._stream.end + 1:
            header, stored = self._journaled[first]
            if start - header.bytes < position:
                break
            supplied.append((Batch.of(header, open_body(header, stored)), stored))
            upto, start = first - 1, start - header.bytes
        if self._stream.end < upto:
            self._set_apart(segment, position, start - position, upto)
        for batch, stored in reversed(supplied):
            self._put(segment, start, batch, stored)
            start += batch.header.bytes

    def _put(self, segment: Segment, position: int, batch: Batch, stored: bytes) -> None:
        """Write a batch of the journal where it stood."""
        self._pool.get(segment.log_path).pwritev(self._sealed(batch.header, stored), position)
        self._pool.written(segment.log_path)
        segment.end = max(segment.end, position + batch.header.bytes)
        self._accept(segment, position, batch)
        self.found.from_journal += 1

    def _set_apart(self, segment: Segment, position: int, length: int, last: int) -> None:
        """Acknowledged messages went bad: keep the bytes, remember the gap, go on after it."""
        stream = self._stream
        fresh = untold(stream.holes, stream.end + 1, last)
        if length > 0 and fresh:
            self._keep(segment, position, self._pool.get(segment.log_path).pread(length, position), last)
        reason = f"damaged in {segment.log_path} at byte {position}"
        self.found.holes += [Hole(first, upto, reason) for first, upto in fresh]
        stream.end = max(stream.end, last)

    def _append_from_journal(self) -> None:
        """Append what was synced in the journal and did not reach the segment."""
        stream = self._stream
        later = sorted(offset for offset in self._journaled if offset > stream.end)
        for offset in later:
            header, stored = self._journaled[offset]
            if offset <= stream.end:
                continue
            if offset > stream.end + 1:
                stated = max(self._journaled[other][0].durable for other in later)
                if max(self._evidence, stated) <= stream.end:
                    return
                self._note_hole(offset - 1, "damaged in the journal")
            batch = Batch.of(header, open_body(header, stored))
            self._write(batch, stored)
            self._take(batch)
            self.found.from_journal += 1

    def _note_hole(self, last: int, reason: str) -> None:
        """Go on after messages that are gone, in a segment of its own, since a segment's offsets follow each other.

        The one before stays, though it may be empty: until the gap has its row, that is how the next recovery finds it.
        """
        stream = self._stream
        if not stream.segments:
            stream.start_segment(stream.end + 1)
        self.found.holes += [Hole(first, upto, reason) for first, upto in untold(stream.holes, stream.end + 1, last)]
        stream.end = last
        stream.roll()

    def _write(self, batch: Batch, stored: bytes) -> None:
        """Append a batch of the journal, as it was."""
        stream = self._stream
        segment = stream.segments[-1] if stream.segments else stream.start_segment(batch.first_offset)
        header = batch.header
        self._pool.get(segment.log_path).pwritev(self._sealed(header, stored), segment.end)
        self._pool.written(segment.log_path)
        index = stream.indexes.of(segment)
        index.add(header.first_offset, segment.end, header.time_us)
        segment.end += header.bytes

    def _sealed(self, header: Header, stored: bytes) -> list[bytes]:
        """The bytes of a batch, which are those that it had in the journal."""
        stream = self._stream
        data = seal_header(
            stream.seed,
            stream.root_bytes,
            header.first_offset,
            header.count,
            header.time_us,
            header.durable,
            header.body_bytes,
            header.body_crc,
            header.producer.encode() if header.producer is not None else None,
            header.sequence,
            header.flags,
        )
        return [data, stored, bytes(-(len(data) + len(stored)) & 7)]

    def _cut(self, segment: Segment, position: int) -> None:
        """Remove what follows the last good batch: zeros, or a torn write, or acknowledged messages gone bad."""
        file = self._pool.get(segment.log_path)
        rest = file.pread(segment.end - position, position).rstrip(b"\0")
        if rest:
            supplied = self._supplied_upto(self._stream.end)
            if supplied == self._stream.end:
                self.found.torn_bytes += len(rest)
            if self._evidence > supplied:
                self._keep(segment, position, rest, self._evidence)
            file.truncate(position)
            self._pool.written(segment.log_path)
            segment.allocated = position
        segment.end = position

    def _supplied_upto(self, offset: int) -> int:
        """The last offset that the journal has without a break after this one."""
        while (found := self._journaled.get(offset + 1)) is not None:
            offset = found[0].last_offset
        return offset

    def _keep(self, segment: Segment, position: int, data: bytes, last: int) -> None:
        self._files.make_folder(self._quarantine)
        first = self._stream.end + 1
        name = f"{self._stream.number}-{first}-{last}-at-{segment.base}-{position}"
        self._files.write(f"{self._quarantine}/{name}", data)

    def _pass_over_missing(self) -> None:
        """Offsets that were acknowledged are not used twice."""
        if self._evidence > self._stream.end:
            self._note_hole(self._evidence, "acknowledged, and missing at the end of the stream")
