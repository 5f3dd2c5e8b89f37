"""A leader's records in flight: sent one behind the other, without waiting, and committed in order.

Each message names the sequence that it expects to come after. What becomes of one is a table; only the **head**, the
first that is not stored, is looked into: whatever is behind it can only be refused for its sake. No clock and no I/O:
events are methods, and each answers commands, to be carried out in this order.

Promises: a record is `Committed` only if all before it are, and each of its messages is where it was meant to be; after
`Stopped` nothing is; a message is only ever sent again as it was, with the same expected sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from headwater.cluster.follower import IN_FLIGHT_MAX
from headwater.cluster.record import Entry, Position, Record, encode

LOOKS_MAX = 3
"""How often a head that is not where it should be, in a stream that ends before it, is looked for: the engine may have
answered from a server that is behind."""


class Fate(Enum):
    """What is known of a message."""

    SENT = auto()
    EARLY = auto()
    """Refused, as what comes before it was not there yet: it is sent again with that."""
    DOUBTED = auto()
    """Refused, as something is in its place: perhaps it itself, from an answer that was lost."""
    STORED = auto()
    FOREIGN = auto()
    """Another's is in its place: it will never be stored."""
    GONE = auto()
    """The engine has lost what came before it."""


class FlightEvent(Enum):
    """What happens to a message."""

    ACK = auto()
    SILENCE = auto()
    TOO_EARLY = auto()
    REFUSAL = auto()
    OURS = auto()
    ANOTHERS = auto()
    ABSENT = auto()
    BACKWARDS = auto()
    AGAIN = auto()


TRANSITIONS = {
    (Fate.SENT, FlightEvent.ACK): Fate.STORED,
    (Fate.SENT, FlightEvent.SILENCE): Fate.SENT,
    (Fate.SENT, FlightEvent.TOO_EARLY): Fate.EARLY,
    (Fate.SENT, FlightEvent.REFUSAL): Fate.DOUBTED,
    (Fate.EARLY, FlightEvent.ACK): Fate.STORED,
    (Fate.EARLY, FlightEvent.REFUSAL): Fate.DOUBTED,
    (Fate.EARLY, FlightEvent.AGAIN): Fate.SENT,
    (Fate.DOUBTED, FlightEvent.ACK): Fate.STORED,
    (Fate.DOUBTED, FlightEvent.OURS): Fate.STORED,
    (Fate.DOUBTED, FlightEvent.ANOTHERS): Fate.FOREIGN,
    (Fate.DOUBTED, FlightEvent.ABSENT): Fate.SENT,
    (Fate.DOUBTED, FlightEvent.BACKWARDS): Fate.GONE,
}
"""What is not here changes nothing: an answer to a copy that was sent before."""


class Send(msgspec.Struct, frozen=True):
    """Publish a message with this as the expected last sequence. Tell what came of it: `acked`, `refused`, or
    `unanswered` after a while, longer with each attempt."""

    after: int
    data: bytes
    attempt: int


class Look(msgspec.Struct, frozen=True):
    """Read what is at this sequence, and the stream's last one, and tell: `looked`, or `unseen` if nobody answers."""

    sequence: int


class Committed(msgspec.Struct, frozen=True):
    """A record is stored for good: apply it, then answer whoever waits for it."""

    record: Record
    position: Position


class Stopped(msgspec.Struct, frozen=True):
    """Nothing more is committed: step down. What became of each record that was not, by number."""

    why: str
    lost: tuple[int, ...]
    """These are stored nowhere and never will be."""
    unknown: tuple[int, ...]
    """These may be found in the stream."""
    is_fault: bool = False
    """Whether the engine has lost records."""


Command = Send | Look | Committed | Stopped


class Flight(msgspec.Struct):
    """A message on its way."""

    after: int
    data: bytes
    record: Record
    digest: bytes
    is_last: bool
    fate: Fate = Fate.SENT
    attempts: int = 1
    looks: int = 0


