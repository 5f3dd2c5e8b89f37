"""Replication: what makes a core that of a leader. All that it stores goes by records of one sequencer.

Promises: while the engine does not answer, or this node may not lead, whatever is new is refused at once with
`Unavailable` (503), and goes on by itself afterwards; rows that nobody waits for are sent within `FLUSH_S`; what a
crash costs stays bounded, as checkpoints are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headwater import threads
from headwater.cluster import checkpoint, snapshot
from headwater.cluster.checkpoint import Checkpoints
from headwater.cluster.digests import Digesting, Digests, first_read
from headwater.cluster.pipeline import Stopped
from headwater.cluster.record import Archived, Entry, Position
from headwater.cluster.replicated_log import ReplicatedLog
from headwater.cluster.replicated_state import ReplicatedState
from headwater.cluster.sequencer import Hook, PendingRecord, Sequencer
from headwater.cluster.snapshot import Snapshot
from headwater.errors import HeadwaterError, Unavailable
from headwater.server.log import Log
from headwater.store.batch import Seed
from headwater.store.files import Files
from headwater.store.state import State

if TYPE_CHECKING:
    from headwater.config import Config

FLUSH_S = 0.05
"""How long rows that nobody waits for wait for company."""
CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_RECORDS = 20_000
CHECKPOINT_S = 10.0
"""After so much, so many records, or so long, a checkpoint is made."""

log = Log("headwater.cluster.replication")


class Replication:
    """What the log and the state of a leader's core stand on."""

    def __init__(self, sequencer: Sequencer, *, flush_s: float = FLUSH_S, checkpoint_s: float = CHECKPOINT_S) -> None:
        self.sequencer = sequencer
        self.between = sequencer.between
        self._flush_s = flush_s
        self._checkpoint_s = checkpoint_s
        self._state: ReplicatedState | None = None
        self._log: ReplicatedLog | None = None
        self._checkpoints: Checkpoints | None = None
        self._since = sequencer.position.number
        """The record of the last checkpoint, or of the last try."""
        self._since_bytes = 0
        """What was appended since."""
        self._work = threads.Condition()
        self._is_pending = False
        """Whether rows wait that nobody has sent."""
        self._is_closed = False
        self._thread: threads.Thread | None = None
        self._digesting: Digesting | None = None
        self.is_late: Callable[[], bool] = lambda: False
        """Whether the lease is over, though nobody has said so yet: a process may stand still for a while."""

    # What a core is put together of

    def state(self, state: State) -> State:
        """Its state, over the one that is stored in its folder."""
        synced = checkpoint.read(state, "the folder")
        self._checkpoints = Checkpoints(state, self.between, lambda: self.sequencer.position, synced)
        self._state = ReplicatedState(state, self.sequencer, self._note_pending)
        return self._state

    def streams(self, files: Files, folder: str, seed: Seed, config: Config) -> ReplicatedLog:
        """Its streams."""
        self._place = (files, folder)
        self._log = ReplicatedLog(files, folder, seed, config, self)
        return self._log

    @property
    def is_held(self) -> bool:
        """Whether nothing may be handed out, nor shown, at the moment."""
        return self.sequencer.is_suspended or self.is_late()

    def attach(
        self, refuse: Callable[[HeadwaterError], None], accept: Callable[[], None], on_failed: Callable[[], None]
    ) -> None:
        """Have a core that is put together hear when nothing is taken, and when everything is again."""

        def refuse_all(_: object) -> None:
            error = self.sequencer.refusal()
            if error is not None:
                refuse(error)
                on_failed()

        def stopped(what: Stopped) -> None:
            refuse_all(what)
            before(what)

        before = self.sequencer.on_stopped
        self.sequencer.on_suspended = refuse_all
        self.sequencer.on_resumed = accept
        self.sequencer.on_stopped = stopped
        if self.sequencer.is_suspended:
            refuse_all(None)
        self._thread = threads.Thread(target=self._run, name="headwater-replication", daemon=True)
        self._thread.start()

    def refusal(self) -> Unavailable | None:
        """What is told to whoever asks for something, while nothing is taken."""
        return self.sequencer.refusal()

    # What they ask for

    def send(self, entries: Sequence[Entry], carry_out: Hook) -> PendingRecord:
        """Send a record, behind all rows that wait."""
        assert self._state is not None
        return self._state.send(entries, carry_out, {})

    def commit(self, entries: Sequence[Entry], carry_out: Hook) -> None:
        """The same, and wait until it is carried out."""
        self.wait(self.send(entries, carry_out))

    def mark_archived(self, lake: str, archived: dict[str, int], leave: Callable[[], None]) -> None:
        """Have word left, on all nodes, of how far a lake has each root."""
        self.commit([Archived(lake, archived)], lambda _: leave())

    def wait(self, ticket: PendingRecord) -> None:
        """Return once a record is carried out."""
        self.sequencer.wait(ticket)

    def stop(self, why: str) -> None:
        """This node can lead no more."""
        self.sequencer.stop(why)

    # Checkpoints

    @property
    def synced(self) -> Position:
        """The last record that this node has on disk."""
        assert self._checkpoints is not None
        return self._checkpoints.synced

    def checkpoint(self) -> None:
        """Bring to disk what is carried out; by any thread, while more is."""
        assert self._checkpoints is not None
        assert self._log is not None
        self._since, self._since_bytes = self.sequencer.position.number, 0
        self._checkpoints.make(self._log)

    def digests(self, *, anew: bool = False) -> Digests:
        """Digests of all sealed segments, and of the rows, as a follower tells them (`Replica.digests`)."""
        assert self._log is not None
        assert self._state is not None
        with self.between:
            position, sealed = self.sequencer.position, self._log.sealed()
            found = first_read(self._state.stored.scan(b""))
        if self._digesting is None:
            self._digesting = Digesting(self._place[0])
        return self._digesting.of(position, sealed, found, anew=anew)

    def snapshot(self, target: str) -> Snapshot:
        """A copy of the folder, in a new one on the same disk, of links to files that others may fetch; by any
        thread."""
        assert self._checkpoints is not None
        assert self._log is not None
        assert self._state is not None
        return snapshot.take(*self._place, target, self._log, self._state.stored, self._checkpoints)

    def note_appended(self, count_bytes: int) -> None:
        """So much was written to segments."""
        self._since_bytes += count_bytes
        if self._since_bytes >= CHECKPOINT_BYTES > self._since_bytes - count_bytes:
            with self._work:
                self._work.notify()

    # By itself

    def _note_pending(self) -> None:
        if not self._is_pending:
            with self._work:
                self._is_pending = True
                self._work.notify()

    def _run(self) -> None:
        """Send rows that nobody waits for, and make checkpoints."""
        idle_s = 0.0
        while True:
            with self._work:
                if not self._is_pending and not self._is_closed:
                    self._work.wait(self._checkpoint_s)
                if self._is_closed:
                    return
                if self._is_pending:
                    self._work.wait(self._flush_s)
            is_flushed, self._is_pending = self._is_pending, False
            idle_s += self._flush_s if is_flushed else self._checkpoint_s
            try:
                if is_flushed:
                    self._flush()
                grown = self.sequencer.position.number - self._since
                is_much = grown >= CHECKPOINT_RECORDS or self._since_bytes >= CHECKPOINT_BYTES
                if is_much or (grown and idle_s >= self._checkpoint_s):
                    idle_s = 0.0
                    self.checkpoint()
            except Unavailable:
                continue  # what waits goes with the next record, or is nobody's any more
            except HeadwaterError as error:
                self.sequencer.stop(f"its folder cannot be brought to disk: {error}")

    def _flush(self) -> None:
        assert self._state is not None
        ticket = self._state.flush()
        if ticket is not None:
            self.wait(ticket)

    # Ending

    def close(self) -> None:
        """Send what waits and make a checkpoint, as far as that can be; nothing goes by records any more."""
        self.drop()
        assert self._state is not None
        if self.sequencer.stopped is None:
            try:
                self._state.sync()
            except Unavailable:
                return  # it begins where it was at its last checkpoint
            self.checkpoint()

    def keep(self) -> None:
        """Bring to disk what is carried out, as far as that can be, though this node leads no more: nothing of it is
        to be applied again, and it is here should the engine have lost it."""
        if self._log is None or not self.sequencer.is_whole:
            return
        try:
            self.checkpoint()
        except HeadwaterError as error:
            log.warning("not-kept", reason=error.args[0])

    def drop(self) -> None:
        """End what it does by itself."""
        with self._work:
            self._is_closed = True
            self._work.notify()
        if self._thread is not None and self._thread is not threads.current_thread():
            self._thread.join()
