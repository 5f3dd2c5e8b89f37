"""Consumers: who takes from a durable subscription, and what becomes of what they have when they leave.

Promises: what a consumer leaves behind goes to the others and no attempt is counted; one that vanished without a word
counts a delivery of what it may have been at.
"""

from __future__ import annotations

from headwater.delivery.bookkeeping import Books
from headwater.delivery.lane import Moment, Ticket
from headwater.delivery.timeouts import Timeouts
from headwater.message import ConsumerInfo


class Consumers:
    """Those of one subscription."""

    __slots__ = ("_books", "_machine", "_timeouts", "retired")

    def __init__(self, books: Books, timeouts: Timeouts) -> None:
        self._books = books
        self._machine = books.machine
        self._timeouts = timeouts
        self.retired: object = None
        """One that nobody holds any more, and whose messages may yet be acked."""

    @property
    def count(self) -> int:
        """How many there are; one that nobody holds any more counts as long as it has something in flight."""
        return len(self._machine.consumers) - (self.retired is not None and not self._machine.in_flight)

    def attach(self, consumer: object) -> None:
        """One more; with strict order it may have to stand by."""
        with self._books.lock:
            self._machine.attach(consumer)
            self._timeouts.arm()

    def detach(self, consumer: object, *, vanished: bool = False) -> None:
        """One leaves, or vanished without a word."""
        books = self._books
        with books.lock:
            if self.retired is consumer:
                self.retired = None
            if vanished:
                books.store(self._machine.vanish(consumer, Moment(*books.clock.read())))
                books.commit.kick()
            else:
                self._machine.detach(consumer)
            books.hand_outs.renew()
        books.waiters.wake()

    def retire(self, consumer: object) -> bool:
        """Nobody holds one any more: it keeps what it has in flight until another one comes. False if it has nothing,
        or another one is there."""
        with self._books.lock:
            if self._machine.consumers != [consumer] or not self._machine.in_flight:
                return False
            self.retired = consumer
            return True

    def give_back(self, consumer: object) -> None:
        """Recall all that one has in flight; it stays, and no attempt is counted."""
        with self._books.lock:
            if consumer in self._machine.consumers:
                self._machine.detach(consumer)
                self._machine.attach(consumer)
                self._books.hand_outs.renew()
                self._timeouts.arm()

    def told(self, limit: int) -> tuple[tuple[ConsumerInfo, ...], tuple[ConsumerInfo, ...]]:
        """So many of them, as users see them: those that messages go to, and those that stand by."""
        with self._books.lock:
            consumers = self._machine.consumers if self.count else []
            first = 1 if self._machine.options.order == "strict" else limit
            told = tuple(one.info if isinstance(one, Ticket) else ConsumerInfo() for one in consumers[:limit])
            return told[:first], told[first:]
