"""The keeper of a node's part in the lease: a thread that looks who leads, takes the lease when nobody does, and renews
it while this node has it.

What follows from what happens is in `lease`; here are the questions to the engine, whose answers may be lost.
Promises: `Lease.until_us` is never later than the engine's own end of the lease; hooks are called in the keeper's
thread, one at a time, and return at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.cluster.engine import Engine, Row
from headwater.cluster.leader import Leader, pack, unpack
from headwater.cluster.lease import Command, Lease, LeaseEvent, LeaseState
from headwater.errors import HeadwaterError, Unavailable
from headwater.server.log import Log

RENEWALS = 3
"""So often is the lease renewed while it lasts;"""
LOOKS = 8
"""so often does a node that follows look who has it,"""
LOOK_S_MAX = 0.5
"""at least as often as this."""
BEHIND_WAIT_S = 1.0
"""How long a node that has records yet to apply leaves the lease to others."""
UNFIT_WAIT_S = 2.0
"""How long one that may not lead leaves it alone."""
RUN_BYTES = 4

log = Log("headwater.cluster.keeper")


class Keeper:
    """One life of a node: until it has led, or the node ends."""

    def __init__(self, engine: Engine, clock: Clock, lease_s: float, node: str) -> None:
        self.lease = Lease(round(lease_s * SECOND_US))
        self.leader: Leader | None = None
        """Who leads with open doors, as far as is known here."""
        self.on_leader: Callable[[Leader | None], None] = lambda _: None
        """Hears who leads now."""
        self.on_command: Callable[[Command], None] = lambda _: None
        """Hears what is to be done, besides to take and release the lease."""
        self.on_lost: Callable[[], None] = lambda: None
        """Hears that this node has the lease no more."""
        self.is_behind: Callable[[], bool] = lambda: False
        """Whether this node has records yet to apply, as far as it knows."""
        self.is_alone: Callable[[], bool] = lambda: False
        """Whether nobody else has written to the stream since this node did; asked before a lease that was gone is
        taken again. Raises `Unavailable` while that cannot be told."""
        self.may_stand = False
        """Whether this node takes the lease when it is free."""
        self._engine = engine
        self._clock = clock
        self._lease_s = lease_s
        self._said = Leader(node=node, run=secrets.token_hex(RUN_BYTES))
        self._unsure_us = 0
        """When the first question was asked of those whose answers are not known; 0 if there is none."""
        self._not_before_us = 0
        """Until when this node leaves a free lease alone."""
        self.free_since_us = 0
        """Since when the lease is free, or was before this node took it; 0 if that was not seen."""
        self._condition = threads.Condition()
        self._is_hurried = self._is_stopped = self._is_silent = False
        self._thread = threads.Thread(target=self._run, name="headwater-lease", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    # What the node says, from any thread

    @property
    def is_candidate(self) -> bool:
        """Whether this node has the lease, and does not lead yet."""
        return self.lease.state is LeaseState.CANDIDATE

    def say(self, leader: Leader) -> None:
        """The doors of this node are open: it leads, and everybody is to know."""
        with self._condition:
            self._said = msgspec.structs.replace(leader, run=self._said.run)
            self._do(self.lease.happen(LeaseEvent.OPENED))
        self.hurry()

    def happen(self, event: LeaseEvent) -> None:
        """Something has happened to this node's part in the lease."""
        with self._condition:
            held = self.lease.holds
            if event is LeaseEvent.UNFIT:
                self._not_before_us = self._clock.monotonic_us() + round(UNFIT_WAIT_S * SECOND_US)
            self._do(self.lease.happen(event))
        if held and not self.lease.holds:
            self.on_lost()

    def hurry(self, *, take: bool = False) -> None:
        """Look at once; with `take`, a lease that is free is this node's to take, whoever else might."""
        with self._condition:
            self._is_hurried = True
            if take:
                self._not_before_us = 0
            self._condition.notify()

    def stop(self, next_node: str = "") -> None:
        """Look no more; the lease is released if this node still has it, or handed over to another node."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()
        if self._thread is not threads.current_thread() and self._thread.is_alive():
            self._thread.join()
        if self.lease.holds and next_node:
            self._hand_over(next_node)
        elif self.lease.holds:
            self._release()

    # In its thread

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._is_hurried and not self._is_stopped:
                    self._clock.wait(self._condition, round(self._pause_s * SECOND_US))
                self._is_hurried = False
                if self._is_stopped:
                    return
            self.turn()

    def turn(self) -> None:
        """Look once."""
        held = self.lease.holds
        try:
            self._look()
        except HeadwaterError as error:
            if not self._is_silent:
                log.warning("lease-unknown", reason=error.args[0])
            self._is_silent = True
        else:
            if self._is_silent:
                log.info("lease-known", leader=self.leader.node if self.leader is not None else "-")
            self._is_silent = False
        with self._condition:
            self._do(self.lease.look(self._clock.monotonic_us()))
        if held and not self.lease.holds:
            self.on_lost()

    @property
    def _pause_s(self) -> float:
        if self.lease.holds:
            return self._lease_s / RENEWALS / (2 if self._unsure_us else 1)
        return min(LOOK_S_MAX, self._lease_s / LOOKS)

    def _look(self) -> None:
        if self.lease.holds:
            self._renew()
            return
        asked_us = self._clock.monotonic_us()
        row = self._engine.lease()
        self._see(row)
        if row is not None:
            self.free_since_us = (self.free_since_us or asked_us) if _next(row) else 0
            if self._is_ours(row):  # taken by a question whose answer was lost
                self._take_row(row, self._unsure_us or asked_us)
            elif self.may_stand and _next(row) == self._said.node:
                self._take(row.revision)
            return
        self.free_since_us = self.free_since_us or asked_us
        patience_us = round(BEHIND_WAIT_S * SECOND_US) if self.is_behind() else 0
        if self.may_stand and asked_us >= max(self._not_before_us, self.free_since_us + patience_us):
            self._take()

    def _see(self, row: Row | None) -> None:
        said = unpack(row.value) if row is not None else None
        leader = said if said is not None and said.epoch else None
        if leader != self.leader:
            self.leader = leader
            self.on_leader(leader)

    def _is_ours(self, row: Row) -> bool:
        said = unpack(row.value)
        return said is not None and said.run == self._said.run

    def _take(self, revision: int | None = None) -> None:
        """Take the lease that nobody has, or the one of this revision, which was handed over to this node."""
        asked_us = self._clock.monotonic_us()
        with self._condition:
            if Command.TAKE not in self.lease.happen(LeaseEvent.FREE):
                return
        said = pack(self._said)
        try:
            revision = self._engine.take_lease(said) if revision is None else self._engine.renew_lease(said, revision)
        except Unavailable:
            self._unsure_us = self._unsure_us or asked_us
            revision = None
        with self._condition:
            self._do(self.lease.happen(LeaseEvent.MISSED) if revision is None else self._got(revision, asked_us))

    def _take_row(self, row: Row, asked_us: int) -> None:
        with self._condition:
            self.lease.happen(LeaseEvent.FREE)
            self._do(self._got(row.revision, asked_us))

    def _got(self, revision: int, asked_us: int) -> tuple[Command, ...]:
        self._unsure_us = 0
        return self.lease.got(revision, asked_us)

    def _renew(self) -> None:
        asked_us = self._clock.monotonic_us()
        said = pack(self._said)
        try:
            revision = self._engine.renew_lease(said, self.lease.revision)
            if revision is None:
                revision, asked_us = self._renew_anew(said, asked_us)
        except Unavailable:
            self._unsure_us = self._unsure_us or asked_us
            raise
        with self._condition:
            self._do(self.lease.happen(LeaseEvent.TAKEN_AWAY) if revision is None else self._got(revision, asked_us))
        if revision is not None and self._said.epoch:
            self._see(Row(said, revision))

    def _renew_anew(self, said: bytes, asked_us: int) -> tuple[int | None, int]:
        """The row is of another revision than the one that is known: an unknown answer's, another's, or it is gone."""
        row = self._engine.lease()
        if row is None:
            # Gone by its age, as the engine itself stood still: nobody has led since if nobody has written.
            return (self._engine.take_lease(said) if self.is_alone() else None), asked_us
        if not self._is_ours(row):
            self._see(row)
            return None, asked_us
        return row.revision, self._unsure_us or asked_us

    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if command is Command.RELEASE:
                self._release()
            elif command is not Command.TAKE:
                self.on_command(command)

    def _hand_over(self, node: str) -> None:
        try:
            self._engine.renew_lease(pack(Leader(node=self._said.node, next=node)), self.lease.revision)
        except Unavailable as error:
            log.info("lease-not-handed-over", reason=error.args[0])  # it ends by itself

    def _release(self) -> None:
        try:
            self._engine.release_lease(self.lease.revision)
        except Unavailable as error:
            log.info("lease-not-released", reason=error.args[0])  # it ends by itself


def _next(row: Row) -> str:
    """To which node a lease is handed over, if it is."""
    said = unpack(row.value)
    return said.next if said is not None else ""
