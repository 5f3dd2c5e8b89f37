"""The tail of a stream: its newest batches, in memory for those who read along.

Promises: it takes no more than `tail_bytes`, but for a batch that is larger alone, which everybody who is up to date
reads next; what it answers is durable, and follows without a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from headwater.store.batch import Batch
from headwater.store.body import held_bytes
from headwater.store.log import Write

_first_offset = attrgetter("first_offset")


class Tail:
    """The newest batches; changed by the thread that commits, read by any."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: list[Batch] = []
        self.bytes = 0

    def __len__(self) -> int:
        """How many batches it is."""
        return len(self._batches)

    def add(self, writes: Sequence[Write]) -> int:
        """These are durable; by how many bytes it has grown."""
        before = self.bytes
        self._batches += [batch for write in writes if (batch := write.batch) is not None]
        self.bytes += sum([held_bytes(write.body) for write in writes])
        if self.bytes > self._bytes_max:
            self._shorten()
        return self.bytes - before

    def read(self, offset: int, durable: int, bytes_max: int) -> list[Batch] | None:
        """Batches from the one that holds an offset on; None if that is not here."""
        tail = self._batches
        if not tail or tail[0].first_offset > offset:
            return None
        place = bisect_right(tail, offset, key=_first_offset) - 1
        if tail[place].last_offset < offset:
            return None
        found: list[Batch] = []
        expected = tail[place].first_offset
        for batch in tail[place:]:
            if batch.first_offset != expected or batch.last_offset > durable:
                break
            found.append(batch)
            expected = batch.last_offset + 1
            bytes_max -= len(batch.data)
            if bytes_max <= 0:
                break
        return found

    def trim(self, first: int) -> None:
        """What is before an offset is deleted."""
        self._batches = [batch for batch in self._batches if batch.last_offset >= first]
        self.bytes = sum(held_bytes(batch.data) for batch in self._batches)

    def drop(self) -> None:
        """Give back the memory; readers find the batches on disk."""
        self._batches, self.bytes = [], 0

    def _shorten(self) -> None:
        keep = len(self._batches)
        kept_bytes = 0
        while keep > 0:
            more_bytes = held_bytes(self._batches[keep - 1].data)
            # The newest is what all who are up to date read next: each for itself from disk, if it were not here.
            limit = self._bytes_max // 2 if kept_bytes else self._bytes_max * 2
            if kept_bytes + more_bytes > limit:
                break
            keep -= 1
            kept_bytes += more_bytes
        self._batches, self.bytes = self._batches[keep:], kept_bytes
