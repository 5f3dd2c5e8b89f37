"""The life of messages as a stream: with `states = "stream"`, what becomes of the messages of a subscription is told on
`$sys/states/<subscription>`.

Every change of state is noted where it is made (`Ledger.on_step`): a run of messages is one entry, whose offsets are
not copied and of which nothing is encoded there. A tenth of a second later a batch of entries is published, each a
message in JSON. Promises: entries of a subscription are in the order of its changes; no more than `states_waiting_max`
wait, and of those that one client made `states_waiting_per_client_max`, and where some are lost an entry says how many;
a subscription to these topics has no entries of its own.
Nobody waits for them: what a killed process had not published is missing, and `opened` says where it went on.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from datetime import datetime
from functools import partial

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock, to_datetime
from headwater.config import Config
from headwater.delivery.lane import TRANSITIONS, Event, Failure, LaneId, Lease, Ticket
from headwater.delivery.own_topics import STATES, own_topic
from headwater.delivery.rows import SubscriptionRow
from headwater.delivery.timers import Timers
from headwater.errors import HeadwaterError
from headwater.events import Events
from headwater.log.checks import Checks
from headwater.log.roots import Roots
from headwater.memo import Memo
from headwater.message import Outgoing
from headwater.topics.name import filters_overlap

WRITE_AFTER_S = 0.1
AT_ONCE_MAX = 5000
"""Entries that are published together;"""
OFFSETS_AT_ONCE = 100_000
"""and offsets in them, unless one alone has more."""
REDRIVEN, OPENED, LOST = "redriven", "opened", "lost"
NAMES: dict[str, str] = {
    Event.DELIVER: "taken",
    Event.ACK: "acked",
    Event.NACK: "nacked",
    Event.TIMEOUT: "timed_out",
    Event.VANISH: "vanished",
    Event.FULL: "held",
    Event.REJECT: "dead",
    Event.EXHAUST: "dead",
    Event.RECALL: "recalled",
    Event.SPARE: "acked",
    REDRIVEN: REDRIVEN,
    OPENED: OPENED,
}
"""What an event is called."""
AFTER: dict[str, str] = {
    **{event: state.value for (_, event), state in TRANSITIONS.items()},
    REDRIVEN: "pending",
    OPENED: "retry",
}
"""The state after an event, which is the same whatever it was before."""
NEVER_FAILED = Failure(0, 0)
EPOCH = to_datetime(0)
encode = msgspec.json.Encoder().encode


class LifeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of some messages at one moment, as it is written."""

    time: datetime
    event: str
    """One of NAMES; redriven; opened: it is served again, what was in flight is pending, and what had failed is told in
    the next entries; lost: so many entries are missing here."""
    state: str | None = None
    """The state of these messages from now on."""
    root: str | None = None
    ranges: list[tuple[int, int]] = []
    """First and last offset of each run of them."""
    copies: bool = False
    """Whether they are copies: retained at the start of the subscription, or redriven."""
    consumer: str | None = None
    attempts: int = 0
    deliveries: int = 0
    retry_at: datetime | None = None
    error: str | None = None
    count: int = 0


Left = tuple[LaneId, int, Failure]
"""A message that failed, as it is found when a subscription is loaded."""
Noted = tuple["Life", int, Event | str, LaneId | None, int, int, Sequence[int] | None, Hashable, Failure | None]
"""Whose, when on the monotonic clock, what, of which lane, the first and last offset, all of them unless they are
neighbours, the consumer, what is known of a failure."""
TEMPLATES_MAX = 1000


class Share:
    """How many entries of one client's subscriptions wait: those that were noted, less those that were taken."""

    __slots__ = ("__weakref__", "most", "noted", "taken")

    def __init__(self, most: int) -> None:
        self.most = most
        self.noted = self.taken = 0


