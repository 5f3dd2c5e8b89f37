"""The bus for asyncio: the same flows as `tests/bus`, as coroutines and async iterators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import Served
from headwater import Closed, Conflict, Malformed, NoResponders, NotFound, Recalled, TimedOut
from headwater.store.batch import checksum
from headwater.store.body import encode_body


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
                await first.nack(ValueError("no"))  # type: ignore[union-attr]
                again = await sub.next(60)
                assert again.attempt == 2  # type: ignore[union-attr]
                with pytest.raises(Recalled):
                    await first.ack()  # type: ignore[union-attr]
                await again.extend(60)  # type: ignore[union-attr]
                await again.reject("never")  # type: ignore[union-attr]
            letters = await bus.dead_letters("s")
            assert [(letter.offset, letter.errors) for letter in letters] == [(1, ("ValueError: no", "never"))]
            assert await bus.redrive("s", mended=[letters[0].mend(payload=b"2")], write="w") == 1
            async with bus.subscribe("a/#", id="s") as sub:
                assert (await sub.next(60)).payload == b"2"  # type: ignore[union-attr]
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
                assert [(message.payload, message.retained) for message in seen] == [(b"kept", True), (b"new", False)]  # type: ignore[union-attr]
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
                    await request.reply(request.payload + b"!")  # type: ignore[union-attr]

            ready = asyncio.Event()
            service = asyncio.create_task(serve())
            await ready.wait()
            answer = await bus.request("rpc/echo", b"hello", timeout_s=20)
            assert answer.payload == b"hello!"
            await service
            with pytest.raises(TimedOut):
                await bus.request("rpc/echo", b"hello", timeout_s=0.05)
            with pytest.raises(NoResponders):
                await bus.request("nobody/here", b"hello", timeout_s=20)
            async with bus.subscribe("live/#") as live:
                for durable in (False, False, True):
                    asking = asyncio.ensure_future(bus.request("live/x", b"?", timeout_s=20, durable=durable))
                    await (await live.next(20)).reply(b"!")  # type: ignore[union-attr]
                    assert (await asking).payload == b"!"

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
                await (await sub.next(60)).ack()  # type: ignore[union-attr]
                await sub.seek("earliest")
                await (await sub.next(60)).ack()  # type: ignore[union-attr]
            assert [topic.topic for topic in await bus.topics()] == ["a/b"]
            assert [message.payload for message in (await bus.retained("a/#")).values()] == [b"1"]
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


# Everything that threads have


@pytest.fixture(params=["embedded", "served"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """A bus in a folder, by itself or behind a server."""
    if request.param == "embedded":
        yield lambda: headwater.aio.open(tmp_path / "data")
        return
    with Served(tmp_path / "data") as served:
        yield lambda: headwater.aio.connect(served.url)


def test_staged_messages_are_seen_once_they_are_committed(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        async with opening() as bus:
            await bus.stage("p", 1, [("a/b", b"1"), ("a/c", b"2")], part="one")
            body = encode_body(["a/b"], [b"3"], 1)
            await bus.stage_body("p", 1, "two", "a", 1, checksum(body), body)
            assert "a" not in await bus.ends()
            assert await bus.commit_stage("p", 1, ("one", "two")) == {"a": (1, 3)}
            await bus.stage("p", 2, [("a/b", b"4")])
            await bus.drop_stage("p", 2)
            assert await bus.commit_stage("p", 2, ()) == {}
            assert [message.payload async for message in bus.replay("a/#")] == [b"1", b"2", b"3"]

    run(work())


def test_dead_letters_one_by_one_and_mended_in_parts(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        async with opening() as bus:
            await bus.publish_many_soon([("a/b", b"1"), ("a/b", b"2")])
            async with bus.subscribe("a/#", id="s", start="earliest") as sub:
                for _ in range(2):
                    await (await sub.next(60)).reject("no")
                letter = await bus.dead_letter("s", 2)
                assert (letter.payload, letter.errors) == (b"2", ("no",))
                with pytest.raises(NotFound):
                    await bus.dead_letter("s", 3)
                await bus.mend("s", "w", [letter.mend(payload=b"mended")], part="p")
                assert await bus.redrive_mended("s", "w", ("p",)) == 1
                assert (await sub.next(60)).payload == b"mended"
                assert [(one.offset, one.state) for one in await bus.states("s")] == [(2, "in_flight")]
                await bus.mend("s", "other", [await bus.dead_letter("s", 1)])
                await bus.drop_mended("s", "other")
                assert await bus.drop_dead_letters("s", [1]) == 1

    run(work())


def test_what_a_bus_says_of_itself_and_of_its_lakes(opening: Callable[[], Any], tmp_path: Path) -> None:
    async def work() -> None:
        async with opening() as bus:
            await bus.publish("a/b", b"1")
            await bus.mark_archived("lake", {"a": 1})
            with pytest.raises(Malformed):
                await bus.mark_archived("lake", {"a": 2})
            await bus.refresh()
            assert abs((bus.now - datetime.now(UTC)).total_seconds()) < 60
            assert (bus.is_read_only, bus.config.topic_bytes_max) == (False, 1024)
            assert bus.folder
            (extent,) = await bus.extents("a/#", [bus.now])
            assert (extent.root, extent.end, extent.places) == ("a", 2, (2,))

    run(work())


def test_clients_rules_and_channels(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        async with opening() as bus:
            assert (await bus.clients.add("ann")).secret
            assert [one.name for one in await bus.clients.list()] == ["ann"]
            await bus.acl.allow("ann", "publish", "home/#")
            assert [(one.user, one.action) for one in await bus.acl.list()] == [("ann", "publish")]
            (made,) = await bus.channels.add("alarms", "home/#", "127.0.0.1", 9)
            assert [one.id for one in await bus.channels.list()] == [made.id]

    run(work())


def test_buses_and_readers_can_be_used_in_async_with_by_themselves(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        async with await opening() as bus:
            await bus.publish("a/b", b"1")
            async with bus.replay("a/#") as reading:
                assert [message.payload for message in await reading.batch()] == [b"1"]
                assert await reading.next() is None
                assert reading.is_over
            async with await bus.subscribe("a/#") as live:
                await bus.publish("a/b", b"2")
                assert (await live.next(60)).payload == b"2"
            async with await bus.subscribe("a/#", id="s", start="earliest") as sub:
                await (await sub.next(60)).ack()
            with pytest.raises(Closed):
                await sub.next(1)
        with pytest.raises(Closed):
            await bus.publish("a/b", b"")

    run(work())


def test_a_for_may_stand_before_the_subscription_itself_and_closes_it_at_its_end(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        async with opening() as bus:
            await bus.publish_many([("a/b", b"1"), ("a/b", b"2")])

            async def taken(count: int) -> None:
                async for message in bus.subscribe("a/#", id="s", start="earliest"):
                    assert (int(message.payload), message.attempt) == (count, 1)
                    if message.payload == b"2":
                        return
                    await message.ack()
                    count += 1

            await taken(1)
            await taken(2)  # what was taken and not acked came back at once
            while (await bus.subscriptions())[0].consumers:
                continue
            with pytest.raises(Malformed):
                async for _ in bus.subscribe("a/#/b"):
                    pass

    run(work())


@pytest.mark.parametrize("timeout_s", ["1", timedelta(seconds=1), float("inf")])
def test_a_timeout_is_a_number_of_seconds(opening: Callable[[], Any], timeout_s: Any) -> None:
    async def work() -> None:
        async with opening() as bus:
            await bus.publish("a/b", b"1", retain=True)
            for reader in (await bus.subscribe("a/#"), bus.replay("a/#"), (await bus.retained("a/#")).watch()):
                with pytest.raises(Malformed, match=r"timeout_s is .*; use a number of seconds"):
                    await reader.next(timeout_s)
            with pytest.raises(Malformed, match=r"timeout_s is .*; use a number of seconds"):
                await bus.request("a/b", b"?", timeout_s=timeout_s)

    run(work())


def test_what_is_not_open_yet_says_that_it_is_to_be_awaited(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        unopened = opening()
        with pytest.raises(AttributeError, match=r"a bus has no publish yet: it is still to be opened; await it"):
            await unopened.publish("a/b", b"")
        assert repr(unopened) == "<a bus, still to be opened; await it, or use it in `async with`>"
        async with unopened as bus:
            with pytest.raises(AttributeError, match="a subscription has no next yet: it is still to be opened"):
                await bus.subscribe("a/#").next()
            assert not hasattr(bus.subscribe("a/#"), "close")

    run(work())


def test_wrong_arguments_are_refused_where_the_method_is_called(opening: Callable[[], Any]) -> None:
    async def work() -> None:
        async with opening() as bus:
            with pytest.raises(TypeError):
                await bus.publish("a/b", b"", colour="red")
            with pytest.raises(TypeError):
                await bus.publish("a/b", b"", True)
            with pytest.raises(TypeError):
                await bus.subscribe("a/#", id="s", colour="red")
            with pytest.raises(TypeError):
                await bus.topics(colour="red")

    run(work())


def test_a_reader_with_a_place_of_its_own_shows_it_as_a_subscription(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        async with headwater.aio.connect(url) as bus:
            await bus.publish_many([("a/b", b"1"), ("a/b", b"2")])
            await bus.show_progress("a/#", "spark", {"a": 2})
            (info,) = await bus.subscriptions()
            assert (info.id, info.floors) == ("spark", {"a": 1})

    with Served(tmp_path / "data") as served:
        run(work(served.url))
