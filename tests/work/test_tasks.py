"""Handlers that are coroutine functions, embedded and served: the same promises as with threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import Conflict, Malformed, Reject, Retry
from headwater.aio import Message
from headwater.client.aio import Bus as Client
from headwater.work.pace import Pace
from headwater.work.pool import FLUSH_US

Flow = Callable[[Any], Awaitable[None]]
On = Callable[[Flow], None]


@pytest.fixture(params=["embedded", "served"])
def on(request: pytest.FixtureRequest, tmp_path: Path) -> On:
    """Runs a flow on a bus for asyncio."""

    def run(flow: Flow) -> None:
        served = Served(tmp_path / "data") if request.param == "served" else nullcontext()
        with served:

            async def work() -> None:
                opening: Any = (
                    headwater.aio.connect(served.url)
                    if isinstance(served, Served)
                    else headwater.aio.open(tmp_path / "data")
                )
                async with asyncio.timeout(60), opening as bus:
                    await flow(bus)

            asyncio.run(work())

    return run


@asynccontextmanager
async def running(bus: Any, **options: Any) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(bus.run(**options))
    try:
        yield task
    finally:
        await asyncio.sleep(0)
        bus.stop()
    await task


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # what is waited for happens elsewhere
        await asyncio.sleep(0.01)


async def publish(bus: Any, count: int, topic: str = "a/b") -> None:
    await bus.publish_many([(topic, b"%d" % number) for number in range(count)])


async def lag(bus: Any) -> int:
    found: int = (await bus.subscriptions())[0].lag
    return found


def test_acks_failures_and_verdicts_in_strict_order(on: On, caplog: Any) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 200)
        seen: list[tuple[int, int]] = []

        @bus.handler("a/#", id="s", start="earliest", retry_delay_s=300)  # type: ignore[untyped-decorator]  # of any bus
        async def handle(message: Message) -> None:
            seen.append((message.offset, message.attempt))
            await asyncio.sleep(0)
            if message.offset == 4 and message.attempt == 1:
                raise Retry("busy", after_s=0)
            if message.offset == 5:
                raise Reject("no such room")
            if message.offset == 200:
                raise ValueError("last")

        async with running(bus) as task:
            await until(lambda: len(seen) == 201)
        assert [offset for offset, _ in seen] == [1, 2, 3, 4, *range(4, 201)]
        (tally,) = task.result().handlers
        assert (tally.done, tally.retried, tally.rejected, tally.recalled) == (198, 2, 1, 0)
        assert [letter.errors for letter in await bus.dead_letters("s")] == [("no such room",)]
        (found,) = await bus.states("s")
        assert (found.offset, found.error.splitlines()[0]) == (200, "ValueError: last")
        assert "/tasks.py" not in found.error
        assert await lag(bus) == 1

    with caplog.at_level(logging.WARNING, "headwater.work"):
        on(flow)
    assert sum(record.name == "headwater.work" for record in caplog.records) == 3


def test_without_order_many_wait_at_once_and_live_ones_one_after_another(on: On) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 60)
        at_once = most = 0
        live: list[bytes] = []

        async def wait(_: Message) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.05)
            at_once -= 1

        async def look(message: Message) -> None:
            await asyncio.sleep(0)
            live.append(message.payload)

        bus.consume("a/#", wait, id="s", start="earliest", order="none", workers=20)
        bus.consume("b/#", look)
        async with running(bus) as task:
            await until(lambda: most == 20)
            await publish(bus, 10, "b/c")
            await until(lambda: len(live) == 10)
            while await lag(bus):  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.01)
        assert live == [b"%d" % number for number in range(10)]
        assert task.result().done == 70
        assert most == 20

    on(flow)


def test_keyed_order_is_kept_within_each_key(on: On) -> None:
    async def flow(bus: Any) -> None:
        for number in range(40):
            await bus.publish("a/b", b"", key=b"%d" % (number % 5))
        seen: dict[bytes, list[int]] = {}
        busy: set[bytes] = set()
        most = 0
        failed: set[int] = set()

        async def handle(message: Message) -> None:
            nonlocal most
            assert message.key is not None
            assert message.key not in busy
            busy.add(message.key)
            most = max(most, len(busy))
            await asyncio.sleep(0.002)
            busy.discard(message.key)
            if message.offset % 10 == 0 and message.offset not in failed:
                failed.add(message.offset)
                raise ValueError("once")
            seen.setdefault(message.key, []).append(message.offset)

        bus.consume("a/#", handle, id="s", start="earliest", order="key", workers=8, retry_delay_s=0)
        async with running(bus) as task:
            await until(lambda: sum(map(len, seen.values())) >= 40)
        assert all(offsets == sorted(offsets) for offsets in seen.values()), seen
        assert sum(map(len, seen.values())) == 40
        assert most > 1
        (tally,) = task.result().handlers
        assert (tally.done, tally.retried, tally.rejected, tally.recalled) == (40, 4, 0, 0)
        assert await lag(bus) == 0

    on(flow)


@pytest.mark.parametrize("order", ["strict", "key"])
@pytest.mark.parametrize("raises", [False, True])
def test_what_is_behind_a_message_that_its_handler_acked_is_handled_at_once(
    on: On, order: str, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of it later is refused, though nothing was taken back."""
    monkeypatch.setattr(Pace, "note", lambda *_: None)

    async def flow(bus: Any) -> None:
        for _ in range(6):
            await publish(bus, 1)
        seen: list[int] = []

        async def handle(message: Message) -> None:
            seen.append(message.offset)
            if message.offset == 1:  # until all others can be taken at once
                bus._workers.pool.roster.queues[0].pace.size = 6
                while isinstance(bus, Client) and ((await bus.subscriptions())[0].in_flight or 0) < 6:  # noqa: ASYNC110  # the same
                    await asyncio.sleep(0.01)
            elif message.offset == 2:
                await message.ack()
                await asyncio.sleep(2 * FLUSH_US / 1e6)
                if raises:
                    raise ValueError("after all")

        bus.consume("a/#", handle, id="s", start="earliest", order=order, workers=2, ack_timeout_s=300)
        async with running(bus):
            await until(lambda: len(seen) == 6)
        assert seen == [1, 2, 3, 4, 5, 6]
        assert await lag(bus) == 0

    on(flow)


