"""What consumers in the broker's own process have, noted so that it outlives them.

A consumer that is killed takes the broker with it, and no ack timeout is ever counted: a message that kills its
consumer would come again for ever. So each hand-out is noted (`store.notes`), in a microsecond that no disk is waited
for. Promise: the notes list what is in flight, or was acked since; whoever loads the subscription after the process is
gone finds what its consumers were at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headwater.delivery.lane import LaneId, Lease
from headwater.delivery.rows import lane_number, lane_of
from headwater.store.notes import Notes

RANGES_MAX = 16
"""Of a lease that are noted; what is beyond is once it is handed out without the rest."""
RANGE_MAX = 1 << 20
"""No hand-out is longer: a note that says so is damaged."""


class HandOuts:
    """Notes of one subscription. Its owner's lock guards it."""

    __slots__ = ("_held_under", "_notes", "_number", "_touched", "noted")

    def __init__(self, notes: Notes, number: int, held_under: Callable[[Lease], Sequence[int]]) -> None:
        """`held_under` tells what is still in flight under a lease."""
        self._notes = notes
        self._number = number
        self._held_under = held_under
        self.noted: dict[int, tuple[Lease, list[int]]] = {}
        """By the lease's number, it and the slots that it is noted in."""
        self._touched: list[Lease] = []
        """Leases of which something was acked since the last note."""

    def note(self, leases: Sequence[Lease]) -> None:
        """These were handed out."""
        spare = self._done() if self._touched else []
        for lease in leases:
            self.noted[lease.number] = (lease, self._put(lease.lane, lease.offsets, spare))
        if spare:
            self._notes.clear(spare)

    def on_ack(self, lease: Lease) -> None:
        """Something of a lease is acked; the note need not say so, as the ack is stored."""
        if lease.number in self.noted:
            self._touched.append(lease)

    def renew(self) -> None:
        """Something else was done with messages than to ack them: note what is left."""
        if self.noted:
            before, self.noted = self.noted, {}
            self._touched.clear()
            for number, (lease, slots) in before.items():
                self._notes.clear(slots)
                held = self._held_under(lease)
                if held:
                    self.noted[number] = (lease, self._put(lease.lane, held))

    def clear(self) -> None:
        """Nobody has anything any more."""
        for _, slots in self.noted.values():
            self._notes.clear(slots)
        self.noted.clear()
        self._touched.clear()

    def _done(self) -> list[int]:
        """Slots of leases under which nothing is held any more."""
        slots: list[int] = []
        for lease in self._touched:
            if lease.number in self.noted and not self._held_under(lease):
                slots += self.noted.pop(lease.number)[1]
        self._touched.clear()
        return slots

    def _put(self, lane: LaneId, offsets: Sequence[int], spare: list[int] | None = None) -> list[int]:
        """Note offsets, in a spare slot if there is one; answers their slots."""
        sort, first, last = lane_number(lane), offsets[0], offsets[-1]
        if last - first + 1 == len(offsets):
            return [self._notes.put(self._number, sort, first, last, spare.pop() if spare else None)]
        return [self._notes.put(self._number, sort, first, last) for first, last in _ranges(offsets)]

    def left(self) -> dict[LaneId, set[int]]:
        """Per lane, what consumers had whose process is gone; they may have acked it."""
        found: dict[LaneId, set[int]] = {}
        for sort, first, last in self._notes.left(self._number):
            if first <= last < first + RANGE_MAX:
                found.setdefault(lane_of(sort), set()).update(range(first, last + 1))
        return found

    def forget_left(self) -> None:
        """What was left is reckoned with."""
        self._notes.forget_left(self._number)


def _ranges(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first few runs of neighbours."""
    first = last = offsets[0]
    count = 0
    for offset in offsets[1:]:
        if offset != last + 1:
            yield first, last
            count += 1
            if count == RANGES_MAX:
                return
            first = offset
        last = offset
    yield first, last
