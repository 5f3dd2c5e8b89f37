"""All streams of a folder: their recovery, and the writing of groups.

Promises: a group is durable, wholly, before `append` returns; if it fails before the sync nothing of it stays;
a group that touches one root costs one sync, and so does one that touches a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from headwater.config import Config
from headwater.errors import DiskFull, Failed, HeadwaterError, Malformed, ReadOnly, TooManyFiles
from headwater.store import folder as folders
from headwater.store.batch import Batch, Seed, checksum
from headwater.store.file_pool import FilePool
from headwater.store.files import Cells, Files
from headwater.store.journal import Journal
from headwater.store.log import Checkpoint, Found, Hole, Share, Stream, Write
from headwater.store.manifest import Listed, Manifest, found, intruders
from headwater.store.new_streams import FULL, NewStreams, refusal
from headwater.store.recovery import Recovery
from headwater.store.segment import INDEX, LOG, Segment, bases
from headwater.store.stream import DiskStream, open_segments

DOUBT = 0
"""The cell, as streams count from 1, that is not 0 once a sync has failed."""

RENAMED = "streams/renamed"
"""What a folder without messages is called for a moment; a crash may leave it."""

Group = Sequence[tuple[DiskStream, Sequence[Write]]]


def watermark(offset: int) -> int:
    """An offset as it stands in its cell: 48 bits, and 16 bits of its CRC32C, so that a flipped bit shows."""
    return offset << 16 | checksum(offset.to_bytes(6, "little")) & 0xFFFF


def offset_of(cell: int) -> int:
    """The offset in a cell; 0 if it is damaged."""
    offset = cell >> 16
    return offset if watermark(offset) == cell else 0


class Streams:
    """The streams of one folder, and their journal."""

    stream_type = DiskStream
    is_near = True

    def __init__(self, files: Files, folder: str, seed: Seed, config: Config, *, read_only: bool = False) -> None:
        self._files = files
        self._folder = folder
        self._seed = seed
        self._config = config
        self._read_only = read_only
        self.on_mended: Callable[[str], None] = lambda _: None
        """Hears of each index file that did not match its log, and was made anew."""
        self.on_damage: Callable[[str], None] = lambda _: None
        """Hears of what is wrong with the folder besides the streams."""
        self.on_bad: Callable[[str, Hole], None] = lambda *_: None
        """Hears of bytes of a root that went bad, before they are a gap, from any thread; what it raises is told
        instead."""
        self.on_roll: Callable[[str], None] = lambda _: None
        """Hears of each root that goes on in another segment; from any thread."""
        self._pool = FilePool(files, config.open_files_max, write=not read_only)
        self._pool.on_failed_sync = self._failed_sync
        self._journal = Journal(files, f"{folder}/journal", config.journal_bytes, seed)
        self._manifest = Manifest(files, folder)
        self._cells: Cells | None = None
        self._by_root: dict[str, DiskStream] = {}
        self._unused: dict[str, DiskStream] = {}
        """Streams that were made, of roots that have no message yet."""
        self._failed: str | None = None
        """Why no stream takes messages any more, those that are made from now on included."""
        self._tails_bytes = 0
        self._is_lent = False
        """Whether another thread writes to a stream, while this one writes to others."""
        self._garbage: list[str] = []
        """Files and folders of streams that were removed."""

    def all(self) -> list[DiskStream]:
        """Every stream, by number."""
        return list(self._by_root.values())

    def get(self, root: str) -> DiskStream | None:
        """The stream of a root, if it has one."""
        return self._by_root.get(root)

    # Opening

    def recover(
        self,
        checkpoints: Callable[[int], Checkpoint],
        evidence: Callable[[int], int],
        holes: Callable[[int], list[Hole]],
        apply: Callable[[DiskStream, Batch], None],
        first: str,
    ) -> dict[str, Found]:
        """Bring every stream back, the one of root `first` before the others; answers what was met in each."""
        self._files.make_folder(f"{self._folder}/streams")
        # What a killed process made may have no durable name yet.
        self._files.sync_folder(f"{self._folder}/streams")
        self._files.remove_tree(f"{self._folder}/{RENAMED}")
        self._cells = self._files.cells(f"{self._folder}/{folders.WATERMARKS}")
        met: dict[str, Found] = {}
        streams = self._listed()
        if self._cells.get(DOUBT):
            self._write_anew(streams)
        self._sync_found(streams)
        self._manifest.settle(anew=bool(self._cells.get(DOUBT)))
        journaled = self._journal.batches()
        known = {stream.root for stream in streams}
        for root in journaled.keys() - known:
            streams.append(self._new(root, self._next_number))
            self._files.make_folder(streams[-1].folder)
            self._manifest.add(streams[-1].number, root)
        for stream in sorted(streams, key=lambda stream: (stream.root != first, stream.number)):
            listed = self._manifest.streams[stream.number]
            stream.holes = [hole for hole in holes(stream.number) if hole.last >= listed.first]
            self._by_root[stream.root] = stream
            met[stream.root] = Recovery(
                self._files,
                self._pool,
                stream,
                checkpoints(stream.number),
                max(evidence(stream.number), offset_of(self._cells.get(stream.number))),
                journaled.get(stream.root, {}),
                f"{self._folder}/quarantine",
                lambda batch, stream=stream: apply(stream, batch),  # type: ignore[misc]
                listed,
            ).run()
        self._sync_segments()
        for stream in streams:
            self._cells.set(stream.number, watermark(stream.durable))
        self._manifest.sync()
        if journaled:
            self._journal.clear()
        if self._cells.get(DOUBT):
            self._cells.set(DOUBT, 0)
        return met

    def _write_anew(self, streams: list[DiskStream]) -> None:
        """Write to new files, under new names, what a process left whose sync failed: of the old ones the kernel
        believes that they are on disk, so that no sync would bring them there."""
        self._journal.write_anew()
        for stream in streams:
            found = bases(self._files, stream.folder)
            if found:
                path = Segment(stream.folder, found[-1]).log_path
                self._files.write(path, self._files.read(path))
            else:
                self._files.rename(stream.folder, f"{self._folder}/{RENAMED}")
                self._files.rename(f"{self._folder}/{RENAMED}", stream.folder)
        self._files.sync_folder(f"{self._folder}/streams")

    def _sync_found(self, streams: list[DiskStream]) -> None:
        """Make durable what is found: a killed process may have left it in memory only, and the state is about to
        reflect it. What the journal has that is not durable is here too, as segments are written first."""
        for stream in streams:
            found = bases(self._files, stream.folder)
            if found:
                self._pool.get(Segment(stream.folder, found[-1]).log_path).datasync()
                self._files.sync_folder(stream.folder)

    def _listed(self) -> list[DiskStream]:
        """Every stream that the folder should have, with a folder to go on in; what it has and should not is named."""
        there, strangers = found(self._files, self._folder)
        manifest = self._manifest
        listed = manifest.read()
        if manifest.damage and (there or listed):
            self.on_damage(
                f"{manifest.path} {manifest.damage} and is written anew from what is there; streams and segments that "
                "are missing, and that it alone knew of, can no longer be told"
            )
        for stream in [one for one in there if one.number in manifest.removed]:
            self._files.remove_tree(f"{self._folder}/streams/{stream.folder}")  # a crash left it
            there.remove(stream)
        for stream in there:
            is_news = stream.number not in listed
            for base in intruders(self._files, self._folder, self._seed, stream, listed.get(stream.number)):
                stream.segments.discard(base)
                self._set_apart(f"streams/{stream.folder}", base)
            if not manifest.adopt(stream):
                strangers.append(stream.folder)
            elif is_news and stream.segments and not manifest.damage:
                self.on_damage(f"{manifest.path} did not know of streams/{stream.folder}, and lists it now")
        for name in strangers:
            self.on_damage(f"streams/{name} is no stream of this folder and is left alone; move it away")
        for number in listed.keys() - {stream.number for stream in there}:
            self._files.make_folder(f"{self._folder}/streams/{listed[number].folder}")
        return [self._stream(listed[number]) for number in sorted(listed)]

    def _set_apart(self, path: str, base: int) -> None:
        """Move a file away that is no segment of its stream, lest the stream goes on in it."""
        self._files.make_folder(f"{self._folder}/quarantine")
        source = Segment(path, base).log_path
        target = f"quarantine/{source.replace('/', '-')}"
        self._files.rename(f"{self._folder}/{source}", f"{self._folder}/{target}")
        self._files.sync_folder(f"{self._folder}/quarantine")
        self.on_damage(f"{source} does not begin with the message that it is named by: it is {target} now")

    def look(self, holes: Callable[[int], list[Hole]]) -> None:
        """See the streams as they are now, beside a process that owns them; changes nothing."""
        if self._cells is None and self._files.exists(f"{self._folder}/{folders.WATERMARKS}"):
            self._cells = self._files.cells(f"{self._folder}/{folders.WATERMARKS}", write=False)
        # The owner makes a file before its line, and deletes one after: what was listed before we looked and still is
        # afterwards should be there.
        before = self._manifest.read()
        there, _ = found(self._files, self._folder)
        for one in there:
            one.segments -= intruders(self._files, self._folder, self._seed, one, before.get(one.number))
        bases_there = {one.number: one.segments for one in there}
        is_missed = any(listed.segments - bases_there.get(listed.number, set()) for listed in before.values())
        after = self._manifest.read() if is_missed else before
        unlisted = [
            one
            for one in there
            if one.number not in before and one.number not in self._manifest.removed and not self._is_in_the_making(one)
        ]
        for stream in [one for one in self._by_root.values() if one.number in self._manifest.removed]:
            stream.remove()
            del self._by_root[stream.root]
        for listed in (*before.values(), *unlisted):
            stream = self._by_root.get(listed.root) or self._by_root.setdefault(listed.root, self._stream(listed))
            if stream.number == listed.number:
                listed.first = after.get(listed.number, listed).first
                stream.holes = [hole for hole in holes(listed.number) if hole.last >= listed.first]
                kept = sorted(base for base in bases_there.get(listed.number, ()) if base >= listed.first)
                stream.catch_up(open_segments(self._files, stream.folder, kept), self._durable(stream))
                stream.note_missing(listed)

    def _is_in_the_making(self, one: Listed) -> bool:
        """Whether its owner has made its folder a moment ago, and not its watermark or its line."""
        return not one.segments and (self._cells is None or not self._cells.get(one.number))

    def _durable(self, stream: DiskStream) -> int:
        """How far a reader beside the owner may read."""
        cell = self._cells.get(stream.number) if self._cells is not None else 0
        if watermark(offset_of(cell)) != cell:
            raise Malformed(
                f'the watermark of "{stream.root}" is damaged or missing, so nobody but the owner can tell how far it '
                f'may be read; open "{self._folder}" once for writing, which makes it again'
            )
        return offset_of(cell)

    def _stream(self, listed: Listed) -> DiskStream:
        number, folder = listed.number, f"{self._folder}/streams/{listed.folder}"
        stream = self.stream_type(self._files, self._pool, self._seed, self._config, folder, number, listed.root)
        stream.on_failure = self._note_failure
        stream.on_segment = lambda base: self._note_segment(stream, base)
        stream.on_trim = lambda first: self._note_trim(number, first)
        stream.on_mended = self._tell_mended
        stream.on_bad = lambda hole: self.on_bad(stream.root, hole)
        return stream

    def _tell_mended(self, path: str) -> None:
        self.on_mended(path)

    def _note_failure(self) -> None:
        """Tell the next process; it need not be durable, as a crash would settle what is in doubt."""
        if self._cells is not None:
            self._cells.set(DOUBT, 1)

    def _note_segment(self, stream: DiskStream, base: int) -> None:
        self._manifest.add(stream.number, stream.root, base)
        if len(stream.segments) > 1:
            self.on_roll(stream.root)

    def _note_trim(self, number: int, first: int) -> None:
        """What is before this offset is about to be deleted; a crash in the midst must not make it look like damage."""
        try:
            self._manifest.move_first(number, first)
        except OSError as error:
            # What is deleted makes room. Until the line is written, with the next group, a crash would report a gap.
            if error.errno not in FULL:
                raise Failed(f"{self._manifest.path} could not be written ({error}); nothing was deleted") from error

    def _new(self, root: str, number: int) -> DiskStream:
        stream = self._stream(Listed(number, root))
        stream.end = stream.durable = self._manifest.begins(root) - 1
        return stream

    @property
    def _next_number(self) -> int:
        taken = chain(self._by_root.values(), self._unused.values())
        return max(self._manifest.number, 1 + max((stream.number for stream in taken), default=0))

    # Making: by the thread that commits.

    def is_made(self, root: str) -> bool:
        """Whether `create` has nothing to make."""
        return root in self._by_root or root in self._unused

    def create(self, root: str) -> DiskStream:
        """The stream of a new root; it is made here unless it was before."""
        if not self.is_made(root):
            making = self.make_apart([root])
            making.write()
            for error in making.show().values():
                raise error
        stream = self._by_root.get(root)
        if stream is None:
            stream = self._by_root[root] = self._unused.pop(root)
            if self._failed is not None:
                stream.fail(self._failed)
        return stream

    def make_apart(self, roots: Sequence[str]) -> NewStreams:
        """Prepare to make the streams of new roots, while others are written to; one such at a time."""
        first = self._next_number
        streams = [self._new(root, number) for number, root in enumerate(roots, first)]
        return NewStreams(self._files, self._pool, self._manifest, streams, self._mark, self._take_new)

    def _take_new(self, stream: DiskStream) -> None:
        if stream.failed is None:
            self._unused[stream.root] = stream
        else:
            self._by_root[stream.root] = stream

    def _mark(self, stream: DiskStream) -> None:
        assert self._cells is not None
        self._cells.set(stream.number, watermark(stream.durable))

    # Removing: by the thread that commits.

    @property
    def removed(self) -> Collection[int]:
        """Numbers of streams whose roots were removed, as far as they are remembered."""
        return self._manifest.removed.keys()

    @property
    def gone(self) -> Collection[Listed]:
        """These streams, and where new ones of their roots go on."""
        return self._manifest.removed.values()

    def remove(self, stream: Stream) -> None:
        """A stream is no more, durably; its files are garbage from now on, which `sweep` deletes. Nothing of the
        journal brings it back, as that is emptied before."""
        found = self._by_root[stream.root]
        if self._has_failed():
            raise ReadOnly("a sync has failed, so no root can be removed; close the bus and open it again")
        try:
            self._sync_segments()
            self._journal.clear()
        except OSError as error:
            raise refusal(error) from error
        try:
            self._manifest.remove(found.number, found.end + 1)
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(f'the disk is full; "{found.root}" was not removed: free some room first') from error
            found.fail(f"whether its root was removed cannot be told ({error})")
            raise Failed(f"{found.failed}; close the bus and open it again") from error
        del self._by_root[stream.root]
        self._garbage += found.remove()
        self._garbage.append(found.folder)

    def sweep(self) -> bool:
        """Delete a file that a removed stream has left; whether there are more."""
        if self._garbage:
            path = self._garbage.pop(0)
            if path.endswith((LOG, INDEX)):
                self._files.remove(path)
            else:
                self._files.remove_tree(path)
        return bool(self._garbage)

    # Appending: by the thread that commits.

    def append(self, asked: Sequence[tuple[Stream, Sequence[Write]]], now_us: int) -> None:
        """Write a group, make it durable, and let readers see it. If it cannot be written, nothing of it stays; if it
        cannot be synced, nobody sees it."""
        group = [(self._by_root[stream.root], writes) for stream, writes in asked]
        placed = [stream.place(writes, now_us) for stream, writes in group]
        try:
            if self._manifest.is_behind:
                self._manifest.sync()
            for (stream, writes), buffers in zip(group, placed, strict=True):
                stream.write(writes, buffers)
            if len(placed) > 1:
                self._write_journal(list(chain.from_iterable(placed)))
        except (OSError, HeadwaterError) as error:
            for stream, _ in group:
                stream.take_back()
            raise refusal(error) from error
        if len(group) == 1:
            group[0][0].sync()
        else:
            self._sync_journal()
        self.show(group)

    def append_apart(self, stream: Stream, now_us: int, share: Share) -> Appending:
        """Prepare to write much to one stream, while others are written to."""
        found = self._by_root[stream.root]
        try:
            if self._manifest.is_behind:
                self._manifest.sync()
            self._restart_journal(0)  # it grows as long as not all segments may be synced
        except (OSError, HeadwaterError) as error:
            raise refusal(error) from error
        self._pool.lend(found.folder)
        self._is_lent = True
        return Appending(self, found, now_us, share)

    def borrow(self) -> None:
        """This thread writes apart."""
        self._pool.borrow()

    def take_back(self) -> None:
        """Nothing is written apart any more."""
        self._pool.take_back()
        self._is_lent = False

    def show(self, group: Group) -> None:
        """What was written is durable: let readers see it."""
        assert self._cells is not None
        show = self._cells.set
        for stream, writes in group:
            self._tails_bytes += stream.tail.add(writes)
            stream.durable = stream.end
            show(stream.number, watermark(stream.durable))
        if self._tails_bytes > self._config.tails_bytes:
            for stream in self._by_root.values():
                stream.tail.drop()
            self._tails_bytes = 0

    def _restart_journal(self, length: int) -> None:
        """Begin the journal again, if so much more is too much for it. What a stream lost in a sync that failed may be
        there alone: then it grows until the next open."""
        if self._journal.is_full(length) and not self._has_failed() and not self._is_lent:
            self._sync_segments()
            self._journal.restart()

    def _write_journal(self, buffers: list[bytes]) -> None:
        length = sum(map(len, buffers))
        self._restart_journal(length)
        try:
            self._journal.write(buffers, length)
        except TooManyFiles:
            self._pool.make_room()  # for the next try
            raise
        except OSError:
            self._cut_journal()
            raise
        except Failed as error:
            self._fail(error.args[0])
            raise

    def _cut_journal(self) -> None:
        try:
            self._journal.cut()
        except OSError as error:
            self._fail(f"the journal could not be cut back ({error})")

    def _sync_journal(self) -> None:
        try:
            self._journal.sync()
        except OSError as error:
            self._fail(f"a sync of the journal failed ({error})")
            raise Failed(f"the messages are not on disk: {self._failed}; all streams are read-only now") from error

    def _fail(self, reason: str) -> None:
        """Append nothing to any stream any more."""
        self._failed = reason
        for stream in self._by_root.values():
            stream.fail(reason)

    def _has_failed(self) -> bool:
        return any(stream.failed is not None for stream in self._by_root.values())

    def _sync_segments(self) -> None:
        """Make durable what the journal has covered so far; a sync that failed is not repeated."""
        self._pool.sync(self._pool.dirty)

    def _failed_sync(self, path: str, error: OSError) -> Failed:
        """A segment may be on disk or not: its stream takes no more."""
        reason = f"a sync of {path} failed ({error})"
        for stream in self._by_root.values():
            if path.startswith(stream.folder + "/"):
                stream.fail(reason)
        return Failed(f"{reason}; the stream is read-only now")

    # Others

    def checkpoint(self, stream: Stream) -> Checkpoint:
        """Where a stream stands, for the state to remember."""
        found = self._by_root[stream.root]
        found.store_indexes()
        return Checkpoint(found.durable, *found.place_of_end())

    def seal(self) -> None:
        """From here on, what is stored by now is never written to again."""
        for stream in self._by_root.values():
            if stream.segments and stream.segments[-1].end and stream.failed is None:
                stream.roll()

    def copy(self, target: str) -> None:
        """Hard links to the segments that were sealed, and the version of the folder."""
        folders.copy(self._files, self._folder, target, link=True)
        cells = self._files.cells(f"{target}/{folders.WATERMARKS}")
        for stream in self._by_root.values():
            cells.set(stream.number, watermark(stream.durable))
        cells.sync()
        cells.close()

    def free_bytes(self) -> int:
        """Room left on the device."""
        return self._files.free_bytes(self._folder)

    def close(self) -> None:
        """Sync and let go of every file; the journal is emptied, as nothing depends on it any more."""
        try:
            try:
                if not self._read_only:
                    self._sync_segments()
                    if not self._has_failed():
                        self._journal.clear()
            finally:
                self.abandon()
        except OSError as error:
            raise Failed(
                f"the bus is closed, and what was acknowledged is kept, but the disk fails ({error})"
            ) from error

    def abandon(self) -> None:
        """Let go of every file as it is."""
        self._journal.close()
        self._manifest.close()
        self._pool.close()
        if self._cells is not None:
            if not self._read_only:
                self._cells.sync()
            self._cells.close()


class Appending:
    """Much that is on its way to one stream, while others are written to."""

    def __init__(self, streams: Streams, stream: DiskStream, now_us: int, share: Share) -> None:
        self._streams = streams
        self._stream = stream
        self._now_us = now_us
        self._share = share
        self._writes: Sequence[Write] = ()

    def write(self, writes: Sequence[Write]) -> None:
        """Write and sync; by any thread."""
        stream = self._stream
        self._writes = writes
        self._streams.borrow()
        buffers = stream.place(writes, self._now_us)
        try:
            stream.write(writes, buffers, self._share)
        except (OSError, HeadwaterError) as error:
            stream.take_back()
            raise refusal(error) from error
        stream.sync()
        if stream.failed is not None:  # the thread that commits has found out why
            raise Failed(
                f'the messages may be on disk or not: {stream.failed}; stream "{stream.root}" is read-only now'
            )

    def show(self) -> None:
        """Let readers see it; by the thread that commits."""
        self._streams.take_back()
        self._streams.show([(self._stream, self._writes)])

    def drop(self) -> None:
        """It could not be written; by the thread that commits."""
        self._streams.take_back()
