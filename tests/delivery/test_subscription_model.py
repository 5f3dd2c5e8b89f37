"""The subscription against a model: a dict of messages with their states, and the rows that were stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headwater.clock import SECOND_US
from headwater.config import Config
from headwater.delivery.lane import Changes, Failure, LaneId, Lease, MessageState, Moment
from headwater.delivery.options import Options
from headwater.delivery.subscription import Subscription
from headwater.errors import Recalled

CONFIG = Config(held_max=8, retry_delay_s=1.0, retry_delay_s_max=4.0)
STREAMS = (1, 2)
CONSUMERS = ("a", "b", "c")
OPEN = (MessageState.PENDING, MessageState.IN_FLIGHT, MessageState.RETRY)


@dataclass(eq=False)
class Told:
    """A message as the model knows it."""

    key: str
    state: MessageState = MessageState.PENDING
    attempts: int = 0
    lease: Lease | None = None
    at: int = 0
    """When it was last handed out, counted message by message."""
    due_us: int = 0
    read: bool = False
    """Handed out or held since the last crash or seek."""


@dataclass
class Rows:
    """What is stored."""

    floors: dict[int, int] = field(default_factory=dict)
    acked: set[tuple[int, int]] = field(default_factory=set)
    failures: dict[tuple[LaneId, int], Failure] = field(default_factory=dict)
    copies: set[tuple[int, int]] = field(default_factory=set)
    dead: list[tuple[LaneId, int]] = field(default_factory=list)

    def store(self, changes: Changes) -> None:
        self.floors |= changes.floors
        for done in changes.unacked:
            self.acked.remove(done)
        self.acked.update(changes.acked)
        for row, failure in changes.failures.items():
            if failure is None:
                del self.failures[row]
            else:
                self.failures[row] = failure
        self.copies.difference_update(changes.copies_done)
        self.dead.extend((lane, offset) for lane, offset, _ in changes.dead)


class Model(RuleBasedStateMachine):
    order: str

    @initialize(
        window=st.integers(1, 6),
        attempts=st.sampled_from([0, 0, 1, 3]),
        copies=st.sets(st.integers(1, 4)),
        keys=st.text("xy", min_size=4, max_size=4),
        consumers=st.integers(1, 3),
        first=st.lists(st.sampled_from("xxyz-"), min_size=4, max_size=10),
    )
    def start(self, window: int, attempts: int, copies: set[int], keys: str, consumers: int, first: list[str]) -> None:
        self.options = Options(id="s", filter="#", order=self.order, max_in_flight=window, max_attempts=attempts)  # type: ignore[arg-type]
        self.now = Moment(1_700_000_000 * SECOND_US, 5)
        self.messages: dict[tuple[LaneId, int], Told] = {}
        self.ends = dict.fromkeys(STREAMS, 1)
        self.rows = Rows(floors=dict.fromkeys(STREAMS, 0))
        self.leases: list[Lease] = []
        self.clock = 0
        self.sub = Subscription(self.options, CONFIG, lambda: 0.5)
        for stream in STREAMS:
            self.sub.open_lane(stream, 0)
        for consumer in CONSUMERS[:consumers]:
            self.sub.attach(consumer)
        self.redrive(1, copies, keys)
        self.publish(1, first)

    # What happens

    @rule(stream=st.sampled_from(STREAMS), keys=st.lists(st.sampled_from("xyz-"), min_size=1, max_size=8))
    def publish(self, stream: int, keys: list[str]) -> None:
        for key in keys:
            if key != "-":  # An offset that does not match the filter.
                self.messages[(stream, False), self.ends[stream]] = Told(key)
            self.ends[stream] += 1

    @rule(consumer=st.sampled_from(CONSUMERS))
    def attach(self, consumer: str) -> None:
        self.sub.attach(consumer)

    def detach(self, consumer: str) -> None:
        held = [told for told in self.messages.values() if told.lease and told.lease.consumer == consumer]
        was_active = self.sub.consumers[:1] == [consumer]
        freed = self.sub.detach(consumer)
        for told in held:
            self.recall(told)
        assert freed == bool(held or (was_active and self.order == "strict" and self.sub.consumers))

    @precondition(lambda self: self.sub.consumers)
    @rule(data=st.data(), limit=st.integers(1, 8), stream=st.sampled_from(STREAMS), extra=st.integers(0, 3))
    def dispatch_to_one(self, data: st.DataObject, limit: int, stream: int, extra: int) -> None:
        self.dispatch(str(data.draw(st.sampled_from(self.sub.consumers))), limit, stream, extra)

    def dispatch(self, consumer: str, limit: int, stream: int, extra: int) -> None:
        again = self.sub.redeliverable(consumer, limit, self.now)
        assert again == self.sub.redeliverable(consumer, limit, self.now)
        assert len(again) <= limit
        for lane, run in groupby(again, lambda known: known[0]):
            self.handed(self.sub.hand_out_again(consumer, lane, [offset for _, offset in run], self.now))
        room = min(limit - len(again), self.sub.room(consumer))
        position = self.sub.position(stream)
        if room <= 0 or position == self.ends[stream]:
            return
        fresh = [offset for offset in range(position, self.ends[stream]) if ((stream, False), offset) in self.messages]
        wanted = [o for o in fresh if self.messages[(stream, False), o].state is not MessageState.ACKED][:room]
        fresh = [offset for offset in fresh if wanted and offset <= wanted[-1]]  # also those that are acked already
        if fresh:
            # Sometimes the reader knows that what follows does not match either.
            following = fresh[-1] + 1
            while extra and following < self.ends[stream] and ((stream, False), following) not in self.messages:
                following, extra = following + 1, extra - 1
            keys = [self.messages[(stream, False), offset].key for offset in fresh] if self.order == "key" else None
            lease = self.sub.hand_out(consumer, stream, fresh, following, self.now, keys)
            for offset in range(position, following):
                if ((stream, False), offset) in self.messages:
                    self.messages[(stream, False), offset].read = True
            self.handed(lease)
        else:
            changes = self.sub.skip_to(stream, self.ends[stream])
            # That only the floor rose need not be stored.
            if changes != Changes(floors=changes.floors) or extra:
                self.rows.store(changes)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        if data.draw(st.booleans()):
            offsets = data.draw(st.lists(st.sampled_from(lease.offsets), min_size=1))
        else:
            offsets = [self.some_offset(data, lease)] if data.draw(st.booleans()) else lease.offsets
        told = [self.messages[lease.lane, offset] for offset in offsets]
        if any(message.state in OPEN and not self.holds(message, lease) for message in told):
            with pytest.raises(Recalled):
                self.sub.ack(lease, offsets)
            return
        try:
            self.rows.store(self.sub.ack(lease, offsets))
        except Recalled:
            # Done by another hand-out; a lease that lost a message never gets it back.
            assert any(lease.taken and offset in lease.taken for offset in offsets)
            return
        for message in told:
            message.state, message.lease = MessageState.ACKED, None

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), kind=st.sampled_from(["nack", "nack at once", "nack at once", "reject"]))
    def fail(self, data: st.DataObject, kind: str) -> None:
        lease = self.some_lease(data)
        offset = self.some_offset(data, lease)
        told = self.messages[lease.lane, offset]
        if not self.holds(told, lease):
            with pytest.raises(Recalled):
                self.sub.nack(lease, offset, "no", None, self.now)
            return
        if kind == "reject":
            changes = self.sub.reject(lease, offset, "never", self.now)
            told.attempts, told.state, told.lease = told.attempts + 1, MessageState.DEAD, None
        else:
            changes = self.sub.nack(lease, offset, "no", 0.0 if kind == "nack at once" else None, self.now)
            self.failed(told, changes)
        self.rows.store(changes)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        late = [told for offset in lease.offsets if (told := self.messages[lease.lane, offset]).lease is lease]
        changes = self.sub.expire(lease, self.now)
        for told in sorted(late, key=lambda told: told.at):
            if told.lease is lease:
                self.failed(told, changes)
        self.rows.store(changes)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        offset = self.some_offset(data, lease)
        told = self.messages[lease.lane, offset]
        if self.holds(told, lease):
            told.lease = self.sub.extend(lease, offset, 99)
            assert (told.lease.offsets, told.lease.deadline_us) == ([offset], 99)
            self.leases.append(told.lease)
        else:
            with pytest.raises(Recalled):
                self.sub.extend(lease, offset, 99)

    @rule(data=st.data(), stream=st.sampled_from(STREAMS))
    def spare(self, data: st.DataObject, stream: int) -> None:
        there = sorted(offset for lane, offset in self.messages if lane == (stream, False))
        offsets = sorted(data.draw(st.sets(st.sampled_from(there), max_size=3))) if there else []
        told = [self.messages[(stream, False), offset] for offset in offsets]
        held = [(one.lease.number, offset) for one, offset in zip(told, offsets, strict=True) if one.lease is not None]
        changes, handed = self.sub.spare(stream, offsets)
        assert handed == held
        self.rows.store(changes)
        for one in told:
            if one.state in OPEN:
                one.state, one.lease = MessageState.ACKED, None

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        held = [offset for offset in lease.offsets if self.holds(self.messages[lease.lane, offset], lease)]
        offsets = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        self.sub.put_back(lease, offsets)
        put_back = [self.messages[lease.lane, offset] for offset in offsets]
        behind = [
            (told, other) for told in put_back for other in self.chain(told) if other.lease and other.at > told.at
        ]
        for told in put_back:
            self.recall(told)
        for _, other in behind if self.order != "none" else ():
            self.recall(other)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]), jump=st.sampled_from([0, 0, -1000, 1000]))
    def pass_time(self, seconds: float, jump: int) -> None:
        wall_us, monotonic_us = self.now
        self.now = Moment(wall_us + round((seconds + jump) * SECOND_US), monotonic_us + round(seconds * SECOND_US))

    def seek(self, stream: int, back: int) -> None:
        position = max(1, self.ends[stream] - back)
        self.rows.store(self.sub.seek(stream, position))
        for (lane, offset), told in self.messages.items():
            if lane == (stream, False):
                told.state = MessageState.PENDING if offset >= position else MessageState.ACKED
                told.attempts, told.lease, told.due_us, told.read = 0, None, 0, False

    @rule(
        stream=st.sampled_from(STREAMS), offsets=st.sets(st.integers(1, 4)), keys=st.text("xy", min_size=4, max_size=4)
    )
    def redrive(self, stream: int, offsets: set[int], keys: str) -> None:
        lane = (stream, True)
        known = {offset for offset in offsets if (lane, offset) in self.messages}
        offsets = (offsets - known) | {o for o in known if self.messages[lane, o].state not in OPEN}
        for offset in offsets:
            self.messages[lane, offset] = Told(keys[offset - 1], read=True)
            self.leases = [lease for lease in self.leases if lease.lane != lane or offset not in lease.offsets]
        ordered = sorted(offsets)
        self.sub.add_copies(stream, ordered, [self.messages[lane, offset].key for offset in ordered])
        self.rows.copies.update((stream, offset) for offset in offsets)

    @rule(
        kind=st.sampled_from(["seek", "detach", "crash", "crash"]),
        stream=st.sampled_from(STREAMS),
        back=st.integers(0, 12),
        consumer=st.sampled_from(CONSUMERS),
    )
    def upset(self, kind: str, stream: int, back: int, consumer: str) -> None:
        """One rule for all that wipes the slate, so that most steps do not."""
        if kind == "seek":
            self.seek(stream, back)
        elif kind == "detach":
            self.detach(consumer)
        else:
            self.crash()

    def crash(self) -> None:
        consumers = self.sub.consumers
        self.sub = Subscription(self.options, CONFIG, lambda: 0.5)
        self.leases.clear()
        for stream in STREAMS:
            for copies in (False, True):
                lane = (stream, copies)
                failures = {offset: failure for (of, offset), failure in self.rows.failures.items() if of == lane}
                if copies:
                    pending = sorted(offset for of, offset in self.rows.copies if of == stream)
                    keys = [self.messages[lane, offset].key for offset in pending]
                    self.sub.load_lane(lane, 0, (), failures, self.now, pending=pending, keys=keys)
                else:
                    acked = [offset for of, offset in self.rows.acked if of == stream]
                    self.sub.load_lane(lane, self.rows.floors[stream], acked, failures, self.now)
                for (of, offset), told in self.messages.items():
                    if of == lane and told.state in OPEN:
                        told.lease, told.read = None, copies
                        told.state = MessageState.RETRY if told.attempts else MessageState.PENDING
                        if told.attempts:
                            wait_us = failures[offset].retry_at_us - self.now.wall_us
                            told.due_us = self.now.monotonic_us + min(max(wait_us, 0), failures[offset].delay_us or 0)
        for consumer in consumers:
            self.sub.attach(consumer)

    # What the model makes of it

    def some_lease(self, data: st.DataObject) -> Lease:
        """Mostly one that still holds something."""
        alive = [lease for lease in self.leases if any(self.holds(told, lease) for told in self.messages.values())]
        stale = not alive or data.draw(st.integers(0, 4)) == 4
        return data.draw(st.sampled_from(self.leases if stale else alive))

    def some_offset(self, data: st.DataObject, lease: Lease) -> int:
        """Mostly one that the lease still holds."""
        held = [offset for offset in lease.offsets if self.holds(self.messages[lease.lane, offset], lease)]
        stale = not held or data.draw(st.integers(0, 4)) == 4
        return data.draw(st.sampled_from(lease.offsets if stale else held))

    def holds(self, told: Told, lease: Lease) -> bool:
        return told.lease is not None and told.lease.number == lease.number

    def chain(self, told: Told) -> list[Told]:
        return [other for other in self.messages.values() if self.order == "strict" or other.key == told.key]

    def recall(self, told: Told) -> None:
        told.state, told.lease = MessageState.PENDING, None

    def failed(self, told: Told, changes: Changes) -> None:
        told.attempts += 1
        dead = 0 < self.options.max_attempts <= told.attempts
        told.state, told.lease = MessageState.DEAD if dead else MessageState.RETRY, None
        if self.order != "none":
            for other in self.chain(told):
                if other.lease and other.at > told.at:
                    self.recall(other)
        row = next(row for row, message in self.messages.items() if message is told)
        failure = changes.failures.get(row)
        assert (failure is None) == dead == (row in {(lane, offset) for lane, offset, _ in changes.dead})
        told.due_us = self.now.monotonic_us + (failure.retry_at_us - self.now.wall_us if failure else 0)

    def handed(self, lease: Lease) -> None:
        """The promises: only what is open, due, and in order."""
        assert not self.sub.paused
        assert lease.consumer in self.sub.consumers
        if self.order == "strict":
            assert lease.consumer == self.sub.consumers[0]
        if lease.offsets:
            self.leases.append(lease)
        for offset in lease.offsets:
            told = self.messages[lease.lane, offset]
            assert told.state in (MessageState.PENDING, MessageState.RETRY)
            assert told.lease is None
            assert self.now.monotonic_us >= told.due_us or told.state is not MessageState.RETRY
            assert self.sub.attempt(lease.lane, offset) == told.attempts + 1
            if self.order != "none":
                self.in_order(lease, offset, told)
            self.clock += 1
            told.state, told.lease, told.at = MessageState.IN_FLIGHT, lease, self.clock

    def in_order(self, lease: Lease, offset: int, told: Told) -> None:
        chain = self.chain(told)
        for (lane, before), other in self.messages.items():
            if lane == lease.lane and other in chain and other.state in OPEN and (before < offset) and not lane[1]:
                assert other.state is MessageState.IN_FLIGHT, f"{before} has to go before {offset}"
                assert not other.attempts, f"{before} failed and is not done: {offset} has to wait"
        for other in chain:
            if other.lease:
                assert other.lease.consumer == lease.consumer, "one consumer at a time"
                assert not other.attempts, "a failed message is alone"
            if other is not told and other.state in OPEN and other.attempts and other.read:
                assert told.at or told.read, "nothing fresh while a failed one is not done"

    def is_unread(self, lane: LaneId, offset: int, state: MessageState) -> bool:
        """Whether a message is done before it was read."""
        return state is MessageState.ACKED and not lane[1] and offset >= self.sub.position(lane[0])

    # What is always so

    @invariant()
    def the_window_and_the_counts_are_right(self) -> None:
        if not hasattr(self, "sub"):
            return
        told = self.messages.values()
        in_flight = sum(message.state is MessageState.IN_FLIGHT for message in told)
        assert self.sub.in_flight == in_flight <= self.options.max_in_flight
        assert self.sub.retrying == sum(message.state is MessageState.RETRY for message in told)
        states = self.sub.states()
        shown = {(lane, offset): state for lane, offset, state, _ in states}
        assert self.sub.held == sum(state is MessageState.PENDING for state in shown.values())
        unread = sum(self.is_unread(lane, offset, state) for lane, offset, state, _ in states)
        assert len(shown) - unread <= CONFIG.held_max + 2 * self.options.max_in_flight + 2 * 4
        for row, message in self.messages.items():
            if message.state in (MessageState.IN_FLIGHT, MessageState.RETRY):
                assert shown[row] is message.state
            elif row in shown:
                assert shown[row] is (message.state if message.state in OPEN else MessageState.ACKED)

    @invariant()
    def the_room_is_what_the_window_and_what_waits_leave(self) -> None:
        if not hasattr(self, "sub"):
            return
        window = self.options.max_in_flight
        behind = sum(
            state is not MessageState.IN_FLIGHT and not self.is_unread(lane, offset, state)
            for lane, offset, state, _ in self.sub.states()
        )
        left = max(0, min(window - self.sub.in_flight, max(window, CONFIG.held_max) - behind))
        for consumer in CONSUMERS:
            room = self.sub.room(consumer)
            if consumer not in self.sub.consumers:
                assert room == 0
            elif self.order == "strict":
                assert room in (0, left)
            else:
                assert room == left
            self.sub.paused = True
            assert (self.sub.room(consumer), self.sub.redeliverable(consumer, 9, self.now)) == (0, [])
            self.sub.paused = False

    @invariant()
    def the_rows_say_what_the_model_says(self) -> None:
        if not hasattr(self, "sub"):
            return
        for (lane, offset), told in self.messages.items():
            stream, copies = lane
            if copies:
                done = (stream, offset) not in self.rows.copies
            else:
                done = offset <= self.rows.floors[stream] or (stream, offset) in self.rows.acked
            assert done == (told.state not in OPEN), (lane, offset)
        attempts = {row: told.attempts for row, told in self.messages.items() if told.attempts and told.state in OPEN}
        assert attempts == {row: failure.attempts for row, failure in self.rows.failures.items()}
        assert all(offset > self.rows.floors[stream] for stream, offset in self.rows.acked)

    @invariant()
    def the_floor_is_as_high_as_it_can_be_stored(self) -> None:
        if not hasattr(self, "sub"):
            return
        for stream in STREAMS:
            floor = self.sub.floor(stream)
            assert self.rows.floors[stream] <= floor
            open_ones = [
                o for (lane, o), told in self.messages.items() if lane == (stream, False) and told.state in OPEN
            ]
            assert all(offset > floor for offset in open_ones)
            done_ones = [
                o for (lane, o), told in self.messages.items() if lane == (stream, False) and told.state not in OPEN
            ]
            lowest = min(open_ones, default=self.ends[stream])
            # After a crash the reader comes up to what was acked above the floor; the next ack takes the floor past it.
            assert all(
                o <= self.rows.floors[stream] or o >= self.sub.position(stream) or (stream, o) in self.rows.acked
                for o in done_ones
                if o < lowest
            )

    def teardown(self) -> None:
        """Nothing is lost and nothing gets stuck: one consumer that acks everything sees the rest."""
        if not hasattr(self, "sub"):
            return
        for consumer in CONSUMERS:
            self.detach(consumer)
        self.sub.attach("a")
        self.sub.paused = False
        for _ in range(len(self.messages) * 2 + 10):
            self.pass_time(5.0, 0)
            for stream in STREAMS:
                self.dispatch("a", 100, stream, 3)
            for lease in self.leases:
                self.rows.store(
                    self.sub.ack(lease, [o for o in lease.offsets if self.holds(self.messages[lease.lane, o], lease)])
                )
                for offset in lease.offsets:
                    if self.holds(self.messages[lease.lane, offset], lease):
                        self.messages[lease.lane, offset].state = MessageState.ACKED
                        self.messages[lease.lane, offset].lease = None
            self.leases.clear()
        self.the_window_and_the_counts_are_right()
        self.the_rows_say_what_the_model_says()
        assert not [row for row, told in self.messages.items() if told.state in OPEN]
        assert not self.rows.failures
        assert not self.rows.acked
        assert not self.rows.copies
        assert self.sub.next_due_us() is None
        assert set(self.sub.lanes) == {(stream, False) for stream in STREAMS}


@pytest.mark.parametrize("order", ["strict", "key", "none"])
def test_the_subscription_does_what_the_model_does(order: str) -> None:
    machine = type("Model", (Model,), {"order": order})
    limits = settings(max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=limits)
