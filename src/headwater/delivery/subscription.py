"""A durable subscription: which message may go to which consumer, and what became of it. No I/O, no locks, no clock.

Invariants:
- Everything up to a lane's floor is acked or dead; what is known above it is in flight, waits, or has a row in `acked`.
- At most `max_in_flight` messages are in flight. Nothing fresh is taken in while `held_max` messages (or a window, if
  that is more) wait or are acked between a floor and its reader. So memory is bounded by both together, and by what is
  said to be done ahead of the reader (`spare`).
- strict, and key within each key: a message goes out only after everything before it went out to the same consumer and
  nothing before it failed.
- What a call changes is in the `Changes` that it returns. A subscription loaded from the rows so stored differs only in
  that nothing is in flight.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import msgspec

from headwater.clock import SECOND_US
from headwater.config import Config
from headwater.delivery.lane import (
    Changes,
    Event,
    Failure,
    Key,
    Lane,
    LaneId,
    Lease,
    MessageState,
    Moment,
    Remote,
    step,
)
from headwater.delivery.ledger import Ledger, OnStep
from headwater.delivery.options import Options
from headwater.delivery.retry import delay_s as backoff_s
from headwater.errors import Conflict, Malformed

FULL_DELAY_S_MIN = 1.0
"""What may not die yet is not tried again sooner than this."""


class Subscription:
    """The state machine of one durable subscription."""

    __slots__ = ("_jitter", "config", "consumers", "dead_room", "ledger", "options", "paused")

    def __init__(
        self, options: Options, config: Config, jitter: Callable[[], float] = random.random, last_number: int = 0
    ) -> None:
        """`last_number` is below the number of every lease to come, and above those before a restart."""
        self.options = options
        self.config = config
        self.paused = False
        """Nothing is delivered while True."""
        self.dead_room = 1 << 62
        """How many more messages may die; the next waits for another attempt instead."""
        self._jitter = jitter
        self.ledger = Ledger(options.order)
        """Where each message stands. It is the machine's alone to change; others ask how many are in which state."""
        self.ledger.number = last_number
        self.consumers: list[Hashable] = []
        """In the order in which they were attached; with order="strict" the first is active, the others stand by."""

    def watch(self, on_step: OnStep) -> None:
        """Have every change of state told from now on."""
        self.ledger.on_step = on_step

    # State

    @property
    def lanes(self) -> tuple[LaneId, ...]:
        """Stream lanes that are open, and copies lanes that have something in them."""
        return tuple(self.ledger.lanes)

    @property
    def in_flight(self) -> int:
        """Messages that consumers hold."""
        return self.ledger.in_flight

    @property
    def retrying(self) -> int:
        """Messages that failed and wait for their next attempt."""
        return self.ledger.retrying

    @property
    def held(self) -> int:
        """Messages that are known and pending: held back behind others, recalled, or copies."""
        return self.ledger.held

    @property
    def acked(self) -> int:
        """Messages that are acked, or dead, above the floors."""
        return sum(len(lane.acked) for lane in self.ledger.lanes.values())

    @property
    def failed(self) -> int:
        """Messages that failed before, wherever they are now."""
        return sum(len(lane.failures) for lane in self.ledger.lanes.values())

    @property
    def copies(self) -> int:
        """Copies that are not done."""
        return sum(len(lane.known()) for lane in self.ledger.lanes.values() if lane.id[1])

    def ahead(self, stream: int) -> list[int]:
        """Offsets of a stream, not read again yet, of which something is known."""
        return self.ledger.lane((stream, False)).ahead

    def position(self, stream: int) -> int:
        """The next offset to read from a stream."""
        return self.ledger.lane((stream, False)).position

    def floor(self, stream: int) -> int:
        """Everything of a stream up to this offset is done."""
        return self.ledger.lane((stream, False)).floor

    def attempt(self, lane: LaneId, offset: int) -> int:
        """Which attempt a message is at: 1 for one that never failed."""
        found = self.ledger.lanes.get(lane)
        failure = found.failures.get(offset) if found else None
        return failure.attempts + 1 if failure else 1

    def states(self) -> list[tuple[LaneId, int, MessageState, Failure | None]]:
        """Every message that is not plainly pending or acked."""
        return [
            (lane.id, offset, lane.state(offset), lane.failures.get(offset))
            for lane in self.ledger.lanes.values()
            for offset in lane.known()
        ]

    def failures(self) -> list[tuple[LaneId, int, Failure]]:
        """What is known of messages that failed before, wherever they are now."""
        return [(lane.id, *one) for lane in self.ledger.lanes.values() for one in lane.failures.items()]

    def lease(self, lane: LaneId, offset: int) -> Lease | None:
        """What a message is in flight under."""
        return self.ledger.lane(lane).in_flight.get(offset)

    def is_open(self, lease: Lease) -> bool:
        """Whether anything is still in flight under a lease."""
        lane = self.ledger.lanes.get(lease.lane)
        if lane is None or lane.in_flight.keys().isdisjoint(lease.offsets):
            return False
        return any(lane.in_flight.get(offset) is lease for offset in lease.offsets)

    def next_due_us(self) -> int | None:
        """Monotonic moment at which the next retry becomes due; None while nobody could be handed it."""
        return self.ledger.waiting.next_due_us() if self.consumers and not self.paused else None

    # Lanes

    def open_lane(self, stream: int, floor: int) -> None:
        """A stream whose messages after `floor` are pending."""
        self.ledger.open((stream, False), floor)

    def close_lanes(self, stream: int, why: str) -> None:
        """A stream is no more: all that was known of it is forgotten, and taken back."""
        for copies in (False, True):
            lane = self.ledger.lanes.get((stream, copies))
            if lane is not None:
                known = lane.known() if copies else [*lane.trail, *lane.ahead]
                self.ledger.forget(lane, known, Changes(), why)
                del self.ledger.lanes[lane.id]

    def load_lane(
        self,
        lane: LaneId,
        floor: int,
        acked: Iterable[int],
        failures: Mapping[int, Failure],
        now: Moment,
        pending: Iterable[int] = (),
        keys: Sequence[Key] | None = None,
    ) -> None:
        """A lane from its stored rows; `pending`, and with order="key" their `keys`, are for copies alone."""
        loaded = self.ledger.open(lane, floor)
        copies = list(pending)
        failed = failures.keys() & set(copies) if lane[1] else {offset for offset in failures if offset > floor}
        loaded.failures.update((offset, failures[offset]) for offset in failed)
        loaded.due.update((offset, self._due_us(failures[offset], now)) for offset in failed)
        self.ledger.retrying += len(failed)
        self.ledger.waiting.suspects.update((lane, offset) for offset in failed if failures[offset].vanished)
        if lane[1]:
            self.ledger.add_copies(loaded, copies, keys)
            return
        loaded.acked.update(offset for offset in acked if offset > floor and offset not in failed)
        loaded.ahead = sorted(loaded.acked | failed)
        self.ledger.acked += len(loaded.acked)
        self.ledger.unread += len(loaded.acked)

    def add_copies(self, stream: int, offsets: Iterable[int], keys: Sequence[Key] | None = None) -> None:
        """Copies to deliver, after those already there; one that is still there is not added again."""
        lane = self.ledger.lanes.get((stream, True)) or self.ledger.open((stream, True), 0)
        self.ledger.add_copies(lane, list(offsets), keys)

    def skip_to(self, stream: int, position: int) -> Changes:
        """The reader found nothing that matches before `position`."""
        lane, changes = self.ledger.lane((stream, False)), Changes()
        if position > lane.position:
            nobody = self._lease(None, lane.id, Moment(0, 0))
            self.ledger.advance(lane, (), (), position, nobody, 0)
            self.ledger.acked += lane.settle((), changes)
        return changes

    def seek(self, stream: int, position: int) -> Changes:
        """Start again at a position: all that was known of the stream is forgotten, and recalled."""
        lane = self.ledger.lanes.get((stream, False)) or self.ledger.open((stream, False), position - 1)
        changes = Changes()
        why = f"the subscription was moved to offset {position}"
        self.ledger.forget(lane, [*lane.trail, *lane.ahead], changes, why)
        lane.floor = changes.floors[stream] = position - 1
        lane.position = position
        return changes

    # Consumers

    def attach(self, consumer: Hashable) -> None:
        """Add a consumer."""
        if consumer not in self.consumers:
            self.consumers.append(consumer)

    def detach(self, consumer: Hashable) -> bool:
        """A consumer is gone: what it has in flight is recalled. True if there is now something for another to take."""
        if consumer not in self.consumers:
            return False
        next_is_active = self.options.order == "strict" and self.consumers[0] == consumer and len(self.consumers) > 1
        self.consumers.remove(consumer)
        held = [
            (lane, offset)
            for lane in self.ledger.lanes.values()
            for offset, lease in lane.in_flight.items()
            if lease.consumer == consumer
        ]
        self.ledger.recall(held, "its consumer was detached")
        return bool(held) or next_is_active

    def vanish(self, consumer: Hashable, now: Moment) -> Changes:
        """A consumer is gone without a word: what it may have been at counts a delivery, the rest is recalled."""
        changes = Changes()
        if consumer in self.consumers and self.options.max_deliveries:
            for lane, offset in self._blamed(consumer):
                failure = self.with_delivery(lane.failures.get(offset), now, lane.in_flight[offset].who)
                lane.in_flight[offset].take(offset, "its consumer is gone")
                self.ledger.retry(lane, offset, Event.VANISH, failure, now.monotonic_us, changes)
        self.detach(consumer)
        return changes

    def _blamed(self, consumer: Hashable) -> list[tuple[Lane, int]]:
        """Messages that a consumer may have been at: those that it had begun and the next one, as far as that is
        known; of these only the suspects, if there are any."""
        held = [
            (lane, offset)
            for lane in self.ledger.lanes.values()
            for offset, lease in lane.in_flight.items()
            if lease.consumer == consumer
        ]
        held.sort(key=lambda one: (one[0].in_flight[one[1]].number, one[1]))
        begun, rest = list[tuple[Lane, int]](), list[tuple[Lane, int]]()
        for lane, offset in held:
            started = lane.in_flight[offset].begun
            (begun if started is None or offset in started else rest).append((lane, offset))
        blamed = begun + rest[:1] if begun else rest
        return [one for one in blamed if (one[0].id, one[1]) in self.ledger.waiting.suspects] or blamed

    def with_delivery(self, failure: Failure | None, now: Moment, by: str = "") -> Failure:
        """What is known of a message once one more consumer is gone with it."""
        before = failure or Failure(0, 0)
        vanished, most = before.vanished + 1, self.options.max_deliveries
        error = f"its consumer was gone without a word (delivery {vanished} of at most {most})"
        return Failure(before.attempts, now.wall_us, self._with_error(before.errors, error), 0, vanished, by)

    def is_spent(self, lane: LaneId, offset: int) -> bool:
        """Whether so many consumers are gone with a message that no other gets it."""
        failure = self.ledger.lane(lane).failures.get(offset)
        return failure is not None and 0 < self.options.max_deliveries <= failure.vanished

    def give_up(self, lease: Lease, offset: int, now: Moment) -> Changes:
        """A message that no other consumer is to get is dead, or waits until it may be."""
        lane, changes = self.ledger.holding(lease, offset), Changes()
        failure = lane.failures[offset]
        if self.dead_room > 0:
            self.dead_room -= 1
            died = msgspec.structs.replace(failure, attempts=failure.attempts + 1, retry_at_us=now.wall_us)
            changes.dead.append((lane.id, offset, died))
            self.ledger.finish(lane, (offset,), Event.EXHAUST, changes)
        else:
            delay_us = self._delay_us(1, self._delay_full_s)
            lane.in_flight[offset].take(offset, "nobody is to have it")
            waits = msgspec.structs.replace(failure, retry_at_us=now.wall_us + delay_us, delay_us=delay_us)
            self.ledger.retry(lane, offset, Event.FULL, waits, now.monotonic_us + delay_us, changes)
        return changes

    def held_under(self, lease: Lease) -> list[int]:
        """What is in flight under a lease, or under what `extend` made of it."""
        lane = self.ledger.lane_of(lease)
        if not lane.in_flight or lane.in_flight.keys().isdisjoint(lease.offsets):
            return []
        return [offset for offset in lease.offsets if lane.is_held(lease, offset)]

    def _serves(self, consumer: Hashable) -> bool:
        if self.options.order == "strict":
            return bool(self.consumers) and self.consumers[0] == consumer
        return consumer in self.consumers

    # Delivery

    def redeliverable(self, consumer: Hashable, limit: int, now: Moment) -> list[tuple[LaneId, int]]:
        """Known messages that may go to this consumer now, in the order in which they must. Changes no state."""
        limit = min(limit, self.options.max_in_flight - self.ledger.in_flight)
        if self.paused or not self._serves(consumer):
            limit = 0
        return self.ledger.waiting.offer(consumer, limit, now.monotonic_us)

    def room(self, consumer: Hashable) -> int:
        """How many fresh messages may go to this consumer now."""
        ledger, options, consumers = self.ledger, self.options, self.consumers
        if options.order == "strict":
            consumers = consumers[:1]  # the others stand by
            if ledger.waiting.chains:
                return 0
        if self.paused or consumer not in consumers:
            return 0
        behind_max = max(self.config.held_max, options.max_in_flight)
        # What is done ahead of the reader is not counted: to read on is how it goes.
        behind = ledger.held + ledger.retrying + ledger.acked - ledger.unread
        return max(0, min(options.max_in_flight - ledger.in_flight, behind_max - behind))

    def hand_out(
        self,
        consumer: Hashable,
        stream: int,
        offsets: Sequence[int],
        next_position: int,
        now: Moment,
        keys: Sequence[Key] | None = None,
        room: int | None = None,
    ) -> Lease:
        """Fresh messages of a stream: those that may go now are in the lease, the others are held for later; those that
        were acked ahead of the reader are passed over. `room` is what was answered just now, if it was asked for."""
        ledger, lane = self.ledger, self.ledger.lane((stream, False))
        if offsets and not lane.position <= offsets[0] <= offsets[-1] < next_position:
            span = f"{offsets[0]} to {offsets[-1]}"
            raise Conflict(f"messages {span} do not lie between {lane.position} and {next_position - 1}")
        if room is None:
            room = self.room(consumer)
        lease = self._lease(consumer, lane.id, now)
        if len(offsets) > room or lane.ahead or ledger.waiting.keyed:
            ledger.advance(lane, offsets, keys or (), next_position, lease, room)
        else:
            ledger.deliver(lane, offsets, next_position, lease)
        return lease

    def hand_out_again(self, consumer: Hashable, lane: LaneId, offsets: Sequence[int], now: Moment) -> Lease:
        """Messages of one lane that `redeliverable` gave, in its order."""
        if not self._serves(consumer):
            raise Conflict(f"consumer {consumer!r} takes no messages now; attach it, or hand them to the active one")
        lease = self._lease(consumer, lane, now)
        self.ledger.deliver_again(self.ledger.lane(lane), offsets, lease)
        return lease

    def _lease(self, consumer: Hashable, lane: LaneId, now: Moment) -> Lease:
        """The time of its messages begins, or does once a remote application has taken them."""
        ledger = self.ledger
        ledger.number += 1
        timeout_s, is_remote = self.options.ack_timeout_s, isinstance(consumer, Remote)
        deadline_us = now.monotonic_us + round(timeout_s * SECOND_US) if timeout_s and not is_remote else 0
        begun: set[int] | None = set() if is_remote else None
        return Lease(consumer, lane, deadline_us, [], ledger.number, begun, since_us=now.wall_us)

    # Acks, nacks and timeouts

    def check_held(self, lease: Lease, offsets: Sequence[int]) -> None:
        """Recalled (409) unless an ack of these would be taken; changes nothing."""
        self.ledger.held_by(lease, self.ledger.lane_of(lease), offsets)

    def ack(self, lease: Lease, offsets: Sequence[int]) -> Changes:
        """Messages are done: all of them, or none and Recalled (409)."""
        ledger, changes = self.ledger, Changes()
        lane = ledger.lane_of(lease)
        if offsets != lease.offsets or set(map(lane.in_flight.get, offsets)) != {lease}:
            offsets = ledger.held_by(lease, lane, offsets)
        if offsets:
            ledger.finish(lane, offsets, Event.ACK, changes)
        return changes

    def spare(self, stream: int, offsets: Sequence[int]) -> tuple[Changes, list[tuple[int, int]]]:
        """Messages are done, wherever they are: handed out, waiting or yet to be read; and, of those that were handed
        out, the number of the lease and the offset."""
        lane, changes = self.ledger.lane((stream, False)), Changes()
        handed = [(lane.in_flight[offset].number, offset) for offset in offsets if offset in lane.in_flight]
        self.ledger.spare(lane, offsets, changes)
        return changes, handed

    def put_back(self, lease: Lease, offsets: Sequence[int]) -> None:
        """Messages of a lease are recalled, to be redelivered; no attempt is counted. Where order binds, what
        was handed out after them is, too; what was taken back before is passed over."""
        lane, taken = self.ledger.lane_of(lease), dict[tuple[LaneId, int], Lane]()
        for offset in offsets:
            if lane.is_held(lease, offset) and (lane.id, offset) not in taken:
                taken[lane.id, offset] = lane
                taken.update({(other.id, later): other for other, later in self.ledger.after(lane, offset)})
        self.ledger.recall([(other, later) for (_, later), other in taken.items()], "its consumer has put it back")

    def undone(self, stream: int, offsets: Sequence[int]) -> list[int]:
        """Those of these messages that are not done."""
        lane = self.ledger.lane((stream, False))
        return [offset for offset in offsets if lane.state(offset) is not MessageState.ACKED]

    def nack(self, lease: Lease, offset: int, error: str, delay_s: float | None, now: Moment) -> Changes:
        """A message failed: it is tried again after `delay_s`, or a growing delay."""
        if delay_s is not None and not delay_s >= 0:
            raise Malformed(f"delay_s is {delay_s}; use seconds from 0, or None for a growing delay")
        lane, changes = self.ledger.holding(lease, offset), Changes()
        self._fail(lane, offset, Event.NACK, error, delay_s, now, changes)
        return changes

    def reject(self, lease: Lease, offset: int, error: str, now: Moment) -> Changes:
        """A message will never succeed: it is dead."""
        lane, changes = self.ledger.holding(lease, offset), Changes()
        self._fail(lane, offset, Event.REJECT, error, None, now, changes)
        return changes

    def extend(self, lease: Lease, offset: int, deadline_us: int) -> Lease:
        """A message gets a lease of its own with a new deadline; the old lease still acks it."""
        lane = self.ledger.holding(lease, offset)
        extended = lane.in_flight[offset] = lane.in_flight[offset].extended(offset, deadline_us)
        return extended

    def expire(self, lease: Lease, now: Moment) -> Changes:
        """No ack came in time: what is in flight under exactly this lease failed, or is recalled behind what did."""
        lane, changes = self.ledger.lane_of(lease), Changes()
        error = f"no ack within {self.options.ack_timeout_s:g} s"
        for offset in lease.offsets if lease.begun is None else sorted(lease.begun):
            # The first of each chain fails, which recalls the others of it before the loop gets to them.
            if lane.in_flight.get(offset) is lease:
                self._fail(lane, offset, Event.TIMEOUT, error, None, now, changes)
        return changes

    def _fail(
        self, lane: Lane, offset: int, event: Event, error: str, delay_s: float | None, now: Moment, changes: Changes
    ) -> None:
        """A message in flight failed: it waits for its next attempt, or is dead."""
        attempts = self.attempt(lane.id, offset)
        is_last = event is Event.REJECT or 0 < self.options.max_attempts <= attempts
        if is_last and self.dead_room <= 0:
            event, delay_s = Event.FULL, self._delay_full_s
        if event is not Event.REJECT:
            self.ledger.recall(self.ledger.after(lane, offset), f"message {offset} before it failed ({event})")
            if is_last and event is not Event.FULL:
                event = Event.EXHAUST
        after = step(MessageState.IN_FLIGHT, event)
        lease = lane.in_flight[offset]
        lease.take(offset, f"it failed ({event}) and is now {after}")
        before = lane.failures.get(offset) or Failure(0, 0)
        errors = self._with_error(before.errors, error)
        if after is MessageState.RETRY:
            delay_us = self._delay_us(attempts, delay_s)
            failure = Failure(attempts, now.wall_us + delay_us, errors, delay_us, before.vanished, lease.who)
            self.ledger.retry(lane, offset, event, failure, now.monotonic_us + delay_us, changes)
        else:
            self.dead_room -= 1
            changes.dead.append(
                (lane.id, offset, Failure(attempts, now.wall_us, errors, None, before.vanished, lease.who))
            )
            self.ledger.finish(lane, (offset,), event, changes)

    @property
    def _delay_full_s(self) -> float:
        """How long what may not die yet waits for its next attempt."""
        return max(self.options.retry_delays_s(self.config)[1], FULL_DELAY_S_MIN)

    def _delay_us(self, attempts: int, delay_s: float | None) -> int:
        first_s, max_s = self.options.retry_delays_s(self.config)
        if delay_s is None:
            delay_s = min(backoff_s(attempts, first_s, max_s, self.config.retry_jitter, self._jitter), max_s)
        return round(delay_s * SECOND_US)

    def _due_us(self, failure: Failure, now: Moment) -> int:
        """When a stored failure is due on this run's clock; however the wall clock jumped, within its delay."""
        max_us = failure.delay_us
        if max_us is None:
            max_us = round(self.options.retry_delays_s(self.config)[1] * SECOND_US)
        return now.monotonic_us + min(max(failure.retry_at_us - now.wall_us, 0), max_us)

    def _with_error(self, before: tuple[str, ...], error: str) -> tuple[str, ...]:
        cut = error.encode(errors="replace")[: self.config.error_bytes_max].decode(errors="ignore")
        errors = (*before, cut)
        return errors[max(0, len(errors) - self.config.errors_kept) :]
