"""A client from elsewhere: what paho-mqtt sends is read, and what is written it understands, in both versions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from headwater.mqtt.encoding import acks_bytes, encode
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import Reason
from mqtt.samples import LIMITS, each

WAIT_S = 60
VERSIONS = {V4: MQTTProtocolVersion.MQTTv311, V5: MQTTProtocolVersion.MQTTv5}


class Peer:
    """The server's side of one connection: packets are noted, and answered as a broker with one client would."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.said: list[Packet] = []
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        connection, _ = self.listener.accept()
        reader = PacketReader(LIMITS)
        with connection:
            connection.settimeout(WAIT_S)
            while received := connection.recv(65_536):
                for packet in each(reader.feed(received)):
                    self.said.append(packet)
                    connection.sendall(b"".join(self.answers(packet, reader.version)))

    def answers(self, packet: Packet, version: int) -> Iterator[bytes]:
        match packet:
            case Connect():
                extra = Properties(receive_maximum=9, assigned_client_identifier="one", user_properties=(("a", "b"),))
                yield encode(Connack(False, 0, extra if version == V5 else NONE), version)
            case Subscribe():
                codes = tuple(one.qos for one in packet.subscriptions)
                yield encode(Suback(packet.packet_id, codes), version)
            case Publish(qos=0):
                yield encode(packet, version)
            case Publish(qos=1):
                yield acks_bytes(Kind.PUBACK, [packet.packet_id])
                yield encode(packet, version)
            case Publish():
                yield encode(Ack(Kind.PUBREC, packet.packet_id), version)
            case Ack(Kind.PUBREL, number):
                yield encode(Ack(Kind.PUBCOMP, number), version)
            case Unsubscribe():
                yield encode(Unsuback(packet.packet_id, (0x11,) * len(packet.filters)), version)
            case Pingreq():
                yield encode(Pingresp(), version)
            case _:
                pass

    def close(self) -> None:
        self.listener.close()
        self.thread.join(WAIT_S)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def properties_of(kind: int, **values: Any) -> PahoProperties:
    found = PahoProperties(kind)
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Talk:
    """paho's client, whose callbacks are put into a queue."""

    def __init__(self, version: int, name: str = "dev") -> None:
        self.heard: Queue[tuple[str, Any]] = Queue()
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=VERSIONS[version])
        self.client.on_connect = lambda c, u, flags, reason, props: self.heard.put(("connect", (reason, props)))
        self.client.on_subscribe = lambda c, u, mid, reasons, props: self.heard.put(("subscribe", reasons))
        self.client.on_unsubscribe = lambda c, u, mid, reasons, props: self.heard.put(("unsubscribe", reasons))
        self.client.on_publish = lambda c, u, mid, reason, props: self.heard.put(("publish", mid))
        self.client.on_message = lambda c, u, message: self.heard.put(("message", message))

    def wait(self, *wanted: str) -> list[Any]:
        """What is heard next, in any order of these."""
        got = dict(self.heard.get(timeout=WAIT_S) for _ in wanted)
        assert got.keys() == set(wanted)
        return [got[one] for one in wanted]


def converse(talk: Talk, port: int, **options: Any) -> None:
    client = talk.client
    client.username_pw_set("u", "p")
    client.connect("127.0.0.1", port, keepalive=30, **options)
    client.loop_start()


def test_a_paho_client_of_3_1_1_is_understood(peer: Peer) -> None:
    talk = Talk(V4)
    talk.client.will_set("gone", b"bye", qos=1, retain=True)
    converse(talk, peer.port)
    ((reason, _),) = talk.wait("connect")
    assert reason == 0
    talk.client.subscribe([("home/+", 1), ("other/#", 2)])
    assert [code.value for code in talk.wait("subscribe")[0]] == [1, 2]
    talk.client.publish("home/a", b"zero")
    _, message = talk.wait("publish", "message")
    assert (message.topic, message.payload, message.qos) == ("home/a", b"zero", 0)
    talk.client.publish("home/a", b"one" * 100, qos=1, retain=True)
    _, message = talk.wait("publish", "message")
    assert (message.payload, message.qos, message.retain) == (b"one" * 100, 1, True)
    talk.client.publish("home/ü", b"two", qos=2)
    talk.wait("publish")
    talk.client.unsubscribe("home/+")
    talk.wait("unsubscribe")
    talk.client.disconnect()
    talk.client.loop_stop()
    peer.thread.join(WAIT_S)
    said = [packet for packet in peer.said if not (isinstance(packet, Ack) and packet.kind == Kind.PUBACK)]
    numbers = [packet.packet_id for packet in said if isinstance(packet, Subscribe | Publish | Unsubscribe)]
    assert said == [
        Connect("dev", V4, True, 30, Will("gone", b"bye", 1, True), "u", b"p"),
        Subscribe(numbers[0], (Subscription("home/+", 1), Subscription("other/#", 2))),
        Publish("home/a", b"zero"),
        Publish("home/a", b"one" * 100, 1, True, packet_id=numbers[2]),
        Publish("home/ü", b"two", 2, packet_id=numbers[3]),
        Ack(Kind.PUBREL, numbers[3]),
        Unsubscribe(numbers[4], ("home/+",)),
        Disconnect(),
    ]


