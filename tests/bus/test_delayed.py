"""Delayed messages."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import numbers, payloads, settle, some
from headwater import Config, Malformed, ManualClock, QuotaExceeded
from headwater.bus import Bus


def test_a_delayed_message_is_not_delivered_before_it_is_due(timed: Bus, clock: ManualClock) -> None:
    due = timed.now + timedelta(seconds=10)
    receipt = timed.publish("jobs/x", b"later", deliver_at=due, key=b"k", headers={"a": "b"})
    assert receipt.offset == 0
    live = timed.subscribe("jobs/#")
    clock.advance(9.9)
    settle(timed)
    assert live.next(timeout_s=0) is None
    assert list(timed.replay("jobs/#")) == []
    clock.advance(0.2)
    (message,) = some(live, 1)
    assert (message.payload, message.offset, message.key, message.header_pairs) == (b"later", 1, b"k", (("a", "b"),))
    assert message.timestamp == timed.now


def test_a_delayed_message_gets_its_offset_when_it_is_due(timed: Bus, clock: ManualClock) -> None:
    timed.publish("jobs/x", b"delayed", deliver_at=timed.now + timedelta(seconds=10))
    assert timed.publish("jobs/x", b"first").offset == 1
    clock.advance(10)
    settle(timed)
    assert timed.publish("jobs/x", b"third").offset == 3
    assert payloads(timed.replay("jobs/#")) == [b"first", b"delayed", b"third"]


def test_delayed_messages_come_in_the_order_in_which_they_are_due(timed: Bus, clock: ManualClock) -> None:
    for seconds in (30, 10, 20, 10):
        timed.publish("jobs/x", b"%d" % seconds, deliver_at=timed.now + timedelta(seconds=seconds))
    clock.advance(15)
    settle(timed)
    assert payloads(timed.replay("jobs/#")) == [b"10", b"10"]
    clock.advance(15)
    settle(timed)
    assert payloads(timed.replay("jobs/#")) == [b"10", b"10", b"20", b"30"]


def test_a_delayed_message_that_is_due_already_is_delivered_at_once(timed: Bus) -> None:
    timed.publish("jobs/x", b"", deliver_at=timed.now - timedelta(days=1))
    settle(timed)
    assert len(list(timed.replay("jobs/#"))) == 1


def test_delayed_messages_survive_a_restart_and_come_once(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        for payload in numbers(3):
            bus.publish("jobs/x", payload, deliver_at=bus.now + timedelta(seconds=10))
    clock.advance(20)
    for _ in range(2):
        with headwater.open(folder, clock=clock) as bus:
            settle(bus)
            assert payloads(bus.replay("jobs/#")) == numbers(3)


def test_retain_and_ttl_of_a_delayed_message_start_when_it_is_due(timed: Bus, clock: ManualClock) -> None:
    timed.publish("home/x", b"on", retain=True, ttl_s=5, deliver_at=timed.now + timedelta(seconds=10))
    assert timed.retained("home/#") == {}
    clock.advance(12)
    settle(timed)
    assert payloads(timed.retained("home/#").values()) == [b"on"]
    clock.advance(6)
    assert timed.retained("home/#") == {}
    assert list(timed.replay("home/#")) == []


def test_more_delayed_messages_than_a_group_may_hold_are_all_released(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, Config(group_messages_max=2), clock=clock) as bus:
        for payload in numbers(7):
            bus.publish("jobs/x", payload, deliver_at=bus.now + timedelta(seconds=10))
        live = bus.subscribe("jobs/#")
        clock.advance(11)
        assert payloads(some(live, 7)) == numbers(7)


def test_a_delayed_message_that_finds_no_room_is_tried_again_and_does_not_keep_the_bus_busy(
    folder: Path, clock: ManualClock
) -> None:
    with headwater.open(folder, Config(roots_max=2), clock=clock) as bus:
        bus.publish("b/x", b"", deliver_at=bus.now + timedelta(seconds=5))
        bus.publish("a/x", b"")
        clock.advance(6)
        settle(bus)
        troubles = [event for event in bus.events() if event.kind == "trouble"]
        assert 1 <= len(troubles) <= 2
        assert "roots_max" in troubles[0].text
        assert bus.publish("a/x", b"").offset == 2


def test_a_delay_that_is_too_long_or_one_too_many_is_refused(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, Config(delay_s_max=100, delayed_max=2), clock=clock) as bus:
        with pytest.raises(Malformed, match="delay_s_max"):
            bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=101))
        for _ in range(2):
            bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=50))
        with pytest.raises(QuotaExceeded, match="delayed_max"):
            bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=50))
        clock.advance(60)
        settle(bus)
        assert len(list(bus.replay("a/#"))) == 2
        bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=50))


def test_where_delayed_messages_wait_is_not_for_users(timed: Bus, clock: ManualClock) -> None:
    timed.publish("a/b", b"", deliver_at=timed.now + timedelta(seconds=5))
    with pytest.raises(Malformed, match="deliver_at"):
        timed.publish("$delayed/a/b", b"")
    assert timed.topics("#") == []
    timed.purge("#")
    clock.advance(6)
    settle(timed)
    assert len(list(timed.replay("a/#"))) == 1
