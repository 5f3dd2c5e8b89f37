"""A crowd that goes and comes back at once: in each turn of the loop some of it are heard, and others are served."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Connect, Disconnect, Publish
from headwater.native.connection import NativeConnection
from headwater.native.session import NativeSession
from headwater.server.turns import HEARD_AT_ONCE_MAX, LEAVING_AT_ONCE_MAX
from headwater.wire.frame import Frame, Kind, pack
from headwater.wire.handshake import Hello
from headwater.wire.requests import encode
from mqtt.peer import Served
from server.harness import PATIENCE_S, Running

CROWD = 100


class Turns:
    """What is done in each turn of the server's loop."""

    def __init__(self, running: Running, patch: pytest.MonkeyPatch, name: str) -> None:
        self.done: list[int] = [0]
        self._loop = running.loop
        real: Callable[..., Any] = getattr(NativeConnection, name)

        def counted(*args: Any) -> Any:
            self.done[-1] += 1
            return real(*args)

        patch.setattr(NativeConnection, name, counted)
        running.call(self._tick)

    def _tick(self) -> None:
        self.done.append(0)
        self._loop.call_soon(self._tick)


@contextmanager
def busy(running: Running) -> Iterator[None]:
    """The loop does something else meanwhile."""
    is_over, has_begun = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        is_over.wait(PATIENCE_S)

    running.loop.call_soon_threadsafe(work)
    has_begun.wait(PATIENCE_S)
    try:
        yield
    finally:
        is_over.set()


@pytest.fixture
def running() -> Iterator[Running]:
    with Running(auth="none") as made:
        yield made


HELLO = pack(Kind.HELLO, 0, encode(Hello(mechanism="none")))


def test_in_one_turn_of_the_loop_some_are_heard_and_all_in_the_end(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [running.connect() for _ in range(CROWD)]
    running.until(lambda: running.server.listener.count == CROWD)
    turns = Turns(running, monkeypatch, "_greet")
    with busy(running):
        for peer in peers:
            peer.send(HELLO)
    for peer in peers:
        peer.frame(Kind.CHALLENGE)
        peer.respond()
        peer.send(pack(Kind.OK))
        peer.register()
    assert sum(turns.done) >= CROWD
    assert max(turns.done) <= HEARD_AT_ONCE_MAX


def test_who_is_known_is_served_before_a_crowd_that_spoke_first(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = running.peer()
    peers = [running.connect() for _ in range(CROWD)]
    running.until(lambda: running.server.listener.count == CROWD + 1)
    turns = Turns(running, monkeypatch, "_greet")
    before: list[int] = []
    answer = NativeSession._on_frame

    def on_frame(self: NativeSession, connection: Any, frame: Frame) -> None:
        before.append(sum(turns.done))
        answer(self, connection, frame)

    monkeypatch.setattr(NativeSession, "_on_frame", on_frame)
    with busy(running):
        for peer in peers:
            peer.send(HELLO)
        known.send(pack(Kind.PING, 7))
    known.frame(Kind.PONG)
    assert before[0] < CROWD
    for peer in peers:
        peer.frame(Kind.CHALLENGE)


def test_who_goes_while_it_waits_for_its_turn_leaves_nothing(running: Running) -> None:
    peers = [running.connect() for _ in range(CROWD)]
    listener = running.server.listener
    running.until(lambda: listener.count == CROWD)
    with busy(running):
        for peer in peers:
            peer.send(HELLO)
            peer.close()
    running.until(lambda: listener.count == 0 and not listener.turns._waiting and not listener.turns._leaving)


def test_in_one_turn_some_of_those_who_leave_are_closed_and_all_in_the_end(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [running.peer() for _ in range(CROWD)]
    listener = running.server.listener
    turns = Turns(running, monkeypatch, "connection_lost")
    with busy(running):
        for peer in peers:
            peer.close()
    running.until(lambda: listener.count == 0)
    assert sum(turns.done) == CROWD
    assert max(turns.done) <= 2 * LEAVING_AT_ONCE_MAX
    assert not running.call(lambda: listener.turns._leaving)


def test_what_a_client_says_and_goes_is_taken_in_its_turn() -> None:
    with Served() as running:
        got = running.peer()
        got.subscribe(1, "home/#", kind="live")
        peers = [running.line() for _ in range(CROWD)]
        with busy(running):
            for number, peer in enumerate(peers):
                peer.send(Connect(f"c{number}", V5), Publish(f"home/{number}", b"x"), Disconnect())
                peer.socket.shutdown(socket.SHUT_WR)
        assert {one.topic for one in got.take(1, CROWD)} == {f"home/{number}" for number in range(CROWD)}
