"""Who stages as much as it may: what others stage, commit and drop looks at nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import Config
from headwater.bus import Bus
from headwater.log.roots import STAGED
from headwater.store.state import MemoryState

HOARDED = 2000


class Looked(MemoryState):
    """A state that counts the rows that somebody looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def scan(self, *args: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(*args):
            self.rows += 1
            yield row


@pytest.fixture
def state() -> Looked:
    return Looked()


@pytest.fixture
def bus(tmp_path: Path, state: Looked) -> Iterator[Bus]:
    with headwater.open(tmp_path, Config(segment_bytes=64 * 1024), state=state) as made:
        for part in range(HOARDED):
            made.core.staging.stage_messages("hoarder", 1, [("home/x", b"")], part=str(part))
        yield made


def test_to_drop_or_commit_an_epoch_looks_at_that_epoch_alone(bus: Bus, state: Looked):
    bus.stage("other", 1, [("home/x", b"dropped")])
    bus.stage("other", 2, [("home/x", b"committed")])
    bus.stage("other", 3, [("home/x", b"later")])
    state.rows = 0
    bus.drop_stage("other", 1)
    assert state.rows < 10
    assert bus.commit_stage("other", 2) == {"home": (1, 1)}
    assert state.rows < 20
    assert bus.commit_stage("other", 3) == {"home": (2, 2)}


def test_what_nobody_needs_any_more_is_deleted_all_the_same(bus: Bus):
    stream = bus.core.roots.get(STAGED)
    assert stream is not None
    bus.stage("other", 1, [("home/x", b"")])
    bus.drop_stage("hoarder", 1)
    assert stream.stream.first_offset > 1
    assert bus.core.staging.count == 1
    bus.drop_stage("other", 1)
    assert bus.core.staging.count == 0
