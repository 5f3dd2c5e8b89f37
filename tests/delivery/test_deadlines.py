"""Deadlines: the next hand-out that times out, whatever became of the others."""

from __future__ import annotations

from headwater.delivery.deadlines import KEPT_MIN, Deadlines
from headwater.delivery.lane import Lease


def lease(number: int, deadline_us: int) -> Lease:
    return Lease("consumer", (1, False), deadline_us, [number], number)


def test_the_next_is_the_earliest_that_is_open() -> None:
    closed = {1}
    deadlines = Deadlines(lambda one: one.number not in closed, 10)
    for number, deadline_us in ((1, 5), (2, 9), (3, 7), (4, 0)):
        deadlines.add(lease(number, deadline_us))
    assert deadlines.next_us() == 7
    closed.add(3)
    assert deadlines.next_us() == 9
    assert len(deadlines) == 1


def test_one_that_was_given_more_time_is_not_over() -> None:
    deadlines = Deadlines(lambda _: True, 10)
    given, other = lease(1, 5), lease(2, 8)
    deadlines.add(given)
    deadlines.add(other)
    given.deadline_us = 20
    deadlines.add(given)
    assert deadlines.over(4) is None
    assert deadlines.over(8) is other
    deadlines.drop_next()
    assert deadlines.over(19) is None
    assert deadlines.over(20) is given


def test_those_that_are_over_take_no_memory() -> None:
    deadlines = Deadlines(lambda _: False, 10)
    for number in range(10 * KEPT_MIN):
        deadlines.add(lease(number, 1 + number))
    assert len(deadlines) <= KEPT_MIN + 21
