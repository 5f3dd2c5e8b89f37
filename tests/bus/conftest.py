"""A bus on a real folder, and one whose time is moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
from headwater import Bus, Config, ManualClock


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with headwater.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock) as opened:
        yield opened


@pytest.fixture
def settle() -> Callable[[Bus], None]:
    """Wait until the timer queue has done everything that is due."""

    def wait(bus: Bus) -> None:
        for _ in range(2):
            done = threading.Event()
            bus._timers.set(object(), bus._clock.monotonic_us(), done.set)
            assert done.wait(10)

    return wait


@pytest.fixture
def small_segments() -> Config:
    return Config(segment_bytes=64 * 1024, tail_bytes=0, retention_interval_s=1)
