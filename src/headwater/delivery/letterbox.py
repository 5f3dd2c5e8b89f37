"""The letterbox: dead letters on their way to their topics, `$dead/<subscription>`.

A letter and its place in it are one write to the state. What is in it is published from there, in the order in
which it died, and the batch that brings letters to their topics takes their rows with it, as that of a delayed message
does (`log.due_rows`). Promises: a letter that is stored is published once, whenever the process is killed; nobody who
takes or acks waits for it; no more than `dead_topics_waiting_max` wait, and of each client its share. What was a
letter's copy on `$dead` and dies there is not published again: no letter goes round. Nor is what is closed to most:
whoever may read `$dead` sees no audit there, and no answer to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.own_topics import own_topic
from headwater.delivery.rows import DeadRow, RowCommit
from headwater.delivery.timers import Timers
from headwater.errors import HeadwaterError, QuotaExceeded
from headwater.events import Events
from headwater.log.checks import Checks
from headwater.log.root import CLOSED, LETTERS
from headwater.log.roots import Roots
from headwater.message import Outgoing
from headwater.store import state as rows
from headwater.store.state import Rows, State
from headwater.topics.name import compile_filter

FROM = "headwater-dead-from"
ATTEMPTS = "headwater-dead-attempts"
ERROR = "headwater-dead-error"
TOPIC = "headwater-dead-topic"
OFFSET = "headwater-dead-offset"
MENDED = "headwater-dead-mended"
CONSUMER = "headwater-dead-consumer"
NOTES = frozenset((FROM, ATTEMPTS, ERROR, TOPIC, OFFSET, MENDED, CONSUMER))
"""Headers of a dead letter, or of a message that was one, which say where it comes from."""

UNPUBLISHED = tuple(map(compile_filter, (f"{LETTERS}/#", *CLOSED)))
"""What letters of these topics say is in `bus.dead_letters` alone."""
AT_ONCE_MAX = 1000
"""Letters published together;"""
AT_ONCE_BYTES = 4 * 1024 * 1024
"""and bytes of them, unless one alone is larger."""
AGAIN_S = 5.0
"""How long letters that could not be published wait before the next try."""
RUN_BITS = 40
"""Numbers of a run of the process begin anew above those of every run before: none is given twice."""


class Posted(msgspec.Struct, frozen=True, array_like=True):
    """A letter that is to be published."""

    subscription: str
    number: int
    """Of the subscription: another of the same id has another one."""
    offset: int
    letter: DeadRow
    owner: str = ""
    """The client of a server who made the subscription; empty if that was nobody's."""


