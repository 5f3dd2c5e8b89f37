"""The door to time: a clock that tests move, and one that does not jump."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import ManualClock
from headwater.clock import SECOND_US, Clock, SteadyClock, SystemClock, from_datetime, to_datetime

# The machine's clocks


def test_the_system_clock_tells_the_machine_s_time() -> None:
    clock = SystemClock()
    assert abs(clock.now_us() / SECOND_US - time.time()) < 5
    before = clock.monotonic_us()
    assert clock.monotonic_us() >= before
    wall_us, monotonic_us = clock.read()
    assert abs(wall_us - clock.now_us()) < 5 * SECOND_US
    assert abs(monotonic_us - clock.monotonic_us()) < 5 * SECOND_US


def test_waiting_ends_when_the_time_has_passed() -> None:
    condition = threading.Condition()
    with condition:
        assert not SystemClock().wait(condition, 1000)
        assert not SystemClock().wait(condition, -5)


# The clock that tests move


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(5 * SECOND_US)
    assert clock.read() == clock.read() == (5 * SECOND_US, 0)


def test_advance_lets_time_pass_on_both_clocks_and_jump_sets_the_wall_clock_alone() -> None:
    clock = ManualClock(0)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic_us()) == (1_500_000, 1_500_000)
    clock.jump(-1)
    assert (clock.now_us(), clock.monotonic_us()) == (500_000, 1_500_000)
    clock.jump(10)
    assert clock.read() == (10_500_000, 1_500_000)


@pytest.mark.parametrize("move", ["advance", "jump"])
def test_whoever_waits_is_woken_when_the_clock_is_moved(move: str) -> None:
    clock = ManualClock()
    condition = threading.Condition()
    waits, woken = threading.Event(), threading.Event()

    def wait() -> None:
        with condition:
            clock.read()
            waits.set()
            assert clock.wait(condition, SECOND_US)
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(60)
    with condition:  # held by the other until it waits
        pass
    getattr(clock, move)(1)
    thread.join(60)
    assert woken.is_set()


def test_a_wait_of_no_time_ends_at_once() -> None:
    condition = threading.Condition()
    with condition:
        assert not ManualClock().wait(condition, 0)
        assert not ManualClock().wait(condition, -1)


def test_whoever_read_the_time_before_it_was_moved_does_not_sleep_through_the_move() -> None:
    clock = ManualClock()
    condition = threading.Condition()
    started = time.monotonic()
    with condition:
        left_us = 5 * SECOND_US - clock.monotonic_us()
        clock_moved = threading.Thread(target=clock.advance, args=(5,))
        clock_moved.start()
        clock_moved.join(60)
        clock.wait(condition, left_us)
    assert time.monotonic() - started < ManualClock.REAL_WAIT_S_MAX


def test_a_test_whose_clock_nobody_moves_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    import headwater

    monkeypatch.setattr(ManualClock, "REAL_WAIT_S_MAX", 0.05)
    with headwater.open(":memory:", clock=ManualClock()) as bus:
        live, sub, following = bus.subscribe("a/#"), bus.subscribe("a/#", id="s"), bus.follow("a/#")
        for reader in (live, sub, following):
            assert reader.next(timeout_s=1) is None


def test_nobody_sees_one_clock_moved_and_the_other_not() -> None:
    clock = ManualClock(0)
    torn: list[tuple[int, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            wall_us, monotonic_us = clock.read()
            if wall_us != monotonic_us:
                torn.append((wall_us, monotonic_us))

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(2000):
        clock.advance(100)
    done.set()
    thread.join(60)
    assert torn == []


# The clock that does not jump


def steady(clock: ManualClock) -> tuple[SteadyClock, list[int]]:
    steps: list[int] = []
    return SteadyClock(clock, lambda step_us, state: steps.append(step_us) if state == "noticed" else None), steps


def seconds(clock: Clock) -> float:
    return clock.now_us() / SECOND_US


def test_it_goes_with_the_clock_below() -> None:
    below = ManualClock(100 * SECOND_US)
    clock, steps = steady(below)
    for _ in range(50):
        below.advance(1000)
        assert clock.read() == below.read()
        assert clock.monotonic_us() == below.monotonic_us()
    assert steps == []


@pytest.mark.parametrize("step_s", [60, -60, 0.001, -30])
def test_a_small_correction_counts_at_once(step_s: float) -> None:
    below = ManualClock(1000 * SECOND_US)
    clock, steps = steady(below)
    below.jump(step_s)
    assert seconds(clock) == 1000 + step_s
    assert steps == []


@pytest.mark.parametrize("step_s", [61, -61, 86_400, -86_400])
def test_a_larger_step_counts_once_it_has_lasted_and_is_told_once(step_s: float) -> None:
    below = ManualClock(1_000_000 * SECOND_US)
    clock, steps = steady(below)
    below.jump(step_s)
    for passed in range(0, 900, 100):
        assert seconds(clock) == 1_000_000 + passed
        below.advance(100)
    assert seconds(clock) == 1_000_000 + 900 + step_s
    assert steps == [step_s * SECOND_US]
    below.advance(5)
    assert seconds(clock) == 1_000_000 + 905 + step_s


@pytest.mark.parametrize("step_s", [86_400, -86_400])
def test_a_step_that_is_taken_back_never_counts(step_s: float) -> None:
    below = ManualClock(1_000_000 * SECOND_US)
    clock, steps = steady(below)
    for _ in range(5):
        below.jump(step_s)
        assert seconds(clock) == 1_000_000
        below.jump(-step_s)
        assert seconds(clock) == 1_000_000
    assert len(steps) == 5
    below.advance(10_000)
    assert seconds(clock) == 1_010_000


def test_a_step_is_told_when_it_is_noticed_and_when_it_counts_or_is_taken_back() -> None:
    below, told = ManualClock(1_000_000 * SECOND_US), []
    clock = SteadyClock(below, lambda step_us, state: told.append((step_us // SECOND_US, state, seconds(clock))))
    below.jump(3600)
    clock.read()
    clock.read()
    assert told == [(3600, "noticed", 1_000_000)]
    below.jump(-3600)
    clock.read()
    assert told[1:] == [(3600, "taken back", 1_000_000)]
    below.jump(-7200)
    clock.read()
    below.advance(900)
    clock.read()
    clock.read()
    assert told[2:] == [(-7200, "noticed", 1_000_000), (-7200, "counts", 1_000_900 - 7200)]


def test_a_machine_that_slept_keeps_its_time() -> None:
    below = ManualClock(0)
    clock, steps = steady(below)
    below.advance(10**6)
    assert seconds(clock) == 10**6
    assert steps == []


@given(st.lists(st.tuples(st.sampled_from(["advance", "jump"]), st.integers(-100_000, 100_000)), max_size=30))
def test_its_time_never_moves_by_more_than_passed_and_a_small_correction_unless_a_step_has_lasted(
    moves: list[tuple[str, int]],
) -> None:
    below = ManualClock(10**9 * SECOND_US)
    clock, _ = steady(below)
    since_jump_s = 0
    for kind, amount in moves:
        before = clock.now_us()
        passed = 0
        if kind == "advance":
            passed = abs(amount)
            below.advance(passed)
            since_jump_s += passed
        else:
            below.jump(amount)
        moved_s = (clock.now_us() - before) / SECOND_US - passed
        assert abs(moved_s) <= 60 or since_jump_s >= 900


def test_it_waits_on_the_clock_below() -> None:
    condition = threading.Condition()
    with condition:
        assert not steady(ManualClock())[0].wait(condition, 0)


# Moments as users see them


@given(st.integers(-(10**15), 4 * 10**15))
def test_a_moment_comes_back_to_the_microsecond(time_us: int) -> None:
    moment = to_datetime(time_us)
    assert moment.tzinfo is UTC
    assert from_datetime(moment) == time_us


def test_any_zone_is_the_same_moment_and_none_is_local_time() -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    assert from_datetime(moment.astimezone(timezone(timedelta(hours=9)))) == from_datetime(moment)
    assert from_datetime(moment.astimezone().replace(tzinfo=None)) == from_datetime(moment)
    assert from_datetime(datetime(1970, 1, 1, tzinfo=UTC)) == 0
