"""Who takes all the places there are for those whom nobody knows yet, from one address: others come in all the same."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headwater.mqtt.kinds import V5
from headwater.mqtt.packets import Connack, Connect
from headwater.mqtt.reasons import Reason
from headwater.mqtt.tunnel import preamble
from mqtt.peer import Served
from server.authority import LOCAL, Authority
from server.harness import PATIENCE_S, Peer

HOG, OTHER = "127.0.0.2", "127.0.0.3"
SLOTS, SHARE = 20, 10


@contextmanager
def taken(port: int, count: int = SLOTS) -> Iterator[list[socket.socket]]:
    """So many connections from one address on which nothing is said."""
    hogs = [socket.create_connection(("127.0.0.1", port), PATIENCE_S, (HOG, 0)) for _ in range(count)]
    try:
        yield hogs
    finally:
        for hog in hogs:
            hog.close()


def has_come(served: Served, count: int = SLOTS) -> None:
    """Wait until all were accepted: some of them are held, the others were refused."""
    counts = served.server.broker.core.roots.counts
    served.until(lambda: counts.connections >= count, "all to be accepted")


def test_one_address_has_no_more_than_its_share_of_handshakes():
    with Served(handshakes_max=SLOTS, handshakes_per_address_max=SHARE, handshake_s=60.0) as served:
        with taken(served.server.port) as hogs:
            has_come(served)
            assert served.call(lambda: len(served.server.listener.connections)) == SHARE
            for _ in range(2 * SLOTS):
                other = served.connect()
                other.shake("ann")
                other.register()
            hogs[-1].settimeout(PATIENCE_S)
            assert b"handshakes_per_address_max" in hogs[-1].recv(4096)
        served.until(lambda: len(served.server.listener.connections) == 2 * SLOTS)
        assert not served.server.listener.greeting_by_network


def test_an_address_that_is_through_with_its_handshakes_may_begin_others():
    with Served(handshakes_per_address_max=2) as served:
        for _ in range(10):
            served.mqtt()
        assert served.call(lambda: len(served.server.listener.connections)) == 10


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_tls_that_is_not_through_has_a_place_among_the_handshakes(tmp_path: Path, loop: Any):
    authority = Authority(tmp_path, "authority")
    mine, key = authority.issue("server", "localhost", others=LOCAL)
    limits = {"handshakes_max": SLOTS, "handshakes_per_address_max": SHARE, "handshake_s": 60.0, "loop": loop}
    with Served(auth="scram", tls_certificate=mine, tls_key=key, mqtt_tls_port=0, **limits) as served:
        served.client("ann")
        with taken(served.server.port) as hogs:
            served.until(lambda: served.server.listener.arriving_by_network == {HOG: SHARE}, "a full share")
            hogs[-1].settimeout(PATIENCE_S)
            assert hogs[-1].recv(1) == b""  # there is nobody to talk to before TLS is through
            assert hogs[0].fileno() >= 0
            context = ssl.create_default_context(cafile=authority.path)
            for _ in range(SLOTS):
                served.peer("ann", tls=context)
        served.until(lambda: not served.server.listener.arriving_by_network, "the end of the hog")
        assert served.call(lambda: served.server.listener.arriving) == 0


def test_tls_that_does_not_get_through_ends_in_time(tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    mine, key = authority.issue("server", "localhost", others=LOCAL)
    limits = {"handshake_s": 0.2, "mqtt_tls_port": 0}
    with (
        Served(auth="scram", tls_certificate=mine, tls_key=key, **limits) as served,
        taken(served.server.port, 3) as hogs,
    ):
        hogs[0].sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        hogs[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        for hog in hogs:
            hog.settimeout(PATIENCE_S)
            with suppress(ConnectionError):
                while hog.recv(4096):
                    pass
        served.until(lambda: not served.server.listener.arriving)


def test_those_who_come_through_a_tunnel_have_the_share_of_their_own_address(tmp_path: Path):
    limits = {"handshakes_max": SLOTS, "handshakes_per_address_max": SHARE, "handshake_s": 60.0}
    with Served(**limits) as served:
        path = str(tmp_path / "door")
        door = served.run(served.protocol.listen_tunnels(path))

        def tunnel(address: str) -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(PATIENCE_S)
            made.connect(path)
            made.sendall(preamble(address))
            return made

        hogs = [tunnel("192.0.2.1") for _ in range(SLOTS)]
        served.until(lambda: served.server.broker.core.roots.counts.connections == SLOTS)
        served.until(lambda: len(served.server.listener.connections) == SHARE, "a full share")
        for number in range(SHARE):
            peer = served.line()
            peer.close()
            peer.socket = tunnel(f"192.0.2.{2 + number}")
            peer.send(Connect("", V5))
            assert peer.expect(Connack).reason == Reason.SUCCESS
            peer.close()
        for hog in hogs:
            hog.close()
        served.call(door.close)


def test_those_beyond_the_limit_of_connections_wait_to_be_accepted_and_are_told():
    with Served(connections_max=5, handshakes_max=1000, handshake_s=60.0) as served:
        kept = [served.peer() for _ in range(5)]
        others = [Peer(served.server.port) for _ in range(50)]
        assert served.call(lambda: served.server.listener.count) <= 5 + 8
        for other in others:
            error = other.ends()
            assert error is not None
            assert "connections_max" in str(error)
            other.close()
        kept[0].close()
        served.until(lambda: served.server.listener.count == 4)
        served.peer()
