from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.admin.dashboard import sampler as module
from headwater.admin.dashboard.sampler import HISTORY_MAX, Sampler
from headwater.errors import Disconnected
from headwater.wire.administration import Figures, Health, Histogram


class Broker:
    """Tells figures, a second later each time."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_away = False

    async def health(self) -> Health:
        return Health(ok=True, checks=())

    async def metrics(self) -> Figures:
        if self.is_away:
            raise Disconnected("nobody answers")
        self.asked += 1
        return Figures(
            time_us=self.asked * 1_000_000,
            started_us=1,
            counters={"messages_in": 100 * self.asked, "messages_out": 0, "bytes_in": 0, "bytes_out": 0},
            gauges={"connections": 3, "lag": 2, "dead": 1},
            histograms={"commit": Histogram(bounds_s=(0.001, 0.01), counts=(10 * self.asked, 0, 0), sum_s=0.0)},
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.001)
    monkeypatch.setattr(module, "LINGER_S", 0.05)


async def until(test: Any, looked_at: Sampler | None = None) -> None:
    """Wait, and go on looking at a sampler all the while."""
    async with asyncio.timeout(60):
        while not test():
            if looked_at is not None:
                looked_at.look()
            await asyncio.sleep(0.001)


def test_it_asks_while_somebody_looks_and_then_no_more() -> None:
    async def work() -> None:
        broker = Broker()
        admin: Any = broker
        sampler = Sampler(admin)
        await asyncio.sleep(0.01)
        assert broker.asked == 0
        await until(lambda: len(sampler.history) > 2, sampler)
        assert (sampler.history[0].in_s, sampler.history[0].connections) == (100, 3)
        assert sampler.history[0].commit_p50_s == pytest.approx(0.0005)
        await until(lambda: sampler.figures is None)
        asked = broker.asked
        await asyncio.sleep(0.05)
        assert broker.asked == asked

    asyncio.run(work())


def test_many_who_look_cost_no_more_than_one_and_history_has_an_end() -> None:
    async def work() -> None:
        broker = Broker()
        admin: Any = broker
        sampler = Sampler(admin)

        def look() -> bool:
            for _ in range(50):
                sampler.look()
            return broker.asked > HISTORY_MAX + 20

        await until(look)
        assert len(sampler.history) == HISTORY_MAX
        assert broker.asked < 2 * HISTORY_MAX

    asyncio.run(work())


def test_a_broker_that_is_away_is_told_and_asked_again() -> None:
    async def work() -> None:
        broker = Broker()
        admin: Any = broker
        sampler = Sampler(admin)
        broker.is_away = True
        await until(lambda: sampler.trouble, sampler)
        broker.is_away = False
        await until(lambda: sampler.history, sampler)
        assert not sampler.trouble

    asyncio.run(work())
