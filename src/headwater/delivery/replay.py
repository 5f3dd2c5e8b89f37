"""Replay and follow: reading history, and reading on.

Promises: in order within each root; `follow` crosses from history to live with no gap and no repeat, since it reads
the stream all the time and is merely told when there is more; several roots are merged by the time at which their
batches were appended. What the log no longer has is read from the history that a lake keeps, if there is one; a gap is
what neither has.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from headwater import threads
from headwater.clock import SECOND_US, Clock, from_datetime
from headwater.config import Config
from headwater.delivery.cursor import (
    SLICE_BATCHES,
    SLICE_BYTES,
    UNREAD,
    Budget,
    Cursor,
    Matcher,
    every_place,
)
from headwater.delivery.history import History, Lot, Past, Stretch
from headwater.delivery.reader import Reader, check_take
from headwater.delivery.selection import Selection
from headwater.errors import Gap, Malformed
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.message import Message
from headwater.store.batch import Batch
from headwater.store.log import Hole
from headwater.topics.name import filter_covers_root, root_of_filter

After = int | Mapping[str, int] | None


def check_after(filter: str, after: object, since: object) -> None:
    """Malformed unless it says where to begin."""
    if after is not None and since is not None and not isinstance(after, Mapping):
        raise Malformed("state where to begin as after=offset or as since=datetime, not both")
    if since is not None and not isinstance(since, datetime):
        raise Malformed(f"since is {since!r}; use a datetime")
    if isinstance(after, int):
        if root_of_filter(filter) is None:
            raise Malformed(
                f'"{filter}" reaches over several roots, and offsets count within one; '
                "use after={root: offset}, or since=datetime"
            )
        if isinstance(after, bool) or after < 0:
            raise Malformed(f"after is {after}; offsets count from 1, and 0 is before the first")
    elif after is not None:
        offsets: list[object] = list(after.values()) if isinstance(after, Mapping) else [after]
        roots = after if isinstance(after, Mapping) else ()
        if not all(isinstance(root, str) for root in roots) or not all(
            type(offset) is int and offset >= 0 for offset in offsets
        ):
            raise Malformed(f"after is {after!r}; use an offset from 0 on, or a dict of them by root")


class Bell:
    """Wakes a reading when there is more, as long as it is referenced.

    It is what others hold of a reading: one that was forgotten, as by `for … in bus.follow(…): break`, is collected.
    """

    __slots__ = ("_reading",)

    wants_places: ClassVar[bool] = False
    takes_early: ClassVar[bool] = False

    def __init__(self, reading: Reading) -> None:
        self._reading = weakref.ref(reading)

    def deliver(self, selection: Selection) -> None:
        """There is more; from the thread that commits."""
        reading = self._reading()
        if reading is not None:
            reading.tell()

    def end(self) -> None:
        """Wake the reader for good."""
        reading = self._reading()
        if reading is not None:
            reading.end()


class Reading(Reader):
    """Messages one after another; iterate it, or ask with `next` and `batch`."""

    def __init__(
        self,
        roots: Roots,
        filter: str,
        after: After,
        since: datetime | None,
        follows: bool,
        config: Config,
        clock: Clock,
        origin: Any,
        on_close: Callable[[], None],
        upto: Mapping[str, int] | None = None,
        history: History | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """With `columns` it is read with `take_unsifted`: what is in history comes with these alone."""
        check_after(filter, after, since)
        check_after("#", upto, None)
        self.filter = filter
        self._roots = roots
        self._matcher = Matcher(filter)
        self._columns = columns
        self._after = after
        self._since = since
        self._follows = follows
        self._upto = upto
        self._config = config
        self._clock = clock
        self._origin = origin
        self._on_close = on_close
        self._made = -1
        self._cursors: dict[str, Cursor] = {}
        self._next: dict[str, tuple[int, Batch | Lot, Sequence[int]]] = {}
        """By root, what was not taken yet: its time, and places in it."""
        self._history = history
        self._pasts: dict[str, Past] = {}
        """Roots that are being read from history."""
        self._starts_us: dict[str, int] = {}
        """Roots that begin in history, with the first message sent at or after this."""
        self._ends: dict[str, int] = {}
        self._is_open = False
        self._ready: deque[Message] = deque()
        self._gap: Gap | None = None
        """To be raised once what is ready was handed out."""
        self._signal = threads.Condition()
        self._version = 0
        self._closed = False
        self._wakers: list[Callable[[], None]] = []
        self._open()
        self._ends = {root: cursor.root.stream.durable for root, cursor in self._cursors.items()}
        if upto is not None:
            self._ends = {root: min(end, upto[root]) for root, end in self._ends.items()}
        self._is_open = True

    def _open(self) -> None:
        """A cursor for each root that the filter may match; one that appears later is read from its first message."""
        if self._roots.made == self._made:
            return
        self._made = self._roots.made
        self._cross()
        for root in self._roots.all():
            is_wanted = self._upto is None or root.name in self._upto
            if root.name not in self._cursors and is_wanted and filter_covers_root(self.filter, root.name):
                self._cursors[root.name] = self._cursor(root, self._position(root))

    def _cross(self) -> None:
        """Go on in roots that were removed and made again, once what was missed of them was told."""
        for name, cursor in self._cursors.items():
            root = self._roots.get(name)
            if root is not None and root is not cursor.root:
                if cursor.position > cursor.root.stream.durable:
                    self._cursors[name] = self._cursor(root, cursor.position)
                else:
                    self._made = -1  # not yet

    def _cursor(self, root: Root, position: int) -> Cursor:
        sift = None if self._columns is None else every_place
        return Cursor(root, self._matcher, position, self._config, sift)

    def _position(self, root: Root) -> int:
        if isinstance(self._after, int):
            return self._after + 1
        if self._after is not None and root.name in self._after:
            return self._after[root.name] + 1
        if self._is_open and root.name not in self._ends:
            return 1  # it appeared later: everything in it is new
        if self._since is not None:
            since_us = from_datetime(self._since)
            return self._reaching_back(root, root.stream.offset_at(since_us), since_us)
        return self._reaching_back(root, root.stream.first_offset, 0)

    def _reaching_back(self, root: Root, position: int, since_us: int) -> int:
        """Where to begin: before everything that the log has, if history may have more of what is asked for."""
        if self._history is None or position == 1 or position > root.stream.first_offset:
            return position
        self._starts_us[root.name] = since_us
        return 1

    # Reading

    def _fill(self) -> bool:
        """Make messages of the oldest batch that was not read yet."""
        if self._gap is not None:
            gap, self._gap = self._gap, None
            raise gap
        while not self._ready:
            found = self.take()
            if found is None:
                return False
            self._ready.extend(found.taken(self._origin))
        return True

    def _gather(self, count: int) -> None:
        """Have so many messages ready, as far as they are at hand without a look at the disk."""
        try:
            while len(self._ready) < count and self._gap is None and not self._closed and self._look():
                found = self._oldest()
                if found is None:
                    return
                self._ready.extend(found.taken(self._origin))
        except Gap as gap:
            self._gap = gap

    def take(self) -> Selection | None:
        """The oldest messages that were not read yet and stand together. It waits for those that are on disk or in
        history, unless `look` has said that they are at hand."""
        while not self.look():
            self.fetch()
        return self._oldest()

    @property
    def begins(self) -> dict[str, int]:
        """The next offset to look at in each root."""
        return {name: cursor.position for name, cursor in self._cursors.items()}

    def take_unsifted(self) -> tuple[Root, Batch | Lot, int] | None:
        """The oldest batch as it stands, whatever of it is asked for, and the last offset that is; or what history has,
        as rows of Arrow. For readers that make no objects of messages; reads on by itself."""
        while not self.look():
            self.fetch()
        if not self._next or self._closed:
            return None
        name = min(self._next, key=lambda root: self._next[root][0])
        return self._cursors[name].root, self._next.pop(name)[1], self._ends[name]

    def _oldest(self) -> Selection | None:
        """The oldest messages of those at hand."""
        if not self._next:
            return None
        name = min(self._next, key=lambda root: self._next[root][0])
        _, batch, places = self._next.pop(name)
        if isinstance(batch, Lot):
            messages = batch.messages(self._origin)
            return Selection(name, None, len(messages), None, messages)
        if not self._follows:
            last = self._ends[name] - batch.first_offset
            places = places if batch.last_offset <= self._ends[name] else [p for p in places if p <= last]
        return Selection(name, batch, len(places), None if len(places) == batch.count else places)

    def look(self, budget: Budget | None = None) -> bool:
        """Have the next messages of every root at hand; False where `fetch` has to read them first, or where the
        budget does not reach. Nothing is read from disk."""
        if self._ready or self._closed or self._gap is not None:
            return True
        return self._look(budget)

    def _look(self, budget: Budget | None = None) -> bool:
        if self._follows:
            self._open()
        now_us, budget, is_unread = self._clock.now_us(), budget or Budget(), False
        for name, cursor in self._cursors.items():
            if name in self._next or name in self._pasts:
                continue
            found = cursor.look(now_us, None if self._follows else self._ends.get(name, 0), budget)
            if found is UNREAD:
                is_unread = True
            elif isinstance(found, Hole):
                self._meet(cursor.root, found)
            elif found is not None:
                self._next[name] = (found[0].header.time_us, *found)
        return not is_unread and not self.is_in_history

    def _meet(self, root: Root, hole: Hole) -> None:
        """What the log does not have is history, or a gap."""
        if self._history is None:
            raise Gap(root.name, hole.first, hole.last, hole.reason)
        first = max(hole.first, root.purged_upto + 1)
        last = hole.last if self._follows else min(hole.last, self._ends[root.name])
        since_us = self._starts_us.pop(root.name, None)
        if hole.first > 1:
            since_us = None  # it began in the log after all
        stretch = Stretch(root.name, first, last, hole.reason, since_us)
        self._pasts[root.name] = Past(self._history, stretch, self._matcher.wanted, self._columns)

    @property
    def is_in_history(self) -> bool:
        """Whether a `fetch` reads what the log does not have, which takes longer."""
        return not self._pasts.keys() <= self._next.keys()

    def fetch(self) -> None:
        """Read on, from disk for a slice and in history some messages of each root that has none at hand; this takes
        its time."""
        now_us, budget = self._clock.now_us(), Budget(SLICE_BATCHES, SLICE_BYTES)
        for name, cursor in tuple(self._cursors.items()):
            if name not in self._next and name not in self._pasts and not budget.is_spent:
                cursor.read_on(now_us, None if self._follows else self._ends.get(name, 0), budget)
        for name, past in tuple(self._pasts.items()):
            if name in self._next:
                continue
            found = past.next()
            if found is None:
                del self._pasts[name]
            elif isinstance(found, Hole):
                raise Gap(name, found.first, found.last, found.reason)
            else:
                lot = found.without(self._cursors[name].root.purges)
                if len(lot.offsets):
                    self._next[name] = (lot.time_us, lot, ())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        ready = self._ready
        if not ready and not self._await(None):
            raise StopIteration
        return ready.popleft()

    def batch(self, max: int = 1000, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them. Empty at the end of history, or when the
        time has passed."""
        check_take(max, timeout_s)
        if not self._ready and not self._await(timeout_s):
            return []
        self._gather(max)
        return [self._ready.popleft() for _ in range(min(max, len(self._ready)))]

    def _await(self, timeout_s: float | None) -> bool:
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            seen = self._version
            if self._closed:
                return False
            if self._fill():
                return True
            left_us = None if until_us is None else until_us - self._clock.monotonic_us()
            if not self._follows or (left_us is not None and left_us <= 0):
                return False
            with self._signal:
                if self._version == seen and not self._clock.wait(self._signal, left_us) and left_us is not None:
                    until_us = 0  # one last look

    # Wake-ups

    def tell(self) -> None:
        """There is more; from the thread that commits."""
        with self._signal:
            self._version += 1
            self._signal.notify_all()
        for wake in self._wakers:
            wake()

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call this, from the committing thread, whenever there is more."""
        self._wakers.append(wake)

    @property
    def is_closed(self) -> bool:
        """Whether somebody has closed it."""
        return self._closed

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed or not self._follows

    def end(self) -> None:
        """Wake the reader for good."""
        self._closed = True
        self.tell()

    def close(self) -> None:
        """Stop reading."""
        self.end()
        self._on_close()
