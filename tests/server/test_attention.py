from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from headwater.clock import ManualClock, SystemClock
from headwater.server.attention import CLIENTS_MAX, CROWD_REST_US, TRIES, YIELD_REST_US, YIELD_US_MAX, Attention

STAY_US = 100
CLIENT = "one"


class Loop:
    """A loop whose turns are taken one by one."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()


def made(stay_us: int = STAY_US) -> tuple[Attention, Loop, ManualClock]:
    loop, clock = Loop(), ManualClock()
    return Attention(loop, clock, stay_us), loop, clock  # type: ignore[arg-type]  # all of a loop that it uses


def pass_us(clock: ManualClock, us: int) -> None:
    clock.advance(us / 1_000_000)


def test_a_message_that_comes_alone_keeps_nobody_awake() -> None:
    attention, loop, clock = made()
    for _ in range(3):
        pass_us(clock, 10 * STAY_US)
        attention.on_read(CLIENT)
        assert not loop.soon


def test_messages_that_follow_each_other_keep_the_loop_looking_until_nothing_came_for_a_while() -> None:
    attention, loop, clock = made()
    attention.on_read(CLIENT)
    pass_us(clock, STAY_US)
    attention.on_read(CLIENT)
    assert loop.soon, "the second came soon after the first"
    for _ in range(20):
        pass_us(clock, STAY_US // 2)
        loop.turn()
        attention.on_read(CLIENT)
        assert loop.soon, "something has come within the time"
    loop.turn()
    pass_us(clock, STAY_US + 1)
    loop.turn()
    assert not loop.soon, "nothing has"


def test_looking_in_vain_is_given_up_after_a_few_tries() -> None:
    attention, loop, clock = made()
    attention.on_read(CLIENT)
    tries = 0
    attention.on_read(CLIENT)
    while loop.soon:
        tries += 1
        loop.turn()
        pass_us(clock, 5 * STAY_US)
        loop.turn()
        pass_us(clock, 5 * STAY_US)
        attention.on_read(CLIENT)
    assert tries == TRIES


def test_many_clients_at_once_need_nobody_to_wait_for_them() -> None:
    attention, loop, clock = made()
    attention.on_read(CLIENT)
    attention.on_read(CLIENT)
    for number in range(CLIENTS_MAX):
        attention.on_read(number)
    loop.turn()
    assert not loop.soon
    pass_us(clock, CROWD_REST_US - 1)
    attention.on_read(CLIENT)
    attention.on_read(CLIENT)
    assert not loop.soon, "it rests"
    pass_us(clock, STAY_US)
    attention.on_read(CLIENT)
    attention.on_read(CLIENT)
    assert loop.soon, "and looks again after a while"


def test_a_core_that_others_can_use_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, loop, clock = made()
    monkeypatch.setattr("os.sched_yield", lambda: pass_us(clock, YIELD_US_MAX + 1))
    attention.on_read(CLIENT)
    attention.on_read(CLIENT)
    loop.turn()
    assert not loop.soon
    pass_us(clock, YIELD_REST_US)
    attention.on_read(CLIENT)
    attention.on_read(CLIENT)
    assert loop.soon


def test_where_it_is_turned_off_the_loop_sleeps_at_once() -> None:
    attention, loop, _ = made(stay_us=0)
    for _ in range(5):
        attention.on_read(CLIENT)
    assert not loop.soon


def test_a_real_loop_sleeps_again_once_nothing_comes() -> None:
    async def main() -> tuple[bool, bool]:
        attention = Attention(asyncio.get_running_loop(), SystemClock(), 1000)
        attention.on_read(CLIENT)
        attention.on_read(CLIENT)
        before = attention._is_awake
        await asyncio.sleep(0.05)
        return before, attention._is_awake

    assert asyncio.run(main()) == (True, False)
