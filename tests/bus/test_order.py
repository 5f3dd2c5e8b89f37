"""The order in which a durable subscription hands out, to one consumer or several."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, in_threads, numbers, payloads, publish_numbers, some
from headwater import Closed, ManualClock, Message, Outgoing, Recalled
from headwater.bus import Bus

# Order


def test_strict_nothing_after_a_failed_message_is_handed_out_before_it_is_acked_or_dead(
    timed: Bus, clock: ManualClock
) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=2)
    publish_numbers(timed, 5)
    taken = sub.batch(3, 0)
    taken[1].nack("no", delay_s=10)
    taken[0].ack()
    with pytest.raises(Recalled, match="taken back"):
        taken[2].ack()
    assert sub.next(timeout_s=0) is None
    clock.advance(10)
    again = sub.batch(10, 0)
    assert payloads(again) == [b"1"]
    assert sub.next(timeout_s=0) is None
    again[0].ack()
    assert [(m.payload, m.attempt) for m in sub.batch(10, 0)] == [(b"2", 1), (b"3", 1), (b"4", 1)]


def test_strict_a_dead_message_lets_the_next_go_on(timed: Bus) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=1)
    publish_numbers(timed, 3)
    sub.batch(3, 0)[0].nack("no")
    assert payloads(sub.batch(10, 0)) == [b"1", b"2"]


def test_strict_holds_over_several_roots_and_restarts(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        sub = bus.subscribe("#", id="s", start="earliest")
        bus.publish("a/x", b"a1")
        some(sub, 1)[0].nack("no", delay_s=10)
        bus.publish("a/x", b"a2")
        bus.publish("b/x", b"b1")
        assert sub.next(timeout_s=0) is None
    with headwater.open(folder, clock=clock) as bus:
        sub = bus.subscribe("#", id="s")
        first = sub.batch(10, 0)
        assert b"a2" not in payloads(first)
        sub.ack(first)
        clock.advance(10)
        (failed,) = some(sub, 1)
        assert failed.payload == b"a1"
        failed.ack()
        assert sorted(payloads(first + sub.batch(10, 0))) == [b"a2", b"b1"]


def test_key_a_failed_key_waits_and_the_rest_flows(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="key")
    for number, key in enumerate([b"a", b"b", b"a", None, b"b", None, b""]):
        timed.publish("jobs/x", b"%d" % number, key=key)
    taken = {message.payload: message for message in sub.batch(100, 0)}
    assert len(taken) == 7
    taken[b"0"].nack("no", delay_s=10)
    with pytest.raises(Recalled):
        taken[b"2"].ack()
    for payload in (b"1", b"3", b"4", b"5", b"6"):
        taken[payload].ack()
    timed.publish("jobs/x", b"7", key=b"a")
    timed.publish("jobs/x", b"8", key=b"b")
    assert payloads(sub.batch(100, 0)) == [b"8"]
    clock.advance(10)
    (failed,) = some(sub, 1)
    assert failed.payload == b"0"
    assert sub.next(timeout_s=0) is None
    failed.ack()
    assert payloads(sub.batch(100, 0)) == [b"2", b"7"]


def test_key_messages_without_a_key_go_by_their_topic(timed: Bus) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="key")
    timed.publish_many([("jobs/a", b"1"), ("jobs/b", b"2"), ("jobs/a", b"3")])
    taken = sub.batch(10, 0)
    taken[0].nack("no", delay_s=10)
    taken[1].ack()
    with pytest.raises(Recalled):
        taken[2].ack()


def test_none_a_failed_message_holds_up_nothing(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="none")
    publish_numbers(timed, 4)
    taken = sub.batch(3, 0)
    taken[0].nack("no", delay_s=10)
    taken[2].ack()
    assert payloads(sub.batch(10, 0)) == [b"3"]
    taken[1].ack()
    clock.advance(10)
    assert payloads(sub.batch(10, 0)) == [b"0"]


# Several consumers


@pytest.mark.parametrize("order", ["none", "key"])
def test_several_consumers_share_a_subscription_and_each_message_goes_to_one(bus: Bus, order: str) -> None:
    count, lock = 400, threading.Lock()
    got: list[tuple[bytes, int]] = []
    subs = [bus.subscribe("jobs/#", id="s", start="earliest", order=order, max_in_flight=40) for _ in range(4)]  # type: ignore[call-overload]
    assert bus.subscriptions()[0].consumers == 4
    bus.publish_many([Outgoing("jobs/x", b"%d" % number, key=b"%d" % (number % 7)) for number in range(count)])
    everything = threading.Event()

    def work(consumer: int) -> None:
        sub = subs[consumer]
        while not everything.is_set():
            messages = sub.batch(5, timeout_s=0.05)
            sub.ack(messages)
            with lock:
                got.extend((message.payload, consumer) for message in messages)
                if len(got) >= count:
                    everything.set()

    in_threads(4, work)
    assert sorted(int(payload) for payload, _ in got) == list(range(count))


def test_what_one_consumer_holds_another_does_not_get(bus: Bus) -> None:
    one, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="none") for _ in range(2))
    publish_numbers(bus, 5)
    assert payloads(one.batch(2, 0) + other.batch(2, 0) + one.batch(10, 0)) == numbers(5)
    assert one.next(timeout_s=0) is other.next(timeout_s=0) is None


def test_with_strict_order_one_is_active_and_a_standby_takes_over(bus: Bus) -> None:
    active, standby = (bus.subscribe("jobs/#", id="s", start="earliest") for _ in range(2))
    publish_numbers(bus, 3)
    assert standby.next(timeout_s=0) is None
    first, second = active.batch(2, 0)
    first.ack()
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(standby, 2)))
    waiting.start()
    active.close()
    waiting.join(WAIT_S)
    assert [(m.payload, m.attempt) for m in found] == [(b"1", 1), (b"2", 1)], "a disconnect is not an attempt"
    with pytest.raises(Recalled):
        second.ack()
    found[0].ack()


def test_what_a_leaving_consumer_holds_goes_to_the_others(bus: Bus) -> None:
    one, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="none") for _ in range(2))
    publish_numbers(bus, 4)
    held = one.batch(2, 0)
    mine = other.batch(10, 0)
    one.close()
    assert sorted(payloads(other.batch(10, WAIT_S))) == sorted(payloads(held))
    other.ack(mine)
    with pytest.raises(Recalled):
        held[0].ack()


def test_a_consumer_that_is_closed_takes_nothing_more_and_the_subscription_stays(bus: Bus) -> None:
    sub, other = (bus.subscribe("jobs/#", id="s", start="earliest") for _ in range(2))
    sub.close()
    sub.close()
    with pytest.raises(Closed):
        sub.next(timeout_s=0)
    assert list(sub) == []
    assert other.next(timeout_s=0) is None
    other.close()
    assert [info.id for info in bus.subscriptions()] == ["s"]
    with bus.subscribe("jobs/#", id="s") as again:
        publish_numbers(bus, 1)
        assert payloads(some(again, 1)) == [b"0"]
    assert bus.subscriptions()[0].consumers == 0
