"""What is known of each message of a subscription."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S
from client.served import Served
from headwater import ManualClock, StateInfo, surface
from headwater.bus import Bus


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock) as bus:
        yield bus


def states(bus: surface.Bus) -> dict[int, StateInfo]:
    return {one.offset: one for one in bus.states("s")}


def test_a_message_in_flight_says_since_when_and_by_whom(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish("a/b/c", b"1")
    clock.advance(5)
    handed_out = timed.now
    sub.next(WAIT_S)
    clock.advance(5)
    (found,) = timed.states("s")
    assert (found.root, found.topic, found.offset, found.state) == ("a", "a/b/c", 1, "in_flight")
    assert (found.since, found.retry_at, found.error, found.errors) == (handed_out, None, None, ())
    assert found.consumer is not None
    assert found.consumer.endswith(f":{os.getpid()}")


def test_more_time_does_not_change_since_when_it_is_in_flight(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish("a", b"1")
    message = sub.next(WAIT_S)
    (before,) = timed.states("s")
    clock.advance(5)
    assert message is not None
    message.extend(60)
    assert timed.states("s") == [before]


def test_one_that_failed_says_when_it_comes_again_and_who_failed_it(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish("a/x", b"1")
    message = sub.next(WAIT_S)
    assert message is not None
    message.nack("no luck", delay_s=30)
    failed = timed.now
    clock.advance(3)
    sub.close()
    (found,) = timed.states("s")
    assert (found.state, found.attempts, found.deliveries, found.error) == ("retry", 1, 0, "no luck")
    assert (found.since, found.retry_at) == (failed, failed + timedelta(seconds=30))
    assert found.consumer is not None


def test_one_that_is_dead_is_not_told_as_acked(timed: Bus) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest", order="none")
    timed.publish_many([("a/x", b"%d" % n) for n in range(4)])
    first, second, third, _ = sub.batch(4, WAIT_S)
    second.reject("never")
    third.ack()
    died = timed.now
    found = states(timed)
    assert [found[offset].state for offset in sorted(found)] == ["in_flight", "dead", "acked", "in_flight"]
    assert (found[2].topic, found[2].attempts, found[2].error, found[2].since) == ("a/x", 1, "never", died)
    assert (found[3].since, found[3].consumer) == (None, None)
    first.ack()
    assert [one.offset for one in timed.states("s")] == [4]


def test_copies_have_their_topics(timed: Bus) -> None:
    timed.publish("a/kept", b"1", retain=True)
    sub = timed.subscribe("a/#", id="s", start="latest")
    timed.publish("a/x", b"2")
    timed.subscribe("a/x", id="other").close()
    message = sub.next(WAIT_S)
    assert message is not None
    assert message.retained
    assert [(one.topic, one.state) for one in timed.states("s")] == [("a/kept", "in_flight")]
    message.reject("no")
    assert timed.redrive("s") == 1
    assert ("a/kept", 1) in [(one.topic, one.offset) for one in timed.states("s")]


def test_one_whose_message_is_gone_has_no_topic(timed: Bus) -> None:
    sub = timed.subscribe("#", id="s", start="earliest", order="none")
    timed.publish_many([("a/x", b"1"), ("a/x", b"2"), ("b/x", b"1"), ("b/x", b"2")])
    for message in sub.batch(4, WAIT_S):
        if message.offset == 2:
            message.ack()
    timed.purge("a/#")
    assert [(one.root, one.offset, one.topic) for one in timed.states("s") if one.root == "b"] == [
        ("b", 1, "b/x"),
        ("b", 2, "b/x"),
    ]
    assert {one.state for one in timed.states("s") if one.root == "a"} <= {"in_flight", "acked"}


def test_beside_the_owner_what_only_the_owner_knows_is_absent(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
        bus.publish_many([("a/x", b"%d" % n) for n in range(3)])
        first, _, _ = sub.batch(3, WAIT_S)
        first.nack("later", delay_s=600)
        with headwater.open(tmp_path / "data", read_only=True) as beside:
            (info,) = beside.subscriptions()
            assert (info.lag, info.retrying, info.in_flight, info.consumers) == (3, 1, None, None)
            (found,) = beside.states("s")
            assert (found.topic, found.state, found.attempts, found.error) == ("a/x", "retry", 1, "later")
            assert found.consumer == bus.states("s")[0].consumer
        (info,) = bus.subscriptions()
        assert (info.in_flight, info.consumers) == (2, 1)


def test_it_is_told_at_a_server_as_in_the_process(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
        sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
        bus.publish_many([("a/x", b"%d" % n) for n in range(3)])
        first, second, third = sub.batch(3, WAIT_S)
        first.nack("later", delay_s=600)
        second.reject("never")
        found = states(bus)
        assert list(found.values()) == served.bus.states("s")
        assert [found[offset].state for offset in (1, 2, 3)] == ["retry", "dead", "in_flight"]
        (session,) = {one.consumer for one in found.values()}
        assert session is not None
        third.ack()


@pytest.mark.parametrize("delivery", [1, 2])
def test_one_whose_consumer_was_gone_counts_its_deliveries(timed: Bus, delivery: int) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest", max_deliveries=5)
    timed.publish("a/x", b"1")
    for _ in range(delivery):
        sub.next(WAIT_S)
        timed.core.dispatcher.detach(sub.subscriber, sub.ticket, vanished=True)  # type: ignore[attr-defined]
        sub = timed.subscribe("a/#", id="s")
    (found,) = timed.states("s")
    assert (found.state, found.attempts, found.deliveries) == ("retry", 0, delivery)
    assert found.consumer is not None
