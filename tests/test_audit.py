"""The audit of an embedded bus: every administrative change, on disk, bounded, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.bus
from faults.machine import Machine
from headwater.audit import TOPIC, acting
from headwater.config import Config


def entries(bus: headwater.bus.Bus) -> list[dict[str, Any]]:
    return [json.loads(message.payload) for message in bus.replay(TOPIC)]


def whats(bus: headwater.bus.Bus) -> list[tuple[str, str]]:
    return [(entry["what"], entry["target"]) for entry in entries(bus)]


def with_dead_letters(bus: headwater.bus.Bus, count: int = 3) -> None:
    bus.publish_many([("home/x", b"%d" % number) for number in range(count)])
    with bus.subscribe("home/#", id="mine", start="earliest") as consumer:
        for message in consumer.batch(count, 1):
            message.reject("never")


def test_every_administrative_change_is_in_it_in_order(tmp_path: Path):
    with headwater.open(tmp_path / "data") as bus:
        bus.clients.add("ann", "her secret")
        bus.clients.rotate("ann")
        bus.acl.allow("ann", "publish", "home/#")
        bus.acl.deny("ann", "publish", "home/#")
        bus.acl.remove("ann", "publish", "home/#")
        token = bus.tokens.add("ann", "reader")
        bus.tokens.remove(token.id)
        bus.durables.create("new", "home/#")
        bus.durables.seek("new", "earliest")
        bus.durables.pause("new")
        bus.durables.resume("new")
        bus.durables.delete("new")
        with_dead_letters(bus)
        bus.redrive("mine", [1])
        bus.redrive("mine", mended=[letter.mend(payload=b"!") for letter in bus.dead_letters("mine")[:1]])
        bus.drop_dead_letters("mine")
        bus.unsubscribe("mine")
        bus.purge("home/#")
        bus.backup(tmp_path / "copy")
        bus.clients.remove("ann")
        assert whats(bus) == [
            ("client-added", "ann"),
            ("client-rotated", "ann"),
            ("rule-allowed", "ann"),
            ("rule-denied", "ann"),
            ("rule-removed", "ann"),
            ("token-added", token.id),
            ("token-removed", token.id),
            ("subscription-created", "new"),
            ("subscription-sought", "new"),
            ("subscription-paused", "new"),
            ("subscription-resumed", "new"),
            ("subscription-deleted", "new"),
            ("dead-letters-redriven", "mine"),
            ("dead-letters-mended", "mine"),
            ("dead-letters-dropped", "mine"),
            ("subscription-deleted", "mine"),
            ("purged", "home/#"),
            ("backed-up", str(tmp_path / "copy")),
            ("client-removed", "ann"),
        ]
        assert {(entry["who"], entry["via"]) for entry in entries(bus)} == {("local", "local")}


def test_an_entry_says_what_was_before_and_after():
    with headwater.open(":memory:") as bus:
        bus.acl.allow("ann", "publish", "home/#")
        bus.acl.deny("ann", "publish", "home/#")
        allowed, denied = entries(bus)
        rule = {"user": "ann", "action": "publish", "filter": "home/#", "allow": True}
        assert (allowed["before"], allowed["after"]) == (None, rule)
        assert (denied["before"], denied["after"]) == (rule, {**rule, "allow": False})
        assert set(denied) == {"time", "who", "via", "what", "target", "before", "after"}
        assert denied["time"].endswith("Z")


def test_no_secret_is_in_it():
    with headwater.open(":memory:") as bus:
        secrets = [
            "a secret that was given",
            bus.clients.add("ann", "a secret that was given").secret,
            bus.clients.rotate("ann").secret,
            bus.tokens.add("ann", "admin").token.split("_", 2)[2],
        ]
        bus.clients.remove("ann")
        everything = b"".join(message.payload for message in bus.replay("$sys/#")).decode()
        for secret in secrets:
            assert secret not in everything


def test_what_changes_nothing_is_not_in_it(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        with_dead_letters(bus)
        bus.acl.allow("ann", "publish", "home/#")
        bus.durables.create("new", "home/#")
        before = whats(bus)
        bus.acl.allow("ann", "publish", "home/#")
        bus.durables.create("new", "home/#")
        bus.durables.resume("new")
        bus.redrive("mine", [99])
        bus.drop_dead_letters("mine", [99])
        bus.purge("nowhere/#")
        bus.topics("#"), bus.subscriptions(), bus.dead_letters("mine"), bus.tokens.list()
        for refused in (
            lambda: bus.clients.remove("nobody"),
            lambda: bus.durables.delete("none"),
            lambda: bus.durables.create("new", "home/x"),
            lambda: bus.tokens.add("nobody", "reader"),
        ):
            with pytest.raises(headwater.HeadwaterError):
                refused()
        with bus.subscribe("home/#", id="mine") as consumer:  # a consumer's own affair
            consumer.seek("earliest")
            consumer.pause()
        assert whats(bus) == before


def test_it_is_on_disk_when_the_change_returns():
    machine = Machine()
    bus = machine.open()
    bus.acl.allow("ann", "publish", "home/#")
    bus.durables.create("new", "home/#")
    after = machine.after_crash(disk="none", state="none")
    found = after.open()
    assert whats(found) == [("rule-allowed", "ann"), ("subscription-created", "new")]
    assert [info.id for info in found.subscriptions()] == ["new"]
    after.stop()


def test_names_with_control_characters_and_very_long_ones_stay_json_of_a_bounded_size():
    with headwater.open(":memory:", Config(audit_bytes_max=8192)) as bus:
        bus.durables.create('a"\\\x00\x1b[2J\u202e\n', "home/#")
        bus.durables.create("x" * 200, "home/" + "y" * 1000)
        with acting("\ud800" + "w" * 100_000, "v\0" * 100_000):
            bus.core.audit.note("tried", "\udfff\x00" * 100_000, {"a": "\0" * 100_000}, ["\ud800", "b" * 100_000])
            bus.core.audit.note("tried", "t", before=object(), after={"deep": [{"er": "é" * 100_000}]})
        found = list(bus.replay(TOPIC))
        assert max(len(message.payload) for message in found) <= 8192
        first, _, hostile, odd = [json.loads(message.payload) for message in found]
        assert first["target"] == 'a"\\\x00\x1b[2J\u202e\n'
        assert hostile["who"].startswith("?w")
        assert hostile["before"].startswith('{"a":"')
        assert odd["after"].endswith("…")
        assert len(found) == 4


def test_it_is_written_with_little_room_left_and_where_it_cannot_be_the_change_stands(tmp_path: Path):
    with headwater.open(tmp_path, Config(disk_free_bytes_min=1 << 62)) as bus:
        with pytest.raises(headwater.DiskFull):
            bus.publish("home/x", b"1")
        bus.clients.add("ann")
        assert whats(bus) == [("client-added", "ann")]

        def refuse(*_: object) -> None:
            raise headwater.DiskFull("the disk is full")

        bus.core.audit._publish = refuse
        bus.clients.remove("ann")
        assert bus.clients.list() == []
        (event,) = [event for event in bus.events() if event.kind == "trouble"]
        assert "not in the audit" in event.text
        assert '"what":"client-removed","target":"ann"' in event.text


def test_wildcards_do_not_match_it_and_nobody_else_writes_there():
    with headwater.open(":memory:") as bus:
        live = bus.subscribe("#")
        follower = bus.follow("#")
        durable = bus.subscribe("+/#", id="all", start="earliest")
        bus.clients.add("ann")
        bus.publish("home/x", b"1")
        assert [message.topic for message in bus.replay("#")] == ["home/x"]
        assert [message.topic for message in bus.replay("+/audit")] == []
        assert [info.topic for info in bus.topics()] == ["home/x"]
        assert [info.topic for info in bus.topics("$sys/#")] == [TOPIC]
        for reader in (live, follower, durable):
            assert [message.topic for message in reader.batch(1, 5)] == ["home/x"]
            assert reader.batch(1, 0.01) == []
        bus.purge("#")
        assert whats(bus) == [("client-added", "ann"), ("purged", "#")]
        with pytest.raises(headwater.NotAllowed):
            bus.publish(TOPIC, b"{}")
        with bus.subscribe("$sys/#", id="auditor", start="earliest") as auditor:
            assert [message.topic for message in auditor.batch(2, 5)] == [TOPIC] * 2


def test_who_purges_it_is_in_it():
    with headwater.open(":memory:") as bus:
        bus.clients.add("ann")
        bus.purge("$sys/#")
        assert whats(bus) == [("purged", "$sys/#")]