class Life:
    """What is noted of one subscription while it is served. Its owner's lock guards it."""

    __slots__ = (
        *("_left", "_lives", "_monotonic_us", "_root_of", "_roots", "_templates", "_waiting", "_waiting_max"),
        *("id", "is_opened", "is_waiting", "lost", "number", "share", "topic"),
    )

    def __init__(
        self, lives: Lives, row: SubscriptionRow, topic: str, root_of: Callable[[int], str], left: Sequence[Left]
    ) -> None:
        self._lives = lives
        self._left = left
        """What had failed when it was loaded."""
        self._monotonic_us = lives.clock.monotonic_us
        self._waiting = lives.waiting
        self._waiting_max = lives.waiting_max
        self._root_of = root_of
        self._roots: dict[int, str] = {}
        """Names by stream: a root may be removed before what was noted of it is written."""
        self._templates: Memo[tuple[Event | str, LaneId, Hashable], tuple[str, str]] = Memo(TEMPLATES_MAX)
        """What stands around the times and offsets of entries about no failure."""
        self.id = row.options.id
        self.number = row.number
        self.share = lives.share_of(row.owner)
        self.topic = topic
        self.lost = 0
        """Entries that there was no room for."""
        self.is_opened = False
        """Whether it was told that it is served again."""
        self.is_waiting = False
        """Whether something of it waits to be written."""

    def note(
        self,
        event: Event | str,
        lane: LaneId,
        offsets: Sequence[int],
        lease: Lease | None = None,
        failure: Failure | None = None,
    ) -> None:
        """A run of messages has changed its state."""
        waiting, share, now_us = self._waiting, self.share, self._monotonic_us()
        if len(waiting) >= self._waiting_max or share.noted - share.taken >= share.most:
            self.lost += 1
            return
        if lane[0] not in self._roots:
            self._roots[lane[0]] = self._root_of(lane[0])
        if not self.is_waiting:
            self.is_waiting = True
            self._lives.begin(self)
            if not self.is_opened:
                self._open(now_us)
        first, last = offsets[0], offsets[-1]
        rest = None if last - first + 1 == len(offsets) else offsets
        waiting.append((self, now_us, event, lane, first, last, rest, lease and lease.consumer, failure))
        share.noted += 1

    def _open(self, now_us: int) -> None:
        """It is served again: nothing is in flight, and what had failed waits for its next attempt."""
        self.is_opened = True
        share = self.share
        self._waiting.append((self, now_us, OPENED, None, 0, 0, None, None, None))
        share.noted += 1
        for count, (lane, offset, failure) in enumerate(self._left):
            if len(self._waiting) >= self._waiting_max or share.noted - share.taken >= share.most:
                self.lost += len(self._left) - count
                break
            self._roots[lane[0]] = self._root_of(lane[0])
            self._waiting.append((self, now_us, OPENED, lane, offset, offset, None, None, failure))
            share.noted += 1
        self._left = ()

    # By whoever writes

    def plain(self, time: str, event: Event | str, lane: LaneId, span: str, consumer: Hashable) -> bytes:
        """An entry about no failure, as nearly all are: most of it is as it was before."""
        found = self._templates.known.get((event, lane, consumer))
        if found is None:
            text = encode(self.entry(EPOCH, event, lane, [(0, 0)], consumer)).decode()
            head, _, tail = text.partition("[[0,0]]")
            found = self._templates.keep((event, lane, consumer), (head.partition(",")[2], tail))
        return f'{{"time":"{time}",{found[0]}{span}{found[1]}'.encode()

    def entry(
        self,
        time: datetime,
        event: Event | str,
        lane: LaneId,
        ranges: list[tuple[int, int]],
        consumer: Hashable,
        failure: Failure = NEVER_FAILED,
    ) -> LifeEntry:
        """What is told of some messages."""
        state = AFTER[event]
        who = consumer.who if isinstance(consumer, Ticket) else ""
        return LifeEntry(
            *(time, NAMES[event], state, self._roots[lane[0]], ranges, lane[1], who or failure.by or None),
            attempts=failure.attempts,
            deliveries=failure.vanished,
            retry_at=to_datetime(failure.retry_at_us) if failure is not NEVER_FAILED and state == "retry" else None,
            error=failure.errors[-1] if failure.errors else None,
        )


