"""The judge of the load: of a bus that keeps its promises it says nothing, and each broken one it notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import headwater
from cluster.load import Load
from cluster.rig import Rig
from cluster.test_rounds import Rounds
from headwater.cluster.digests import Digests
from headwater.cluster.record import Position
from mqtt.peer import Served

COUNT = 6


@pytest.fixture
def url() -> Iterator[str]:
    with Served() as running:
        yield f"headwater://127.0.0.1:{running.server.port}"


@pytest.fixture
def load(url: str) -> Load:
    """A journal of what was kept."""
    made = Load(cast(Rig, SimpleNamespace(url=url)))
    made.drain_s = 0.5
    with headwater.connect(url) as bus:
        for number in range(COUNT):
            payload = b"%d" % number
            made.acked["plain/a", payload] = bus.publish("plain/a", payload).offset
            named = bus.publish("named/a", payload, producer="importer", sequence=number + 1)
            made.acked["named/a", payload] = named.offset
            bus.publish("kept/a", payload, retain=True)
            made.kept["kept/a"] = number
            bus.publish("once/a", payload)
            made.once.add(payload)
            made.heard.append(payload)
        made.acked_at.append(0.0)
        with bus.subscribe("plain/#", id="auditor", start="earliest") as consumer:
            taken = consumer.batch(COUNT - 2, timeout_s=10)
            consumer.ack(taken)
            made.consumed.update(message.offset for message in taken)
    return made


def publish(load: Load, topic: str, payload: bytes) -> None:
    with headwater.connect(load.rig.url) as bus:
        bus.publish(topic, payload)


def test_what_was_kept_is_found_so(load: Load):
    assert len(load.consumed) < COUNT
    load.judge()


def lost(load: Load) -> None:
    load.acked["plain/a", b"never stored"] = COUNT + 1


def elsewhere(load: Load) -> None:
    load.acked["plain/a", b"0"] += 1


def twice_by_a_producer(load: Load) -> None:
    publish(load, "named/a", b"0")


def twice_by_qos2(load: Load) -> None:
    publish(load, "once/a", b"0")


def lost_of_qos2(load: Load) -> None:
    load.once.add(b"99")


def heard_twice(load: Load) -> None:
    load.heard.append(b"0")


def never_heard(load: Load) -> None:
    load.heard.remove(b"3")


def skipped(load: Load) -> None:
    """The subscription is past what it never handed out."""
    load.consumed.remove(2)


def acked_in_vain(load: Load) -> None:
    """What it handed out and took an ack for is to be handed out again."""
    load.consumed.add(COUNT)


def not_retained(load: Load) -> None:
    load.kept["kept/a"] += 1


def trouble(load: Load) -> None:
    load.troubles.append("sequence 5 was stored at 5 and 6")


def nobody_published(load: Load) -> None:
    load.acked_at.clear()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lost, "1 of 13 acknowledged"),
        (elsewhere, "1 of 12 acknowledged"),
        (twice_by_a_producer, "named/a"),
        (twice_by_qos2, "QoS 2 was stored twice"),
        (lost_of_qos2, "QoS 2 was lost"),
        (heard_twice, "QoS 2 came twice"),
        (never_heard, "of QoS 2 did not come"),
        (skipped, "never came to a durable subscription"),
        (acked_in_vain, "acked, and handed out again"),
        (not_retained, "what is retained is older"),
        (trouble, "was stored at 5 and 6"),
        (nobody_published, "nothing was published"),
    ],
    ids=lambda given: given.__name__ if callable(given) else "",
)
def test_a_promise_that_is_broken_is_noticed(load: Load, broken: Callable[[Load], None], said: str):
    broken(load)
    with pytest.raises(AssertionError, match=said):
        load.judge()


SAME = Digests(Position(), {1: {1: b"x"}}, b"rows")


@pytest.mark.parametrize(
    "other", [Digests(Position(), {1: {1: b"y"}}, b"rows"), Digests(Position(), {1: {1: b"x"}}, b"others")]
)
def test_nodes_that_have_something_else_are_noticed(other: Digests):
    rig: Any = SimpleNamespace(wait=lambda *_: 1, is_whole=lambda: True, digests=lambda: [SAME, SAME, other])
    rounds, content = Rounds(rig, 0), cast(Load, SimpleNamespace(judge=lambda: None, pauses_s=[], acked=[], once=[]))
    with pytest.raises(AssertionError):
        rounds.judge(content)
    rig.digests = lambda: [SAME, SAME, SAME]
    rounds.judge(content)
