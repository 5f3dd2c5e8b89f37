"""Attention: after something has come, the loop looks again for a moment before it sleeps, as long as that pays.

To wake a core that sleeps takes longer than the broker's work on a message. Where a few clients answer each other at
once, the next message is there before the core would have slept. Promises: no longer than `attention_us` after the last
message; not where looking was in vain a few times, where many clients keep the loop busy anyway, or where somebody else
can use the core: then the loop sleeps at once, and only after a while looks again.
"""

from __future__ import annotations

import asyncio
import os

from headwater.clock import Clock

TRIES = 4
"""So often looking may be in vain before it is given up."""
CLIENTS_MAX = 4
"""With more of them there is no need to wait for the next message,"""
CROWD_REST_US = 50_000
"""for so long."""
YIELD_US_MAX = 15
"""A core that comes back later than this was of use to somebody else,"""
YIELD_REST_US = 1000
"""and is left to them for so long."""


class Attention:
    """Keeps a loop awake."""

    __slots__ = (
        "_clients",
        "_clock",
        "_has_come",
        "_is_awake",
        "_last_us",
        "_loop",
        "_rest_until_us",
        "_stay_us",
        "_tries",
        "_until_us",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, stay_us: int) -> None:
        self._loop = loop
        self._clock = clock
        self._stay_us = stay_us
        self._tries = 0
        self._is_awake = False
        self._has_come = False
        self._clients: set[object] = set()
        """Those of whom something came since the loop is awake."""
        self._last_us = 0
        self._until_us = 0
        self._rest_until_us = 0

    def on_read(self, client: object) -> None:
        """Something has come."""
        if self._is_awake:
            self._has_come = True
            self._clients.add(client)
            return
        if not self._stay_us:
            return
        now_us = self._clock.monotonic_us()  # the loop slept: was it worth it?
        if now_us < self._rest_until_us:
            return
        if now_us - self._last_us < 2 * self._stay_us:
            self._tries = TRIES
        self._last_us = now_us
        if self._tries:
            self._clients.add(client)
            self._is_awake, self._has_come, self._until_us = True, False, now_us + self._stay_us
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        now_us = self._clock.monotonic_us()
        if self._has_come:
            self._has_come = False
            self._tries = TRIES
            self._last_us, self._until_us = now_us, now_us + self._stay_us
        if len(self._clients) > CLIENTS_MAX:
            self._rest(now_us + CROWD_REST_US)
        elif now_us < self._until_us:
            os.sched_yield()
            back_us = self._clock.monotonic_us()
            if back_us - now_us > YIELD_US_MAX:
                self._rest(back_us + YIELD_REST_US)
            else:
                self._loop.call_soon(self._look)
        else:
            self._tries -= 1
            self._sleep()

    def _rest(self, until_us: int) -> None:
        """There is no need to look, or others need the core more."""
        self._tries, self._rest_until_us = 0, until_us
        self._sleep()

    def _sleep(self) -> None:
        self._is_awake = False
        self._clients.clear()
