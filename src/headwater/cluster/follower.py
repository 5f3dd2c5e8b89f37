"""What a reader of the engine's stream believes: which messages count, and when the stream is not what it was.

A leader's messages are fenced by the sequence that each expects to come after. Of several in flight, a later one of
an old leader can be let in behind the record of a new one, as its expected sequence happens to fit. So a message
counts only if it **continues the chain**: the next number, the digest of the record before, and the same epoch, or a
larger one that its first entry begins. All others are void, for every reader alike, and nobody was told that they are
stored.
Promises: two readers that have read up to the same sequence have the same position, or one has raised `Diverged`.
"""

from __future__ import annotations

from headwater.cluster.record import BadRecord, Epoch, Position, Record, RecordPart, join, open_part
from headwater.errors import Damaged

IN_FLIGHT_MAX = 64
"""Messages that a leader has under way. So many numbers may be void behind one that was refused; more are a hole."""


class Diverged(Damaged):
    """The engine's stream is not the one that this node has applied: it lost records, or has others."""


class Beyond(Diverged):
    """The engine's stream ends before what this node has read: the engine lost records, or a server answered that is
    behind. It is asked again, and as long as it is so, this node neither leads nor lets others."""


class Missing(Exception):
    """The engine has trimmed what comes next: it takes a snapshot to go on."""


class Following:
    """A reader of the stream, from a position on."""

    def __init__(self, position: Position, written: Position | None = None, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        """`written` is the last record that was applied before: more than `position`, after a crash."""
        self._written = written or Position()
        self.position = position
        """The last record that counts."""
        self.end = position.sequence
        """The last sequence that was read, which may be void."""
        self._in_flight_max = in_flight_max
        self._parts: list[RecordPart] = []

    def check(self, first: int, last: int, data: bytes | None) -> None:
        """Compare with the stream as the engine has it now: its first and last sequence, and what it has at this
        position's, if that is kept. To be asked before reading on, after each connection to the engine."""
        ours = self.position
        end = max(self.end, self._written.sequence)
        if last < end:
            raise Beyond(
                f"the engine's stream ends at {last}, and this node has read up to {end}: the engine has lost "
                f"records. This node holds everything up to record {ours.number}; see: headwater cluster rebuild"
            )
        if first > self.end + 1:
            raise Missing(f"the engine's stream begins at {first}, and this node needs {self.end + 1}")
        if data is not None:
            try:
                digest = open_part(data).digest
            except BadRecord as error:
                raise Diverged(f"what the engine has at {ours.sequence} is no record: {error}") from error
            if digest != ours.digest:
                raise Diverged(
                    f"the engine has another record at {ours.sequence} than record {ours.number}, which this node has "
                    "applied: it lost records and took others; see: headwater cluster rebuild"
                )

    def read(self, sequence: int, data: bytes) -> Record | None:
        """The next message of the stream: the record that is whole with it; None if there is none, or it is void."""
        if sequence <= self.end:
            return None  # delivered again
        if sequence != self.end + 1:
            raise Missing(f"the engine went on with {sequence}, and this node needs {self.end + 1}")
        try:
            part = open_part(data)
        except BadRecord as error:
            raise Diverged(f"message {sequence} of the engine's stream is no record: {error}") from error
        self.end = sequence
        if self._parts and part.continues(self._parts[-1]):
            self._parts.append(part)
        elif part.part == 0 and self._is_next(part):
            self._parts = [part]
        else:
            self._pass_over(sequence, part)
            return None
        return self._joined(sequence) if part.part + 1 == part.parts else None

    def _is_next(self, part: RecordPart) -> bool:
        ours = self.position
        return part.number == ours.number + 1 and part.previous == ours.digest and part.epoch >= ours.epoch

    def _pass_over(self, sequence: int, part: RecordPart) -> None:
        """A void message: of an old leader, or behind one of this leader's that was refused."""
        ours = self.position
        self._parts = []
        if part.epoch > ours.epoch:
            raise Diverged(
                f"message {sequence} of the engine's stream is of epoch {part.epoch} and does not continue record "
                f"{ours.number} of epoch {ours.epoch}, which this node has applied"
            )
        if part.epoch == ours.epoch and part.number > ours.number + self._in_flight_max:
            raise Diverged(
                f"message {sequence} of the engine's stream is record {part.number}, and what came after record "
                f"{ours.number} is not there"
            )

    def _joined(self, sequence: int) -> Record:
        ours, head = self.position, self._parts[0]
        try:
            record = join(self._parts)
        except BadRecord as error:
            raise Diverged(f"message {sequence} of the engine's stream ends a damaged record: {error}") from error
        self._parts = []
        begins = record.entries[0] if record.entries and isinstance(record.entries[0], Epoch) else None
        if (begins.epoch if begins else ours.epoch) != record.epoch or (begins and record.epoch == ours.epoch):
            raise Diverged(f"record {record.number} is of epoch {record.epoch}, which it does not begin")
        if record.number == self._written.number and head.digest != self._written.digest:
            raise Diverged(
                f"the engine has another record {record.number} at {sequence} than this node had applied: it lost "
                "records and took others; see: headwater cluster rebuild"
            )
        self.position = Position(sequence, record.number, record.epoch, head.digest, record.time_us)
        return record
