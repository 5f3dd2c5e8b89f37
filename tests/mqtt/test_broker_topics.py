"""`$SYS`: the broker's figures for MQTT clients, by the names that they know."""

from __future__ import annotations

import re

import pytest

import headwater
from headwater.mqtt.broker_topics import NAMES
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Subscription
from headwater.mqtt.reasons import Reason
from headwater.server.watch import figures as collecting
from mqtt.peer import MqttPeer, Served

OTHERS = ("clients/disconnected", "subscriptions/count", "uptime", "version")
both = pytest.mark.parametrize("version", [V4, V5])


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test sees at once what it did."""
    monkeypatch.setattr(collecting, "FRESH_US", 0)


def values(peer: MqttPeer, count: int) -> dict[str, str]:
    """The next values, all retained."""
    found = [peer.got() for _ in range(count)]
    assert all(one.retain and one.qos == 0 for one in found)
    return {one.topic.removeprefix("$SYS/broker/"): one.payload.decode() for one in found}


@both
def test_whoever_subscribes_gets_the_figures_as_they_are(version: int) -> None:
    with Served() as served:
        for topic in ("home/a", "home/b"):
            served.bus.publish(topic, b"123", retain=True)
        peer = served.mqtt("s", version)
        assert peer.subscribe("$SYS/#", qos=1) == (0,)
        found = values(peer, len(NAMES) + len(OTHERS))
        assert found.keys() == {*NAMES, *OTHERS}
        assert found["version"] == f"headwater version {headwater.__version__}"
        assert re.fullmatch(r"\d+ seconds", found["uptime"])
        assert found["clients/connected"] == found["clients/total"] == "1"
        assert found["messages/received"] == found["publish/messages/received"] == "2"
        assert found["retained messages/count"] == "2"
        assert "$SYS" not in served.bus.ends()


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        ("$SYS/broker/uptime", {"uptime"}),
        ("$SYS/broker/clients/+", {"clients/connected", "clients/disconnected", "clients/total"}),
        ("$SYS/+/messages/#", {"messages/received", "messages/sent"}),
        ("$SYS/broker/none", set[str]()),
        ("#", set[str]()),
        ("+/broker/uptime", set[str]()),
    ],
)
def test_filters_match_as_elsewhere_and_no_wildcard_matches_the_root(filter: str, names: set[str]) -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.subscribe(filter)
        assert values(peer, len(names)).keys() == names
        peer.quiet()


def test_what_changes_comes_every_few_seconds_and_no_more_after_unsubscribing() -> None:
    with Served(sys_every_s=0.02) as served:
        peer = served.mqtt()
        peer.subscribe("$SYS/broker/clients/connected")
        assert values(peer, 1) == {"clients/connected": "1"}
        other = served.mqtt()
        changed = peer.got()
        assert (changed.topic, changed.payload, changed.retain) == ("$SYS/broker/clients/connected", b"2", False)
        other.leave()
        assert peer.got().payload == b"1"
        peer.unsubscribe("$SYS/broker/clients/connected")
        served.mqtt()
        peer.quiet()


def test_retain_handling_is_as_for_other_topics() -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.subscribe(Subscription("$SYS/broker/uptime", retain_handling=2))
        peer.quiet()
        peer.subscribe(Subscription("$SYS/broker/uptime", retain_handling=1))
        peer.quiet()
        peer.subscribe(Subscription("$SYS/broker/uptime"), subscription_identifiers=(7,))
        again = peer.got()
        assert again.retain
        assert again.properties.subscription_identifiers == (7,)


def test_a_kept_session_goes_on_watching() -> None:
    with Served(sys_every_s=0.02) as served:
        peer = served.kept("s")
        peer.subscribe("$SYS/broker/messages/received")
        values(peer, 1)
        peer.close()
        peer = served.kept("s")
        served.until(lambda: served.mqtt_session("s").pumps)
        served.bus.publish("home/a", b"1")
        assert peer.got().payload == b"1"


@both
def test_nobody_publishes_there(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("s", version)
        peer.subscribe("$SYS/broker/uptime")
        values(peer, 1)
        answer = peer.publish("$SYS/broker/uptime", b"forged", 1)
        assert answer.reason == (Reason.NOT_AUTHORIZED if version == V5 else 0)
        peer.quiet()
        with pytest.raises(headwater.NotAllowed, match="tells about itself"):
            served.bus.publish("$SYS/broker/uptime", b"forged")


def test_it_cannot_be_shared() -> None:
    with Served() as served:
        assert served.mqtt().subscribe("$share/group/$SYS/#") == (Reason.TOPIC_FILTER_INVALID,)


def test_rules_say_who_may_see_it_and_a_right_that_is_taken_away_ends_it() -> None:
    with Served(auth="scram", sys_every_s=0.02) as served:
        served.client("ann", allow=("subscribe #",))
        served.client("bob", allow=("subscribe $SYS/#",))
        assert served.mqtt(user="ann").subscribe("$SYS/#") == (Reason.NOT_AUTHORIZED,)
        bob = served.mqtt(user="bob")
        assert bob.subscribe("$SYS/broker/clients/connected") == (0,)
        values(bob, 1)
        served.rules("bob", deny=("subscribe $SYS/#",))
        bob.ping()
        bob.inbox.clear()
        served.mqtt(user="ann")
        bob.quiet()
