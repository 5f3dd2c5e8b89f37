"""What of a root durable subscriptions still need: the lowest of their floors, past what none of them wants.

Retention asks for it, in a thread of its own: the floors are read in slices, the log is gone through once for all
subscriptions together, and only as far as retention would delete. Promises: the floors that an answer relies on are
stored before it is given, so that after a crash nobody misses what it never wanted; a subscription that is made, or
goes back, meanwhile is heard of (`Lowest.since`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from headwater import threads
from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.at_rest import AtRest
from headwater.delivery.directory import Directory
from headwater.delivery.needs import CHECK_EVERY, NOTHING, Needs, first_needed
from headwater.delivery.rows import RowCommit, SubscriptionRow
from headwater.delivery.subscriber import Subscriber
from headwater.log.root import Root
from headwater.store import state as rows
from headwater.store.state import Rows, State
from headwater.topics.name import filter_covers_root

SYNCED_AFTER = 16
"""Goes in which retention moves floors until they are synced."""


class Lowest:
    """Subscriptions that begin, or go back, while somebody finds out what is needed."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}

    def begin(self, stream: int) -> None:
        """Somebody begins to find out about a stream."""
        self._since[stream] = NOTHING

    def note(self, stream: int, floor: int) -> None:
        """Somebody stands there now."""
        if floor < self._since.get(stream, 0):
            self._since[stream] = floor

    def since(self, stream: int) -> int:
        """The lowest floor that was noted since it began."""
        return self._since.get(stream, NOTHING)


class Floors:
    """The floors of all subscriptions, for retention."""

    def __init__(
        self,
        state: State,
        commit: RowCommit,
        directory: Directory,
        at_rest: AtRest,
        served: Mapping[str, Subscriber],
        lock: threads.RLock,
        config: Config,
        clock: Clock,
    ) -> None:
        """`lock` is held while who is served, and what they wait for, changes."""
        self._state = state
        self._commit = commit
        self._directory = directory
        self._at_rest = at_rest
        self._served = served
        self._lock = lock
        self._config = config
        self._clock = clock
        self.lowest = Lowest()

    def needed_from(self, root: Root, upto: int | None = None, check: Callable[[], None] = lambda: None) -> int:
        """The first offset of a root that some durable subscription has not acked, and wants; with `upto`, nothing
        behind that is looked at. From any thread, and it takes its time: `check` is called again and again, and may
        raise. Whoever acts on it does so in the committing role, and asks `lowest` before.

        The floors that this relies on are stored: after a crash nobody shall miss what it never wanted.
        """
        stream = root.stream
        end = stream.durable
        last = end if upto is None else min(upto, end)
        self.lowest.begin(stream.number)
        self._commit.flush()
        low, floors = self._low_floors(root, last, check)
        if not low:
            return last + 1
        needs = Needs(self._config, ((row.options.id, row.options.filter) for row in low), floors, check)
        numbers = {row.options.id: row.number for row in low}

        def is_done(id: str, offset: int) -> bool:
            served = self._served.get(id)
            if served is not None:
                return not served.progress.undone(root.name, [offset])
            return self._state.get(rows.key_message(rows.ACKED, numbers[id], stream.number, offset)) is not None

        needed = first_needed(root, needs, last, is_done, self._config, self._clock, check)
        self._raise_floors(root, low, floors, needed - 1, check)
        return needed

    def _low_floors(
        self, root: Root, last: int, check: Callable[[], None]
    ) -> tuple[list[SubscriptionRow], dict[str, int]]:
        """Subscriptions that cover a root and have not acked all up to an offset; and their floors, by id."""
        low: list[SubscriptionRow] = []
        floors: dict[str, int] = {}
        covering = (row for row in self._directory.each() if filter_covers_root(row.options.filter, root.name))
        while some := list(islice(covering, CHECK_EVERY)):
            check()
            with self._lock:
                for row in some:
                    floor = self._floor_of(row, root.stream.number)
                    if floor is not None and floor < last:
                        low.append(row)
                        floors[row.options.id] = floor
        return low, floors

    def _floor_of(self, row: SubscriptionRow, stream: int) -> int | None:
        """Where a subscription stands in a stream, as it is served or stored; None if it is gone."""
        served = self._served.get(row.options.id)
        if served is not None:
            return served.progress.floor(stream)
        value = self._state.get(rows.key_pair(rows.FLOOR, row.number, stream))
        if value is not None:
            return int.from_bytes(value[:8], "big")
        return 0 if self._directory.row(row.options.id) is not None else None

    def _raise_floors(
        self,
        root: Root,
        low: Sequence[SubscriptionRow],
        floors: Mapping[str, int],
        floor: int,
        check: Callable[[], None],
    ) -> None:
        """None of these wants anything between where it stood and a floor: note that, where it still stands there.

        Nobody who comes or goes meanwhile waits for the disk: rows get their places while they are right, and are
        synced afterwards.
        """
        stream, goes = root.stream.number, range(0, len(low), CHECK_EVERY)
        for turn, at in enumerate(goes, 1):
            check()
            with self._lock:
                self._commit.check()
                item = self._commit.enqueue(
                    self._raised(low[at : at + CHECK_EVERY], floors, stream, floor), is_owed=False
                )
            if turn % SYNCED_AFTER == 0 or turn == len(goes):
                self._commit.drive(item)

    def _raised(self, some: Sequence[SubscriptionRow], floors: Mapping[str, int], stream: int, floor: int) -> Rows:
        changed: Rows = {}
        for row in some:
            name = row.options.id
            before, served = floors[name], self._served.get(name)
            if before >= floor:
                continue
            if served is not None:
                changed.update(served.progress.pass_over(stream, before, floor))
            elif self._floor_of(row, stream) == before:
                changed[rows.key_pair(rows.FLOOR, row.number, stream)] = floor.to_bytes(8, "big")
                self._at_rest.raise_floor(name, stream, floor)
        return changed
