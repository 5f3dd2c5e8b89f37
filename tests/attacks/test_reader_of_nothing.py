"""A reader whose filter matches nothing of a long log: it goes through all of it, and nobody waits for that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.config import Config
from headwater.delivery import cursor
from headwater.delivery.cursor import LOOK_BATCHES
from headwater.server.durable_pump import DurablePump
from headwater.server.live_pump import LivePump
from headwater.server.reading_pump import ReadingPump
from headwater.store.stream import DiskStream
from server.harness import Running

BATCHES = 600
"""More than a turn may look at, each of one message;"""
HELD = 200
"""and how many of them are in memory, about."""


class Turns:
    """What the server's loop does, turn by turn."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.loop = 0
        self.looks: list[int] = []
        """Batches that each turn of a pump looked at."""
        self.everywhere = 0
        self.reads = 0
        """From disk."""
        self._wrap(patch, cursor, "places_in", self._on_look)
        for kind in (DurablePump, LivePump, ReadingPump):
            self._wrap(patch, kind, "_pump", self._on_turn)
        self._wrap(patch, DiskStream, "_from_disk", self._on_read)

    def _wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[[], None]) -> None:
        real = getattr(owner, name)

        def noted(*args: Any) -> Any:
            note()
            return real(*args)

        patch.setattr(owner, name, noted)

    @property
    def _is_loop(self) -> bool:
        return threading.get_ident() == self.loop

    def _on_look(self) -> None:
        self.everywhere += 1
        if self._is_loop and self.looks:
            self.looks[-1] += 1

    def _on_turn(self) -> None:
        self.looks.append(0)

    def _on_read(self) -> None:
        self.reads += self._is_loop


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    config = Config(tail_bytes=HELD * 1024)
    with headwater.open(tmp_path, config) as bus:
        for number in range(BATCHES):
            bus.publish(f"big/{number % 7}", b"x")
    with Running(tmp_path, config) as made:
        for number in range(HELD // 2):
            made.bus.publish(f"big/{number % 7}", b"x")
        yield made


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("replay", {}),
        ("follow", {"after": {"big": 0}}),
        ("named", {"id": "s", "start": "earliest"}),
        ("session", {"start": "earliest"}),
    ],
)
def test_who_matches_nothing_has_a_budget_for_each_turn_and_the_loop_reads_no_disk(
    running: Running, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    turns = Turns(monkeypatch)
    turns.loop = running.call(threading.get_ident)
    peer = running.peer()
    peer.subscribe(1, "big/+/never", kind=kind, **options)
    if kind == "replay":
        peer.wait(lambda frame: b"over" in frame.payload)
    else:
        running.bus.publish("big/1/never", b"found")
        assert [one.payload for one in peer.take(1, 1)] == [b"found"]
    assert turns.everywhere >= BATCHES + HELD // 2
    assert max(turns.looks) <= LOOK_BATCHES
    assert turns.reads == 0


def test_who_is_behind_and_wants_it_all_gets_it_all_in_order(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    turns.loop = running.call(threading.get_ident)
    peer = running.peer()
    peer.subscribe(1, "big/#", kind="replay")
    peer.subscribe(2, "big/#", kind="named", id="all", start="earliest", options={"max_in_flight": 10_000})
    expected = list(range(1, BATCHES + HELD // 2 + 1))
    for number in (1, 2):
        assert [one.offset for one in peer.take(number, len(expected))] == expected
    assert max(turns.looks) <= LOOK_BATCHES
    assert turns.reads == 0
