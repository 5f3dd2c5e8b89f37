"""The life of messages as a stream: what it tells is what the state machine did, at any moment of the past."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from bus.flows import WAIT_S, settle
from client.served import Served
from headwater import Config, Malformed, ManualClock
from headwater.delivery.lane import TRANSITIONS, Event
from headwater.delivery.life import AFTER, NAMES, LifeEntry, runs

STREAM: dict[str, Any] = {"states": "stream"}
decode = msgspec.json.Decoder(LifeEntry).decode


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[Any]:
    with headwater.open(":memory:", clock=clock) as made:
        yield made


def told(bus: Any, id: str = "s") -> list[LifeEntry]:
    bus.core.lives.write()
    return [decode(one.payload) for one in bus.replay(f"$sys/states/{id}")]


def seen(entries: list[LifeEntry]) -> list[tuple[str, str | None, list[tuple[int, int]]]]:
    return [(one.event, one.state, one.ranges) for one in entries]


def states_at(entries: list[LifeEntry], moment: datetime) -> dict[tuple[str | None, bool, int], LifeEntry]:
    """What the page tells users to do: the last entry of each message until a moment."""
    found: dict[tuple[str | None, bool, int], LifeEntry] = {}
    for one in entries:
        if one.time > moment:
            break
        if one.event == "opened":
            found = {place: last for place, last in found.items() if last.state != "in_flight"}
        for first, last in one.ranges:
            for offset in range(first, last + 1):
                found[one.root, one.copies, offset] = one
    return found


def test_every_change_is_told_a_run_of_messages_in_one_entry(bus: Any) -> None:
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none", max_attempts=2, **STREAM)
    bus.publish_many([("a/x", b"%d" % n) for n in range(5)])
    first, second, third, fourth, fifth = sub.batch(5, WAIT_S)
    sub.ack([first, second, fourth])
    third.nack("later", delay_s=60)
    fifth.reject("never")
    entries = told(bus)
    assert seen(entries) == [
        ("opened", None, []),
        ("taken", "in_flight", [(1, 5)]),
        ("acked", "acked", [(1, 2), (4, 4)]),
        ("nacked", "retry", [(3, 3)]),
        ("dead", "dead", [(5, 5)]),
    ]
    assert {one.root for one in entries[1:]} == {"a"}
    nacked, dead = entries[3:]
    assert (nacked.attempts, nacked.error, dead.attempts, dead.error) == (1, "later", 1, "never")
    assert nacked.retry_at is not None
    assert (nacked.retry_at - nacked.time).total_seconds() == 60
    assert nacked.consumer == entries[1].consumer is not None


def test_what_times_out_is_recalled_or_redriven_is_told(bus: Any, clock: ManualClock) -> None:
    sub = bus.subscribe("a", id="s", start="earliest", ack_timeout_s=30, max_attempts=2, retry_delay_s=0, **STREAM)
    bus.publish_many([("a", b"1"), ("a", b"2")])
    sub.batch(2, WAIT_S)
    clock.advance(31)
    while bus.states("s")[0].state != "retry":
        pass
    found = sub.batch(2, WAIT_S)
    found[0].reject("no")
    bus.redrive("s")
    sub.close()
    events = [(event, ranges) for event, _, ranges in seen(told(bus))]
    assert ("timed_out", [(1, 1)]) in events
    assert ("recalled", [(2, 2)]) in events
    assert ("dead", [(1, 1)]) in events
    assert ("redriven", [(1, 1)]) in events
    assert (
        events.index(("timed_out", [(1, 1)])) < events.index(("dead", [(1, 1)])) < events.index(("redriven", [(1, 1)]))
    )


def test_it_says_what_was_in_retry_at_any_moment_and_why(bus: Any, clock: ManualClock) -> None:
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none", ack_timeout_s=0, **STREAM)
    bus.publish_many([("a/x", b"%d" % n) for n in range(4)])
    messages = sub.batch(4, WAIT_S)
    moments = []
    for message, error in zip(messages, ("one", "two", "three", "four"), strict=True):
        clock.advance(60)
        message.nack(error, delay_s=600)
        moments.append(bus.now)
    clock.advance(900)
    sub.ack(sub.batch(4, WAIT_S))
    entries = told(bus)
    for count, moment in enumerate(moments, 1):
        waiting = {place[2]: one.error for place, one in states_at(entries, moment).items() if one.state == "retry"}
        assert waiting == dict(list(enumerate(("one", "two", "three", "four"), 1))[:count])
    assert {one.state for one in states_at(entries, bus.now).values()} == {"acked"}


@pytest.mark.parametrize("order", ["strict", "key", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_adds_up_to_what_the_states_are(order: Any, seed: int) -> None:
    chance, clock = random.Random(f"{order} {seed}"), ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        sub: Any = bus.subscribe(
            "a/#", id="s", start="earliest", order=order, max_in_flight=20, max_attempts=3, **STREAM
        )
        held: list[Any] = []
        for _ in range(60):
            bus.publish_many([(f"a/{chance.randrange(3)}", b"x") for _ in range(chance.randrange(4))])
            held += sub.batch(chance.randrange(1, 8), 0)
            for message in chance.sample(held, min(len(held), chance.randrange(4))):
                act = chance.choice(("ack", "ack", "nack", "reject", "extend"))
                try:
                    {
                        "ack": message.ack,
                        "nack": lambda m=message: m.nack("no", chance.choice((0, 50))),
                        "reject": lambda m=message: m.reject("never"),
                        "extend": lambda m=message: m.extend(60),
                    }[act]()
                except headwater.Recalled:
                    pass
                if act != "extend":
                    held.remove(message)
            if chance.random() < 0.1 and bus.dead_letters("s"):
                bus.redrive("s", [bus.dead_letters("s")[0].offset])
            if chance.random() < 0.1:
                sub.close()
                sub, held = bus.subscribe("a/#", id="s"), []
            clock.advance(chance.choice((0, 1, 20)))
        settle(bus)
        last = states_at(told(bus), bus.now)
        for one in bus.states("s"):
            if one.state in ("in_flight", "retry"):
                ways = {last[key].state for copies in (False, True) if (key := (one.root, copies, one.offset)) in last}
                assert one.state in ways
        in_flight = sum(entry.state == "in_flight" for entry in last.values())
        retrying = sum(entry.state == "retry" for entry in last.values())
        (info,) = bus.subscriptions()
        assert (in_flight, retrying) == (info.in_flight, info.retrying)


def test_nothing_is_told_where_nobody_asked(bus: Any) -> None:
    sub = bus.subscribe("a", id="s", start="earliest")
    bus.publish("a", b"1")
    sub.ack(sub.batch(1, WAIT_S))
    assert told(bus) == []
    assert bus.core.dispatcher.served("s")._machine.ledger.on_step is None


def test_the_setting_is_for_all_and_a_subscription_may_say_otherwise() -> None:
    with headwater.open(":memory:", Config(states="stream")) as bus:
        off: dict[str, Any] = {"states": "off"}
        for name, options in (("by-default", {}), ("off", off)):
            sub = bus.subscribe("a", id=name, start="earliest", **options)
            bus.publish("a", b"1")
            sub.ack(sub.batch(10, WAIT_S))
        assert [one.event for one in told(bus, "by-default")] == ["opened", "taken", "acked"]
        assert told(bus, "off") == []


def test_who_takes_from_these_topics_is_not_told_of_there(bus: Any) -> None:
    watcher = bus.subscribe("$sys/states/+", id="watcher", start="earliest", **STREAM)
    sub = bus.subscribe("a", id="s", start="earliest", **STREAM)
    bus.publish("a", b"1")
    sub.ack(sub.batch(1, WAIT_S))
    bus.core.lives.write()
    assert [one.topic for one in watcher.batch(10, WAIT_S)] == ["$sys/states/s"] * 3
    bus.core.lives.write()
    assert watcher.batch(10, 0) == []
    assert told(bus, "watcher") == []


def test_it_comes_by_itself_soon(bus: Any, clock: ManualClock) -> None:
    follow = bus.follow("$sys/states/s")
    sub = bus.subscribe("a", id="s", start="earliest", **STREAM)
    bus.publish("a", b"1")
    sub.batch(1, WAIT_S)
    clock.advance(0.2)
    message = follow.next(WAIT_S)
    assert message is not None
    assert decode(message.payload).event == "opened"


def test_beyond_its_limit_entries_are_lost_and_it_is_told_how_many() -> None:
    with headwater.open(":memory:", Config(states_waiting_max=4), clock=ManualClock()) as bus:
        sub = bus.subscribe("a", id="s", start="earliest", **STREAM)
        bus.publish_many([("a", b"%d" % n) for n in range(10)])
        for message in sub.batch(10, WAIT_S):
            message.ack()
        entries = told(bus)
        assert [(one.event, one.count) for one in entries] == [
            ("lost", 8),
            ("opened", 0),
            ("taken", 0),
            ("acked", 0),
            ("acked", 0),
        ]
        assert [event.kind for event in bus.events()].count("states-lost") == 1
        bus.publish("a", b"x")
        sub.ack(sub.batch(1, WAIT_S))
        assert [one.event for one in told(bus)][5:] == ["taken", "acked"]


def test_where_the_disk_takes_none_it_goes_on_and_tells_what_is_missing(bus: Any) -> None:
    sub = bus.subscribe("a", id="s", start="earliest", **STREAM)
    bus.publish_many([("a", b"1"), ("a", b"2")])
    first, second = sub.batch(2, WAIT_S)
    first.ack()
    own = bus.core.checks.own
    bus.core.lives._checks.own = lambda _: (_ for _ in ()).throw(headwater.DiskFull("full"))
    bus.core.lives.write()
    bus.core.lives._checks.own = own
    second.ack()
    assert [(one.event, one.count) for one in told(bus)] == [("lost", 3), ("acked", 0)]
    assert "full" in next(event.text for event in bus.events() if event.kind == "states-lost")


def test_what_was_in_flight_as_the_process_ended_is_told_to_be_pending_again(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        sub = bus.subscribe("a", id="s", start="earliest", **STREAM)
        bus.publish("a", b"1")
        sub.batch(1, WAIT_S)
    with headwater.open(tmp_path / "data") as bus:
        assert [one.event for one in told(bus)] == ["opened", "taken"]  # the rest was written as it was closed
        assert len(states_at(told(bus), bus.now)) == 1
        sub = bus.subscribe("a", id="s")
        sub.ack(sub.batch(1, WAIT_S))
        assert [one.event for one in told(bus)] == ["opened", "taken", "opened", "taken", "acked"]


def test_the_next_subscription_of_an_id_begins_anew(bus: Any) -> None:
    for _ in range(2):
        sub = bus.subscribe("a", id="s", start="latest", **STREAM)
        bus.publish("a", b"1")
        sub.ack(sub.batch(1, WAIT_S))
        assert [one.event for one in told(bus)] == ["opened", "taken", "acked"]
        bus.publish("a", b"2")
        sub.batch(1, WAIT_S)
        assert not bus.core.lives.is_of("s", 0)
        bus.unsubscribe("s")


def test_a_server_tells_by_which_session(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served, headwater.connect(served.url) as bus:
        sub = bus.subscribe("a", id="s", start="earliest", **STREAM)
        follow = bus.follow("$sys/states/s")
        bus.publish("a", b"1")
        sub.ack(sub.batch(1, WAIT_S))
        messages: list[Any] = [follow.next(WAIT_S) for _ in range(3)]
        found = [decode(one.payload) for one in messages]
        assert [one.event for one in found] == ["opened", "taken", "acked"]
        assert found[1].consumer == found[2].consumer is not None


def test_what_it_cannot_be_is_refused(bus: Any) -> None:
    with pytest.raises(Malformed, match="states"):
        bus.subscribe("a", id="s", states="streams")
    with pytest.raises(Malformed):
        bus.subscribe("a", states="stream")
    with pytest.raises(Malformed):
        Config(states="on")  # type: ignore[arg-type]
    assert bus.subscriptions() == []


def test_each_event_that_can_happen_has_a_name_and_one_state_after_it() -> None:
    assert NAMES.keys() == AFTER.keys() == {*Event, "redriven", "opened"}
    for event in Event:
        assert len({state for (_, at), state in TRANSITIONS.items() if at is event}) == 1


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([1], [(1, 1)]),
        ([1, 2, 3], [(1, 3)]),
        ([1, 3], [(1, 1), (3, 3)]),
        ([5, 4], [(5, 5), (4, 4)]),
        ((2, 3, 7), [(2, 3), (7, 7)]),
    ],
)
def test_runs_of_neighbours(offsets: Any, expected: list[tuple[int, int]]) -> None:
    assert runs(offsets) == expected
