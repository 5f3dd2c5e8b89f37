"""The bookkeeping of a durable subscription: its state machine, the lock around it, and the rows that outlive it.

Promises: rows of one subscription are stored in the order in which its state changed, as they are enqueued under the
lock; what cannot be stored is refused before anything changes in memory.
"""

from __future__ import annotations

from concurrent.futures import Future

from headwater import threads
from headwater.clock import Clock
from headwater.delivery import rows as stored
from headwater.delivery.dead_rows import DeadRows, Messages
from headwater.delivery.hand_outs import HandOuts
from headwater.delivery.lane import Changes
from headwater.delivery.rows import RowCommit, RowsItem
from headwater.delivery.subscription import Subscription
from headwater.delivery.waiters import Waiters
from headwater.errors import Closed
from headwater.store.state import Rows


class Books:
    """Those of one subscription; all that serve it stand on them."""

    __slots__ = ("clock", "commit", "dead", "hand_outs", "id", "is_ended", "lock", "machine", "number", "waiters")

    def __init__(
        self,
        number: int,
        machine: Subscription,
        commit: RowCommit,
        clock: Clock,
        hand_outs: HandOuts,
        dead: DeadRows,
    ) -> None:
        self.id = machine.options.id
        self.number = number
        self.machine = machine
        self.commit = commit
        self.clock = clock
        self.hand_outs = hand_outs
        self.dead = dead
        self.waiters = Waiters(clock)
        self.lock = threads.RLock()
        """Held while the state changes, until its rows have their place."""
        self.is_ended = False
        """Whether the subscription is gone, or the bus closes."""

    def check_open(self, writes: bool = False) -> None:
        """Closed (410) once nobody is served any more; with `writes`, Unwritable (503) while nothing can be stored."""
        if self.is_ended:
            raise Closed(f'subscription "{self.id}" is closed; subscribe again to go on')
        if writes:
            self.commit.check()

    def store(
        self, changes: Changes, known: Messages | None = None, future: Future[object] | None = None
    ) -> RowsItem | None:
        """Enqueue what changed; under the lock.

        `known` are the messages that may have died by it, read before it: a read that fails must change nothing.
        """
        if not changes:
            return None
        dead = self.dead.rows_of(changes, known or {}, self.clock.now_us())
        changed = self.rows_of(changes)
        changed.update(dead)
        item = self.commit.enqueue(changed, future)
        if dead:
            self.dead.wake()
        return item

    def rows_of(self, changes: Changes) -> Rows:
        """What changed, without dead letters."""
        if changes.copies_done:
            self.dead.done(len(changes.copies_done))
        return stored.rows_of(self.number, changes)

    def finish(self, item: RowsItem | None, wait: bool = True) -> None:
        """Have rows that were enqueued written, and wait until they are on disk; not under the lock."""
        if item is None:
            return
        if wait:
            self.commit.drive(item)
        else:
            self.commit.kick()
