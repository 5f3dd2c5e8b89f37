"""What attackers of an embedded bus share: its clock, and its state."""

from __future__ import annotations

import pytest

from headwater import ManualClock
from headwater.store.state import MemoryState


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()