def test_a_paho_client_of_5_is_understood_with_its_properties(peer: Peer) -> None:
    talk = Talk(V5, "")
    delay = properties_of(PacketTypes.WILLMESSAGE, WillDelayInterval=7)
    talk.client.will_set("gone", b"bye", properties=delay)
    mine = properties_of(PacketTypes.CONNECT, SessionExpiryInterval=60, ReceiveMaximum=20, UserProperty=("x", "y"))
    converse(talk, peer.port, properties=mine, clean_start=False)
    ((reason, theirs),) = talk.wait("connect")
    assert reason == 0
    assert (theirs.ReceiveMaximum, theirs.AssignedClientIdentifier, theirs.UserProperty) == (9, "one", [("a", "b")])
    options = SubscribeOptions(2, noLocal=True, retainAsPublished=True, retainHandling=2)
    talk.client.subscribe("home/+", options=options, properties=properties_of(8, SubscriptionIdentifier=77))
    assert [code.value for code in talk.wait("subscribe")[0]] == [2]
    sent = {"MessageExpiryInterval": 9, "ResponseTopic": "back", "CorrelationData": b"\0\1", "ContentType": "text"}
    extra = properties_of(PacketTypes.PUBLISH, PayloadFormatIndicator=1, UserProperty=("unit", "C"), **sent)
    talk.client.publish("home/a", b"one", qos=1, properties=extra)
    _, message = talk.wait("publish", "message")
    assert isinstance(message, MQTTMessage)
    assert message.properties is not None
    assert {name: getattr(message.properties, name) for name in sent} == sent
    assert message.properties.UserProperty == [("unit", "C")]  # type: ignore[attr-defined]
    talk.client.unsubscribe("home/+")
    assert [code.value for code in talk.wait("unsubscribe")[0]] == [0x11]
    talk.client.disconnect(properties=properties_of(PacketTypes.DISCONNECT, SessionExpiryInterval=5))
    talk.client.loop_stop()
    peer.thread.join(WAIT_S)
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=7))
    first, second, third = peer.said[:3]
    stated = Properties(session_expiry_interval=60, receive_maximum=20, user_properties=(("x", "y"),))
    assert first == Connect("", V5, False, 30, will, "u", b"p", stated)
    assert isinstance(second, Subscribe)
    assert second.subscriptions == (Subscription("home/+", 2, True, True, 2),)
    assert second.properties == Properties(subscription_identifiers=(77,))
    assert isinstance(third, Publish)
    assert third.properties == Properties(
        payload_format_indicator=1,
        message_expiry_interval=9,
        response_topic="back",
        correlation_data=b"\0\1",
        content_type="text",
        user_properties=(("unit", "C"),),
    )
    assert peer.said[-1] == Disconnect(0, Properties(session_expiry_interval=5))


@pytest.mark.parametrize("version", [V4, V5])
def test_a_paho_client_understands_a_refusal(version: int) -> None:
    class Refusing(Peer):
        def answers(self, packet: Packet, version: int) -> Iterator[bytes]:
            yield encode(Connack(False, Reason.NOT_AUTHORIZED), version)

    peer = Refusing()
    talk = Talk(version)
    try:
        talk.client.connect("127.0.0.1", peer.port)
        while talk.heard.empty():
            talk.client.loop(0.1)
        ((reason, _),) = talk.wait("connect")
        assert reason.value == Reason.NOT_AUTHORIZED
        talk.client.disconnect()
    finally:
        peer.close()
