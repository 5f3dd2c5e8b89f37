"""The sequencer: what a leader changes, as records in one order, from any thread.

Whoever changes something sends a record and waits until it is committed. What is committed is carried out in the order
of the records, each wholly before the next, by whichever waiting thread gets to it: so a folder never has anything of a
record that is not committed, nor of one whose predecessor it lacks.
Promises: while the engine does not answer, `send` refuses with `Unavailable` (503) what was not sent; who waits for
what was sent hears of its fate, and of nothing else; after a stop nothing is committed, and everybody is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from headwater import threads
from headwater.clock import Clock
from headwater.cluster.engine import Acked, Engine, Refused, Seen, Told
from headwater.cluster.pipeline import Command, Committed, Look, Pipeline, Send, Stopped
from headwater.cluster.record import Entry, Position
from headwater.errors import SteppedDown, Unavailable

WAKE_S_MAX = 1.0
"""After this a waiting thread looks for itself."""
SILENT = "the engine does not answer"
LEASE, ENGINE = "lease", "engine"
"""Who has a reason to take nothing more for now."""

Hook = Callable[[Position], None]
"""What a record changes here: done once it is committed, with where it is."""


def _nothing(_: Position) -> None:
    """Nothing is to be done once it is committed."""


class PendingRecord:
    """A record on its way."""

    __slots__ = ("carry_out", "error", "is_committed", "is_over", "number", "position")

    def __init__(self, number: int, carry_out: Hook) -> None:
        self.number = number
        self.carry_out = carry_out
        self.position = Position()
        """Where it is, once it is committed."""
        self.is_committed = False
        self.is_over = False
        """Whether it was carried out, or will never be."""
        self.error: SteppedDown | None = None


class Sequencer:
    """The records of one leader."""

    def __init__(
        self,
        engine: Engine,
        start: Position,
        end: int,
        epoch: int,
        clock: Clock,
        apply: Callable[[Committed], None] | None = None,
    ) -> None:
        """Begin behind a position in a stream that ends at `end`. `apply` hears of each committed record, in order,
        once it is carried out, in whatever thread; it returns at once."""
        self.epoch = epoch
        self.position = start
        """The last record that was carried out."""
        self.is_whole = True
        """Whether all of `position` is carried out, and nothing of a later record."""
        self.stopped: Stopped | None = None
        self.on_stopped: Callable[[Stopped], None] = lambda _: None
        """Hears, once, that nothing more is committed; in whatever thread, and returns at once."""
        self.on_suspended: Callable[[str], None] = lambda _: None
        """Hears that nothing more is taken for now, and why; in the same way."""
        self.on_resumed: Callable[[], None] = lambda: None
        """Hears that everything is taken again; in the same way."""
        self.order = threads.RLock()
        """Held by whoever sends, while what it sends must not change places with what others do."""
        self.between = threads.RLock()
        """Held while something is carried out: whoever holds it finds here what is of `position`, wholly."""
        self._engine = engine
        self._clock = clock
        self._apply = apply
        self._pipeline = Pipeline(start, end, epoch, part_bytes_max=engine.part_bytes_max)
        self.records = self.record_bytes = self.record_bytes_last = 0
        """How many were sent, how long they were together, and the last one."""
        self._lock = threads.Lock()
        self._changed = threads.Condition(self._lock)
        self._tickets: deque[PendingRecord] = deque()
        """Not committed yet, in order."""
        self._committed: deque[tuple[PendingRecord, Committed]] = deque()
        """Not carried out yet, in order."""
        self._reasons: dict[str, str] = {}
        """Why nothing is taken, by who says so."""
        self._hooks: deque[Callable[[], None]] = deque()
        """To be called once the lock is let go."""

    # Sending

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is taken, for now or for good."""
        return bool(self._reasons) or self.stopped is not None

    @property
    def why(self) -> str | None:
        """Why nothing is taken, if it is not."""
        if self.stopped is not None:
            return f"this node leads no more ({self.stopped.why})"
        return next(iter(self._reasons.copy().values()), None)

    @property
    def in_flight(self) -> int:
        """Messages that are not committed."""
        return self._pipeline.in_flight

    def refusal(self) -> Unavailable | None:
        """What to tell whoever asks for something new; None if it is taken."""
        why = self.why
        if why is None:
            return None
        if self.stopped is not None:
            return SteppedDown(f"{why}, and nothing was stored; ask again: another node does, or will soon")
        return Unavailable(f"nothing can be stored at the moment, as {why}; try again soon")

    def check(self) -> None:
        """Unavailable (503) if nothing is taken."""
        if self._reasons or self.stopped is not None:
            error = self.refusal()
            if error is not None:
                raise error

    def commit(self, entries: Sequence[Entry], carry_out: Hook = _nothing) -> Position:
        """Send a record, and wait until it is committed and carried out; where it is."""
        ticket = self.send(entries, carry_out)
        self.wait(ticket)
        return ticket.position

    def send(self, entries: Sequence[Entry], carry_out: Hook = _nothing) -> PendingRecord:
        """Send a record; `carry_out` is what it changes here, once it is committed. TooLarge (413) if it is too large
        for the engine, and Unavailable (503) if nothing is taken: then nothing was sent."""
        self.check()
        with self.order, self._lock:
            self.check()
            while not self._pipeline.has_room:
                self._changed.wait(WAKE_S_MAX)
                self.check()
            record, commands = self._pipeline.add(entries, self._clock.now_us())
            ticket = PendingRecord(record.number, carry_out)
            self._tickets.append(ticket)
            self.record_bytes_last = sum([len(command.data) for command in commands if isinstance(command, Send)])
            self.records, self.record_bytes = self.records + 1, self.record_bytes + self.record_bytes_last
            self._do(commands)
            return ticket

    def wait(self, ticket: PendingRecord) -> None:
        """Return once a record is committed and carried out; SteppedDown (503) if that will never be, or is not
        known."""
        with self._lock:
            while not (ticket.is_committed or ticket.is_over):
                self._changed.wait(WAKE_S_MAX)
        if not ticket.is_over:
            self.carry_out()
        if ticket.error is not None:
            raise ticket.error

    def forget_apply(self) -> None:
        """Tell of committed records no more."""
        self._apply = None

    def settle(self) -> None:
        """Return once all that was sent is carried out; raises as `wait` does."""
        with self._lock:
            last = self._tickets[-1] if self._tickets else None
        if last is not None:
            self.wait(last)
        else:
            self.carry_out()

    def carry_out(self) -> None:
        """Do here what is committed and was not done, in order."""
        with self.between:
            while self._committed:
                ticket, committed = self._committed[0]
                try:
                    ticket.carry_out(committed.position)
                except BaseException as error:
                    self._fail(ticket, error)
                    if not isinstance(error, Exception):
                        raise
                    return
                self.position = committed.position
                self._committed.popleft()
                ticket.is_over = True
                if self._apply is not None:
                    self._apply(committed)

    def _fail(self, ticket: PendingRecord, error: BaseException) -> None:
        """What is committed could not be done here: this folder stays behind, until a new start applies it again."""
        self.is_whole = False
        why = f"record {ticket.number} is stored by the cluster and could not be written here: {error}"
        self.stop(why)
        while self._committed:
            other, _ = self._committed.popleft()
            other.error, other.is_over = SteppedDown(f"this node leads no more ({why})"), True

    # Suspending and stopping

    def suspend(self, why: str, who: str = LEASE) -> None:
        """Take nothing more, for now; what is under way goes on. There may be several reasons, by who gives them."""
        with self._lock:
            self._suspend(why, who)
        self._call_hooks()

    def resume(self, who: str = LEASE) -> None:
        """One reason is no more."""
        with self._lock:
            self._resume(who)
        self._call_hooks()

    def stop(self, why: str) -> None:
        """Commit nothing more, whatever is still answered."""
        with self._lock:
            self._do(self._pipeline.stop(why))
        self._call_hooks()

    def _suspend(self, why: str, who: str) -> None:
        is_new = not self._reasons
        self._reasons[who] = why
        if is_new and self.stopped is None:
            self._hooks.append(lambda: self.on_suspended(why))
            self._changed.notify_all()

    def _resume(self, who: str) -> None:
        if self._reasons.pop(who, None) is not None and not self._reasons and self.stopped is None:
            self._hooks.append(self.on_resumed)

    def _stop(self, stopped: Stopped) -> None:
        self.stopped = stopped
        lost = set(stopped.lost)
        for ticket in self._tickets:
            fate = "it was not stored" if ticket.number in lost else "it may be stored or not"
            ticket.error, ticket.is_over = SteppedDown(f"this node leads no more ({stopped.why}): {fate}"), True
        self._tickets.clear()
        self._hooks.append(lambda: self.on_stopped(stopped))
        self._changed.notify_all()

    def _call_hooks(self) -> None:
        while self._hooks:
            try:
                hook = self._hooks.popleft()
            except IndexError:  # another thread was faster
                return
            hook()

    # What the engine says, in its thread

    def _told(self, after: int, told: Told) -> None:
        if self._reasons and isinstance(told, Acked | Refused):
            self.resume(ENGINE)  # before anybody is answered, who might send the next at once
        with self._lock:
            match told:
                case Acked(sequence):
                    self._do(self._pipeline.acked(after, sequence))
                case Refused(last):
                    self._do(self._pipeline.refused(after, last))
                case _:
                    self._suspend(f"{SILENT} ({told.why})" if told.why else SILENT, ENGINE)
                    self._do(self._pipeline.unanswered(after))
        self._call_hooks()

    def _saw(self, sequence: int, seen: Seen | None) -> None:
        with self._lock:
            if seen is None:
                self._suspend(SILENT, ENGINE)
                self._do(self._pipeline.unseen(sequence))
            else:
                self._resume(ENGINE)
                self._do(self._pipeline.looked(sequence, seen.data, seen.last))
        self._call_hooks()

    def _do(self, commands: Sequence[Command]) -> None:
        """What the pipeline commands, in its order; for whoever holds the lock."""
        for command in commands:
            match command:
                case Send(after, data, attempt):
                    self._engine.publish(after, data, attempt, partial(self._told, after))
                case Look(sequence):
                    self._engine.look(sequence, partial(self._saw, sequence))
                case Committed(_, position):
                    ticket = self._tickets.popleft()
                    ticket.position, ticket.is_committed = position, True
                    self._committed.append((ticket, command))
                    self._changed.notify_all()
                case Stopped():
                    self._stop(command)
