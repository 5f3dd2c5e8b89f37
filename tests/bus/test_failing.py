"""Durable subscriptions: nacks, timeouts, retries and messages that are given up."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, payloads, publish_numbers, settle, some
from headwater import Config, ManualClock, Message, Recalled
from headwater.bus import Bus


def test_a_nack_hands_it_out_again_after_a_delay_that_doubles(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=0, retry_delay_s=1, retry_delay_s_max=8)
    timed.publish("jobs/x", b"1")
    for attempt, delay_s in enumerate([1, 2, 4, 8, 8], 1):
        (message,) = some(sub, 1)
        assert message.attempt == attempt
        message.nack(f"failure {attempt}")
        clock.advance(delay_s * 0.79)  # up to a fifth of it is drawn at random
        assert sub.next(timeout_s=0) is None
        clock.advance(delay_s * 0.22)
    assert some(sub, 1)[0].attempt == 6
    (found,) = timed.states("s")
    assert (found.state, found.attempts, found.retry_at) == ("in_flight", 5, None)
    assert found.errors == tuple(f"failure {n}" for n in range(1, 6))
    assert found.error == "failure 5"


def test_a_nack_may_state_its_delay(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest")
    timed.publish("jobs/x", b"1")
    some(sub, 1)[0].nack(delay_s=100)
    clock.advance(99)
    assert sub.next(timeout_s=0) is None
    clock.advance(1)
    (message,) = some(sub, 1)
    message.nack(ValueError("at once"), delay_s=0)
    (message,) = some(sub, 1)
    assert message.attempt == 3
    assert "at once" in timed.states("s")[0].errors[1]


def test_a_consumer_that_waits_is_woken_when_a_retry_is_due(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest")
    timed.publish("jobs/x", b"1")
    some(sub, 1)[0].nack(delay_s=50)
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1, timeout_s=1000)))
    waiting.start()
    clock.advance(50)
    waiting.join(WAIT_S)
    assert [message.attempt for message in found] == [2]


def test_attempts_errors_and_the_time_of_the_next_attempt_survive_a_restart(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest")
        bus.publish("jobs/x", b"1")
        for error in ("first", "second"):
            some(sub, 1)[0].nack(error, delay_s=0 if error == "first" else 60)
    clock.advance(30)
    with headwater.open(folder, clock=clock) as bus:
        (found,) = bus.states("s")
        assert (found.topic, found.offset, found.state, found.attempts) == ("jobs/x", 1, "retry", 2)
        assert found.errors == ("first", "second")
        assert found.since is not None
        assert found.retry_at == found.since + timedelta(seconds=60)
        assert found.retry_at == bus.now + timedelta(seconds=30)
        sub = bus.subscribe("jobs/#", id="s")
        assert sub.next(timeout_s=0) is None
        clock.advance(30)
        assert some(sub, 1)[0].attempt == 3


def test_without_an_ack_in_time_it_goes_to_retry(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30, retry_delay_s=1)
    timed.publish("jobs/x", b"1")
    (message,) = some(sub, 1)
    clock.advance(29)
    settle(timed)
    assert timed.states("s")[0].state == "in_flight"
    clock.advance(1)
    settle(timed)
    (found,) = timed.states("s")
    assert (found.state, found.attempts, found.errors) == ("retry", 1, ("no ack within 30 s",))
    with pytest.raises(Recalled) as late:
        message.ack()
    assert late.value.code == 409
    clock.advance(1)
    assert some(sub, 1)[0].attempt == 2


def test_extend_gives_more_time(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    publish_numbers(timed, 2)
    first, second = sub.batch(2, 0)
    clock.advance(20)
    first.extend(60)
    clock.advance(20)
    settle(timed)
    assert [(one.offset, one.state) for one in timed.states("s")] == [(1, "in_flight"), (2, "retry")]
    clock.advance(30)
    settle(timed)
    first.ack()
    with pytest.raises(Recalled):
        second.ack()
    assert timed.subscriptions()[0].floors == {"jobs": 1}


def test_an_extension_ends_too(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    timed.publish("jobs/x", b"1")
    (message,) = some(sub, 1)
    message.extend(60)
    clock.advance(61)
    settle(timed)
    with pytest.raises(Recalled):
        message.ack()


def test_the_ack_timer_starts_when_the_application_takes_the_message(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    publish_numbers(timed, 2)
    (first,) = some(sub, 1)
    first.ack()
    clock.advance(1000)
    settle(timed)
    (second,) = some(sub, 1)
    assert second.attempt == 1
    clock.advance(29)
    settle(timed)
    second.ack()


def test_without_a_timeout_a_message_may_take_for_ever(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=0)
    timed.publish("jobs/x", b"1")
    (message,) = some(sub, 1)
    clock.advance(10**7)
    settle(timed)
    message.ack()


def test_after_max_attempts_it_is_a_dead_letter_and_the_next_goes_on(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=3)
    timed.publish("jobs/x", b"bad", key=b"k", headers={"h": "v"})
    timed.publish("jobs/x", b"good")
    for attempt in (1, 2, 3):
        (message,) = some(sub, 1)
        assert (message.payload, message.attempt) == (b"bad", attempt)
        message.nack(f"failure {attempt}", delay_s=0)
    assert payloads(some(sub, 1)) == [b"good"]
    (letter,) = timed.dead_letters("s")
    assert (letter.subscription, letter.topic, letter.offset, letter.payload) == ("s", "jobs/x", 1, b"bad")
    assert (letter.key, letter.header_pairs) == (b"k", (("h", "v"),))
    assert (letter.attempts, letter.errors) == (3, ("failure 1", "failure 2", "failure 3"))
    assert letter.timestamp == letter.dead_at == timed.now
    assert any(event.kind == "dead" for event in timed.events())
    assert timed.subscriptions()[0].dead == 1


def test_timeouts_count_as_attempts(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=2, ack_timeout_s=5, retry_delay_s=0)
    timed.publish("jobs/x", b"1")
    for _ in range(2):
        some(sub, 1)
        clock.advance(6)
        settle(timed)
    assert timed.dead_letters("s")[0].errors == ("no ack within 5 s",) * 2


def test_reject_makes_it_a_dead_letter_at_once(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    publish_numbers(bus, 2)
    first, second = sub.batch(2, 0)
    first.reject("never")
    second.ack()
    assert [(letter.payload, letter.attempts, letter.errors) for letter in bus.dead_letters("s")] == [
        (b"0", 1, ("never",))
    ]
    assert bus.subscriptions()[0].lag == 0


def test_long_errors_are_cut_and_the_newest_of_them_kept(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, Config(errors_kept=2, error_bytes_max=10), clock=clock) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=0)
        bus.publish("jobs/x", b"1")
        for number in range(4):
            some(sub, 1)[0].nack(f"{number}" + "ü" * 100, delay_s=0)
        assert bus.states("s")[0].errors == ("2" + "ü" * 4, "3" + "ü" * 4)
