"""The subscriber: serves one durable subscription to its consumers.

It joins the state machine (which message may go where) with the streams (what the messages are) and the stored rows
(what must not be forgotten). Consumers take from it in their own threads; nothing here has a thread. Promises: rows
of one subscription are stored in the order in which its state changed; a consumer that waits is woken by what it
waits for and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery import rows as stored
from headwater.delivery.cursor import UNREAD, Budget, Unread, keys_of
from headwater.delivery.dead_rows import DeadRows
from headwater.delivery.dead_shares import DeadShares
from headwater.delivery.deadlines import Deadlines
from headwater.delivery.hand_outs import HandOuts
from headwater.delivery.lane import Changes, Failure, LaneId, Lease, MessageState, Moment, Remote, Ticket
from headwater.delivery.letterbox import Letterbox
from headwater.delivery.life import REDRIVEN, Lives
from headwater.delivery.retained import RETAINED_ROWS
from headwater.delivery.rows import (
    Resting,
    RetainedRef,
    RetainedRest,
    RowCommit,
    RowsItem,
    SubscriptionRow,
    Waiting,
)
from headwater.delivery.selection import Selection
from headwater.delivery.subscription import Subscription
from headwater.delivery.supply import Ahead, Supply
from headwater.delivery.timers import Timers
from headwater.errors import Closed, Failed, Gap, Malformed, TooManyFiles, Unwritable
from headwater.log.retained import Page
from headwater.log.root import Root, retained_message
from headwater.log.roots import Roots
from headwater.message import ConsumerInfo, Message, Receipt, error_text
from headwater.payload import Payload
from headwater.store import state as rows
from headwater.store.log import REMOVED, Hole
from headwater.store.notes import Notes
from headwater.store.state import Rows, State

_origin, _offset = attrgetter("origin"), attrgetter("offset")
Messages = dict[tuple[LaneId, int], Message]
HandOut = tuple[Lease, list[int]]
"""A lease, and offsets of messages of it."""

NO_LIMIT = 1 << 62
NEVER_FAILED = Failure(0, 0)
AGAIN_AT_ONCE = 16
"""Messages that are read again, one by one, before it is looked how many bytes they have."""
COUNTED_AT_ONCE = 1000
"""Messages of a root that are counted while a subscription is held up."""
GIVEN_UP_AT_ONCE = 64
"""Messages that no other consumer is to get, which are seen to before others have their turn."""
AGAIN_IN_TURN = 64
"""Those that one turn of a loop hands out again; the next turn goes on with the rest."""
KEPT_AT_ONCE = 100
"""The same where they are in memory."""


class Standing(msgspec.Struct, frozen=True):
    """How far a subscription is."""

    lag: int
    in_flight: int
    retrying: int
    dead: int
    consumers: int
    unseen: int = 0
    """Messages that were not looked at yet: how many of them are among the lag is an estimate."""


OnRetry = Callable[[str, str, str, Sequence[int], str], None]
"""Hears of messages that are tried again: what happened, to which subscription, root and offsets, and whose."""


class Known(NamedTuple):
    """A message that is not plainly pending or acked."""

    root: str
    lane: LaneId
    offset: int
    state: MessageState
    failure: Failure | None
    lease: Lease | None
    """What it is in flight under."""


class Subscriber:
    """One durable subscription, being served."""

    wants_places: ClassVar[bool] = False
    takes_early: ClassVar[bool] = False

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
        on_event: Callable[[str, str], None],
        on_moved: Callable[[int, int], None],
        notes: Notes,
        shares: DeadShares,
        letterbox: Letterbox,
        lives: Lives,
        on_retry: OnRetry = lambda *_: None,
        *,
        is_read_only: bool = False,
    ) -> None:
        """`on_moved` hears of the floor of each stream in which it was sent elsewhere, before that is stored."""
        self.row = row
        self.number = row.number
        self.options = row.options
        self.waiting = 0
        self.version = 0
        """Rises whenever there may be something new to take."""
        self._roots = roots
        self._counts = roots.counts
        self._state = state
        self._commit = commit
        self._timers = timers
        self._config = config
        self._clock = clock
        self.reply = reply
        self._on_event = on_event
        self._on_moved = on_moved
        self._lock = threads.RLock()
        self._signal = threads.Condition()
        self._wakers: dict[Any, Callable[[], None]] = {}
        # From the clock, so that an ack of a lease of before it was loaded is not taken for one of a new lease.
        self._machine = Subscription(row.options, config, last_number=clock.now_us())
        self._machine.paused = row.paused
        self._supply = Supply(row, self._machine, roots, state, config, clock)
        self._hand_outs = HandOuts(notes, row.number, self._machine.held_under)
        self._deadlines = Deadlines(self._machine.is_open, row.options.max_in_flight)
        self._gap: Gap | None = None
        self.is_ended = False
        """Whether the subscription is gone, or the bus closes."""
        self.retired: object = None
        """A consumer that nobody holds any more, and whose messages may yet be acked."""
        self._turn = 0
        self._rests: dict[int, RetainedRest] = {}
        """By stream, retained messages that are still to be noted; nothing fresh is handed out before them."""
        self._is_noting = False
        """Whether a thread notes some of them."""
        self._dead = DeadRows(row, state, commit, config, roots.counts, shares, letterbox, on_event)
        self._on_retry = on_retry
        self._load(is_read_only)
        self._life = None if is_read_only else lives.of(row, self._supply.name, self._machine.failures)
        if self._life is not None:
            self._machine.watch(self._life.note)

    def _load(self, is_read_only: bool) -> None:
        now = self._moment()
        floors = stored.floors_of(self._state, self.number)
        acked = stored.acked_of(self._state, self.number)
        failures = stored.failures_of(self._state, self.number)
        copies, rests = stored.copies_of(self._state, self.number)
        if not is_read_only and self._commit.failed is None:
            self._blame(floors, acked, copies, failures, now)
        # What is left of roots that were removed is garbage.
        there = {root.stream.number for root in self._roots.all()}
        # A root that appeared after the subscription has no floor until its first message is acked.
        for stream in there & (floors.keys() | acked.keys() | {stream for stream, copies in failures if not copies}):
            lane, floor, failed = (stream, False), floors.get(stream, 0), failures.get((stream, False), {})
            self._machine.load_lane(lane, floor, acked.get(stream, ()), failed, now)
        self._rests = {stream: rest for stream, rest in rests.items() if stream in there}
        for stream, found in copies.items():
            if stream not in there:
                continue
            lane = (stream, True)
            self._machine.load_lane(lane, 0, (), failures.get(lane, {}), now, sorted(found), _keys(found))
        self._supply.open()

    def _blame(
        self,
        floors: Mapping[int, int],
        acked: Mapping[int, Sequence[int]],
        copies: Mapping[int, Mapping[int, Waiting]],
        failures: dict[LaneId, dict[int, Failure]],
        now: Moment,
    ) -> None:
        """Count a delivery of what consumers had whose process was killed, the broker in it."""
        handed = self._hand_outs.left()
        if not handed:
            return
        held: list[tuple[LaneId, int]] = []
        for lane, offsets in handed.items():
            stream, floor = lane[0], floors.get(lane[0], 0)
            if lane[1]:
                offsets &= copies.get(stream, {}).keys()
            else:
                offsets = {offset for offset in offsets.difference(acked.get(stream, ())) if offset > floor}
            held += [(lane, offset) for offset in sorted(offsets)]
        if not self.options.max_deliveries:
            held = []
        suspects = [one for one in held if failures.get(one[0], {}).get(one[1], NEVER_FAILED).vanished]
        changes = Changes()
        for lane, offset in suspects or held:
            failed = failures.setdefault(lane, {})
            failed[offset] = changes.failures[lane, offset] = self._machine.with_delivery(failed.get(offset), now)
        # At once, as the next consumer may be killed before a commit; durable with the next.
        self._state.write(stored.rows_of(self.number, changes))
        self._hand_outs.forget_left()

    def _moment(self) -> Moment:
        return Moment(*self._clock.read())

    # Consumers

    @property
    def consumers(self) -> int:
        """How many take from it; one that nobody holds any more counts as long as it has something in flight."""
        return len(self._machine.consumers) - (self.retired is not None and not self._machine.in_flight)

    def retire(self, consumer: object) -> bool:
        """Nobody holds a consumer any more: it keeps what it has in flight until another one comes. False if it has
        nothing, or another one is there."""
        with self._lock:
            if self._machine.consumers != [consumer] or not self._machine.in_flight:
                return False
            self.retired = consumer
            return True

    def takers(self, limit: int) -> tuple[tuple[ConsumerInfo, ...], tuple[ConsumerInfo, ...]]:
        """So many of its consumers: those that messages go to, and those that stand by."""
        with self._lock:
            consumers = self._machine.consumers if self.consumers else []
            first = 1 if self.options.order == "strict" else limit
            told = tuple(one.info if isinstance(one, Ticket) else ConsumerInfo() for one in consumers[:limit])
            return told[:first], told[first:]

    def attach(self, consumer: object) -> None:
        """One more consumer; with strict order it may have to stand by."""
        with self._lock:
            self._machine.attach(consumer)
            self._arm()

    def detach(self, consumer: object, *, vanished: bool = False) -> None:
        """A consumer leaves; what it has in flight goes to the others, and no attempt is counted. If it vanished
        without a word, a delivery is counted of what it may have been at."""
        with self._lock:
            if self.retired is consumer:
                self.retired = None
            if vanished:
                self._store(self._machine.vanish(consumer, self._moment()))
                self._commit.kick()
            else:
                self._machine.detach(consumer)
            self._hand_outs.renew()
        self.wake()

    def give_back(self, consumer: object) -> None:
        """Recall all that a consumer has in flight; it stays, and no attempt is counted."""
        with self._lock:
            if consumer in self._machine.consumers:
                self._machine.detach(consumer)
                self._machine.attach(consumer)
                self._hand_outs.renew()
                self._arm()

    def end(self) -> None:
        """The subscription is gone or the bus closes: whoever waits gets Closed."""
        with self._lock:
            self.is_ended = True
            self._hand_outs.clear()
            self._timers.set(self, None, self._ring)
        self.wake()

    def _check_open(self, writes: bool = False) -> None:
        if self.is_ended:
            raise Closed(f'subscription "{self.options.id}" is closed; subscribe again to go on')
        if writes:  # before anything changes in memory
            self._commit.check()

    # Wake-ups

    def deliver(self, selection: Selection) -> None:
        """Something that matches is durable: whoever waits should look."""
        self.wake()

    def wake(self) -> None:
        """Let consumers look again; called from any thread, costs next to nothing when nobody waits."""
        self.version += 1
        if self.waiting:
            with self._signal:
                self._signal.notify_all()
        if self._wakers:
            wakers = tuple(self._wakers.values())
            first = self.version % len(wakers)  # each of several is first in its turn, or the first would take all
            for wake in wakers[first:] + wakers[:first]:
                wake()

    def wait(self, seen: int, timeout_us: int | None) -> bool:
        """Wait until something has changed since `seen`; False when the time has passed."""
        with self._signal:
            self.waiting += 1
            try:
                return self.version != seen or self._clock.wait(self._signal, timeout_us)
            finally:
                self.waiting -= 1

    def set_waker(self, consumer: object, wake: Callable[[], None] | None) -> None:
        """Call this, from any thread, when there may be something to take."""
        if wake is None:
            self._wakers.pop(consumer, None)
        else:
            self._wakers[consumer] = wake

    # Delivery

    def take(self, consumer: object, limit: int) -> list[Message]:
        """Messages for a consumer, as many as are there and allowed; their ack timer starts now."""
        found: list[Message] = []
        while True:
            try:
                found += self._take(consumer, limit - len(found))
            except Gap as gap:
                if not found:
                    raise
                self._gap = gap  # told with the next take
                return found
            try:
                if len(found) >= limit or not self._note_retained():
                    return found
            except Unwritable:
                if not found:
                    raise
                return found

    def _take(self, consumer: object, limit: int) -> list[Message]:
        found: list[Message] = []
        with self._lock:
            leases: list[Lease] = []
            for selection in self.hand(consumer, limit):
                assert selection.lease is not None
                leases.append(selection.lease)
                found += selection.taken(Held(self, selection.lease))
            if leases and self.options.max_deliveries:
                self._hand_outs.note(leases)
        return found

    def hand(
        self, consumer: object, limit: int, bytes_max: int = NO_LIMIT, budget: Budget | None = None
    ) -> list[Selection]:
        """The same in the form in which they are read: a batch is not taken apart. With `bytes_max`, no more is begun
        once so much was handed out. With a budget it goes no further than that, and reads no disk: what is beyond it
        `is_unread`, and comes after a `read_on`."""
        with self._lock:
            self._check_open()
            self._supply.open()
            now = self._moment()
            found: list[Selection] = []
            is_cut = False
            try:
                in_turn = KEPT_AT_ONCE if self._supply.kept else AGAIN_IN_TURN
                at_once = limit if budget is None else min(limit, in_turn)
                is_more, left, size = self._take_some_again(consumer, limit, at_once, now, found, bytes_max)
                is_cut = is_more
                if not is_more and left > 0 and size < bytes_max and self._gap is None and not self._rests:
                    is_more = self._take_fresh(consumer, left, now, found, bytes_max - size, budget)
                    is_cut = is_more and bool(found)
                    if not found and not is_more:  # it may have come upon some that were handed out before
                        is_cut, _, _ = self._take_some_again(consumer, limit, at_once, now, found, bytes_max)
            except (OSError, TooManyFiles) as error:
                # What was taken before it is in flight already; it fails again at the next take.
                if not found:
                    if isinstance(error, TooManyFiles):
                        raise
                    raise self._unreadable(error) from error
                is_cut = True
            finally:
                self._arm()
            if not found and self._gap is not None:
                gap, self._gap = self._gap, None
                raise gap
        if is_cut or self._gap is not None:
            self.wake()  # there is more to be told than was handed out
        return found

    def _take_some_again(
        self, consumer: object, limit: int, at_once: int, now: Moment, found: list[Selection], bytes_max: int
    ) -> tuple[bool, int, int]:
        """The same as `_take_again` until something is found, or much was given up on: others have their turn before
        the rest of it."""
        is_more, left, size = True, limit, 0
        for _ in range(GIVEN_UP_AT_ONCE):
            if not is_more or found or self._gap is not None:
                break
            is_more, left, size = self._take_again(consumer, limit, at_once, now, found, bytes_max)
        return is_more, left, size

    def _take_again(
        self, consumer: object, limit: int, at_once: int, now: Moment, found: list[Selection], bytes_max: int
    ) -> tuple[bool, int, int]:
        """What was handed out before, or is a copy, some at once; answers whether there may be more of it, how many
        more may be taken, and the bytes of these."""
        again = self._machine.redeliverable(consumer, at_once, now)
        if not again:
            return False, limit, 0
        is_more = len(again) == at_once < limit
        step = len(again) if bytes_max == NO_LIMIT else KEPT_AT_ONCE if self._supply.kept else AGAIN_AT_ONCE
        size = 0
        for lane, run in _runs(again, step):
            if size >= bytes_max:
                break
            there = self._fetch(lane, run, now)
            for offsets in _ascending(run):
                lease = self._machine.hand_out_again(consumer, lane, offsets, now)
                self._hold(lease)
                if spent := [offset for offset in offsets if self._machine.is_spent(lane, offset) and offset in there]:
                    is_more = True  # behind what is given up there may be something that may go now
                    self._give_up(lease, spent, there, now)
                    offsets = [offset for offset in offsets if offset not in spent]
                messages = [
                    msgspec.structs.replace(there[offset], attempt=self._machine.attempt(lane, offset))
                    for offset in offsets
                    if offset in there
                ]
                if messages:
                    found.append(Selection(self._supply.name(lane[0]), None, None, messages, lease))
                    retried = [message.offset for message in messages if message.attempt > 1]
                    if retried:
                        self._counts.retries += len(retried)
                        self._on_retry("redelivered", self.options.id, self._supply.name(lane[0]), retried, lease.who)
                    limit -= len(messages)
                    size += sum(len(message.payload) for message in messages)
                if gone := [offset for offset in offsets if offset not in there]:
                    self._store(self._machine.ack(lease, gone))
                    self._commit.kick()
        return is_more, limit, size

    def _give_up(self, lease: Lease, spent: list[int], there: dict[int, Message], now: Moment) -> None:
        """Messages that no other consumer is to get are dead letters."""
        for offset in spent:
            known = {(lease.lane, offset): there.pop(offset)}
            self._machine.dead_room = self._dead.room(known)
            self._store(self._machine.give_up(lease, offset, now), known)
        self._commit.kick()

    @property
    def is_unread(self) -> bool:
        """Whether somebody has to `read_on` for there to be more."""
        return self._supply.is_unread or self._wants_retained

    def read_on(self) -> None:
        """Read on where a `hand` with a budget has stopped, for a slice; whoever waits is woken. This takes its time,
        and holds nobody up."""
        with self._lock:
            found = self._supply.begin_reading()
        try:
            self._supply.read_on(found)
        except OSError as error:
            raise self._unreadable(error) from error
        finally:
            with self._lock:
                self._supply.end_reading(found)
        if found:
            self.wake()
        self._note_retained()

    # Retained messages, of which some are noted at a time

    @property
    def has_rests(self) -> bool:
        """Whether there are retained messages still to be noted."""
        return bool(self._rests)

    @property
    def _wants_retained(self) -> bool:
        return bool(self._rests) and not self._is_noting and self._machine.held < RETAINED_ROWS

    def _note_retained(self) -> bool:
        """Note some more of the retained messages, before those that are known run out; whoever waits is woken. False
        if there are none, or somebody else is at it. This takes its time, and holds nobody up."""
        with self._lock:
            if not self._wants_retained:
                return False
            self._is_noting = True
            stream, rest = next(iter(self._rests.items()))
        try:
            self._note_page(stream, self._supply.read_retained(stream, rest.after))
        except Exception as error:
            if self.is_ended:
                return False  # nobody wants them any more
            if not isinstance(error, Failed):
                raise
            raise Unwritable(f"retained messages could not be noted: {error}; it is tried again") from error
        finally:
            self._is_noting = False
        self.wake()
        return True

    def _note_page(self, stream: int, page: Page) -> None:
        with self._lock:
            self._commit.check()
            rest = self._rests.get(stream)
            if rest is None or self.is_ended:
                return  # its root was removed meanwhile, or nobody is served any more
            meant = [(topic, row) for topic, row in page.found if row.offset <= rest.upto]
            copies: dict[int, Waiting] = {row.offset: RetainedRef(topic, row.key) for topic, row in meant}
            changed = stored.copy_rows(self.number, {stream: copies})
            changed.update(stored.rest_rows(self.number, {stream: rest.behind(page.last)}))
            item = self._commit.enqueue(changed, is_owed=False)
        self.finish(item)
        with self._lock:
            current = self._rests.pop(stream, None)
            if current is None:
                return
            left = current.behind(page.last)
            if left is not None:
                self._rests[stream] = left
            self._supply.keep(stream, (retained_message(row, topic) for topic, row in meant))
            self._machine.add_copies(stream, sorted(copies), _keys(copies))

    def want_again(self, ends: Mapping[int, int]) -> None:
        """Have all retained messages come once more, after those that are still to be noted: of each stream, those up
        to an offset."""
        with self._lock:
            self._check_open(writes=True)
            known = self._rests
            rests = {
                stream: msgspec.structs.replace(known[stream], again=end) if stream in known else RetainedRest("", end)
                for stream, end in ends.items()
            }
            known.update(rests)
            item = self._commit.enqueue(stored.rest_rows(self.number, rests))
        self.finish(item)

    def _unreadable(self, error: OSError) -> Failed:
        return Failed(f'subscription "{self.options.id}" could not be read: {error}')

    def _take_fresh(
        self,
        consumer: object,
        limit: int,
        now: Moment,
        found: list[Selection],
        bytes_max: int,
        budget: Budget | None,
    ) -> bool:
        """Go round the roots, so that a busy one does not starve the others; whether the budget left something
        of them to look at."""
        streams = self._supply.streams
        unread: list[int] = []
        for step in range(len(streams)):
            stream = streams[(self._turn + step) % len(streams)]
            while self._gap is None:
                room = min(limit, self._machine.room(consumer))
                if room <= 0 or bytes_max <= 0:
                    self._turn = (self._turn + step + 1) % len(streams)
                    return False
                ahead = self._look(stream, now, budget)
                if ahead is None:
                    break
                if ahead is UNREAD:
                    unread.append(stream)
                    break
                selection = self._hand_out(consumer, stream, ahead, room, now, bytes_max)
                if selection is not None:
                    found.append(selection)
                    limit -= selection.count
                    bytes_max -= selection.bytes
        self._turn += 1
        for stream in unread:
            self._supply.leave_unread(stream, is_idle=not found)
        return bool(unread)

    def _look(self, stream: int, now: Moment, budget: Budget | None) -> Ahead | Literal[Unread.UNREAD] | None:
        """A batch with something in it that was not handed out yet; None if there is none, or a gap has to be told."""
        while isinstance(found := self._supply.look(stream, now, budget), Hole):
            self._meet(stream, found)
            if self._gap is not None:
                return None
        return found

    def _fetch(self, lane: LaneId, offsets: list[int], now: Moment) -> dict[int, Message]:
        """Messages by their offsets; those that are gone are missing in the answer."""
        found, holes = self._supply.fetch(lane, offsets, now)
        for hole in holes:
            self._meet(lane[0], hole)
        return found

    def _meet(self, stream: int, hole: Hole) -> None:
        """Messages are gone: an event, and once a Gap for the consumer, unless it has on_gap="skip"."""
        root = self._supply.name(stream)
        self._on_event(
            "gap",
            f'subscription "{self.options.id}" lost messages {hole.first} to {hole.last} of "{root}": {hole.reason}',
        )
        if self.options.on_gap == "raise":
            self._gap = Gap(root, hole.first, hole.last, hole.reason)

    def _hand_out(
        self, consumer: object, stream: int, ahead: Ahead, room: int, now: Moment, bytes_max: int
    ) -> Selection | None:
        batch = ahead.batch
        assert batch is not None
        if bytes_max != NO_LIMIT:
            room = min(room, batch.body.fitting(ahead.places, bytes_max))
        places, ahead.places = ahead.places[:room], ahead.places[room:]
        first = batch.first_offset
        offsets = [first + place for place in places]
        position = first + ahead.places[0] if ahead.places else batch.last_offset + 1
        self._supply.count_down(stream, offsets)
        wanted = self._machine.wanted(stream, offsets)
        if wanted is not offsets and len(wanted) != len(offsets):
            places = [offset - first for offset in wanted]
        keys = keys_of(batch, places) if self.options.order == "key" else None
        lease = self._machine.hand_out(consumer, stream, wanted, position, now, keys)
        if not lease.offsets:
            return None
        if len(lease.offsets) != len(places):
            places = [offset - first for offset in lease.offsets]
        self._hold(lease)
        return Selection(ahead.cursor.root.name, batch, places, (), lease)

    def begin(self, lease: Lease, offsets: Sequence[int]) -> None:
        """A remote application took these of a lease: the ack timeout of all that it took of it counts from now."""
        with self._lock:
            if self.options.ack_timeout_s and self._machine.is_open(lease):
                if lease.begun is not None:
                    lease.begun.update(offsets)
                lease.deadline_us = self._clock.monotonic_us() + round(self.options.ack_timeout_s * SECOND_US)
                self._deadlines.add(lease)
                self._arm()

    def _hold(self, lease: Lease) -> None:
        if isinstance(lease.consumer, Remote):
            lease.deadline_us = 0  # until `begin`
            lease.begun = set()
        self._deadlines.add(lease)

    # Acks and nacks

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        """Ack these: one commit for all of them."""
        item = self._note_leases(self._by_lease(messages))
        if item is None and wait:
            self._commit.flush()  # acked before, without waiting: it is on disk when this returns all the same
        self.finish(item, wait)

    def note_ack(self, messages: Sequence[Message]) -> RowsItem | None:
        """Ack these; what `finish` has to be called with for it to be on disk."""
        return self._note_leases(self._by_lease(messages))

    def ack_soon(self, messages: Sequence[Message]) -> Future[object]:
        """Ack these: the future completes when that is on disk."""
        future: Future[object] = Future()
        if self._note_leases(self._by_lease(messages), future) is None:
            self._commit.enqueue({}, future)
        self._commit.kick()
        return future

    def ack_leases(self, done: Sequence[HandOut], future: Future[object], beside: Rows | None = None) -> None:
        """Ack these messages of leases: the future completes when that is on disk, and the rows beside it
        with it, all or none."""
        if self._note_leases(done, future, beside) is None:
            self._commit.enqueue({}, future)
        self._commit.kick()

    def spare(self, root: str, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """Messages are done here, as their client has them from another subscription: wherever they are, also those
        that were not delivered yet. The lease and the offset of those that were."""
        with self._lock:
            self._check_open(writes=True)
            self._supply.open()
            stream = self._supply.stream(root)
            if stream is None:
                return []
            was_full = self._machine.in_flight >= self.options.max_in_flight
            changes, handed = self._machine.spare(stream, offsets)
            self._supply.recount(stream)
            if changes:
                self._commit.enqueue(self._rows_of(changes))
        self._commit.kick()
        if was_full:
            self.wake()
        return handed

    def put_back(self, lease: Lease, offsets: Sequence[int]) -> None:
        """Redeliver messages of a lease; no attempt is counted."""
        with self._lock:
            self._check_open()
            self._machine.put_back(lease, offsets)
        self.wake()

    def undone(self, root: str, offsets: Sequence[int]) -> list[int]:
        """Those of these messages that are not done."""
        with self._lock:
            self._supply.open()
            stream = self._supply.stream(root)
            return list(offsets) if stream is None else self._machine.undone(stream, offsets)

    def root_of(self, lease: Lease) -> str:
        """The root that the messages of a lease come from."""
        return self._supply.name(lease.lane[0])

    def _note_leases(
        self, groups: Sequence[HandOut], future: Future[object] | None = None, beside: Rows | None = None
    ) -> RowsItem | None:
        changed: Rows = dict(beside) if beside else {}
        with self._lock:
            self._check_open(writes=True)
            # Whoever is served over a connection has all that there was room for, and looks again when there is more.
            was_full = self._wakers and any(self._machine.room(lease.consumer) <= 0 for lease, _ in groups)
            if len(groups) > 1:
                for lease, offsets in groups:
                    self._machine.check_held(lease, offsets)
            for lease, offsets in groups:
                changed.update(self._rows_of(self._machine.ack(lease, offsets)))
                self._hand_outs.on_ack(lease)
                self._counts.acks += len(offsets)
            item = self._commit.enqueue(changed, future) if changed else None
            more = self._machine.retrying or self._machine.held or self.consumers > 1 or self.waiting or was_full
        if more:
            self.wake()
        return item

    def _by_lease(self, messages: Sequence[Message]) -> list[HandOut]:
        if not messages:
            return []
        if len(set(map(_origin, messages))) == 1:
            return [(self._mine(messages[0].origin), list(map(_offset, messages)))]
        grouped: dict[int, HandOut] = {}
        for message in messages:
            lease = self._mine(message.origin)
            grouped.setdefault(id(message.origin), (lease, []))[1].append(message.offset)
        return list(grouped.values())

    def _mine(self, origin: object) -> Lease:
        if isinstance(origin, Held) and origin.subscriber is self:
            return origin.lease
        raise Malformed(f'this message did not come from subscription "{self.options.id}"; ack it where it came from')

    def note_nack(
        self,
        lease: Lease,
        offset: int,
        error: str | BaseException,
        delay_s: float | None,
        message: Message | None = None,
        future: Future[object] | None = None,
    ) -> RowsItem | None:
        """Nack a message of a lease; `message` is read from the log if the caller does not have it."""
        text = error_text(error)
        if delay_s is not None and not (_is_number(delay_s) and 0 <= delay_s <= self._config.delay_s_max):
            raise Malformed(f"delay_s is {delay_s!r}; use 0 to {self._config.delay_s_max} seconds (delay_s_max)")
        return self._fail(
            lambda now: self._machine.nack(lease, offset, text, delay_s, now), lease, offset, message, future
        )

    def note_reject(
        self,
        lease: Lease,
        offset: int,
        error: str | BaseException,
        message: Message | None = None,
        future: Future[object] | None = None,
    ) -> RowsItem | None:
        """Reject a message of a lease: it is dead."""
        text = error_text(error)
        return self._fail(lambda now: self._machine.reject(lease, offset, text, now), lease, offset, message, future)

    def _fail(
        self,
        apply: Callable[[Moment], Changes],
        lease: Lease,
        offset: int,
        message: Message | None,
        future: Future[object] | None,
    ) -> RowsItem | None:
        with self._lock:
            self._check_open(writes=True)
            now = self._moment()
            if message is None:  # read before anything changes: a read that fails must change nothing
                message = self._fetch(lease.lane, [offset], now).get(offset)
            known = {(lease.lane, offset): message} if message is not None else {}
            self._machine.dead_room = self._dead.room(known)
            item = self._store(apply(now), known, future)
            self._hand_outs.renew()
            self._counts.nacks += 1
            self._arm()
        self.wake()
        return item

    def extend_lease(self, lease: Lease, offset: int, seconds: float) -> None:
        """Extend the ack timeout of a message of a lease."""
        if not (_is_number(seconds) and 0 < seconds <= self._config.delay_s_max):
            raise Malformed(f"extend by {seconds!r} seconds is out of range; use up to {self._config.delay_s_max}")
        with self._lock:
            self._check_open()
            deadline_us = self._clock.monotonic_us() + round(seconds * SECOND_US)
            self._deadlines.add(self._machine.extend(lease, offset, deadline_us))
            self._arm()

    def finish(self, item: RowsItem | None, wait: bool = True) -> None:
        """Have rows that were enqueued written, and wait until they are on disk."""
        if item is None:
            return
        if wait:
            self._commit.drive(item)
        else:
            self._commit.kick()

    def _store(
        self, changes: Changes, known: Messages | None = None, future: Future[object] | None = None
    ) -> RowsItem | None:
        """Enqueue what changed; under the lock, so that rows are stored in the order of the changes.

        `known` are the messages that may have died by it, read before it: a read that fails must change nothing.
        """
        if not changes:
            return None
        dead = self._dead.rows_of(changes, known or {}, self._clock.now_us())
        changed = self._rows_of(changes)
        changed.update(dead)
        item = self._commit.enqueue(changed, future)
        if dead:
            self._dead.wake()
        return item

    def _rows_of(self, changes: Changes) -> Rows:
        if changes.copies_done:
            self._dead.done(len(changes.copies_done))
        return stored.rows_of(self.number, changes)

    # Timers

    def _arm(self, but_not: int | None = None) -> None:
        """Set the timer to the next retry or ack timeout."""
        times_out_us = self._deadlines.next_us()
        due_us = self._machine.next_due_us() if self._machine.consumers else None
        if due_us == but_not:
            due_us = None
        if times_out_us is not None and (due_us is None or times_out_us < due_us):
            due_us = times_out_us
        self._timers.set(self, due_us, self._ring)

    def _ring(self) -> None:
        with self._lock:
            now = self._moment()
            if self._commit.failed is not None:  # what times out meanwhile does so when that can be noted
                self._timers.set(self, now.monotonic_us + SECOND_US, self._ring)
                return
            while (lease := self._deadlines.over(now.monotonic_us)) is not None:
                known = self._doomed(lease, now)
                self._machine.dead_room = self._dead.room(known)
                self._deadlines.drop_next()
                late = lease.offsets if lease.begun is None else sorted(lease.begun)
                if late and self._machine.is_open(lease):
                    self._on_retry("timed-out", self.options.id, self._supply.name(lease.lane[0]), late, lease.who)
                self._store(self._machine.expire(lease, now), known)
            self._hand_outs.renew()
            due_us = self._machine.next_due_us()
            # A retry that is due already waits for a consumer to ask; the timer is for what comes after it.
            self._arm(but_not=due_us if due_us is not None and due_us <= now.monotonic_us else None)
        self._commit.kick()
        self.wake()

    def _doomed(self, lease: Lease, now: Moment) -> Messages:
        """Messages that a timeout would be the last attempt of, read before it is counted."""
        limit = self.options.max_attempts
        if not limit or not self._machine.is_open(lease):
            return {}
        last = [offset for offset in lease.offsets if self._machine.attempt(lease.lane, offset) >= limit]
        return {(lease.lane, offset): message for offset, message in self._fetch(lease.lane, last, now).items()}

    # Changes from outside

    def pause(self, paused: bool) -> None:
        """Stop or resume delivery."""
        with self._lock:
            self._check_open()
            self._machine.paused = paused
            self.row = msgspec.structs.replace(self.row, paused=paused)
        self.wake()

    def seek(self, positions: dict[int, int]) -> None:
        """Move the cursor; what is in flight is recalled."""
        with self._lock:
            self._check_open(writes=True)
            item = self._commit.enqueue(self._move(positions))
        self.wake()
        self.finish(item)

    def suppose(self, positions: dict[int, int]) -> None:
        """Be seen as if it stood there; nothing is stored."""
        with self._lock:
            self._move(positions)

    def _move(self, positions: dict[int, int]) -> Rows:
        self._check_open()
        self._supply.open()
        changed: Rows = {}
        for stream, position in positions.items():
            if stream not in self._supply:
                continue
            changes = self._machine.seek(stream, position)
            changed.update(stored.rows_of(self.number, changes))
            changed[rows.key_pair(rows.FLOOR, self.number, stream)] = (position - 1).to_bytes(8, "big")
            self._supply.renew(stream)
            self._on_moved(stream, position - 1)
        self._hand_outs.renew()
        self._gap = None
        return changed

    def holds(self, stream: int, last: int) -> bool:
        """Whether it has yet to do with messages of a stream, which ends there."""
        with self._lock:
            return self.floor(stream) < last or (stream, True) in self._machine.lanes or stream in self._rests

    def leave_root(self, root: Root) -> None:
        """A root was removed: what is in flight of it is taken back, and whoever waited for more is told."""
        stream, last = root.stream.number, root.stream.durable
        with self._lock:
            self._rests.pop(stream, None)
            if stream not in self._supply:
                self._supply.close(stream)
                return
            floor = self._machine.floor(stream)
            if floor < last:
                self._meet(stream, Hole(floor + 1, last, REMOVED))
            self._machine.close_lanes(stream, REMOVED)
            self._hand_outs.renew()
            self._supply.close(stream)
            self._dead.leave(stream)
            self._arm()
        self.wake()

    def add_copies(
        self,
        changed: Rows,
        copies: Mapping[int, Mapping[int, Waiting]],
        rests: Mapping[int, RetainedRest] | None = None,
    ) -> None:
        """Deliver these copies too, and note the rest of them later; their rows are stored first."""
        self._add(changed, copies, (), rests or {})

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
        with self._lock:
            self._check_open(writes=True)
            self._dead.redrive(len(sizes), sum(sizes))
            self._rests.update(rests)
            item = self._commit.enqueue(changed)
        self.finish(item)
        with self._lock:
            for stream, found in copies.items():
                if sizes and self._life is not None:
                    self._life.note(REDRIVEN, (stream, True), sorted(found))
                self._machine.add_copies(stream, sorted(found), _keys(found))
        self.wake()

    def drop_dead(self, changed: Rows, size: int) -> None:
        """Dead letters that nobody wants any more, and how large they are."""
        with self._lock:
            self._check_open(writes=True)
            self._dead.drop(len(changed), size)
            item = self._commit.enqueue(changed)
        self.finish(item)

    # Queries

    def floor(self, stream: int) -> int:
        """Up to where this subscription needs nothing of a stream any more."""
        with self._lock:
            self._supply.open()
            return self._machine.floor(stream) if stream in self._supply else 1 << 63

    def pass_over(self, stream: int, before: int, floor: int) -> Rows:
        """Nothing between two floors is wanted: rise, if it still stands at the first or above it; the rows of that."""
        with self._lock:
            if stream in self._supply and self._machine.floor(stream) >= before:
                self._supply.pass_over(stream, floor + 1)
            return self.risen_floors()

    def risen_floors(self) -> Rows:
        """Rows of floors that rose past messages that do not match since they were stored."""
        with self._lock:
            before = stored.floors_of(self._state, self.number)
            return {
                rows.key_pair(rows.FLOOR, self.number, stream): self._machine.floor(stream).to_bytes(8, "big")
                for stream in self._supply.streams
                if self._machine.floor(stream) > before.get(stream, 0)
            }

    def floors(self) -> dict[str, int]:
        """Per root, the acked floor."""
        with self._lock:
            self._supply.open()
            return {self._supply.name(stream): self._machine.floor(stream) for stream in self._supply.streams}

    def counts(self) -> tuple[int, int, int, int]:
        """Lag, in flight, retrying, dead."""
        self._count_ahead()
        with self._lock:
            self._supply.open()
            states = self._machine.states()
            known = {(lane[0], offset) for lane, offset, _, _ in states if not lane[1]}
            lag = sum(self._supply.pending(stream, known) for stream in self._supply.streams)
            lag += sum(state is not MessageState.ACKED for _, _, state, _ in states) + len(self._rests)
            return lag, self._machine.in_flight, self._machine.retrying, self._dead.count

    def _count_ahead(self) -> None:
        """Count what waits in slices, between which those who take from it have their turn."""
        for stream in self._supply.streams:
            left = NO_LIMIT
            while True:
                with self._lock:
                    unseen = self._supply.pending_roughly(stream, COUNTED_AT_ONCE)[1]
                if not 0 < unseen < left:
                    break
                left = unseen

    def standing(self, messages_max: int) -> Standing:
        """The same in a moment, however much there is: no more than about so many messages of each root are looked at,
        once, and the rest is estimated."""
        with self._lock:
            self._supply.open()
            machine = self._machine
            counted = [self._supply.pending_roughly(stream, messages_max) for stream in self._supply.streams]
            lag = sum(count for count, _ in counted) + machine.in_flight + machine.retrying + machine.held
            lag += len(self._rests)  # there is one more at least
            unseen = sum(unseen for _, unseen in counted)
            return Standing(lag, machine.in_flight, machine.retrying, self._dead.count, self.consumers, unseen)

    def resting(self) -> Resting:
        """What is left of it in the state when nobody is served any more."""
        with self._lock:
            machine = self._machine
            floors = {stream: machine.floor(stream) for stream in self._supply.streams}
            return Resting(floors, machine.acked, machine.failed, machine.copies + len(self._rests), self._dead.count)

    def known(self) -> list[Known]:
        """Each message that is not plainly pending or acked."""
        with self._lock:
            machine, name = self._machine, self._supply.name
            return [
                Known(name(lane[0]), lane, offset, state, failure, machine.lease(lane, offset))
                for lane, offset, state, failure in machine.states()
            ]


class Held(msgspec.Struct, eq=False):
    """Origin of the messages of one lease: carries out `message.ack()`, `nack()`, `reject()`, `extend()`, `reply()`."""

    subscriber: Subscriber
    lease: Lease

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        self.subscriber.ack(messages, wait)

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        item = self.subscriber.note_nack(self.lease, message.offset, error, delay_s, message)
        self.subscriber.finish(item)

    def reject(self, message: Message, error: str | BaseException) -> None:
        self.subscriber.finish(self.subscriber.note_reject(self.lease, message.offset, error, message))

    def extend(self, message: Message, seconds: float) -> None:
        self.subscriber.extend_lease(self.lease, message.offset, seconds)

    def reply(self, message: Message, payload: Payload) -> Receipt:
        return self.subscriber.reply(message, payload)


def _runs(places: Sequence[tuple[LaneId, int]], step: int) -> Iterator[tuple[LaneId, list[int]]]:
    """Offsets of one lane that follow each other, at most so many at once."""
    for lane, run in groupby(places, key=lambda place: place[0]):
        offsets = [offset for _, offset in run]
        for at in range(0, len(offsets), step):
            yield lane, offsets[at : at + step]


def _ascending(offsets: list[int]) -> Iterator[list[int]]:
    """The same in the same order, cut where it goes back. Each has a lease of its own: clients say what they mean by
    ranges of what came in one frame, and with offsets that go on across frames no other of the lease lies within."""
    start = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] < offsets[at - 1]:
            yield offsets[start:at]
            start = at


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _keys(copies: Mapping[int, Waiting]) -> list[bytes | str]:
    """What order="key" goes by, for copies in the order of their offsets."""
    found = (copies[offset] for offset in sorted(copies))
    return [copy.topic if copy.key is None else copy.key for copy in found]
