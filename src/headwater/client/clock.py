"""The server's time, as a client knows it: the machine's own clock, corrected by what the server says at each hello."""

from __future__ import annotations

from headwater import threads
from headwater.clock import Clock


class ServedClock:
    """A clock that shows the server's time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_us = 0
        """By how much the server's clock is ahead of ours."""

    def correct(self, server_us: int) -> None:
        """The server says what time it is; one that does not say so is taken to have ours."""
        self._ahead_us = server_us - self._clock.now_us() if server_us else 0

    def now_us(self) -> int:
        return self._clock.now_us() + self._ahead_us

    def monotonic_us(self) -> int:
        return self._clock.monotonic_us()

    def read(self) -> tuple[int, int]:
        wall_us, monotonic_us = self._clock.read()
        return wall_us + self._ahead_us, monotonic_us

    def wait(self, condition: threads.Condition, timeout_us: int | None) -> bool:
        return self._clock.wait(condition, timeout_us)
