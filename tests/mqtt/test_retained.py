"""Retained messages: shared with the native side, and sent as each subscription wants them."""

from __future__ import annotations

import pytest

from headwater.mqtt.kinds import V4, V5
from headwater.mqtt.packets import Publish, Suback, Subscribe, Subscription
from mqtt.peer import MqttPeer, Served

both = pytest.mark.parametrize("version", [V4, V5])


def shown(message: Publish) -> tuple[str, bytes, int, bool]:
    return message.topic, message.payload, message.qos, message.retain


@both
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_retained_message_comes_first_with_the_lower_qos(version: int, published: int, wanted: int) -> None:
    with Served() as served:
        publisher, peer = served.mqtt("p", version), served.mqtt("s", version)
        publisher.publish("home/x", b"old", published, retain=True)
        publisher.publish("home/x", b"kept", published, retain=True)
        publisher.publish("home/x", b"not kept", published)
        publisher.ping()
        peer.subscribe("home/#", qos=wanted)
        message = peer.got()
        assert shown(message) == ("home/x", b"kept", min(published, wanted), True)
        peer.settle(message)
        peer.quiet()


@pytest.mark.parametrize("wanted", [0, 1])
def test_what_a_native_client_retains_comes_too_and_back(wanted: int) -> None:
    with Served() as served:
        served.bus.publish("home/x", b"native", retain=True, headers={"unit": "C"})
        peer = served.mqtt()
        peer.subscribe("home/#", qos=wanted)
        message = peer.got()
        assert shown(message) == ("home/x", b"native", wanted, True)
        assert message.properties.user_properties == (("unit", "C"),)
        peer.publish("home/y", b"from a device", 1, retain=True)
        assert [(one.topic, one.payload) for one in served.bus.retained("home/#").values()] == [
            ("home/x", b"native"),
            ("home/y", b"from a device"),
        ]


@both
def test_an_empty_payload_clears_it(version: int) -> None:
    with Served() as served:
        peer = served.mqtt("p", version)
        peer.publish("home/x", b"kept", 1, retain=True)
        peer.publish("home/x", b"", 1, retain=True)
        peer.subscribe("home/#", qos=1)
        peer.quiet()


def subscribe(peer: MqttPeer, handling: int, qos: int, filter: str = "home/#") -> None:
    peer.subscribe(Subscription(filter, qos, retain_handling=handling))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_handling_decides_when_they_come(qos: int) -> None:
    with Served() as served:
        served.bus.publish("home/x", b"kept", retain=True)
        peer = served.mqtt("s")
        subscribe(peer, 2, qos)
        peer.quiet(0.02)
        subscribe(peer, 1, qos)
        peer.quiet(0.02)
        for _ in range(2):
            subscribe(peer, 0, qos)
            message = peer.got()
            assert shown(message) == ("home/x", b"kept", min(qos, 1), True)
            peer.settle(message)
        peer.quiet(0.02)
        other = served.mqtt("o")
        subscribe(other, 1, qos)
        assert other.got().payload == b"kept"


@pytest.mark.parametrize("qos", [0, 1])
def test_retain_as_published_keeps_the_flag(qos: int) -> None:
    with Served() as served:
        peer, plain = served.mqtt("s"), served.mqtt("o")
        peer.subscribe(Subscription("home/#", qos, retain_as_published=True))
        plain.subscribe("home/#", qos=qos)
        publisher = served.mqtt("p")
        publisher.publish("home/x", b"1", 1, retain=True)
        publisher.publish("home/x", b"2", 1)
        assert [peer.got().retain, peer.got().retain] == [True, False]
        assert [plain.got().retain, plain.got().retain] == [False, False]


def test_a_retained_message_that_is_not_acknowledged_comes_again() -> None:
    with Served() as served:
        served.bus.publish("home/x", b"kept", retain=True)
        peer = served.kept("s")
        peer.subscribe("home/#", qos=1)
        message = peer.got()
        peer.close()
        peer = served.kept("s")
        again = peer.got()
        assert shown(again) == ("home/x", b"kept", 1, True)
        assert (again.packet_id, again.dup) == (message.packet_id, True)
        peer.puback(again)
        peer.ping()
        peer.close()
        served.kept("s").quiet()


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_only_a_message_with_the_flag_takes_the_place_of_the_one_before(version: int, qos: int) -> None:
    with Served() as served:
        peer = served.mqtt("p", version)
        peer.publish("home/x", b"1", 1, retain=True)
        peer.publish("home/x", b"2", qos)
        peer.publish("home/x", b"", qos)
        peer.publish("home/y", b"3", 1)
        assert [one.payload for one in served.bus.retained("home/#").values()] == [b"1"]
        peer.publish("home/x", b"4", qos, retain=True)
        served.until(lambda: [one.payload for one in served.bus.retained("home/#").values()] == [b"4"])


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_suback_comes_before_what_is_retained_and_what_is_published_meanwhile(version: int, qos: int) -> None:
    with Served() as served:
        served.bus.publish("home/x", b"1", retain=True)
        peer = served.mqtt("s", version)
        for filter in ("home/#", "home/#", "home/x", "$SYS/broker/uptime", "$replay/1/home/x"):
            peer.send(Subscribe(1, (Subscription(filter, qos),)))
            until(peer, 2)
            assert [type(one) for one in peer.inbox] == [Suback, Publish]
            peer.settle(peer.got())
            peer.inbox.clear()


def until(peer: MqttPeer, count: int) -> None:
    """Wait for so many packets."""
    while len(peer.inbox) < count:
        peer.more()


def test_what_a_client_publishes_before_it_subscribes_is_not_new_to_the_subscription() -> None:
    with Served() as served:
        peer = served.mqtt()
        for place in range(20):
            topic = f"home/{place}"
            never = Subscription(topic, retain_handling=2)
            peer.send(Publish(topic, b"1", retain=True), Subscribe(place + 1, (never,)))
            peer.expect(Suback)
        peer.quiet()
