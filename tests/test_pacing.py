"""Long work pauses, and threads hand the interpreter over."""

from __future__ import annotations

import sys

import pytest

from headwater import pacing
from headwater.clock import SystemClock
from headwater.pacing import Pacing, hand_over_sooner


def test_a_server_has_its_threads_hand_the_interpreter_over_sooner_than_python_does():
    before = sys.getswitchinterval()
    try:
        hand_over_sooner()
        assert sys.getswitchinterval() == pytest.approx(pacing.SWITCH_S)
    finally:
        sys.setswitchinterval(before)
    assert before > pacing.SWITCH_S


def test_work_pauses_only_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now_us = [0]
    monkeypatch.setattr(SystemClock, "monotonic_us", lambda _: now_us[0])
    waited: list[int] = []

    def wait(_: SystemClock, __: object, timeout_us: int) -> None:
        waited.append(timeout_us)
        now_us[0] += timeout_us

    monkeypatch.setattr(SystemClock, "wait", wait)
    work = Pacing()
    assert work.take() == 0
    now_us[0] += pacing.WORK_US
    assert work.take() == pacing.PAUSE_US
    assert work.take() == 0
    assert waited == [pacing.PAUSE_US]
