from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.delivery.retry import delay_s


def none_drawn() -> float:
    return 0.0


def all_drawn() -> float:
    return 1.0


def test_the_delay_doubles_with_each_attempt() -> None:
    delays = [delay_s(attempt, 1.0, 300.0, 0.2, none_drawn) for attempt in range(1, 6)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_the_delay_never_exceeds_its_maximum() -> None:
    assert delay_s(20, 1.0, 300.0, 0.0, none_drawn) == 300.0


def test_a_million_attempts_do_not_overflow() -> None:
    assert delay_s(1_000_000, 1.0, 300.0, 0.2, none_drawn) == 300.0


def test_jitter_shortens_the_delay_by_its_share_at_most() -> None:
    assert delay_s(3, 1.0, 300.0, 0.25, all_drawn) == pytest.approx(3.0)


def test_a_first_delay_of_zero_means_at_once() -> None:
    assert delay_s(7, 0.0, 300.0, 0.2, all_drawn) == 0.0


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1))
def test_every_delay_lies_between_zero_and_the_maximum(
    attempt: int, first: float, most: float, share: float, drawn: float
) -> None:
    assert 0.0 <= delay_s(attempt, first, most, share, lambda: drawn) <= most
