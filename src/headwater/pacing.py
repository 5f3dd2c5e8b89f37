"""Pacing: a thread with long work yields the GIL, so that the event loop runs in between.

A thread that computes releases the GIL only every five milliseconds (Python's switch interval), and each message on
its way would wait for that several times over.
"""

from __future__ import annotations

import sys

from headwater import threads
from headwater.clock import SystemClock

WORK_US = 1000
"""How long work goes on;"""
PAUSE_US = 500
"""and how long it pauses then."""
SWITCH_S = 0.0005
"""The switch interval of a server's process (5 ms is Python's own): how long a thread that computes may keep the GIL
while another wants it. A PING beside a reader that is far behind waits less."""


def hand_over_sooner() -> None:
    """Have threads that compute (readers, listings, password checks) release the GIL to the event loop sooner."""
    sys.setswitchinterval(SWITCH_S)


class Pacing:
    """One piece of long work."""

    __slots__ = ("_clock", "_pause", "_until_us")

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._pause = threads.Condition()
        self._until_us = self._clock.monotonic_us() + WORK_US

    def take(self) -> int:
        """Pause, if it is time to, and answer for how long, in microseconds; called again and again."""
        begun_us = self._clock.monotonic_us()
        if begun_us < self._until_us:
            return 0
        with self._pause:
            self._clock.wait(self._pause, PAUSE_US)
        now_us = self._clock.monotonic_us()
        self._until_us = now_us + WORK_US
        return now_us - begun_us
