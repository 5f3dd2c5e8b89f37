"""The states of a message in a subscription, and the lane that it comes from.

TRANSITIONS is the whole truth about states. A message's state is not stored: it follows from where its lane keeps it
(`Lane.state`), so that a run of messages changes state with one bulk operation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from headwater.errors import Conflict
from headwater.message import ConsumerInfo

LaneId = tuple[int, bool]
"""Stream number, and whether these are its copies (retained at the start, redriven) instead of the stream itself."""

Key = bytes | str
"""What order="key" goes by: a message's key, or its topic when it has none."""


class MessageState(StrEnum):
    """Of one message in one subscription."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    RETRY = "retry"
    ACKED = "acked"
    DEAD = "dead"


class Event(StrEnum):
    """What happens to a message in a subscription."""

    DELIVER = "deliver"
    ACK = "ack"
    NACK = "nack"
    TIMEOUT = "timeout"
    REJECT = "reject"
    RECALL = "recall"
    """Recalled, no attempt counted: an earlier one failed, its consumer is gone, or somebody moved the cursor."""
    EXHAUST = "exhaust"
    """A nack or timeout that was the last attempt allowed, or a delivery that was the last allowed."""
    VANISH = "vanish"
    """Its consumer was gone without a word: no attempt is counted, but a delivery."""
    FULL = "full"
    """What would have killed it, but its subscription's client may have no more dead letters: it is tried again."""
    SPARE = "spare"
    """Done with for another reason than an ack: its client has it from elsewhere."""


TRANSITIONS: dict[tuple[MessageState, Event], MessageState] = {
    (MessageState.PENDING, Event.DELIVER): MessageState.IN_FLIGHT,
    (MessageState.RETRY, Event.DELIVER): MessageState.IN_FLIGHT,
    (MessageState.IN_FLIGHT, Event.ACK): MessageState.ACKED,
    (MessageState.IN_FLIGHT, Event.NACK): MessageState.RETRY,
    (MessageState.IN_FLIGHT, Event.TIMEOUT): MessageState.RETRY,
    (MessageState.IN_FLIGHT, Event.VANISH): MessageState.RETRY,
    (MessageState.IN_FLIGHT, Event.REJECT): MessageState.DEAD,
    (MessageState.IN_FLIGHT, Event.EXHAUST): MessageState.DEAD,
    (MessageState.IN_FLIGHT, Event.FULL): MessageState.RETRY,
    (MessageState.IN_FLIGHT, Event.RECALL): MessageState.PENDING,
    (MessageState.PENDING, Event.SPARE): MessageState.ACKED,
    (MessageState.IN_FLIGHT, Event.SPARE): MessageState.ACKED,
    (MessageState.RETRY, Event.SPARE): MessageState.ACKED,
    # A seek takes back everything, whatever its state.
    (MessageState.PENDING, Event.RECALL): MessageState.PENDING,
    (MessageState.RETRY, Event.RECALL): MessageState.PENDING,
    (MessageState.ACKED, Event.RECALL): MessageState.PENDING,
    (MessageState.DEAD, Event.RECALL): MessageState.PENDING,
}


