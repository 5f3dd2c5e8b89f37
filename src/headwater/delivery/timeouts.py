"""Timeouts: when an ack is late, and when a retry is due, of one subscription.

Promises: the one timer of a subscription stands at the next of both; what is timed out counts as failed, and its
message was read before that, as a read that fails must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.clock import SECOND_US
from headwater.delivery.bookkeeping import Books
from headwater.delivery.dead_rows import Messages
from headwater.delivery.deadlines import Deadlines
from headwater.delivery.lane import Lease, Moment
from headwater.delivery.supply import Supply
from headwater.delivery.timers import Timers

OnRetry = Callable[[str, str, str, Sequence[int], str], None]
"""Hears of messages that are tried again: what happened, to which subscription, root and offsets, and whose."""


class Timeouts:
    """Those of one subscription."""

    __slots__ = ("_books", "_is_set", "_machine", "_on_retry", "_options", "_supply", "_timers", "deadlines")

    def __init__(self, books: Books, supply: Supply, deadlines: Deadlines, timers: Timers, on_retry: OnRetry) -> None:
        self._books = books
        self._machine = books.machine
        self._options = books.machine.options
        self._supply = supply
        self._timers = timers
        self._on_retry = on_retry
        self._is_set = False
        """Whether the timer is."""
        self.deadlines = deadlines
        """Of what was handed out; whoever hands out says so there."""

    def begin(self, lease: Lease, offsets: Sequence[int]) -> None:
        """A remote application took these of a lease: the ack timeout of all that it took of it counts from now."""
        with self._books.lock:
            if self._options.ack_timeout_s and self._machine.is_open(lease):
                if lease.begun is not None:
                    lease.begun.update(offsets)
                lease.deadline_us = self._books.clock.monotonic_us() + round(self._options.ack_timeout_s * SECOND_US)
                self.deadlines.add(lease)
                self.arm()

    def extend(self, lease: Lease, offset: int, deadline_us: int) -> None:
        """A message has until then; under the lock."""
        self.deadlines.add(self._machine.extend(lease, offset, deadline_us))
        self.arm()

    def arm(self, but_not: int | None = None) -> None:
        """Set the timer to the next retry or ack timeout; under the lock."""
        machine, due_us = self._machine, None
        if machine.ledger.retrying:
            due_us = machine.next_due_us()
            if due_us == but_not:
                due_us = None
        if self.deadlines.kept:
            times_out_us = self.deadlines.next_us()
            if times_out_us is not None and (due_us is None or times_out_us < due_us):
                due_us = times_out_us
        if self._is_set or due_us is not None:
            self._set(due_us)

    def _set(self, due_us: int | None) -> None:
        self._is_set = due_us is not None
        self._timers.set(self, due_us, self._ring)

    def end(self) -> None:
        """Nothing is timed any more."""
        self._set(None)

    def _ring(self) -> None:
        books = self._books
        with books.lock:
            now = Moment(*books.clock.read())
            self._is_set = False
            if books.commit.failed is not None:  # what times out meanwhile does so when that can be noted
                self._set(now.monotonic_us + SECOND_US)
                return
            while (lease := self.deadlines.over(now.monotonic_us)) is not None:
                known = self._doomed(lease, now)
                self._machine.dead_room = books.dead.room(known)
                self.deadlines.drop_next()
                late = lease.offsets if lease.begun is None else sorted(lease.begun)
                if late and self._machine.is_open(lease):
                    self._on_retry("timed-out", books.id, self._supply.name(lease.lane[0]), late, lease.who)
                books.store(self._machine.expire(lease, now), known)
            books.hand_outs.renew()
            due_us = self._machine.next_due_us()
            # A retry that is due already waits for a consumer to ask; the timer is for what comes after it.
            self.arm(but_not=due_us if due_us is not None and due_us <= now.monotonic_us else None)
        books.commit.kick()
        books.waiters.wake()

    def _doomed(self, lease: Lease, now: Moment) -> Messages:
        """Messages that a timeout would be the last attempt of, read before it is counted."""
        limit = self._options.max_attempts
        if not limit or not self._machine.is_open(lease):
            return {}
        last = [offset for offset in lease.offsets if self._machine.attempt(lease.lane, offset) >= limit]
        return {(lease.lane, offset): message for offset, message in self._supply.fetch(lease.lane, last, now).items()}
