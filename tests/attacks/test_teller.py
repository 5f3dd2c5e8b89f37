"""A teller: a client whose subscriptions have more told about them ($sys/states, $dead) than is written in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import headwater
from headwater.client.bus import Bus
from headwater.config import Config
from headwater.delivery.letterbox import Letterbox
from headwater.delivery.life import LifeEntry
from mqtt.peer import Served
from server.harness import PATIENCE_S
from server.site import until

MANY = 20
FEW = 2
LIMITS = Config(
    states_waiting_max=100,
    states_waiting_per_client_max=8,
    dead_topics_waiting_max=100,
    dead_topics_waiting_per_client_max=4,
)


@pytest.fixture
def served() -> Iterator[Served]:
    with Served(config=LIMITS) as served:
        yield served


def connect(served: Served, name: str) -> Bus:
    return headwater.connect(f"headwater://{name}@{served.server.url.partition('://')[2]}")


def settle(bus: Bus, id: str, count: int, how: str, states: Literal["off", "stream"] = "off") -> None:
    """Take so many messages one by one, and ack or reject each."""
    bus.publish_many([(f"home/{id}", b"%d" % number) for number in range(count)])
    with bus.subscribe(f"home/{id}", id=id, start="earliest", order="none", states=states) as sub:
        for _ in range(count):
            message = sub.next(timeout_s=PATIENCE_S)
            assert message is not None
            getattr(message, how)()


def test_entries_about_one_clients_subscriptions_leave_room_for_those_of_others(served: Served):
    core = served.bus.core
    with connect(served, "hog") as hog, connect(served, "other") as other:
        with core.lives._writing:  # nothing is written meanwhile
            settle(hog, "hog", MANY, "ack", "stream")
            settle(hog, "hog2", MANY, "ack", "stream")
            settle(other, "mine", FEW, "ack", "stream")
            assert len(core.lives.waiting) <= LIMITS.states_waiting_per_client_max + 3 + 3 * FEW
        core.lives.write()
    told = [entry_of(one.payload) for one in served.bus.replay("$sys/states/mine")]
    assert [one.event for one in told].count("acked") == FEW
    assert "lost" not in {one.event for one in told}
    theirs = [entry_of(one.payload) for name in ("hog", "hog2") for one in served.bus.replay(f"$sys/states/{name}")]
    assert sum(one.count for one in theirs) > 0
    assert len([one for one in theirs if one.event != "lost"]) <= LIMITS.states_waiting_per_client_max + 1


def entry_of(payload: bytes) -> LifeEntry:
    return msgspec.json.decode(payload, type=LifeEntry)


def test_what_had_failed_when_a_subscription_is_served_again_is_told_as_far_as_there_is_room(tmp_path: Path):
    options: Any = {"id": "s", "start": "earliest", "order": "none", "states": "stream"}
    with headwater.open(tmp_path / "data") as bus, bus.subscribe("home/x", **options) as sub:
        bus.publish_many([("home/x", b"%d" % number) for number in range(MANY)])
        for message in sub.batch(MANY, PATIENCE_S):
            message.nack("no", delay_s=1000)
    with headwater.open(tmp_path / "data", Config(states_waiting_max=4)) as bus:
        bus.publish("home/x", b"another")
        with bus.core.lives._writing, bus.subscribe("home/x", **options) as sub:
            assert sub.next(PATIENCE_S) is not None
            assert len(bus.core.lives.waiting) <= 4 + 1  # that it was opened
        bus.core.lives.write()


def test_dead_letters_of_one_client_leave_room_for_those_of_others(served: Served, monkeypatch: pytest.MonkeyPatch):
    with connect(served, "hog") as hog, connect(served, "other") as other:
        with monkeypatch.context() as nothing_is_published:
            nothing_is_published.setattr(Letterbox, "wake", lambda self: None)
            settle(hog, "hog", FEW, "reject")
            settle(hog, "hog2", MANY, "reject")
            settle(other, "mine", FEW, "reject")
        until(lambda: len(other.dead_letters("mine")) == FEW)
        until(lambda: len(hog.dead_letters("hog2")) == MANY)
        served.bus.core.letterbox.wake()
        until(lambda: len(list(served.bus.replay("$dead/mine"))) == FEW)
        until(lambda: len(list(served.bus.replay("$dead/#"))) == FEW + LIMITS.dead_topics_waiting_per_client_max)
    assert [event.kind for event in served.bus.events()].count("dead-unpublished") == 1
