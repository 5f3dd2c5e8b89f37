"""A consumer of a durable subscription: what `bus.subscribe(filter, id=…)` gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from headwater import verdicts
from headwater.clock import SECOND_US, Clock
from headwater.delivery.bookkeeping import Books
from headwater.delivery.lane import Ticket
from headwater.delivery.options import Options
from headwater.delivery.reader import Reader, check_take
from headwater.delivery.rows import RowsItem
from headwater.delivery.start import Start
from headwater.delivery.subscriber import Subscriber
from headwater.errors import Closed
from headwater.forgotten import let_go
from headwater.message import Message


class Noted:
    """Acks that are noted, and not on disk yet: those of several subscriptions become one commit."""

    __slots__ = ("_books", "_item")

    def __init__(self, books: Books, item: RowsItem | None) -> None:
        self._books = books
        self._item = item

    def wait(self) -> None:
        """Return when they are on disk."""
        self._books.finish(self._item)

    def hurry(self) -> None:
        """Have them written soon."""
        self._books.finish(self._item, wait=False)


class Consumer(Reader):
    """Takes messages of one durable subscription, and acks them.

    One that nobody holds any more is closed, with a ResourceWarning. What it handed out may still be acked, as long as
    no other consumer has come.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        clock: Clock,
        ticket: Ticket,
        seek: Callable[[Subscriber, Start], None],
        pause: Callable[[Subscriber, bool], None],
        on_close: Callable[[Subscriber, Ticket], None],
        on_forgotten: Callable[[Subscriber, Ticket], None],
    ) -> None:
        self.subscriber = subscriber
        self.id = subscriber.options.id
        self.filter = subscriber.options.filter
        self.ticket = ticket
        """Identifies this consumer to the subscriber."""
        self._clock = clock
        self._seek = seek
        self._pause = pause
        self._on_close = on_close
        self._on_forgotten = on_forgotten
        self._process = os.getpid()
        self._closed = False

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""
        check_take(max, timeout_s)
        subscriber = self.subscriber
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            seen = subscriber.waiters.version
            self._check_open()
            found = subscriber.take(self.ticket, max)
            if found:
                self._last = found
                return found
            left_us = None if until_us is None else until_us - self._clock.monotonic_us()
            if left_us is not None and left_us <= 0:
                return []
            if not subscriber.waiters.wait(seen, left_us) and left_us is not None:
                until_us = 0  # one last look

    def ack(self, messages: Sequence[Message], wait: bool = True) -> None:
        """Done with these: one commit for all of them."""
        self.subscriber.settlement.ack(messages, wait)
        verdicts.note(messages, "ack")

    def ack_later(self, messages: Sequence[Message]) -> Noted:
        """The same in two steps: they are not handed out again, and on disk once somebody waits for it."""
        return Noted(self.subscriber.books, self.subscriber.settlement.note_ack(messages))

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call this, from any thread, when there may be something to take."""
        self.subscriber.waiters.set(self.ticket, wake)

    @property
    def options(self) -> Options:
        """Those of its subscription."""
        return self.subscriber.options

    def seek(self, to: Start) -> None:
        """Go on from "earliest", "latest", an offset or a moment; what is in flight is recalled."""
        self._seek(self.subscriber, to)

    def pause(self) -> None:
        """Deliver nothing, to any consumer of this subscription, until `resume`; survives a restart."""
        self._pause(self.subscriber, True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._pause(self.subscriber, False)

    def close(self) -> None:
        """Detach; what this consumer has in flight goes to the others, and the subscription stays."""
        if not self._closed:
            self._closed = True
            self._on_close(self.subscriber, self.ticket)

    def __del__(self) -> None:
        if not self._closed and not self.subscriber.books.is_ended and self._process == os.getpid():
            let_go(self, f'a consumer of "{self.id}"', partial(self._on_forgotten, self.subscriber, self.ticket))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f'this consumer of "{self.id}" is closed; subscribe again to go on')
