"""How far behind each durable subscription is, told in a moment, however many there are.

A look takes no longer than its budget: those furthest behind are looked at first, the others in turn, so that with
thousands of subscriptions some figures are a few looks old. Nothing is loaded and nothing is written for it. Where a
filter matches only some topics of a root, each message is looked at once, and how many match of those that were not
looked at yet is estimated by those that were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import nlargest

import msgspec

from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.cursor import Cursor, Matcher, estimate
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.progress import Standing
from headwater.delivery.rows import Resting, SubscriptionRow
from headwater.log.purges import Purges
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.pacing import Pacing
from headwater.store.log import Hole
from headwater.topics.name import filter_covers_root, is_everything_of
from headwater.wire.administration import SubscriptionFigures

BUDGET_US = 10_000
"""How long a look at all of them takes, about, besides its pauses."""
MESSAGES_MAX = 250
"""Messages of a root that are looked at while a subscription is held up."""
COUNTED_MAX = 100_000
"""Subscriptions and roots whose counts are remembered; beyond it, counting starts anew."""
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

    def add(self, one: SubscriptionFigures, times: int) -> None:
        """Count one in, or out again."""
        self.lag += times * one.lag
        self.in_flight += times * one.in_flight
        self.retrying += times * one.retrying
        self.dead += times * one.dead


class _Counted(msgspec.Struct):
    """Messages of one root that a resting subscription has not had."""

    floor: int
    purges: Purges
    upto: int
    count: int = 0


class Lags:
    """Looks at durable subscriptions; by one thread at a time."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        roots: Roots,
        config: Config,
        clock: Clock,
        is_owned: Callable[[str], bool],
    ) -> None:
        """`is_owned` says whether a subscription is a session's own."""
        self._is_owned = is_owned
        self._dispatcher = dispatcher
        self._roots = roots
        self._config = config
        self._clock = clock
        self._rows: dict[str, SubscriptionRow] = {}
        self._turn: deque[str] = deque()
        self._found: dict[str, SubscriptionFigures] = {}
        self._counted: dict[str, dict[int, _Counted]] = {}
        self._remembered = 0
        """Counts that were begun since all were forgotten."""
        self._front: list[str] = []
        """Those furthest behind at the last look."""
        self._unseen: dict[str, int] = {}
        """By id: messages that were not looked at yet."""
        self._sums = Sums()
        self._breath = Pacing()
        self._version = -1
        self._listed_us = 0

    def look(self, most: int) -> tuple[list[SubscriptionFigures], Sums]:
        """At most so many, those furthest behind first; and the sums over all."""
        self._list()
        now_us = self._clock.monotonic_us()
        if len(self._found) < len(self._rows):
            self._go_through(((name, 0) for name in tuple(self._turn) if name not in self._found), now_us + BUDGET_US)
        self._go_through(((name, MESSAGES_MAX) for name in self._front), now_us + BUDGET_US // 2)
        self._go_through(self._in_turn(), now_us + BUDGET_US)
        furthest = nlargest(most, self._found.values(), key=lambda one: (one.lag, one.dead))
        self._front = [one.id for one in furthest if one.lag]
        return furthest, self._sums

    def _go_through(self, asked: Iterator[tuple[str, int]], until_us: int) -> None:
        """Look at these, each at so many messages, as long as there is time; at one in any case."""
        for name, messages_max in asked:
            self._look_at(name, messages_max)
            until_us += self._breath.take()
            if self._clock.monotonic_us() >= until_us:
                break

    def _in_turn(self) -> Iterator[tuple[str, int]]:
        """Those that were not looked at for longest, and then more of the messages of those that have more."""
        front = set(self._front)
        for _ in range(len(self._turn)):
            name = self._turn[0]
            self._turn.rotate(-1)
            if name not in front:
                yield name, MESSAGES_MAX
        while self._unseen:
            yield from ((name, MESSAGES_MAX) for name in tuple(self._unseen))

    def _list(self) -> None:
        """See which there are, if there are others than before."""
        version, now_us = self._dispatcher.directory.version, self._clock.monotonic_us()
        if version == self._version or (len(self._rows) > MANY and now_us < self._listed_us + LIST_EVERY_US):
            return
        self._version, self._listed_us = version, now_us
        rows: dict[str, SubscriptionRow] = {}
        for row in self._dispatcher.directory.each():
            rows[row.options.id] = row
            self._breath.take()
        fresh = (name for name in rows if name not in self._found)
        self._turn = deque(dict.fromkeys((*fresh, *(name for name in self._turn if name in rows))))
        for name in [name for name in self._found if name not in rows]:
            self._sums.add(self._found.pop(name), -1)
            self._counted.pop(name, None)
            self._unseen.pop(name, None)
        self._front = [name for name in self._front if name in rows]
        self._rows = rows

    def _look_at(self, name: str, messages_max: int) -> None:
        row = self._rows[name]
        standing = self._standing(row, messages_max)
        if standing.unseen and standing.unseen != self._unseen.get(name):
            self._unseen[name] = standing.unseen
        else:
            self._unseen.pop(name, None)
        before = self._found.get(name)
        if before is not None:
            self._sums.add(before, -1)
        found = self._found[name] = SubscriptionFigures(
            id=name,
            lag=standing.lag,
            in_flight=standing.in_flight,
            retrying=standing.retrying,
            dead=standing.dead,
            consumers=standing.consumers,
            is_named=not self._is_owned(name),
        )
        self._sums.add(found, 1)

    def _standing(self, row: SubscriptionRow, messages_max: int) -> Standing:
        served = self._dispatcher.served(row.options.id)
        if served is None:
            return self._at_rest(row, self._dispatcher.at_rest.of(row), messages_max)
        self._counted.pop(row.options.id, None)
        return served.progress.standing(messages_max)

    # Those that nobody takes from

    def _at_rest(self, row: SubscriptionRow, resting: Resting, messages_max: int) -> Standing:
        wanted = row.options.filter
        counted = self._counted.setdefault(row.options.id, {})
        pending = unseen = 0
        for root in self._covered(wanted):
            # What retention has deleted nobody is behind with.
            floor = max(resting.floors.get(root.stream.number, 0), root.stream.first_offset - 1)
            count, more = self._after(wanted, root, floor, counted, messages_max)
            pending += count
            unseen += more
        lag = max(0, pending - resting.acked + resting.copies)
        return Standing(lag, 0, resting.failed, resting.dead, 0, unseen)

    def _covered(self, filter: str) -> list[Root]:
        first = filter.partition("/")[0]
        if first in ("+", "#"):
            return [root for root in self._roots.all() if filter_covers_root(filter, root.name)]
        root = self._roots.get(first)
        return [] if root is None else [root]

    def _after(
        self, filter: str, root: Root, floor: int, counted: dict[int, _Counted], messages_max: int
    ) -> tuple[int, int]:
        """Messages after a floor that match; and how many were not looked at, and are estimated."""
        stream = root.stream
        if stream.durable <= floor:
            return 0, 0
        if is_everything_of(filter, root.name) and not root.purges:
            return stream.durable - floor, 0
        one = counted.get(stream.number)
        if one is None or one.floor != floor or one.purges is not root.purges:
            one = counted[stream.number] = _Counted(floor, root.purges, floor)
            self._remembered += 1
            if self._remembered > COUNTED_MAX:
                self._counted, self._remembered = {}, 0
        if one.upto < stream.durable and messages_max:
            cursor = Cursor(root, Matcher(filter), one.upto + 1, self._config)
            now_us = self._clock.now_us()
            while (found := cursor.next(now_us, one.upto + messages_max)) is not None:
                if not isinstance(found, Hole):
                    one.count += len(found[1])
            one.upto = cursor.position - 1
        unseen = max(0, stream.durable - one.upto)
        return estimate(one.count, one.upto - floor, unseen), unseen
