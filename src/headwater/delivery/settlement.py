"""Settlement: what consumers say of messages that they were given: acked, nacked, rejected, or that they need longer.

Promises: what is said counts for messages that are still in flight under the lease that they came with; acks of one
call are one commit; a nack whose message cannot be read changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from operator import attrgetter

import msgspec

from headwater.clock import SECOND_US
from headwater.config import Config
from headwater.counts import Counts
from headwater.delivery.bookkeeping import Books
from headwater.delivery.lane import Changes, Lease, Moment
from headwater.delivery.rows import RowsItem
from headwater.delivery.supply import Supply
from headwater.delivery.timeouts import Timeouts
from headwater.errors import Malformed
from headwater.message import Message, Receipt
from headwater.payload import Payload
from headwater.store.state import Rows
from headwater.verdicts import error_text

_origin, _offset = attrgetter("origin"), attrgetter("offset")
HandOut = tuple[Lease, list[int]]
"""A lease, and offsets of messages of it."""


class Settlement:
    """That of one subscription."""

    __slots__ = ("_books", "_config", "_counts", "_machine", "_supply", "_timeouts", "finish", "reply")

    def __init__(
        self,
        books: Books,
        supply: Supply,
        timeouts: Timeouts,
        counts: Counts,
        config: Config,
        reply: Callable[[Message, Payload], Receipt],
    ) -> None:
        self._books = books
        self._machine = books.machine
        self._supply = supply
        self._timeouts = timeouts
        self._counts = counts
        self._config = config
        self.finish = books.finish
        """Has what was noted written, and waits until it is on disk."""
        self.reply = reply
        """Answers a message that is a request."""

    # Acks

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        """Ack these: one commit for all of them."""
        item = self.ack_leases(self._by_lease(messages))
        if item is None and wait:
            self._books.commit.flush()  # acked before, without waiting: it is on disk when this returns all the same
        self.finish(item, wait)

    def note_ack(self, messages: Sequence[Message]) -> RowsItem | None:
        """Ack these; what `finish` has to be called with for it to be on disk."""
        return self.ack_leases(self._by_lease(messages))

    def ack_soon(self, messages: Sequence[Message]) -> Future[object]:
        """Ack these: the future completes when that is on disk."""
        future: Future[object] = Future()
        self.ack_leases(self._by_lease(messages), future)
        return future

    def ack_leases(
        self, groups: Sequence[HandOut], future: Future[object] | None = None, beside: Rows | None = None
    ) -> RowsItem | None:
        """Ack these messages of leases; with them the rows beside it, all or none. What `finish` has to be called with,
        unless there is a future: that completes when it is on disk."""
        books, machine, waiters = self._books, self._machine, self._books.waiters
        commit, ledger = books.commit, machine.ledger
        changed: Rows = dict(beside) if beside else {}
        with books.lock:
            if books.is_ended:
                books.check_open()
            commit.check()
            # Whoever is served over a connection has all that there was room for, and looks again when there is more.
            was_full = waiters.callbacks and any(machine.room(lease.consumer) <= 0 for lease, _ in groups)
            if len(groups) > 1:
                for lease, offsets in groups:
                    machine.check_held(lease, offsets)
            for lease, offsets in groups:
                changed.update(books.rows_of(machine.ack(lease, offsets)))
                if books.hand_outs.noted:
                    books.hand_outs.on_ack(lease)
                self._counts.acks += len(offsets)
            item = commit.enqueue(changed, future) if changed or future is not None else None
            more = ledger.retrying or ledger.held or len(machine.consumers) > 1 or waiters.waiting or was_full
        if more:
            waiters.wake()
        if future is not None:
            commit.kick()
        return item

    def _by_lease(self, messages: Sequence[Message]) -> list[HandOut]:
        if not messages:
            return []
        if len(set(map(_origin, messages))) == 1:
            return [(self._mine(messages[0].origin), list(map(_offset, messages)))]
        grouped: dict[int, HandOut] = {}
        for message in messages:
            lease = self._mine(message.origin)
            grouped.setdefault(id(message.origin), (lease, []))[1].append(message.offset)
        return list(grouped.values())

    def _mine(self, origin: object) -> Lease:
        if isinstance(origin, Held) and origin.settlement is self:
            return origin.lease
        raise Malformed(f'this message did not come from subscription "{self._books.id}"; ack it where it came from')

    def spare(self, root: str, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """Messages are done here, as their client has them from another subscription: wherever they are, also those
        that were not delivered yet. The lease and the offset of those that were."""
        books = self._books
        with books.lock:
            books.check_open(writes=True)
            self._supply.open()
            stream = self._supply.stream(root)
            if stream is None:
                return []
            was_full = self._machine.in_flight >= self._machine.options.max_in_flight
            changes, handed = self._machine.spare(stream, offsets)
            self._supply.lag.recount(stream)
            if changes:
                books.commit.enqueue(books.rows_of(changes))
        books.commit.kick()
        if was_full:
            books.waiters.wake()
        return handed

    # What failed, or needs longer

    def note_nack(
        self,
        lease: Lease,
        offset: int,
        error: str | BaseException,
        delay_s: float | None,
        message: Message | None = None,
        future: Future[object] | None = None,
    ) -> RowsItem | None:
        """Nack a message of a lease; `message` is read from the log if the caller does not have it."""
        text = error_text(error)
        if delay_s is not None and not (_is_number(delay_s) and 0 <= delay_s <= self._config.delay_s_max):
            raise Malformed(f"delay_s is {delay_s!r}; use 0 to {self._config.delay_s_max} seconds (delay_s_max)")
        return self._fail(
            lambda now: self._machine.nack(lease, offset, text, delay_s, now), lease, offset, message, future
        )

    def note_reject(
        self,
        lease: Lease,
        offset: int,
        error: str | BaseException,
        message: Message | None = None,
        future: Future[object] | None = None,
    ) -> RowsItem | None:
        """Reject a message of a lease: it is dead."""
        text = error_text(error)
        return self._fail(lambda now: self._machine.reject(lease, offset, text, now), lease, offset, message, future)

    def _fail(
        self,
        apply: Callable[[Moment], Changes],
        lease: Lease,
        offset: int,
        message: Message | None,
        future: Future[object] | None,
    ) -> RowsItem | None:
        books = self._books
        with books.lock:
            books.check_open(writes=True)
            now = Moment(*books.clock.read())
            if message is None:  # read before anything changes: a read that fails must change nothing
                message = self._supply.fetch(lease.lane, [offset], now).get(offset)
            known = {(lease.lane, offset): message} if message is not None else {}
            self._machine.dead_room = books.dead.room(known)
            item = books.store(apply(now), known, future)
            books.hand_outs.renew()
            self._counts.nacks += 1
            self._timeouts.arm()
        books.waiters.wake()
        return item

    def extend(self, lease: Lease, offset: int, seconds: float) -> None:
        """Extend the ack timeout of a message of a lease."""
        if not (_is_number(seconds) and 0 < seconds <= self._config.delay_s_max):
            raise Malformed(f"extend by {seconds!r} seconds is out of range; use up to {self._config.delay_s_max}")
        with self._books.lock:
            self._books.check_open()
            self._timeouts.extend(lease, offset, self._books.clock.monotonic_us() + round(seconds * SECOND_US))

    def put_back(self, lease: Lease, offsets: Sequence[int]) -> None:
        """Redeliver messages of a lease; no attempt is counted."""
        with self._books.lock:
            self._books.check_open()
            self._machine.put_back(lease, offsets)
        self._books.waiters.wake()


class Held(msgspec.Struct, eq=False):
    """Origin of the messages of one lease: carries out `message.ack()`, `nack()`, `reject()`, `extend()`, `reply()`."""

    settlement: Settlement
    lease: Lease

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        self.settlement.ack(messages, wait)

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        settlement = self.settlement
        settlement.finish(settlement.note_nack(self.lease, message.offset, error, delay_s, message))

    def reject(self, message: Message, error: str | BaseException) -> None:
        settlement = self.settlement
        settlement.finish(settlement.note_reject(self.lease, message.offset, error, message))

    def extend(self, message: Message, seconds: float) -> None:
        self.settlement.extend(self.lease, message.offset, seconds)

    def reply(self, message: Message, payload: Payload) -> Receipt:
        return self.settlement.reply(message, payload)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
