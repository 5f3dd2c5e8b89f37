"""Durable subscriptions: where they start, what they hand out, and acks."""

from __future__ import annotations

import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, numbers, payloads, publish_numbers, python, some
from headwater import HeadwaterError, Malformed, ManualClock, Message, Recalled
from headwater.bus import Bus

# Durable subscriptions: where they start


def test_a_subscription_starts_at_earliest_latest_an_offset_or_a_time(timed: Bus, clock: ManualClock) -> None:
    for payload in numbers(5):
        clock.advance(10)
        timed.publish("a/b", payload)
    third = timed.now - timedelta(seconds=20)
    starts: list[tuple[str, str | int | datetime, list[bytes]]] = [
        ("earliest", "earliest", numbers(5)),
        ("latest", "latest", []),
        ("offset", 4, numbers(2, 3)),
        ("first", 1, numbers(5)),
        ("zero", 0, numbers(5)),
        ("beyond", 100, []),
        ("time", third, numbers(3, 2)),
        ("between", third - timedelta(seconds=1), numbers(3, 2)),
        ("past", datetime(2000, 1, 1, tzinfo=UTC), numbers(5)),
        ("future", timed.now + timedelta(days=1), []),
        ("naive", third.astimezone().replace(tzinfo=None), numbers(3, 2)),
    ]
    for name, start, wanted in starts:
        with timed.subscribe("a/#", id=name, start=start) as sub:  # type: ignore[arg-type]
            assert payloads(sub.batch(100, 0)) == wanted, name
    timed.publish("a/b", b"new")
    assert payloads(timed.subscribe("a/#", id="latest").batch(10, 0)) == [b"new"]


def test_start_counts_at_the_first_use_only(bus: Bus) -> None:
    publish_numbers(bus, 3)
    bus.subscribe("jobs/#", id="s", start="latest").close()
    assert bus.subscribe("jobs/#", id="s", start="earliest").next(timeout_s=0) is None


def test_roots_that_appear_later_are_picked_up_from_their_first_message(bus: Bus) -> None:
    subs = [bus.subscribe(each, id=each) for each in ("#", "+/x", "new/#")]
    for sub in subs:
        assert sub.next(timeout_s=0) is None
    bus.publish("new/x", b"1")
    bus.publish("$box/x", b"hidden from wildcards")
    bus.publish("other/x", b"2")
    assert [sorted(payloads(sub.batch(10, WAIT_S) + sub.batch(10, 0))) for sub in subs] == [
        [b"1", b"2"],
        [b"1", b"2"],
        [b"1"],
    ]