def step(state: MessageState, event: Event) -> MessageState:
    """The state after an event; Conflict if it cannot happen in that state."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise Conflict(f'cannot {event} a message that is "{state}"')
    return after


class Moment(NamedTuple):
    """Now, on both clocks."""

    wall_us: int
    monotonic_us: int


class Failure(msgspec.Struct, frozen=True):
    """What is stored and shown of a message that failed."""

    attempts: int
    retry_at_us: int
    """Wall clock. What the machine times by is the monotonic moment, `Lane.due`."""
    errors: tuple[str, ...] = ()
    delay_us: int | None = None
    """How long it was to wait: after a restart it waits no longer, however the wall clock was set meanwhile."""
    vanished: int = 0
    """Consumers that were gone without a word while they had it."""
    by: str = ""
    """The consumer that had it, as far as that is known."""


class Changes(msgspec.Struct):
    """What has to be stored because of a call."""

    floors: dict[int, int] = {}
    """Stream → its new acked floor."""
    acked: list[tuple[int, int]] = []
    """Stream, offset: acked or dead above the floor."""
    unacked: list[tuple[int, int]] = []
    """Rows of `acked` that the floor has passed, or that a seek forgot: delete."""
    failures: dict[tuple[LaneId, int], Failure | None] = {}
    """None: delete."""
    dead: list[tuple[LaneId, int, Failure]] = []
    copies_done: list[tuple[int, int]] = []
    """Stream, offset: copies that are acked or dead: delete."""

    def __bool__(self) -> bool:
        return bool(self.floors or self.acked or self.unacked or self.failures or self.dead or self.copies_done)


class Ticket(msgspec.Struct, eq=False):
    """A consumer, as a subscription knows it."""

    who: str = ""
    """What users know it by: the process that embeds the bus, or a session."""
    info: ConsumerInfo = ConsumerInfo()
    """What is told of it."""


class Remote(Ticket, eq=False):
    """A consumer that prefetches, and so is to be sent what is recalled."""

    recalls: list[tuple[int, int]] = []
    """Lease number, offset: recalled, and not sent yet."""


class Lease(msgspec.Struct, eq=False):
    """Messages delivered to one consumer together, until they are acked, nacked or timed out."""

    consumer: Hashable
    lane: LaneId
    deadline_us: int
    """Monotonic; 0 is none."""
    offsets: list[int]
    number: int
    """Increases over the subscription; what `extend` makes of a lease keeps its number."""
    begun: set[int] | None = None
    """Messages of it that a remote application has taken, for no others has the time begun; None: for all."""
    taken: dict[int, str] | None = None
    """Why messages of it were recalled, for those that were."""
    since_us: int = 0
    """When they were handed out, by the wall clock."""

    def take(self, offset: int, why: str) -> None:
        """Remember why a message was recalled."""
        if self.taken is None:
            self.taken = {}
        self.taken[offset] = why
        if isinstance(self.consumer, Remote):
            self.consumer.recalls.append((self.number, offset))

    def extended(self, offset: int, deadline_us: int) -> Lease:
        """A lease of one of its messages, with a deadline of its own."""
        if self.taken is None:
            self.taken = {}
        return Lease(
            *(self.consumer, self.lane, deadline_us, [offset], self.number), taken=self.taken, since_us=self.since_us
        )

    @property
    def who(self) -> str:
        """What users know its consumer by."""
        return self.consumer.who if isinstance(self.consumer, Ticket) else ""

    def __repr__(self) -> str:
        return f"Lease({self.number}, {self.consumer!r}, lane={self.lane}, offsets={self.offsets})"


Place = tuple[int, bool, int, int]
"""Where a message stands in its subscription: the number of its first lease, lane (copies first), offset."""


class Lane(msgspec.Struct, eq=False):
    """One ordered source of messages: a stream, or the copies that belong to it.

    Invariants, between calls:
    - `in_flight`, the waiting (`numbers` without `in_flight`), `acked` and `ahead` without `acked` are disjoint.
    - `trail` is ascending: every offset between floor and position that is in flight, waiting or in `acked`.
    - `due` and `failures` say more about messages that wait, are ahead, or (failures only) are in flight again.
    """

    id: LaneId
    floor: int
    """Everything up to here is acked or dead, or did not match."""
    position: int
    """What to read next."""
    in_flight: dict[int, Lease] = {}
    numbers: dict[int, int] = {}
    """First lease of messages that wait, or once waited and are in flight again."""
    keys: dict[int, Key] = {}
    """With order="key": keys of messages that wait or are in flight."""
    due: dict[int, int] = {}
    """Monotonic moments of messages in RETRY."""
    failures: dict[int, Failure] = {}
    acked: set[int] = set()
    """Acked or dead above the floor; each has a stored row."""
    ahead: list[int] = []
    """Ascending: loaded from stored rows, acked or in RETRY, and not read again yet."""
    trail: deque[int] = msgspec.field(default_factory=deque)

    @property
    def idle(self) -> bool:
        """Whether nothing of it is in flight or waits."""
        return not self.in_flight and not self.numbers

    def state(self, offset: int) -> MessageState:
        """Derived from where the message is kept; a dead one is done here, as an acked one is."""
        if offset in self.in_flight:
            return MessageState.IN_FLIGHT
        if offset in self.due:
            return MessageState.RETRY
        if offset in self.acked:
            return MessageState.ACKED
        if offset in self.numbers or (offset >= self.position and not self.id[1]):
            return MessageState.PENDING
        return MessageState.ACKED

    def is_held(self, lease: Lease, offset: int) -> bool:
        """Whether a message is in flight under a lease, or under what `extend` made of it."""
        current = self.in_flight.get(offset)
        return current is not None and current.number == lease.number

    def known(self) -> list[int]:
        """Offsets with a state other than plainly pending or acked, ascending."""
        return sorted(self.in_flight.keys() | self.numbers.keys() | self.acked.union(self.ahead))

    def place(self, offset: int) -> Place:
        """Of a message in flight or waiting."""
        number = self.numbers.get(offset)
        if number is None:
            number = self.in_flight[offset].number
        return (number, not self.id[1], self.id[0], offset)

    def come_up(self, position: int) -> list[int]:
        """What was loaded ahead of the reader and lies before its new position."""
        count = bisect_left(self.ahead, position)
        passed = self.ahead[:count]
        del self.ahead[:count]
        return passed

    def leave_out(self, gone: set[int]) -> None:
        """These offsets are known no more."""
        self.ahead = [offset for offset in self.ahead if offset not in gone]
        kept = [offset for offset in self.trail if offset not in gone]
        self.trail.clear()
        self.trail.extend(kept)

    def settle(self, done: Collection[int], changes: Changes) -> int:
        """Raise the floor as far as it goes, after messages are done or the reader went on; remember those that stay
        above it. How many more of these there are than before."""
        stream, copies = self.id
        if copies:
            changes.copies_done.extend((stream, offset) for offset in done)
            return 0
        trail, before = self.trail, len(self.acked)
        if len(done) == len(trail):
            trail.clear()
        else:
            self._pass(set(done), changes)
        floor = trail[0] - 1 if trail else self.position - 1
        if floor > self.floor:
            self.floor = floor
            changes.floors[stream] = floor
        return len(self.acked) - before

    def _pass(self, done: set[int], changes: Changes) -> None:
        trail, acked, stream = self.trail, self.acked, self.id[0]
        while trail:
            first = trail[0]
            if first in done:
                done.discard(first)
            elif first in acked:
                acked.discard(first)
                if (stream, first) in changes.acked:  # by this same call: it needs no row at all
                    changes.acked.remove((stream, first))
                else:
                    changes.unacked.append((stream, first))
            else:
                break
            trail.popleft()
        acked |= done
        changes.acked.extend((stream, offset) for offset in sorted(done))
