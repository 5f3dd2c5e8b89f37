"""Whoever is accepted while the server closes is let go: his socket is closed, and his place is free again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from headwater.server.accepting import Door, listen, listen_unix


class Keeper:
    """Has room for everybody, and counts who is on the way in."""

    handshake_s = 5.0
    has_room = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.arriving = 0
        self.came = asyncio.Event()

    def when_room(self, call: Callable[[], None]) -> None:
        raise AssertionError(call)

    def on_arrival(self, network: str, weight: int) -> bool:
        self.arriving += 1
        self.came.set()
        return True

    def on_arrived(self, network: str, weight: int) -> None:
        self.arriving -= 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_those_who_are_accepted_as_the_door_closes_are_let_go(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        keeper = Keeper(loop)
        door = await listen(keeper, asyncio.Protocol, "127.0.0.1", 0, None)
        peers = [socket.create_connection(("127.0.0.1", door.port)) for _ in range(3)]
        try:
            await keeper.came.wait()
            door.close()  # in the turn after they were accepted: their tasks have not begun
            await asyncio.sleep(0.05)
            assert keeper.arriving == 0
            for peer in peers:
                peer.settimeout(5.0)
                assert not peer.recv(1)
        finally:
            for peer in peers:
                peer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(play())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_is_just_connected_as_the_door_closes_is_heard_of_until_he_has_gone(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def play() -> None:
        lost = asyncio.Event()
        doors: list[Door] = []
        guests: list[asyncio.BaseTransport] = []

        class Guest(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                guests.append(transport)
                doors[0].close()  # the task that let him in has not ended

            def connection_lost(self, exc: Exception | None) -> None:
                lost.set()

        keeper = Keeper(asyncio.get_running_loop())
        doors.append(await listen_unix(keeper, Guest, str(tmp_path / "socket")))
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(tmp_path / "socket"))
        async with asyncio.timeout(5.0):
            await lost.wait()
        assert keeper.arriving == 0

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(play())
