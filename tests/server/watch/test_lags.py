"""Lags of many subscriptions: the same as when each is looked at by itself, and within a budget."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

import headwater
from headwater.bus import Bus
from headwater.clock import ManualClock
from headwater.config import Config, Retention
from headwater.message import Outgoing
from headwater.server.watch import lags as looking
from headwater.server.watch.lags import Lags

FILTERS = ("#", "home/#", "home/+/temp", "home/a/temp", "hall/#", "+/b/#", "home/none")
TOPICS = ("home/a/temp", "home/b/temp", "home/a/power", "hall/b/temp", "hall/c")


@pytest.fixture
def bus() -> Iterator[Bus]:
    with headwater.open(":memory:", Config(tail_bytes=2000, read_bytes=1000)) as bus:
        yield bus


def lags_of(bus: Bus) -> Lags:
    inside = bus.core
    return Lags(inside.dispatcher, inside.roots, bus.config, inside.clock, lambda name: ":" in name)


def told(lags: Lags) -> dict[str, tuple[int, int, int, int, int]]:
    return {one.id: (one.lag, one.in_flight, one.retrying, one.dead, one.consumers) for one in lags.look(1000)[0]}


def exact(bus: Bus) -> dict[str, tuple[int, int | None, int, int, int | None]]:
    return {one.id: (one.lag, one.in_flight, one.retrying, one.dead, one.consumers) for one in bus.subscriptions()}


@pytest.mark.parametrize("seed", range(6))
def test_what_is_told_is_what_a_look_at_each_would_tell(bus: Bus, seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "BUDGET_US", 10_000_000)
    monkeypatch.setattr(looking, "MESSAGES_MAX", 7)
    rng = random.Random(seed)
    lags = lags_of(bus)
    consumers = {}
    for step in range(120):
        name = rng.choice(FILTERS)
        match rng.randrange(8):
            case 0 | 1:
                topics = rng.choices(TOPICS, k=rng.randrange(1, 20))
                bus.publish_many([Outgoing(topic, b"x", retain=rng.random() < 0.1) for topic in topics])
            case 2:
                if name not in consumers:
                    consumers[name] = bus.subscribe(name, id=name, max_attempts=2, retry_delay_s=0.0, order="none")
            case 3:
                if name in consumers:
                    consumers.pop(name).close()
            case 4 | 5:
                if name in consumers:
                    found = consumers[name].batch(8, 0)
                    consumers[name].ack(rng.sample(found, len(found) // 2))
            case 6:
                if name in consumers and (found := consumers[name].batch(1, 0)):
                    found[0].nack("no", delay_s=rng.choice((0.0, 60.0)))
            case 7:
                if name in consumers and rng.random() < 0.3:
                    consumers[name].seek(rng.choice(("earliest", "latest")))
        if step % 10 == 0:
            assert told(lags) == exact(bus), step
    assert told(lags) == exact(bus)
    sums = lags.look(1)[1]
    assert sums.lag == sum(one[0] for one in exact(bus).values())


def test_what_was_purged_is_not_behind(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "BUDGET_US", 10_000_000)
    lags = lags_of(bus)
    bus.publish_many([("home/a", b"1"), ("home/b", b"2")] * 5)
    bus.subscribe("home/#", id="s", start="earliest").close()
    bus.subscribe("home/+", id="t", start="earliest").close()
    assert (told(lags)["s"][0], told(lags)["t"][0]) == (10, 10)
    bus.purge("home/a")
    assert (told(lags)["s"][0], told(lags)["t"][0]) == (5, 5)


def test_what_retention_has_deleted_is_not_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "BUDGET_US", 10_000_000)
    clock = ManualClock()
    config = Config(segment_bytes=64 * 1024, retention=Retention(hard_age_s=60.0), retention_interval_s=1.0)
    with Bus(":memory:", config, clock=clock) as bus:
        lags = lags_of(bus)
        for name, wanted in (("s", "home/#"), ("t", "home/+"), ("u", "home/#")):
            bus.subscribe(wanted, id=name, start="earliest").close()
        taking = bus.subscribe("home/#", id="u")
        bus.publish_many([("home/a", b"x" * 30_000)] * 10)
        assert {name: one[0] for name, one in told(lags).items()} == {"s": 10, "t": 10, "u": 10}
        clock.advance(120)
        bus.publish("home/a", b"x")
        while bus.extents("home/#")[0].first == 1:
            clock.advance(2)
            time.sleep(0.01)
        kept = bus.extents("home/#")[0].end - bus.extents("home/#")[0].first
        assert {name: one[0] for name, one in told(lags).items()} == {"s": kept, "t": kept, "u": kept}
        taking.close()


def test_a_look_within_no_time_at_all_still_gets_round_to_everybody(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "BUDGET_US", 1)
    monkeypatch.setattr(looking, "MESSAGES_MAX", 10)
    for number in range(20):
        bus.subscribe(f"home/{number}" if number % 2 else "home/#", id=f"s{number:02}", start="earliest").close()
    for _ in range(10):
        bus.publish_many([(f"home/{number}", b"x") for number in range(20)])
    lags = lags_of(bus)
    for _ in range(1000):
        found = told(lags)
    assert found == exact(bus)
    assert found["s01"][0] == 10
    assert found["s00"][0] == 200


def test_what_was_not_looked_at_is_estimated_by_what_was(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "BUDGET_US", 1)
    bus.subscribe("home/a", id="s", start="earliest").close()
    for _ in range(10):
        bus.publish_many([("home/a", b"x"), *[("home/b", b"x")] * 99])
    lags = lags_of(bus)
    monkeypatch.setattr(looking, "MESSAGES_MAX", 0)
    assert told(lags)["s"][0] == 1000  # all of them may match
    monkeypatch.setattr(looking, "MESSAGES_MAX", 100)
    assert told(lags)["s"][0] == 10  # one in a hundred did


def test_deleted_subscriptions_are_counted_no_more_and_new_ones_are(bus: Bus):
    lags = lags_of(bus)
    for name in ("a", "b"):
        bus.subscribe("home/#", id=name, start="earliest").close()
    bus.publish("home/x", b"1")
    assert lags.look(10)[1].lag == 2
    bus.unsubscribe("a")
    found, sums = lags.look(10)
    assert [one.id for one in found] == ["b"]
    assert sums.lag == 1
    bus.subscribe("home/#", id="c", start="earliest").close()
    assert lags.look(10)[1].lag == 2


def test_looking_loads_and_writes_nothing(bus: Bus):
    bus.subscribe("home/a", id="s", start="earliest").close()
    bus.publish_many([("home/a", b"1"), ("home/b", b"2")])
    before = dict(bus.core.state.scan(b""))
    assert told(lags_of(bus))["s"][0] in (1, 2)
    assert dict(bus.core.state.scan(b"")) == before
    assert bus.core.dispatcher.served("s") is None
