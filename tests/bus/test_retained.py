"""Retained messages, and messages that expire."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, payloads, settle, some
from headwater import Config, ManualClock, Outgoing, QuotaExceeded, Retention
from headwater.bus import Bus

# Retained messages


def test_retained_messages_come_first_and_flagged_to_a_new_live_subscriber(bus: Bus) -> None:
    bus.publish("home/b", b"old", retain=True)
    bus.publish("home/b", b"b", retain=True)
    bus.publish("home/c", b"not retained")
    bus.publish("home/a", b"a", retain=True)
    bus.publish("hall/a", b"of another root", retain=True)
    live = bus.subscribe("home/#")
    bus.publish("home/b", b"live", retain=True)
    found = live.batch(10, WAIT_S) + live.batch(10, 0)
    assert [(m.topic, m.payload, m.retained) for m in found] == [
        ("home/a", b"a", True),
        ("home/b", b"b", True),
        ("home/b", b"live", False),
    ]
    assert [m.offset for m in found] == [4, 2, 5]


def test_retained_messages_come_first_to_a_durable_subscriber_that_starts_at_latest(bus: Bus) -> None:
    bus.publish("home/a", b"retained", retain=True)
    bus.publish("home/a", b"passed over")
    sub = bus.subscribe("home/#", id="s", start="latest")
    bus.publish("home/a", b"new")
    first, second = some(sub, 2)
    assert (first.payload, first.retained) == (b"retained", True)
    assert (second.payload, second.retained) == (b"new", False)
    sub.ack([first, second])
    assert sub.next(timeout_s=0) is None


def test_a_durable_subscriber_that_starts_elsewhere_gets_no_retained_copy(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True)
    sub = bus.subscribe("home/#", id="s", start="earliest")
    (message,) = some(sub, 1)
    assert not message.retained
    message.ack()
    assert sub.next(timeout_s=0) is None


def test_the_retained_copy_comes_once_and_survives_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.publish("home/a", b"1", retain=True)
        bus.subscribe("home/#", id="s").close()
    with headwater.open(folder) as bus:
        sub = bus.subscribe("home/#", id="s")
        (message,) = some(sub, 1)
        assert message.retained
        message.ack()
    with headwater.open(folder) as bus:
        assert bus.subscribe("home/#", id="s").next(timeout_s=0) is None


def test_a_retained_message_is_cleared_by_an_empty_payload(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True)
    bus.publish("home/a", b"", retain=True)
    assert bus.retained("#") == {}
    assert not bus.topics("home/a")[0].retained
    assert bus.subscribe("home/#").next(timeout_s=0) is None
    assert bus.subscribe("home/#", id="s").next(timeout_s=0) is None


def test_an_empty_payload_without_the_flag_clears_nothing(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True)
    bus.publish("home/a", b"")
    assert payloads(bus.retained("home/a").values()) == [b"1"]


def test_a_retained_message_is_dropped_at_its_ttl(timed: Bus, clock: ManualClock) -> None:
    timed.publish("home/a", b"1", retain=True, ttl_s=10)
    sub = timed.subscribe("home/#", id="s")
    clock.advance(9)
    assert payloads(timed.retained("home/#").values()) == [b"1"]
    clock.advance(1)
    assert timed.retained("home/#") == {}
    assert not timed.topics("home/#")[0].retained
    assert timed.subscribe("home/#").next(timeout_s=0) is None
    assert sub.next(timeout_s=0) is None
    clock.advance(100)
    settle(timed)  # the round that forgets them for good
    assert timed.retained("home/#") == {}


def test_retained_messages_survive_a_restart(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        bus.publish("home/a", b"1", retain=True, key=b"k", headers={"h": "v"})
        bus.publish("home/b", b"2", retain=True, ttl_s=100)
        bus.publish("home/c", b"3", retain=True)
        bus.publish("home/c", b"", retain=True)
    clock.advance(50)
    with headwater.open(folder, clock=clock) as bus:
        assert [(m.payload, m.key, m.header_pairs) for m in bus.retained("#").values()] == [
            (b"1", b"k", (("h", "v"),)),
            (b"2", None, ()),
        ]
        clock.advance(51)
        assert payloads(bus.retained("#").values()) == [b"1"]


def test_retention_cannot_take_retained_messages(folder: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(age_s=10))
    with headwater.open(folder, config, clock=clock) as bus:
        bus.publish("home/a", b"kept", retain=True)
        clock.advance(100)
        settle(bus)
        assert list(bus.replay("home/#")) == []
        assert payloads(bus.retained("home/#").values()) == [b"kept"]
        assert payloads(some(bus.subscribe("home/#"), 1)) == [b"kept"]


def test_one_retained_topic_more_than_allowed_is_refused(folder: Path) -> None:
    with headwater.open(folder, Config(retained_per_root_max=2)) as bus:
        bus.publish("a/1", b"1", retain=True)
        with pytest.raises(QuotaExceeded):
            bus.publish_many(
                [
                    Outgoing("a/2", b"", retain=True),
                    Outgoing("a/3", b"x", retain=True),
                    Outgoing("a/4", b"x", retain=True),
                ]
            )
        bus.publish("a/2", b"2", retain=True)
        with pytest.raises(QuotaExceeded, match="retained_per_root_max"):
            bus.publish("a/3", b"3", retain=True)
        bus.publish("a/1", b"newer", retain=True)
        bus.publish("a/3", b"not retained")
        bus.publish("a/1", b"", retain=True)
        bus.publish("a/3", b"3", retain=True)
        assert payloads(bus.retained("#").values()) == [b"2", b"3"]


def test_more_retained_bytes_than_allowed_are_refused_also_after_a_restart(folder: Path) -> None:
    config = Config(retained_bytes_per_root_max=10)
    with headwater.open(folder, config) as bus:
        bus.publish("a/1", b"12345", retain=True, key=b"k", headers={"h": "v"})
        with pytest.raises(QuotaExceeded, match="retained_bytes_per_root_max"):
            bus.publish("new/1", b"x" * 11, retain=True)
        with pytest.raises(QuotaExceeded):
            bus.publish_many([Outgoing("a/2", b"1", retain=True), Outgoing("a/3", b"12", retain=True)])
        bus.publish("a/1", b"1", retain=True)
        bus.publish("a/2", b"123456789", retain=True)
        assert bus.ends() == {"a": 3}
    with headwater.open(folder, config) as bus:
        with pytest.raises(QuotaExceeded):
            bus.publish("a/1", b"12", retain=True)
        bus.publish("a/1", b"12")
        bus.purge("a/2")
    with headwater.open(folder, config) as bus:
        bus.publish("a/1", b"1234567890", retain=True)
        bus.publish("a/1", b"", retain=True)
        bus.publish("a/2", b"1234567890", retain=True)
        assert payloads(bus.retained("#").values()) == [b"1234567890"]


# Time to live


def test_a_message_past_its_ttl_reaches_nobody(timed: Bus, clock: ManualClock) -> None:
    live = timed.subscribe("a/#")
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish_many(
        [Outgoing("a/b", b"short", ttl_s=5), Outgoing("a/b", b"long", ttl_s=50), Outgoing("a/b", b"ever")]
    )
    clock.advance(6)
    assert payloads(live.batch(10, 0)) == [b"long", b"ever"]
    assert payloads(sub.batch(10, 0)) == [b"long", b"ever"]
    assert payloads(timed.replay("a/#")) == [b"long", b"ever"]


def test_a_failed_message_past_its_ttl_is_not_tried_again(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish("a/b", b"short", ttl_s=5)
    timed.publish("a/b", b"next")
    some(sub, 1)[0].nack("no", delay_s=1)
    clock.advance(6)
    assert payloads(sub.batch(10, 0)) == [b"next"]