def test_a_handler_may_stop_the_bus_that_was_yet_to_be_opened(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as there:
        there.publish("a/b", b"1")
    bus = headwater.aio.open(tmp_path / "data")
    bus.stop()  # it does not run yet, so there is nothing to stop

    @bus.handler("a/#", id="s", start="earliest")
    async def handle(message: Message) -> None:
        bus.stop()

    async def flow() -> int:
        async with asyncio.timeout(60):
            return (await bus.run()).done

    assert asyncio.run(flow()) == 1


def test_stopping_finishes_what_is_begun_and_gives_back_the_rest(on: On) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 5)
        begun, go = asyncio.Event(), asyncio.Event()
        seen: list[int] = []

        async def handle(message: Message) -> None:
            begun.set()
            await go.wait()
            seen.append(message.offset)

        bus.consume("a/#", handle, id="s", start="earliest")
        async with running(bus) as task:
            await begun.wait()
            with pytest.raises(Conflict, match="already"):
                await bus.run()
            asyncio.get_running_loop().call_later(0.05, go.set)
        assert (seen, task.result().done) == ([1], 1)
        async with bus.subscribe("a/#", id="s") as sub:
            message = await sub.next(60)
            assert (message.offset, message.attempt) == (2, 1)

    on(flow)


def test_a_cancelled_run_gives_back_what_its_handlers_had(on: On) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 3)
        begun = asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            await asyncio.sleep(3600)

        bus.consume("a/#", handle, id="s", start="earliest")
        task = asyncio.create_task(bus.run())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with bus.subscribe("a/#", id="s") as sub:
            message = await sub.next(60)
            assert (message.offset, message.attempt) == (1, 1)

    on(flow)


