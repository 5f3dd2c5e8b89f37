"""Wills survive the server: published after it was killed, once, unless their clients left or came back in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
import headwater.bus
from headwater.config import Config
from headwater.mqtt import refused, wills
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Connect, Will
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reasons import Reason
from headwater.mqtt.wills import WillRow
from headwater.server import sessions
from headwater.server.log import Log
from headwater.store import state as rows
from mqtt.killable import Killable
from mqtt.peer import MqttPeer, Paho, Served

both = pytest.mark.parametrize("version", [V4, V5])
KEPT_S = 600


def will(payload: str, qos: int = 1, topic: str = "wills/x", **properties: Any) -> Will:
    return Will(topic, payload.encode(), qos, False, Properties(**properties) if properties else NONE)


def published(folder: Path) -> Counter[str]:
    """How often each will was published, of a server that is gone."""
    with headwater.open(str(folder)) as bus:
        return Counter(one.payload.decode() for one in bus.replay("wills/#"))


def left(bus: headwater.bus.Bus) -> dict[str, WillRow]:
    """Wills that are stored, by what they say."""
    found = [msgspec.msgpack.decode(value, type=WillRow) for _, value in bus.core.state.scan(rows.WILL)]
    return {row.will.payload.decode(): row for row in found}


class Killed(Killable):
    """A server that is killed, and those who were connected to it."""

    def __init__(self, folder: Path) -> None:
        self.peers: list[MqttPeer] = []
        super().__init__(folder)

    def __enter__(self) -> Killed:
        return self

    def end(self) -> None:
        super().end()
        for peer in self.peers:
            peer.close()

    def client(self, id: str, version: int = V5, *, is_kept: bool = False, **options: Any) -> MqttPeer:
        peer = MqttPeer(self.port, version)
        self.peers.append(peer)
        if is_kept and version == V5:
            options["session_expiry_interval"] = KEPT_S
        peer.connack = peer.connect(id, clean_start=not is_kept, **options)
        assert peer.connack.reason == 0
        return peer

    def restart(self) -> None:
        self.kill()
        self.start()


def test_the_wills_of_those_who_were_connected_to_a_server_that_was_killed_are_published_once(tmp_path: Path) -> None:
    with Killed(tmp_path) as killed:
        watcher = killed.client("watcher", is_kept=True)
        watcher.subscribe("wills/#", qos=1)
        for version in (V4, V5):
            killed.client(f"{version}-clean", version, will=will(f"{version} clean", qos=0))
            killed.client(f"{version}-kept", version, is_kept=True, will=will(f"{version} kept", qos=2))
            killed.client(f"{version}-gone", version, will=will(f"{version} gone before")).close()
            killed.client(f"{version}-left", version, is_kept=True, will=will(f"{version} left")).leave()
            killed.client(f"{version}-bare", version)
        pahos = [Paho(f"paho-{v}", v, killed.port, will=("wills/paho", b"paho %d" % v, 1, False)) for v in (V4, V5)]
        killed.client("5-delayed", is_kept=True, will=will("5 delayed", will_delay_interval=1))
        killed.client("5-waiting", is_kept=True, will=will("5 waiting", will_delay_interval=1)).close()
        killed.client("5-back", is_kept=True, will=will("5 back", will_delay_interval=3000))
        killed.client("5-away", is_kept=True, will=will("5 away", will_delay_interval=3000))
        killed.client("5-ends", will=will("5 ends with its session", will_delay_interval=3000))
        killed.restart()
        killed.client("5-back", is_kept=True)
        due = {f"{version} {what}" for version in (V4, V5) for what in ("clean", "kept", "gone before")}
        due |= {"paho 4", "paho 5", "5 delayed", "5 waiting", "5 ends with its session"}
        watcher = killed.client("watcher", is_kept=True)
        seen: set[str] = set()
        while seen != due:
            message = watcher.got()
            seen.add(message.payload.decode())
            watcher.settle(message)
        for paho in pahos:
            paho.client.loop_stop()
        killed.restart()  # whatever was noted of it when it was killed, nothing is published again
    assert published(tmp_path) == dict.fromkeys(due, 1)
    with headwater.open(str(tmp_path)) as bus:
        assert set(left(bus)) == {"5 away"}


def test_a_will_is_published_once_though_the_server_is_killed_again_before_and_while_it_is(tmp_path: Path) -> None:
    names = [f"{n}" for n in range(20)]
    with Killed(tmp_path) as killed:
        for name in names:
            killed.client(name, (V4, V5)[int(name) % 2], will=will(name))
        for _ in range(2):
            killed.restart()  # as soon as it listens: wills are being published, or about to be
        watcher = killed.client("watcher", is_kept=True)
        watcher.subscribe("wills/#", qos=1)
    found = published(tmp_path)
    with headwater.open(str(tmp_path)) as bus:
        still = left(bus)
    assert found + Counter(still.keys()) == dict.fromkeys(names, 1)


# A backup of a server is what it would leave behind if it were killed


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the lines of a second to itself."""
    monkeypatch.setattr(refused, "log", Log("headwater.mqtt"))
    monkeypatch.setattr(wills, "log", Log("headwater.mqtt"))


