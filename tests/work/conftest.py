"""The buses that tests of handlers run on: embedded and served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from client.served import Served


@pytest.fixture(params=["embedded", "served"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A bus for threads."""
    if request.param == "embedded":
        with headwater.open(tmp_path / "data") as bus:
            yield bus
    else:
        with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
            yield bus
