"""Durable subscriptions at rest: nobody takes from them, so they are rows alone, known here in numbers.

Promises: what is told of one is what its rows say; a subscription with a place in very many roots is counted anew
whenever somebody asks, so that what is kept is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from headwater.delivery import rows as stored
from headwater.delivery.directory import Directory
from headwater.delivery.rows import Resting, SubscriptionRow
from headwater.log.root import Root
from headwater.store import state as rows
from headwater.store.state import State

ROOTS_MAX = 64
"""Subscriptions with a place in more roots are counted anew whenever somebody asks."""


class AtRest:
    """Those that nobody takes from, as far as somebody wanted to know."""

    def __init__(self, state: State, directory: Directory, served: Mapping[str, object]) -> None:
        self._state = state
        self._directory = directory
        self._served = served
        self.known: dict[str, Resting] = {}

    def of(self, row: SubscriptionRow) -> Resting:
        """One of them; its rows are counted where they are not known."""
        name = row.options.id
        known = self.known.get(name)
        if known is None:
            known = stored.resting_of(self._state, row.number)
            if name not in self._served and name not in self.known:
                self.remember(name, known)
        return known

    def remember(self, id: str, resting: Resting) -> None:
        """This is what it is."""
        if len(resting.floors) <= ROOTS_MAX:
            self.known[id] = resting
        else:
            self.known.pop(id, None)

    def raise_floor(self, id: str, stream: int, floor: int) -> None:
        """It wants nothing up to there."""
        known = self.known.get(id)
        if known is not None:
            raised = {**known.floors, stream: max(floor, known.floors.get(stream, 0))}
            self.known[id] = msgspec.structs.replace(known, floors=raised)

    def learn(self) -> None:
        """Count the rows of all subscriptions, in the order in which they are stored."""
        floors: dict[int, dict[int, int]] = {}
        for key, value in self._state.scan(rows.FLOOR):
            number, stream = rows.pair_in(key)
            floors.setdefault(number, {})[stream] = int.from_bytes(value[:8], "big")
        acked, failed, copies, dead = (
            Counter(rows.pair_in(key)[0] for key, _ in self._state.scan(kind))
            for kind in (rows.ACKED, rows.FAILURE, rows.COPY, rows.DEAD)
        )
        for row in self._directory.each():
            name, at = row.options.id, row.number
            if name not in self._served and name not in self.known:
                self.remember(name, Resting(floors.get(at, {}), acked[at], failed[at], copies[at], dead[at]))


def floor_in(root: Root, resting: Resting) -> int:
    """Where a subscription stands in a root; what retention has deleted nobody is behind with."""
    return max(resting.floors.get(root.stream.number, 0), root.stream.first_offset - 1)
