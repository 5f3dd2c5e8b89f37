"""Gathering: how often those who were just answered are waited for."""

from __future__ import annotations

import pytest

from headwater import threads
from headwater.log.gathering import CALLERS_MIN, Gathering


def test_callers_that_do_not_come_back_are_waited_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    gathering = Gathering(threads.Lock())
    calls: list[float] = []

    def wait(seconds: float) -> bool:
        calls.append(seconds)
        return came_back

    monkeypatch.setattr(gathering._came, "wait", wait)

    def waits(groups: int) -> list[int]:
        """After which of so many groups the commit thread waits."""
        waited: list[int] = []
        for group in range(groups):
            gathering.answered = CALLERS_MIN
            before = len(calls)
            gathering.wait(0, 1000)
            waited += [group] * (len(calls) - before)
        return waited

    came_back = False
    assert waits(100) == [0, 5, 14, 31, 64]
    assert waits(200) == [29, 94, 159]
    came_back = True
    assert waits(40) == list(range(24, 40))
    came_back = False
    assert waits(10) == [0, 5]
