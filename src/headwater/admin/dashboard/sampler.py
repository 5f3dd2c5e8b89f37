"""The sampler: figures of the broker, asked for once a second for all who look, and not at all if nobody does."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from headwater.admin.client import Admin
from headwater.errors import HeadwaterError
from headwater.server.watch.rates import Rates
from headwater.wire.administration import Figures, Health

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
    dead: float


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
    rates = Rates(before, now)
    return Sample(
        time_us=now.time_us,
        in_s=rates.per_s("messages_in"),
        out_s=rates.per_s("messages_out"),
        bytes_in_s=rates.per_s("bytes_in"),
        bytes_out_s=rates.per_s("bytes_out"),
        commit_p50_s=rates.quantile_s("commit", 0.5),
        commit_p99_s=rates.quantile_s("commit", 0.99),
        connections=now.gauges["connections"],
        lag=now.gauges["lag"],
        dead=now.gauges["dead"],
    )
