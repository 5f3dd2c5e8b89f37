"""All streams of a folder: their recovery, and the writing of groups.

Promises: a group is durable, wholly, before `Appended.wait` returns; if it fails before the sync nothing of it stays;
a group that touches one root costs one sync, and so does one that touches a hundred.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from headwater.config import Config
from headwater.errors import DiskFull, Failed, HeadwaterError
from headwater.store.batch import Batch
from headwater.store.files import Cells, Files
from headwater.store.journal import Journal
from headwater.store.recovery import Checkpoint, Found, Recovery
from headwater.store.segment import FilePool
from headwater.store.stream import DiskStream, Hole, Write, length_of, open_segments

SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-.")

Group = Sequence[tuple[DiskStream, Sequence[Write]]]


def quote(root: str) -> str:
    """A root as part of a folder's name."""
    return "".join(chr(byte) if chr(byte) in SAFE else f"={byte:02X}" for byte in root.encode())


def unquote(name: str) -> str:
    """The root that `quote` was given."""
    first, *rest = name.split("=")
    return (first.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest)).decode()


class Appended:
    """A group that was written; durable once `wait` returns."""

    __slots__ = ("_group", "_streams")

    def __init__(self, streams: Streams, group: Group) -> None:
        self._streams = streams
        self._group = group

    def wait(self) -> None:
        """Return when the group is durable; raises, and shows nobody the group, if that fails."""
        self._streams.settle(self._group)


