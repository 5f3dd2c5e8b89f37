"""Dead letters."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headwater
from bus.flows import WAIT_S, numbers, payloads, publish_numbers, settle, some, with_dead
from headwater import Config, ManualClock, NotFound, Retention
from headwater.bus import Bus
from headwater.store.state import MemoryState


def test_dead_letters_are_listed_and_shown(bus: Bus) -> None:
    with_dead(bus)
    assert [letter.offset for letter in bus.dead_letters("s")] == [1, 2, 3]
    assert bus.dead_letter("s", 2).errors == ("no 1",)
    with pytest.raises(NotFound, match="no dead letter 9"):
        bus.dead_letter("s", 9)


def test_dead_letters_survive_a_restart_and_retention(folder: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(age_s=10))
    with headwater.open(folder, config, clock=clock) as bus:
        with_dead(bus, 2)
        clock.advance(100)
        settle(bus)
        assert list(bus.replay("jobs/#")) == []
    with headwater.open(folder, config, clock=clock) as bus:
        assert payloads(bus.dead_letters("s")) == numbers(2)  # type: ignore[arg-type]
        assert bus.redrive("s") == 2
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == numbers(2)


def test_redrive_hands_them_to_that_subscription_again_in_order_and_to_no_other(bus: Bus) -> None:
    sub = with_dead(bus)
    other = bus.subscribe("jobs/#", id="other", start="latest")
    live = bus.subscribe("jobs/#")
    assert bus.redrive("s") == 3
    assert bus.redrive("s") == 0
    assert bus.dead_letters("s") == []
    again = sub.batch(10, WAIT_S)
    assert payloads(again) == numbers(3)
    assert [message.attempt for message in again] == [1, 1, 1]
    sub.ack(again)
    assert sub.next(timeout_s=0) is None
    assert other.next(timeout_s=0) is None
    assert live.next(timeout_s=0) is None
    assert len(list(bus.replay("jobs/#"))) == 3


def test_redriven_messages_have_headers_that_say_where_they_came_from(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=2)
    bus.publish("jobs/x", b"1", headers=(("mine", "kept"),), key=b"k")
    for _ in range(2):
        some(sub, 1)[0].nack("no luck", delay_s=0)
    bus.redrive("s")
    (message,) = some(sub, 1)
    assert message.header_pairs == (
        ("mine", "kept"),
        ("headwater-dead-from", "s"),
        ("headwater-dead-topic", "jobs/x"),
        ("headwater-dead-offset", "1"),
        ("headwater-dead-attempts", "2"),
        ("headwater-dead-error", "no luck"),
    )
    assert (message.topic, message.offset, message.key) == ("jobs/x", 1, b"k")
    message.reject("again")
    bus.redrive("s")
    (message,) = some(sub, 1)
    assert len(message.header_pairs) == 6
    assert dict(message.headers)["headwater-dead-error"] == "again"


def test_some_dead_letters_can_be_redriven_or_dropped(bus: Bus) -> None:
    sub = with_dead(bus, 5)
    assert bus.redrive("s", offsets=[4, 2, 99]) == 2
    assert payloads(sub.batch(10, WAIT_S)) == [b"1", b"3"]
    assert bus.drop_dead_letters("s", offsets=[1]) == 1
    assert [letter.offset for letter in bus.dead_letters("s")] == [3, 5]
    assert bus.drop_dead_letters("s") == 2
    assert bus.dead_letters("s") == []
    assert bus.subscriptions()[0].dead == 0


def test_redrive_without_a_consumer_waits_for_one_across_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        with_dead(bus).close()
        bus.redrive("s")
    with headwater.open(folder) as bus:
        assert bus.dead_letters("s") == []
        publish_numbers(bus, 1, first=9)
        sub = bus.subscribe("jobs/#", id="s")
        found = sub.batch(10, 0) + sub.batch(10, 0)
        assert payloads(found) == [*numbers(3), b"9"]
        sub.ack(found)
    with headwater.open(folder) as bus:
        assert bus.subscribe("jobs/#", id="s").next(timeout_s=0) is None


def test_a_redriven_message_that_fails_again_is_retried_and_dies_again(timed: Bus, clock: ManualClock) -> None:
    sub = with_dead(timed, 1, max_attempts=2)
    timed.redrive("s")
    for attempt in (1, 2):
        (message,) = some(sub, 1)
        assert message.attempt == attempt
        message.nack(f"again {attempt}", delay_s=0)
    (letter,) = timed.dead_letters("s")
    assert (letter.attempts, letter.errors) == (2, ("again 1", "again 2"))


def test_with_order_key_redriven_messages_of_one_key_do_not_hold_up_another(timed: Bus) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="key")
    timed.publish("jobs/x", b"a", key=b"1")
    timed.publish("jobs/x", b"b", key=b"2")
    for message in sub.batch(10, 0):
        message.reject("no")
    timed.redrive("s")
    first, second = sub.batch(10, 0)
    first.nack("again", delay_s=10)
    second.ack()


def test_a_consumer_that_takes_while_redrive_is_being_stored_loses_nothing(clock: ManualClock) -> None:
    class SlowState(MemoryState):
        gate: threading.Event | None = None
        reached = threading.Event()

        def write(self, rows: Any) -> None:
            if self.gate is not None:
                self.reached.set()
                assert self.gate.wait(WAIT_S)
            super().write(rows)

    state = SlowState()
    with headwater.open(":memory:", state=state) as bus:
        sub = with_dead(bus, 1)
        state.gate = threading.Event()
        redriving = threading.Thread(target=bus.redrive, args=("s",))
        redriving.start()
        assert state.reached.wait(WAIT_S)
        early = sub.batch(10, 0)
        state.gate.set()
        redriving.join(WAIT_S)
        assert payloads(early or sub.batch(10, WAIT_S)) == numbers(1)


def test_beyond_dead_letters_max_the_oldest_is_dropped_and_an_event_says_so(folder: Path) -> None:
    with headwater.open(folder, Config(dead_letters_max=2)) as bus:
        with_dead(bus, 4)
        assert payloads(bus.dead_letters("s")) == numbers(2, 2)  # type: ignore[arg-type]
        assert sum(event.kind == "dead-dropped" for event in bus.events()) == 2
        assert bus.subscriptions()[0].dead == 2
