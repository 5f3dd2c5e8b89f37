"""Waiters: those who want to know when there may be something new to take, and how they are woken.

They are what listens for a durable subscription: it reads for itself, and need not be told what has come. Promises: a
consumer that waits is woken by what it waits for and by nothing else; to wake them costs next to nothing when nobody
waits. Any thread may call any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from headwater import threads
from headwater.clock import Clock
from headwater.delivery.selection import Selection


class Waiters:
    """Those of one subscription: threads that wait, and callbacks of those who do not."""

    __slots__ = ("_clock", "_signal", "callbacks", "version", "waiting")

    wants_places: ClassVar[bool] = False
    takes_early: ClassVar[bool] = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._signal = threads.Condition()
        self.waiting = 0
        """Threads that wait."""
        self.version = 0
        """Rises whenever there may be something new to take."""
        self.callbacks: dict[Any, Callable[[], None]] = {}
        """By consumer, what to call then."""

    def wake(self, _: Selection | None = None) -> None:
        """Let consumers look again: something that matches is durable, or may go now."""
        self.version += 1
        if self.waiting:
            with self._signal:
                self._signal.notify_all()
        if self.callbacks:
            callbacks = tuple(self.callbacks.values())
            first = self.version % len(callbacks)  # each of several is first in its turn, or the first would take all
            for wake in callbacks[first:] + callbacks[:first]:
                wake()

    deliver = wake

    def wait(self, seen: int, timeout_us: int | None) -> bool:
        """Wait until something has changed since the version `seen`; False when the time has passed."""
        with self._signal:
            self.waiting += 1
            try:
                return self.version != seen or self._clock.wait(self._signal, timeout_us)
            finally:
                self.waiting -= 1

    def set(self, consumer: object, wake: Callable[[], None] | None) -> None:
        """Call this, from any thread, when there may be something to take."""
        if wake is None:
            self.callbacks.pop(consumer, None)
        else:
            self.callbacks[consumer] = wake
