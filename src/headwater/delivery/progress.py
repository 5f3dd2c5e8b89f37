"""The progress of a durable subscription: up to where it is done, what is left, and what became of the rest.

Promises: a floor that is answered or stored is one below which this subscription needs nothing any more; who counts
what waits holds up nobody who takes from it for longer than a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headwater.delivery import rows as stored
from headwater.delivery.bookkeeping import Books
from headwater.delivery.consumers import Consumers
from headwater.delivery.lane import Failure, LaneId, Lease, MessageState
from headwater.delivery.retained_backlog import RetainedBacklog
from headwater.delivery.rows import Resting
from headwater.delivery.selection import NO_LIMIT
from headwater.delivery.supply import Supply
from headwater.store import state as rows
from headwater.store.state import Rows, State

COUNTED_AT_ONCE = 1000
"""Messages of a root that are counted while a subscription is held up."""


class Standing(msgspec.Struct, frozen=True):
    """How far a subscription is."""

    lag: int
    in_flight: int
    retrying: int
    dead: int
    consumers: int
    unseen: int = 0
    """Messages that were not looked at yet: how many of them are among the lag is an estimate."""


class KnownMessage(NamedTuple):
    """A message that is not plainly pending or acked."""

    root: str
    lane: LaneId
    offset: int
    state: MessageState
    failure: Failure | None
    lease: Lease | None
    """What it is in flight under."""


class Progress:
    """That of one subscription."""

    __slots__ = ("_books", "_consumers", "_machine", "_retained", "_state", "_supply")

    def __init__(
        self, books: Books, supply: Supply, retained: RetainedBacklog, consumers: Consumers, state: State
    ) -> None:
        self._books = books
        self._machine = books.machine
        self._supply = supply
        self._retained = retained
        self._consumers = consumers
        self._state = state

    # Floors

    def floor(self, stream: int) -> int:
        """Up to where this subscription needs nothing of a stream any more."""
        with self._books.lock:
            self._supply.open()
            return self._machine.floor(stream) if stream in self._supply else 1 << 63

    def floors(self) -> dict[str, int]:
        """Per root, the acked floor."""
        with self._books.lock:
            self._supply.open()
            return {self._supply.name(stream): self._machine.floor(stream) for stream in self._supply.streams}

    def risen_floors(self) -> Rows:
        """Rows of floors that rose past messages that do not match since they were stored."""
        with self._books.lock:
            before = stored.floors_of(self._state, self._books.number)
            return {
                rows.key_pair(rows.FLOOR, self._books.number, stream): self._machine.floor(stream).to_bytes(8, "big")
                for stream in self._supply.streams
                if self._machine.floor(stream) > before.get(stream, 0)
            }

    def pass_over(self, stream: int, before: int, floor: int) -> Rows:
        """Nothing between two floors is wanted: rise, if it still stands at the first or above it; the rows of that."""
        with self._books.lock:
            if stream in self._supply and self._machine.floor(stream) >= before:
                self._supply.pass_over(stream, floor + 1)
            return self.risen_floors()

    def holds(self, stream: int, last: int) -> bool:
        """Whether the subscription has yet to do with messages of a stream, which ends there."""
        with self._books.lock:
            return self.floor(stream) < last or (stream, True) in self._machine.lanes or stream in self._retained.rests

    # Messages

    def undone(self, root: str, offsets: Sequence[int]) -> list[int]:
        """Those of these messages that are not done."""
        with self._books.lock:
            self._supply.open()
            stream = self._supply.stream(root)
            return list(offsets) if stream is None else self._machine.undone(stream, offsets)

    def known(self) -> list[KnownMessage]:
        """Each message that is not plainly pending or acked."""
        with self._books.lock:
            machine, name = self._machine, self._supply.name
            return [
                KnownMessage(name(lane[0]), lane, offset, state, failure, machine.lease(lane, offset))
                for lane, offset, state, failure in machine.states()
            ]

    # Counts

    def counts(self) -> tuple[int, int, int, int]:
        """Lag, in flight, retrying, dead."""
        self._count_ahead()
        with self._books.lock:
            self._supply.open()
            states = self._machine.states()
            known = {(lane[0], offset) for lane, offset, _, _ in states if not lane[1]}
            lag = sum(self._supply.lag.pending(stream, known) for stream in self._supply.streams)
            lag += sum(state is not MessageState.ACKED for _, _, state, _ in states) + len(self._retained.rests)
            return lag, self._machine.in_flight, self._machine.retrying, self._books.dead.count

    def _count_ahead(self) -> None:
        """Count what waits in slices, between which those who take from it have their turn."""
        for stream in self._supply.streams:
            left = NO_LIMIT
            while True:
                with self._books.lock:
                    unseen = self._supply.lag.pending_roughly(stream, COUNTED_AT_ONCE)[1]
                if not 0 < unseen < left:
                    break
                left = unseen

    def standing(self, messages_max: int) -> Standing:
        """The same in a moment, however much there is: no more than about so many messages of each root are looked at,
        once, and the rest is estimated."""
        with self._books.lock:
            self._supply.open()
            machine = self._machine
            counted = [self._supply.lag.pending_roughly(stream, messages_max) for stream in self._supply.streams]
            lag = sum(count for count, _ in counted) + machine.in_flight + machine.retrying + machine.held
            lag += len(self._retained.rests)  # there is one more at least
            unseen = sum(unseen for _, unseen in counted)
            dead, consumers = self._books.dead.count, self._consumers.count
            return Standing(lag, machine.in_flight, machine.retrying, dead, consumers, unseen)

    def resting(self) -> Resting:
        """What is left of it in the state when nobody is served any more."""
        with self._books.lock:
            machine = self._machine
            floors = {stream: machine.floor(stream) for stream in self._supply.streams}
            copies = machine.copies + len(self._retained.rests)
            return Resting(floors, machine.acked, machine.failed, copies, self._books.dead.count)
