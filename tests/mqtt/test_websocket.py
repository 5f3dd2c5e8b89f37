"""MQTT over WebSocket, at /mqtt of the HTTP port: through the process that serves it, to the server and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import headwater
from admin.served import Served, serving
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import (
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
)
from headwater.mqtt.packets import Subscription as Wanted
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import Reason
from mqtt.peer import LIMITS
from mqtt.test_interop import echo, echoed, has_mqtt_js

PATIENCE_S = 60
MQTT = {"HEADWATER_MQTT": "true", "HEADWATER_MQTT_PORT": "0"}


class Client:
    """An MQTT client on a WebSocket."""

    def __init__(self, served: Served, **options: Any) -> None:
        url = served.http.replace("http", "ws", 1) + "/mqtt"
        options = {"subprotocols": ["mqtt"], "max_size": None, "open_timeout": PATIENCE_S, "legacy": True, **options}
        self.socket: ClientConnection = connect(url, **options)
        self._reader = PacketReader(LIMITS, is_server=False, version=V5)
        self._inbox: list[Packet] = []

    def send(self, *packets: Packet) -> None:
        self.socket.send(b"".join(encode(packet, V5) for packet in packets))

    def next(self) -> Packet:
        while not self._inbox:
            received = self.socket.recv(PATIENCE_S)
            assert isinstance(received, bytes)
            for one in self._reader.feed(received):
                self._inbox += one.publishes() if isinstance(one, Run) else [one]  # type: ignore[list-item]
        return self._inbox.pop(0)

    def connect(self, **options: Any) -> Connack:
        self.send(Connect("", V5, **options))
        answer = self.next()
        assert isinstance(answer, Connack)
        return answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("websocket") / "data", **MQTT) as running:
        running.read_url()
        running.read_http()
        yield running


def test_a_client_publishes_and_subscribes_in_pieces_of_any_size(served: Served):
    client = Client(served)
    for byte in encode(Connect("pieces", V5), V5):
        client.socket.send(bytes((byte,)))
    assert isinstance(client.next(), Connack)
    client.send(Subscribe(1, (Wanted("web/#", 1),)), Pingreq())
    assert {type(client.next()), type(client.next())} == {Suback, Pingresp}
    payload = bytes(300_000)
    with headwater.connect(served.url) as bus:
        bus.publish("web/x", payload)
        message = client.next()
        assert isinstance(message, Publish)
        assert (message.topic, message.payload) == ("web/x", payload)
        client.send(Publish("web/back", payload, 1, packet_id=7))
        client.next()
        assert [one.payload for one in bus.replay("web/back")] == [payload]
    client.socket.close()


def test_a_client_without_the_subprotocol_is_refused(served: Served):
    for offered in (None, ["other"]):
        with pytest.raises(InvalidStatus):
            Client(served, subprotocols=offered)


def test_text_is_no_mqtt(served: Served):
    client = Client(served)
    client.socket.send("hello")
    with pytest.raises(ConnectionClosed) as closed:
        client.socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


def test_a_page_of_another_site_may_not_even_ask(served: Served):
    for origin in ("http://elsewhere.example", "null"):
        with pytest.raises(InvalidStatus):
            Client(served, origin=origin)
    client = Client(served, origin=served.http)
    assert client.connect().reason == Reason.SUCCESS
    client.socket.close()


def test_the_websocket_ends_with_the_connection_and_says_why_before(served: Served):
    client = Client(served)
    client.connect()
    client.socket.send(b"\xf0\x01x" * 2)
    assert type(client.next()).__name__ == "Disconnect"
    with pytest.raises(ConnectionClosed):
        client.socket.recv(PATIENCE_S)


def test_a_client_that_goes_on_after_it_took_leave_is_told_that_it_is_closed(served: Served):
    for more in range(0, 120, 10):
        client = Client(served)
        client.connect()
        with pytest.raises(ConnectionClosed) as closed:
            client.send(Disconnect())
            for _ in range(more):
                client.send(Pingreq())
            while True:
                client.socket.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_a_client_that_reads_nothing_slows_nobody(served: Served):
    slow = Client(served, max_queue=1, close_timeout=0.1)
    slow.connect()
    slow.send(Subscribe(1, (Wanted("flood/#", 1),)))
    slow.next()
    with headwater.connect(served.url) as bus:
        bus.publish_many([("flood/x", bytes(100_000))] * 300)
        quick = Client(served)
        assert quick.connect().reason == Reason.SUCCESS
        quick.send(Pingreq())
        assert isinstance(quick.next(), Pingresp)
        quick.socket.close()
    assert isinstance(slow.next(), Publish)
    slow.socket.close()


@has_mqtt_js
@pytest.mark.parametrize("version", [4, 5])
def test_mqtt_js_publishes_and_subscribes_over_websocket(served: Served, version: int):
    assert sorted(echo(served.http.replace("http", "ws", 1) + "/mqtt", version)) == echoed(version)


def test_nobody_is_trusted_for_coming_through_a_tunnel(tmp_path: Path):
    with serving(tmp_path / "data", "--auth", "gatekeeper", **MQTT) as served:
        served.read_url()
        served.read_http()
        client = Client(served)
        assert client.connect(user_name="ann").reason == Reason.BAD_USER_NAME_OR_PASSWORD
        served.process.terminate()
        assert served.process.wait(PATIENCE_S) == 0
