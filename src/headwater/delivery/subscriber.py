"""The subscriber: serves one durable subscription to its consumers.

It joins the state machine (which message may go where) with the streams (what the messages are) and the stored rows
(what must not be forgotten); each of these has a room of its own, and here is what needs several: handing out, and what
changes a subscription from outside. Consumers take in their own threads; nothing here has a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery import rows as stored
from headwater.delivery.bookkeeping import Books
from headwater.delivery.consumers import Consumers
from headwater.delivery.cursor import Budget
from headwater.delivery.dead_rows import DeadRows
from headwater.delivery.dead_shares import DeadShares
from headwater.delivery.deadlines import Deadlines
from headwater.delivery.gaps import Gaps
from headwater.delivery.hand_outs import HandOuts
from headwater.delivery.lane import Lease, Moment
from headwater.delivery.letterbox import Letterbox
from headwater.delivery.life import REDRIVEN, Lives
from headwater.delivery.loading import load
from headwater.delivery.progress import Progress
from headwater.delivery.redelivery import Redelivery
from headwater.delivery.retained_backlog import RetainedBacklog
from headwater.delivery.rows import RetainedRest, RowCommit, SubscriptionRow, Waiting
from headwater.delivery.selection import NO_LIMIT, Selection
from headwater.delivery.settlement import Held, Settlement
from headwater.delivery.subscription import Subscription
from headwater.delivery.supply import Supply
from headwater.delivery.timeouts import OnRetry, Timeouts
from headwater.delivery.timers import Timers
from headwater.errors import Failed, Gap, TooManyFiles, Unwritable
from headwater.events import Tell
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.message import Message, Receipt
from headwater.payload import Payload
from headwater.store import state as rows
from headwater.store.log import REMOVED, Hole
from headwater.store.notes import Notes
from headwater.store.state import Rows, State


class Subscriber:
    """One durable subscription, being served."""

    def __init__(
        self,
        row: SubscriptionRow,
        roots: Roots,
        state: State,
        commit: RowCommit,
        timers: Timers,
        config: Config,
        clock: Clock,
        reply: Callable[[Message, Payload], Receipt],
        on_event: Tell,
        on_moved: Callable[[int, int], None],
        notes: Notes,
        shares: DeadShares,
        letterbox: Letterbox,
        lives: Lives,
        on_retry: OnRetry,
        *,
        is_read_only: bool = False,
    ) -> None:
        """`on_moved` hears of the floor of each stream in which it was sent elsewhere, before that is stored."""
        self.row = row
        self.number = row.number
        self.options = row.options
        self._clock = clock
        self._on_moved = on_moved
        # From the clock, so that an ack of a lease of before it was loaded is not taken for one of a new lease.
        machine = self._machine = Subscription(row.options, config, last_number=clock.now_us())
        machine.paused = row.paused
        gaps = self._gaps = Gaps(row.options, on_event)
        deadlines = Deadlines(machine.is_open, row.options.max_in_flight)
        supply = self.supply = Supply(row, machine, roots, state, config, clock, gaps, deadlines)
        hand_outs = HandOuts(notes, row.number, machine.held_under)
        dead = DeadRows(row, state, commit, config, roots.counts, shares, letterbox, on_event)
        books = self.books = Books(row.number, machine, commit, clock, hand_outs, dead)
        self.waiters = books.waiters
        # What is left of roots that were removed is garbage.
        there = {root.stream.number for root in roots.all()}
        reckons = not is_read_only and commit.failed is None
        rests = load(machine, row.number, state, there, Moment(*clock.read()), hand_outs if reckons else None)
        supply.open()
        self._life = None if is_read_only else lives.of(row, supply.name, machine.failures)
        if self._life is not None:
            machine.watch(self._life.note)
        self.timeouts = Timeouts(books, supply, deadlines, timers, on_retry)
        self.consumers = Consumers(books, self.timeouts)
        self.settlement = Settlement(books, supply, self.timeouts, roots.counts, config, reply)
        self.retained = RetainedBacklog(books, supply, rests)
        self.progress = Progress(books, supply, self.retained, self.consumers, state)
        self._redelivery = Redelivery(books, supply, gaps, self.timeouts, roots.counts, on_retry)

    def end(self) -> None:
        """The subscription is gone or the bus closes: whoever waits gets Closed."""
        with self.books.lock:
            self.books.is_ended = True
            self.books.hand_outs.clear()
            self.timeouts.end()
        self.waiters.wake()

    # Handing out

    def take(self, consumer: object, limit: int) -> list[Message]:
        """Messages for a consumer, as many as are there and allowed; their ack timer starts now."""
        found: list[Message] = []
        while True:
            try:
                found += self._take(consumer, limit - len(found))
            except Gap as gap:
                if not found:
                    raise
                self._gaps.untold = gap  # told with the next take
                return found
            try:
                if len(found) >= limit or not self.retained.note_some():
                    return found
            except Unwritable:
                if not found:
                    raise
                return found

    def _take(self, consumer: object, limit: int) -> list[Message]:
        found: list[Message] = []
        with self.books.lock:
            leases: list[Lease] = []
            for selection in self.hand(consumer, limit):
                assert selection.lease is not None
                leases.append(selection.lease)
                found += selection.taken(Held(self.settlement, selection.lease))
            if leases and self.options.max_deliveries:
                self.books.hand_outs.note(leases)
        return found

    def hand(
        self, consumer: object, limit: int, bytes_max: int = NO_LIMIT, budget: Budget | None = None
    ) -> list[Selection]:
        """The same in the form in which they are read: a batch is not taken apart. With `bytes_max`, no more is begun
        once so much was handed out. With a budget it goes no further than that, and reads no disk: what is beyond it
        `is_unread`, and comes after a `read_on`."""
        gaps, again = self._gaps, self._redelivery.take
        in_turns = budget is not None
        is_held = self.books.commit.is_held
        with self.books.lock:
            if self.books.is_ended:
                self.books.check_open()
            if is_held is not None and is_held():
                return []
            self.supply.open()
            now = Moment(*self._clock.read())
            found: list[Selection] = []
            is_cut = False
            try:
                is_more, left, size = again(consumer, limit, in_turns, now, found, bytes_max)
                is_cut = is_more
                if not is_more and left > 0 and size < bytes_max and gaps.untold is None and not self.retained.rests:
                    is_more = self.supply.take(consumer, left, now, found, bytes_max - size, budget)
                    is_cut = is_more and bool(found)
                    if not found and not is_more:  # it may have come upon some that were handed out before
                        given_up = self._redelivery.given_up
                        is_cut, _, _ = again(consumer, limit, in_turns, now, found, bytes_max)
                        # Those that it gave up on may have held back what is fresh.
                        is_cut = is_cut or (not found and self._redelivery.given_up > given_up)
            except (OSError, TooManyFiles) as error:
                # What was taken before it is in flight already; it fails again at the next take.
                if not found:
                    if isinstance(error, TooManyFiles):
                        raise
                    raise self._unreadable(error) from error
                is_cut = True
            finally:
                self.timeouts.arm()
            if not found:
                gaps.tell()
        if is_cut or gaps.untold is not None:
            self.waiters.wake()  # there is more to be told than was handed out
        return found

    @property
    def is_unread(self) -> bool:
        """Whether somebody has to `read_on` for there to be more."""
        return bool(self.supply.unread) or (bool(self.retained.rests) and self.retained.is_low)

    def read_on(self) -> None:
        """Read on where a `hand` with a budget has stopped, for a slice; whoever waits is woken. This takes its time,
        and holds nobody up."""
        with self.books.lock:
            found = self.supply.begin_reading()
        try:
            self.supply.read_on(found)
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            with self.books.lock:
                self.supply.end_reading(found)
        if found:
            self.waiters.wake()
        self.retained.note_some()

    def _unreadable(self, error: OSError) -> Failed:
        return Failed(f'subscription "{self.options.id}" could not be read: {error}')

    # Changes from outside

    def pause(self, paused: bool) -> None:
        """Stop or resume delivery."""
        with self.books.lock:
            self.books.check_open()
            self._machine.paused = paused
            self.row = msgspec.structs.replace(self.row, paused=paused)
        self.waiters.wake()

    def seek(self, positions: dict[int, int]) -> None:
        """Move the cursor; what is in flight is recalled."""
        with self.books.lock:
            self.books.check_open(writes=True)
            item = self.books.commit.enqueue(self._move(positions))
        self.waiters.wake()
        self.books.finish(item)

    def suppose(self, positions: dict[int, int]) -> None:
        """Be seen as if it stood there; nothing is stored."""
        with self.books.lock:
            self._move(positions)

    def _move(self, positions: dict[int, int]) -> Rows:
        self.books.check_open()
        self.supply.open()
        changed: Rows = {}
        for stream, position in positions.items():
            if stream not in self.supply:
                continue
            changes = self._machine.seek(stream, position)
            changed.update(stored.rows_of(self.number, changes))
            changed[rows.key_pair(rows.FLOOR, self.number, stream)] = (position - 1).to_bytes(8, "big")
            self.supply.renew(stream)
            self._on_moved(stream, position - 1)
        self.books.hand_outs.renew()
        self._gaps.untold = None
        return changed

    def leave_root(self, root: Root) -> None:
        """A root was removed: what is in flight of it is taken back, and whoever waited for more is told."""
        stream, last = root.stream.number, root.stream.durable
        with self.books.lock:
            self.retained.rests.pop(stream, None)
            if stream not in self.supply:
                self.supply.close(stream)
                return
            floor = self._machine.floor(stream)
            if floor < last:
                self._gaps.meet(root.name, Hole(floor + 1, last, REMOVED))
            self._machine.close_lanes(stream, REMOVED)
            self.books.hand_outs.renew()
            self.supply.close(stream)
            self.books.dead.leave(stream)
            self.timeouts.arm()
        self.waiters.wake()

    def add_copies(
        self, changed: Rows, copies: Mapping[int, Mapping[int, Waiting]], rests: Mapping[int, RetainedRest]
    ) -> None:
        """Deliver these copies too, and note the rest of them later; their rows are stored first."""
        self._add(changed, copies, (), rests)

    def redrive(self, changed: Rows, copies: Mapping[int, Mapping[int, Waiting]], sizes: Collection[int]) -> None:
        """The same for dead letters, which are as large as this."""
        self._add(changed, copies, sizes, {})

    def _add(
        self,
        changed: Rows,
        copies: Mapping[int, Mapping[int, Waiting]],
        sizes: Collection[int],
        rests: Mapping[int, RetainedRest],
    ) -> None:
        books = self.books
        with books.lock:
            books.check_open(writes=True)
            books.dead.redrive(len(sizes), sum(sizes))
            self.retained.rests.update(rests)
            item = books.commit.enqueue(changed)
        books.finish(item)
        with books.lock:
            for stream, found in copies.items():
                if sizes and self._life is not None:
                    self._life.note(REDRIVEN, (stream, True), sorted(found))
                self._machine.add_copies(stream, sorted(found), stored.copy_keys(found))
        self.waiters.wake()

    def drop_dead(self, changed: Rows, size: int) -> None:
        """Dead letters that nobody wants any more, and how large they are."""
        with self.books.lock:
            self.books.check_open(writes=True)
            self.books.dead.drop(len(changed), size)
            item = self.books.commit.enqueue(changed)
        self.books.finish(item)