def test_roots_that_appear_while_nobody_consumes_are_picked_up_too(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.subscribe("#", id="s").close()
        bus.publish("new/x", b"1")
    with headwater.open(folder) as bus:
        bus.publish("newer/x", b"2")
        assert sorted(payloads(bus.subscribe("#", id="s").batch(10, 0))) == [b"1", b"2"]


def test_a_subscription_gets_what_its_filter_matches_in_publish_order(bus: Bus) -> None:
    sub = bus.subscribe("home/+/temp", id="s")
    topics = ["home/a/temp", "home/a/power", "home/b/temp", "home/a/b/temp", "home/temp", "hall/a/temp", "home/a/temp"]
    bus.publish_many([(topic, b"%d" % place) for place, topic in enumerate(topics)])
    for place, topic in enumerate(topics):
        bus.publish(topic, b"%d" % (place + 10))
    assert payloads(sub.batch(100, WAIT_S)) == [b"0", b"2", b"6", b"10", b"12", b"16"]


# Durable subscriptions: taking and acking


def test_what_was_acked_is_never_delivered_again_and_what_was_not_is(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        publish_numbers(bus, 6)
        messages = sub.batch(10, WAIT_S)
        messages[0].ack()
        messages[3].ack(wait=False)
        sub.ack(messages[4:])
    with headwater.open(folder) as bus:
        sub = bus.subscribe("jobs/#", id="s")
        assert payloads(sub.batch(10, 0)) == [b"1", b"2"]


ACK_AND_DIE = """
import os, sys, headwater
bus = headwater.open(sys.argv[1])
sub = bus.subscribe("jobs/#", id="s", start="earliest")
bus.publish_many([("jobs/x", b"%d" % n) for n in range(10)])
messages = sub.batch(100, 5)
messages[0].ack()
sub.ack(messages[1:4])
messages[4].nack("failed once", delay_s=0)
os.kill(os.getpid(), 9)
"""


def test_acks_and_failures_survive_a_kill(folder: Path) -> None:
    assert python(ACK_AND_DIE, folder).returncode == -signal.SIGKILL
    with headwater.open(folder) as bus:
        assert bus.subscriptions()[0].floors == {"jobs": 4}
        sub = bus.subscribe("jobs/#", id="s")
        (failed,) = some(sub, 1)
        assert (failed.payload, failed.attempt) == (b"4", 2)
        assert (bus.states("s")[0].attempts, bus.states("s")[0].errors) == (1, ("failed once",))
        failed.ack()
        assert payloads(sub.batch(10, WAIT_S)) == numbers(5, 5)


def test_an_ack_out_of_order_in_a_root_that_appeared_later_survives_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("#", id="s", order="none")
        publish_numbers(bus, 3)
        messages = sub.batch(10, WAIT_S)
        sub.ack(messages[1:])
    with headwater.open(folder) as bus:
        assert payloads(bus.subscribe("#", id="s").batch(10, 0)) == [b"0"]


def test_next_batch_and_iteration_hand_out_the_same_messages(bus: Bus) -> None:
    publish_numbers(bus, 6)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    first = sub.next(timeout_s=1)
    assert first is not None
    rest = sub.batch(max=2, timeout_s=1)
    iterated = []
    for message in sub:
        iterated.append(message)
        if len(iterated) == 3:
            break
    assert payloads([first, *rest, *iterated]) == numbers(6)


def test_next_answers_none_when_the_time_has_passed(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    started = time.monotonic()
    assert sub.next(timeout_s=0.05) is None
    assert sub.batch(10, timeout_s=0.05) == []
    assert 0.09 < time.monotonic() - started < WAIT_S


def test_a_consumer_that_waits_is_woken_by_a_publish(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1)))
    waiting.start()
    bus.publish("jobs/x", b"1")
    waiting.join(WAIT_S)
    assert payloads(found) == [b"1"]


def test_at_most_max_in_flight_messages_are_handed_out(bus: Bus) -> None:
    publish_numbers(bus, 10)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=3)
    messages = sub.batch(100, 0)
    assert payloads(messages) == numbers(3)
    assert sub.next(timeout_s=0) is None
    assert bus.subscriptions()[0].in_flight == 3
    messages[1].ack()
    assert payloads(sub.batch(100, 0)) == [b"3"]
    sub.ack(messages)
    assert payloads(sub.batch(100, 0)) == [b"4", b"5"]


def test_an_ack_makes_room_for_a_consumer_that_waits(bus: Bus) -> None:
    publish_numbers(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=1)
    (first,) = some(sub, 1)
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1)))
    waiting.start()
    first.ack()
    waiting.join(WAIT_S)
    assert payloads(found) == [b"1"]


def test_acking_twice_is_fine(bus: Bus) -> None:
    publish_numbers(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = sub.batch(10, 0)
    sub.ack(messages)
    sub.ack(messages)
    messages[0].ack()
    sub.ack([])


def test_ack_of_several_is_all_or_nothing(folder: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 3)
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        first, second, third = some(sub, 3)
        second.nack("no", delay_s=100)
        with pytest.raises(Recalled):
            sub.ack([third, second])
        third.ack()
    with headwater.open(folder) as bus:
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == [first.payload]


def test_a_message_is_acked_where_it_came_from(bus: Bus) -> None:
    publish_numbers(bus, 1)
    one, other = (bus.subscribe("jobs/#", id=name, start="earliest") for name in ("one", "other"))
    (message,) = some(one, 1)
    with pytest.raises(Malformed, match="other"):
        other.ack([message])
    message.ack()
    assert payloads(some(other, 1)) == [b"0"]


def test_messages_from_history_and_of_live_subscriptions_cannot_be_nacked(bus: Bus) -> None:
    live = bus.subscribe("jobs/#")
    publish_numbers(bus, 1)
    from_live, from_history = live.next(WAIT_S), next(bus.replay("jobs/#"))
    assert from_live is not None
    from_live.ack()
    for message in (from_live, from_history):
        for verb in (message.nack, message.reject, lambda message=message: message.extend(5)):
            with pytest.raises(HeadwaterError, match="subscribe with an id"):
                verb()
    with pytest.raises(HeadwaterError, match="subscribe with an id"):
        from_history.ack()