class Pipeline:
    """The records that one leader sends in one epoch."""

    def __init__(
        self,
        start: Position,
        end: int,
        epoch: int,
        *,
        part_bytes_max: int,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = 64 << 20,
    ) -> None:
        """Begin behind a position in a stream that ends at `end`."""
        self.committed = start
        """The last record that is committed."""
        self.stopped: Stopped | None = None
        self._epoch = epoch
        self._end = end
        self._number = start.number
        self._digest = start.digest
        self._part_bytes_max = part_bytes_max
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._bytes = 0
        self._flights: deque[Flight] = deque()

    @property
    def has_room(self) -> bool:
        """Whether the next record may be added; what does not fit gathers for one record."""
        return len(self._flights) < self._in_flight_max and self._bytes < self._in_flight_bytes_max

    @property
    def in_flight(self) -> int:
        """Messages that are not committed."""
        return len(self._flights)

    def add(self, entries: Sequence[Entry], time_us: int) -> tuple[Record, list[Command]]:
        """The next record, and its messages to send. Raises `TooLarge`, which changes nothing."""
        if self.stopped is not None or not self.has_room:
            raise RuntimeError("a record was added to a pipeline that is stopped or full")
        record = Record(self._number + 1, self._epoch, time_us, self._digest, tuple(entries))
        encoded = encode(record, self._part_bytes_max)
        flights = [
            Flight(self._end + place, data, record, encoded.digest, place + 1 == len(encoded.parts))
            for place, data in enumerate(encoded.parts)
        ]
        self._number, self._digest = record.number, encoded.digest
        self._end += len(flights)
        self._bytes += sum(map(len, encoded.parts))
        self._flights += flights
        return record, [Send(flight.after, flight.data, flight.attempts) for flight in flights]

    # What happened

    def acked(self, after: int, sequence: int) -> list[Command]:
        """The engine has stored a message, there."""
        flight = self._find(after)
        if flight is None:
            return []
        if sequence != after + 1:
            return self._stop(f"the engine stored at {sequence} what was to be stored at {after + 1}", is_fault=True)
        return self._happen(flight, FlightEvent.ACK)

    def unanswered(self, after: int) -> list[Command]:
        """No answer came, or one that says nothing about what became of it: it is sent again."""
        flight = self._find(after)
        if flight is None or flight.fate is not Fate.SENT:
            return []
        return [*self._happen(flight, FlightEvent.SILENCE), self._again(flight)]

    def refused(self, after: int, last: int | None) -> list[Command]:
        """The engine's last sequence is not the expected one, but this, as far as it said."""
        flight = self._find(after)
        if flight is None:
            return []
        is_early = flight is not self._head and last is not None and last < after
        return self._happen(flight, FlightEvent.TOO_EARLY if is_early else FlightEvent.REFUSAL)

    def looked(self, sequence: int, data: bytes | None, last: int) -> list[Command]:
        """What is at a sequence, and where the stream ends."""
        flight = self._head
        if flight is None or sequence != flight.after + 1 or flight.fate is not Fate.DOUBTED:
            return []
        if data is not None:
            return self._happen(flight, FlightEvent.OURS if data == flight.data else FlightEvent.ANOTHERS)
        if last == flight.after:
            return self._happen(flight, FlightEvent.ABSENT)
        flight.looks += 1
        if flight.looks < LOOKS_MAX:
            return [Look(sequence)]
        return self._happen(flight, FlightEvent.BACKWARDS)

    def unseen(self, sequence: int) -> list[Command]:
        """Nobody answered what is at a sequence."""
        flight = self._head
        is_asked = flight is not None and sequence == flight.after + 1 and flight.fate is Fate.DOUBTED
        return [Look(sequence)] if is_asked else []

    def stop(self, why: str) -> list[Command]:
        """Commit nothing more, whatever is still answered."""
        return self._stop(why)

    # What follows

    @property
    def _head(self) -> Flight | None:
        return self._flights[0] if self._flights else None

    def _find(self, after: int) -> Flight | None:
        """The message that is in flight with this expected sequence, unless it is stored or all is over."""
        if self.stopped is not None or not self._flights:
            return None
        place = after - self._flights[0].after
        return self._flights[place] if 0 <= place < len(self._flights) else None

    def _happen(self, flight: Flight, event: FlightEvent) -> list[Command]:
        before = flight.fate
        flight.fate = TRANSITIONS.get((before, event), before)
        if flight.fate is before:
            return []
        if flight is not self._head:
            return []
        match flight.fate:
            case Fate.STORED:
                return self._advance()
            case Fate.DOUBTED:
                return [Look(flight.after + 1)]
            case Fate.SENT:
                return [self._again(flight), *self._send_early()]
            case Fate.FOREIGN:
                return self._stop(f"another node's message is at {flight.after + 1} of the engine's stream", lost=True)
            case Fate.GONE:
                return self._stop(
                    f"the engine has lost what it had stored up to {flight.after} of its stream", is_fault=True
                )
        return []

    def _advance(self) -> list[Command]:
        """Take leave of the stored ones at the head, and see to the next."""
        commands: list[Command] = []
        while self._flights and self._flights[0].fate is Fate.STORED:
            flight = self._flights.popleft()
            self._bytes -= len(flight.data)
            if flight.is_last:
                record = flight.record
                self.committed = Position(flight.after + 1, record.number, record.epoch, flight.digest, record.time_us)
                commands.append(Committed(record, self.committed))
        head = self._head
        if head is not None and head.fate is Fate.DOUBTED:
            commands.append(Look(head.after + 1))
        elif head is not None and head.fate is Fate.EARLY:
            commands += self._send_early()
        return commands

    def _send_early(self) -> list[Command]:
        """Send again what was refused only as something before it was missing."""
        commands: list[Command] = []
        for flight in self._flights:
            if flight.fate is Fate.EARLY:
                flight.fate = TRANSITIONS[flight.fate, FlightEvent.AGAIN]
                commands.append(self._again(flight))
        return commands

    def _again(self, flight: Flight) -> Send:
        flight.attempts += 1
        return Send(flight.after, flight.data, flight.attempts)

    def _stop(self, why: str, *, lost: bool = False, is_fault: bool = False) -> list[Command]:
        if self.stopped is not None:
            return []
        numbers = tuple(dict.fromkeys(flight.record.number for flight in self._flights))
        self.stopped = Stopped(why, numbers if lost else (), () if lost else numbers, is_fault)
        self._flights.clear()
        self._bytes = 0
        return [self.stopped]
