"""Growth from the differences between looks."""

from __future__ import annotations

from headwater.admin.api.growth import Growth
from headwater.clock import ManualClock


def test_a_rate_is_what_came_since_the_last_look():
    clock = ManualClock()
    growth = Growth(clock)
    assert growth.rate("home", 100) is None
    clock.advance(2)
    assert growth.rate("home", 120) == 10
    clock.advance(4)
    assert growth.rate("home", 120) == 0


def test_who_looks_often_is_told_the_last_rate_again():
    clock = ManualClock()
    growth = Growth(clock)
    growth.rate("home", 0)
    clock.advance(1)
    assert growth.rate("home", 5) == 5
    clock.advance(0.1)
    assert growth.rate("home", 50) == 5
    clock.advance(0.9)
    assert growth.rate("home", 55) == 50


def test_what_shrinks_has_no_negative_rate():
    clock = ManualClock()
    growth = Growth(clock)
    growth.rate("home", 100)
    clock.advance(1)
    assert growth.rate("home", 10) == 0


def test_only_so_many_are_remembered():
    clock = ManualClock()
    growth = Growth(clock, kept_max=2)
    for name in ("a", "b", "c"):
        growth.rate(name, 0)
    clock.advance(1)
    assert growth.rate("c", 1) == 1
    assert growth.rate("a", 1) is None
