"""A server in a thread that serves MQTT, and clients that speak it packet by packet, or are paho's.

with Served() as served:
    peer = served.mqtt("ann")               # connected, with a session
    peer.subscribe("home/#", qos=1)
    served.bus.publish("home/x", b"1")
    peer.got()                              # the next PUBLISH
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Acks,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Run,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from headwater.mqtt.properties import Properties
from headwater.mqtt.protocol import MqttProtocol
from headwater.mqtt.reader import PacketReader
from server.harness import PATIENCE_S, SECRET, Ended, Running

P = TypeVar("P")
LIMITS = Limits(packet_bytes_max=1 << 28, connect_bytes_max=1 << 28, properties_max=1000, subscriptions_max=1000)
KEPT_S = 600


class Served(Running):
    """A server that serves MQTT clients, too."""

    def __init__(self, folder: object = ":memory:", config: Any = None, **options: Any) -> None:
        super().__init__(folder, config, mqtt_port=0, **options)
        self._mqtt_peers: list[MqttPeer | Paho] = []

    def __enter__(self) -> Served:
        super().__enter__()
        self.run(self.protocol.listen())
        return self

    @property
    def protocol(self) -> MqttProtocol:
        """What the server's MQTT sessions share."""
        return self.server.extension(MqttProtocol)

    def stop(self) -> None:
        for peer in self._mqtt_peers:
            peer.close()
        super().stop()

    def line(self, version: int = V5) -> MqttPeer:
        """Somebody who has connected, and said nothing yet."""
        peer = MqttPeer(self.protocol.port, version)
        self._mqtt_peers.append(peer)
        return peer

    def mqtt(self, id: str = "", version: int = V5, **options: Any) -> MqttPeer:
        """Somebody who has a session."""
        user = options.pop("user", None)
        if user is not None:
            options |= {"user_name": user, "password": SECRET.encode()}
        peer = self.line(version)
        peer.connack = peer.connect(id, **options)
        assert peer.connack.reason == 0, peer.connack
        return peer

    def kept(self, id: str, version: int = V5, **options: Any) -> MqttPeer:
        """Somebody whose session is kept when the connection is gone."""
        if version == V5:
            options.setdefault("session_expiry_interval", KEPT_S)
        return self.mqtt(id, version, clean_start=False, **options)

    def paho(self, id: str, version: int = V5, **options: Any) -> Paho:
        """A client of paho's, connected."""
        client = Paho(id, version, self.protocol.port, **options)
        self._mqtt_peers.append(client)
        return client

    def mqtt_session(self, id: str, user: str = "anonymous") -> Any:
        """A client's session as the server has it."""
        return self.protocol.of_client(user, id)


