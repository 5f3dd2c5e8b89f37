"""A data folder that is open: owned by this process, or read beside its owner.

Its lock, its seed, its state and its streams are taken and let go of together, in this order and the reverse.
":memory:" is one without a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from headwater.clock import Clock
from headwater.config import Config
from headwater.errors import DiskFull, HeadwaterError
from headwater.events import Events
from headwater.store import folder as folders
from headwater.store import keys, marks, snapshots
from headwater.store import state as rows
from headwater.store.batch import Seed
from headwater.store.compression import require
from headwater.store.files import DiskFiles, Files, Lock
from headwater.store.keys import Key
from headwater.store.log import Found
from headwater.store.memory_files import MemoryFiles
from headwater.store.notes import Notes
from headwater.store.rocks import RocksReader, RocksState
from headwater.store.state import MemoryState, State
from headwater.store.streams import Streams

MEMORY = ":memory:"
ID_BYTES = 8


class Replication(Protocol):
    """How the folder of a cluster's node comes to have what it has."""

    def streams(self, files: Files, folder: str, seed: Seed, config: Config) -> Streams:
        """Its streams."""

    def state(self, state: State) -> State:
        """Its state, over the one that is stored in it."""

    def mark_archived(self, lake: str, archived: dict[str, int], leave: Callable[[], None]) -> None:
        """Have word left of how far a lake has each root."""


