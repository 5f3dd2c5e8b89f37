"""What is known of the state apart from it: up to which write it was durable, in a small file beside it.

A cell is set after each sync, in memory that the kernel writes to disk in its own time: it outlives a kill, and after a
loss of power it may be older than the truth, never newer. So it may prove that rows were lost, and never accuses
wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.store.chain import GROUPS, OF_BITS
from headwater.store.files import Files
from headwater.store.streams import offset_of, watermark

ENDING = ".synced"
SYNCED, IN_TABLES = 0, 1 + len(GROUPS)
"""Cells; those of the groups are between them."""


class KnownWrites(NamedTuple):
    """What the file says."""

    synced: int = 0
    """The last write that was durable."""
    last: tuple[int, ...] = (0,) * len(GROUPS)
    """Per group, the last durable write that had rows of it."""
    in_tables: int = 0
    """All writes up to this one were in tables when the state was last opened, and in no log any more."""
    is_damaged: bool = False


class Marks:
    """The file."""

    def __init__(self, files: Files, state: str, *, write: bool = True) -> None:
        path = state + ENDING
        self._cells = files.cells(path, write=write) if write or files.exists(path) else None

    def read(self) -> KnownWrites:
        """What it says; where it says nothing, or is damaged, nothing is known."""
        if self._cells is None:
            return KnownWrites()
        cells = [self._cells.get(index) for index in range(IN_TABLES + 1)]
        found = [offset_of(cell) for cell in cells]
        is_damaged = any(cell and not number for cell, number in zip(cells, found, strict=True) if cell != watermark(0))
        return KnownWrites(found[SYNCED], tuple(found[1:IN_TABLES]), found[IN_TABLES], is_damaged)

    def note(self, synced: int, groups: int, last: Sequence[int]) -> None:
        """Everything up to this write is durable; of these groups the last write is another than before."""
        assert self._cells is not None
        mark = watermark(synced)
        self._cells.set(SYNCED, mark)
        for group in OF_BITS[groups]:
            number = last[group]
            self._cells.set(1 + group, mark if number == synced else watermark(number))

    def note_in_tables(self, number: int) -> None:
        """Everything up to this write is in tables."""
        assert self._cells is not None
        self._cells.set(IN_TABLES, watermark(number))

    def close(self) -> None:
        """Make it durable, and let go of it."""
        if self._cells is not None:
            self._cells.sync()
            self._cells.close()
