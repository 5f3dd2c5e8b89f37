"""Fixtures for tests of code that uses Headwater; pytest finds them by itself where Headwater is installed.

    def test_the_kitchen_is_heated(bus):
        heat(bus, "kitchen")
        assert [message.payload for message in bus.published("home/kitchen/#")] == [b"on"]

A fixture of your own with one of these names replaces it, as everywhere in pytest. Nothing of Headwater is imported
before a test asks for one of them: this is a package of its own for that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater import ManualClock
    from pytest_headwater.buses import Bus, ServedBus


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves when the test says so (`clock.advance(60)`), for the `bus` of the same test."""
    from headwater import ManualClock

    return ManualClock()


@pytest.fixture
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    """A bus in memory, empty; `bus.published("home/#")` is what was published to it. It goes by `clock` in a test that
    has that fixture, too, and by the machine's else."""
    from headwater import ManualClock
    from pytest_headwater.buses import Bus

    given = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    with Bus(":memory:", clock=given if isinstance(given, ManualClock) else None) as made:
        yield made


@pytest.fixture
def served_bus(tmp_path: Path) -> Iterator[ServedBus]:
    """A client of a server on a free port of this machine, with a folder of its own; `served_bus.url` is for others."""
    from pytest_headwater.buses import serving

    with serving(tmp_path / "headwater-data") as made:
        yield made
