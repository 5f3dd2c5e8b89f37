"""Restore of the state: a new one, of what is whole of the old one and of the newest snapshot that is.

Promises: rows that can be read stay as they are; those that cannot be are as the snapshot has them; writes in the log
that came after the snapshot count. What is older than it was is told, and access is closed if rules may be among it.
The old files are moved to `quarantine/`. Whatever interrupts it, it can be begun again. What mirrors a stream may be
older, too: the next opening re-applies the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import Damaged, NotFound
from headwater.store import chain, snapshots, wal
from headwater.store import state as rows
from headwater.store.chain import ChainLink
from headwater.store.files import Files
from headwater.store.folder import STATE
from headwater.store.rocks import RocksState
from headwater.store.rocksdb import beside, scan_rocks
from headwater.store.snapshots import Snapshot
from headwater.store.state import Rows
from headwater.store.state_marks import ENDING, KnownWrites, Marks
from headwater.store.state_recovery import (
    ALL_GROUPS,
    Loss,
    look_at_logs,
    loss_rows,
    writes_after,
)

if TYPE_CHECKING:
    from headwater.store.rocksdb import Rdict

NEW, OLD = "state.new", "state.old"
CHUNK_ROWS = 10_000
"""Rows that are written at a time."""
UNREADABLE = "rows of it cannot be read; they are as the snapshot has them"

Row = tuple[bytes, bytes]


class Restored(msgspec.Struct):
    """What was done."""

    rows: int = 0
    snapshot: int | None = None
    """The last write that is in the snapshot that was used; None if none was."""
    snapshot_us: int = 0
    losses: list[Loss] = []
    is_whole: bool = False
    """Nothing was wrong, and nothing was done."""


def restore_state(files: Files, folder: str, *, without_snapshot: bool = False) -> Restored:
    """Make the state of a folder anew; whoever calls owns the folder."""
    place = f"{folder}/{STATE}"
    if files.exists(f"{folder}/{OLD}") and not files.exists(f"{place}/CURRENT"):
        files.remove_tree(place)
        files.rename(f"{folder}/{OLD}", place)  # an earlier try was interrupted
    marks = Marks(files, place, write=False)
    known = marks.read()
    marks.close()
    found = None if without_snapshot else snapshots.newest_whole(files, folder)
    restored = Restored()
    with ExitStack() as held:
        current = _current(files, place, known, held)
        if current is not None and not current.damaged:
            restored.is_whole = True
            return restored
        if found is None and not without_snapshot:
            raise NotFound(
                "there is no whole snapshot of the state; to go on with what can be read, and what the streams tell, "
                "say --without-snapshot"
            )
        older = None
        if found is not None:
            older = held.enter_context(beside(files, f"{folder}/{snapshots.FOLDER}/{found[0]}", keep_logs=True))
        new = _begun(files, folder, known)
        try:
            if found is not None:
                restored.snapshot, restored.snapshot_us = found[1].number, found[1].time_us
            restored.losses = _fill(files, place, known, new, current, older, found[1] if found else None, restored)
            new.commit(loss_rows(restored.losses))
        finally:
            new.close()
    _put_in_place(files, folder)
    return restored


class _Current:
    """The state as it is, as far as it can be read."""

    def __init__(self, db: Rdict, path: str, losses: list[Loss]) -> None:
        self.db = db
        self._path = path
        self.losses = losses
        self.damaged = bool(losses)
        for kind in range(256):
            try:
                for _ in scan_rocks(db, path, bytes((kind,)), None):
                    pass
            except Damaged:
                self.damaged = True
                return

    def rows(self, older: Rdict | None, unreadable: set[int]) -> Iterator[Row]:
        """Every row: where the state cannot be read, those of the snapshot. Notes the kinds of which that is so."""
        for kind in range(256):
            yield from self._rows_of(bytes((kind,)), older, unreadable)

    def _rows_of(self, kind: bytes, older: Rdict | None, unreadable: set[int]) -> Iterator[Row]:
        start: bytes | None = kind
        while start is not None:
            begun = last = start
            try:
                for key, value in scan_rocks(self.db, self._path, kind, start):
                    yield key, value
                    last = key + b"\0"
                return
            except Damaged:
                unreadable.add(kind[0])
            # Row by row through the snapshot, until the state can be read again from there on.
            start = None
            for key, value in _rows_from(older, kind, last):
                if key > begun and self._is_readable(key):
                    start = key
                    break
                yield key, value

    def _is_readable(self, key: bytes) -> bool:
        cursor = self.db.iter()
        cursor.seek(key)
        try:
            cursor.status()
        except Exception:  # RocksDB's errors have no type of their own
            return False
        return True


def _rows_from(db: Rdict | None, kind: bytes, start: bytes) -> Iterator[Row]:
    return iter(()) if db is None else scan_rocks(db, "the snapshot", kind, start)


def _current(files: Files, place: str, known: KnownWrites, held: ExitStack) -> _Current | None:
    """The state as it is; None if its tables do not open."""
    if not files.exists(f"{place}/CURRENT"):
        return None
    try:
        seen = look_at_logs(files, place, known, is_owned=True)
    except Damaged:
        return None
    return _Current(held.enter_context(beside(files, place, seen.log)), place, seen.losses)


def _begun(files: Files, folder: str, known: KnownWrites) -> RocksState:
    """An empty state, whose writes are numbered after those of the old one."""
    files.remove_tree(f"{folder}/{NEW}")
    files.remove(f"{folder}/{NEW}{ENDING}")
    new = RocksState(f"{folder}/{NEW}", files=files)
    new.count_from(known.synced)
    return new


def _fill(
    files: Files,
    place: str,
    known: KnownWrites,
    new: RocksState,
    current: _Current | None,
    older: Rdict | None,
    snapshot: Snapshot | None,
    restored: Restored,
) -> list[Loss]:
    """Write every row; answers what is older than it was."""
    base = ChainLink(snapshot.number, time_us=snapshot.time_us) if snapshot is not None else ChainLink()
    if current is not None:
        unreadable: set[int] = set()
        restored.rows = _write_all(new, current.rows(older, unreadable))
        groups = 0
        for kind in unreadable:
            groups |= chain.BITS[kind]
        if not groups:
            return current.losses
        return [
            *current.losses,
            Loss(base.number + 1, max(known.synced, base.number + 1), base.time_us, 0, groups, UNREADABLE),
        ]
    if older is not None:
        kinds = (bytes((kind,)) for kind in range(256))
        restored.rows = _write_all(new, (row for kind in kinds for row in _rows_from(older, kind, kind)))
    payloads, losses = writes_after(files, place, base, known)
    for payload in payloads:
        changed = dict(wal.rows_in(payload) or ())
        changed.pop(rows.CHAIN, None)
        new.write(changed)
        restored.rows += len(changed)
    if snapshot is None:
        losses = [Loss(1, max(known.synced, 1), 0, 0, ALL_GROUPS, "there was no snapshot")]
    return losses


def _write_all(new: RocksState, found: Iterator[Row]) -> int:
    count = 0
    chunk: Rows = {}
    for key, value in found:
        if key == rows.CHAIN:
            continue
        chunk[key] = value
        count += 1
        if len(chunk) >= CHUNK_ROWS:
            new.commit(chunk)
            chunk = {}
    if chunk:
        new.commit(chunk)
    return count


def _put_in_place(files: Files, folder: str) -> None:
    """The new state for the old one, which goes to quarantine: each step leaves something that can be gone on from."""
    place = f"{folder}/{STATE}"
    if files.exists(place):
        files.remove_tree(f"{folder}/{OLD}")
        files.rename(place, f"{folder}/{OLD}")
    files.rename(f"{folder}/{NEW}", place)
    files.rename(f"{folder}/{NEW}{ENDING}", f"{place}{ENDING}")
    files.sync_folder(folder)
    if files.exists(f"{folder}/{OLD}"):
        files.make_folder(f"{folder}/quarantine")
        taken = set(files.list(f"{folder}/quarantine"))
        number = 1
        while f"state-{number}" in taken:
            number += 1
        files.rename(f"{folder}/{OLD}", f"{folder}/quarantine/state-{number}")
        files.sync_folder(folder)
