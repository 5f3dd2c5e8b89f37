"""The doors of a follower, before a leader that serves: real sockets, and what clients see of it."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

import headwater
from cluster.following import SECRET, Following, View
from headwater.clock import SystemClock
from headwater.cluster import doors as doors_module
from headwater.cluster.leader import Leader
from headwater.cluster.passage import Passage
from headwater.cluster.preamble import Preambles
from headwater.wire import administration as wire
from mqtt.peer import Served
from server.harness import PATIENCE_S, Ended, Peer, Running
from server.site import until


@pytest.fixture
def leader() -> Iterator[Served]:
    running = Served()
    running.server.cluster = View("n1", "leading")
    with running:
        yield running


def place_of(running: Running, **others: str) -> Leader:
    return Leader(node="n1", epoch=1, native=f"127.0.0.1:{running.server.port}", **others)


def addresses(running: Running) -> list[str]:
    return [one.address for one in running.peer().ask(wire.ListSessions()) if one.address]


def test_a_native_client_of_a_follower_has_the_leaders_bus(leader: Served):
    with Following() as following:
        following.point(place_of(leader))
        with headwater.connect(f"headwater://127.0.0.1:{following.port()}") as bus:
            live = bus.subscribe("home/#")
            offsets = [bus.publish("home/x", b"1" * 300_000).offset, leader.bus.publish("home/x", b"2").offset]
            seen = [message.offset for _ in offsets for message in live.batch(1, timeout_s=PATIENCE_S)]
            assert seen == offsets


def test_an_mqtt_client_is_listed_with_its_own_address(leader: Served):
    with Following(mqtt=True) as following:
        following.point(place_of(leader, mqtt=f"127.0.0.1:{leader.protocol.port}"))
        with closing(
            socket.create_connection(("127.0.0.1", following.port("mqtt")), source_address=("127.0.0.5", 0))
        ) as made:
            made.settimeout(PATIENCE_S)
            made.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc")
            assert made.recv(100)[:1] == b"\x20"
            assert "127.0.0.5" in addresses(leader)


@pytest.mark.parametrize("secret", [SECRET, b"a guess"])
def test_a_leader_believes_who_knows_the_secret(leader: Served, secret: bytes):
    said = Preambles(secret, "native", "n1", SystemClock()).pack(("203.0.113.7", 4711))
    peer = leader.connect()
    peer.send(said)
    if secret != SECRET:
        with pytest.raises(Ended):
            peer.shake()
        return
    peer.shake()
    peer.register(None, None)
    assert "203.0.113.7" in addresses(leader)


def test_a_preamble_that_is_played_again_is_refused(leader: Served):
    said = Preambles(SECRET, "native", "n1", SystemClock()).pack(("203.0.113.7", 4711))
    first, second = leader.connect(), leader.connect()
    first.send(said)
    first.shake()
    second.send(said)
    with pytest.raises(Ended):
        second.shake()


def test_a_server_without_a_cluster_does_not_look_for_a_preamble():
    with Running() as running:
        peer = running.connect()
        peer.send(Preambles(SECRET, "native", "n1", SystemClock()).pack(("203.0.113.7", 4711)))
        error = peer.ends()
        assert error is not None
        assert error.code in (413, 422)


def test_shares_and_rules_go_by_the_address_that_is_stated():
    """Whoever comes through a node is not on the leader's machine, and has a share of his own."""
    running = Running(auth="gatekeeper", connections_per_address_max=3)
    running.server.cluster = View("n1", "leading")
    with running:
        believed = Preambles(SECRET, "native", "n1", SystemClock())
        for address, may in (("203.0.113.7", False), ("127.0.0.1", True)):
            peer = running.connect()
            peer.send(believed.pack((address, 1)))
            if may:
                peer.shake("ann", mechanism="gatekeeper")
            else:
                with pytest.raises(headwater.HeadwaterError, match="gatekeeper"):
                    peer.shake("ann", mechanism="gatekeeper")
        peers = []
        for _ in range(4):
            peer = running.connect()
            peer.send(believed.pack(("203.0.113.9", 1)))
            peers.append(peer)
        error = peers[-1].ends()
        assert error is not None
        assert "connections_per_address_max" in str(error)


def test_those_who_come_before_anybody_leads_wait(leader: Served):
    with Following() as following:
        peer = Peer(following.port())
        with peer:
            peer.send(b"")
            said: list[Any] = []
            asking = threading.Thread(target=lambda: said.append(peer.shake()))
            asking.start()
            until(lambda: following.doors.passages == 1)
            assert not said
            following.point(place_of(leader))
            asking.join(PATIENCE_S)
            assert said