class MqttPeer:
    """A client, packet by packet."""

    def __init__(self, port: int, version: int = V5) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox: list[Packet] = []
        self.connack = Connack()
        self._reader = PacketReader(LIMITS, is_server=False, version=version)
        self._number = 0

    def close(self) -> None:
        """Go without a word."""
        self.socket.close()

    # Packets

    def send(self, *packets: Packet | bytes) -> None:
        """Packets, or bytes as they are."""
        self.socket.sendall(b"".join(one if isinstance(one, bytes) else encode(one, self.version) for one in packets))

    def more(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for bytes; Ended if there will be none."""
        self.socket.settimeout(max(0.001, timeout_s))
        try:
            received = self.socket.recv(1 << 18)
        except ConnectionError:
            raise Ended from None
        if not received:
            raise Ended
        for one in self._reader.feed(received):
            match one:
                case Run():
                    self.inbox += one.publishes()
                case Acks():
                    self.inbox += one.each()
                case _:
                    self.inbox.append(one)

    def expect(
        self,
        kind: type[P] | tuple[type[P], ...],
        test: Callable[[P], bool] = lambda _: True,
        timeout_s: float = PATIENCE_S,
    ) -> P:
        """The first packet that is the one, taken out of the inbox."""
        end = time.monotonic() + timeout_s
        while True:
            for place, one in enumerate(self.inbox):
                if isinstance(one, kind) and test(one):
                    del self.inbox[place]
                    return one
            left = end - time.monotonic()
            assert left > 0, f"no {kind}; there were {self.inbox}"
            try:
                self.more(left)
            except TimeoutError:
                continue

    def ack(self, kind: Kind, packet_id: int | None = None) -> Ack:
        """The next PUBACK, PUBREC, PUBREL or PUBCOMP."""
        return self.expect(Ack, lambda one: one.kind == kind and packet_id in (None, one.packet_id))

    def got(self) -> Publish:
        """The next message."""
        return self.expect(Publish)

    def payloads(self, count: int) -> list[bytes]:
        """The next messages."""
        return [self.got().payload for _ in range(count)]

    def quiet(self, seconds: float = 0.05) -> None:
        """No message comes, as far as one can tell; a ping goes there and back first."""
        self.ping()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self.more(left)
            except TimeoutError:
                break
        found = [one for one in self.inbox if isinstance(one, Publish)]
        assert not found, found

    def ping(self) -> None:
        """There and back."""
        self.send(Pingreq())
        self.expect(Pingresp)

    def ends(self) -> int | None:
        """Wait until the server closes; the reason of its DISCONNECT, if it sent one."""
        try:
            while True:
                self.more()
        except Ended:
            pass
        found = [one for one in self.inbox if isinstance(one, Disconnect)]
        return found[0].reason if found else None

    # Sessions

    def connect(
        self,
        id: str = "",
        *,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Any = None,
        user_name: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Connack:
        """CONNECT, and its answer."""
        self.send(
            Connect(
                id,
                self.version,
                clean_start,
                keep_alive_s,
                will,
                user_name,
                password,
                Properties(**properties),
            )
        )
        return self.expect(Connack)

    def leave(self, reason: int = 0, **properties: Any) -> None:
        """Take leave, and wait for the end."""
        self.send(Disconnect(reason, Properties(**properties)))
        self.ends()
        self.close()

    # Subscriptions

    def number(self) -> int:
        """A number for a packet."""
        self._number += 1
        return self._number

    def subscribe(self, *filters: str | Subscription, qos: int = 0, **properties: Any) -> tuple[int, ...]:
        """SUBSCRIBE; the reasons of its answer."""
        number = self.number()
        wanted = tuple(one if isinstance(one, Subscription) else Subscription(one, qos) for one in filters)
        self.send(Subscribe(number, wanted, Properties(**properties)))
        return self.expect(Suback, lambda one: one.packet_id == number).reasons

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        """UNSUBSCRIBE; the reasons of its answer."""
        number = self.number()
        self.send(Unsubscribe(number, filters))
        return self.expect(Unsuback, lambda one: one.packet_id == number).reasons

    # Messages

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 0, *, retain: bool = False, **more: Any) -> Ack:
        """PUBLISH, through to its last acknowledgement, which is answered."""
        number = self.number() if qos else 0
        self.send(Publish(topic, payload, qos, retain, False, number, Properties(**more)))
        if qos == 0:
            return Ack(Kind.PUBACK, 0)
        if qos == 1:
            return self.ack(Kind.PUBACK, number)
        answer = self.ack(Kind.PUBREC, number)
        if answer.reason >= 0x80:
            return answer
        self.send(Ack(Kind.PUBREL, number))
        return self.ack(Kind.PUBCOMP, number)

    def puback(self, *messages: Publish) -> None:
        """Acknowledge these."""
        self.send(*[Ack(Kind.PUBACK, one.packet_id) for one in messages])

    def settle(self, message: Publish) -> None:
        """Acknowledge one, whatever its QoS, through to the end."""
        if message.qos == 1:
            self.puback(message)
        elif message.qos == 2:
            self.send(Ack(Kind.PUBREC, message.packet_id))
            self.ack(Kind.PUBREL, message.packet_id)
            self.send(Ack(Kind.PUBCOMP, message.packet_id))


class Paho:
    """A client of paho's in its own thread."""

    def __init__(
        self, id: str, version: int, port: int, *, is_kept: bool = False, will: Any = None, login: Any = None
    ) -> None:
        options: dict[str, Any] = {"clean_session": not is_kept} if version == V4 else {}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, id, protocol=MQTTProtocolVersion(version), **options)
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._is_connected = threading.Event()
        self._subscribed: queue.Queue[Sequence[Any]] = queue.Queue()
        self.client.on_connect = lambda *_: self._is_connected.set()
        self.client.on_message = lambda _, __, message: self.messages.put(message)
        self.client.on_subscribe = lambda _, __, ___, reasons, ____: self._subscribed.put(reasons)
        if will is not None:
            self.client.will_set(*will)
        if login is not None:
            self.client.username_pw_set(*login)
        self.client.connect("127.0.0.1", port, clean_start=not is_kept if version == V5 else 3)
        self.client.loop_start()
        assert self._is_connected.wait(PATIENCE_S)

    def subscribe(self, filter: str, qos: int = 0) -> Any:
        """Subscribe; the answer."""
        self.client.subscribe(filter, qos)
        return self._subscribed.get(timeout=PATIENCE_S)[0]

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        """Publish, and wait until paho has its acknowledgement."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE_S)

    def got(self) -> paho.MQTTMessage:
        """The next message."""
        return self.messages.get(timeout=PATIENCE_S)

    def close(self) -> None:
        """Take leave."""
        self.client.disconnect()
        self.client.loop_stop()
