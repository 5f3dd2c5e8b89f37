"""Counts jobs that are done, and times them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import count


def end_by_signal() -> None:
    """Ask this process to end, as an operator would."""
    os.kill(os.getpid(), signal.SIGTERM)


class Done:
    """How many are done, and when the first and the last were; tells whoever is to end then."""

    def __init__(self, jobs: int, at_end: Callable[[], object] = end_by_signal) -> None:
        self._jobs = jobs
        self._at_end = at_end
        self._first_s = self._last_s = 0.0
        self._numbers = count(1)
        """Each is given once, whichever threads ask."""

    def one(self) -> None:
        """One more is; what a job does."""
        number = next(self._numbers)
        if number == 1:
            self._first_s = time.perf_counter()
        elif number == self._jobs:
            self._last_s = time.perf_counter()
            self._at_end()

    def acked(self) -> None:
        """All are acked, for those who ack some time after: now they are done."""
        self._last_s = self._last_s and time.perf_counter()

    def figures(self) -> dict[str, float]:
        """How many are done in a second."""
        if not self._last_s:
            raise SystemExit(f"it ended after {next(self._numbers) - 1} of {self._jobs} jobs")
        return {"rate": (self._jobs - 1) / (self._last_s - self._first_s)}
