"""Limits: against a model, with a clock that moves when told, and with memory that stays bounded."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.access.quota import Guesses, Quota
from headwater.clock import ManualClock
from headwater.errors import Malformed, QuotaExceeded


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def is_refused(quota: Quota, user: str, count: int) -> bool:
    try:
        quota.take(user, count)
    except QuotaExceeded:
        return True
    return False


def wait_of(quota: Quota, user: str, count: int) -> float:
    with pytest.raises(QuotaExceeded, match="try again in") as refused:
        quota.take(user, count)
    found = re.search(r"in ([\d.]+) s", str(refused.value))
    assert found is not None
    return float(found[1])


# Quota


def test_a_minute_s_worth_may_be_taken_at_once_and_no_more(clock: ManualClock):
    quota = Quota(60, clock)
    quota.take("ann", 60)
    assert is_refused(quota, "ann", 1)
    quota.take("bob", 60)


def test_it_comes_back_steadily(clock: ManualClock):
    quota = Quota(60, clock)
    quota.take("ann", 60)
    clock.advance(0.999)
    assert is_refused(quota, "ann", 1)
    clock.advance(0.001)
    quota.take("ann", 1)
    assert is_refused(quota, "ann", 1)
    clock.advance(10)
    quota.take("ann", 10)
    assert is_refused(quota, "ann", 1)


def test_no_more_gathers_than_a_minute_s_worth(clock: ManualClock):
    quota = Quota(60, clock)
    quota.take("ann", 1)
    clock.advance(86_400)
    quota.take("ann", 60)
    assert is_refused(quota, "ann", 1)


@pytest.mark.parametrize("per_minute", [1, 7, 60, 1000])
def test_who_waits_as_told_gets_it_and_not_before(per_minute: int):
    clock = ManualClock()
    quota = Quota(per_minute, clock)
    quota.take("ann", per_minute)
    wait_s = wait_of(quota, "ann", 1)
    clock.advance(wait_s - 0.001)
    assert is_refused(quota, "ann", 1)
    clock.advance(0.001)
    quota.take("ann", 1)


def test_what_is_refused_costs_nothing(clock: ManualClock):
    quota = Quota(10, clock)
    quota.take("ann", 8)
    for _ in range(100):
        assert is_refused(quota, "ann", 3)
    quota.take("ann", 2)


def test_more_than_will_ever_be_allowed_is_told_so(clock: ManualClock):
    quota = Quota(10, clock)
    with pytest.raises(
        QuotaExceeded, match=r'client "ann" asked for 11 new topics at once.*10 a minute; ask for fewer'
    ):
        quota.take("ann", 11)
    with pytest.raises(QuotaExceeded, match="ask for fewer"):
        Quota(0, clock).take("ann", 1)
    Quota(0, clock).take("ann", 0)
    with pytest.raises(Malformed):
        quota.take("ann", -1)
    assert quota.tracked == 0


def test_the_refusal_says_what_and_when(clock: ManualClock):
    quota = Quota(6, clock, what="messages")
    quota.take("ann", 6)
    with pytest.raises(QuotaExceeded) as refused:
        quota.take("ann", 1)
    assert str(refused.value) == (
        'QuotaExceeded(429): client "ann" may have 6 messages a minute; try again in 10.000 s'
    )
    assert refused.value.retryable


def test_a_jump_of_the_wall_clock_gives_nothing(clock: ManualClock):
    quota = Quota(10, clock)
    quota.take("ann", 10)
    clock.jump(86_400)
    assert is_refused(quota, "ann", 1)
    clock.jump(-2 * 86_400)
    clock.advance(6)
    quota.take("ann", 1)


def test_full_buckets_are_forgotten(clock: ManualClock):
    quota = Quota(60, clock)
    quota.take("ann", 1)
    for number in range(99):
        quota.take(f"u{number}", 60)
    assert quota.tracked == 100
    clock.advance(60)
    for _ in range(60):
        quota.take("ann", 1)
    assert quota.tracked == 1


def test_a_client_that_goes_on_is_not_forgotten_and_given_a_new_bucket(clock: ManualClock):
    quota = Quota(60, clock)
    taken = 0
    for second in range(300):
        quota.take(f"other{second}", 60)
        for _ in range(5):
            taken += not is_refused(quota, "ann", 1)
        clock.advance(1)
    assert taken == 60 + 299


def test_there_are_never_more_buckets_than_the_limit(clock: ManualClock):
    quota = Quota(60, clock, tracked_max=10)
    for number in range(1000):
        quota.take(f"u{number}", 60)
        assert quota.tracked <= 10
    assert is_refused(quota, "u999", 1)
    quota.take("u0", 60)  # the price of the limit: who was forgotten begins anew


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 90_000_000)), max_size=40),
)
def test_a_bucket_is_that_of_a_model(per_minute: int, calls: list[tuple[str, int, int]]):
    clock = ManualClock()
    quota = Quota(per_minute, clock)
    left = {"a": per_minute * 60_000_000, "b": per_minute * 60_000_000}
    for user, count, then_us in calls:
        cost = count * 60_000_000
        assert is_refused(quota, user, count) == (cost > left[user])
        if cost <= left[user]:
            left[user] -= cost
        clock.advance(then_us / 1_000_000)
        left = {name: min(per_minute * 60_000_000, rest + then_us * per_minute) for name, rest in left.items()}


def test_threads_together_get_no_more_than_one(clock: ManualClock):
    quota = Quota(1000, clock)
    taken = [0, 0, 0, 0]

    def take(place: int) -> None:
        for _ in range(500):
            taken[place] += not is_refused(quota, "ann", 1)

    threads = [threading.Thread(target=take, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1000


@pytest.mark.parametrize("wrong", [{"per_minute": -1}, {"per_minute": 1, "tracked_max": 0}])
def test_a_quota_that_cannot_be_is_refused(clock: ManualClock, wrong: dict[str, Any]):
    with pytest.raises(Malformed):
        Quota(clock=clock, **wrong)


# Guesses


def test_each_failure_waits_twice_as_long_up_to_a_limit(clock: ManualClock):
    guesses = Guesses(clock, delay_s=0.25, delay_s_max=3)
    delays = []
    for _ in range(8):
        guesses.failed("ann@1.2.3.4")
        delays.append(guesses.delay_s("ann@1.2.3.4"))
    assert delays == [0.25, 0.5, 1, 2, 3, 3, 3, 3]


def test_who_has_not_failed_waits_for_nothing(clock: ManualClock):
    guesses = Guesses(clock)
    guesses.failed("ann@1.2.3.4")
    assert guesses.delay_s("ann@5.6.7.8") == 0
    assert guesses.delay_s("bob@1.2.3.4") == 0


def test_success_forgives(clock: ManualClock):
    guesses = Guesses(clock)
    for _ in range(5):
        guesses.failed("ann")
    guesses.succeeded("ann")
    guesses.succeeded("bob")
    assert guesses.delay_s("ann") == 0
    assert guesses.tracked == 0
    guesses.failed("ann")
    assert guesses.delay_s("ann") == 0.25


def test_time_forgives_one_failure_after_the_other(clock: ManualClock):
    guesses = Guesses(clock, delay_s=1, delay_s_max=8, forgive_s=60)
    for _ in range(100):
        guesses.failed("ann")
    seen = [guesses.delay_s("ann")]
    for _ in range(5):
        clock.advance(59.9)
        assert guesses.delay_s("ann") == seen[-1]
        clock.advance(0.1)
        seen.append(guesses.delay_s("ann"))
    assert seen == [8, 4, 2, 1, 0, 0]


def test_guessing_on_for_long_does_not_mean_waiting_forever(clock: ManualClock):
    guesses = Guesses(clock)
    for _ in range(100_000):
        guesses.failed("ann")
    assert guesses.delay_s("ann") == 10
    clock.advance(60 * 8)
    assert guesses.delay_s("ann") == 0


def test_a_jump_of_the_wall_clock_forgives_nothing(clock: ManualClock):
    guesses = Guesses(clock)
    guesses.failed("ann")
    clock.jump(86_400)
    assert guesses.delay_s("ann") == 0.25


def test_guessers_that_waited_are_forgotten(clock: ManualClock):
    guesses = Guesses(clock)
    for number in range(50):
        guesses.failed(f"u{number}")
    assert guesses.tracked == 50
    clock.advance(60)
    for _ in range(30):
        guesses.failed("ann")
    assert guesses.tracked == 1
    assert guesses.delay_s("ann") == 10


def test_there_are_never_more_guessers_than_the_limit_and_the_newest_stay(clock: ManualClock):
    guesses = Guesses(clock, tracked_max=10)
    for number in range(1000):
        guesses.failed("ann")
        guesses.failed(f"u{number}")
        assert guesses.tracked <= 10
    assert guesses.delay_s("ann") == 10
    assert guesses.delay_s("u999") == 0.25


def test_looking_remembers_nobody(clock: ManualClock):
    guesses = Guesses(clock)
    for number in range(100):
        guesses.delay_s(f"u{number}")
    assert guesses.tracked == 0


def test_without_a_delay_nobody_waits(clock: ManualClock):
    guesses = Guesses(clock, delay_s=0)
    guesses.failed("ann")
    assert guesses.delay_s("ann") == 0


@pytest.mark.parametrize(
    "wrong", [{"delay_s": -1}, {"delay_s": 2, "delay_s_max": 1}, {"forgive_s": 0}, {"tracked_max": 0}]
)
def test_guesses_that_cannot_be_are_refused(clock: ManualClock, wrong: dict[str, Any]):
    with pytest.raises(Malformed):
        Guesses(clock, **wrong)
