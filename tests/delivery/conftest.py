"""A bus in memory, and its dispatcher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from headwater import ManualClock
from headwater.bus import Bus
from headwater.delivery.dispatcher import Dispatcher
from headwater.store.state import MemoryState


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


@pytest.fixture
def bus(clock: ManualClock, state: MemoryState) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock, state=state) as made:
        yield made


@pytest.fixture
def dispatcher(bus: Bus) -> Dispatcher:
    return bus.core.dispatcher
