"""Schemas of a bus: what is refused at which door, what is looked at when one is made, and what outlives it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

import headwater
from bus.flows import settle
from headwater import (
    Config,
    Conflict,
    Malformed,
    ManualClock,
    NotFound,
    Outgoing,
    PartlyStored,
    QuotaExceeded,
    ReadOnly,
    SchemaMismatch,
    TooLarge,
)
from headwater.bus import Bus
from headwater.store import state as rows

TOPIC = "home/kitchen/temp"
GOOD = b'{"celsius": 21.5}'
BAD = b'{"celsius": "warm"}'
WHERE = r'"home/kitchen/temp" does not fit the schema of "home/\+/temp": at \$\.celsius: Expected `float`, got `str`'


@dataclass
class Reading:
    celsius: float
    unit: Literal["C", "F"] = "C"


@dataclass
class Signed:
    by: str


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock) as made:
        made.schema("home/+/temp", Reading)
        yield made


def audit(bus: Bus) -> list[tuple[Any, ...]]:
    told = (message.json() for message in bus.replay("$sys/audit"))
    return [(one["what"], one["target"]) for one in told]


DOORS: dict[str, Callable[[Bus], object]] = {
    "publish": lambda bus: bus.publish(TOPIC, BAD),
    "publish_soon": lambda bus: bus.publish_soon(TOPIC, BAD),
    "publish_many": lambda bus: bus.publish_many([(TOPIC, GOOD), (TOPIC, BAD)]),
    "publish_many with options": lambda bus: bus.publish_many([Outgoing(TOPIC, BAD, key=b"k")]),
    "publish_many_soon": lambda bus: bus.publish_many_soon([(TOPIC, BAD)]),
    "send": lambda bus: bus.send(TOPIC, BAD),
    "deliver_at": lambda bus: bus.publish(TOPIC, BAD, deliver_at=bus.now + timedelta(hours=1)),
    "schedule": lambda bus: bus.schedule(TOPIC, BAD, cron="0 * * * *"),
    "stage": lambda bus: bus.stage("p", 1, [(TOPIC, BAD)]),
    "request": lambda bus: bus.request(TOPIC, BAD, timeout_s=1),
    "retain": lambda bus: bus.publish(TOPIC, BAD, retain=True),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_what_does_not_fit_and_says_where(bus: Bus, door: str):
    with pytest.raises(SchemaMismatch, match=WHERE) as caught:
        DOORS[door](bus)
    assert caught.value.code == 422
    assert isinstance(caught.value, Malformed)
    assert bus.ends().get("home", 0) == 0
    assert bus.schedules() == []


def test_what_fits_and_topics_without_a_schema_pass(bus: Bus):
    bus.publish(TOPIC, Reading(21.5))
    bus.publish(TOPIC, {"celsius": 1, "unit": "F", "more": [1]})
    bus.publish("home/kitchen/door", b"\xff")
    bus.publish_many([(TOPIC, GOOD), ("home/x", BAD), ("garden/a/temp", BAD)])
    assert bus.ends() == {"home": 5, "garden": 1, "$sys": 1}


def test_an_empty_payload_clears_what_is_retained_and_is_nothing_else(bus: Bus):
    bus.publish(TOPIC, GOOD, retain=True)
    bus.publish(TOPIC, b"", retain=True)
    assert TOPIC not in bus.retained("home/#")
    with pytest.raises(SchemaMismatch, match="it is empty"):
        bus.publish(TOPIC, b"")


def test_of_several_roots_those_are_stored_whose_messages_fit(bus: Bus):
    with pytest.raises(PartlyStored) as caught:
        bus.publish_many([(TOPIC, BAD), ("garden/a", b"1"), (TOPIC, GOOD)])
    assert [receipt and receipt.topic for receipt in caught.value.receipts] == [None, "garden/a", None]
    assert isinstance(caught.value.refused["home"], SchemaMismatch)
    bus.schema("garden/#", Signed, check="none")
    with pytest.raises(SchemaMismatch, match='"home/kitchen/temp"'):
        bus.publish_many([(TOPIC, BAD), ("garden/a", b"1")])
    with pytest.raises(SchemaMismatch):
        bus.stage("p", 1, [(TOPIC, GOOD), ("garden/a", b"1")])


def test_every_schema_that_matches_has_to_hold(bus: Bus):
    bus.schema("home/#", Signed)
    with pytest.raises(SchemaMismatch, match=r'schema of "home/#".*missing required field `by`'):
        bus.publish(TOPIC, GOOD)
    with pytest.raises(SchemaMismatch, match=r'schema of "home/\+/temp"'):
        bus.publish(TOPIC, {"by": "ann"})
    bus.publish(TOPIC, {"by": "ann", "celsius": 1})
    bus.publish("home/door", {"by": "ann"})
    bus.schema("#", {"type": "object"})
    with pytest.raises(SchemaMismatch, match='schema of "#"'):
        bus.publish("garden/x", b"[]")
    settle(bus)  # what the broker says itself has none: the audit goes on
    assert audit(bus)[-1] == ("schema-set", "#")


def test_a_payload_that_is_too_long_to_be_looked_at_is_refused():
    with headwater.open(":memory:", Config(schema_payload_bytes_max=100)) as bus:
        bus.schema("home/#", {"type": "string"})
        with pytest.raises(TooLarge, match="schema_payload_bytes_max"):
            bus.publish("home/x", b'"%s"' % (b"x" * 100))
        bus.publish("garden/x", bytes(1000))


# Making, changing, removing


def test_the_same_again_changes_nothing_and_another_takes_its_place(bus: Bus, clock: ManualClock):
    (made,) = bus.schemas()
    clock.advance(60)
    assert bus.schema("home/+/temp", Reading, check="all") == made
    assert audit(bus) == [("schema-set", "home/+/temp")]
    bus.publish(TOPIC, GOOD)
    other = bus.schema("home/+/temp", {"type": "object", "required": ["celsius"]})
    assert (other.filter, other.changed_at) == ("home/+/temp", bus.now)
    bus.publish(TOPIC, BAD)
    assert bus.schemas() == [other]
    with pytest.raises(Conflict, match='contradicts message 2 of "home/kitchen/temp", which is stored: at'):
        bus.schema("home/+/temp", Reading)
    assert bus.schemas() == [other]
    bus.publish(TOPIC, BAD)


def test_a_schema_that_is_removed_refuses_nothing(bus: Bus):
    bus.remove_schema("home/+/temp")
    bus.publish(TOPIC, BAD)
    assert bus.schemas() == []
    assert audit(bus)[-1] == ("schema-removed", "home/+/temp")
    assert bus.core.checks.standing is None
    with pytest.raises(NotFound, match=r"bus\.schemas\(\) lists"):
        bus.remove_schema("home/+/temp")


def test_a_schema_that_contradicts_what_is_stored_changes_nothing(bus: Bus):
    for offset in range(20):
        bus.publish(f"garden/{offset % 2}", BAD if offset == 7 else GOOD)
    with pytest.raises(Conflict, match=r'message 8 of "garden/1".*Nothing was changed'):
        bus.schema("garden/+", Reading)
    assert [one.filter for one in bus.schemas()] == ["home/+/temp"]
    bus.publish("garden/1", BAD)
    bus.schema("garden/0", Reading)  # all of its own fit
    bus.purge("garden/1")
    bus.schema("garden/+", Reading)


def test_of_what_is_stored_the_newest_are_looked_at_or_all_or_none():
    with headwater.open(":memory:", Config(schema_recent_messages=10)) as bus:
        bus.publish("home/old", BAD)
        for _ in range(10):
            bus.publish("home/new", GOOD)
        bus.schema("home/#", Reading)
        bus.remove_schema("home/#")
        with pytest.raises(Conflict, match='message 1 of "home/old"'):
            bus.schema("home/#", Reading, check="all")
        bus.schema("home/#", Reading, check="none")


def test_what_is_retained_is_looked_at_however_old_it_is():
    with headwater.open(":memory:", Config(schema_recent_messages=10)) as bus:
        bus.publish("home/old", BAD, retain=True)
        for _ in range(30):
            bus.publish("home/new", GOOD)
        with pytest.raises(Conflict, match='message 1 of "home/old"'):
            bus.schema("home/#", Reading)
        bus.publish("home/old", b"", retain=True)
        bus.schema("home/#", Reading)  # what cleared it says nothing


def test_what_comes_while_a_schema_is_made_fits_or_keeps_it_from_being_made():
    """Whatever the threads do: once a schema stands, no message that contradicts it is stored after those looked at."""
    with headwater.open(":memory:") as bus:
        ended = threading.Event()

        def publish() -> None:
            while not ended.is_set():
                try:
                    bus.publish("home/x", BAD)
                except SchemaMismatch:
                    return

        thread = threading.Thread(target=publish)
        bus.publish("home/y", GOOD)
        thread.start()
        try:
            while bus.ends()["home"] < 5:
                pass
            with pytest.raises(Conflict):
                bus.schema("home/#", Reading)
            assert thread.is_alive()
            bus.schema("home/#", Reading, check="none")
            thread.join(60)
            assert not thread.is_alive()
        finally:
            ended.set()
            thread.join(60)


def test_a_message_that_comes_after_a_look_and_before_the_schema_stands_is_looked_at_too(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    schemas = bus.core.schemas
    look_back = schemas._look_back

    def publish_meanwhile(*given: Any) -> dict[str, int]:
        ends = look_back(*given)
        bus.publish("garden/x", BAD)
        return ends

    monkeypatch.setattr(schemas, "_look_back", publish_meanwhile)
    with pytest.raises(Conflict, match='message 1 of "garden/x"'):
        bus.schema("garden/#", Reading)
    bus.publish("garden/x", BAD)


@pytest.mark.parametrize(
    ("filter", "schema", "why"),
    [
        ("$sys/#", Reading, "broker's own"),
        ("home/*", Reading, "use \\+"),
        ("", Reading, "filter is empty"),
        ("home/#", 3, "give a dataclass"),
        ("home/#", {"type": "string", "pattern": "x"}, "pattern"),
    ],
)
def test_what_cannot_be_a_schema_is_refused(bus: Bus, filter: str, schema: object, why: str):
    with pytest.raises(Malformed, match=why):
        bus.schema(filter, schema)
    with pytest.raises(Malformed, match='use "recent"'):
        bus.schema("home/x", Reading, check="some")  # type: ignore[arg-type]  # on purpose
    assert len(bus.schemas()) == 1


def test_there_are_no_more_than_schemas_max():
    with headwater.open(":memory:", Config(schemas_max=2)) as bus:
        bus.schema("a/#", Reading)
        bus.schema("b/#", Reading)
        with pytest.raises(QuotaExceeded, match="schemas_max"):
            bus.schema("c/#", Reading)
        bus.schema("b/#", Signed)
        assert [one.filter for one in bus.schemas(limit=1)] == ["a/#"]
        assert [one.filter for one in bus.schemas(after="a/#")] == ["b/#"]


# What was accepted before


def test_what_was_accepted_for_later_is_looked_at_when_it_is_due(bus: Bus, clock: ManualClock):
    later = bus.now + timedelta(minutes=1)
    for payload in (BAD, GOOD):
        bus.publish("garden/x", payload, deliver_at=later)
    bus.schedule("garden/y", BAD, cron="* * * * *")
    bus.schema("garden/+", Reading)
    clock.advance(120)
    settle(bus)
    assert [message.payload for message in bus.replay("garden/#")] == [GOOD]
    told = [event.text for event in bus.events() if "garden" in event.text]
    assert any("a delayed message" in text and "is dropped" in text for text in told)
    assert any('schedule "garden/y" is passed over' in text for text in told)


def test_what_was_staged_before_is_refused_when_it_is_committed_and_what_is_decided_stays(bus: Bus):
    bus.stage("p", 1, [("garden/x", BAD)])
    bus.schema("garden/+", Reading)
    with pytest.raises(SchemaMismatch):
        bus.commit_stage("p", 1)
    bus.remove_schema("garden/+")
    assert bus.commit_stage("p", 1) == {"garden": (1, 1)}


def test_dead_letters_go_again_as_they_were_and_mended_ones_have_to_fit(bus: Bus):
    sub = bus.subscribe("garden/#", id="s")
    bus.publish("garden/x", BAD)
    for message in sub.batch(10, 5):
        message.reject("no")
    bus.schema("garden/+", Reading, check="none")
    (letter,) = bus.dead_letters("s")
    with pytest.raises(SchemaMismatch, match="garden/x"):
        bus.redrive("s", mended=[letter.mend(payload=b"worse")])
    assert bus.redrive("s") == 1
    for message in sub.batch(10, 5):
        message.reject("no")
    (letter,) = bus.dead_letters("s")
    assert bus.redrive("s", mended=[letter.mend(payload=GOOD)]) == 1


# Over time


def test_a_schema_stands_again_after_a_restart_and_is_seen_beside_the_owner(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        made = bus.schema("home/+/temp", Reading)
        with headwater.open(tmp_path, read_only=True) as beside:
            assert beside.schemas() == [made]
            with pytest.raises(ReadOnly):
                beside.schema("x/#", Reading)
            other = bus.schema("x/#", Signed)
            beside.refresh()
            assert beside.schemas() == [made, other]
    with headwater.open(tmp_path) as bus:
        assert bus.schemas() == [made, other]
        assert made.schema["title"] == "Reading"
        with pytest.raises(SchemaMismatch, match=WHERE):
            bus.publish(TOPIC, BAD)


KILLED = """
import os, signal, sys
import headwater
bus = headwater.open(sys.argv[1])
bus.schema("home/+/temp", {"type": "object", "properties": {"celsius": {"type": "number"}}})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_schema_that_was_made_survives_kill_9(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "data"], timeout=120, check=False)
    assert done.returncode == -9
    with headwater.open(tmp_path / "data") as bus, pytest.raises(SchemaMismatch, match=WHERE):
        bus.publish(TOPIC, BAD)


