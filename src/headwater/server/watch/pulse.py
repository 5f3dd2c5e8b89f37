"""The pulse of the event loop: how late it is with what it is to do, measured by a timer that does nothing else."""

from __future__ import annotations

import asyncio
from collections import deque

from headwater.clock import SECOND_US
from headwater.counts import Durations

EVERY_S = 0.25
LATELY = 40
"""Beats that are remembered: ten seconds."""


class Pulse:
    """Beats while the server runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lags = Durations()
        self._lately: deque[float] = deque(maxlen=LATELY)
        self._due_s = loop.time() + EVERY_S
        self._timer = loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        now_s = self._loop.time()
        late_s = max(0.0, now_s - self._due_s)
        self.lags.add(round(late_s * SECOND_US))
        self._lately.append(late_s)
        self._due_s = now_s + EVERY_S
        self._timer = self._loop.call_at(self._due_s, self._beat)

    @property
    def worst_s(self) -> float:
        """The longest that the loop was held up in the last ten seconds; from any thread."""
        return max((*self._lately, self._loop.time() - self._due_s))

    def stop(self) -> None:
        """Beat no more."""
        self._timer.cancel()
