"""The buses that tests of the embedded bus open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater import ManualClock
from headwater.bus import Bus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def bus(folder: Path) -> Iterator[Bus]:
    with headwater.open(folder) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(folder: Path, clock: ManualClock) -> Iterator[Bus]:
    """A bus whose time the test moves."""
    with headwater.open(folder, clock=clock) as made:
        yield made
