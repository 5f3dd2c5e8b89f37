"""Thousands of durable subscriptions that nobody takes from: retention looks at all of them, and no publish waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import Config, ManualClock, Retention
from headwater.bus import Bus
from headwater.delivery import cursor
from headwater.delivery.needs import CHECK_EVERY
from headwater.store.state import MemoryState
from headwater.topics.tree import Trees

SUBSCRIPTIONS = 300
BATCHES = 400


class Role:
    """What is done in the committing role besides committing: rows that are read, batches that are looked at."""

    def __init__(self, bus: Bus, state: MemoryState, patch: pytest.MonkeyPatch) -> None:
        self.rows = self.batches = self.looked = 0
        commit = bus.core.roots.commit
        real_get, real_scan, real_places = state.get, state.scan, cursor.places_in

        def is_here() -> bool:
            return commit._owner == threading.get_ident()

        def get(key: bytes) -> bytes | None:
            self.rows += is_here()
            return real_get(key)

        def scan(*args: Any) -> Iterator[tuple[bytes, bytes]]:
            for row in real_scan(*args):
                self.rows += is_here()
                yield row

        def places_in(*args: Any) -> Any:
            self.batches += is_here()
            self.looked += 1
            return real_places(*args)

        patch.setattr(state, "get", get)
        patch.setattr(state, "scan", scan)
        patch.setattr(cursor, "places_in", places_in)


@pytest.fixture
def bus(tmp_path: Path, clock: ManualClock, state: MemoryState) -> Iterator[Bus]:
    # No round of its own: each test says when retention looks.
    config = Config(
        segment_bytes=64 * 1024, retention=Retention(age_s=10), tail_bytes=64 * 1024, retention_interval_s=3600
    )
    with headwater.open(tmp_path, config, clock=clock, state=state) as made:
        yield made


def fill(bus: Bus, clock: ManualClock) -> None:
    for _ in range(BATCHES):
        bus.publish("big/x", bytes(1000))
    clock.advance(100)


def test_retention_looks_at_them_outside_of_the_committing_role_and_at_each_batch_once(
    bus: Bus, clock: ManualClock, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SUBSCRIPTIONS):
        bus.core.durables.create(f"s{number}", f"big/{number}/#", start="earliest")
    fill(bus, clock)
    role = Role(bus, state, monkeypatch)
    root = bus.core.roots.get("big")
    assert root is not None
    bus.core.upkeep.retain(root)
    assert root.stream.first_offset > BATCHES // 2
    assert role.looked <= 2 * BATCHES
    assert role.batches == 0
    assert role.rows < SUBSCRIPTIONS // 2


def test_one_that_is_made_while_retention_looks_loses_nothing(
    bus: Bus, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.core.durables.create("resting", "big/never", start="earliest")
    fill(bus, clock)
    root, dispatcher = bus.core.roots.get("big"), bus.core.dispatcher
    assert root is not None
    real = dispatcher.floors.needed_from

    def needed_from(*args: Any) -> int:
        found = real(*args)
        bus.core.durables.create("late", "big/#", start="earliest")
        return found

    monkeypatch.setattr(dispatcher.floors, "needed_from", needed_from)
    bus.core.upkeep.retain(root)
    assert root.stream.first_offset == 1


def test_one_that_goes_back_while_retention_looks_loses_nothing(
    bus: Bus, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bus, clock)
    bus.core.durables.create("there", "big/#", start="latest")
    root, dispatcher = bus.core.roots.get("big"), bus.core.dispatcher
    assert root is not None
    real = dispatcher.floors.needed_from

    def needed_from(*args: Any) -> int:
        found = real(*args)
        bus.core.durables.seek("there", "earliest")
        return found

    monkeypatch.setattr(dispatcher.floors, "needed_from", needed_from)
    bus.core.upkeep.retain(root)
    assert root.stream.first_offset == 1


def test_what_is_acked_behind_what_expired_does_not_hold_retention_up(bus: Bus, clock: ManualClock) -> None:
    sub = bus.subscribe("big/#", id="s", start="earliest")
    bus.publish("big/x", b"1", ttl_s=5)
    bus.publish("big/x", b"2")
    first, second = sub.batch(2, timeout_s=1)
    assert (first.payload, second.payload) == (b"1", b"2")
    second.ack()
    sub.close()
    clock.advance(10)
    root = bus.core.roots.get("big")
    assert root is not None
    assert bus.core.dispatcher.floors.needed_from(root) == 3


def test_expiry_looks_at_them_outside_of_the_committing_role(
    bus: Bus, clock: ManualClock, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SUBSCRIPTIONS):
        bus.core.durables.create(f"s{number}", f"big/{number}/#", expire_after_s=1000.0)
    bus.core.durables.create("gone", "big/#", expire_after_s=1.0)
    role = Role(bus, state, monkeypatch)
    clock.advance(10)
    assert bus.core.dispatcher.expire() == ["gone"]
    assert role.rows < SUBSCRIPTIONS // 2


def test_retention_lets_others_have_their_turn_after_a_few_of_them(
    bus: Bus, clock: ManualClock, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SUBSCRIPTIONS):
        bus.core.durables.create(f"s{number}", f"big/{number}/#", start="earliest")
    fill(bus, clock)
    root, steps = bus.core.roots.get("big"), [0]
    assert root is not None
    trees: Any = Trees
    real_get, real_add, real_scan = state.get, trees.add, state.scan

    here = threading.get_ident()

    def step() -> None:
        steps[-1] += threading.get_ident() == here  # others look after the root by themselves

    def get(key: bytes) -> bytes | None:
        step()
        return real_get(key)

    def scan(*args: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in real_scan(*args):
            step()
            yield row

    def add(*args: Any) -> bool:
        step()
        return bool(real_add(*args))

    monkeypatch.setattr(state, "get", get)
    monkeypatch.setattr(state, "scan", scan)
    monkeypatch.setattr(trees, "add", add)
    bus.core.dispatcher.floors.needed_from(root, check=lambda: steps.append(0))
    assert sum(steps) > 3 * SUBSCRIPTIONS
    assert max(steps) <= 3 * CHECK_EVERY
    steps[:] = [0]
    bus.core.dispatcher.expire(lambda: steps.append(0))
    assert max(steps) <= 2 * CHECK_EVERY


def test_nobody_who_comes_waits_until_floors_that_retention_moves_are_synced(
    bus: Bus, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SUBSCRIPTIONS):
        bus.core.durables.create(f"s{number}", f"big/{number}/#", start="earliest")
    fill(bus, clock)
    root, dispatcher = bus.core.roots.get("big"), bus.core.dispatcher
    assert root is not None
    held = []
    real = dispatcher._commit.drive

    def drive(item: Any) -> None:
        held.append(dispatcher._lock._is_owned())  # type: ignore[attr-defined]  # an RLock has it
        real(item)

    monkeypatch.setattr(dispatcher._commit, "drive", drive)
    assert dispatcher.floors.needed_from(root) == BATCHES + 1
    assert held
    assert not any(held)
    assert all(info.floors == {"big": BATCHES} for info in bus.subscriptions())
