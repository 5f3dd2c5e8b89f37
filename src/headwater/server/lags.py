"""How far behind each durable subscription is, told in a moment, however many there are.

A look takes no longer than its budget: those furthest behind are looked at first, the others in turn, so that with
thousands of subscriptions some figures are a few looks old. Nothing is loaded and nothing is written for it. Where a
filter matches only some topics of a root, each message is looked at once; what was not looked at yet counts as if it
matched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.cursor import Cursor
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.rows import Resting, SubscriptionRow
from headwater.delivery.subscriber import Standing
from headwater.store.log import Hole
from headwater.topics.name import compile_filter, filter_covers_root, is_everything_of
from headwater.topics.root import Root
from headwater.topics.roots import Roots
from headwater.wire.administration import SubscriptionFigures

BUDGET_US = 10_000
"""How long a look at all of them takes, about."""
MESSAGES_MAX = 1000
"""Messages of a root that are looked at while a subscription is held up."""
MANY = 1000
"""With more subscriptions than this, the list of them is read again no more often than"""
LIST_EVERY_US = 5_000_000
"""each so long."""


class Sums(msgspec.Struct):
    """Figures of all durable subscriptions together."""

    lag: int = 0
    in_flight: int = 0
    retrying: int = 0
    dead: int = 0


class _Counted(msgspec.Struct):
    """Messages of one root that a resting subscription has not had."""

    floor: int
    upto: int
    count: int = 0


class Lags:
    """Looks at durable subscriptions; by one thread at a time."""

    def __init__(self, dispatcher: Dispatcher, roots: Roots, config: Config, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._roots = roots
        self._config = config
        self._clock = clock
        self._rows: dict[str, SubscriptionRow] = {}
        self._turn: deque[str] = deque()
        self._found: dict[str, SubscriptionFigures] = {}
        self._counted: dict[str, dict[int, _Counted]] = {}
        self._front: list[str] = []
        """Those furthest behind at the last look."""
        self._version = -1
        self._listed_us = 0

    def look(self, most: int) -> tuple[list[SubscriptionFigures], Sums]:
        """At most so many, those furthest behind first; and the sums over all."""
        until_us = self._clock.monotonic_us() + BUDGET_US
        self._list()
        for name in self._due():
            self._look_at(name, until_us)
            if self._clock.monotonic_us() >= until_us:
                break
        sums = Sums()
        for one in self._found.values():
            sums.lag += one.lag
            sums.in_flight += one.in_flight
            sums.retrying += one.retrying
            sums.dead += one.dead
        ordered = sorted(self._found.values(), key=lambda one: (-one.lag, -one.dead, one.id))[:most]
        self._front = [one.id for one in ordered if one.lag]
        return ordered, sums

    def _list(self) -> None:
        """See which there are, if there are others than before."""
        version, now_us = self._dispatcher.version, self._clock.monotonic_us()
        if version == self._version or (len(self._rows) > MANY and now_us < self._listed_us + LIST_EVERY_US):
            return
        self._version, self._listed_us = version, now_us
        rows = {row.options.id: row for row in self._dispatcher.all_rows()}
        fresh = (name for name in rows if name not in self._found)
        self._turn = deque(dict.fromkeys((*fresh, *(name for name in self._turn if name in rows))))
        self._found = {name: one for name, one in self._found.items() if name in rows}
        self._counted = {name: one for name, one in self._counted.items() if name in rows}
        self._rows = rows

    def _due(self) -> Iterator[str]:
        """Those to look at, one after another: those furthest behind, then the others in turn."""
        front = set(self._front)
        yield from self._front
        for _ in range(len(self._turn)):
            name = self._turn[0]
            self._turn.rotate(-1)
            if name not in front:
                yield name

    def _look_at(self, name: str, until_us: int) -> None:
        row = self._rows.get(name)
        if row is None:
            return
        standing = self._standing(row)
        while standing.unseen and self._clock.monotonic_us() < until_us:
            before, standing = standing.unseen, self._standing(row)
            if standing.unseen >= before:
                break
        self._found[name] = SubscriptionFigures(
            id=name,
            lag=standing.lag,
            in_flight=standing.in_flight,
            retrying=standing.retrying,
            dead=standing.dead,
            consumers=standing.consumers,
        )

    def _standing(self, row: SubscriptionRow) -> Standing:
        served = self._dispatcher.served(row.options.id)
        if served is None:
            return self._at_rest(row, self._dispatcher.resting(row))
        self._counted.pop(row.options.id, None)
        return served.standing(MESSAGES_MAX)

    # Those that nobody takes from

    def _at_rest(self, row: SubscriptionRow, resting: Resting) -> Standing:
        wanted = row.options.filter
        counted = self._counted.setdefault(row.options.id, {})
        pending = unseen = 0
        for root in self._roots.all():
            if filter_covers_root(wanted, root.name):
                here, not_here = self._after(wanted, root, resting.floors.get(root.stream.number, 0), counted)
                pending += here + not_here
                unseen += not_here
        lag = max(0, pending - resting.acked + resting.copies)
        return Standing(lag, 0, resting.failed, resting.dead, 0, unseen)

    def _after(self, filter: str, root: Root, floor: int, counted: dict[int, _Counted]) -> tuple[int, int]:
        """Messages after a floor that match, as far as they were looked at; and how many were not."""
        stream = root.stream
        if stream.durable <= floor:
            return 0, 0
        if is_everything_of(filter, root.name) and not root.purges:
            return stream.durable - max(floor, stream.first_offset - 1), 0
        one = counted.get(stream.number)
        if one is None or one.floor != floor:
            one = counted[stream.number] = _Counted(floor, floor)
        if one.upto < stream.durable:
            cursor = Cursor(root, compile_filter(filter), one.upto + 1, self._config)
            now_us = self._clock.now_us()
            while (found := cursor.next(now_us, one.upto + MESSAGES_MAX)) is not None:
                if not isinstance(found, Hole):
                    one.count += len(found[1])
            one.upto = cursor.position - 1
        return one.count, max(0, stream.durable - one.upto)