@pytest.mark.parametrize("is_late", [True, False])
def test_what_somebody_said_who_has_given_up_is_passed_on_to_nobody(monkeypatch: pytest.MonkeyPatch, is_late: bool):
    """Its client has come by another connection since, and would be taken for one that says all of it anew."""
    monkeypatch.setattr(doors_module, "STALE_S", -1.0 if is_late else PATIENCE_S)  # the loop's time stands in a turn
    with Following(mqtt=True) as following, closing(Echo()) as echo:
        with socket.create_connection(("127.0.0.1", following.port("mqtt"))) as client:
            client.sendall(b"x" * 100)
            until(lambda: following.doors.passages == 1)
            client.sendall(b"y" * 100)
        until(lambda: passage_of(following).outer.has_left)
        following.point(Leader(node="n1", mqtt=f"127.0.0.1:{echo.port}"))
        until(lambda: len(echo.connections) == 1)
        echo.connections[0].settimeout(PATIENCE_S)
        said = b""
        while data := echo.connections[0].recv(1 << 16):
            said += data
        assert (said == b"") == is_late


def test_those_who_wait_in_vain_are_let_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doors_module, "LEADER_WAIT_S", 0.2)
    with Following() as following, Peer(following.port()) as peer, pytest.raises(Ended):
        peer.shake()


def test_once_another_leads_no_connection_to_the_one_before_is_left(leader: Served):
    with Following() as following:
        following.point(place_of(leader))
        with Peer(following.port()) as peer:
            peer.shake()
            following.point(None)
            with pytest.raises(Ended):
                peer.ping()
        until(lambda: following.doors.passages == 0)


def test_nobody_is_passed_on_twice():
    """Two nodes that take each other for the leader would pass a connection round and round."""
    with Following("n1") as one, Following("n2") as two:
        one.point(Leader(node="n2", native=f"127.0.0.1:{two.port()}"))
        two.point(Leader(node="n1", native=f"127.0.0.1:{one.port()}"))
        with Peer(one.port()) as peer, pytest.raises(Ended):
            peer.shake()
        until(lambda: one.doors.passages + two.doors.passages == 0)


def passage_of(following: Following) -> Passage:
    """Of the one client that is there."""
    (one,) = (passage for way in following.doors._ways for passage in way.passages)
    return one


class Echo:
    """A leader that says back what it hears, once everything has come."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.takes = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        made, _ = self._listening.accept()
        self.connections.append(made)
        self.takes.wait(PATIENCE_S)
        said = b""
        with suppress(OSError), made:  # the test may be over before
            while data := made.recv(1 << 20):
                said += data
            made.sendall(said[87:])  # without the preamble

    def close(self) -> None:
        self._listening.close()
        for made in self.connections:
            made.close()
        self.takes.set()
        self._thread.join(PATIENCE_S)


def test_a_half_closed_connection_stays_half_closed():
    with Following() as following, closing(Echo()) as echo:
        echo.takes.set()
        following.point(Leader(node="n1", native=f"127.0.0.1:{echo.port}"))
        said = b"x" * 3_000_000
        with closing(socket.create_connection(("127.0.0.1", following.port()))) as made:
            made.settimeout(PATIENCE_S)
            made.sendall(said)
            made.shutdown(socket.SHUT_WR)
            back = b""
            while data := made.recv(1 << 20):
                back += data
        assert back == said
        until(lambda: following.doors.passages == 0)


def test_nothing_is_read_that_the_leader_does_not_take():
    with Following() as following, closing(Echo()) as echo, ExitStack() as held:
        following.point(Leader(node="n1", native=f"127.0.0.1:{echo.port}"))
        made = held.enter_context(closing(socket.create_connection(("127.0.0.1", following.port()))))
        made.setblocking(False)
        sent, still_since = 0, time.monotonic()
        while time.monotonic() < still_since + 0.5:  # the buffers of the system are what they are
            try:
                sent += made.send(b"x" * 65536)
                still_since = time.monotonic()
                assert sent < 64 << 20
            except BlockingIOError:
                time.sleep(0.01)

        def held_bytes() -> int:
            return passage_of(following).inner._unsent

        assert held_bytes() <= 2 * 32 * 1024
        echo.takes.set()


def test_probes_are_answered_by_the_node_that_is_asked(leader: Served):
    with Following(http=True) as following:
        where = f"http://127.0.0.1:{following.port('http')}"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{where}/readyz")
        with refused.value:
            assert refused.value.code == 503
            assert json.load(refused.value)["role"] == "following"
        assert json.load(urllib.request.urlopen(f"{where}/healthz")) == {"ok": True}
        following.point(place_of(leader, http="127.0.0.1:1"))
        assert json.load(urllib.request.urlopen(f"{where}/readyz"))["ok"]


@pytest.mark.parametrize("path", ["/readyzz", "/v1/topics", "/"])
def test_other_requests_go_to_the_leader(path: str):
    with Following(http=True) as following, closing(Echo()) as echo:
        following.point(Leader(node="n1", http=f"127.0.0.1:{echo.port}"))
        echo.takes.set()
        with closing(socket.create_connection(("127.0.0.1", following.port("http")))) as made:
            made.settimeout(PATIENCE_S)
            request = f"GET {path} HTTP/1.1\r\n\r\n".encode()
            for piece in (request[:3], request[3:9], request[9:]):
                made.sendall(piece)
                time.sleep(0.01)
            made.shutdown(socket.SHUT_WR)
            assert made.recv(1000) == request
