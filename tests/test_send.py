"""`bus.send`: at most once, nobody waits. Embedded and served, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
import headwater.bus
from client.served import Served
from headwater import Closed, Malformed, TooLarge
from headwater.config import Config
from headwater.store.batch import QUIET
from server.harness import SECRET, Running

WAIT_S = 30.0


def until(test: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not test():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_what_is_sent_is_stored_soon_with_all_that_was_said_of_it(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        with bus.subscribe("a/#") as live:
            bus.send("a/b", b"1", key=b"k", headers={"unit": "C"}, ttl_s=3600, retain=True)
            bus.publish("a/b", b"2")
            assert [message.payload for message in (live.next(WAIT_S), live.next(WAIT_S)) if message] == [b"1", b"2"]
        (kept,) = bus.retained("a/b").values()
        assert (kept.payload, kept.key, kept.header_pairs) == (b"1", b"k", (("unit", "C"),))
    with headwater.open(tmp_path / "data") as bus:
        assert [message.payload for message in bus.replay("a/#")] == [b"1", b"2"]


def test_it_is_published_as_what_nobody_waits_for() -> None:
    with headwater.open(":memory:") as bus, bus.subscribe("a") as live:
        bus.send("a", b"1")
        until(lambda: bus.ends().get("a") == 1, "it was not stored")
        found = live.take()  # type: ignore[attr-defined]
        assert found is not None
        assert found.batch is not None
        assert found.batch.header.flags & QUIET


def test_what_is_wrong_with_the_call_is_raised() -> None:
    bus = headwater.open(":memory:", Config(message_bytes_max=100))
    with pytest.raises(Malformed):
        bus.send("a/#", b"")
    with pytest.raises(TooLarge):
        bus.send("a", bytes(101))
    bus.close()
    with pytest.raises(Closed):
        bus.send("a", b"")


def test_what_cannot_be_stored_is_counted_and_not_told() -> None:
    with headwater.open(":memory:", Config(topics_per_root_max=1)) as bus:
        bus.publish("a/b", b"")
        bus.send("a/c", b"")
        until(lambda: counts(bus).unstored == 1, "it was not counted")
        bus.send("a/b", b"")
        bus.publish("a/b", b"")
        assert (counts(bus).unstored, bus.ends()["a"]) == (1, 3)


def test_asyncio_sends_the_same() -> None:
    async def work() -> None:
        async with headwater.aio.open(":memory:") as bus, bus.subscribe("a/#") as live:
            await bus.send("a/b", b"1")
            message = await live.next(WAIT_S)
            assert message is not None
            assert message.payload == b"1"
            with pytest.raises(Malformed):
                await bus.send("a/#", b"")

    asyncio.run(work())


def test_a_server_shows_what_was_sent_and_has_it_on_disk_soon(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        with headwater.connect(served.url) as bus, headwater.connect(served.url) as other:
            with other.subscribe("a/#") as live:
                for number in range(100):
                    bus.send("a/b", b"%d" % number, headers=[("n", str(number))])
                found: list[headwater.Message] = []
                while len(found) < 100:
                    found += live.batch(100, WAIT_S)
            assert [message.payload for message in found] == [b"%d" % number for number in range(100)]
            assert dict(found[7].headers) == {"n": "7"}
            until(lambda: other.ends().get("a") == 100, "it was not stored")
            with pytest.raises(Malformed):
                bus.send("a/#", b"")
        with pytest.raises(Closed):
            bus.send("a", b"")
        served.stop()
        served.start()
        assert [message.payload for message in served.bus.replay("a/#")] == [b"%d" % n for n in range(100)]


def test_closing_a_bus_waits_until_what_was_sent_has_left(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        with headwater.connect(served.url) as bus:
            for _ in range(1000):
                bus.send("a/b", bytes(1000))
        until(lambda: served.bus.ends().get("a") == 1000, "some were lost")


def test_what_is_not_allowed_is_counted_and_closes_nothing() -> None:
    with Running(auth="scram") as running:
        running.client("ann", allow=("publish home/#", "create home/#", "subscribe home/#"))
        url = f"headwater://ann:{SECRET.replace(' ', '%20')}@127.0.0.1:{running.server.port}"
        with headwater.connect(url) as bus, bus.subscribe("home/#") as live:
            bus.send("work/x", b"no")
            running.until(lambda: counts(running.bus).unstored == 1)
            assert counts(running.bus).rights_refusals == 1
            bus.send("home/x", b"yes")
            message = live.next(WAIT_S)
            assert message is not None
            assert message.payload == b"yes"
            assert bus._client.link.connections == 1


def test_a_message_that_is_refused_costs_those_that_went_with_it_nothing() -> None:
    with Running(auth="scram") as running:
        running.client("ann", allow=("publish home/good/#", "create home/#", "subscribe home/#"))
        url = f"headwater://ann:{SECRET.replace(' ', '%20')}@127.0.0.1:{running.server.port}"
        with headwater.connect(url) as bus, bus.subscribe("home/#") as live:
            for number in range(300):
                bus.send(f"home/{'bad' if number % 3 else 'good'}/x", b"%d" % number)
            found: list[headwater.Message] = []
            while len(found) < 100:
                batch = live.batch(100, WAIT_S)
                assert batch
                found += batch
            assert [message.payload for message in found] == [b"%d" % number for number in range(0, 300, 3)]
            running.until(lambda: counts(running.bus).unstored == 200)


def test_without_a_connection_it_is_lost_and_nobody_waits(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        settings = headwater.Connecting(reconnect_delay_s=0.05, reconnect_delay_s_max=0.1)
        with headwater.connect(served.url, settings) as bus:
            bus.publish("a/b", b"first")
            served.stop()
            until(lambda: not bus._client.link.is_up, "the connection was not lost")
            for _ in range(10):
                bus.send("a/b", bytes(10_000_000 // 2))  # more than may be in flight
            served.start()
            bus.publish("a/b", b"last")
            assert [message.payload for message in bus.replay("a/#")] == [b"first", b"last"]


def test_asyncio_sends_to_a_server(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        async with headwater.aio.connect(url) as bus, bus.subscribe("a/#") as live:
            await bus.send("a/b", b"1", ttl_s=timedelta(hours=1).total_seconds())
            message = await live.next(WAIT_S)
            assert message is not None
            assert message.payload == b"1"

    with Served(tmp_path / "data") as served:
        asyncio.run(work(served.url))
        until(lambda: served.bus.ends().get("a") == 1, "it was not stored")


def counts(bus: headwater.bus.Bus) -> Any:
    return bus.core.roots.counts
