"""The log of a leader: streams that change by records alone.

What is appended is placed, so that its bytes are those that will be on disk; its record is sent; once that is committed
the bytes are written to the segments, in the order of the records, and shown. So nothing that is not committed is ever
in a file, and what is not, though it was placed, needs no undoing.
Promises, besides those of `Log`: a segment is begun, and one is deleted, where a record says so, on every node alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from headwater.cluster.record import Append, Create, Entry, Remove, Roll, Trim
from headwater.cluster.sequencer import Hook, PendingRecord
from headwater.config import Config
from headwater.errors import Damaged, HeadwaterError
from headwater.store.batch import Batch, Seed
from headwater.store.files import Files
from headwater.store.log import Checkpoint, Found, Hole, Share, Stream, Write
from headwater.store.mirror import ELSEWHERE, Mirror
from headwater.store.new_streams import NewStreams
from headwater.store.stream import DiskStream
from headwater.store.streams import Appending, Group

if TYPE_CHECKING:
    from headwater.cluster.replication import Replication
    from headwater.store.manifest import Listed

Commit = Callable[[Sequence[Entry], Hook], object]
"""Sends a record of these entries, and returns once it is committed and carried out."""


class ReplicatedStream(DiskStream):
    """A stream whose segments go by records."""

    commit_entries: Commit

    def trim(self, upto: int) -> int:
        """Delete whole segments that end at or before an offset, on all nodes; answers the new first offset."""
        active = self.segments[-1] if self.segments else None
        rolls = bool(active and active.end and upto >= self.durable == self.end and self.failed is None)
        found = [segment.base for segment in self.segments] + ([self.end + 1] if rolls else [])
        kept = max(0, bisect_right(found, upto + 1) - 1)
        if kept or rolls:
            entries: list[Entry] = [Roll(self.number, self.end + 1)] if rolls else []
            entries += [Trim(self.number, found[kept])] if kept else []
            self.commit_entries(entries, lambda _: self._trim(upto))
        return self.first_offset

    def _trim(self, upto: int) -> None:
        super().trim(upto)


class ReplicatedLog(Mirror):
    """The streams of the node that leads."""

    stream_type = ReplicatedStream
    is_near = False  # it waits for the engine, for as long as that has no majority

    def __init__(self, files: Files, folder: str, seed: Seed, config: Config, replication: Replication) -> None:
        super().__init__(files, folder, seed, config)
        self._replication = replication

    def _stream(self, listed: Listed) -> DiskStream:
        stream = super()._stream(listed)
        assert isinstance(stream, ReplicatedStream)
        stream.commit_entries = self._replication.commit
        return stream

    def _note_failure(self) -> None:
        """A stream takes nothing more, so this node can lead no more: another does, and this one begins anew."""
        super()._note_failure()
        reason = next((stream.failed for stream in self.made() if stream.failed is not None), None)
        self._replication.stop(f"its disk, or what it keeps in memory, failed: {reason}")

    # Opening

    def recover(
        self,
        checkpoints: Callable[[int], Checkpoint],
        evidence: Callable[[int], int],
        holes: Callable[[int], list[Hole]],
        apply: Callable[[DiskStream, Batch], None],
        first: str,
    ) -> dict[str, Found]:
        """Bring every stream back. What is damaged is another node's to give: a gap would be this one's alone."""
        met = super().recover(checkpoints, evidence, holes, apply, first)
        for root, found in met.items():
            if found.holes or found.torn_bytes or found.from_journal:
                what = found.holes[0].reason if found.holes else "its end is not what it was"
                raise Damaged(f'"{root}" in "{self._folder}" went bad ({what}): this node does not lead; {ELSEWHERE}')
        return met

    # Making and removing

    def create(self, root: str) -> DiskStream:
        if not self.is_made(root):
            making = self.make_apart([root])
            making.write()
            for error in making.show().values():
                raise error
        with self._replication.between:  # a checkpoint must not miss it
            return super().create(root)

    def make_apart(self, roots: Sequence[str]) -> NewStreams:
        first = self._next_number
        streams = [self._new(root, number) for number, root in enumerate(roots, first)]
        making = ReplicatedMaking(self._files, self._pool, self._manifest, streams, self._mark, self._take_new)
        making.commit_entries = self._replication.commit
        return making

    def remove(self, stream: Stream) -> None:
        found = self._by_root[stream.root]
        entry = Remove(found.number, found.end + 1)
        self._replication.commit([entry], lambda _: super(ReplicatedLog, self).remove(found))

    # Appending

    def append(self, asked: Sequence[tuple[Stream, Sequence[Write]]], now_us: int) -> None:
        """Place a group, send its record, and let readers see it once that is committed."""
        group = [(self._by_root[stream.root], writes) for stream, writes in asked]
        self._replication.wait(self.place(group, now_us))
        self.show(group)

    def place(self, group: Group, now_us: int) -> PendingRecord:
        """Place a group and send its record."""
        placed = [stream.place(writes, now_us) for stream, writes in group]
        entries = list(chain.from_iterable(map(self._entries, group, placed)))
        return self._replication.send(entries, lambda _: self._put_all(group, placed))

    def _entries(self, appended: tuple[DiskStream, Sequence[Write]], buffers: Sequence[bytes]) -> list[Entry]:
        stream, _ = appended
        append = Append(stream.number, b"".join(buffers))
        if self._is_full(stream, len(append.data)):
            return [Roll(stream.number, stream.end + 1), append]
        return [append]

    def _is_full(self, stream: DiskStream, length: int) -> bool:
        active = stream.segments[-1] if stream.segments else None
        return active is not None and active.end > 0 and active.end + length > self._config.segment_bytes

    def _put_all(self, group: Group, placed: Sequence[Sequence[bytes]]) -> None:
        for (stream, writes), buffers in zip(group, placed, strict=True):
            length = sum(map(len, buffers))
            self._replication.note_appended(length)
            if self._is_full(stream, length):
                stream.roll()
            self.extend(stream, buffers, [write.batch.header for write in writes if write.batch is not None])

    def append_apart(self, stream: Stream, now_us: int, share: Share) -> Appending:
        return ReplicatedAppending(self, self._by_root[stream.root], now_us, share, self._replication)

    # Others

    def checkpoint(self, stream: Stream) -> Checkpoint:
        with self._replication.between:
            return super().checkpoint(stream)

    def seal(self) -> None:
        found = [stream for stream in self._by_root.values() if stream.segments and stream.segments[-1].end]
        if found:
            entries = [Roll(stream.number, stream.end + 1) for stream in found]
            self._replication.commit(entries, lambda _: super(ReplicatedLog, self).seal())

    def close(self) -> None:
        """Bring everything to disk, as far as this node may, and let go of it."""
        try:
            self._replication.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        self._replication.drop()
        super().abandon()


class ReplicatedMaking(NewStreams):
    """Streams that are made once their record is committed."""

    commit_entries: Commit

    def write(self) -> None:
        """Make them; by any thread."""
        entries = [Create(stream.number, stream.root, stream.end + 1) for stream in self._streams]
        try:
            self.commit_entries(entries, lambda _: self._write())
        except HeadwaterError as error:
            self._failures = {stream.root: error for stream in self._streams}

    def _write(self) -> None:
        super().write()
        for error in super().show().values():  # at once, as a checkpoint must not miss them
            raise error

    def show(self) -> Mapping[str, HeadwaterError]:
        """They are there already, all of them or none."""
        return self._failures


class ReplicatedAppending(Appending):
    """Much that is on its way to one stream, while others are appended to."""

    def __init__(
        self, log: ReplicatedLog, stream: DiskStream, now_us: int, share: Share, replication: Replication
    ) -> None:
        super().__init__(log, stream, now_us, share)
        self._log = log
        self._replication = replication

    def write(self, writes: Sequence[Write]) -> None:
        """Send it, and wait until it is committed; by any thread."""
        self._writes = writes
        self._replication.wait(self._log.place([(self._stream, writes)], self._now_us))

    def show(self) -> None:
        """Let readers see it; by the thread that commits."""
        self._log.show([(self._stream, self._writes)])

    def drop(self) -> None:
        """It is not stored."""
