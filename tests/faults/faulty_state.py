"""A state store that loses the tail of its log: the double for `State`.

Writes are seen at once and durable after `sync`. A crash keeps the durable rows and the first so many of the batches
since, each wholly or not at all, as a log does. It crashes apart from the disk that the streams are on, so a test can
let either of the two lose more than the other.

After a sync that failed, nothing more is taken, as a log cannot go on behind a hole; how much of what was to be synced
is found later, the next crash tells.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator, Mapping

from faults.faulty_files import Crash, Keep

Batch = dict[bytes, bytes | None]


class FaultyState:
    """Rows in memory, the durable ones apart from the rest."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self.syncs = 0
        """How many there were."""
        self.fail_sync_at: int | None = None
        """The number of the sync that raises EIO, as do all writes and syncs after it: 1 is the first."""
        self.on_sync: Callable[[int], None] | None = None
        """Called before each sync with its number; if it raises Crash, nothing more reaches this store."""
        self.mends = False
        """Whether `mend` works: the rows are then the durable ones, and those that nobody waited for."""
        self.snapshots: dict[str, dict[bytes, bytes]] = {}
        """The rows that `snapshot` wrote, by path."""
        self._rows = dict(rows or {})
        self._durable = dict(self._rows)
        self._unsynced: list[Batch] = []
        self._mutex = threading.RLock()
        self._has_failed = False
        self._lazy: Batch = {}
        self._stopped_by: type[Crash] | type[OSError] | None = None

    # What tests do to it

    def crash(self, rng: random.Random, keep: Keep = "random") -> FaultyState:
        """The store as it is found after a power loss; this one is of no use any more."""
        with self._mutex:
            self._stopped_by = OSError
            batches = len(self._unsynced)
            kept = {"none": 0, "all": batches}.get(keep, rng.randint(0, batches))
            rows = dict(self._durable)
            for batch in self._unsynced[:kept]:
                apply(batch, rows)
            return FaultyState(rows)

    def process_kill(self) -> FaultyState:
        """The store as the next process finds it after a kill -9: all is there; what was not durable is not now."""
        with self._mutex:
            self._stopped_by = OSError
            state = FaultyState(self._durable)
            for batch in self._unsynced:
                state.write(batch)
            return state

    def durable(self) -> dict[bytes, bytes]:
        """The rows that are certain to be found after a crash."""
        return dict(self._durable)

    # What Headwater does with it

    def get(self, key: bytes) -> bytes | None:
        with self._mutex:
            self._check()
            return self._rows.get(key)

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        with self._mutex:
            self._check()
            first = prefix if start is None else start
            found = sorted([key for key in self._rows if key >= first and key.startswith(prefix)])
            return iter([(key, self._rows[key]) for key in found])

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._mutex:
            self._write(rows)
            self._lazy.update(rows)

    def _write(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._mutex:
            self._check_log()
            batch = dict(rows)
            apply(batch, self._rows)
            self._unsynced.append(batch)

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._write(rows)
        self.sync()

    @property
    def failed(self) -> str | None:
        return "the state store failed (the sync of its log did)" if self._has_failed else None

    def mend(self) -> bool:
        with self._mutex:
            self._check()
            if self._has_failed and self.mends:
                self._has_failed = False
                self._rows = dict(self._durable)
                self._unsynced.clear()
                self.write(self._lazy)
            return not self._has_failed

    def sync(self) -> None:
        with self._mutex:
            self._check_log()
            self.syncs += 1
            number = self.syncs
        if self.on_sync is not None:
            try:
                self.on_sync(number)  # outside the mutex: it may wait for what other threads do
            except Crash:
                self._stopped_by = Crash
                raise
        with self._mutex:
            self._check_log()
            if number == self.fail_sync_at:
                self._has_failed = True
                self._check_log()
            for batch in self._unsynced:
                apply(batch, self._durable)
            self._unsynced.clear()
            self._lazy = {}

    def snapshot(self, path: str) -> None:
        with self._mutex:
            self._check()
            self.snapshots[path] = dict(self._rows)

    def close(self) -> None:
        if self._stopped_by is None:
            self._stopped_by = OSError

    def _check(self) -> None:
        if self._stopped_by is not None:
            raise self._stopped_by(errno.EIO, "this store has crashed or was closed")

    def _check_log(self) -> None:
        self._check()
        if self._has_failed:
            raise OSError(errno.EIO, "the sync of the log failed")


def apply(batch: Batch, rows: dict[bytes, bytes]) -> None:
    for key, row in batch.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
