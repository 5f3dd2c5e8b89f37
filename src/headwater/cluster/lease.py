"""The lease: who may lead, as a table. No clock and no I/O: what happens comes in, what is to be done comes out.

    FOLLOWING ──FREE──▶ TAKING ──GOT──▶ CANDIDATE ──OPENED──▶ LEADING ◀──RENEWED── SUSPENDED
        ▲                 │MISSED           │UNFIT               │  ──────LATE──────▶   │
        └─────────────────┴─────────────────┘                    └──TAKEN_AWAY, STOPPED──▶ OVER ◀──────┘

What is stored depends on none of this: the stream refuses whoever writes behind what he has not read. The lease is for
what is done outside of the stream. Promises: nothing is handed out later than `lease_s` after the beginning of the last
renewal that is known to have reached the engine; from OVER there is no way back.
"""

from __future__ import annotations

from enum import Enum, auto


class LeaseState(Enum):
    """What a node is to the lease."""

    FOLLOWING = auto()
    TAKING = auto()
    CANDIDATE = auto()
    """It has the lease, and has yet to read to the stream's end and to write its epoch."""
    LEADING = auto()
    SUSPENDED = auto()
    """It leads as far as it knows, and does not know whether it still may."""
    OVER = auto()


class LeaseEvent(Enum):
    """What happens to it."""

    FREE = auto()
    """Nobody has the lease."""
    GOT = auto()
    MISSED = auto()
    RENEWED = auto()
    LATE = auto()
    """It was not renewed for as long as it lasts."""
    TAKEN_AWAY = auto()
    """Another has it, or had it."""
    UNFIT = auto()
    """A candidate may not lead."""
    OPENED = auto()
    """Its epoch is written."""
    STOPPED = auto()
    """Its records are refused."""


class Command(Enum):
    """What is to be done."""

    TAKE = auto()
    RELEASE = auto()
    SUSPEND = auto()
    RESUME = auto()
    END = auto()
    """Drop everything without writing, and begin anew."""


S, E, C = LeaseState, LeaseEvent, Command

TRANSITIONS: dict[tuple[LeaseState, LeaseEvent], tuple[LeaseState, tuple[Command, ...]]] = {
    (S.FOLLOWING, E.FREE): (S.TAKING, (C.TAKE,)),
    (S.TAKING, E.GOT): (S.CANDIDATE, ()),
    (S.TAKING, E.MISSED): (S.FOLLOWING, ()),
    (S.CANDIDATE, E.UNFIT): (S.FOLLOWING, (C.RELEASE,)),
    (S.CANDIDATE, E.TAKEN_AWAY): (S.FOLLOWING, ()),
    (S.CANDIDATE, E.OPENED): (S.LEADING, ()),
    (S.LEADING, E.LATE): (S.SUSPENDED, (C.SUSPEND,)),
    (S.LEADING, E.TAKEN_AWAY): (S.OVER, (C.END,)),
    (S.LEADING, E.STOPPED): (S.OVER, (C.END,)),
    (S.SUSPENDED, E.RENEWED): (S.LEADING, (C.RESUME,)),
    (S.SUSPENDED, E.TAKEN_AWAY): (S.OVER, (C.END,)),
    (S.SUSPENDED, E.STOPPED): (S.OVER, (C.END,)),
}
"""What is not here changes nothing."""

HOLDS = frozenset((S.CANDIDATE, S.LEADING, S.SUSPENDED))
"""Where the lease is renewed."""


class Lease:
    """One node's part in it; for one thread at a time."""

    def __init__(self, lease_us: int) -> None:
        self.state = LeaseState.FOLLOWING
        self.revision = 0
        """Of the lease, while this node has it."""
        self._lease_us = lease_us
        self._renewed_us = 0

    @property
    def holds(self) -> bool:
        """Whether it has the lease, as far as it knows."""
        return self.state in HOLDS

    @property
    def until_us(self) -> int:
        """Up to when it lasts, as far as is known here; on the clock that never jumps."""
        return self._renewed_us + self._lease_us

    @property
    def is_over(self) -> bool:
        """Whether nothing happens any more."""
        return self.state is LeaseState.OVER

    def happen(self, event: LeaseEvent) -> tuple[Command, ...]:
        """What is to be done now that this happened."""
        self.state, commands = TRANSITIONS.get((self.state, event), (self.state, ()))
        return commands

    def got(self, revision: int, asked_us: int) -> tuple[Command, ...]:
        """The lease was taken or renewed, by a question that was asked then."""
        self.revision, self._renewed_us = revision, asked_us
        return self.happen(LeaseEvent.GOT if self.state is LeaseState.TAKING else LeaseEvent.RENEWED)

    def look(self, now_us: int) -> tuple[Command, ...]:
        """See whether it was renewed in time."""
        is_late = self.state is LeaseState.LEADING and now_us >= self.until_us
        return self.happen(LeaseEvent.LATE) if is_late else ()
