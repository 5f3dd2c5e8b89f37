"""Attention: after something has come, the loop looks again for a moment before it sleeps, as long as that pays.

To wake a core that sleeps takes longer than the broker's work on a message. Where clients answer each other at once,
the next message is there before the core would have slept; where they do not, looking was in vain a few times, and the
loop sleeps at once from then on. Promises: no longer than `attention_us` after the last message; whoever else could use
the core gets it first.
"""

from __future__ import annotations

import asyncio
import os

from headwater.clock import Clock

TRIES = 4
"""So often looking may be in vain before it is given up."""


class Attention:
    """Keeps a loop awake."""

    __slots__ = ("_clock", "_has_come", "_is_awake", "_last_us", "_loop", "_stay_us", "_tries", "_until_us")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, stay_us: int) -> None:
        self._loop = loop
        self._clock = clock
        self._stay_us = stay_us
        self._tries = 0
        self._is_awake = False
        self._has_come = False
        self._last_us = 0
        self._until_us = 0

    def on_read(self) -> None:
        """Something has come."""
        self._has_come = True
        if not self._is_awake and self._stay_us:
            self._on_woken()

    def _on_woken(self) -> None:
        """The loop slept: was it worth it?"""
        now_us = self._clock.monotonic_us()
        if now_us - self._last_us < 2 * self._stay_us:
            self._tries = TRIES
        self._last_us = now_us
        if self._tries:
            self._is_awake, self._has_come, self._until_us = True, False, now_us + self._stay_us
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        now_us = self._clock.monotonic_us()
        if self._has_come:
            self._has_come = False
            self._tries = TRIES
            self._last_us, self._until_us = now_us, now_us + self._stay_us
        if now_us < self._until_us:
            os.sched_yield()
            self._loop.call_soon(self._look)
        else:
            self._is_awake = False
            self._tries -= 1
