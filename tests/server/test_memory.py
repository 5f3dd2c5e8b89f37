"""Python's collector in a process that serves: nobody waits for a look at what has been there for long."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from headwater.server import memory
from headwater.server.memory import COLLECT_AFTER_LOOKS, COLLECT_AFTER_OBJECTS, OLD_AFTER_LOOKS, QUIET_US, Collector

WORTH_A_LOOK = COLLECT_AFTER_OBJECTS * (COLLECT_AFTER_LOOKS + 2) * (OLD_AFTER_LOOKS + 2)
A_QUARTER_MORE_THAN_ALL = 3 * WORTH_A_LOOK
"""After which Python by itself would look at everything."""


class Knot:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


class Played:
    """A collector, and how much its process is said to compute from one look to the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._spent_us = 0
        self.collector = Collector(loop, lambda: self._spent_us)
        self.collector.start()

    def look(self, spends_us: int) -> None:
        self._spent_us += spends_us
        self.collector.look()

    def grow(self, objects: int) -> list[list[None]]:
        """Make objects that stay."""
        return [[] for _ in range(objects)]


@pytest.fixture
def played() -> Iterator[Played]:
    before, loop = gc.get_threshold(), asyncio.new_event_loop()
    try:
        yield Played(loop)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        loop.close()


def looks_at_everything() -> int:
    collections: int = gc.get_stats()[2]["collections"]
    return collections


def old_garbage() -> "weakref.ref[Knot]":
    """Garbage that only a look at everything finds."""
    knot = Knot()
    gc.collect(1)
    return weakref.ref(knot)


def test_however_much_comes_nobody_waits_for_a_look_at_everything(played: Played) -> None:
    before = looks_at_everything()
    kept = played.grow(A_QUARTER_MORE_THAN_ALL)
    for _ in range(10):
        played.look(spends_us=QUIET_US)
    assert looks_at_everything() == before
    assert len(kept) == A_QUARTER_MORE_THAN_ALL


def test_old_garbage_goes_in_a_quiet_moment(played: Played) -> None:
    gone = old_garbage()
    kept = played.grow(WORTH_A_LOOK)
    played.look(spends_us=QUIET_US)
    assert gone() is not None
    played.look(spends_us=QUIET_US - 1)
    assert gone() is None
    assert kept


def test_old_garbage_goes_where_it_is_never_quiet_before_there_is_much_of_it(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "OLD_LOOKS_MAX", 2 * OLD_AFTER_LOOKS)
    gone = old_garbage()
    kept = [played.grow(WORTH_A_LOOK)]
    played.look(spends_us=QUIET_US)
    assert gone() is not None
    kept.append(played.grow(WORTH_A_LOOK))
    played.look(spends_us=QUIET_US)
    assert gone() is None
    assert kept


def test_what_became_garbage_after_a_look_is_found_by_the_next(played: Played) -> None:
    knot = Knot()
    gone = weakref.ref(knot)
    kept = [played.grow(WORTH_A_LOOK)]
    played.look(spends_us=0)
    del knot
    kept.append(played.grow(WORTH_A_LOOK))
    played.look(spends_us=0)
    assert gone() is None
    assert kept


def test_nothing_is_looked_at_while_little_came(played: Played) -> None:
    before = looks_at_everything()
    played.look(spends_us=0)
    assert looks_at_everything() == before


def test_where_it_is_never_quiet_old_garbage_goes_at_last(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "OLD_AT_LATEST_LOOKS", 3)
    gone = old_garbage()
    kept = played.grow(WORTH_A_LOOK)
    played.look(spends_us=QUIET_US)
    played.look(spends_us=QUIET_US)
    assert gone() is not None
    played.look(spends_us=QUIET_US)
    assert gone() is None
    assert kept


def test_no_look_at_the_young_is_at_many(played: Played) -> None:
    looked_at: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(young)) for young in range(about["generation"] + 1)))

    gc.callbacks.append(note)
    try:
        kept = played.grow(WORTH_A_LOOK)
    finally:
        gc.callbacks.remove(note)
    assert kept
    assert len(looked_at) > OLD_AFTER_LOOKS
    assert max(looked_at) <= 12_000
