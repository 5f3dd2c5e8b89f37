"""The only door to time: what it is now, and how to wait.

Wall time (`now_us`) stamps messages and is what users schedule by. It may jump. Everything that measures how long
something took or may take (`monotonic_us`) uses the other clock, which never does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, Protocol

from headwater import threads

SECOND_US = 1_000_000

StepState = Literal["noticed", "counts", "taken back"]
"""What is known of a step of the machine's clock."""


def processor_us() -> int:
    """How long this process has computed so far, all of its threads together."""
    return time.process_time_ns() // 1000


class Clock(Protocol):
    """Tells time and waits."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC; may jump when somebody sets the machine's clock."""

    def monotonic_us(self) -> int:
        """Microseconds since some moment; never jumps."""

    def read(self) -> tuple[int, int]:
        """Both at once: wall and monotonic."""

    def wait(self, condition: threads.Condition, timeout_us: int | None) -> bool:
        """Wait on a condition that the caller holds; False if the time passed."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1000

    def read(self) -> tuple[int, int]:
        return time.time_ns() // 1000, time.monotonic_ns() // 1000

    def wait(self, condition: threads.Condition, timeout_us: int | None) -> bool:
        return condition.wait(None if timeout_us is None else max(0, timeout_us) / SECOND_US)


class ManualClock:
    """A clock that moves when it is told to: for your own tests of retries, timeouts and retention."""

    REAL_WAIT_S_MAX = 10.0
    """So that a test whose clock nobody moves fails instead of hanging."""

    def __init__(self, now_us: int = 1_700_000_000 * SECOND_US) -> None:
        self._now_us = now_us
        self._monotonic_us = 0
        self._waiting: list[threads.Condition] = []
        self._lock = threads.Lock()
        self._seen = threads.local()

    def now_us(self) -> int:
        return self.read()[0]

    def monotonic_us(self) -> int:
        return self.read()[1]

    def read(self) -> tuple[int, int]:
        with self._lock:
            self._seen.monotonic_us = self._monotonic_us
            return self._now_us, self._monotonic_us

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._move(seconds, seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._move(seconds, 0)

    def _move(self, wall_s: float, passed_s: float) -> None:
        with self._lock:
            self._now_us += round(wall_s * SECOND_US)
            self._monotonic_us += round(passed_s * SECOND_US)
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()

    def wait(self, condition: threads.Condition, timeout_us: int | None) -> bool:
        if timeout_us is not None and timeout_us <= 0:
            return False
        with self._lock:
            # Whoever computed a timeout from an older time must look again, or it would sleep through the move.
            if getattr(self._seen, "monotonic_us", self._monotonic_us) != self._monotonic_us:
                return True
            self._waiting.append(condition)
        try:
            return condition.wait(self.REAL_WAIT_S_MAX)
        finally:
            with self._lock:
                self._waiting.remove(condition)


class SteadyClock:
    """Wall time that does not jump: a step of the machine's clock counts once it has lasted.

    A clock that is set wrong for a moment must not expire messages, delete segments or release delayed messages by
    the thousand. Steps up to `STEP_SMALL_US` are ordinary corrections and count at once; larger ones after
    `STEP_SETTLE_US`. Until then time goes on as if there had been none: what is due, expired or too old is so by that
    time, and messages are stamped with it. `on_step` hears of each larger step when it is noticed, and of what becomes
    of it: it counts, or it was taken back.
    """

    STEP_SMALL_US = 60 * SECOND_US
    STEP_SETTLE_US = 900 * SECOND_US

    def __init__(self, clock: Clock, on_step: Callable[[int, StepState], None] | None = None) -> None:
        self._clock = clock
        self.monotonic_us = clock.monotonic_us
        """As of the clock that it follows, and so is `wait`: that one never jumps."""
        self.wait = clock.wait
        self.on_step = on_step or (lambda *_: None)
        wall_us, monotonic_us = clock.read()
        self._offset_us = wall_us - monotonic_us
        self._stepped_us: int | None = None
        """Since when, on the monotonic clock, the wall has been elsewhere;"""
        self._step_us = 0
        """and by how much, when that was noticed."""

    def now_us(self) -> int:
        return self.read()[0]

    def read(self) -> tuple[int, int]:
        wall_us, monotonic_us = self._clock.read()
        step_us = wall_us - monotonic_us - self._offset_us
        if -self.STEP_SMALL_US <= step_us <= self.STEP_SMALL_US:
            self._offset_us += step_us
            if self._stepped_us is not None:
                self._stepped_us = None
                self.on_step(self._step_us, "taken back")
        elif self._stepped_us is None:
            self._stepped_us, self._step_us = monotonic_us, step_us
            self.on_step(step_us, "noticed")
        elif monotonic_us - self._stepped_us >= self.STEP_SETTLE_US:
            self._offset_us += step_us
            self._stepped_us = None
            self.on_step(step_us, "counts")
        return monotonic_us + self._offset_us, monotonic_us


def to_datetime(time_us: int) -> datetime:
    """A moment as users see it: timezone-aware, UTC."""
    return datetime.fromtimestamp(time_us / SECOND_US, UTC)


def from_datetime(moment: datetime) -> int:
    """Microseconds since 1970; a datetime without a zone is taken as local time, as Python does."""
    return round(moment.timestamp() * SECOND_US)