class DataFolder:
    """Everything that is stored of one bus."""

    def __init__(
        self,
        path: str,
        config: Config,
        clock: Clock,
        events: Events,
        *,
        read_only: bool = False,
        files: Files | None = None,
        state: State | None = None,
        replication: Replication | None = None,
    ) -> None:
        """`files` and `state` are the doors through which tests bring in faults. With `replication`, it is the folder
        of a cluster's node."""
        require(config.compression)
        self.path = path
        self._replication = replication
        self.is_read_only = read_only
        self.files = files or (MemoryFiles() if path == MEMORY else DiskFiles())
        self._config = config
        self._clock = clock
        self._events = events
        self._lock: Lock | None = None
        self._is_state_given = state is not None
        folders.check_path(self.files, path)
        try:
            seed = self._own()
        except OSError as error:
            raise folders.unusable(path, error) from error
        try:
            self.stored = state or (MemoryState() if path == MEMORY else self._open_state())
            """The state that is stored here, by itself."""
            self.state = self.stored if replication is None else replication.state(self.stored)
            self.id = self._identify()
            self.key = Key(self.files, path)
            if not read_only:
                self._seal_secrets()
            if replication is None:
                self.streams = Streams(self.files, path, seed, config, read_only=read_only)
            else:
                self.streams = replication.streams(self.files, path, seed, config)
            self.notes = Notes(self.files, path)
        except BaseException:
            self.abandon()
            raise
        self.streams.on_mended = self._on_mended
        self.streams.on_damage = lambda text: events.add("damage", text)

    def _own(self) -> Seed:
        if self.is_read_only:
            return folders.check(self.files, self.path)
        folders.inspect(self.files, self.path)
        self.files.make_folder(self.path)
        self._lock = self.files.lock(f"{self.path}/{folders.LOCK}")
        try:
            seed = folders.prepare(self.files, self.path, in_cluster=self._replication is not None)
            self._close_to_others()
            return seed
        except BaseException:
            self._lock.release()
            raise

    def _close_to_others(self) -> None:
        left = self.files.close_to_others(self.path)
        if left:
            more = f", and {len(left) - 1} more in it," if len(left) > 1 else ""
            self._events.add(
                "open-to-others",
                f'"{left[-1]}"{more} belongs to another user, so that others may read what is stored there; give it to '
                "the user of this process",
            )

    def _open_state(self) -> State:
        path = f"{self.path}/{folders.STATE}"
        if self.is_read_only:
            return RocksReader(path)
        has_streams = bool(self.files.list(f"{self.path}/{folders.STREAMS}"))
        self.files.make_folder(path)  # as RocksDB would make it for all to enter
        state = RocksState(path, must_exist=has_streams, files=self.files, clock=self._clock)
        self.files.close_to_others(path, whole=True)  # RocksDB makes its files as it likes
        for loss in state.met:
            self._events.add("damage", f"{loss}; headwater verify has more")
        if state.torn:
            self._events.add("torn", f"{state.torn} writes at the end of the state were never acknowledged: cut")
        return state

    def _identify(self) -> str:
        """The id of this bus, by which a lake knows whose it is; drawn when the folder is first opened to write."""
        stored = self.state.get(rows.IDENTITY)
        if stored is None and not self.is_read_only:
            stored = self.files.secret(ID_BYTES).hex().encode()
            self.state.write({rows.IDENTITY: stored})  # durable with the first row that anybody waits for
        return (stored or b"").decode()

    def _seal_secrets(self) -> None:
        """Seal what an earlier version has stored as it is, and leave nothing of that behind."""
        try:
            if not keys.has_plain(self.state):
                return
            if self.files.free_bytes(self.path) < self._config.disk_free_bytes_min:
                raise DiskFull("there is too little room to store them anew; it is tried again at the next start")
            changed = keys.sealed_instead(self.state, self.key)
        except HeadwaterError as error:
            self._events.trouble(f"secrets of channels are stored as they are: {error}")
            return
        self.state.commit(changed)
        if isinstance(self.state, RocksState):
            self.state.scrub(rows.CHANNEL)
            if snapshots.taken(self.files, self.path):
                snapshots.take(self.files, self.path, self.state, self._clock.now_us(), 1)

    def report(self, met: dict[str, Found]) -> None:
        """Tell of what recovery has found."""
        for trouble in marks.troubles(self.files, self.path):
            self._events.add("damage", trouble)
        for root, found in met.items():
            for hole in found.holes:
                self._events.add("damage", f'messages {hole.first} to {hole.last} of "{root}" are lost: {hole.reason}')
            if found.torn_bytes and not found.holes:
                self._events.add(
                    "torn", f'{found.torn_bytes} bytes at the end of "{root}" were never acknowledged: cut'
                )

    def _on_mended(self, path: str) -> None:
        self._events.add("mended", f"{path} did not match its segment and is made again; no message is lost")

    def refresh(self) -> None:
        """See what the owner wrote meanwhile."""
        if isinstance(self.state, RocksReader):
            self.state.refresh()

    def take_snapshot(self) -> None:
        """Copy what is new of the state, for when it goes bad."""
        assert isinstance(self.state, RocksState)
        snapshots.take(self.files, self.path, self.state, self._clock.now_us(), self._config.state_snapshots_max)

    # How far lakes have it

    def archived(self) -> dict[str, dict[str, int] | None]:
        """How far each lake has each root, as their archives left word; None in place of what cannot be read."""
        return marks.found(self.files, self.path)

    def mark_archived(self, lake: str, archived: dict[str, int]) -> None:
        """Leave word of how far a lake has each root, on all nodes if there are several."""
        marks.check(self.files, self.path, lake)
        if self._replication is None:
            self.leave_mark(lake, archived)
        else:
            self._replication.mark_archived(lake, archived, lambda: self.leave_mark(lake, archived))

    def leave_mark(self, lake: str, archived: dict[str, int]) -> None:
        """Leave it here."""
        marks.put(self.files, self.path, lake, archived)

    def unarchived_from(self, root: str, needed: int) -> int:
        """From where on a root is still needed, going by what lakes do not have of it."""
        return min(needed, marks.unarchived_from(self.files, self.path, root, needed))

    # Letting go

    def abandon(self) -> None:
        """Let go of a folder that could not be opened."""
        opened = getattr(self, "stored", None)
        if opened is not None and not self._is_state_given:
            opened.close()
        if self._lock is not None:
            self._lock.release()

    def drop(self) -> None:
        """Let go of all of it as it is, whatever fails."""
        with ExitStack() as closing:
            closing.callback(self.abandon)
            closing.callback(self.streams.abandon)
            closing.callback(self.notes.close)

    def _close_state(self) -> None:
        self.state.close()
        if isinstance(self.stored, RocksState):
            self.files.close_to_others(self.stored.path, whole=True)

    def close(self) -> None:
        """Let go of it; whatever fails, of the rest, too."""
        with ExitStack() as closing:
            if self._lock is not None:
                closing.callback(self._lock.release)
            closing.callback(self._close_state)
            closing.callback(self.streams.close)
            closing.callback(self.notes.close)
