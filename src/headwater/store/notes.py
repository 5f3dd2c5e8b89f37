"""Notes: what a process was at, for the one after it.

A note is stored into a mapped file and never synced: the kernel has it at once, whatever becomes of the process then,
and a power cut may forget it. A note is three cells, of which the first is set last and cleared first:

      ├───────────────────────┼───────────────────────┼───────────────────────┤
      │ owner (u32), sort     │ first (u64)           │ last (u64)            │
      └───────────────────────┴───────────────────────┴───────────────────────┘

Promises: what was put and not cleared is `left` to the next process; a disk that takes nothing costs notes and nothing
else. Nothing is promised about a note, so damage to the file is harmless: who reads it makes sure of what it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from headwater.errors import TooManyFiles
from headwater.store.disk_cells import CELL_BYTES
from headwater.store.files import Cells, Files

NAME = "hand-outs"
"""Of the file, in the data folder."""
CELLS = 3
SLOTS_MAX = 1 << 16
"""More are not noted."""


class Note(NamedTuple):
    """A range of something, of some sort."""

    sort: int
    first: int
    last: int


class Notes:
    """The notes of one data folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{NAME}"
        self._cells: Cells | None = None
        self._left: dict[int, list[tuple[int, Note]]] = {}
        """By owner: what an earlier process left, and in which slot."""
        self._free: list[int] = []
        self._next = count(self._read())

    def _read(self) -> int:
        """What was left; how many slots there are."""
        try:
            data = memoryview(self._files.read(self._path) if self._files.exists(self._path) else b"")
        except OSError:
            return 0
        slots = min(len(data) // (CELLS * CELL_BYTES), SLOTS_MAX)
        found = data[: slots * CELLS * CELL_BYTES].cast("Q")
        for slot in range(slots):
            head, first, last = found[slot * CELLS : (slot + 1) * CELLS]
            if head:
                self._left.setdefault(head >> 32, []).append((slot, Note(head & 0xFFFF_FFFF, first, last)))
            else:
                self._free.append(slot)
        return slots

    def left(self, owner: int) -> list[Note]:
        """What an earlier process put for this owner, and had no time to clear."""
        return [note for _, note in self._left.get(owner, ())]

    def forget_left(self, owner: int) -> None:
        """What an earlier process left for this owner matters no more."""
        if owner in self._left:
            self.clear(slot for slot, _ in self._left.pop(owner))

    def put(self, owner: int, sort: int, first: int, last: int, slot: int | None = None) -> int:
        """Note a range, in place of what a slot has if one is given; answers the slot that it is in, to be cleared."""
        if slot is None:
            try:
                slot = self._free.pop()
            except IndexError:
                slot = next(self._next)
        if slot < SLOTS_MAX:
            at = slot * CELLS
            try:
                put = (self._cells or self._open()).set
                put(at + 1, first)
                put(at + 2, last)
                put(at, owner << 32 | sort)
            except (OSError, TooManyFiles):
                return slot  # of which nothing is known then
        return slot

    def clear(self, slots: Iterable[int]) -> None:
        """These are of no use any more."""
        for slot in slots:
            try:
                if slot < SLOTS_MAX:
                    (self._cells or self._open()).set(slot * CELLS, 0)
            except (OSError, TooManyFiles):
                continue  # it stays, and whoever reads it makes sure
            finally:
                self._free.append(slot)

    def _open(self) -> Cells:
        if self._cells is None:
            self._cells = self._files.cells(self._path)
        return self._cells

    def close(self) -> None:
        """Close the file."""
        if self._cells is not None:
            self._cells.close()
            self._cells = None
