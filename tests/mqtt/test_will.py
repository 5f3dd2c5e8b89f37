"""Last wills: published when a client is gone without leave, and only then."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headwater.config import Config
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Will
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reasons import Reason
from mqtt.peer import MqttPeer, Served

both = pytest.mark.parametrize("version", [V4, V5])


def will(payload: bytes = b"gone", qos: int = 1, retain: bool = False, **properties: Any) -> Will:
    return Will("wills/x", payload, qos, retain, Properties(**properties) if properties else NONE)


def watcher(served: Served) -> MqttPeer:
    peer = served.mqtt("watcher")
    peer.subscribe("wills/#", qos=2)
    return peer


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_that_is_gone_without_leave_has_its_will_published(version: int, qos: int) -> None:
    with Served() as served:
        watching = watcher(served)
        served.mqtt("s", version, will=will(qos=qos)).close()
        message = watching.got()
        assert (message.topic, message.payload, message.qos) == ("wills/x", b"gone", qos)


@both
def test_a_client_that_takes_leave_has_not(version: int) -> None:
    with Served() as served:
        watching = watcher(served)
        served.mqtt("s", version, will=will()).leave()
        watching.quiet(0.1)


def test_a_client_may_leave_with_its_will() -> None:
    with Served() as served:
        watching = watcher(served)
        served.mqtt("s", will=will()).leave(Reason.DISCONNECT_WITH_WILL)
        assert watching.got().payload == b"gone"


def test_a_client_that_breaks_the_rules_or_is_silent_has_its_will_published() -> None:
    with Served() as served:
        watching = watcher(served)
        served.mqtt("t", V5, will=will(b"silent"), keep_alive_s=1)
        for version in (V4, V5):
            peer = served.mqtt("s", version, will=will(b"broke a rule"))
            peer.send(b"\xf0\x05hello")
            peer.ends()
        assert sorted(watching.payloads(3)) == [b"broke a rule", b"broke a rule", b"silent"]


def test_a_will_is_retained_if_it_says_so() -> None:
    with Served() as served:
        watching = watcher(served)
        served.mqtt("s", will=will(retain=True)).close()
        watching.got()
        later = served.mqtt("later")
        later.subscribe("wills/#")
        message = later.got()
        assert (message.payload, message.retain) == (b"gone", True)


def test_a_will_has_its_properties() -> None:
    with Served() as served:
        watching = watcher(served)
        told = will(
            content_type="text/plain",
            response_topic="answers/x",
            correlation_data=b"7",
            payload_format_indicator=1,
            message_expiry_interval=100,
            user_properties=(("a", "1"), ("a", "2")),
        )
        served.mqtt("s", will=told).close()
        found = watching.got().properties
        assert found.content_type == "text/plain"
        assert found.response_topic == "answers/x"
        assert found.correlation_data == b"7"
        assert found.payload_format_indicator == 1
        assert found.message_expiry_interval in range(50, 101)
        assert found.user_properties == (("a", "1"), ("a", "2"))


def test_a_will_waits_for_its_delay() -> None:
    with Served() as served:
        watching = watcher(served)
        peer = served.kept("s", will=will(will_delay_interval=1))
        gone_s = time.monotonic()
        peer.close()
        assert watching.got().payload == b"gone"
        assert time.monotonic() - gone_s > 0.9


def test_a_client_that_comes_back_in_time_cancels_its_will() -> None:
    with Served() as served:
        watching = watcher(served)
        served.kept("s", will=will(will_delay_interval=2)).close()
        served.kept("s")
        watching.quiet(2.2)


def test_a_will_is_published_with_the_end_of_the_session_at_the_latest() -> None:
    with Served() as served:
        watching = watcher(served)
        served.mqtt("s", session_expiry_interval=0, will=will(b"at once", will_delay_interval=100)).close()
        assert watching.got().payload == b"at once"
        served.kept("t", will=will(b"with a clean start", will_delay_interval=100)).close()
        served.mqtt("t")
        assert watching.got().payload == b"with a clean start"


@both
def test_a_takeover_publishes_the_will_unless_that_waits(version: int) -> None:
    with Served() as served:
        watching = watcher(served)
        served.kept("s", version, will=will(b"taken over"))
        served.kept("s", version)
        assert watching.got().payload == b"taken over"
        if version == V5:
            served.kept("t", will=will(b"never", will_delay_interval=1))
            served.kept("t")
            watching.quiet(1.2)


def test_a_will_to_a_topic_that_is_not_allowed_is_refused_with_the_connection() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish mine/#", "create mine/#"))
        peer = served.line()
        said = peer.connect("s", user_name="ann", password=b"a secret of a test", will=will())
        assert said.reason == Reason.NOT_AUTHORIZED
        peer.ends()
        peer = served.mqtt("t", user="ann", will=Will("mine/x", b"gone"))
        peer.ping()


def test_a_server_that_stops_publishes_the_wills_of_those_it_closes(tmp_path: object) -> None:
    with Served(tmp_path) as served:
        served.mqtt("s", will=will(b"the server stopped"))
    with Served(tmp_path) as served:
        assert [one.payload for one in served.bus.replay("wills/#")] == [b"the server stopped"]


def test_a_will_that_waits_survives_the_server(tmp_path: object) -> None:
    with Served(tmp_path) as served:
        served.kept("s", will=will(b"later", will_delay_interval=2)).close()
        served.until(lambda: served.mqtt_session("s").connection is None)
        assert not list(served.bus.replay("wills/#"))
    with Served(tmp_path) as served:
        watching = watcher(served)
        if not list(served.bus.replay("wills/#")):
            assert watching.got().payload == b"later"
        assert [one.payload for one in served.bus.replay("wills/#")] == [b"later"]


@pytest.mark.parametrize("version", [V4, V5])
def test_a_will_that_could_never_be_published_is_refused_with_its_connect(version: int) -> None:
    with Served(config=Config(message_bytes_max=1000, headers_max=2)) as served:
        answer = served.line(version).connect("c", will=Will("home/will", bytes(1001)))
        assert answer.reason == (Reason.PACKET_TOO_LARGE if version == V5 else Reason.NOT_AUTHORIZED)
        assert served.line(version).connect("c", will=Will("$SYS/will", b"")).reason == Reason.NOT_AUTHORIZED
        if version == V5:
            many = Properties(user_properties=(("a", "b"),) * 3)
            assert served.line().connect("c", will=Will("home/will", b"", properties=many)).reason >= 0x80
        assert served.line(version).connect("c", will=Will("home/will", bytes(1000))).reason == 0
