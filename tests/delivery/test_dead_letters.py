"""Dead letters: a move between two kinds of rows, never in both and never in none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headwater
from delivery.counting import CountingState
from headwater import Config, Conflict, Malformed, ManualClock, NotFound
from headwater.bus import Bus
from headwater.delivery.dead_letters import DeadLetters
from headwater.delivery.letterbox import ATTEMPTS, ERROR, FROM, OFFSET, TOPIC


@pytest.fixture
def state() -> CountingState:
    return CountingState()


@pytest.fixture
def bus(state: CountingState) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=ManualClock(), state=state) as made:
        yield made


@pytest.fixture
def letters(bus: Bus) -> DeadLetters:
    return bus.core.dead_letters


def kill(bus: Bus, *topics: str, **options: Any) -> Any:
    """A subscription to everything that gave up on one message of each topic."""
    sub = bus.subscribe("#", id="s", start="earliest", order="none", **options)
    for topic in topics:
        bus.publish(topic, topic.encode())
    for message in sub.batch(100, 0):
        message.reject(f"no {message.topic}")
    return sub


def payloads(messages: Any) -> list[bytes]:
    return [message.payload for message in messages]


def test_they_are_listed_by_root_and_offset(bus: Bus, letters: DeadLetters) -> None:
    kill(bus, "b/1", "a/1", "b/2", "a/2")
    assert [(letter.topic, letter.offset) for letter in letters.all("s")] == [
        ("b/1", 1),
        ("b/2", 2),
        ("a/1", 1),
        ("a/2", 2),
    ]


def test_they_are_listed_in_pages_however_many_were_dropped_between(bus: Bus) -> None:
    kill(bus, "b/1", "a/1", "b/2", "a/2", "b/3")
    first = bus.dead_letters("s", limit=2)
    assert [(letter.topic, letter.offset) for letter in first] == [("b/1", 1), ("b/2", 2)]
    bus.drop_dead_letters("s", [("b", 2)])
    rest = bus.dead_letters("s", after=("b", 2), limit=100)
    assert [(letter.topic, letter.offset) for letter in rest] == [("b/3", 3), ("a/1", 1), ("a/2", 2)]
    assert bus.dead_letters("s", after=("a", 2**64 - 1), limit=1) == []
    with pytest.raises(Malformed, match="limit"):
        bus.dead_letters("s", limit=0)
    with pytest.raises(Malformed, match="no root"):
        bus.dead_letters("s", after=("none", 1), limit=1)


def test_a_page_ends_with_the_letter_that_makes_it_large(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.delivery.dead_letters.PAGE_BYTES", 18)
    kill(bus, "b/1", "b/2", "b/3")
    assert [letter.offset for letter in bus.dead_letters("s", limit=3)] == [1, 2]
    assert len(bus.dead_letters("s")) == 3


def test_one_is_found_by_its_offset_or_by_root_and_offset_where_that_is_not_enough(
    bus: Bus, letters: DeadLetters
) -> None:
    kill(bus, "a/1", "b/1", "b/2")
    assert letters.get("s", 2).topic == "b/2"
    assert letters.get("s", ("a", 1)).topic == "a/1"
    assert letters.get("s", ("b", 1)).topic == "b/1"
    with pytest.raises(Conflict, match="say which"):
        letters.get("s", 1)
    for missing in (3, ("a", 2), ("c", 1)):
        with pytest.raises(NotFound):
            letters.get("s", missing)


def test_an_offset_that_is_two_letters_is_not_redriven_or_dropped_by_accident(bus: Bus, letters: DeadLetters) -> None:
    sub = kill(bus, "a/1", "b/1")
    for change in (letters.redrive, letters.drop):
        with pytest.raises(Conflict):
            change("s", [1])
    assert letters.redrive("s", [("b", 1)]) == 1
    assert payloads(sub.batch(10, 0)) == [b"b/1"]
    assert letters.drop("s", [("a", 1)]) == 1
    assert letters.all("s") == []


def test_moving_them_is_one_write(bus: Bus, letters: DeadLetters, state: CountingState) -> None:
    kill(bus, "a/1", "a/2", "b/1")
    state.sums.clear()
    assert letters.redrive("s", None) == 3
    assert set(state.sums) == {3}, "never in both places, never in none"


def test_a_letter_that_dies_again_is_again_in_one_place(bus: Bus, letters: DeadLetters, state: CountingState) -> None:
    sub = kill(bus, "a/1", "a/2")
    for _ in range(3):
        letters.redrive("s", None)
        state.sums.clear()
        for message in sub.batch(10, 0):
            message.reject("again")
        assert set(state.sums) == {2}
        assert [letter.offset for letter in letters.all("s")] == [1, 2]


def test_redriven_in_the_order_of_their_offsets_before_what_is_new(bus: Bus, letters: DeadLetters) -> None:
    sub = bus.subscribe("a/#", id="strict", start="earliest")
    bus.publish_many([("a/x", b"%d" % number) for number in range(5)])
    messages = sub.batch(5, 0)
    for place in (3, 1, 0):
        messages[place].reject("no")
    sub.ack([messages[2], messages[4]])
    bus.publish("a/x", b"new")
    letters.redrive("strict", None)
    found = sub.batch(10, 0) + sub.batch(10, 0)
    assert payloads(found) == [b"0", b"1", b"3", b"new"]


def test_the_headers_say_where_it_came_from_and_are_not_repeated(bus: Bus, letters: DeadLetters) -> None:
    sub = kill(bus, "a/1")
    for error in ("first", "second"):
        letters.redrive("s", None)
        (message,) = sub.batch(10, 0)
        message.reject(error)
    letters.redrive("s", None)
    (message,) = sub.batch(10, 0)
    assert message.header_pairs == ((FROM, "s"), (TOPIC, "a/1"), (OFFSET, "1"), (ATTEMPTS, "1"), (ERROR, "second"))


def test_dropping_forgets_them_and_counts(bus: Bus, letters: DeadLetters) -> None:
    kill(bus, "a/1", "a/2", "a/3")
    assert letters.drop("s", [2, 9]) == 1
    assert letters.drop("s", []) == 0
    assert letters.redrive("s", []) == 0
    assert bus.subscriptions()[0].dead == 2
    assert letters.drop("s", None) == 2
    assert letters.drop("s", None) == 0
    assert bus.subscriptions()[0].dead == 0


def test_a_letter_is_a_copy_that_purge_does_not_take(bus: Bus, letters: DeadLetters) -> None:
    sub = kill(bus, "a/1")
    bus.purge("a/#")
    assert payloads(letters.all("s")) == [b"a/1"]
    letters.redrive("s", None)
    assert payloads(sub.batch(10, 0)) == [b"a/1"]


def test_the_oldest_is_dropped_beyond_the_limit(state: CountingState) -> None:
    with headwater.open(":memory:", Config(dead_letters_max=3), state=state) as bus:
        kill(bus, *(f"a/{number}" for number in range(6)))
        assert [letter.offset for letter in bus.dead_letters("s")] == [4, 5, 6]
        assert sum(event.kind == "dead-dropped" for event in bus.events()) == 3


def test_nobody_knows_the_letters_of_an_unknown_subscription(letters: DeadLetters) -> None:
    for use in (letters.all, lambda name: letters.redrive(name, None), lambda name: letters.drop(name, None)):
        with pytest.raises(NotFound):
            use("nobody")


@pytest.mark.parametrize("order", ["strict", "key", "none"])
def test_letters_come_first_for_whoever_comes_back_if_that_is_wished(bus: Bus, order: str) -> None:
    bus.publish_many([("jobs/a", str(number).encode()) for number in range(5)])
    with bus.subscribe("jobs/#", id="s", start="earliest", order=order, on_resume="redrive") as sub:  # type: ignore[call-overload]
        taken = sub.batch(3)
        taken[1].reject("bad")
        assert len(bus.dead_letters("s")) == 1
        with bus.subscribe("jobs/#", id="s"):
            assert len(bus.dead_letters("s")) == 1  # nobody had left
    with bus.subscribe("jobs/#", id="s") as sub:
        assert [message.payload for message in sub.batch(10)] == [b"1", b"0", b"2", b"3", b"4"]
        assert bus.dead_letters("s") == []


def test_what_is_wished_of_letters_may_change_and_is_checked(bus: Bus) -> None:
    bus.publish("jobs/a", b"0")
    with bus.subscribe("jobs/#", id="s", start="earliest", on_resume="redrive") as sub:
        sub.batch(1)[0].reject("bad")
    for wrong in ({"on_resume": "ever"}, {"on_resume": 1}):
        with pytest.raises(Malformed, match="on_resume"):
            bus.subscribe("jobs/#", id="s", **wrong)
    with pytest.raises(Conflict):
        bus.subscribe("other/#", id="s", on_resume="redrive")
    with bus.subscribe("jobs/#", id="s", on_resume="keep") as sub:
        assert sub.batch(1, 0) == []
    assert len(bus.dead_letters("s")) == 1


def left_by_a_session(bus: Bus) -> None:
    """Two letters of a subscription whose session is over."""
    bus.publish_many([("jobs/a", b"0"), ("jobs/a", b"1"), ("jobs/a", b"2")])
    with bus.subscribe("jobs/#", id="x:jobs/#", start="earliest", order="none") as sub:
        for message in sub.batch(2):
            message.reject("bad")
    bus.core.durables.expire("x:jobs/#", "ann")


def test_letters_of_a_session_that_is_over_are_kept_for_a_while_and_an_event_says_so(
    bus: Bus, state: CountingState
) -> None:
    left_by_a_session(bus)
    assert bus.subscriptions() == []
    (event,) = (event for event in bus.events() if event.kind == "dead-kept")
    assert 'bus.dead_letters("x:jobs/#")' in event.text
    assert payloads(bus.dead_letters("x:jobs/#")) == [b"0", b"1"]
    assert bus.dead_letter("x:jobs/#", 2).errors == ("bad",)
    for clock_s in (6 * 86_400, 2 * 86_400):
        assert len(bus.dead_letters("x:jobs/#")) == 2
        bus.core.clock._clock.advance(clock_s)  # type: ignore[attr-defined]  # the test's own
        bus.core._expire()
    with pytest.raises(NotFound):
        bus.dead_letters("x:jobs/#")
    assert not [key for key, _ in state.scan(b"") if key[:1] in (b"L", b"k")]


def test_letters_that_a_session_left_can_be_dropped_and_not_redriven(bus: Bus, state: CountingState) -> None:
    left_by_a_session(bus)
    with pytest.raises(Conflict, match="went with its session"):
        bus.redrive("x:jobs/#")
    assert bus.drop_dead_letters("x:jobs/#", [1]) == 1
    assert payloads(bus.dead_letters("x:jobs/#")) == [b"1"]
    assert bus.drop_dead_letters("x:jobs/#") == 1
    with pytest.raises(NotFound):
        bus.dead_letters("x:jobs/#")
    assert not [key for key, _ in state.scan(b"") if key[:1] in (b"L", b"k")]


def test_a_session_that_leaves_no_letters_or_none_that_are_kept_leaves_nothing(state: CountingState) -> None:
    with headwater.open(":memory:", Config(dead_letter_age_s=0), state=state) as bus:
        left_by_a_session(bus)
        with pytest.raises(NotFound):
            bus.dead_letters("x:jobs/#")
        assert not [key for key, _ in state.scan(b"") if key[:1] in (b"L", b"k")]
