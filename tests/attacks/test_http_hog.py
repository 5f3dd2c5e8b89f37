"""Who takes all of HTTP's connections from one address, or fills WebSockets before MQTT knows who it is."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from admin.served import Served, serving
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Connect, Publish
from server.authority import LOCAL, Authority
from server.harness import PATIENCE_S

HOG = "127.0.0.2"
MAX, SHARE = 20, 10
KIB = 1024
SETTINGS = {
    "HEADWATER_MQTT": "true",
    "HEADWATER_MQTT_PORT": "0",
    "HEADWATER_HTTP_CONNECTIONS_MAX": str(MAX),
    "HEADWATER_HTTP_CONNECTIONS_PER_ADDRESS_MAX": str(SHARE),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("hog") / "data", **SETTINGS) as running:
        running.read_url()
        running.read_http()
        yield running


def line(served: Served, address: str = HOG) -> socket.socket:
    parts = urlsplit(served.http)
    return socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE_S, (address, 0))


def test_one_address_has_no_more_than_its_share_of_connections(served: Served):
    hogs = [line(served) for _ in range(2 * MAX)]
    try:
        assert b"http_connections_per_address_max" in hogs[-1].recv(4096)
        with served.client() as client:
            assert client.get("/healthz").status_code == 200
    finally:
        for hog in hogs:
            hog.close()


def websocket(served: Served) -> socket.socket:
    made = line(served)
    made.sendall(
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += made.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101")
    return made


def closing_code(made: socket.socket) -> int:
    said = b""
    with made:
        while piece := made.recv(4096):
            said += piece
    assert said[0] == 0x88
    return int(struct.unpack_from("!H", said, 2)[0])


def test_a_websocket_that_nobody_knows_takes_no_long_message(served: Served):
    whole = websocket(served)
    whole.sendall(b"\x82\xff" + struct.pack("!Q", 8 << 20) + bytes(4))  # 8 MiB of which nothing comes
    assert closing_code(whole) == 1009
    pieces = websocket(served)
    head = b"\xff" + struct.pack("!Q", 9 * KIB) + bytes(4)
    pieces.sendall(b"\x02" + head + bytes(9 * KIB) + b"\x00" + head)  # a message that does not end
    assert closing_code(pieces) == 1009


def test_a_websocket_of_a_client_that_is_known_takes_long_messages(served: Served):
    with connect(served.http.replace("http", "ws", 1) + "/mqtt", subprotocols=["mqtt"]) as made:  # type: ignore[list-item]
        made.send(encode(Connect("", V5), V5))
        assert made.recv(PATIENCE_S)[0] == 0x20
        made.send(encode(Publish("home/x", bytes(300 * KIB), 1, packet_id=1), V5))
        assert made.recv(PATIENCE_S)[0] == 0x40
        with pytest.raises(ConnectionClosed):
            made.send(bytes(9 << 20))
            made.recv(PATIENCE_S)


def test_tls_that_is_not_through_has_a_place_among_the_connections(tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server", "localhost", others=LOCAL)
    arguments = ("--tls-certificate", certificate, "--tls-key", key)
    with serving(tmp_path / "data", *arguments, **SETTINGS | {"HEADWATER_MQTT": "false"}) as served:
        served.read_http()
        hogs = [line(served) for _ in range(2 * MAX)]
        try:
            assert hogs[-1].recv(1) == b""
            context = ssl.create_default_context(cafile=authority.path)
            with httpx.Client(base_url=served.http.replace("127.0.0.1", "localhost"), verify=context) as client:
                assert client.get("/healthz", timeout=PATIENCE_S).status_code == 200
        finally:
            for hog in hogs:
                hog.close()
