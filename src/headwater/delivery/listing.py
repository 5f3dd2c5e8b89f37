"""Durable subscriptions as users see them: listed by id, a page after another.

Promises: listing thousands of them holds nobody up: those that nobody takes from are told from their rows, and what
waits for them is counted with one look at each root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from headwater.delivery.at_rest import AtRest, floor_in
from headwater.delivery.backlog import Backlog
from headwater.delivery.directory import Directory
from headwater.delivery.rows import Resting, RowCommit, SubscriptionRow
from headwater.errors import Malformed, NotFound
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.message import SubscriptionInfo
from headwater.topics.name import filter_covers_root, is_everything_of

INFOS_AT_ONCE = 1000
"""Subscriptions that are looked at, and told of, together."""
LEARN_MIN = 32
"""Where so many are asked for, the rows of all are counted at once."""


class Listing:
    """Looks at many subscriptions at once; from any thread."""

    def __init__(
        self,
        roots: Roots,
        commit: RowCommit,
        directory: Directory,
        at_rest: AtRest,
        backlog: Backlog,
        info: Callable[[SubscriptionRow], SubscriptionInfo],
        served: Mapping[str, object],
        *,
        is_read_only: bool,
    ) -> None:
        """`info` looks at one that somebody takes from."""
        self._roots = roots
        self._commit = commit
        self._directory = directory
        self._at_rest = at_rest
        self._backlog = backlog
        self._info = info
        self._served = served
        self._is_read_only = is_read_only

    def infos(
        self,
        after: str | None = None,
        limit: int | None = None,
        wanted: Callable[[str, str], bool] = lambda _id, _filter: True,
    ) -> list[SubscriptionInfo]:
        """Durable subscriptions as users see them, by id, those whose id and filter are wanted; a page after an id."""
        found: list[SubscriptionInfo] = []
        while True:
            some, after = self.infos_after(after, None if limit is None else limit - len(found), wanted)
            found += some
            if after is None or len(found) == limit:
                return found

    def infos_after(
        self, after: str | None, limit: int | None, wanted: Callable[[str, str], bool]
    ) -> tuple[list[SubscriptionInfo], str | None]:
        """Those among the next ones, which are so many and no more, and the id after which to go on, None at the end;
        for a listing in which others have their turn."""
        if limit is not None and limit < 1:
            raise Malformed(f"limit is {limit}; use 1 or more")
        self._commit.flush()
        some: list[SubscriptionRow] = []
        last: SubscriptionRow | None = None
        for looked, row in enumerate(self._directory.each(after), 1):
            if wanted(row.options.id, row.options.filter):
                some.append(row)
            if looked == INFOS_AT_ONCE or len(some) == limit:
                last = row
                break
        return self._page(some), None if last is None else last.options.id

    def _page(self, asked: Sequence[SubscriptionRow]) -> list[SubscriptionInfo]:
        """Some of them. Those that nobody takes from are told from their rows, and what waits for them is counted with
        one look at each root; nobody is held up meanwhile."""
        resting: dict[str, Resting] = {}
        for row in asked:
            if self._is_read_only or row.options.id in self._served:  # there, others change what is stored
                continue
            known = self._resting(row, len(asked))
            if not known.acked and not known.failed:
                resting[row.options.id] = known
        pending = self._pending([row for row in asked if row.options.id in resting], resting)
        found = []
        for row in asked:
            name = row.options.id
            try:
                if name in resting:
                    found.append(self._told(row, resting[name], pending.get(name, 0)))
                else:
                    found.append(self._info(row))
            except NotFound:
                continue  # deleted since
        return found

    def _told(self, row: SubscriptionRow, resting: Resting, pending: int) -> SubscriptionInfo:
        options, lag = row.options, pending + resting.copies
        floors = {root.name: resting.floors.get(root.stream.number, 0) for root in self._roots.covered(options.filter)}
        return SubscriptionInfo(
            *(options.id, options.filter, options.order, lag, 0, 0, resting.dead, 0, row.paused, floors)
        )

    def _resting(self, row: SubscriptionRow, count: int) -> Resting:
        """One that nobody takes from, in numbers; if many are asked for, all that are not known are learnt at once."""
        if row.options.id not in self._at_rest.known and count >= LEARN_MIN:
            self._at_rest.learn()
        return self._at_rest.of(row)

    def _pending(self, asked: Sequence[SubscriptionRow], resting: Mapping[str, Resting]) -> dict[str, int]:
        """How many messages wait for each of these, in all roots."""
        behind: dict[Root, dict[str, tuple[SubscriptionRow, int]]] = {}
        count: Counter[str] = Counter()
        for row in asked:
            name, wanted = row.options.id, row.options.filter
            for root in self._roots.covered(wanted):
                floor, end = floor_in(root, resting[name]), root.stream.durable
                if floor >= end:
                    continue
                if is_everything_of(wanted, root.name) and not root.purges:
                    count[name] += end - floor
                else:
                    behind.setdefault(root, {})[name] = row, floor
        for root, there in behind.items():
            count.update(self._backlog.count(root, there, self._at_rest_in if len(asked) >= LEARN_MIN else None))
        return count

    def _at_rest_in(self, root: Root) -> Iterator[tuple[SubscriptionRow, int]]:
        """Subscriptions that nobody takes from and that have messages of a root to be counted, with their floors."""
        for row in self._directory.each():
            known = self._at_rest.known.get(row.options.id)
            if known is None or known.acked or known.failed or not filter_covers_root(row.options.filter, root.name):
                continue
            floor = floor_in(root, known)
            if floor < root.stream.durable:
                yield row, floor