def copied(served: Served, folder: Path) -> Path:
    served.bus.backup(str(folder))
    return folder


@both
def test_a_will_is_checked_against_the_rules_of_the_time_when_it_is_published(
    version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(tmp_path / "a", auth="scram") as served:
        served.client("ann", allow=("publish wills/#", "create wills/#"))
        served.mqtt("s", version, user="ann", will=will("not any more"))
        served.mqtt("t", version, user="ann", will=will("still", topic="wills/y"))
        copied(served, tmp_path / "b")
    with headwater.open(str(tmp_path / "b")) as bus:
        bus.acl.deny("ann", "publish", "wills/x")
    with Served(tmp_path / "b", auth="scram") as served:
        served.until(lambda: not len(served.protocol.wills), "the end of the wills")
        served.until(lambda: not left(served.bus))
        assert [one.payload for one in served.bus.replay("wills/#")] == [b"still"]
        assert served.server.sessions.counts.unstored == 1
    [line] = [one.fields for one in caplog.records if getattr(one, "event", "") == "will-refused"]  # type: ignore[attr-defined]
    assert "wills/x" in line["reason"]


def test_the_delay_of_a_will_counts_from_the_first_start_after_the_crash(tmp_path: Path) -> None:
    with Served(tmp_path / "0") as served:
        served.kept("s", will=will("later", will_delay_interval=500))
        copied(served, tmp_path / "1")
    dues = []
    for life in (1, 2):
        with Served(tmp_path / f"{life}") as served:
            served.until(lambda: left(served.bus)["later"].due_us, "a note of when it is due")
            dues.append(left(served.bus)["later"].due_us)
            copied(served, tmp_path / f"{life + 1}")
            assert not list(served.bus.replay("wills/#"))
    assert dues[0] == dues[1]


def test_a_will_is_published_once_though_the_state_has_lost_that_it_was(tmp_path: Path) -> None:
    with Served(tmp_path / "a") as served:
        served.mqtt("s", will=will("once"))
        served.mqtt("t", will=will("again", qos=2)).leave(Reason.DISCONNECT_WITH_WILL)
        served.until(lambda: len(served.protocol.wills) == 1)
        served.bus.core.state.snapshot(str(tmp_path / "older"))
    assert published(tmp_path / "a") == {"once": 1, "again": 1}
    state = tmp_path / "a" / "state"
    state.rename(tmp_path / "newer")
    (tmp_path / "older").rename(state)
    with Served(tmp_path / "a") as served:
        assert not left(served.bus)
        served.mqtt("u").publish("wills/x", b"end", 1)
    assert published(tmp_path / "a") == {"once": 1, "again": 1, "end": 1}


def test_a_connect_with_a_will_takes_one_sync_and_one_without_a_session_to_keep_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LATER_S", 3600.0)
    with Served(tmp_path) as served:
        state = served.bus.core.state
        syncs: list[int] = []
        commit = state.commit

        def counted(rows: Mapping[bytes, bytes | None]) -> None:
            syncs.append(1)
            commit(rows)

        state.commit = counted  # type: ignore[method-assign]
        for options, count in (
            ({}, 0),
            ({"will": will("x")}, 1),
            ({"session_expiry_interval": KEPT_S}, 1),
            ({"session_expiry_interval": KEPT_S, "will": will("y")}, 1),
        ):
            syncs.clear()
            served.mqtt(f"s-{count}-{'-'.join(options)}", **options)
            assert len(syncs) == count, options
        state.commit = commit  # type: ignore[method-assign]


def test_wills_are_bounded_in_number_and_in_bytes() -> None:
    with Served(mqtt_wills_max=2) as served:
        first, _ = served.mqtt("a", will=will("a")), served.mqtt("b", V4, will=will("b"))
        assert served.line().connect("c", will=will("c")).reason == Reason.QUOTA_EXCEEDED
        assert served.line(V4).connect("c", will=will("c")).reason != 0
        served.mqtt("c")
        first.leave()
        served.mqtt("c", will=will("c"))
    with Served(mqtt_wills_bytes_max=2000, sessions_max=1) as served:
        peer = served.mqtt("a", will=will("a" * 1000))
        assert served.line().connect("b", will=will("b" * 1000)).reason == Reason.QUOTA_EXCEEDED
        assert served.line().connect("b", will=will("b" * 100)).reason == Reason.QUOTA_EXCEEDED  # sessions_max
        assert len(served.protocol.wills) == 1
        peer.close()
        served.until(lambda: not len(served.protocol.wills))
        served.mqtt("b", will=will("b" * 1000))


@both
def test_nothing_is_left_of_a_will_that_was_published_dropped_or_replaced(version: int) -> None:
    with Served() as served:
        served.kept("s", version, will=will("1"))
        served.kept("s", version, will=will("2"))  # takes over, and publishes the first
        served.until(lambda: list(left(served.bus)) == ["2"])
        served.kept("s", version).leave()
        served.until(lambda: not left(served.bus))
        served.mqtt("t", version, will=will("3")).close()
        served.until(lambda: not left(served.bus))
        served.mqtt("u", version, will=will("4")).leave()
        assert not left(served.bus)
        if version == V5:
            served.kept("v", will=will("5", will_delay_interval=100)).close()
            served.until(lambda: bool(left(served.bus)) and left(served.bus)["5"].due_us)
            served.kept("v", will=will("6", will_delay_interval=100))
            served.until(lambda: list(left(served.bus)) == ["6"])
            served.kept("v").leave()
            served.until(lambda: not left(served.bus))
        served.until(lambda: not len(served.protocol.wills))
        assert [one.payload for one in served.bus.replay("wills/#")] == [b"1", b"2", b"3"]


def test_a_will_that_the_disk_does_not_take_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills, "AGAIN_S", 0.05)
    with Served(tmp_path) as served:
        served.bus.publish("wills/before", b"before")
        peer = served.mqtt("s", will=will("at last"))
        roots = served.bus.core.roots
        monkeypatch.setattr(roots._log, "free_bytes", lambda: 0)
        roots.room.is_left = False
        peer.close()
        served.until(lambda: served.mqtt_session("s") is None)
        assert list(left(served.bus)) == ["at last"]
        monkeypatch.undo()
        served.until(lambda: not len(served.protocol.wills), "the will")
        assert not left(served.bus)
        assert [one.payload for one in served.bus.replay("wills/#")] == [b"before", b"at last"]


