"""Where each message of a subscription stands; every change of state happens here, through `step`.

The ledger moves messages and counts them. It does not decide who may have them: that is `Subscription`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import groupby

from headwater.delivery.lane import Changes, Event, Failure, Key, Lane, LaneId, Lease, MessageState, step
from headwater.delivery.waiting import Waiting
from headwater.errors import Conflict, NotFound, Recalled

OnStep = Callable[[Event, LaneId, Sequence[int], Lease | None, Failure | None], None]
"""What happened to these messages of a lane; under which lease they were, and what is known of a failure."""
DIED = (Event.REJECT, Event.EXHAUST)


class Ledger:
    """The lanes of a subscription, what waits in them, and how many are in which state."""

    __slots__ = ("acked", "held", "in_flight", "lanes", "number", "on_step", "retrying", "unread", "waiting")

    def __init__(self, order: str) -> None:
        self.lanes: dict[LaneId, Lane] = {}
        self.waiting = Waiting(order, self.lanes)
        self.number = 0
        """Of the last lease."""
        self.on_step: OnStep | None = None
        """Hears of every change of state, of runs of messages of a lane; nearly always nobody does."""
        self.in_flight = 0
        self.retrying = 0
        self.held = 0
        """Known and pending."""
        self.acked = 0
        """Above the floors,"""
        self.unread = 0
        """and, among these, ahead of the reader."""

    # Lanes

    def open(self, id: LaneId, floor: int) -> Lane:
        """A new lane."""
        if id in self.lanes:
            raise Conflict(f"lane {id} is open already")
        lane = self.lanes[id] = Lane(id, floor, floor + 1)
        return lane

    def lane(self, id: LaneId) -> Lane:
        """A lane that has to be there."""
        lane = self.lanes.get(id)
        if lane is None:
            raise NotFound(
                f"no lane for the {'copies' if id[1] else 'messages'} of stream {id[0]}; open or load it first"
            )
        return lane

    def lane_of(self, lease: Lease) -> Lane:
        """A copies lane goes when it is empty, and leases outlive it."""
        return self.lanes.get(lease.lane) or Lane(lease.lane, 0, 1)

    def add_copies(self, lane: Lane, offsets: list[int], keys: Sequence[Key] | None) -> None:
        """Copies wait; those that are there already stay as they are."""
        self.number += 1
        key_of = dict(zip(offsets, keys, strict=True)) if keys is not None and self.waiting.keyed else {}
        for offset in sorted(set(offsets) - lane.numbers.keys()):
            lane.numbers[offset] = self.number
            if offset in key_of:
                lane.keys[offset] = key_of[offset]
            self._wait(lane, offset)
        self._close_if_empty(lane)

    # PENDING or RETRY → IN_FLIGHT

    def deliver(self, lane: Lane, offsets: Sequence[int], position: int, lease: Lease) -> None:
        """A run of fresh messages, nothing in the way of any."""
        step(MessageState.PENDING, Event.DELIVER)
        lease.offsets.extend(offsets)
        lane.in_flight.update(dict.fromkeys(offsets, lease))
        lane.trail.extend(offsets)
        lane.position = position
        self.in_flight += len(offsets)
        if self.on_step is not None:
            self.on_step(Event.DELIVER, lane.id, offsets, lease, None)

    def advance(
        self, lane: Lane, offsets: Sequence[int], keys: Sequence[Key], position: int, lease: Lease, room: int
    ) -> None:
        """Fresh messages one by one: up to `room` go out if nothing is in the way, the others wait."""
        key_of = dict(zip(offsets, keys, strict=True)) if self.waiting.keyed and keys else {}
        for offset in sorted({*offsets, *lane.come_up(position)}):
            lane.trail.append(offset)
            if offset in lane.acked:
                self.unread -= 1
                continue
            key = key_of.get(offset)
            if key is not None:
                lane.keys[offset] = key
            may_go = len(lease.offsets) < room and self.waiting.is_clear(key, lease.consumer)
            if may_go and offset not in lane.due:
                step(MessageState.PENDING, Event.DELIVER)
                lease.offsets.append(offset)
                lane.in_flight[offset] = lease
                self.waiting.start(lane, offset, lease.consumer)
                self.in_flight += 1
            else:
                lane.numbers[offset] = lease.number
                self._wait(lane, offset)
        lane.position = position
        if self.on_step is not None and lease.offsets:
            self.on_step(Event.DELIVER, lane.id, lease.offsets, lease, None)

    def deliver_again(self, lane: Lane, offsets: Sequence[int], lease: Lease) -> None:
        """Messages that waited; Conflict, and nothing changes, if one of them did not."""
        self.waiting.take(lane, offsets)
        lease.offsets.extend(offsets)
        for offset in offsets:
            step(lane.state(offset), Event.DELIVER)
            if lane.due.pop(offset, None) is None:
                self.held -= 1
            else:
                self.retrying -= 1
            lane.in_flight[offset] = lease
            self.waiting.start(lane, offset, lease.consumer)
            if self.on_step is not None:
                self.on_step(Event.DELIVER, lane.id, (offset,), lease, lane.failures.get(offset))
        self.in_flight += len(offsets)

    # IN_FLIGHT → ACKED, DEAD, RETRY, PENDING

    def finish(self, lane: Lane, offsets: Sequence[int], event: Event, changes: Changes) -> None:
        """A run of messages is acked or dead."""
        step(MessageState.IN_FLIGHT, event)
        if self.on_step is not None and offsets:
            failure = changes.dead[-1][2] if event in DIED else None
            self.on_step(event, lane.id, offsets, lane.in_flight[offsets[0]], failure)
        self._land(lane, offsets)
        if lane.numbers or lane.keys:
            for offset in offsets:
                lane.numbers.pop(offset, None)
                lane.keys.pop(offset, None)
                self._forgive(lane, offset, changes)
        self.acked += lane.settle(offsets, changes)
        if lane.id[1]:
            self._close_if_empty(lane)

    def retry(self, lane: Lane, offset: int, event: Event, failure: Failure, due_us: int, changes: Changes) -> None:
        """A message failed and waits until it is due."""
        step(MessageState.IN_FLIGHT, event)
        lane.numbers.setdefault(offset, lane.in_flight[offset].number)
        if self.on_step is not None:
            self.on_step(event, lane.id, (offset,), lane.in_flight[offset], failure)
        self._land(lane, (offset,))
        lane.failures[offset] = changes.failures[lane.id, offset] = failure
        if failure.vanished:
            self.waiting.suspects.add((lane.id, offset))
        lane.due[offset] = due_us
        self.retrying += 1
        self._wait(lane, offset)

    def recall(self, messages: list[tuple[Lane, int]], why: str) -> None:
        """Messages are recalled; no attempt is counted."""
        step(MessageState.IN_FLIGHT, Event.RECALL)
        if self.on_step is not None:
            for (_, _), run in groupby(messages, key=lambda one: (one[0].id, id(one[0].in_flight[one[1]]))):
                (lane, first), *others = run
                offsets = [first, *(offset for _, offset in others)]
                self.on_step(Event.RECALL, lane.id, offsets, lane.in_flight[first], None)
        for lane, offset in messages:
            lease = lane.in_flight[offset]
            lease.take(offset, why)
            lane.numbers.setdefault(offset, lease.number)
            self._land(lane, (offset,))
            self._wait(lane, offset)

    # Any → ACKED

    def spare(self, lane: Lane, offsets: Sequence[int], changes: Changes) -> None:
        """Messages are done with, whether they are in flight, wait, or were not read yet."""
        handed = [offset for offset in offsets if offset in lane.in_flight]
        waiting = [offset for offset in offsets if offset in lane.numbers and offset not in lane.in_flight]
        unread = [offset for offset in offsets if offset >= lane.position and offset not in lane.acked]
        for offset in (*waiting, *unread):
            step(lane.state(offset), Event.SPARE)
            if lane.due.pop(offset, None) is not None:
                self.retrying -= 1
            elif offset < lane.position:
                self.held -= 1
            else:
                insort(lane.ahead, offset)
            self._forgive(lane, offset, changes)
        if self.on_step is not None and (waiting or unread):
            self.on_step(Event.SPARE, lane.id, sorted({*waiting, *unread}), None, None)
        self.waiting.forget(lane, set(waiting))
        for offset in waiting:
            del lane.numbers[offset]
            lane.keys.pop(offset, None)
        lane.acked.update(unread)
        self.acked += len(unread)
        self.unread += len(unread)
        changes.acked.extend((lane.id[0], offset) for offset in unread)
        if waiting:
            self.acked += lane.settle(waiting, changes)
        if handed:
            self.finish(lane, handed, Event.SPARE, changes)

    # Any → forgotten

    def forget(self, lane: Lane, offsets: list[int], changes: Changes, why: str) -> None:
        """Nothing is known of these messages any more; leases that held them say why."""
        gone = set(offsets)
        if self.on_step is not None and offsets:
            self.on_step(Event.RECALL, lane.id, sorted(gone), None, None)
        self.waiting.forget(lane, gone)
        for offset in offsets:
            step(lane.state(offset), Event.RECALL)
            lease = lane.in_flight.get(offset)
            if lease is not None:
                self._land(lane, (offset,))
                lease.take(offset, why)
            elif offset in lane.acked:
                lane.acked.discard(offset)
                changes.unacked.append((lane.id[0], offset))
                self.acked -= 1
                self.unread -= offset >= lane.position
            elif lane.due.pop(offset, None) is not None:
                self.retrying -= 1
            else:
                self.held -= 1
            lane.numbers.pop(offset, None)
            lane.keys.pop(offset, None)
            self._forgive(lane, offset, changes)
        lane.leave_out(gone)

    # Questions

    def after(self, lane: Lane, offset: int) -> list[tuple[Lane, int]]:
        """What was handed out after a message of the same chain, and is in flight."""
        if not self.waiting.binding:
            return []
        place, key = lane.place(offset), lane.keys.get(offset)
        return [
            (other, later)
            for other in self.lanes.values()
            for later in other.in_flight
            if other.keys.get(later) == key and other.place(later) > place
        ]

    def holding(self, lease: Lease, offset: int) -> Lane:
        """The lane of a message that this lease holds; else Recalled (409)."""
        lane = self.lane_of(lease)
        if not self.held_by(lease, lane, (offset,)):
            raise Recalled(f"message {offset} is not yours any more: it is acked, or gone from its stream")
        return lane

    def held_by(self, lease: Lease, lane: Lane, offsets: Sequence[int]) -> Sequence[int]:
        """Those that this lease still holds, without those that are done; Recalled (409) if any was taken back."""
        held = []
        for offset in dict.fromkeys(offsets):
            current = lane.in_flight.get(offset)
            if current is not None and current.number == lease.number:
                held.append(offset)
            elif lease.taken and offset in lease.taken:
                raise Recalled(f"message {offset} was taken back: {lease.taken[offset]}; drop it")
            elif offset not in lease.offsets:
                raise Conflict(f"message {offset} was not handed out with this lease")
            elif current is not None or lane.state(offset) is not MessageState.ACKED:
                raise Recalled(f"message {offset} was taken back and comes again; drop it")
        return held

    def _forgive(self, lane: Lane, offset: int, changes: Changes) -> None:
        """That a message failed matters no more."""
        if lane.failures.pop(offset, None):
            changes.failures[lane.id, offset] = None
            self.waiting.suspects.discard((lane.id, offset))

    def _wait(self, lane: Lane, offset: int) -> None:
        if offset in lane.due:
            self.waiting.put_until_due(lane, offset)
        else:
            self.held += 1
            self.waiting.put(lane, offset)

    def _land(self, lane: Lane, offsets: Sequence[int]) -> None:
        """Messages are in flight no more."""
        in_flight = lane.in_flight
        if len(offsets) == len(in_flight):
            in_flight.clear()
        else:
            for offset in offsets:
                del in_flight[offset]
        self.in_flight -= len(offsets)
        if self.waiting.chains:
            for offset in offsets:
                self.waiting.end(lane, offset)

    def _close_if_empty(self, lane: Lane) -> None:
        if lane.id[1] and lane.idle:
            del self.lanes[lane.id]
