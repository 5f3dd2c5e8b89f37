"""Receipts: what a publisher gets back once its messages are on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import overload

import msgspec

from headwater import html
from headwater.clock import to_datetime

SHOWN_MAX = 5
"""Receipts that the repr of several has one by one."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a publisher gets back once its message is on disk."""

    topic: str
    offset: int
    """Its id within the topic's root; 0 where that is not known yet: of a delayed message, which gets its offset when
    it is due, and of an answer that nobody waited for."""
    time_us: int
    duplicate: bool = False
    """An idempotent producer's repeat: this is the receipt of the first time."""

    @property
    def time(self) -> datetime:
        """When it was appended, UTC."""
        return to_datetime(self.time_us)

    @property
    def timestamp(self) -> datetime:
        """`time`, by its older name."""
        return self.time

    def __repr__(self) -> str:
        repeat = ", duplicate=True" if self.duplicate else ""
        return f"Receipt({self.topic!r}, offset={self.offset}, time={self.time.isoformat()}{repeat})"


class Receipts(Sequence[Receipt]):
    """The receipts of one `publish_many`, in its order; made when they are looked at."""

    __slots__ = ("_runs", "_topics")

    def __init__(self, topics: Sequence[str], runs: Sequence[tuple[Sequence[int], int, int, bool]]) -> None:
        """Each run: the positions of its messages in the call, their first offset, append time, whether a repeat."""
        self._topics = topics
        self._runs = runs

    def __len__(self) -> int:
        return len(self._topics)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if len(self._runs) == 1 and isinstance(index, int):
            at = range(len(self._topics))[index]
            _, first, time_us, duplicate = self._runs[0]
            return Receipt(self._topics[at], first + at, time_us, duplicate)
        return list(self)[index]

    def __iter__(self) -> Iterator[Receipt]:
        placed: list[Receipt | None] = [None] * len(self._topics)
        for positions, first, time_us, duplicate in self._runs:
            for offset, at in enumerate(positions, first):
                placed[at] = Receipt(self._topics[at], offset, time_us, duplicate)
        return (receipt for receipt in placed if receipt is not None)

    def __repr__(self) -> str:
        if len(self) <= SHOWN_MAX:
            return f"Receipts({list(self)!r})"
        return f"<{len(self)} receipts, from {self[0]!r} to {self[-1]!r}>"

    def _repr_html_(self) -> str:
        rows = ((one.topic, one.offset, one.time.isoformat(), one.duplicate or "") for one in self)
        return html.table(("topic", "offset", "time", "repeat"), rows, len(self))
