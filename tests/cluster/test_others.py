"""What a leader knows of the others: what it may trim, whom it marks, and what the engine has lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cluster.memory_engine import Bed, MemoryEngine
from headwater.clock import SystemClock
from headwater.cluster import others
from headwater.cluster.engine import StreamLost
from headwater.cluster.follower import Beyond
from headwater.cluster.members import Members
from headwater.cluster.others import Others, Trimming, trimming
from headwater.cluster.record import Position
from headwater.errors import HeadwaterError

MEMBERS = ("n1", "n2", "n3")
PATIENCE_S = 30.0


@pytest.mark.parametrize(
    ("synced", "marked", "is_too_much", "found"),
    [
        pytest.param({"n1": 9, "n2": 7, "n3": 5}, (), False, Trimming(4, "", ()), id="below the one furthest behind"),
        pytest.param({"n1": 9, "n2": 7}, (), False, Trimming(-1, "", ()), id="nothing while one has said nothing"),
        pytest.param({"n1": 3, "n2": 7, "n3": 5}, (), False, Trimming(2, "", ()), id="below itself"),
        pytest.param({"n1": 9, "n2": 7, "n3": 5}, (), True, Trimming(6, "n3", ()), id="one that is too far behind"),
        pytest.param({"n1": 9, "n2": 7}, (), True, Trimming(6, "n3", ()), id="one that was never heard of"),
        pytest.param({"n1": 5, "n2": 7, "n3": 5}, (), True, Trimming(4, "", ()), id="not one as far as itself"),
        pytest.param({"n1": 9, "n2": 7, "n3": 1}, ("n3",), False, Trimming(6, "", ()), id="past one that is marked"),
        pytest.param({"n1": 9, "n2": 7, "n3": 4}, ("n3",), False, Trimming(6, "", ("n3",)), id="one that has a copy"),
        pytest.param({"n1": 9}, ("n3",), True, Trimming(-1, "", (), "n2"), id="not what it alone has"),
        pytest.param({"n1": 9, "n2": 7}, ("n3",), True, Trimming(6, "", (), "n2"), id="not the last other one"),
        pytest.param({"n1": 9, "n2": 9}, ("n3",), True, Trimming(8, "", ()), id="what two have"),
        pytest.param({"n1": 9}, ("n2", "n3"), True, Trimming(8, "", ()), id="alone"),
    ],
)
def test_what_may_be_trimmed(synced: dict[str, int], marked: tuple[str, ...], is_too_much: bool, found: Trimming):
    assert trimming("n1", MEMBERS, synced, marked, first=5, is_too_much=is_too_much) == found


@pytest.fixture
def engine() -> Iterator[MemoryEngine]:
    made = MemoryEngine(Bed())
    yield made
    made.close()


@pytest.mark.parametrize(("lose", "kind"), [("end", Beyond), ("stream", StreamLost)], ids=["its end", "all of it"])
def test_a_stream_that_has_lost_something_is_noticed_though_nobody_publishes(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, lose: str, kind: type[HeadwaterError]
):
    monkeypatch.setattr(others, "EVERY_S", 0.01)
    for sequence in range(5):
        engine.bed.store(sequence, b"x")
    found: list[HeadwaterError] = []
    heard = threading.Event()

    def on_fault(error: HeadwaterError) -> None:
        found.append(error)
        heard.set()

    position = Position(5, 5, 1)
    one = Others(*(engine, Members(engine), SystemClock(), "n1", 1 << 30, lambda: position, lambda: position, on_fault))
    one.start()
    try:
        assert not heard.wait(0.1)
        if lose == "end":
            engine.bed.lose(1)
        else:
            engine.unmake()
        assert heard.wait(PATIENCE_S)
        assert isinstance(found[0], kind)
    finally:
        one.stop()
