"""What happened between two looks: per second, and how long it took."""

from __future__ import annotations

import pytest

from headwater.server.watch.rates import Rates, quantile_s
from headwater.wire.administration import Figures, Histogram, RootFigures

BOUNDS = (1.0, 2.0, 4.0)


def figures(time_s: float, count: int, counts: tuple[int, ...], end: int, started_s: float = 0.0) -> Figures:
    return Figures(
        time_us=round(time_s * 1e6),
        started_us=round(started_s * 1e6),
        counters={"messages_in": count},
        gauges={},
        histograms={"commit": Histogram(bounds_s=BOUNDS, counts=counts, sum_s=0.0)},
        roots=(RootFigures(root="home", first=1, end=end, bytes=0, segments=1, topics=1),),
    )


def test_a_rate_is_what_was_added_between_two_looks():
    rates = Rates(figures(10, 100, (5, 0, 0, 0), 101), figures(12, 150, (5, 10, 0, 0), 141))
    assert rates.seconds == 2
    assert rates.per_s("messages_in") == 25
    assert rates.of_root_per_s("home") == 20
    assert rates.of_root_per_s("other") == 0
    assert rates.quantile_s("commit", 0.5) == 1.5


def test_without_a_look_before_or_after_a_restart_everything_since_the_start_counts():
    after = figures(12, 50, (4, 0, 0, 0), 51, started_s=10)
    for before in (None, figures(9, 1000, (9, 9, 9, 9), 1001)):
        rates = Rates(before, after)
        assert rates.per_s("messages_in") == 25
        assert rates.quantile_s("commit", 0.5) == 0.5


def test_two_looks_at_the_same_moment_divide_by_nothing():
    same = figures(10, 100, (5, 0, 0, 0), 101)
    assert Rates(same, same).per_s("messages_in") == 0
    assert Rates(same, same).quantile_s("commit", 0.99) is None


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((10, 0, 0, 0), 0.5, 0.5),
        ((10, 0, 0, 0), 1.0, 1.0),
        ((1, 1, 1, 1), 0.25, 1.0),
        ((1, 1, 1, 1), 0.75, 4.0),
        ((1, 1, 1, 1), 0.99, 4.0),
        ((0, 0, 0, 3), 0.5, 4.0),
        ((0, 4, 0, 0), 0.25, 1.25),
        ((0, 0, 0, 0), 0.5, None),
    ],
)
def test_a_quantile_lies_evenly_within_its_bucket(counts: tuple[int, ...], share: float, expected: float | None):
    assert quantile_s(Histogram(bounds_s=BOUNDS, counts=counts, sum_s=0.0), share) == expected
