"""Retained messages as a mapping, and what is watched of them: on all four surfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.aio
from client.served import WAIT_S, Served
from headwater import Malformed, ReadOnly


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("values") / "data") as running:
        yield running


@pytest.fixture(params=["embedded", "served"])
def bus(request: pytest.FixtureRequest, served: Served) -> Iterator[Any]:
    if request.param == "embedded":
        with headwater.open(":memory:") as made:
            yield made
    else:
        served.bus.purge("#")
        with headwater.connect(served.url) as made:
            yield made


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT_S))


def test_retained_messages_are_a_mapping_by_topic(bus: Any) -> None:
    bus.publish("home/b", b"2", retain=True)
    bus.publish("home/a", b"1", retain=True, headers={"unit": "C"})
    bus.publish("home/c", b"3")
    bus.publish("hall/a", b"4", retain=True)
    values = bus.retained("home/#")
    assert list(values) == ["home/a", "home/b"]
    assert len(values) == 2
    assert values["home/a"].payload == b"1"
    assert dict(values["home/a"].headers) == {"unit": "C"}
    assert values["home/a"].retain
    assert [(topic, message.payload) for topic, message in values.items()] == [("home/a", b"1"), ("home/b", b"2")]
    assert values.get("home/c") is None
    assert "hall/a" not in values
    assert repr(values) == '<retained messages of "home/#" (topics: 2)>'
    with pytest.raises(KeyError):
        values["home/c"]


def test_a_watch_tells_what_changes_after_the_mapping_was_asked_for(bus: Any) -> None:
    bus.publish("home/a", b"1", retain=True)
    values = bus.retained("home/#")
    bus.publish("home/a", b"2", retain=True)
    bus.publish("home/a", b"not retained")
    with values.watch() as watch:
        change = watch.next(timeout_s=WAIT_S)
        assert (change.topic, change.payload) == ("home/a", b"2")
        assert values["home/a"].payload == b"2"
        assert watch.next(timeout_s=0) is None
        bus.publish("home/b", b"3", retain=True)
        bus.publish("home/a", b"", retain=True)
        changes = [watch.next(timeout_s=WAIT_S) for _ in range(2)]
        assert [(one.topic, one.payload) for one in changes] == [("home/b", b"3"), ("home/a", b"")]
        assert list(values) == ["home/b"]
        assert list(bus.retained("home/#")) == ["home/b"]


def test_a_watch_of_nothing_tells_of_roots_that_come(bus: Any) -> None:
    values = bus.retained("new/#")
    assert not values
    with values.watch() as watch:
        bus.publish("other/a", b"1", retain=True)
        bus.publish("new/a", b"2", retain=True)
        for change in watch:
            assert (change.topic, change.payload) == ("new/a", b"2")
            break
    assert list(watch) == []


def test_a_watch_with_a_delivery_that_matches_in_part_knows_what_is_retained(bus: Any) -> None:
    values = bus.retained("home/+/temp")
    bus.publish_many(
        [
            headwater.Outgoing("home/a/power", b"1", retain=True),
            headwater.Outgoing("home/a/temp", b"2"),
            headwater.Outgoing("home/b/temp", b"3", retain=True),
        ]
    )
    with values.watch() as watch:
        assert [one.payload for one in watch.batch(10, WAIT_S)] == [b"3"]


def test_a_filter_that_is_none_is_refused(bus: Any) -> None:
    with pytest.raises(Malformed):
        bus.retained("home/#/x")
    with bus.retained("home/#").watch() as watch, pytest.raises(Malformed, match="1 or more"):
        watch.batch(0)


@pytest.mark.parametrize("place", ["embedded", "served"])
def test_with_asyncio_it_is_the_same(place: str, served: Served) -> None:
    async def work() -> None:
        served.bus.purge("#")
        opening: Any = headwater.aio.open(":memory:") if place == "embedded" else headwater.aio.connect(served.url)
        async with opening as bus:
            await bus.publish("home/a", b"1", retain=True)
            values = await bus.retained("home/#")
            assert {topic: message.payload for topic, message in values.items()} == {"home/a": b"1"}
            async with values.watch() as watch:
                await bus.publish("home/a", b"no value")
                assert await watch.next(timeout_s=0.01) is None
                await bus.publish("home/a", b"", retain=True)
                async for change in watch:
                    assert (change.topic, change.payload) == ("home/a", b"")
                    break
                assert not values
                with pytest.raises(Malformed, match="1 or more"):
                    await watch.batch(0)
            assert [one async for one in watch] == []

    run(work())


def test_a_bus_that_was_opened_to_read_shows_values_and_watches_none(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/a", b"1", retain=True)
        with headwater.open(tmp_path / "data", read_only=True) as reader:
            values = reader.retained("home/#")
            assert values["home/a"].payload == b"1"
            with pytest.raises(ReadOnly):
                values.watch()
