"""Breath: pauses in the long work of a thread, so that the event loop gets the interpreter in between.

A thread that computes gives the interpreter away every five milliseconds at most, and each message on its way would
wait for that several times over.
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
"""How long a thread of a server computes, at most, while another wants the interpreter (5 ms if nobody says): a PING
beside a reader far behind waits less for it."""


def hand_over_sooner() -> None:
    """Have threads that compute (readers, listings, proofs) give the interpreter to the loop sooner."""
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
