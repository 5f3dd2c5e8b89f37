"""A folder with roots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from log.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(str(tmp_path / "data"))
    yield made
    made.close()
