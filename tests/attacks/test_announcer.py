"""Who announces a proof, and sends something else: as much as it can, or nothing before it is gone."""

from __future__ import annotations

import gc
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.access.scram import ClientLogin
from headwater.mqtt.connection import MqttConnection
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Auth, Connack, Connect, Publish
from headwater.mqtt.properties import Properties
from headwater.mqtt.reasons import Reason
from headwater.native.connection import NativeConnection
from headwater.wire.frame import Kind, pack
from headwater.wire.handshake import Hello
from headwater.wire.requests import encode as encode_request
from mqtt.peer import MqttPeer, Served
from server.authority import LOCAL, Authority
from server.harness import SECRET

METHOD = "SCRAM-SHA-256"
KIB = 1024
HELLO_BYTES = 16 * KIB


def announce(served: Served, login: ClientLogin | None = None) -> tuple[MqttPeer, Auth]:
    """CONNECT with a method; what the server asks then."""
    login = login or ClientLogin("nobody", SECRET)
    peer = served.line()
    said = Properties(authentication_method=METHOD, authentication_data=login.first())
    peer.send(Connect("", V5, properties=said))
    return peer, peer.expect(Auth)


def refusal(peer: MqttPeer) -> int:
    peer.ends()
    (answer,) = [one for one in peer.inbox if isinstance(one, Connack)]
    return answer.reason


@pytest.mark.parametrize("kind", [0x30, 0xF0], ids=["PUBLISH", "AUTH"])
def test_a_packet_over_the_limit_is_refused_when_it_is_announced(kind: int):
    with Served(auth="scram") as served:
        peer, _ = announce(served)
        peer.send(bytes((kind, 0xFF, 0xFF, 0xFF, 0x03)))  # 8 MiB of which nothing comes
        assert refusal(peer) == Reason.PACKET_TOO_LARGE


def test_what_stands_behind_an_announcement_is_not_kept():
    with Served(auth="scram") as served:
        said = Properties(authentication_method=METHOD, authentication_data=ClientLogin("ann", SECRET).first())
        for behind in (b"\x30\xff\xff\xff\x03" + bytes(KIB), encode(Publish("home/x", b"x"), V5), b"\xf0"):
            peer = served.line()
            peer.send(encode(Connect("", V5, properties=said), V5) + behind)
            assert refusal(peer) in (Reason.PACKET_TOO_LARGE, Reason.PROTOCOL_ERROR)
        assert not list(served.bus.replay("home/x"))


def test_who_has_proven_itself_may_send_long_packets():
    with Served(auth="scram") as served:
        served.client("ann", allow=("publish home/#", "create home/#"))
        login = ClientLogin("ann", SECRET)
        peer, asked = announce(served, login)
        proof = login.respond(asked.properties.authentication_data or b"")
        said = Properties(authentication_method=METHOD, authentication_data=proof)
        peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, said))
        assert peer.expect(Connack).reason == Reason.SUCCESS
        assert peer.publish("home/x", bytes(300 * KIB), qos=1).reason == Reason.SUCCESS


def test_one_that_does_not_wait_for_its_connack_may_begin_a_long_packet_behind_its_connect():
    with Served() as served:
        peer = served.line()
        peer.send(Connect("eager", V5), Publish("home/x", bytes(300 * KIB), 1, packet_id=1))
        assert peer.expect(Connack).reason == Reason.SUCCESS
        served.bus.publish("home/y", b"")
        served.until(lambda: len(list(served.bus.replay("home/x"))) == 1)


def test_what_is_read_of_a_connection_before_it_is_known_is_little():
    """A password takes a while to check: what came behind it meanwhile is no more than a hello may have."""
    with Served(auth="scram", guess_delay_s_max=30.0) as served:
        for _ in range(12):  # the next guess is held back
            served.server.broker.guesses.failed("ann@127.0.0.1")
        peer = served.line()
        connect = encode(Connect("", V5, user_name="ann", password=b"wrong"), V5)
        peer.send(connect + encode(Publish("a/b", bytes(60)), V5) * 3000)
        served.until(lambda: any(one.is_held for one in served.server.listener.connections), "a guess")
        (connection,) = served.server.listener.connections
        assert isinstance(connection, MqttConnection)
        kept = sum(sum(map(len, getattr(one, "payloads", (b"",)))) for one in connection._early)
        assert kept + len(connection._reader.partial or b"") <= HELLO_BYTES


def test_a_native_client_may_send_no_long_frame_before_its_handshake_is_through():
    with Served(auth="scram") as served:
        login = ClientLogin("ann", SECRET)
        for first in (b"", pack(Kind.HELLO, 0, encode_request(Hello(mechanism="scram-sha-256", first=login.first())))):
            peer = served.connect()
            peer.send(first + struct.pack("<I", 1 << 20) + bytes(100))
            error = peer.ends()
            assert error is not None
            assert error.code == 413


# What is closed holds nothing.


def left(served: Served) -> int:
    """Connections of a server that are somewhere in memory."""
    listener = served.server.listener
    return sum(
        isinstance(found, MqttConnection | NativeConnection) and found.listener is listener
        for found in gc.get_objects()
    )


def hello(served: Served) -> None:
    login = ClientLogin("ann", SECRET)
    served.connect().hello(mechanism="scram-sha-256", first=login.first())


def begun(served: Served) -> None:
    peer, _ = announce(served)
    peer.send(b"\xf0\xff\x7e" + bytes(8 * KIB))


def broken(served: Served) -> None:
    peer, _ = announce(served)
    peer.send(Publish("home/x", b"x"), b"\xff\xff\xff")
    peer.ends()


def no_frame(served: Served) -> None:
    peer = served.connect()
    peer.send(struct.pack("<I", 3) + bytes(20))
    peer.ends()


def guess(served: Served) -> None:
    served.line().send(Connect("", V5, user_name="ann", password=b"wrong"))


def wrong_proof(served: Served) -> None:
    login = ClientLogin("ann", "wrong")
    peer, asked = announce(served, login)
    proof = login.respond(asked.properties.authentication_data or b"")
    peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, Properties(authentication_method=METHOD, authentication_data=proof)))


ENDS: dict[str, Callable[[Served], object]] = {
    "a HELLO": hello,
    "an announcement": announce,
    "a proof that has begun": begun,
    "what is no proof": broken,
    "what is no frame": no_frame,
    "a wrong password": guess,
    "a wrong proof": wrong_proof,
}


@pytest.mark.parametrize("what", ENDS)
def test_a_connection_that_is_closed_is_gone_without_the_collector(what: str):
    begin = ENDS[what]
    with Served(auth="scram", guess_delay_s_max=30.0) as served:
        served.client("ann")
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                begin(served)
            for peer in (*served._mqtt_peers, *served._peers):
                peer.close()
            served.until(lambda: not served.server.listener.connections, "the end of all")
            served.until(lambda: not left(served), "nothing left")
        finally:
            gc.enable()


def test_a_tls_connection_that_is_closed_is_gone_without_the_collector(tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    mine, key = authority.issue("server", "localhost", others=LOCAL)
    with Served(auth="scram", tls_certificate=mine, tls_key=key, mqtt_tls_port=0) as served:
        context = ssl.create_default_context(cafile=authority.path)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                peer = served.connect(tls=context)
                peer.hello(mechanism="scram-sha-256", first=ClientLogin("ann", SECRET).first())
                peer.close()
            served.until(lambda: not served.server.listener.connections, "the end of all")
            served.until(lambda: not left(served), "nothing left")
        finally:
            gc.enable()