class Streams:
    """The streams of one folder, and their journal."""

    def __init__(self, files: Files, folder: str, config: Config, *, read_only: bool = False) -> None:
        self._files = files
        self._folder = folder
        self._config = config
        self._read_only = read_only
        self._pool = FilePool(files, config.open_files_max, write=not read_only)
        self._journal = Journal(files, f"{folder}/journal", config.journal_bytes)
        self._cells: Cells | None = None
        self._by_root: dict[str, DiskStream] = {}
        self._tails_bytes = 0

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
        self._cells = self._files.cells(f"{self._folder}/watermarks")
        journaled = self._journal.batches()
        met: dict[str, Found] = {}
        streams = self._folders()
        known = {stream.root for stream in streams}
        streams += [self._new(root) for root in journaled if root not in known]
        for stream in sorted(streams, key=lambda stream: (stream.root != first, stream.number)):
            stream.holes = holes(stream.number)
            self._by_root[stream.root] = stream
            met[stream.root] = Recovery(
                self._files,
                self._pool,
                stream,
                checkpoints(stream.number),
                max(evidence(stream.number), self._cells.get(stream.number)),
                journaled.get(stream.root, {}),
                f"{self._folder}/quarantine",
                lambda batch, stream=stream: apply(stream, batch),  # type: ignore[misc]
            ).run()
            # What a killed process wrote may be in memory only: make it durable before anybody relies on it.
            if stream.segments:
                self._pool.written(stream.segments[-1].log_path)
                self._files.sync_folder(stream.folder)
        self._sync_segments()
        for stream in streams:
            self._cells.set(stream.number, stream.durable)
        if journaled:
            self._journal.clear()
        return met

    def look(self, holes: Callable[[int], list[Hole]]) -> None:
        """See the streams as they are now, beside a process that owns them; changes nothing."""
        if self._cells is None:
            self._cells = self._files.cells(f"{self._folder}/watermarks", write=False)
        for stream in self._folders():
            stream = self._by_root.setdefault(stream.root, stream)
            stream.holes = holes(stream.number)
            durable = self._cells.get(stream.number)
            stream.catch_up(open_segments(self._files, stream.folder), durable)

    def _folders(self) -> list[DiskStream]:
        streams = []
        for name in self._files.list(f"{self._folder}/streams"):
            number, dash, quoted = name.partition("-")
            if dash and number.isdigit():
                streams.append(self._stream(name, int(number), unquote(quoted)))
        return sorted(streams, key=lambda stream: stream.number)

    def _stream(self, name: str, number: int, root: str) -> DiskStream:
        return DiskStream(self._files, self._pool, self._config, f"{self._folder}/streams/{name}", number, root)

    def _new(self, root: str) -> DiskStream:
        numbers = [name.partition("-")[0] for name in self._files.list(f"{self._folder}/streams")]
        number = 1 + max((int(number) for number in numbers if number.isdigit()), default=0)
        number = max(number, 1 + max((stream.number for stream in self._by_root.values()), default=0))
        stream = self._stream(f"{number}-{quote(root)}", number, root)
        self._files.make_folder(stream.folder)
        return stream

    def create(self, root: str) -> DiskStream:
        """The stream of a new root; its folder is durable, its first segment comes with its first message."""
        stream = self._by_root.get(root)
        if stream is None:
            stream = self._by_root[root] = self._new(root)
        return stream

    # Appending: by the thread that commits.

    def append(self, group: Group, now_us: int) -> Appended:
        """Write a group. If it raises, nothing of the group stays."""
        placed = [(stream, writes, stream.place(writes, now_us)) for stream, writes in group]
        marks = [(stream, stream.end, stream.segments[-1] if stream.segments else None) for stream, _ in group]
        positions = [segment.end if segment is not None else 0 for _, _, segment in marks]
        try:
            for stream, writes, buffers in placed:
                stream.write(writes, buffers, length_of(buffers))
            if len(placed) > 1:
                self._write_journal([buffer for _, _, buffers in placed for buffer in buffers])
        except (OSError, HeadwaterError) as error:
            for (stream, end, segment), position in zip(marks, positions, strict=True):
                self._take_back(stream, end, segment.base if segment else 0, position)
            raise _refusal(error) from error
        return Appended(self, group)

    def settle(self, group: Group) -> None:
        """Sync a group that was written, and let readers see it."""
        if len(group) == 1:
            group[0][0].sync()
        else:
            self._sync_journal()
        assert self._cells is not None
        for stream, writes in group:
            self._tails_bytes -= stream.tail_bytes
            stream.commit(writes)
            self._tails_bytes += stream.tail_bytes
            self._cells.set(stream.number, stream.durable)
        if self._tails_bytes > self._config.tails_bytes:
            for stream in self._by_root.values():
                stream.drop_tail()
            self._tails_bytes = 0

    def _write_journal(self, buffers: list[bytes]) -> None:
        length = length_of(buffers)
        if self._journal.is_full(length):
            self._sync_segments()
            self._journal.restart()
        self._journal.write(buffers, length)

    def _sync_journal(self) -> None:
        try:
            self._journal.sync()
        except OSError as error:
            reason = f"a sync of the journal failed ({error})"
            for stream in self._by_root.values():
                stream.fail(reason)
            raise Failed(f"the messages are not on disk: {reason}; all streams are read-only now") from error

    def _take_back(self, stream: DiskStream, end: int, base: int, position: int) -> None:
        if stream.end == end:
            return
        rolled = stream.segments[-1].base != base
        stream.undo(end, 0 if rolled else position)

    def _sync_segments(self) -> None:
        """Make durable what the journal has covered so far."""
        for path in self._pool.dirty:
            try:
                self._pool.get(path).datasync()
            except OSError as error:
                reason = f"a sync of {path} failed ({error})"
                for stream in self._by_root.values():
                    if path.startswith(stream.folder + "/"):
                        stream.fail(reason)
                raise Failed(f"{reason}; the stream is read-only now") from error
            self._pool.synced(path)

    # Others

    def checkpoint(self, stream: DiskStream) -> Checkpoint:
        """Where a stream stands, for the state to remember."""
        stream.store_indexes()
        segment = stream.segments[-1] if stream.segments else None
        return Checkpoint(stream.durable, segment.base if segment else 0, segment.end if segment else 0)

    def free_bytes(self) -> int:
        """Room left on the device."""
        return self._files.free_bytes(self._folder)

    def close(self) -> None:
        """Sync and let go of every file; the journal is emptied, as nothing depends on it any more."""
        if not self._read_only:
            self._sync_segments()
            if not any(stream.failed for stream in self._by_root.values()):
                self._journal.clear()
        self.abandon()

    def abandon(self) -> None:
        """Let go of every file as it is."""
        self._journal.close()
        self._pool.close()
        if self._cells is not None:
            if not self._read_only:
                self._cells.sync()
            self._cells.close()


def _refusal(error: OSError | HeadwaterError) -> HeadwaterError:
    if isinstance(error, HeadwaterError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the disk is full; nothing was stored: free some room and publish again")
    return Failed(f"the disk refused the write ({error}); nothing was stored")
