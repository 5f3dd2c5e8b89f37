"""A budget of bytes: whoever would go over it waits until others are done, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headwater import threads


class Budget:
    """Bytes that may be under way at once; from any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threads.Lock()
        self._used = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_ended = False

    def take(self, weight: int, go: Callable[[], None] | None = None) -> bool:
        """Take a share; False if it is not there yet, and `go` is called, from any thread, once it was taken.

        What is larger than the whole budget goes alone. Once the budget has ended all go, and look for themselves.
        """
        with self._lock:
            if not self._is_ended and (self._waiting or not self._fits(weight)):
                if go is not None:
                    self._waiting.append((weight, go))
                return False
            self._used += weight
            return True

    def _fits(self, weight: int) -> bool:
        return self._used == 0 or self._used + weight <= self._bytes_max

    def give_back(self, weight: int) -> None:
        """A share is free again."""
        going: list[Callable[[], None]] = []
        with self._lock:
            self._used -= weight
            while self._waiting and self._fits(self._waiting[0][0]):
                taken, go = self._waiting.popleft()
                self._used += taken
                going.append(go)
        for go in going:
            go()

    def end(self) -> None:
        """Nobody needs to wait any more."""
        with self._lock:
            self._is_ended = True
            going = [go for _, go in self._waiting]
            self._used += sum(weight for weight, _ in self._waiting)
            self._waiting.clear()
        for go in going:
            go()
