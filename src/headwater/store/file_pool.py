"""Files kept open: never more than a limit, whatever was written to them.

A file whose writes are not synced stays open until they are: if writing it back fails, the kernel tells those who had
the file open at the time, and perhaps nobody else. So when there are too many of them, the ones that wait for longest
are synced together, by the thread that writes, and then they may be closed like any other. Where the process may open
no more, files that are not in use are closed first; what cannot be opened even then is `TooManyFiles`, and nothing has
changed.

Any thread may `get` a file; one thread writes and syncs. A second one may do so in a folder that is lent to it: then
no file of that is synced but by that thread, and that thread syncs no other, as the kernel tells of a failure but once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from headwater import threads
from headwater.errors import Closed, TooManyFiles
from headwater.store.batch import Batch
from headwater.store.descriptors import open_files_limit
from headwater.store.files import File, Files

R = TypeVar("R")


class FilePool:
    """Files kept open, the one unused for longest closed first."""

    def __init__(self, files: Files, open_files_max: int, write: bool) -> None:
        self.files = files
        self.is_writable = write
        # Half of what the process may open is for others: connections, the state, who embeds us.
        self._max = max(1, min(open_files_max, open_files_limit() // 2))
        self._unsynced_max = max(1, self._max - 1 - self._max // 8)
        """The rest is for readers, who cannot sync anything."""
        self._open: OrderedDict[str, File] = OrderedDict()
        self._dirty: dict[str, None] = {}
        """With unsynced writes, those that wait for longest first."""
        self._lock = threads.Lock()
        self._lent = ""
        """The folder that another thread writes in;"""
        self._borrower = 0
        """and that thread."""
        self._closed = False
        self.large: tuple[object, Batch | None] = (None, None)
        """The stream of the large batch that was read last, and that batch."""
        self.on_failed_sync: Callable[[str, OSError], Exception] = lambda _, error: error
        """Hears of a file whose sync failed; answers what to raise."""

    def get(self, path: str) -> File:
        """The open file of a path."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
                return file
            if self._closed:
                raise Closed("the bus is closed; open it again to read on")
            while len(self._open) >= self._max and self._let_go_of_one():
                pass
            try:
                file = self.files.open(path, write=self.is_writable)
            except TooManyFiles:
                if not self._let_go_of_half():
                    raise
                file = self.files.open(path, write=self.is_writable)
            self._open[path] = file
            return file

    # By the thread that writes

    def lend(self, folder: str) -> None:
        """Leave the files of a folder to another thread, which says so by `borrow`."""
        self._lent = f"{folder}/"

    def borrow(self) -> None:
        """This is the thread that the folder is lent to."""
        self._borrower = threads.get_ident()

    def take_back(self) -> None:
        """The folder is lent no more."""
        self._lent, self._borrower = "", 0

    def write(self, path: str, buffers: Sequence[bytes | memoryview], position: int) -> None:
        """Write to a file, and remember that it is not synced."""
        if len(self._dirty) >= self._unsynced_max and path not in self._dirty:
            self._sync_oldest()
        file = self._open.get(path) or self.with_room(lambda: self.get(path))
        self._dirty[path] = None  # before, lest a reader has it closed in between
        file.pwritev(buffers, position)

    def written(self, path: str) -> None:
        """Remember that a file has writes that are not synced."""
        self._dirty[path] = None
        if len(self._dirty) > self._unsynced_max:
            self._sync_oldest()

    def datasync(self, path: str) -> None:
        """Make the writes of one file durable."""
        (self._open.get(path) or self.get(path)).datasync()
        self._dirty.pop(path, None)

    def give_up(self, path: str) -> None:
        """Its sync failed, so that no other is to be trusted: it is closed like one that has none to wait for."""
        self._dirty.pop(path, None)

    @property
    def dirty(self) -> list[str]:
        """Files with writes that are not synced."""
        return sorted(self._dirty)

    def take_dirty(self) -> dict[str, File]:
        """Files with writes that are not synced, open, for whoever syncs them now; while nobody writes."""
        found = {path: self.get(path) for path in self._dirty}
        self._dirty.clear()
        return found

    def sync(self, paths: Sequence[str]) -> None:
        """Sync files side by side; raises once for all that failed, the others are durable."""
        failure: Exception | None = None
        errors = self.files.sync_files([self.get(path) for path in paths])
        for path, error in zip(paths, errors, strict=True):
            self._dirty.pop(path, None)
            if error is not None:
                told = self.on_failed_sync(path, error)
                failure = failure or told
        if failure is not None:
            raise failure

    def with_room(self, action: Callable[[], R]) -> R:
        """Do something that opens a file, once more with fewer of these if the process may open no more."""
        try:
            return action()
        except TooManyFiles:
            if not self.make_room():
                raise
            return action()

    def make_room(self) -> bool:
        """Close some, so that others may be opened; whether there were any to close."""
        with self._lock:
            if self._let_go_of_half():
                return True
        if not self._sync_oldest():
            return False
        with self._lock:
            return self._let_go_of_half()

    def _sync_oldest(self) -> bool:
        """Sync some of those that wait for longest; whether there were any that this thread may sync."""
        if self._borrower == threads.get_ident():
            return False
        paths = list(self._dirty)
        if self._lent:
            paths = [path for path in paths if not path.startswith(self._lent)]
        # Half of them at once: side by side each takes a fraction of what it would alone.
        oldest = paths[: max(1, len(paths) // 2)]
        self.sync(oldest)
        return bool(oldest)

    # Letting go: a reader in another thread may be the last to hold the file, and then closes it.

    def forget(self, path: str) -> None:
        """Let go of a file that is going away."""
        with self._lock:
            self._dirty.pop(path, None)
            self._open.pop(path, None)

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            self._closed = True
            self.large = (None, None)
            for file in self._open.values():
                file.close()
            self._open.clear()

    def _let_go_of_one(self) -> bool:
        """Close the one unused for longest of those that are synced, if there is one."""
        for _ in range(len(self._open)):
            path = next(iter(self._open))
            if path not in self._dirty:
                del self._open[path]
                return True
            self._open.move_to_end(path)  # not to be looked at again by the next
        return False

    def _let_go_of_half(self) -> bool:
        """Close half of those that are synced, so that others find room too; whether there were any."""
        idle = [path for path in self._open if path not in self._dirty]
        for path in idle[: -(-len(idle) // 2)]:
            del self._open[path]
        return bool(idle)