def test_handlers_are_registered_before_the_bus_is_open_and_while_it_runs(tmp_path: Path) -> None:
    bus = headwater.aio.open(tmp_path / "data")
    seen: list[str] = []

    @bus.handler("a/#", id="s")
    async def first(message: Message) -> None:
        seen.append(message.topic)

    async def second(message: Message) -> None:
        seen.append(message.topic)

    async def work() -> None:
        async with asyncio.timeout(60), bus as opened, running(opened):
            await until(lambda: opened._workers.pool is not None and bool(opened._workers.pool._tasks))
            opened.consume("b/#", second, id="t", start="earliest")
            await opened.publish("a/1", b"")
            await opened.publish("b/1", b"")
            await until(lambda: sorted(seen) == ["a/1", "b/1"])

    asyncio.run(work())


def test_a_bus_without_handlers_has_nothing_to_run() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:
            with pytest.raises(Malformed, match="nothing to run"):
                await bus.run()
        with pytest.raises(Malformed, match="nothing to run"):
            await headwater.aio.open(":memory:").run()

    asyncio.run(work())


def test_a_handler_may_close_its_bus() -> None:
    async def work() -> None:
        async with asyncio.timeout(60), headwater.aio.open(":memory:") as bus:
            await publish(bus, 3)

            async def handle(_: Message) -> None:
                await bus.close()

            bus.consume("a/#", handle, id="s", start="earliest")
            await bus.run()

    asyncio.run(work())


def test_what_a_handler_says_by_hand_counts_and_nothing_behind_a_nack_is_begun(on: On, caplog: Any) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 8)
        seen: list[tuple[int, int]] = []

        async def handle(message: Message) -> None:
            seen.append((message.offset, message.attempt))
            if message.offset == 2:
                await message.ack()
            elif message.offset == 4 and message.attempt == 1:
                await message.nack("not yet")
            elif message.offset == 6:
                await message.reject("never")
            elif message.offset == 8:
                async with message:
                    pass

        bus.consume("a/#", handle, id="s", start="earliest", retry_delay_s=0)
        async with running(bus) as task:
            await until(lambda: len(seen) == 9)
        (tally,) = (await task).handlers
        assert seen == [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (5, 1), (6, 1), (7, 1), (8, 1)]
        assert (tally.done, tally.retried, tally.rejected, tally.recalled) == (7, 1, 1, 0)
        assert [letter.errors for letter in await bus.dead_letters("s")] == [("never",)]
        assert await lag(bus) == 0

    with caplog.at_level(logging.WARNING, "headwater.work"):
        on(flow)
    assert not caplog.records


def test_a_task_that_a_handler_waits_for_and_that_is_cancelled_is_the_handlers_failure(on: On) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 3)
        seen: list[int] = []

        async def handle(message: Message) -> None:
            seen.append(message.offset)
            if message.offset == 2:
                asked = asyncio.ensure_future(asyncio.sleep(60))
                asked.cancel()
                await asked

        bus.consume("a/#", handle, id="s", start="earliest", max_attempts=1)
        async with running(bus):
            await until(lambda: len(seen) == 3)
        (letter,) = await bus.dead_letters("s")
        assert letter.offset == 2
        assert letter.errors[0].startswith("asyncio.exceptions.CancelledError")
        assert await lag(bus) == 0

    on(flow)


def test_a_handler_that_returns_what_nobody_runs_has_failed(on: On) -> None:
    async def flow(bus: Any) -> None:
        await publish(bus, 2)
        seen: list[int] = []

        async def handle(message: Message) -> Any:
            seen.append(message.offset)
            return asyncio.sleep(0)  # not awaited

        bus.consume("a/#", handle, id="s", start="earliest", max_attempts=1)
        async with running(bus):
            await until(lambda: len(seen) == 2)
        letters = await bus.dead_letters("s")
        assert len(letters) == 2
        assert "it returned a coroutine" in letters[0].errors[0]

    on(flow)
