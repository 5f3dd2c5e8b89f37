"""Handlers on a connection that is lost and comes back: what was not acked comes again, and they go on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import headwater
import headwater.aio
from client.served import Served
from work.shifts import WAIT_S, running, until

QUICK = headwater.Connecting(reconnect_delay_s=0.01, reconnect_delay_s_max=0.05)
COUNT = 60


def test_handlers_in_threads_go_on_after_the_server_was_gone(tmp_path: Path) -> None:
    seen: list[int] = []
    half, go = threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        seen.append(message.offset)
        if message.offset == COUNT // 2 and not go.is_set():
            half.set()
            go.wait(WAIT_S)

    with Served(tmp_path / "data") as served, headwater.connect(served.url, QUICK) as bus:
        bus.publish_many([("a/b", b"")] * COUNT)
        bus.consume("a/#", handle, id="s", start="earliest")
        with running(bus) as shift:
            assert half.wait(WAIT_S)
            served.stop()
            served.start()
            go.set()
            until(lambda: COUNT in seen and bus.subscriptions()[0].lag == 0)
    assert set(seen) == set(range(1, COUNT + 1))
    assert shift.shift.done >= COUNT // 2
    assert len(seen) == shift.tally()["done"] + shift.tally()["recalled"]


def test_handlers_in_tasks_go_on_after_the_server_was_gone(tmp_path: Path) -> None:
    seen: list[int] = []

    async def work(served: Served) -> None:
        half, go = asyncio.Event(), asyncio.Event()

        async def handle(message: Any) -> None:
            seen.append(message.offset)
            if message.offset == COUNT // 2 and not go.is_set():
                half.set()
                await go.wait()

        async with asyncio.timeout(WAIT_S), headwater.aio.connect(served.url, QUICK) as bus:
            await bus.publish_many([("a/b", b"")] * COUNT)
            bus.consume("a/#", handle, id="s", start="earliest")
            task = asyncio.create_task(bus.run())
            await half.wait()
            await asyncio.to_thread(served.stop)
            await asyncio.to_thread(served.start)
            go.set()
            while COUNT not in seen or (await bus.subscriptions())[0].lag:  # noqa: ASYNC110  # it happens elsewhere
                await asyncio.sleep(0.01)
            bus.stop()
            await task

    with Served(tmp_path / "data") as served:
        asyncio.run(work(served))
    assert set(seen) == set(range(1, COUNT + 1))
