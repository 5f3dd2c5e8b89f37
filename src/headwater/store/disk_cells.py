"""Numbers in a mapped file, which other processes see at once."""

from __future__ import annotations

import mmap
import os

from headwater import threads
from headwater.store.descriptors import opening
from headwater.store.disk_file import DiskFile

CELL_BYTES = 8


class DiskCells:
    """A mapped file, shared with whoever maps it too.

    A cell is in the machine's own byte order, so that it is loaded and stored in one move, and is written nowhere but
    on the machine that reads it. When the file grows it is mapped anew; the old mapping stays until the last thread
    that uses it is done, and shows the same memory.
    """

    _map: mmap.mmap | None
    _cells: memoryview[int]

    def __init__(self, path: str, *, write: bool) -> None:
        self._file = DiskFile(path, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
        self._access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        self._growing = threads.Lock()
        self._map_file()

    def get(self, index: int) -> int:
        cells = self._cells
        if index >= len(cells):
            with self._growing:
                cells = self._map_file()
            if index >= len(cells):
                return 0
        return cells[index]

    def set(self, index: int, value: int) -> None:
        cells = self._cells
        if index >= len(cells):
            with self._growing:
                cells = self._grow(index)
        cells[index] = value

    def sync(self) -> None:
        if self._map is not None:
            self._map.flush()

    def close(self) -> None:
        self._cells.release()
        self._map = None
        self._file.close()

    def _grow(self, index: int) -> memoryview[int]:
        old = self._file.size()
        new = -(-(index + 1) * CELL_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        # Written rather than left as a hole: a store into a hole of a full disk is a SIGBUS, a write is an OSError.
        self._file.pwritev([bytes(max(0, new - old))], old)
        return self._map_file()

    def _map_file(self) -> memoryview[int]:
        length = self._file.size() // CELL_BYTES * CELL_BYTES
        if length:
            with opening():  # it has a descriptor of its own
                self._map = mmap.mmap(self._file.descriptor, length, access=self._access)
            self._cells = memoryview(self._map).cast("Q")
        else:
            self._map, self._cells = None, memoryview(b"").cast("Q")
        return self._cells