def test_a_leave_that_is_none_leaves_the_will() -> None:
    with Served() as served:
        peer = served.mqtt("s", will=will("stands"))
        peer.leave(session_expiry_interval=100)  # of a session that was not to be kept: a protocol error
        served.until(lambda: not len(served.protocol.wills))
        assert [one.payload for one in served.bus.replay("wills/#")] == [b"stands"]


@both
def test_a_client_that_is_gone_before_its_session_goes_on_has_its_new_will_published_once(
    version: int, tmp_path: Path
) -> None:
    with Served(tmp_path) as served:
        for n in range(5):
            peer = served.line(version)
            peer.send(*_connects(version, f"{n}"))
            peer.close()
            served.until(lambda: not len(served.protocol.wills), "the end of the will")
        served.until(lambda: not left(served.bus))
    with Served(tmp_path) as served:
        found = Counter(one.payload.decode() for one in served.bus.replay("wills/#"))
        assert found == dict.fromkeys(map(str, range(5)), 1)


def _connects(version: int, text: str) -> list[Any]:
    kept = Properties(session_expiry_interval=KEPT_S) if version == V5 else NONE
    return [Connect("s", version, False, 0, will(text), None, None, kept)]


def test_many_wills_at_once_are_published_in_few_commits() -> None:
    with Served(config=Config()) as served:
        peers = [served.mqtt(f"c{n}", will=will(f"{n}")) for n in range(100)]
        before = sum(served.server.sessions.counts.commits.counts)
        for peer in peers:
            peer.close()
        served.until(lambda: not len(served.protocol.wills), "the wills")
        assert sum(1 for _ in served.bus.replay("wills/#")) == 100
        assert sum(served.server.sessions.counts.commits.counts) - before < 100
