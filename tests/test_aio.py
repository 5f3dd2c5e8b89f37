"""The bus for asyncio: the same flows as `test_bus.py`, as coroutines and async iterators."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from headwater import Closed, Conflict, Malformed, Recalled, TimedOut


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_a_publish_returns_its_receipt_and_a_durable_consumer_gets_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with headwater.aio.open(tmp_path / "data") as bus:
            receipt = await bus.publish("home/kitchen/temp", b"21.5", headers={"unit": "C"})
            assert (receipt.topic, receipt.offset) == ("home/kitchen/temp", 1)
            async with bus.subscribe("home/#", id="s", start="earliest") as sub:
                async for message in sub:
                    assert message.payload == b"21.5"
                    assert dict(message.headers) == {"unit": "C"}
                    await message.ack()
                    break
                assert await sub.next(0) is None

    run(work())


def test_an_ack_that_returned_is_on_disk(tmp_path: Path) -> None:
    async def work() -> None:
        async with headwater.aio.open(tmp_path / "data") as bus:
            await bus.publish_many([("a/b", b"%d" % n) for n in range(10)])
            async with bus.subscribe("a/#", id="s", start="earliest") as sub:
                await sub.ack(await sub.batch(4, 60))
        async with headwater.aio.open(tmp_path / "data") as bus, bus.subscribe("a/#", id="s") as sub:
            assert [message.payload for message in await sub.batch(10, 60)] == [b"4", b"5", b"6", b"7", b"8", b"9"]

    run(work())


def test_a_consumer_that_waits_is_woken_by_a_publish() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus, bus.subscribe("a/#", id="s") as sub:
            waiting = asyncio.create_task(sub.next(20))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await bus.publish("a/b", b"1")
            message = await waiting
            assert message is not None
            assert message.payload == b"1"

    run(work())


def test_nack_retry_reject_and_dead_letters() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:
            await bus.publish("a/b", b"1")
            async with bus.subscribe("a/#", id="s", start="earliest", retry_delay_s=0) as sub:
                first = await sub.next(60)
                await first.nack(ValueError("no"))
                again = await sub.next(60)
                assert again.attempt == 2
                with pytest.raises(Recalled):
                    await first.ack()
                await again.extend(60)
                await again.reject("never")
            letters = await bus.dead_letters("s")
            assert [(letter.offset, letter.errors) for letter in letters] == [(1, ("ValueError: no", "never"))]
            assert await bus.redrive("s", mended=[letters[0].mend(payload=b"2")], write="w") == 1
            async with bus.subscribe("a/#", id="s") as sub:
                assert (await sub.next(60)).payload == b"2"
            await bus.mend("s", "w", letters)
            assert await bus.redrive_mended("s", "w") == 1
            await bus.drop_mended("s", "w")
            assert await bus.redrive("s") == 0

    run(work())


def test_a_live_subscription_gets_retained_values_first_and_ends_with_its_block() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:
            await bus.publish("a/b", b"kept", retain=True)
            async with bus.subscribe("a/#") as live:
                await bus.publish("a/c", b"new")
                seen = [await live.next(60), await live.next(60)]
                assert [(message.payload, message.retained) for message in seen] == [(b"kept", True), (b"new", False)]
                reader = asyncio.create_task(live.batch(1, 20))
                await asyncio.sleep(0.02)
            assert await reader == []

    run(work())


def test_follow_goes_from_history_to_live_without_gap_or_repeat() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:
            await bus.publish_many([("a/b", b"%d" % n) for n in range(50)])

            async def publish_on() -> None:
                for n in range(50, 100):
                    await bus.publish("a/b", b"%d" % n)

            publisher = asyncio.create_task(publish_on())
            reading, seen = bus.follow("a/#", after=10), []
            async for message in reading:
                seen.append(message.offset)
                if message.offset == 100:
                    break
            await reading.close()
            await publisher
            assert seen == list(range(11, 101))
            assert [message.offset async for message in bus.replay("a/#")] == list(range(1, 101))

    run(work())


def test_a_request_is_answered_and_one_that_nobody_answers_times_out() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:

            async def serve() -> None:
                async with bus.subscribe("rpc/#", id="service") as requests:
                    ready.set()
                    request = await requests.next(20)
                    await request.reply(request.payload + b"!")

            ready = asyncio.Event()
            service = asyncio.create_task(serve())
            await ready.wait()
            answer = await bus.request("rpc/echo", b"hello", timeout_s=20)
            assert answer.payload == b"hello!"
            await service
            with pytest.raises(TimedOut):
                await bus.request("rpc/echo", b"hello", timeout_s=0.05)

    run(work())


def test_many_publishes_at_once_share_commits_and_get_dense_offsets(tmp_path: Path) -> None:
    async def work() -> None:
        async with headwater.aio.open(tmp_path / "data") as bus:
            receipts = await asyncio.gather(*(bus.publish("a/b", b"x") for _ in range(500)))
            assert sorted(receipt.offset for receipt in receipts) == list(range(1, 501))
            assert (await bus.publish_soon("a/b", b"y")).offset == 501

    run(work())


def test_a_group_that_is_full_makes_the_coroutine_wait_and_not_the_loop() -> None:
    async def work() -> None:
        config = headwater.Config(group_messages_max=2)
        async with headwater.aio.open(":memory:", config) as bus:
            receipts = await asyncio.gather(*(bus.publish("a/b", b"x") for _ in range(50)))
            assert len({receipt.offset for receipt in receipts}) == 50
            many = await asyncio.gather(*(bus.publish_many([("a/b", b"x")] * 3) for _ in range(10)))
            assert sum(map(len, many)) == 30

    run(work())


def test_listings_pause_seek_and_upkeep_are_coroutines(tmp_path: Path) -> None:
    async def work() -> None:
        async with headwater.aio.open(tmp_path / "data") as bus:
            await bus.publish("a/b", b"1", retain=True)
            async with bus.subscribe("a/#", id="s", start="earliest") as sub:
                await sub.pause()
                assert await sub.next(0.05) is None
                await sub.resume()
                await (await sub.next(60)).ack()
                await sub.seek("earliest")
                await (await sub.next(60)).ack()
            assert [topic.topic for topic in await bus.topics()] == ["a/b"]
            assert [message.payload for message in await bus.retained("a/#")] == [b"1"]
            assert [info.id for info in await bus.subscriptions()] == ["s"]
            await bus.backup(tmp_path / "backup")
            assert await bus.purge("a/#") == 1
            await bus.unsubscribe("s")
            assert await bus.subscriptions() == []
            assert await bus.events() == []
        headwater.restore(tmp_path / "backup", tmp_path / "restored")
        async with headwater.aio.open(tmp_path / "restored") as bus:
            assert [message.payload async for message in bus.replay("a/#")] == [b"1"]

    run(work())


def test_bad_input_raises_the_same_errors() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus:
            with pytest.raises(Malformed):
                await bus.publish("a/+", b"1")
            await bus.publish("a/b", b"1")
            with pytest.raises(Malformed):
                await bus.subscribe("a/#/b")
            first = await bus.subscribe("a/#", id="s")
            with pytest.raises(Conflict):
                await bus.subscribe("b/#", id="s")
            await first.close()
            with pytest.raises(Closed):
                await first.next(1)

    run(work())
