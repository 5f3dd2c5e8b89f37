"""Deadlines: when the ack timeout of each hand-out is over, the next one first.

Promises: what is over or was given more time is passed over, so that nobody is timed out too early; what is kept is
bounded by what may be in flight.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from headwater.delivery.lane import Lease

KEPT_MIN = 64
"""So many hand-outs that are over are kept before anybody looks for them."""


class Deadlines:
    """Those of one subscription."""

    def __init__(self, is_open: Callable[[Lease], bool], in_flight_max: int) -> None:
        """`is_open` tells whether something of a hand-out is in flight."""
        self._is_open = is_open
        self._kept_max = KEPT_MIN + 2 * in_flight_max
        self.kept: list[tuple[int, int, Lease]] = []
        """A heap: when it is over, and which hand-out that is about."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self.kept)

    def add(self, lease: Lease) -> None:
        """A hand-out has a deadline, or another than before; one without any is not looked at."""
        if lease.deadline_us:
            if len(self.kept) > self._kept_max:
                self.kept = [entry for entry in self.kept if self._is_open(entry[2])]
                heapq.heapify(self.kept)
            heapq.heappush(self.kept, (lease.deadline_us, id(lease), lease))

    def next_us(self) -> int | None:
        """The next deadline of a hand-out that is open."""
        while self.kept and not self._is_open(self.kept[0][2]):
            heapq.heappop(self.kept)
        return self.kept[0][0] if self.kept else None

    def over(self, now_us: int) -> Lease | None:
        """A hand-out whose deadline is over; it stays the next until it is dropped."""
        while self.kept and self.kept[0][0] <= now_us:
            lease = self.kept[0][2]
            if lease.deadline_us <= now_us:
                return lease
            heapq.heappop(self.kept)  # it was given more time since
        return None

    def drop_next(self) -> None:
        """The next is seen to."""
        heapq.heappop(self.kept)
