"""Properties become headers and come back; aliases, expiry and packet sizes are each connection's own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Publish, Subscription
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason
from mqtt.peer import Served
from server.harness import PATIENCE_S

both = pytest.mark.parametrize("version", [V4, V5])
TOLD: dict[str, Any] = {
    "payload_format_indicator": 1,
    "content_type": "text/plain",
    "response_topic": "answers/x",
    "correlation_data": b"\x00\xff\x01",
    "user_properties": (("a", "1"), ("a", "2"), ("b", "")),
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_publisher_says_about_a_message_reaches_the_subscriber(qos: int) -> None:
    with Served() as served:
        peer, publisher, old = served.mqtt("s"), served.mqtt("p"), served.mqtt("o", V4)
        peer.subscribe("home/#", qos=qos)
        old.subscribe("home/#", qos=qos)
        publisher.publish("home/x", b"1", qos, **TOLD)
        found = peer.got().properties
        assert {name: getattr(found, name) for name in TOLD} == TOLD
        assert old.got().payload == b"1"


def test_properties_are_headers_for_native_clients_and_back() -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.publish("home/x", b"1", 1, **TOLD)
        (message,) = served.bus.replay("home/#")
        assert message.header_pairs == (
            ("reply-to", "answers/x"),
            ("correlation-id", "base64:AP8B"),
            ("content-type", "text/plain"),
            ("payload-format", "utf-8"),
            ("a", "1"),
            ("a", "2"),
            ("b", ""),
        )
        peer.subscribe("garden/#", qos=1)
        served.bus.publish("garden/x", b"2", key=b"k\x00", headers={"unit": "C", "content-type": "x/y"})
        found = peer.got().properties
        assert found.content_type == "x/y"
        assert found.user_properties == (("unit", "C"), ("headwater-key", "awA="))


def test_json_says_so_to_mqtt_clients_and_theirs_is_read_as_json() -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.subscribe("garden/#", qos=1)
        served.bus.publish("garden/x", {"celsius": 21.5})
        found = peer.got()
        assert (found.payload, found.properties.content_type) == (b'{"celsius":21.5}', "application/json")
        served.bus.publish("garden/x", "text")
        assert peer.got().properties.content_type is None
        peer.publish("home/x", b"[1]", 1, content_type="application/json")
        (message,) = served.bus.replay("home/#")
        assert (message.json(), message.headers["content-type"]) == ([1], "application/json")


def test_user_properties_are_unaltered_whatever_their_names_and_hide_a_message_from_nobody() -> None:
    names = ("content-type", "reply-to", "correlation-id", "payload-format", "headwater-from", "mqtt-user-x", "x")
    with Served() as served:
        peer, publisher = served.mqtt("s"), served.mqtt("p")
        peer.subscribe(Subscription("home/#", 1, no_local=True))
        said = tuple((name, "anonymous/s") for name in names)
        publisher.publish("home/x", b"1", 1, user_properties=said, payload_format_indicator=0)
        found = peer.got().properties
        assert found == Properties(user_properties=said, payload_format_indicator=0)
        (message,) = served.bus.replay("home/#")
        assert message.header_pairs == (
            ("payload-format", "bytes"),
            *((f"mqtt-user-{name}", value) for name, value in said[:-1]),
            ("x", "anonymous/s"),
        )


def test_a_native_request_is_answered_by_an_mqtt_client() -> None:
    with Served() as served:
        import threading

        peer = served.mqtt()
        peer.subscribe("rpc/sum", qos=1)
        answers: list[bytes] = []
        asking = threading.Thread(
            target=lambda: answers.append(served.bus.request("rpc/sum", b"1+1", timeout_s=PATIENCE_S).payload)
        )
        asking.start()
        asked = peer.got()
        assert asked.properties.response_topic
        peer.publish(asked.properties.response_topic, b"2", 1, correlation_data=asked.properties.correlation_data)
        asking.join()
        assert answers == [b"2"]


def test_what_is_left_of_a_message_s_time_is_counted_down() -> None:
    with Served() as served:
        peer = served.kept("s")
        peer.subscribe("home/#", qos=1)
        peer.leave()
        publisher = served.mqtt("p")
        publisher.publish("home/x", b"short", 1, message_expiry_interval=1)
        publisher.publish("home/x", b"long", 1, message_expiry_interval=100)
        publisher.publish("home/x", b"for ever", 1)
        time.sleep(1.1)
        peer = served.kept("s")
        message = peer.got()
        assert message.payload == b"long"
        assert message.properties.message_expiry_interval in range(50, 100)
        assert peer.got().properties.message_expiry_interval is None


@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_message_expires_too(qos: int) -> None:
    with Served() as served:
        publisher = served.mqtt("p")
        publisher.publish("home/x", b"short", 1, retain=True, message_expiry_interval=1)
        publisher.publish("home/y", b"long", 1, retain=True, message_expiry_interval=100)
        time.sleep(1.1)
        peer = served.mqtt("s")
        peer.subscribe("home/#", qos=qos)
        message = peer.got()
        assert message.payload == b"long"
        assert message.properties.message_expiry_interval in range(50, 100)
        peer.quiet()


def test_what_comes_again_has_the_time_that_is_left() -> None:
    with Served() as served:
        peer = served.kept("s")
        peer.subscribe("home/#", qos=1)
        served.bus.publish("home/x", b"1", ttl_s=50)
        assert peer.got().properties.message_expiry_interval in range(20, 51)
        peer.close()
        assert served.kept("s").got().properties.message_expiry_interval in range(20, 51)


def test_a_client_may_name_topics_by_numbers() -> None:
    with Served() as served:
        peer = served.mqtt()
        for topic, alias in (("home/a", 1), ("", 1), ("home/b", 2), ("", 1), ("home/c", 1), ("", 1), ("", 2)):
            peer.publish(topic, b"x", 1, topic_alias=alias)
        found = [one.topic for one in served.bus.replay("home/#")]
        assert found == ["home/a", "home/a", "home/b", "home/a", "home/c", "home/c", "home/b"]


@pytest.mark.parametrize(
    ("topic", "alias", "reason"),
    [("home/x", 17, Reason.TOPIC_ALIAS_INVALID), ("", 3, Reason.PROTOCOL_ERROR)],
)
def test_a_number_that_stands_for_no_topic_ends_the_connection(topic: str, alias: int, reason: Reason) -> None:
    with Served() as served:
        peer = served.mqtt()
        peer.send(Publish(topic, b"x", properties=Properties(topic_alias=alias)))
        assert peer.ends() == reason


def test_a_new_connection_knows_no_numbers() -> None:
    with Served() as served:
        peer = served.kept("s")
        peer.publish("home/x", b"1", 1, topic_alias=1)
        peer.close()
        peer = served.kept("s")
        peer.send(Publish("", b"x", properties=Properties(topic_alias=1)))
        assert peer.ends() == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("qos", [0, 1])
def test_the_server_names_topics_by_numbers_to_who_takes_them(qos: int) -> None:
    with Served() as served:
        peer = served.mqtt("s", topic_alias_maximum=2)
        peer.subscribe("home/#", qos=qos, subscription_identifiers=(9,))
        for topic in ("home/a", "home/a", "home/b", "home/c", "home/b", "home/a"):
            served.bus.publish(topic, b"x")
        known: dict[int, str] = {}
        found = []
        for _ in range(6):
            message = peer.got()
            alias = message.properties.topic_alias
            if alias is not None and message.topic:
                known[alias] = message.topic
            found.append((message.topic, message.topic or known[alias or 0]))
            assert message.properties.subscription_identifiers == (9,)
        assert [topic for _, topic in found] == ["home/a", "home/a", "home/b", "home/c", "home/b", "home/a"]
        assert [sent for sent, _ in found] == ["home/a", "", "home/b", "home/c", "", ""]
        assert set(known) == {1, 2}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_longer_than_the_client_takes_is_not_sent_and_done_with(qos: int) -> None:
    with Served() as served:
        peer = served.kept("s", maximum_packet_size=200)
        peer.subscribe("home/#", qos=qos)
        served.bus.publish_many([("home/x", b"1"), ("home/x", bytes(300)), ("home/x", b"2")])
        served.bus.publish("home/x", bytes(300), retain=True)
        served.bus.publish("home/x", b"3")
        found = [peer.got() for _ in range(3)]
        assert [one.payload for one in found] == [b"1", b"2", b"3"]
        if qos:
            peer.puback(*found)
            served.until(lambda: not served.bus.subscriptions()[0].lag, "the end of the messages")
        peer.subscribe("+/x", qos=qos)
        peer.quiet()


@both
def test_a_topic_that_is_none_is_refused(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("s", version)
        peer.send(Publish("home/" + "x" * 60_000, b"x", 1, packet_id=1))
        if version == V5:
            assert peer.ack(Kind.PUBACK, 1).reason == Reason.TOPIC_NAME_INVALID
            peer.ping()
        else:
            peer.ends()
            assert not [one for one in peer.inbox if isinstance(one, Ack)]
