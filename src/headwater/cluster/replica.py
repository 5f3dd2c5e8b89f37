"""The replica: the folder of a node that follows, to which records are applied.

A record is applied wholly before the next, in their order, by one thread. Nothing is synced record by record, but at
checkpoints; after a crash the folder is cut to the last of them, and records are applied from there.
Promises: two replicas that stand at the same position have equal segments, to the byte, and equal rows but for those
that are each node's own; one that cannot go on as its files are not what they were raises `Damaged`, and another copy
is to be taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from headwater import threads
from headwater.clock import Clock, SystemClock
from headwater.cluster import checkpoint, snapshot
from headwater.cluster.checkpoint import Checkpoints
from headwater.cluster.digests import Digesting, Digests, first_read
from headwater.cluster.record import Append, Archived, Create, Entry, Epoch, Position, Record, Remove, Roll, Rows, Trim
from headwater.cluster.snapshot import Snapshot
from headwater.config import Config
from headwater.errors import Damaged, ReadOnly
from headwater.events import Events
from headwater.store import folder as folders
from headwater.store import notes
from headwater.store import state as rows
from headwater.store.batch import Seed
from headwater.store.data_folder import DataFolder
from headwater.store.files import Files
from headwater.store.mirror import Mirror
from headwater.store.rocks import RocksState
from headwater.store.state import State

CHECKPOINT_BYTES = 64 << 20
"""After so much was applied a checkpoint is due: what a crash costs, and a new leader has to read, stays bounded."""
CHECKPOINT_RECORDS = 20_000


class _Following:
    """How a follower's folder comes to have what it has: it is given."""

    def streams(self, files: Files, folder: str, seed: Seed, config: Config) -> Mirror:
        return Mirror(files, folder, seed, config)

    def state(self, state: State) -> State:
        return state

    def mark_archived(self, lake: str, archived: dict[str, int], leave: Callable[[], None]) -> None:
        raise ReadOnly("this node follows; the mark is left where another leads")


class Replica:
    """A folder that follows."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Config | None = None,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        files: Files | None = None,
        state: State | None = None,
    ) -> None:
        """Open it by the crash rule; `files` and `state` are the doors through which tests bring in faults."""
        self.config = config or Config()
        clock = clock or SystemClock()
        self.path = os.fspath(path)
        self._data = DataFolder(
            *(self.path, self.config, clock, events or Events(clock, self.config.events_kept)),
            files=files,
            state=state,
            replication=_Following(),
        )
        self._files = self._data.files
        try:
            self._open()
        except BaseException:
            self._data.drop()
            raise

    def _open(self) -> None:
        state = self._data.stored
        if isinstance(state, RocksState) and state.met:
            raise Damaged(f'the state in "{self.path}" has lost rows that were on disk; remove the folder')
        synced = checkpoint.read(state, self.path)
        streams = self._data.streams
        assert isinstance(streams, Mirror)
        self._streams = streams
        self._files.remove(f"{self.path}/{notes.NAME}")  # of what it handed out itself, when it led
        streams.open_at(synced.places, synced.gone)
        self.id = self._data.id
        self.bus = folders.cluster_of(self._files, self.path)
        self.position = synced.position
        """The last record that was applied."""
        self.written = checkpoint.written(state, self.path)
        """The last one of which there was anything when the folder was opened."""
        self._between = threads.RLock()
        self._checkpoints = Checkpoints(state, self._between, lambda: self.position, synced)
        self._digesting = Digesting(self._files)
        self._since_bytes = self._since_records = 0
        self.on_applied: Callable[[Sequence[Entry]], None] | None = None
        """Hears of what was applied, in the thread that does."""

    @property
    def state(self) -> State:
        """The rows."""
        return self._data.stored

    @property
    def synced(self) -> Position:
        """The last record that is on disk: what comes after it is needed again after a crash."""
        return self._checkpoints.synced

    @property
    def is_due(self) -> bool:
        """Whether so much was applied since the last checkpoint that the next is to be made."""
        return self._since_bytes >= CHECKPOINT_BYTES or self._since_records >= CHECKPOINT_RECORDS

    @property
    def is_ahead(self) -> bool:
        """Whether records are yet to be applied again, as a crash has cut the folder to its checkpoint."""
        return self.written.number > self.position.number

    def accept_rows(self) -> None:
        """Have rows count that are ahead of the streams: the records that they are of are nowhere any more."""
        self._data.stored.commit({checkpoint.WRITTEN: rows.pack(self.position)})
        self.written = self.position

    def apply(self, record: Record, position: Position) -> None:
        """Apply the record that ends at a position; Damaged or Failed if that cannot be: the node is to end then."""
        with self._between:
            for entry in record.entries:
                self._apply(entry, position)
            if not any(isinstance(entry, Rows) for entry in record.entries):
                self._data.stored.write(checkpoint.with_position({}, position))
            self.position = position
            self._since_records += 1
        if self.on_applied is not None:
            self.on_applied(record.entries)
        if self.is_due:
            self.checkpoint()

    def _apply(self, entry: Entry, position: Position) -> None:
        streams = self._streams
        match entry:
            case Append(stream, data):
                streams.put(stream, data)
                self._since_bytes += len(data)
            case Rows(changed):
                self._data.stored.write(checkpoint.with_position(changed, position))
                self._since_bytes += sum(map(len, changed))
            case Create(stream, root, first):
                streams.create_at(stream, root, first)
            case Roll(stream, base):
                streams.roll_at(stream, base)
            case Trim(stream, first):
                streams.trim_at(stream, first)
            case Remove(stream):
                streams.remove_at(stream)
            case Archived(lake, offsets):
                self._data.leave_mark(lake, offsets)
            case Epoch():
                pass

    def checkpoint(self) -> None:
        """Bring what was applied to disk; by any thread, while more is applied."""
        self._since_bytes = self._since_records = 0
        self._checkpoints.make(self._streams)

    # For other nodes

    def snapshot(self, target: str) -> Snapshot:
        """A copy of the folder, in a new one on the same disk, of links to files that others may fetch; by any
        thread."""
        return snapshot.take(self._files, self.path, target, self._streams, self._data.stored, self._checkpoints)

    def digests(self, *, anew: bool = False) -> Digests:
        """Digests of all sealed segments, and of the rows, as of the position that it names; by any thread. Takes as
        long as it takes to read all that was not looked at before, or all, `anew`."""
        with self._between:
            position, sealed = self.position, self._streams.sealed()
            found = first_read(self._data.stored.scan(b""))
        return self._digesting.of(position, sealed, found, anew=anew)

    # Letting go

    def leave(self) -> None:
        """Have the folder be an ordinary one from now on."""
        folders.set_cluster(self._files, self.path, "")
        self._data.stored.commit({rows.NODE: None, checkpoint.WRITTEN: None})

    def close(self) -> None:
        """Bring everything to disk, and let go of the folder, in which a leader may go on."""
        try:
            self.checkpoint()
        finally:
            self._data.drop()

    def abandon(self) -> None:
        """Let go of the folder as it is."""
        self._data.drop()
