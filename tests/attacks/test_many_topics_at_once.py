"""One publish to thousands of topics, with a subscriber each: work that grows with them, and not with their square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headwater
from headwater import Outgoing
from headwater.delivery.cursor import Matcher
from headwater.server import bell
from headwater.server.bell import Wakes
from headwater.topics.name import compile_filter
from server.harness import Running
from server.site import until

TOPICS = 600


@pytest.fixture
def tests_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a filter was tried on a topic."""
    counted = [0]

    def compiled(filter: str) -> Callable[[str], bool]:
        real = compile_filter(filter)

        def test(topic: str) -> bool:
            counted[0] += 1
            return real(topic)

        return test

    monkeypatch.setattr("headwater.delivery.cursor.compile_filter", compiled)
    return counted


@pytest.mark.parametrize("shape", ["s/{}/x", "s/{}/#", "s/{}/+", "s/+/x{}"])
@pytest.mark.parametrize("times", [1, 2])
def test_each_of_many_subscribers_is_matched_with_few_topics(tests_made: list[int], shape: str, times: int) -> None:
    """Also where they come late, and read the batch for themselves."""
    with headwater.open(":memory:") as bus:
        consumers = [bus.subscribe(shape.format(number), id=f"{number}") for number in range(TOPICS)]
        topics = [f"s/{number}/x{number}" if "+/x" in shape else f"s/{number}/x" for number in range(TOPICS)]
        bus.publish_many([Outgoing(topic=topic, payload=b"1") for topic in topics * times])
        for number, consumer in enumerate(consumers):
            assert [message.topic for message in consumer.batch(10, timeout_s=0)] == [topics[number]] * times
        assert tests_made[0] <= 10 * TOPICS


def test_a_place_of_a_batch_is_looked_at_once_for_all_who_want_few(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = [0]

    class Index(list[int]):
        def __iter__(self) -> Any:
            looked[0] += 1
            return super().__iter__()

    with headwater.open(":memory:") as bus:
        topics = [f"s/{number}/x" for number in range(TOPICS)]
        bus.publish_many([Outgoing(topic=topic, payload=b"1") for topic in topics * 2])
        (batch,) = bus.core.roots.all()[0].stream.read(1, 1)
        body = batch.body  # type: ignore[union-attr]  # nothing is missing
        monkeypatch.setattr(body, "_index", Index(body._index))
        for number in range(TOPICS):
            assert Matcher(f"s/{number}/#").select(body) == [number, TOPICS + number]
    assert looked[0] == 1


def test_a_turn_of_the_loop_wakes_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    real = Wakes.wake

    class Sleeper:
        is_rung = False

        def on_wake(self) -> None:
            woken[-1] += 1

    def turn(wakes: Wakes) -> None:
        woken.append(0)
        real(wakes)

    monkeypatch.setattr(Wakes, "wake", turn)
    with Running() as running:

        def ring() -> None:
            for _ in range(1000):
                running.server.wakes.ring(Sleeper())

        running.call(ring)
        until(lambda: sum(woken) == 1000)
    assert max(woken) <= bell.WAKES_IN_TURN