def test_a_row_that_is_damaged_is_told_of_and_the_others_stand(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        bus.schema("home/+/temp", Reading)
        bus.core.state.commit(
            {
                rows.SCHEMA + b"garden/#": b"\xc1",
                rows.SCHEMA + b"x": rows.pack({"filter": "x", "text": '{"type": "odd"}', "changed_us": 1}),
            }
        )
    with headwater.open(tmp_path) as bus:
        assert sum("make it again" in event.text for event in bus.events()) == 2
        assert [one.filter for one in bus.schemas()] == ["home/+/temp"]
        bus.publish("garden/x", BAD)


def test_a_schema_that_was_made_under_wider_limits_stands(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        bus.schema("home/+/temp", Reading)
        bus.schema("home/#", {"type": "object"})
    with headwater.open(tmp_path, Config(schema_bytes_max=20, schemas_max=1)) as bus:
        with pytest.raises(SchemaMismatch, match=WHERE):
            bus.publish(TOPIC, BAD)
        bus.remove_schema("home/#")


def test_what_cannot_be_noted_does_not_stand(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    def fail(rows: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(bus.core.state, "commit", fail)
    with pytest.raises(headwater.Failed):
        bus.schema("garden/#", Reading)
    monkeypatch.undo()
    bus.publish("garden/x", BAD)
    assert [one.filter for one in bus.schemas()] == ["home/+/temp"]