class Lives:
    """What is noted of all subscriptions of which something is, on its way to the log."""

    def __init__(
        self, roots: Roots, checks: Checks, timers: Timers, config: Config, clock: Clock, events: Events
    ) -> None:
        self.clock = clock
        self.waiting: deque[Noted] = deque()
        self.waiting_max = config.states_waiting_max
        self.number_of: Callable[[str], int | None] = lambda _id: None
        """The number of the subscription of an id, if there is one: of another before it nothing is told any more."""
        self.on_published: Callable[[str, int], None] = lambda _id, _number: None
        """Called in the committing role with the id and the number of each of which something was published."""
        self._roots = roots
        self._checks = checks
        self._timers = timers
        self._config = config
        self._events = events
        self._lock = threads.Lock()
        self._numbers: dict[str, Counter[int]] = {}
        """By id, the numbers of subscriptions of which something waits."""
        self._is_losing = False
        self._shares: weakref.WeakValueDictionary[str, Share] = weakref.WeakValueDictionary()
        self._writing = threads.Lock()
        self._taken = 0
        """Entries that were taken to be written, ever."""
        self._ending: deque[tuple[int, Life]] = deque()
        """Subscriptions whose entries are written once so many were taken."""

    def of(
        self, row: SubscriptionRow, root_of: Callable[[int], str], left: Callable[[], Sequence[Left]]
    ) -> Life | None:
        """What is to be noted of a subscription; None if nothing is, as nearly always. `left` gives what has failed."""
        options = row.options
        if (options.states or self._config.states) != "stream" or filters_overlap(options.filter, f"{STATES}/#"):
            return None
        return Life(self, row, own_topic(STATES, options.id, self._config), root_of, left())

    def share_of(self, owner: str) -> Share:
        """That of the client who made a subscription; what nobody's clients made is not limited beyond the whole."""
        with self._lock:
            share = self._shares.get(owner)
            if share is None:
                most = self._config.states_waiting_per_client_max if owner else self.waiting_max
                self._shares[owner] = share = Share(most)
            return share

    def is_of(self, id: str, number: int) -> bool:
        """Whether nothing waits that is about another subscription of this id."""
        with self._lock:
            return self._numbers.get(id, {}).keys() <= {number}

    def begin(self, life: Life) -> None:
        """The first entry of a subscription since the last were written."""
        with self._lock:
            self._numbers.setdefault(life.id, Counter())[life.number] += 1
        self._timers.set("states", self.clock.monotonic_us() + round(WRITE_AFTER_S * SECOND_US), self._ring)

    def _end(self, life: Life) -> None:
        with self._lock:
            numbers = self._numbers[life.id]
            numbers[life.number] -= 1
            if not numbers[life.number]:
                del numbers[life.number]
            if not numbers:
                del self._numbers[life.id]

    def _ring(self) -> None:
        """Publish some of what waits; the rest follows when the timers have rung for others."""
        try:
            self._write_some()
        finally:
            if self.waiting:
                self._timers.set("states", self.clock.monotonic_us(), self._ring)

    def write(self) -> None:
        """Publish all that waits, as the bus is closed."""
        while self.waiting:
            self._write_some()
        with self._writing:
            return  # what the timers' thread had begun is published

    def _write_some(self) -> None:
        with self._writing:
            some, count = list[Noted](), 0
            while self.waiting and len(some) < AT_ONCE_MAX and count < OFFSETS_AT_ONCE:
                some.append(self.waiting.popleft())
                count += len(some[-1][6] or ())
            self._taken += len(some)
            for noted in some:
                noted[0].share.taken += 1
            lives = list(dict.fromkeys(noted[0] for noted in some))
            for life in lives:
                if life.is_waiting:
                    life.is_waiting = False  # what is noted from here on begins anew
                    self._ending.append((self._taken + len(self.waiting), life))
            gone = {life for life in lives if self.number_of(life.id) not in (None, life.number)}
            if kept := [noted for noted in some if noted[0] not in gone] if gone else some:
                self._write(kept, [life for life in lives if life not in gone])
            while self._ending and self._ending[0][0] <= self._taken:
                self._end(self._ending.popleft()[1])

    def _write(self, some: list[Noted], lives: list[Life]) -> None:
        lost = sum(life.lost for life in lives)
        offset_us = self.clock.now_us() - self.clock.monotonic_us()
        messages = [Outgoing(life.topic, payload) for life, payload in self._entries(some, offset_us)]
        try:
            self._roots.commit.submit_and_wait(self._checks.own(messages))
            self._is_losing = self._is_losing and lost > 0
        except HeadwaterError as error:
            for noted in some:
                noted[0].lost += 1
            self._tell(str(error))
        if lost:
            most = self._config.states_waiting_per_client_max
            self._tell(
                f"more than {self.waiting_max} wait (states_waiting_max), or {most} of one client "
                "(states_waiting_per_client_max)"
            )
        for life in lives:
            self._roots.commit.run(partial(self.on_published, life.id, life.number))

    def _tell(self, why: str) -> None:
        if not self._is_losing:
            self._is_losing = True
            self._events.add("states-lost", f"what became of messages is not told on {STATES} for a while: {why}")

    def _entries(self, some: list[Noted], offset_us: int) -> Iterator[tuple[Life, bytes]]:
        second, text = -1, ""
        for life, monotonic_us, event, lane, first, last, rest, consumer, failure in some:
            now_us = monotonic_us + offset_us
            if life.lost:
                count, life.lost = life.lost, 0
                yield life, encode(LifeEntry(to_datetime(now_us), LOST, count=count))
            if lane is None:
                yield life, encode(LifeEntry(to_datetime(now_us), OPENED))
            elif failure is None and rest is None:
                if now_us // SECOND_US != second:
                    second = now_us // SECOND_US
                    text = to_datetime(second * SECOND_US).strftime("%Y-%m-%dT%H:%M:%S.")
                time = f"{text}{now_us % SECOND_US:06d}Z"
                yield life, life.plain(time, event, lane, f"[[{first},{last}]]", consumer)
            else:
                ranges = [(first, last)] if rest is None else runs(rest)
                known = failure or NEVER_FAILED
                yield life, encode(life.entry(to_datetime(now_us), event, lane, ranges, consumer, known))


def runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of neighbours."""
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return [(first, last)]
    found: list[tuple[int, int]] = []
    start = end = first
    for offset in offsets[1:]:
        if offset != end + 1:
            found.append((start, end))
            start = offset
        end = offset
    found.append((start, end))
    return found
