"""The directory: how many durable subscriptions there may be, and their numbers."""

from __future__ import annotations

import pytest

import headwater
from headwater import Config, ManualClock, QuotaExceeded
from headwater.bus import Bus
from headwater.store.state import MemoryState


def test_numbers_are_not_used_twice(state: MemoryState, clock: ManualClock) -> None:
    class Kept(MemoryState):
        def close(self) -> None:
            pass

    kept = Kept()
    with headwater.open(":memory:", state=kept) as bus:
        numbers = [bus.subscribe("home/#", id=name).subscriber.number for name in "ab"]  # type: ignore[attr-defined]
        bus.unsubscribe("b")
    with headwater.open(":memory:", state=kept) as bus:
        numbers.append(bus.subscribe("home/#", id="c").subscriber.number)  # type: ignore[attr-defined]
    assert numbers == [1, 2, 3]


def test_one_too_many_is_refused_and_deleting_makes_room(clock: ManualClock) -> None:
    with headwater.open(":memory:", Config(subscriptions_max=2), clock=clock) as bus:
        for name in "ab":
            bus.subscribe("x/#", id=name, expire_after_s=100).close()
        with pytest.raises(QuotaExceeded):
            bus.subscribe("x/#", id="c")
        clock.advance(101)
        assert sorted(bus.core.roots.commit.run(bus.core.dispatcher.expire)) == ["a", "b"]
        bus.subscribe("x/#", id="c").close()
        bus.subscribe("x/#", id="d").close()


def test_ids_of_any_characters_are_apart(bus: Bus) -> None:
    names = ["a", "a/b", "A", "ü", "\0", "a\0", " ", "🌡"]
    for name in names:
        bus.subscribe("home/#", id=name).close()
    assert sorted(info.id for info in bus.subscriptions()) == sorted(names)
