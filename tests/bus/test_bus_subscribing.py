"""Durable subscriptions: their place, their order, their failures, their consumers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import headwater
from headwater import Bus, Closed, Config, Conflict, Malformed, ManualClock, NotFound, QuotaExceeded, Recalled
from headwater.delivery.consumer import Consumer


def fill(bus: Bus, count: int, topic: str = "a/b", key: Callable[[int], bytes | None] = lambda _: None) -> None:
    for n in range(1, count + 1):
        bus.publish(topic, b"%d" % n, key=key(n))


def take(sub: Consumer, count: int = 100) -> list[int]:
    return [message.offset for message in sub.batch(count, 0)]


@pytest.mark.parametrize(("start", "first"), [("earliest", 1), ("latest", None), (3, 3), (99, None)])
def test_it_starts_where_it_is_told(bus: Bus, start: str | int, first: int | None) -> None:
    fill(bus, 5)
    message = bus.subscribe("a/#", id="s", start=start).next(0)
    assert (message.offset if message else None) == first


def test_it_starts_at_a_moment(timed: Bus, clock: ManualClock) -> None:
    fill(timed, 2)
    clock.advance(60)
    moment = timed.now
    fill(timed, 2)
    assert take(timed.subscribe("a/#", id="s", start=moment)) == [3, 4]
    assert take(timed.subscribe("a/#", id="t", start=datetime(2000, 1, 1, tzinfo=UTC))) == [1, 2, 3, 4]


def test_what_was_acked_does_not_come_again_and_what_was_not_does(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, 6)
        sub = bus.subscribe("a/#", id="s", start="earliest")
        messages = sub.batch(6, 0)
        messages[0].ack()
        sub.ack([messages[1], messages[4]])
        messages[2].ack(wait=False)
    with headwater.open(tmp_path / "data") as bus:
        assert take(bus.subscribe("a/#", id="s")) == [4, 6]


def test_roots_that_appear_later_are_picked_up(bus: Bus) -> None:
    sub = bus.subscribe("+/temp", id="s")
    bus.publish("kitchen/temp", b"1")
    message = sub.next(5)
    assert message is not None
    message.ack()
    bus.publish("cellar/temp", b"2")
    assert [message.topic for message in sub.batch(5, 5)] == ["cellar/temp"]


def test_no_more_than_max_in_flight_are_handed_out(bus: Bus) -> None:
    fill(bus, 10)
    sub = bus.subscribe("a/#", id="s", start="earliest", max_in_flight=4)
    messages = sub.batch(100, 0)
    assert len(messages) == 4
    assert take(sub) == []
    sub.ack(messages[:2])
    assert take(sub) == [5, 6]


def test_a_nack_is_retried_after_a_growing_delay_and_then_dead(timed: Bus, clock: ManualClock) -> None:
    fill(timed, 2)
    sub = timed.subscribe("a/#", id="s", start="earliest", max_attempts=3)
    for attempt in (1, 2):
        message = sub.next(0)
        assert message is not None
        assert (message.offset, message.attempt) == (1, attempt)
        message.nack(f"failure {attempt}")
        assert take(sub) == []
        assert timed.subscriptions()[0].retrying == 1
        clock.advance(attempt * 1.3)
    message = sub.next(0)
    assert message is not None
    message.nack(RuntimeError("last"))
    (letter,) = timed.dead_letters("s")
    assert (letter.offset, letter.attempts) == (1, 3)
    assert letter.errors == ("failure 1", "failure 2", "RuntimeError: last")
    assert take(sub) == [2]


def test_a_reject_is_dead_at_once(bus: Bus) -> None:
    fill(bus, 1)
    message = bus.subscribe("a/#", id="s", start="earliest").next(0)
    assert message is not None
    message.reject("no good")
    assert [letter.errors for letter in bus.dead_letters("s")] == [("no good",)]


def test_an_ack_that_does_not_come_in_time_is_a_failed_attempt(timed: Bus, clock: ManualClock) -> None:
    fill(timed, 2)
    sub = timed.subscribe("a/#", id="s", start="earliest", ack_timeout_s=30, retry_delay_s=0)
    messages = sub.batch(2, 0)
    messages[1].extend(300)
    clock.advance(31)
    again = sub.next(5)
    assert again is not None
    assert (again.offset, again.attempt) == (1, 2)
    with pytest.raises(Recalled):
        messages[0].ack()


def test_strict_nothing_after_a_failed_message_comes_before_it_is_acked(timed: Bus, clock: ManualClock) -> None:
    fill(timed, 6)
    sub = timed.subscribe("a/#", id="s", start="earliest", order="strict")
    messages = sub.batch(4, 0)
    messages[1].nack("no")
    with pytest.raises(Recalled) as error:
        messages[2].ack()
    assert error.value.code == 409
    messages[0].ack()
    assert take(sub) == []
    clock.advance(10)
    (second,) = sub.batch(10, 0)
    assert second.offset == 2
    assert take(sub) == []
    second.ack()
    assert take(sub) == [3, 4, 5, 6]


def test_key_only_the_failed_key_waits(timed: Bus, clock: ManualClock) -> None:
    fill(timed, 6, key=lambda n: b"odd" if n % 2 else b"even")
    sub = timed.subscribe("a/#", id="s", start="earliest", order="key")
    messages = sub.batch(6, 0)
    messages[0].nack("no")
    sub.ack([messages[1], messages[3]])
    assert take(sub) == []
    clock.advance(10)
    assert take(sub) == [1]


def test_none_the_rest_flows(timed: Bus, clock: ManualClock) -> None:
    fill(timed, 3)
    sub = timed.subscribe("a/#", id="s", start="earliest", order="none")
    messages = sub.batch(3, 0)
    messages[0].nack("no")
    sub.ack(messages[1:])
    fill(timed, 1)
    assert take(sub) == [4]
    clock.advance(10)
    assert take(sub) == [1]


def test_several_consumers_get_each_message_once(bus: Bus) -> None:
    fill(bus, 200)
    seen: list[int] = []

    def work() -> None:
        with bus.subscribe("a/#", id="s", start="earliest", order="none") as sub:
            while messages := sub.batch(10, 0.2):
                sub.ack(messages)
                seen.extend(message.offset for message in messages)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(1, 201))


def test_strict_one_is_active_and_another_takes_over_without_an_attempt(bus: Bus) -> None:
    fill(bus, 3)
    first = bus.subscribe("a/#", id="s", start="earliest")
    second = bus.subscribe("a/#", id="s")
    held = first.batch(2, 0)
    assert take(second) == []
    first.close()
    taken = second.batch(5, 5)
    assert [(message.offset, message.attempt) for message in taken] == [(1, 1), (2, 1), (3, 1)]
    with pytest.raises((Recalled, Closed)):
        held[0].ack()


def test_seek_goes_back_and_forth(bus: Bus) -> None:
    fill(bus, 5)
    sub = bus.subscribe("a/#", id="s", start="earliest")
    sub.ack(sub.batch(5, 0))
    sub.seek(3)
    messages = sub.batch(5, 0)
    assert [message.offset for message in messages] == [3, 4, 5]
    sub.seek("earliest")
    with pytest.raises(Recalled):
        messages[0].ack()
    sub.seek("latest")
    assert take(sub) == []
    with pytest.raises(Malformed):
        sub.seek("middle")


def test_pause_is_remembered_until_resume(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, 1)
        sub = bus.subscribe("a/#", id="s", start="earliest")
        sub.pause()
        assert take(sub) == []
    with headwater.open(tmp_path / "data") as bus:
        sub = bus.subscribe("a/#", id="s")
        assert bus.subscriptions()[0].paused
        assert take(sub) == []
        sub.resume()
        assert take(sub) == [1]


def test_a_subscription_that_nobody_uses_expires(clock: ManualClock, settle: Callable[[Bus], None]) -> None:
    with headwater.open(":memory:", Config(retention_interval_s=10), clock=clock) as bus:
        used = bus.subscribe("a/#", id="used", expire_after_s=100)
        bus.subscribe("a/#", id="left", expire_after_s=100).close()
        bus.subscribe("a/#", id="kept").close()
        clock.advance(90)
        settle(bus)
        assert [info.id for info in bus.subscriptions()] == ["kept", "left", "used"]
        clock.advance(20)
        settle(bus)
        assert [info.id for info in bus.subscriptions()] == ["kept", "used"]
        assert [event.kind for event in bus.events()] == ["expired"]
        used.close()


def test_another_filter_for_an_id_is_a_conflict(bus: Bus) -> None:
    bus.subscribe("a/#", id="s").close()
    with pytest.raises(Conflict) as error:
        bus.subscribe("b/#", id="s")
    assert error.value.code == 409
    assert [info.filter for info in bus.subscriptions()] == ["a/#"]


def test_options_change_only_while_nobody_uses_it(bus: Bus) -> None:
    sub = bus.subscribe("a/#", id="s", max_in_flight=5)
    with pytest.raises(Conflict):
        bus.subscribe("a/#", id="s", max_in_flight=6)
    bus.subscribe("a/#", id="s", max_in_flight=5).close()
    sub.close()
    fill(bus, 10)
    assert len(take(bus.subscribe("a/#", id="s", max_in_flight=6))) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"filter": "a/#/b"},
        {"filter": "a/*"},
        {"filter": ""},
        {"filter": "$share/g/a"},
        {"id": ""},
        {"id": 5},
        {"id": "x" * 300},
        {"start": "soon"},
        {"start": -1},
        {"start": 1, "filter": "+/x"},
        {"order": "random"},
        {"max_in_flight": 0},
        {"max_in_flight": 2.5},
        {"max_attempts": -1},
        {"ack_timeout_s": float("nan")},
        {"expire_after_s": 0},
        {"retry_delay_s": -1.0},
        {"on_gap": "ignore"},
        {"id": None, "when_full": "explode"},
    ],
)
def test_bad_options_are_refused_and_nothing_is_made(bus: Bus, options: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        bus.subscribe(**{"filter": "a/#", "id": "s", **options})  # type: ignore[arg-type]
    assert bus.subscriptions() == []


def test_one_more_subscription_than_allowed_is_refused(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(subscriptions_max=1)) as bus:
        bus.subscribe("a/#", id="s").close()
        with pytest.raises(QuotaExceeded):
            bus.subscribe("a/#", id="t")
        bus.unsubscribe("s")
        bus.subscribe("a/#", id="t").close()


def test_unsubscribe_forgets_everything_and_tells_the_consumers(bus: Bus) -> None:
    fill(bus, 3)
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
    messages = sub.batch(3, 0)
    bus.unsubscribe("s")
    for call in (lambda: sub.next(1), messages[2].ack, sub.pause, lambda: sub.seek(1), lambda: messages[0].nack("x")):
        with pytest.raises(Closed):
            call()
    assert bus.subscriptions() == []
    with pytest.raises(NotFound):
        bus.unsubscribe("s")
    assert take(bus.subscribe("a/#", id="s", start="earliest")) == [1, 2, 3]


def test_dead_letters_are_redriven_in_order_once_and_to_that_subscription_alone(bus: Bus) -> None:
    fill(bus, 4)
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
    other = bus.subscribe("a/#", id="other")
    for message in sub.batch(4, 0):
        message.reject("not now")
    assert bus.redrive("s", offsets=[3]) == 1
    assert bus.redrive("s") == 3
    assert bus.redrive("s") == 0
    messages = sub.batch(10, 5)
    assert [message.offset for message in messages] == [3, 1, 2, 4]
    assert dict(messages[0].headers)["headwater-dead-from"] == "s"
    assert dict(messages[0].headers)["headwater-dead-error"] == "not now"
    assert take(other) == []
    sub.ack(messages)
    assert bus.dead_letters("s") == []
    assert take(sub) == []


def test_a_redriven_letter_survives_a_restart_and_may_die_again(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, 1)
        message = bus.subscribe("a/#", id="s", start="earliest").next(0)
        assert message is not None
        message.reject("one")
        bus.redrive("s")
    with headwater.open(tmp_path / "data") as bus:
        message = bus.subscribe("a/#", id="s").next(0)
        assert message is not None
        message.reject("two")
        assert [letter.errors for letter in bus.dead_letters("s")] == [("two",)]
        assert bus.drop_dead_letters("s") == 1
        assert bus.dead_letters("s") == []


def test_letters_of_two_roots_with_the_same_offset_are_told_apart(bus: Bus) -> None:
    bus.publish_many([("a/x", b"1"), ("b/x", b"2")])
    sub = bus.subscribe("+/x", id="s", start=datetime(2000, 1, 1, tzinfo=UTC), order="none")
    for message in sub.batch(2, 0):
        message.reject("no")
    with pytest.raises(Conflict, match="say which"):
        bus.drop_dead_letters("s", [1])
    assert bus.drop_dead_letters("s", [("b", 1)]) == 1
    assert [letter.topic for letter in bus.dead_letters("s")] == ["a/x"]


def test_an_ack_over_several_hand_outs_is_all_or_nothing(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, 3)
        sub = bus.subscribe("a/#", id="s", start="earliest", order="none", retry_delay_s=300.0)
        one, two, three = (sub.next(0) for _ in range(3))
        assert one is not None
        assert two is not None
        assert three is not None
        two.nack("no")
        with pytest.raises(Recalled):
            sub.ack([three, two])
        one.ack()
    with headwater.open(tmp_path / "data") as bus:
        assert 3 in take(bus.subscribe("a/#", id="s"))


def test_ten_thousand_subscriptions_are_ordinary(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        before = threading.active_count()
        subs = [bus.subscribe(f"a/{n}", id=f"s{n}") for n in range(10_000)]
        assert threading.active_count() - before <= 3
        busy_before = time.process_time()
        bus.publish("a/7", b"x")
        subs[7].ack(subs[7].batch(1, 5))
        assert subs[8].next(0) is None
        assert time.process_time() - busy_before < 5
        assert len(bus.subscriptions()) == 10_000


def test_lag_counts_what_matches_and_is_not_acked(bus: Bus) -> None:
    fill(bus, 10, "a/other")
    fill(bus, 5)
    sub = bus.subscribe("a/b", id="s", start="earliest")
    assert bus.subscriptions()[0].lag == 5
    messages = sub.batch(2, 0)
    assert (bus.subscriptions()[0].lag, bus.subscriptions()[0].in_flight) == (5, 2)
    sub.ack(messages)
    assert bus.subscriptions()[0].lag == 3
    fill(bus, 1)
    assert bus.subscriptions()[0].lag == 4
    assert bus.states("s") == []


def test_a_consumer_that_waits_is_woken_by_an_ack_that_makes_room(bus: Bus) -> None:
    fill(bus, 2)
    sub = bus.subscribe("a/#", id="s", start="earliest", max_in_flight=1)
    first = sub.next(0)
    assert first is not None
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(sub.next(20)))
    thread.start()
    first.ack()
    thread.join(20)
    assert getattr(found[0], "offset", None) == 2
