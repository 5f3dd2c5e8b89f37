"""The simulated world itself: threads that take turns, time that jumps, and bytes that keep their order."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headwater import threads
from sim.loop import Loop
from sim.network import Network
from sim.seams import opened, tidied
from sim.world import SECOND_US, Process, World


class Place:
    """A world to try things in."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self._seams = ExitStack()
        self._seams.enter_context(tidied())
        self.threads = self._seams.enter_context(opened(self.world, self.network, seed))

    def close(self) -> None:
        self._seams.close()

    def disturb(self, how: str) -> None:
        """Do something to the only connection."""
        getattr(self.network.connections[1], how)()

    def run(self, *works: Callable[[], None], seconds: float = 60.0) -> bool:
        """Threads of one process; whether all of them end in time."""
        process = Process(self.world, "process")
        begun = [process.spawn(work, f"thread{number}") for number, work in enumerate(works)]
        until_us = self.world.now_us + int(seconds * SECOND_US)
        return self.world.run(lambda: all(thread.is_done for thread in begun), until_us)

    def serve(self, name: str, work: Callable[[Loop], Coroutine[Any, Any, None]]) -> Process:
        """A process with a loop."""
        process = Process(self.world, name)
        loop = Loop(process, self.network, self.threads)
        process.spawn(lambda: loop.run(work(loop)), "main")
        return process


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def test_a_real_thread_that_was_left_behind_goes_on_with_real_ones(place: Place) -> None:
    done: list[bool] = []

    def begin_another() -> None:
        with threads.Lock(), threads.Condition():
            other = threads.Thread(target=lambda: done.append(True))
        other.start()
        other.join()

    left = threading.Thread(target=begin_another)
    left.start()
    left.join()
    assert done


def draw() -> list[bytes | float]:
    """Chance of every kind that the product asks for."""
    return [random.random(), random.uniform(1, 2), secrets.token_bytes(8), os.urandom(8)]


def disturb() -> None:
    draw()
    logging.getLogger("headwater").error("somebody else's")


def test_what_a_real_thread_draws_and_says_is_not_of_this_world() -> None:
    drawn: list[list[bytes | float]] = []
    for is_disturbed in (False, True):
        place = Place()

        def look(place: Place = place, is_disturbed: bool = is_disturbed) -> None:
            if is_disturbed:
                left = threading.Thread(target=disturb)
                left.start()
                left.join()
            drawn.append(draw())
            assert not place.world.logged

        assert place.run(look)
        place.close()
        assert not place.world.troubles
    assert drawn[0] == drawn[1]


def test_a_lock_is_held_by_one_at_a_time_and_time_passes_while_others_wait(place: Place) -> None:
    lock, inside, most = threads.Lock(), [0], [0]

    def work() -> None:
        for _ in range(20):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                place.world.pause(100)
                inside[0] -= 1

    began_us = place.world.now_us
    assert place.run(work, work, work)
    assert most == [1]
    assert place.world.now_us - began_us >= 60 * 100


def test_a_condition_wakes_one_and_a_timeout_is_told(place: Place) -> None:
    condition, told = threads.Condition(), []

    def wait() -> None:
        with condition:
            told.append(condition.wait(5.0))

    def wake() -> None:
        place.world.pause(1_000_000)
        with condition:
            condition.notify()

    assert place.run(wait, wait, wake)
    assert sorted(told) == [False, True]


def test_those_who_wait_for_each_other_are_seen_to_wait_for_ever(place: Place) -> None:
    first, second = threads.Lock(), threads.Lock()

    def one() -> None:
        with first:
            place.world.pause(10)
            with second:
                pass

    def other() -> None:
        with second:
            place.world.pause(10)
            with first:
                pass

    assert not place.run(one, other)


def test_a_thread_is_joined_and_a_pool_answers(place: Place) -> None:
    answers = []

    def work() -> None:
        thread = threads.Thread(target=lambda: answers.append(threads.get_ident()))
        thread.start()
        thread.join()
        with_pool = threads.ThreadPoolExecutor(2)
        futures = [with_pool.submit(pow, number, 2) for number in range(5)]
        answers.extend(future.result() for future in futures)
        with_pool.shutdown()

    assert place.run(work)
    assert answers[1:] == [0, 1, 4, 9, 16]
    assert answers[0] > 0


def test_a_killed_process_does_nothing_more(place: Place) -> None:
    done = []

    def work() -> None:
        place.world.pause(1000)
        try:
            place.world.pause(1_000_000)
        finally:
            done.append("let go")
        done.append("never")

    process = Process(place.world, "process")
    process.spawn(work, "work")
    place.world.after(2000, process.kill)
    place.world.run(lambda: False, place.world.now_us + 10 * SECOND_US)
    assert done == ["let go"]


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]  # it is one that writes


class Taker(asyncio.Protocol):
    """Keeps what comes."""

    def __init__(self) -> None:
        self.got = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def echo(place: Place, sent: bytes, disturb: Callable[[], None] = lambda: None, seconds: float = 60.0) -> Taker:
    """What comes back of something that is sent."""
    taker = Taker()

    async def listen(loop: Loop) -> None:
        await loop.create_server(Echo, "127.0.0.1", 1000)
        await asyncio.Event().wait()

    async def connect(loop: Loop) -> None:
        await asyncio.sleep(0.1)
        transport, _ = await loop.create_connection(lambda: taker, "127.0.0.1", 1000)
        transport.write(sent)
        await asyncio.sleep(0.0001)
        disturb()
        await asyncio.Event().wait()

    place.serve("server", listen)
    place.serve("client", connect)
    place.world.run(lambda: len(taker.got) == len(sent), place.world.now_us + int(seconds * SECOND_US))
    return taker


def test_bytes_arrive_in_order_however_they_are_cut(place: Place) -> None:
    sent = bytes(range(256)) * 1000
    assert echo(place, sent).got == sent


def test_a_stall_delays_and_loses_nothing(place: Place) -> None:
    def stall() -> None:
        place.network.connections[1].stall(30)

    began_us = place.world.now_us
    assert echo(place, b"x" * 100_000, stall).got == b"x" * 100_000
    assert place.world.now_us - began_us > 30 * SECOND_US


def test_a_reset_is_told_to_both(place: Place) -> None:
    taker = echo(place, b"x" * 100_000, lambda: place.disturb("reset"))
    assert len(taker.got) < 100_000
    assert isinstance(taker.lost[0], ConnectionResetError)
    assert not place.network.connections


def test_a_connection_that_goes_silent_is_told_to_nobody(place: Place) -> None:
    taker = echo(place, b"x" * 100_000, lambda: place.disturb("go_silent"))
    assert len(taker.got) < 100_000
    assert not taker.lost


def test_nobody_listens_where_nobody_does(place: Place) -> None:
    told: list[str] = []

    async def connect(loop: Loop) -> None:
        try:
            await loop.create_connection(Taker, "127.0.0.1", 1)
        except ConnectionRefusedError:
            told.append("refused")

    place.serve("client", connect)
    assert place.world.run(lambda: bool(told), place.world.now_us + SECOND_US)


def test_what_was_there_before_is_there_again_afterwards() -> None:
    lock = threads.Lock
    place = Place()
    assert threads.Lock is not lock
    place.close()
    assert threads.Lock is lock
