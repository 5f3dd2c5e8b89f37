"""Many retained values in a root: who subscribes to a few of them has no others read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater import ManualClock, Outgoing
from headwater.bus import Bus
from headwater.store.state import MemoryState
from headwater.topics.name import filter_covers_root, matches

TOPICS = 500

LEVEL = st.sampled_from(["a", "b", "ab", ""])
TOPIC = st.lists(LEVEL, max_size=3).map(lambda levels: "/".join(["home", *levels]))
FILTER = st.lists(st.one_of(LEVEL, st.just("+")), max_size=3).flatmap(
    lambda levels: st.sampled_from(["/".join(["home", *levels]), "/".join(["home", *levels, "#"]), "#", "+/#", "+/a"])
)


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


@pytest.fixture
def bus(state: MemoryState) -> Iterator[Bus]:
    with headwater.open(":memory:", state=state) as made:
        yield made


@pytest.mark.parametrize(
    ("wanted", "count"), [("home/7/x", 1), ("home/7/#", 2), ("home/7/+", 1), ("home/7/x/#", 1), ("home/none/#", 0)]
)
@pytest.mark.parametrize("id", [None, "s"])
def test_a_subscription_to_a_few_reads_few_rows(
    bus: Bus, state: MemoryState, monkeypatch: pytest.MonkeyPatch, wanted: str, count: int, id: str | None
) -> None:
    topics = ["home/7", *(f"home/{number}/x" for number in range(TOPICS))]
    bus.publish_many([Outgoing(topic=topic, payload=b"1", retain=True) for topic in topics])
    bus.core.roots.commit.run(bus.core.roots.checkpoints.make_all)
    read, real = [0], state.scan

    def scan(*args: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in real(*args):
            read[0] += row[0].startswith(b"R")
            yield row

    monkeypatch.setattr(state, "scan", scan)
    sub = bus.subscribe(wanted, id=id) if id is not None else bus.subscribe(wanted)
    assert len(sub.batch(100, timeout_s=0)) == count
    assert read[0] <= 2


@given(st.lists(TOPIC, min_size=1, max_size=8, unique=True), st.integers(0, 8), FILTER, st.integers(1, 3))
def test_those_are_found_that_match(topics: list[str], stored: int, wanted: str, rows_max: int) -> None:
    """Whether they are in the state, or changed since it was written, and whether they are read at once or in pages."""
    with headwater.open(":memory:", clock=ManualClock()) as bus:
        for part in (topics[:stored], topics[stored:]):
            if part:
                bus.publish_many([Outgoing(topic=topic, payload=b"1", retain=True) for topic in part])
            bus.core.roots.commit.run(bus.core.roots.checkpoints.make_all)
        bus.publish(topics[0], b"2", retain=True)
        found = [one.topic for one in bus.core.retained(wanted)]
        assert found == sorted(topic for topic in topics if matches(wanted, topic))
        root = bus.core.roots.get("home")
        assert root is not None
        pages, after = list[str](), ""
        while filter_covers_root(wanted, "home"):
            page = root.retained.page(wanted, after, 0, rows_max, 1 << 20)
            assert page.looked <= rows_max
            pages += [topic for topic, _ in page.found]
            if page.last is None:
                break
            after = page.last
        assert pages == found
