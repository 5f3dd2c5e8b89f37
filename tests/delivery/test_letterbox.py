"""Dead letters on their topics: each once, as it was, and none goes round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from bus.flows import WAIT_S
from client.served import Served
from headwater import Config, Malformed, ManualClock, Message, NotAllowed
from headwater.bus import Bus
from headwater.delivery import letterbox
from headwater.delivery.own_topics import own_topic, subscription_of
from headwater.store import state as rows


@pytest.fixture
def bus() -> Iterator[Bus]:
    with headwater.open(":memory:") as made:
        yield made


def reject_all(sub: Any, count: int, error: str = "no") -> None:
    for message in sub.batch(count, WAIT_S):
        message.reject(error)


def published(bus: Any, filter: str, count: int) -> list[Message]:
    reader = bus.follow(filter, since=bus.now.replace(year=2000))
    found = [reader.next(WAIT_S) for _ in range(count)]
    assert None not in found
    return [one for one in found if one is not None]


def test_each_letter_is_published_as_it_was_with_what_became_of_it(bus: Bus) -> None:
    sub = bus.subscribe("home/#", id="thermostat", start="earliest", max_attempts=2, retry_delay_s=0)
    bus.publish("home/hall", b"warm", key=b"k", headers=(("unit", "C"), ("unit", "F")))
    for error in ("first", "second"):
        message = sub.next(WAIT_S)
        assert message is not None
        message.nack(error)
    (found,) = published(bus, "$dead/thermostat", 1)
    assert (found.topic, found.payload, found.key) == ("$dead/thermostat", b"warm", b"k")
    *pairs, consumer = found.header_pairs
    assert pairs == [
        ("unit", "C"),
        ("unit", "F"),
        ("headwater-dead-from", "thermostat"),
        ("headwater-dead-topic", "home/hall"),
        ("headwater-dead-offset", "1"),
        ("headwater-dead-attempts", "2"),
        ("headwater-dead-error", "first"),
        ("headwater-dead-error", "second"),
    ]
    assert consumer[0] == "headwater-dead-consumer"


def test_those_that_die_again_after_a_redrive_are_published_again_with_what_is_said_of_them_once(bus: Bus) -> None:
    sub = bus.subscribe("a", id="s", start="earliest")
    bus.publish("a", b"1")
    reject_all(sub, 1, "one")
    bus.redrive("s")
    reject_all(sub, 1, "two")
    first, second = published(bus, "$dead/s", 2)
    assert [value for name, value in first.header_pairs if name == letterbox.ERROR] == ["one"]
    assert [value for name, value in second.header_pairs if name == letterbox.ERROR] == ["two"]
    assert [value for name, value in second.header_pairs if name == letterbox.OFFSET] == ["1"]


def test_they_are_in_the_order_in_which_they_died_also_across_groups(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letterbox, "AT_ONCE_MAX", 3)
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
    bus.publish_many([(f"a/{n}", b"%d" % n) for n in range(20)])
    for message in reversed(sub.batch(20, WAIT_S)):
        message.reject("no")
    assert [int(one.payload) for one in published(bus, "$dead/s", 20)] == list(range(19, -1, -1))
    assert list(bus.core.state.scan(rows.POSTED)) == []


def test_a_letter_of_a_letter_is_not_published_so_that_none_goes_round(bus: Bus) -> None:
    bus.subscribe("$dead/+", id="b", start="earliest").close()
    bus.subscribe("$dead/b", id="c", start="earliest").close()
    a, b, c = (bus.subscribe(filter, id=name) for name, filter in (("a", "x"), ("b", "$dead/+"), ("c", "$dead/b")))
    bus.publish("x", b"1")
    reject_all(a, 1)
    reject_all(b, 1)
    bus.publish("x", b"2")
    reject_all(a, 1)
    assert [one.payload for one in b.batch(2, WAIT_S)] == [b"2"]
    assert c.next(0) is None
    assert [letter.topic for letter in bus.dead_letters("b")] == ["$dead/a"]


def test_nobody_else_publishes_there(bus: Bus) -> None:
    with pytest.raises(NotAllowed):
        bus.publish("$dead/s", b"")
    with pytest.raises(Malformed):
        bus.remove_root("$dead")


def test_no_wildcard_at_the_first_level_meets_them(bus: Bus) -> None:
    everything = bus.subscribe("#")
    sub = bus.subscribe("a", id="s", start="earliest")
    bus.publish("a", b"1")
    reject_all(sub, 1)
    published(bus, "$dead/s", 1)
    assert [one.topic for one in everything.batch(10, 0)] == ["a"]


def test_without_the_setting_none_is_published() -> None:
    with headwater.open(":memory:", Config(dead_topics=False)) as bus:
        sub = bus.subscribe("a", id="s", start="earliest")
        bus.publish("a", b"1")
        reject_all(sub, 1)
        assert list(bus.core.state.scan(rows.POSTED)) == []
        assert len(bus.dead_letters("s")) == 1


def test_more_than_may_wait_are_not_published_and_an_event_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letterbox.Letterbox, "wake", lambda self: None)
    with headwater.open(":memory:", Config(dead_topics_waiting_max=2)) as bus:
        sub = bus.subscribe("a", id="s", start="earliest", order="none")
        bus.publish_many([("a", b"%d" % n) for n in range(5)])
        reject_all(sub, 5)
        assert len(bus.dead_letters("s")) == 5
        assert [event.kind for event in bus.events()].count("dead-unpublished") == 1
        monkeypatch.undo()
        bus.core.letterbox.wake()
        assert [one.payload for one in published(bus, "$dead/s", 2)] == [b"0", b"1"]


def test_one_that_can_never_be_published_holds_up_no_other() -> None:
    with headwater.open(":memory:", Config(topics_per_root_max=1)) as bus:
        first, *others = (bus.subscribe("a", id=name) for name in ("first", "second", "third"))
        bus.publish("a", b"1")
        for sub in (first, *others):
            reject_all(sub, 1)
        bus.publish("a", b"2")
        reject_all(first, 1)
        assert [one.payload for one in published(bus, "$dead/first", 2)] == [b"1", b"2"]
        troubles = [event.text for event in bus.events() if event.kind == "trouble"]
        assert len(troubles) == 2
        assert 'dead letter 1 of subscription "second" is not published' in troubles[0]


def test_the_next_subscription_of_an_id_is_not_told_of_the_last(bus: Bus) -> None:
    sub = bus.subscribe("secret/#", id="s", start="earliest")
    bus.publish("secret/x", b"1")
    reject_all(sub, 1)
    published(bus, "$dead/s", 1)
    bus.unsubscribe("s")
    assert len(list(bus.replay("$dead/s"))) == 1  # an operator may look, until it is made anew
    bus.subscribe("mine", id="s")
    assert list(bus.replay("$dead/s")) == []


def test_a_letter_that_is_published_late_is_not_for_the_next_subscription_of_its_id(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letterbox.Letterbox, "wake", lambda self: None)
    sub = bus.subscribe("secret/#", id="s", start="earliest")
    bus.publish("secret/x", b"1")
    reject_all(sub, 1)
    bus.unsubscribe("s")
    bus.subscribe("mine", id="s")
    row = bus.core.durables.row("s")
    assert not bus.core.letterbox.is_of("s", row.number)
    bus.core.letterbox._publish()
    assert bus.core.letterbox.is_of("s", row.number)
    assert list(bus.replay("$dead/s")) == []


def test_a_subscription_takes_from_it_and_acks_at_a_server(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
        sub = bus.subscribe("a/#", id="s", start="earliest")
        letters = bus.subscribe("$dead/s", id="mender", start="earliest")
        live = bus.subscribe("$dead/#")
        bus.publish("a/x", b"1")
        reject_all(sub, 1)
        message = letters.next(WAIT_S)
        assert message is not None
        assert message.payload == b"1"
        message.ack()
        told = live.next(WAIT_S)
        assert told is not None
        assert told.header_pairs == message.header_pairs


@pytest.mark.parametrize("id", ["a", "a/b", "50%", "+", "#", "a*b", "session:home/+/temp/#", "küche", "\0\x1f", "%2F"])
def test_an_id_is_one_level_and_can_be_told_from_it(id: str) -> None:
    config = Config()
    topic = own_topic("$dead", id, config)
    assert topic.count("/") == 1
    assert subscription_of(topic, config) == id


def test_a_long_id_is_cut_and_told_from_others_and_is_nobodys_to_look_into_without_a_rule() -> None:
    config = Config()
    one, other = (own_topic("$dead", "x" * 1200 + end, config) for end in "ab")
    assert one != other
    assert max(len(one), len(other)) <= config.topic_bytes_max
    assert subscription_of(one, config) is None


@pytest.mark.parametrize(
    "filter", ["$dead/+", "$dead/#", "$dead", "a/b", "$dead/a/b", "$sys/states/+", "$sys/audit", "$dead/%zz"]
)
def test_what_is_about_no_single_subscription_is_told(filter: str) -> None:
    assert subscription_of(filter, Config()) in (None, "%zz")


def test_time_is_that_of_the_bus(tmp_path: Path) -> None:
    clock = ManualClock()
    with headwater.open(tmp_path / "data", clock=clock) as bus:
        sub = bus.subscribe("a", id="s", start="earliest")
        bus.publish("a", b"1")
        clock.advance(10)
        died = bus.now
        reject_all(sub, 1)
        (found,) = published(bus, "$dead/s", 1)
        assert found.timestamp == died
