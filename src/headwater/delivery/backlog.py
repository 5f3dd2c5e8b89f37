"""How many messages wait for subscriptions that nobody takes from, counted with one look at the log for all of them,
and remembered: whoever lists thousands of them, page by page, has the log read once.

Promises: what is told is as right as if each were counted anew. A count is remembered for a floor, and goes on from
where it ended; it is forgotten when something was purged, and never made of messages that expire.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.needs import Needs, count_above
from headwater.delivery.rows import SubscriptionRow
from headwater.log.purges import Purges
from headwater.log.root import Root

LEARN_AGAIN_US = 10 * SECOND_US
"""All subscriptions of a root are not counted more often than that, as it takes a while; those of a page are."""

LEARN_MESSAGES_MIN = 20_000
"""Where fewer messages are to be looked at, each page is quicker by itself."""

Known = tuple[int, int, int]
"""A floor, the offset up to which was counted, and how many."""
All = Callable[[Root], Iterable[tuple[SubscriptionRow, int]]]
"""Every subscription that is to be counted with a root, with its floor there."""


class _Counted:
    """What is known of one root."""

    __slots__ = ("known", "learnt_us", "purges", "root")

    def __init__(self, root: Root) -> None:
        self.root = root
        self.purges: Purges = root.purges
        self.known: dict[int, Known] = {}
        """By the number of a subscription."""
        self.learnt_us = -LEARN_AGAIN_US

    @property
    def is_right(self) -> bool:
        """Whether nothing was purged since it was counted."""
        return self.purges is self.root.purges


class Backlog:
    """What waits for subscriptions, by root."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._roots: dict[int, _Counted] = {}

    def count(self, root: Root, asked: Mapping[str, tuple[SubscriptionRow, int]], learn: All | None) -> dict[str, int]:
        """How many messages of a root wait for each of these, by id, above its floor; `learn` if it is to be found out
        for all others as well, unless that was done a moment ago."""
        counted = self._counted(root)
        if learn is not None and self._pays(counted, asked):
            counted.learnt_us = self._clock.monotonic_us()
            everybody = {row.options.id: (row, floor) for row, floor in learn(root)}
            self._count(counted, {**everybody, **asked})
        return self._count(counted, asked)

    def _pays(self, counted: _Counted, asked: Mapping[str, tuple[SubscriptionRow, int]]) -> bool:
        """Whether to count for all subscriptions at once: much would be read for these alone, and for the next."""
        if self._clock.monotonic_us() < counted.learnt_us + LEARN_AGAIN_US:
            return False
        known, floor_max = counted.known, counted.root.stream.durable - LEARN_MESSAGES_MIN
        return any(floor < floor_max and _is_unknown(known.get(row.number), floor) for row, floor in asked.values())

    def forget(self, number: int) -> None:
        """A subscription is no more."""
        for counted in tuple(self._roots.values()):
            counted.known.pop(number, None)

    def forget_root(self, stream: int) -> None:
        """A root is no more."""
        self._roots.pop(stream, None)

    def _counted(self, root: Root) -> _Counted:
        counted = self._roots.get(root.stream.number)
        if counted is None or not counted.is_right:
            counted = self._roots[root.stream.number] = _Counted(root)
        return counted

    def _count(self, counted: _Counted, asked: Mapping[str, tuple[SubscriptionRow, int]]) -> dict[str, int]:
        root, known = counted.root, counted.known
        end = root.stream.durable
        found: dict[str, int] = {}
        behind: dict[str, int] = {}
        for name, (row, floor) in asked.items():
            one = known.get(row.number)
            if one is None or one[0] != floor:
                found[name], behind[name] = 0, floor
            else:
                found[name] = one[2]
                if one[1] < end:
                    behind[name] = one[1]
        if not behind:
            return found
        filters = ((name, asked[name][0].options.filter) for name in behind)
        more: Counter[str] = Counter()
        is_lasting = count_above(root, Needs(self._config, filters, behind), self._config, self._clock, end, more)
        for name in behind:
            found[name] += more.get(name, 0)
            row, floor = asked[name]
            if is_lasting:
                known[row.number] = (floor, end, found[name])
            else:
                known.pop(row.number, None)
        return found


def _is_unknown(one: Known | None, floor: int) -> bool:
    return one is None or one[0] != floor