class Letterbox:
    """The letters of all subscriptions that wait to be published."""

    def __init__(
        self,
        state: State,
        commit: RowCommit,
        roots: Roots,
        checks: Checks,
        timers: Timers,
        config: Config,
        clock: Clock,
        events: Events,
    ) -> None:
        self._state = state
        self._commit = commit
        self._roots = roots
        self._checks = checks
        self._timers = timers
        self._config = config
        self._clock = clock
        self._events = events
        self._lock = threads.Lock()
        self._last = 0
        """The number of the last letter; 0 if this run of the process had none."""
        self._waiting = 0
        self._lives: dict[str, Counter[int]] = {}
        """By the ids and the numbers of subscriptions, how many of these are theirs."""
        self._by_owner: Counter[str] = Counter()
        self.on_published: Callable[[str, int], None] = lambda _id, _number: None
        """Called in the committing role with the id and the number of each whose letters were published."""
        self._full: set[str] = set()
        """Whose letters were left out, which was told."""

    def recover(self) -> None:
        """Go on with what was left when the process ended."""
        for _, value in self._state.scan(rows.POSTED):
            self._count(msgspec.msgpack.decode(value, type=Posted), 1)
        if self._waiting:
            self.wake()

    def _count(self, posted: Posted, more: int) -> None:
        lives = self._lives.setdefault(posted.subscription, Counter())
        lives[posted.number] += more
        self._waiting += more
        self._by_owner[posted.owner] += more
        if not self._by_owner[posted.owner]:
            del self._by_owner[posted.owner]
        if not self._waiting:
            self._full.clear()
        if lives[posted.number] == 0:
            del lives[posted.number]
        if not lives:
            del self._lives[posted.subscription]

    def is_of(self, id: str, number: int) -> bool:
        """Whether no letter waits that another subscription of this id gave up on."""
        with self._lock:
            return self._lives.get(id, {}).keys() <= {number}

    # By subscribers, under their locks

    def rows_of(self, subscription: str, of: int, owner: str, offset: int, letter: DeadRow) -> Rows:
        """What is to be written with a letter so that it is published; `owner` is who made the subscription."""
        if not self._config.dead_topics or any(matches(letter.topic) for matches in UNPUBLISHED):
            return {}
        with self._lock:
            full = self._full_of(owner)
            if full:
                self._tell_full(owner, full)
                return {}
            if not self._last:
                self._begin_run()
            self._last += 1
            posted = Posted(subscription, of, offset, letter, owner)
            self._count(posted, 1)
            return {rows.key_letter(self._last): rows.pack(posted)}

    def _full_of(self, owner: str) -> str:
        """Of what there is no room for one more; empty if there is."""
        config = self._config
        if self._waiting >= config.dead_topics_waiting_max:
            return f"{self._waiting} dead letters wait to be published on {LETTERS}, as many as dead_topics_waiting_max"
        waiting = self._by_owner[owner]
        if owner and waiting >= config.dead_topics_waiting_per_client_max:
            return (
                f'{waiting} dead letters of client "{owner}" wait to be published on {LETTERS}, as many as '
                "dead_topics_waiting_per_client_max"
            )
        self._full.discard(owner)
        return ""

    def _begin_run(self) -> None:
        """The run's number has its place before every letter of it, whichever is written first: no later run gives
        numbers that this one gave, and no batch of an earlier run takes a row of this one."""
        run = int.from_bytes(self._state.get(rows.COUNTERS + rows.POSTED) or b"", "big") + 1
        self._commit.enqueue({rows.COUNTERS + rows.POSTED: run.to_bytes(4, "big")})
        self._last = run << RUN_BITS

    def _tell_full(self, owner: str, full: str) -> None:
        if owner not in self._full:
            self._full.add(owner)
            self._events.add(
                "dead-unpublished",
                f"{full} allows: others are not published there; bus.dead_letters has them all",
            )

    def wake(self) -> None:
        """Have what was written published soon."""
        self._arm(0)

    def _arm(self, wait_s: float) -> None:
        self._timers.set("letterbox", self._clock.monotonic_us() + round(wait_s * SECOND_US), self._publish)

    # By the timers' thread

    def _publish(self) -> None:
        """Publish some; the rest follows when the timers have rung for others."""
        wait_s: float | None = AGAIN_S
        try:
            self._commit.flush()  # the batch that takes a row comes after it
            some = list(self._next())
            if some:
                self._publish_some(some)
            wait_s = 0 if some else None
        except HeadwaterError as error:
            self._events.trouble(f"dead letters could not be published, and are tried again: {error}")
        finally:
            if wait_s is not None:
                self._arm(wait_s)

    def _next(self) -> Iterator[tuple[int, Posted]]:
        """The first letters that wait; numbers without a gap."""
        size, before = 0, 0
        for count, (key, value) in enumerate(self._state.scan(rows.POSTED)):
            number = rows.offset_in(key)
            if count and (count == AT_ONCE_MAX or size >= AT_ONCE_BYTES or number != before + 1):
                return
            size, before = size + len(value), number
            yield number, msgspec.msgpack.decode(value, type=Posted)

    def _publish_some(self, some: list[tuple[int, Posted]]) -> None:
        """Publish some together; what can never be published is left out, and an event says so."""
        item = None
        try:
            item = self._checks.letters([self._letter(posted) for _, posted in some], some[0][0])
            self._roots.commit.submit_and_wait(item)
        except HeadwaterError as error:
            if error.retryable and not isinstance(error, QuotaExceeded):
                raise
            if len(some) > 1:
                for one in some:
                    self._publish_some([one])
                return
            number, posted = some[0]
            self._events.trouble(
                f'dead letter {posted.offset} of subscription "{posted.subscription}" is not published: {error}'
            )
            self._commit.write({rows.key_letter(number): None})
        else:
            for name, number in {(posted.subscription, posted.number): None for _, posted in some}:
                self._roots.commit.run(partial(self.on_published, name, number))
        with self._lock:
            for _, posted in some:
                self._count(posted, -1)

    def _letter(self, posted: Posted) -> Outgoing:
        row, name = posted.letter, posted.subscription
        own = (pair for pair in row.headers if pair[0] not in NOTES)
        notes = ((FROM, name), (TOPIC, row.topic), (OFFSET, str(posted.offset)), (ATTEMPTS, str(row.attempts)))
        errors = ((ERROR, error) for error in row.errors)
        by = ((CONSUMER, row.by),) if row.by else ()
        return Outgoing(
            own_topic(LETTERS, name, self._config), row.payload, key=row.key, headers=(*own, *notes, *errors, *by)
        )
