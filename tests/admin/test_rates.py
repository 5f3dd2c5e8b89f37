"""Rates from the differences between looks."""

from __future__ import annotations

from headwater.admin.rates import Rates
from headwater.clock import ManualClock


def test_a_rate_is_what_came_since_the_last_look():
    clock = ManualClock()
    rates = Rates(clock)
    assert rates.rate("home", 100) is None
    clock.advance(2)
    assert rates.rate("home", 120) == 10
    clock.advance(4)
    assert rates.rate("home", 120) == 0


def test_who_looks_often_is_told_the_last_rate_again():
    clock = ManualClock()
    rates = Rates(clock)
    rates.rate("home", 0)
    clock.advance(1)
    assert rates.rate("home", 5) == 5
    clock.advance(0.1)
    assert rates.rate("home", 50) == 5
    clock.advance(0.9)
    assert rates.rate("home", 55) == 50


def test_what_shrinks_has_no_negative_rate():
    clock = ManualClock()
    rates = Rates(clock)
    rates.rate("home", 100)
    clock.advance(1)
    assert rates.rate("home", 10) == 0


def test_only_so_many_are_remembered():
    clock = ManualClock()
    rates = Rates(clock, kept_max=2)
    for name in ("a", "b", "c"):
        rates.rate(name, 0)
    clock.advance(1)
    assert rates.rate("c", 1) == 1
    assert rates.rate("a", 1) is None
