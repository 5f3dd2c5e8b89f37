"""Topics that are listed, limited and purged."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from bus.flows import SMALL, WAIT_S, payloads, some
from headwater import Config, ManualClock, PartlyStored, QuotaExceeded
from headwater.bus import Bus


def test_topics_lists_messages_last_offset_and_retained(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.publish_many([("b/x", b""), ("a/x", b""), ("a/y", b""), ("a/x", b"")])
        bus.publish("a/x", b"on", retain=True)
        wanted = [("a/x", 3, 4, True), ("a/y", 1, 2, False), ("b/x", 1, 1, False)]
        assert [(t.topic, t.messages, t.last_offset, t.retained) for t in bus.topics()] == wanted
        assert [t.topic for t in bus.topics("a/+")] == ["a/x", "a/y"]
        assert bus.topics("c/#") == []
    with headwater.open(folder) as bus:
        assert [(t.topic, t.messages, t.last_offset, t.retained) for t in bus.topics()] == wanted
        bus.publish("a/x", b"")
        assert bus.topics("a/x")[0].messages == 4


def test_one_topic_or_root_more_than_allowed_is_refused_and_nothing_is_created(folder: Path) -> None:
    with headwater.open(folder, Config(roots_max=2, topics_per_root_max=2)) as bus:
        with pytest.raises(QuotaExceeded, match="topics_per_root_max"):
            bus.publish_many([("b/1", b""), ("b/2", b""), ("b/3", b"")])
        assert bus.topics() == []
        with pytest.raises(PartlyStored, match=r'those of "c", "d", and those of "e" were not: .*roots_max'):
            bus.publish_many([("c/2", b""), ("c/3", b""), ("d/1", b""), ("e/1", b"")])
        for topic in ("c/4", "e/1"):
            with pytest.raises(QuotaExceeded) as refused:
                bus.publish(topic, b"")
            assert (refused.value.code, refused.value.retryable) == (429, True)
        bus.publish("c/2", b"")


def test_purge_removes_messages_topics_and_retained_values_for_everybody(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("home/#", id="s", start="earliest")
        live = bus.subscribe("home/#")
        bus.publish_many([("home/old/a", b"1"), ("home/new", b"2"), ("home/old/b", b"3")])
        bus.publish("home/old/a", b"kept", retain=True)
        assert len(live.batch(10, WAIT_S)) >= 1
        assert bus.purge("home/old/#") == 2
        assert bus.purge("home/old/#") == 0
        bus.publish("home/old/a", b"after")
        assert bus.topics("home/old/a")[0].messages == 1
        assert bus.retained("#") == {}
        assert payloads(sub.batch(10, 0)) == [b"2", b"after"]
    with headwater.open(folder) as bus:
        assert payloads(bus.replay("home/#")) == [b"2", b"after"]
        assert [topic.topic for topic in bus.topics()] == ["home/new", "home/old/a"]
        assert payloads(bus.subscribe("home/#", id="s").batch(10, 0)) == [b"2", b"after"]


def test_purge_of_a_whole_root_frees_its_segments_and_subscribers_go_on(folder: Path) -> None:
    with headwater.open(folder, SMALL) as bus:
        sub = bus.subscribe("home/#", id="s", start="earliest")
        for _ in range(30):
            bus.publish("home/a", bytes(5000))
        (held,) = some(sub, 1)
        assert len(list((folder / "streams" / "1-home").glob("*.log"))) > 1
        assert bus.purge("home/#") == 1
        (left,) = (folder / "streams" / "1-home").glob("*.log")
        assert left.stat().st_size < 5000
        assert bus.publish("home/a", b"after").offset == 31
        assert payloads(sub.batch(10, WAIT_S)) == [b"after"]
        assert payloads(bus.replay("home/#")) == [b"after"]
        assert held.payload == bytes(5000)


def test_purge_forgets_messages_in_flight_and_failed(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="none")
    timed.publish_many([("jobs/a", b"1"), ("jobs/a", b"2"), ("jobs/b", b"3")])
    first, second = sub.batch(2, 0)
    first.nack("no", delay_s=10)
    timed.purge("jobs/a")
    second.ack()
    clock.advance(11)
    assert payloads(sub.batch(10, 0)) == [b"3"]
    assert timed.subscriptions()[0].lag == 1
