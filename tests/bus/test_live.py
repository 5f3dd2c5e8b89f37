"""Live subscriptions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, numbers, payloads, publish_numbers
from headwater import Closed, Config
from headwater.bus import Bus


def test_a_live_subscription_gets_what_is_published_while_it_is_there(bus: Bus) -> None:
    bus.publish("home/a", b"before")
    with bus.subscribe("home/#") as live:
        publish_numbers(bus, 3, "home/a")
        bus.publish("hall/a", b"of another root")
        assert payloads(live.batch(10, WAIT_S)) == numbers(3)
    publish_numbers(bus, 3, "home/a")
    with pytest.raises(Closed):
        live.next(timeout_s=0)
    assert list(live) == []


def test_the_topics_of_sys_are_the_brokers_own(bus: Bus) -> None:
    due = datetime.now(UTC) + timedelta(seconds=60)
    for publish in (
        lambda: bus.publish("$sys/x", b"1"),
        lambda: bus.publish("$sys", b"1"),
        lambda: bus.publish_soon("$sys/x", b"1"),
        lambda: bus.publish_many([("home/x", b"1"), ("$sys/x", b"1")]),
        lambda: bus.publish("$sys/x", b"1", deliver_at=due),
        lambda: bus.stage("writer", 1, [("$sys/x", b"1")]),
    ):
        with pytest.raises(headwater.NotAllowed, match="a root of yours"):
            publish()
    assert bus.ends() == {}


def test_live_subscribers_of_every_filter_get_their_slice_of_a_batch(bus: Bus) -> None:
    topics = ["home/a/temp", "home/b/temp", "home/a/power", "hall/a/temp", "$box/x"]
    filters = ["#", "home/#", "home/+/temp", "home/a/temp", "+/a/#", "$box/#", "hall/b"]
    lives = {each: bus.subscribe(each) for each in filters}
    bus.publish_many([(topic, topic.encode()) for topic in topics])
    found = {each: sorted(payloads(live.batch(10, 0) + live.batch(10, 0))) for each, live in lives.items()}
    assert found == {
        "#": sorted(topic.encode() for topic in topics[:4]),
        "home/#": [b"home/a/power", b"home/a/temp", b"home/b/temp"],
        "home/+/temp": [b"home/a/temp", b"home/b/temp"],
        "home/a/temp": [b"home/a/temp"],
        "+/a/#": [b"hall/a/temp", b"home/a/power", b"home/a/temp"],
        "$box/#": [b"$box/x"],
        "hall/b": [],
    }


def test_a_full_live_buffer_drops_the_oldest_and_counts_them(folder: Path) -> None:
    with headwater.open(folder, Config(live_messages_max=5)) as bus:
        live = bus.subscribe("jobs/#")
        publish_numbers(bus, 4)
        publish_numbers(bus, 4, first=4)
        assert live.dropped == 3
        assert payloads(live.batch(100, 0) + live.batch(100, 0)) == numbers(5, 3)
        publish_numbers(bus, 20)
        assert live.dropped == 18
        assert payloads(live.batch(100, 0)) == numbers(5, 15)


def test_a_full_live_buffer_may_disconnect_instead(folder: Path) -> None:
    with headwater.open(folder, Config(live_messages_max=5)) as bus:
        live = bus.subscribe("jobs/#", when_full="disconnect")
        publish_numbers(bus, 6)
        with pytest.raises(Closed, match="too slow"):
            while live.next(timeout_s=0) is not None:
                pass
        publish_numbers(bus, 1)
        with pytest.raises(Closed):
            live.next(timeout_s=0)


def test_live_bytes_are_limited_too(folder: Path) -> None:
    with headwater.open(folder, Config(live_bytes_max=10_000)) as bus:
        live = bus.subscribe("jobs/#")
        for number in range(10):
            bus.publish("jobs/x", b"%d" % number * 3000)
        assert live.dropped >= 6
        found = live.batch(100, 0) + live.batch(100, 0) + live.batch(100, 0)
        assert [message.payload[:1] for message in found][-1:] == [b"9"]
        assert len(found) == 10 - live.dropped


def test_a_batch_is_all_that_is_there_however_it_was_published(bus: Bus) -> None:
    with bus.subscribe("#") as live:
        for number, payload in enumerate(numbers(6)):
            bus.publish(f"{('home', 'hall')[number % 2]}/a", payload)
        assert payloads(live.batch(4, 0)) == numbers(4)
        assert payloads(live.batch(100, 0)) == numbers(2, 4)


def test_a_batch_after_retained_messages_goes_on_with_what_came_since(bus: Bus) -> None:
    for number in range(3):
        bus.publish(f"home/{number}", b"%d" % number, retain=True)
    with bus.subscribe("home/#") as live:
        bus.publish("home/a", b"3")
        assert payloads(live.batch(100, 0)) == numbers(4)


def test_a_topic_may_be_subscribed_to_before_there_is_any(bus: Bus) -> None:
    with bus.subscribe("nowhere/yet") as live, bus.subscribe("nowhere/yet", id="later") as durable:
        following = bus.follow("nowhere/yet")
        assert live.batch(1, 0) == durable.batch(1, 0) == following.batch(1, 0) == []
        assert bus.topics() == []
        assert bus.ends() == {}
        bus.publish("nowhere/yet", b"1")
        for reader in (live, durable, following):
            assert payloads(reader.batch(10, WAIT_S)) == [b"1"]
