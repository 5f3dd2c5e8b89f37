"""Subscriptions that go with the session of an embedded bus."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import headwater
import headwater.aio
from headwater import ManualClock
from headwater.delivery.own_session import LEFT_S

WAIT_S = 20.0


def test_it_keeps_its_place_while_the_bus_is_open_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "bus") as bus:
        with bus.subscribe("home/#", kind="session") as sub:
            assert sub.id == f"{bus.session}:home/#"
        bus.publish_many([("home/a", b"1"), ("home/a", b"2")])
        with bus.subscribe("home/#", kind="session") as sub:
            message = sub.next(WAIT_S)
            assert message is not None
            assert message.payload == b"1"
            message.ack()
        assert [(info.id, info.lag) for info in bus.subscriptions()] == [(f"{bus.session}:home/#", 1)]
    with headwater.open(tmp_path / "bus") as bus:
        assert bus.subscriptions() == []


def test_its_dead_letters_stay_for_a_while(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "bus") as bus:
        sub = bus.subscribe("home/#", kind="session")
        bus.publish("home/a", b"1")
        message = sub.next(WAIT_S)
        assert message is not None
        message.reject("why")
    with headwater.open(tmp_path / "bus") as bus:
        assert [letter.errors for letter in bus.dead_letters(sub.id)] == [("why",)]


def test_one_that_a_crash_has_left_expires_and_one_of_an_open_bus_does_not(tmp_path: Path, clock: ManualClock) -> None:
    code = (
        "import headwater, os, signal, sys\n"
        "bus = headwater.open(sys.argv[1], clock=headwater.ManualClock())\n"
        "sub = bus.subscribe('home/#', kind='session')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path / "bus")], check=False, env=os.environ)
    assert died.returncode == -signal.SIGKILL
    with headwater.open(tmp_path / "bus", clock=clock) as bus:
        (left,) = bus.subscriptions()
        bus.subscribe("office/#", kind="session").close()
        for _ in range(5):
            clock.advance(LEFT_S / 2)
            bus.core.dispatcher.expire()
        assert [info.id for info in bus.subscriptions()] == [f"{bus.session}:office/#"]
        assert left.id.endswith(":home/#")
        assert not left.id.startswith(str(bus.session))


def test_handlers_and_asyncio_have_it_too() -> None:
    async def work() -> list[bytes]:
        found: list[bytes] = []
        opening = headwater.aio.open(":memory:")

        @opening.handler("home/#", kind="session")
        async def handle(message: headwater.aio.Message) -> None:
            found.append(message.payload)
            bus.stop()

        async with opening as bus:
            async with bus.subscribe("home/#", kind="session"):
                await bus.publish("home/a", b"1")
            await bus.run()
            assert (await bus.subscriptions())[0].id == f"{bus.session}:home/#"
        return found

    assert asyncio.run(work()) == [b"1"]
