"""Sessions of MQTT clients: made, kept, resumed, taken over, ended; and what a CONNECT and its answer say."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Connack, Connect, Disconnect, Publish
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reasons import Reason
from headwater.mqtt.session import MqttSession
from headwater.wire.administration import ListSessions
from mqtt.peer import Served

both = pytest.mark.parametrize("version", [V4, V5])


@both
def test_a_kept_session_has_what_came_meanwhile(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        assert not peer.connack.session_present
        peer.subscribe("home/#", qos=1)
        peer.leave()
        for number in range(3):
            served.bus.publish("home/x", b"%d" % number)
        peer = served.kept("s", version)
        assert peer.connack.session_present
        assert peer.payloads(3) == [b"0", b"1", b"2"]


@both
def test_a_clean_start_forgets_the_session(version: int) -> None:
    with Served() as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", qos=1)
        peer.leave()
        peer = served.mqtt("s", version)
        assert not peer.connack.session_present
        served.bus.publish("home/x", b"1")
        peer.quiet()
        served.until(lambda: not served.bus.subscriptions(), "the end of the old subscription")


@both
def test_a_session_that_is_not_kept_ends_with_its_connection(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("s", version, clean_start=True)
        peer.subscribe("home/#", qos=1)
        peer.close()
        served.until(lambda: served.mqtt_session("s") is None, "the end of the session")
        served.until(lambda: not served.bus.subscriptions(), "the end of its subscription")
        assert not served.kept("s", version).connack.session_present


def test_a_session_ends_when_its_time_is_over() -> None:
    with Served() as served:
        peer = served.mqtt("s", clean_start=False, session_expiry_interval=1)
        peer.subscribe("home/#", qos=1)
        left_s = time.monotonic()
        peer.leave()
        served.until(lambda: served.mqtt_session("s") is None, "the end of the session")
        assert time.monotonic() - left_s > 0.9


def test_the_server_says_for_how_long_it_keeps_a_session_if_that_is_less() -> None:
    with Served(session_expire_after_s_max=60) as served:
        peer = served.mqtt("s", session_expiry_interval=0xFFFF_FFFF)
        assert peer.connack.properties.session_expiry_interval == 60
        peer = served.mqtt("t", session_expiry_interval=59)
        assert peer.connack.properties.session_expiry_interval is None


def test_a_client_that_leaves_may_say_for_how_long_its_session_is_kept() -> None:
    with Served() as served:
        peer = served.kept("s")
        peer.subscribe("home/#", qos=1)
        peer.leave(session_expiry_interval=0)
        served.until(lambda: served.mqtt_session("s") is None, "the end of the session")


def test_a_session_that_was_not_to_be_kept_cannot_be_made_to_at_the_end() -> None:
    with Served() as served:
        peer = served.mqtt("s")
        peer.send(Disconnect(0, Properties(session_expiry_interval=100)))
        assert peer.ends() == Reason.PROTOCOL_ERROR


@both
def test_another_connection_takes_the_session_over(version: int) -> None:
    with Served() as served:
        first = served.kept("s", version)
        first.subscribe("home/#", qos=1)
        served.bus.publish("home/x", b"1")
        message = first.got()
        second = served.kept("s", version)
        assert second.connack.session_present
        assert first.ends() == (Reason.SESSION_TAKEN_OVER if version == V5 else None)
        again = second.got()
        assert (again.payload, again.dup, again.packet_id) == (b"1", True, message.packet_id)


@both
def test_a_clean_start_takes_over_too(version: int) -> None:
    with Served() as served:
        first = served.kept("s", version)
        second = served.mqtt("s", version)
        assert first.ends() == (Reason.SESSION_TAKEN_OVER if version == V5 else None)
        second.ping()


def test_clients_of_two_users_may_have_the_same_id() -> None:
    with Served(auth="scram") as served:
        served.client("ann", allow=("subscribe #",)).client("bob", allow=("subscribe #",))
        ann, bob = served.mqtt("s", user="ann"), served.mqtt("s", user="bob")
        ann.ping()
        bob.ping()


def test_a_client_without_an_id_is_given_one() -> None:
    with Served() as served:
        first, second = served.mqtt(""), served.mqtt("")
        ids = [one.connack.properties.assigned_client_identifier for one in (first, second)]
        assert ids[0]
        assert ids[0] != ids[1]
        assert served.mqtt_session(ids[0] or "") is not None
        assert served.mqtt("named").connack.properties.assigned_client_identifier is None


def test_a_client_of_3_1_1_without_an_id_has_no_session_to_keep() -> None:
    with Served() as served:
        served.mqtt("", V4).ping()
        peer = served.line(V4)
        assert peer.connect("", clean_start=False).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
        peer.ends()


def test_a_silent_client_is_closed_after_one_and_a_half_times_its_keep_alive() -> None:
    with Served() as served:
        peer, old = served.mqtt("s", keep_alive_s=1), served.mqtt("o", V4, keep_alive_s=1)
        assert peer.ends() == Reason.KEEP_ALIVE_TIMEOUT
        assert old.ends() is None


def test_a_client_that_wants_a_longer_keep_alive_than_the_server_gets_the_servers() -> None:
    with Served(mqtt_keep_alive_s_max=60) as served:
        assert served.mqtt("a", keep_alive_s=60).connack.properties.server_keep_alive is None
        assert served.mqtt("b", keep_alive_s=61).connack.properties.server_keep_alive == 60
        assert served.mqtt("c", keep_alive_s=0).connack.properties.server_keep_alive == 60


def test_the_answer_says_what_the_server_takes() -> None:
    with Served() as served:
        said = served.mqtt("s").connack.properties
        assert said.maximum_packet_size
        assert said.topic_alias_maximum == 16
        assert said.receive_maximum == 1024
        assert said.response_information is None
        asked = served.mqtt("t", request_response_information=1).connack.properties
        assert asked.response_information


def test_a_packet_longer_than_the_server_takes_ends_the_connection() -> None:
    with Served() as served:
        peer = served.mqtt("s")
        longest = peer.connack.properties.maximum_packet_size or 0
        peer.send(encode(Publish("home/x", bytes(longest), 0), V5)[:100])
        assert peer.ends() == Reason.PACKET_TOO_LARGE


@both
def test_a_session_that_survives_the_server_has_what_came_meanwhile(version: int, tmp_path: object) -> None:
    with Served(tmp_path) as served:
        peer = served.kept("s", version)
        peer.subscribe("home/#", "live/#", qos=1)
        peer.subscribe("quiet/#")
        served.bus.publish("home/x", b"1")
        sent = peer.got()
    with Served(tmp_path) as served:
        served.bus.publish("home/x", b"2")
        peer = served.kept("s", version)
        assert peer.connack.session_present
        found = [peer.got(), peer.got()]
        assert [one.payload for one in found] == [b"1", b"2"]
        assert found[0].packet_id == sent.packet_id
        assert [one.dup for one in found] == [True, False]
        served.bus.publish("quiet/x", b"3")
        assert peer.got().payload == b"3"


def test_a_client_that_disconnects_while_it_is_greeted_leaves_nothing_behind() -> None:
    with Served() as served:
        for number in range(20):
            peer = served.line()
            peer.send(b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02%02d" % number)
            peer.close()
        came = served.bus.core.roots.counts
        served.until(lambda: came.connections == 20 and not len(served.server.sessions), "the end of their sessions")


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_session_that_was_not_to_be_kept_is_not_taken_over(version: int, is_there: bool) -> None:
    with Served() as served:
        first = served.mqtt("c", version)
        first.subscribe("home/#", qos=1)
        if not is_there:
            first.close()
        second = served.kept("c", version)
        assert not second.connack.session_present
        if is_there:
            assert first.ends() == (Reason.SESSION_TAKEN_OVER if version == V5 else None)
        served.bus.publish("home/x", b"1")
        second.quiet()
        second.close()
        assert served.kept("c", version).connack.session_present


@pytest.mark.parametrize("version", [V4, V5])
def test_a_client_whose_session_is_not_kept_does_not_wait_for_the_disk(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served() as served:
        is_quick = threading.Event()
        monkeypatch.setattr(served.bus.core.state, "sync", is_quick.wait)
        try:
            kept = served.line(version)
            lasting = Properties(session_expiry_interval=600) if version == V5 else NONE
            kept.send(Connect("kept", version, clean_start=False, properties=lasting))
            peer = served.mqtt("c", version)
            assert peer.subscribe("home/#") == (0,)
            served.bus.publish("home/x", b"1")
            assert peer.got().payload == b"1"
            with pytest.raises(TimeoutError):
                kept.more(0.05)
        finally:
            is_quick.set()
        kept.expect(Connack)
        assert peer.subscribe("home/#", qos=1) == (1,)


def test_what_a_crash_kept_from_being_forgotten_is_not_taken_for_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path) as served, monkeypatch.context() as crashing:
        crashing.setattr(MqttSession, "erase", lambda _: None)
        served.kept("c").subscribe("home/#", qos=1)
        served.mqtt("c", session_expiry_interval=600).subscribe("garden/#", qos=1)
    with Served(tmp_path) as served:
        peer = served.kept("c")
        assert peer.connack.session_present
        served.bus.publish_many([("home/x", b"old"), ("garden/x", b"new")])
        assert peer.got().payload == b"new"
        peer.quiet()
        served.until(lambda: len(served.bus.subscriptions()) == 1)
        assert len(served.server.sessions) == 1


def test_administrators_see_which_client_it_is_and_what_it_speaks() -> None:
    with Served() as served:
        served.mqtt("lamp-7", V5)
        served.mqtt("lamp-8", V4)
        found = {one.client: one for one in served.peer().ask(ListSessions())}
        assert found["lamp-7"].protocol == "MQTT 5"
        assert found["lamp-8"].protocol == "MQTT 3.1.1"
        assert found["lamp-7"].bytes_in > 0 < found["lamp-7"].bytes_out
