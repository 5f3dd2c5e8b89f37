"""A state store that counts dead letters and their copies, for tests of what is written together."""

from __future__ import annotations

from typing import Any

from headwater.store.state import MemoryState


class CountingState(MemoryState):
    """Rows in memory, and how many letters and copies there were after each write."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[int] = []

    def write(self, rows: Any) -> None:
        super().write(rows)
        self.sums.append(sum(1 for kind in (b"L", b"Q") for _ in self.scan(kind)))

    def count(self, kind: bytes) -> int:
        return sum(1 for _ in self.scan(kind))
