"""The topics of `$sys`: the figures every few seconds, from nobody but the broker, and not more than is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater
from headwater.config import Config
from headwater.errors import Malformed, NotAllowed, QuotaExceeded
from headwater.message import Outgoing
from headwater.server.watch import figures as collecting
from headwater.server.watch import sys_topics
from headwater.server.watch.sys_topics import publish_own
from headwater.store.batch import checksum
from headwater.wire import requests
from server.harness import Peer, Running, code, make_body


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test sees at once what it did."""
    monkeypatch.setattr(collecting, "FRESH_US", 0)


def tell(running: Running) -> dict[str, bytes]:
    """Have the figures told now; what is retained then."""
    running.server.telling.tell()
    return {one.topic.removeprefix("$sys/"): one.payload for one in running.bus.retained("$sys/#").values()}


def test_figures_come_by_themselves_every_few_seconds():
    with Running(sys_every_s=0.05) as running:
        peer = running.peer()
        peer.subscribe(1, "$sys/messages/in")
        peer.publish(["home/a"] * 3)
        while (last := peer.payloads(1, 1)[-1]) != b"3":
            assert last == b"0"
        peer.publish("home/a")
        assert peer.payloads(1, 1) == [b"4"]


def test_single_values_and_all_of_them_together_are_retained():
    with Running() as running:
        running.peer().publish(["home/a"] * 3)
        running.bus.subscribe("home/#", id="a/b #+é", start="earliest").close()
        told = tell(running)
        assert told["messages/in"] == b"3"
        assert told["sessions"] == b"1"
        assert told["subscriptions/a%2Fb %23%2B%C3%A9/lag"] == b"3"
        assert told["version"] == headwater.__version__.encode()
        assert int(told["uptime_s"]) >= 0
        everything = json.loads(told["metrics"])
        assert everything["counters"]["messages_in"] == 3
        assert everything["gauges"]["lag"] == 3
        assert sum(everything["histograms"]["commit"]["counts"]) >= 1


def test_what_did_not_change_is_not_told_again_and_an_idle_broker_tells_nothing():
    with Running() as running:
        peer = running.peer()
        tell(running)
        before = running.bus.ends()["$sys"]
        tell(running)
        assert running.bus.ends()["$sys"] == before
        peer.publish("home/a")
        tell(running)
        fresh = {one.topic for one in running.bus.replay("$sys/#", after=before)}
        assert {"$sys/messages/in", "$sys/bytes/in", "$sys/metrics"} <= fresh
        assert not fresh & {"$sys/version", "$sys/sessions", "$sys/messages/out"}


def test_an_idle_broker_says_now_and_then_that_it_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys_topics, "IDLE_S", 0.0)
    with Running() as running:
        tell(running)
        before = running.bus.ends()["$sys"]
        tell(running)
        assert [one.topic for one in running.bus.replay("$sys/metrics", after=before)] == ["$sys/metrics"]


def test_the_lag_of_a_subscription_that_is_gone_is_told_no_more_also_after_a_restart(tmp_path: Path):
    with Running(tmp_path) as running:
        for name in ("a", "b", "c"):
            running.bus.subscribe("home/#", id=name).close()
        assert {"subscriptions/a/lag", "subscriptions/b/lag"} <= tell(running).keys()
        running.bus.unsubscribe("a")
        assert "subscriptions/a/lag" not in tell(running)
        running.bus.unsubscribe("b")
    with Running(tmp_path) as running:
        told = tell(running)
        assert [topic for topic in told if topic.startswith("subscriptions/")] == ["subscriptions/c/lag"]


def test_the_ids_of_sessions_are_told_to_nobody():
    with Running() as running:
        peer = running.peer()
        peer.subscribe(1, "home/#", kind="session")
        peer.publish("home/a")
        told = tell(running)
        assert told["subscriptions_durable"] == b"1"
        assert not [topic for topic in told if topic.startswith("subscriptions/")]
        assert peer.session.encode() not in told["metrics"]


def test_an_id_that_is_too_long_for_a_topic_stops_nobody():
    with Running() as running:
        running.bus.subscribe("home/#", id="é" * 600).close()
        assert tell(running)["subscriptions_durable"] == b"1"


def test_what_the_broker_tells_is_not_counted_as_what_users_publish():
    with Running() as running:
        peer = running.peer()
        tell(running)
        assert tell(running)["messages/in"] == b"0"
        peer.publish("home/a")
        told = tell(running)
        assert (told["messages/in"], told["topics"], told["retained"]) == (b"1", b"1", b"0")


def test_zero_seconds_turn_it_off():
    with Running(sys_every_s=0.0) as running:
        assert [one for one in running.server._recurring if one.is_on] == [running.server._recurring[1]]


def _stage(peer: Peer) -> None:
    body = make_body(["$sys/x"], [b"1"])
    crc = checksum(body)
    peer.ask(requests.Stage(producer="p", epoch=1, part="", root="$sys", count=1, crc=crc, body=body))


@pytest.mark.parametrize(
    "publish",
    [
        lambda peer: peer.publish("$sys/x"),
        lambda peer: peer.publish("$sys"),
        lambda peer: peer.publish(["$sys/x", "$sys/y"], producer="p", sequence=1),
        lambda peer: peer.ask(requests.Delay(topic="$sys/x", payload=b"", deliver_at_us=1)),
        _stage,
    ],
)
@pytest.mark.parametrize("auth", ["none", "scram"])
def test_nobody_else_publishes_there_whatever_its_rights_are(publish: Callable[[Peer], object], auth: str):
    with Running(auth=auth) as running:
        running.client("root", admin=True, allow=("publish $sys/#", "create $sys/#"))
        peer = running.peer("root")
        before = running.bus.ends()
        with code(403):
            publish(peer)
        assert running.bus.ends() == before


def test_reading_it_takes_a_rule_of_its_own():
    with Running(auth="scram") as running:
        running.client("ann", allow=("subscribe #",)), running.client("eve", allow=("subscribe $sys/#",))
        tell(running)
        with code(403):
            running.peer("ann").subscribe(1, "$sys/#")
        eve = running.peer("eve")
        eve.subscribe(1, "$sys/version")
        assert [one.retained for one in eve.take(1, 1)] == [True]


def test_the_broker_publishes_there_and_nowhere_else():
    with headwater.open(":memory:") as bus:
        publish_own(bus.core, [Outgoing("$sys/audit", b"{}"), Outgoing("$sys/x", b"1", retain=True)]).result(60)
        assert [one.topic for one in bus.replay("$sys/#")] == ["$sys/audit", "$sys/x"]
        assert [one.topic for one in bus.retained("$sys/#").values()] == ["$sys/x"]
        with pytest.raises(Malformed):
            publish_own(bus.core, [Outgoing("home/x", b"1")])
        with pytest.raises(NotAllowed):
            bus.publish("$sys/x", b"2")


def test_the_brokers_own_root_takes_nobody_elses_place_and_finds_one_in_any_case():
    with headwater.open(":memory:", Config(roots_max=1)) as bus:
        bus.publish("home/x", b"1")
        publish_own(bus.core, [Outgoing("$sys/x", b"1")]).result(60)
        assert bus.ends() == {"home": 1, "$sys": 1}
        with pytest.raises(QuotaExceeded):
            bus.publish("hall/x", b"1")
    with headwater.open(":memory:", Config(roots_max=1)) as bus:
        publish_own(bus.core, [Outgoing("$sys/x", b"1")]).result(60)
        bus.publish("home/x", b"1")
