"""Payloads as users give them, and what is published: bytes, text and JSON, on all four surfaces and over MQTT."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it has no types
import pydantic
import pytest

import headwater
import headwater.aio
from client.served import WAIT_S, Served
from headwater import Malformed, Outgoing
from headwater.payload import encode


@dataclass
class Reading:
    celsius: float
    room: str = "kitchen"


class Struct(msgspec.Struct):
    celsius: float


class Model(pydantic.BaseModel):
    celsius: float
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)


class Stubborn(pydantic.BaseModel):
    @pydantic.model_serializer
    def refuse(self) -> dict[str, object]:
        raise RuntimeError("no")


def named(cases: list[Any]) -> list[str]:
    """The same in every process, unlike what some of them say of themselves."""
    return [f"{number}-{type(case[0]).__name__}" for number, case in enumerate(cases)]


JSON = {"content-type": "application/json"}


class Celsius(float):
    """A number of a user's own."""


GIVEN: list[tuple[Any, bytes, dict[str, str]]] = [
    (b"21.5", b"21.5", {}),
    (bytearray(b"21.5"), b"21.5", {}),
    (memoryview(b"21.5"), b"21.5", {}),
    ("21,5 °C", "21,5 °C".encode(), {}),
    ("", b"", {}),
    ({"celsius": 21.5, "room": "Küche"}, '{"celsius":21.5,"room":"Küche"}'.encode(), JSON),
    ([1, "a", None], b'[1,"a",null]', JSON),
    ((), b"[]", JSON),
    (21.5, b"21.5", JSON),
    (7, b"7", JSON),
    (True, b"true", JSON),
    (Reading(21.5), b'{"celsius":21.5,"room":"kitchen"}', JSON),
    (Struct(21.5), b'{"celsius":21.5}', JSON),
    (Model(celsius=21.5), b'{"celsius":21.5,"at":"2026-01-02T00:00:00Z"}', JSON),
    ([Model(celsius=1)], b'[{"celsius":1.0,"at":"2026-01-02T00:00:00Z"}]', JSON),
    (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00Z"', JSON),
    (np.float64(21.5), b"21.5", JSON),
    (np.bool_(True), b"true", JSON),
    ({"a": np.int64(7), "b": [Celsius(21.5), np.float32("nan")]}, b'{"a":7,"b":[21.5,null]}', JSON),
    (
        [pd.Timestamp("2026-01-02", tz="UTC"), pd.NaT, np.datetime64("2026-01-02T00:00:00")],
        b'["2026-01-02T00:00:00+00:00",null,"2026-01-02T00:00:00"]',
        JSON,
    ),
]
LOOP: list[Any] = []
LOOP.append(LOOP)
REFUSED: list[tuple[Any, str]] = [
    (None, "None.*b.. for an empty one"),
    (object(), "object"),
    (Reading, "type"),
    (lambda: 1, "function"),
    (np.array([1.0]), "ndarray"),
    (np.complex64(1), "complex"),
    ((n for n in range(3)), "generator"),
    ({"a": {1, object()}}, "a part of it is of type object"),
    ({("a", "b"): 1}, "dict"),
    (float("nan"), "nan.*publish it as text"),
    (float("-inf"), "-inf"),
    ("\ud800", "UTF-8"),
    ({"a": "\ud800"}, "cannot be written as JSON"),
    (LOOP, "list"),
    (Stubborn(), "Stubborn"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("payloads") / "data") as running:
        yield running


@pytest.fixture(params=["embedded", "served"])
def bus(request: pytest.FixtureRequest, served: Served) -> Iterator[Any]:
    if request.param == "embedded":
        with headwater.open(":memory:") as made:
            yield made
    else:
        with headwater.connect(served.url) as made:
            yield made


def last(bus: Any, topic: str) -> headwater.Message:
    found: headwater.Message = list(bus.replay(topic))[-1]
    return found


@pytest.mark.parametrize(("given", "stored", "headers"), GIVEN, ids=named(GIVEN))
def test_every_publish_takes_it(given: Any, stored: bytes, headers: dict[str, str], bus: Any) -> None:
    publishes: list[Callable[[], Any]] = [
        lambda: bus.publish("a/b", given),
        lambda: bus.publish_soon("a/b", given).result(WAIT_S),
        lambda: bus.publish_soon("a/b", given, key=b"k").result(WAIT_S),
        lambda: bus.publish_many([("a/b", given)]),
        lambda: bus.publish_many([("a/b", b"1"), ("a/c", "2"), ("a/b", given)]),
        lambda: bus.publish_many([Outgoing("a/b", given)]),
        lambda: bus.publish_many_soon([("a/b", given)]).result(WAIT_S),
    ]
    for publish in publishes:
        bus.publish("a/b", b"before")
        publish()
        found = last(bus, "a/b")
        assert (found.payload, dict(found.headers)) == (stored, headers)
    with bus.subscribe("a/b") as live:
        bus.send("a/b", given)
        found = live.next(timeout_s=WAIT_S)
        assert (found.payload, dict(found.headers)) == (stored, headers)


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=named(REFUSED))
def test_what_cannot_be_written_is_refused_and_nothing_is_published(given: Any, says: str, bus: Any) -> None:
    bus.publish("a/b", b"before")
    before = bus.ends()
    publishes: list[Callable[[], Any]] = [
        lambda: bus.publish("a/b", given),
        lambda: bus.publish_soon("a/b", given),
        lambda: bus.publish_many([("a/b", b"1"), ("other/b", given)]),
        lambda: bus.publish_many([Outgoing("a/b", given)]),
        lambda: bus.send("a/b", given),
        lambda: bus.stage("writer", 1, [("a/b", given)]),
        lambda: bus.request("a/b", given, timeout_s=0.1),
    ]
    for publish in publishes:
        with pytest.raises(Malformed, match=says):
            publish()
    assert bus.ends() == before


def test_a_content_type_that_is_stated_stays(bus: Any) -> None:
    bus.publish("a/b", {"a": 1}, headers=[("x", "1"), ("content-type", "application/cloudevents+json"), ("x", "2")])
    assert tuple(last(bus, "a/b").headers.items()) == (
        ("x", "1"),
        ("content-type", "application/cloudevents+json"),
        ("x", "2"),
    )
    bus.publish("a/b", {"a": 1}, headers={"Content-Type": "application/x"})
    assert dict(last(bus, "a/b").headers) == {"Content-Type": "application/x"}
    bus.publish("a/b", {"a": 1}, headers={"x": "1"})
    assert dict(last(bus, "a/b").headers) == {"x": "1", **JSON}
    with pytest.raises(Malformed, match="headers are"):
        bus.publish("a/b", {"a": 1}, headers=5)


def test_what_is_read_as_a_type_was_published_as_one(bus: Any) -> None:
    bus.publish("a/b", Reading(21.5, "hall"))
    assert last(bus, "a/b").json(Reading) == Reading(21.5, "hall")
    assert last(bus, "a/b").json() == {"celsius": 21.5, "room": "hall"}
    bus.publish("a/b", "é")
    assert last(bus, "a/b").text == "é"


def test_a_delayed_message_is_written_at_once(bus: Any) -> None:
    with bus.subscribe("later/b") as live:
        value = {"a": 1}
        bus.publish("later/b", value, deliver_at=bus.now + timedelta(seconds=0.01), headers={"x": "1"})
        value["a"] = 2
        found = live.next(timeout_s=WAIT_S)
        assert (found.json(), dict(found.headers)) == ({"a": 1}, {"x": "1", **JSON})
    with pytest.raises(Malformed, match="None"):
        bus.publish("later/b", None, deliver_at=bus.now)


def test_questions_and_answers_are_payloads_too(bus: Any) -> None:
    with bus.subscribe("rpc/sum") as questions:

        def serve() -> None:
            question = questions.next(timeout_s=WAIT_S)
            question.reply(sum(question.json(list[int])))

        answering = threading.Thread(target=serve)
        answering.start()
        answer = bus.request("rpc/sum", [1, 2, 3], timeout_s=WAIT_S)
        answering.join(WAIT_S)
    assert answer.json(int) == 6
    assert dict(answer.headers)["content-type"] == "application/json"


def test_a_dead_letter_is_mended_with_a_value(bus: Any) -> None:
    with bus.subscribe("dead/b", id="mending") as sub:
        bus.publish("dead/b", b"{")
        sub.next(timeout_s=WAIT_S).reject("broken")
        (letter,) = bus.dead_letters("mending")
        with pytest.raises(Malformed, match="cannot be written"):
            letter.mend(payload=object())
        bus.redrive("mending", mended=[letter.mend(payload={"a": 1})])
        found = sub.next(timeout_s=WAIT_S)
        assert (found.json(), found.headers["content-type"]) == ({"a": 1}, "application/json")
        found.ack()
    bus.unsubscribe("mending")


def test_what_is_too_large_as_json_is_refused(bus: Any) -> None:
    with pytest.raises(headwater.TooLarge):
        bus.publish("a/b", ["x" * bus.config.message_bytes_max])


@pytest.mark.parametrize("place", ["embedded", "served"])
def test_with_asyncio_it_is_the_same(place: str, served: Served, tmp_path: Path) -> None:
    async def work() -> None:
        opening: Any = headwater.aio.open(":memory:") if place == "embedded" else headwater.aio.connect(served.url)
        async with opening as bus:
            await bus.publish("a/b", {"n": 1})
            await bus.publish_soon("a/b", Struct(2))
            await bus.publish_many([("a/b", [3]), ("a/b", "4")])
            await bus.publish("a/b", 5, retain=True)
            found = [one async for one in bus.replay("a/b")][-5:]
            assert [one.payload for one in found] == [b'{"n":1}', b'{"celsius":2}', b"[3]", b"4", b"5"]
            await bus.send("a/b", {"n": 6})
            for publish in (
                lambda: bus.publish("a/b", None),
                lambda: bus.publish_soon("a/b", None),
                lambda: bus.publish_many([("a/b", None)]),
                lambda: bus.send("a/b", None),
            ):
                with pytest.raises(Malformed):
                    await publish()
            kept = (await bus.retained("a/b"))["a/b"]
            assert (kept.json(), dict(kept.headers)) == (5, JSON)

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_bytes_of_any_buffer_are_copied_once_and_kept() -> None:
    given = bytearray(b"ab")
    data, is_json = encode(given)
    given[0] = 0
    assert (data, is_json) == (b"ab", False)
