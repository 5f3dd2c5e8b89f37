"""The sampler: figures of the broker, asked for once a second for all who look, and not at all if nobody does."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from headwater.admin.client import Admin
from headwater.clock import SECOND_US
from headwater.errors import HeadwaterError
from headwater.wire.administration import Figures, Health, Histogram

INTERVAL_S = 1.0
HISTORY_MAX = 600
"""Samples that are kept: ten minutes."""
LINGER_S = 3.0
"""How long it goes on after somebody looked."""
HEALTH_EVERY = 5
"""Samples between two looks at the broker's health."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What happened within one interval."""

    time_us: int
    in_s: float
    """Messages published a second."""
    out_s: float
    """Messages handed out a second."""
    bytes_in_s: float
    bytes_out_s: float
    commit_p50_s: float | None
    """None if nothing was committed."""
    commit_p99_s: float | None
    connections: float
    lag: float


class Sampler:
    """Asks for figures while somebody looks."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._looked_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self.history: deque[Sample] = deque(maxlen=HISTORY_MAX)
        self.figures: Figures | None = None
        self.health: Health | None = None
        self.trouble = ""
        """Why there are no figures, if there are none."""

    def look(self) -> None:
        """Somebody looks: have figures for the next seconds."""
        loop = asyncio.get_running_loop()
        self._looked_s = loop.time()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        while loop.time() - self._looked_s < LINGER_S:
            try:
                await self._sample(number)
                self.trouble = ""
            except HeadwaterError as error:
                self.trouble = str(error.args[0])
            number += 1
            await asyncio.sleep(INTERVAL_S)
        self.figures = None  # a rate over the time when nobody looked would mislead

    async def _sample(self, number: int) -> None:
        if number % HEALTH_EVERY == 0:
            self.health = await self._admin.health()
        figures: Figures = await self._admin.metrics()
        before, self.figures = self.figures, figures
        if before is not None and figures.started_us == before.started_us and figures.time_us > before.time_us:
            self.history.append(sample(before, figures))


def sample(before: Figures, now: Figures) -> Sample:
    """What happened between two looks."""
    passed_s = (now.time_us - before.time_us) / SECOND_US

    def rate(name: str) -> float:
        return max(0, now.counters.get(name, 0) - before.counters.get(name, 0)) / passed_s

    commits = now.histograms.get("commit")
    earlier = before.histograms.get("commit")
    return Sample(
        time_us=now.time_us,
        in_s=rate("messages_in"),
        out_s=rate("messages_out"),
        bytes_in_s=rate("bytes_in"),
        bytes_out_s=rate("bytes_out"),
        commit_p50_s=quantile(earlier, commits, 0.5),
        commit_p99_s=quantile(earlier, commits, 0.99),
        connections=now.gauges.get("connections", 0),
        lag=now.gauges.get("lag", 0),
    )


def quantile(before: Histogram | None, now: Histogram | None, share: float) -> float | None:
    """The time within which this share of what happened since was done; None if nothing happened."""
    if before is None or now is None or before.bounds_s != now.bounds_s:
        return None
    counts = [late - early for late, early in zip(now.counts, before.counts, strict=True)]
    wanted = share * sum(counts)
    if wanted <= 0:
        return None
    low_s = 0.0
    for bound_s, found in zip(now.bounds_s, counts, strict=False):
        if found >= wanted:
            return low_s + (bound_s - low_s) * wanted / found
        wanted -= found
        low_s = bound_s
    return low_s
