"""The timer queue: one thread, one moment an owner, rung in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.clock import SECOND_US, ManualClock, SystemClock
from headwater.delivery.timers import Timers

WAIT_S = 60.0


class Bench:
    """Timers on a clock that the test moves, and who was rung."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.troubles: list[str] = []
        self.timers = Timers(self.clock, self.troubles.append)
        self.rung: list[object] = []

    def set(self, owner: Any, seconds: float | None) -> None:
        due_us = None if seconds is None else round(seconds * SECOND_US)
        self.timers.set(owner, due_us, lambda: self.rung.append(owner))

    def settle(self) -> None:
        """Return when everything that is due by now has rung."""
        done = threading.Event()
        self.timers.set(done, self.clock.monotonic_us(), done.set)
        assert done.wait(WAIT_S)

    def advance(self, seconds: float) -> list[object]:
        """Who rings meanwhile."""
        self.rung.clear()
        self.clock.advance(seconds)
        self.settle()
        return list(self.rung)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.timers.close()


def test_owners_are_rung_when_they_are_due_and_once(bench: Bench) -> None:
    bench.set("a", 10)
    assert bench.advance(9.9) == []
    assert bench.advance(0.1) == ["a"]
    assert bench.advance(100) == []


def test_the_earliest_is_rung_first_and_of_equals_the_one_set_first(bench: Bench) -> None:
    for owner, seconds in [("c", 30), ("a", 10), ("b1", 20), ("b2", 20)]:
        bench.set(owner, seconds)
    assert bench.advance(100) == ["a", "b1", "b2", "c"]


def test_a_moment_that_has_passed_is_now(bench: Bench) -> None:
    bench.clock.advance(50)
    bench.set("late", 10)
    bench.settle()
    assert bench.rung == ["late"]


def test_setting_again_replaces_the_moment(bench: Bench) -> None:
    bench.set("a", 10)
    bench.set("a", 20)
    assert bench.advance(15) == []
    bench.set("b", 30)
    bench.set("b", 18)
    assert bench.advance(4) == ["b"]
    assert bench.advance(1) == ["a"]
    assert bench.advance(100) == []


def test_a_moment_that_moves_on_wakes_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.set("a", 10)
    bench.settle()
    woken: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(bench.timers._changed, "notify", lambda: woken.append(True))
        for seconds in range(11, 21):
            bench.set("a", seconds)
        bench.set("a", None)
        bench.set("a", 20)
    assert woken == []
    assert bench.advance(19) == []
    assert bench.advance(1) == ["a"]
    assert bench.advance(100) == []


def test_none_takes_an_owner_out(bench: Bench) -> None:
    bench.set("a", 10)
    bench.set("never there", None)
    bench.set("a", None)
    assert bench.advance(20) == []
    bench.set("a", 30)
    assert bench.advance(20) == ["a"]


def test_an_earlier_moment_wakes_the_thread_that_sleeps_until_a_later_one(bench: Bench) -> None:
    bench.set("later", 1000)
    bench.settle()
    bench.set("sooner", 5)
    assert bench.advance(5) == ["sooner"]


def test_a_ring_may_set_the_next(bench: Bench) -> None:
    def ring() -> None:
        bench.rung.append("again")
        bench.timers.set("again", bench.clock.monotonic_us() + 10 * SECOND_US, ring)

    bench.timers.set("again", 10 * SECOND_US, ring)
    assert bench.advance(10) == ["again"]
    assert bench.advance(10) == ["again"]
    assert bench.advance(9) == []


def test_a_ring_that_fails_is_told_and_the_others_go_on(bench: Bench) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    bench.timers.set("bad", SECOND_US, fail)
    bench.set("good", 1)
    assert bench.advance(1) == ["good"]
    assert len(bench.troubles) == 1
    assert "no such luck" in bench.troubles[0]


def test_a_jump_of_the_wall_clock_rings_nobody(bench: Bench) -> None:
    bench.set("a", 10)
    bench.clock.jump(86_400)
    bench.settle()
    assert bench.rung == []
    bench.clock.jump(-2 * 86_400)
    assert bench.advance(10) == ["a"]


def test_there_is_one_thread_however_many_wait_and_none_before_the_first(bench: Bench) -> None:
    def threads() -> int:
        return sum(thread.name == "headwater-timers" for thread in threading.enumerate())

    before = threads()
    for number in range(10_000):
        bench.set(number, 10 + number % 7)
        if number == 0:
            assert threads() == before + 1
    assert threads() == before + 1
    assert sorted(bench.advance(100)) == list(range(10_000))  # type: ignore[type-var]


def test_moments_that_were_replaced_take_no_memory_for_ever(bench: Bench) -> None:
    bench.set("first", 1_000_000)
    for number in range(20_000):
        bench.set(number % 10, 1_000_000 - number)
        if number % 3 == 0:
            bench.set(number % 10, None)
    assert len(bench.timers._heap) < 1000
    assert len(bench.timers._due) <= 11


def test_owners_need_not_be_comparable(bench: Bench) -> None:
    class Owner:
        pass

    owners = [Owner() for _ in range(200)]
    for _ in range(5):
        for owner in owners:
            bench.set(owner, 10)
            bench.set(owner, 5)
    assert sorted(map(id, bench.advance(5))) == sorted(map(id, owners))


def test_after_closing_nobody_is_rung_and_the_thread_is_gone(bench: Bench) -> None:
    bench.set("a", 10)
    bench.timers.close()
    bench.timers.close()
    bench.set("b", 10)
    bench.clock.advance(100)
    assert bench.rung == []
    thread = bench.timers._thread
    assert thread is not None
    assert not thread.is_alive()


def test_a_ring_may_close_the_queue(bench: Bench) -> None:
    closed = threading.Event()

    def ring() -> None:
        bench.timers.close()
        closed.set()

    bench.timers.set("closer", 0, ring)
    assert closed.wait(WAIT_S)


def test_it_rings_by_the_machine_s_clock_too() -> None:
    clock = SystemClock()
    timers = Timers(clock, pytest.fail)
    rung = threading.Event()
    timers.set("later", clock.monotonic_us() + 3600 * SECOND_US, pytest.fail)
    timers.set("soon", clock.monotonic_us() + 10_000, rung.set)
    assert rung.wait(WAIT_S)
    timers.close()
