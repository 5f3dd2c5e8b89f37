"""A door hog: a stranger who connects to a node of a cluster that does not lead, again and again, and says nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from cluster.following import Following, View
from headwater.cluster.leader import Leader
from headwater.wire.frame import Kind, pack
from headwater.wire.handshake import READS, Hello
from headwater.wire.requests import encode
from mqtt.peer import Served
from server.harness import PATIENCE_S
from server.site import until

SHARE = 3
CROWD = 40
CONNECT = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03abc"


@pytest.fixture
def leader() -> Iterator[Served]:
    running = Served()
    running.server.cluster = View("n1", "leading")
    with running:
        yield running


def come(following: Following, door: str, host: str = "127.0.0.5") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", following.port(door)), source_address=(host, 0))
    made.settimeout(PATIENCE_S)
    return made


HELLO = pack(Kind.HELLO, payload=encode(Hello()), flags=READS)


def is_let_in(made: socket.socket) -> bool:
    """Whether it is not closed at once."""
    made.settimeout(0.5)
    try:
        return bool(made.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("said", [b"", b"\x10"])
@pytest.mark.parametrize("door", ["native", "mqtt"])
def test_one_address_has_no_more_than_its_share_of_those_who_wait_at_a_door(door: str, said: bytes):
    with Following(mqtt=True, handshakes_per_address_max=SHARE) as following, ExitStack() as stack:
        way = next(way for way in following.doors._ways if way.name == door)
        hogs = [stack.enter_context(closing(come(following, door))) for _ in range(SHARE)]
        for hog in hogs:
            hog.sendall(said)
        until(lambda: way.room.waiting["127.0.0.5"] == SHARE)
        with closing(come(following, door)) as refused:
            assert not is_let_in(refused)
        with closing(come(following, door, "127.0.0.6")) as other:
            assert is_let_in(other)
        if said:
            return  # that one of these has gone is seen when somebody leads
        hogs[0].close()
        until(lambda: way.room.waiting["127.0.0.5"] == SHARE - 1)
        with closing(come(following, door)) as again:
            assert is_let_in(again)
        for hog in hogs:
            hog.close()
        until(lambda: not way.room.waiting and not way.room.by_network)


def test_all_who_wait_at_doors_have_a_limit_though_each_comes_from_elsewhere():
    with Following(mqtt=True, handshakes_max=SHARE) as following, ExitStack() as stack:
        for number, door in enumerate(("native", "mqtt", "native")):
            assert is_let_in(stack.enter_context(closing(come(following, door, f"127.0.0.{5 + number}"))))
        with closing(come(following, "mqtt", "127.0.0.9")) as refused:
            assert not is_let_in(refused)


def test_all_doors_together_take_as_many_as_one_and_who_comes_then_waits_to_be_accepted(leader: Served):
    with Following(mqtt=True, connections_max=SHARE) as following, ExitStack() as stack:
        following.point(Leader(node="n1", epoch=1, mqtt=f"127.0.0.1:{leader.protocol.port}"))
        room = following.doors._ways[0].room
        silent = [stack.enter_context(closing(come(following, "native"))) for _ in range(SHARE - 1)]
        until(lambda: room.by_network["127.0.0.5"] == SHARE - 1)
        made, late = (stack.enter_context(closing(come(following, "mqtt"))) for _ in range(2))
        for number, one in enumerate((made, late)):
            one.sendall(CONNECT[:-3] + b"c%02d" % number)
        assert made.recv(100)[:1] == b"\x20"
        assert is_let_in(late)
        assert room.by_network["127.0.0.5"] == SHARE
        silent[0].close()
        assert late.recv(100)[:1] == b"\x20"


def test_those_who_are_passed_on_do_not_count(leader: Served):
    with Following(mqtt=True, handshakes_per_address_max=SHARE) as following, ExitStack() as stack:
        following.point(Leader(node="n1", epoch=1, mqtt=f"127.0.0.1:{leader.protocol.port}"))
        for number in range(2 * SHARE):
            made = stack.enter_context(closing(come(following, "mqtt")))
            made.sendall(CONNECT[:-3] + b"c%02d" % number)
            assert made.recv(100)[:1] == b"\x20"


@pytest.mark.parametrize("said", [b"", b"\x10"], ids=["silent", "begun"])
@pytest.mark.parametrize("door", ["native", "http"])
def test_one_that_says_little_and_waits_is_let_go(door: str, said: bytes):
    said = b"GET /healthz HTTP/1.1\r\nX-Slow:" if said and door == "http" else said
    with Following(http=True, handshake_s=0.2) as following, closing(come(following, door)) as hog:
        hog.sendall(said)
        assert hog.recv(100) == b""


def test_one_that_takes_nothing_of_what_comes_back_is_let_go():
    with Following(mqtt=True, write_stalled_s=0.2) as following, socket.create_server(("127.0.0.1", 0)) as leading:
        following.point(Leader(node="n1", epoch=1, mqtt=f"127.0.0.1:{leading.getsockname()[1]}"))
        with closing(come(following, "mqtt")) as hog:
            hog.sendall(CONNECT)
            passed_on, _ = leading.accept()
            passed_on.settimeout(PATIENCE_S)
            with passed_on, pytest.raises(ConnectionError):
                while True:
                    passed_on.sendall(bytes(1 << 20))


def test_those_who_say_at_once_that_they_only_read_are_prepared_for_together():
    """Which a thread does, of which a stranger gets one and no more."""
    came = threading.Semaphore(0)
    let_go = threading.Event()

    def prepare() -> None:
        came.release()
        assert let_go.wait(PATIENCE_S)

    with Following() as following, ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as reading:
        following.serve_readers(reading.getsockname()[1], prepare)
        (way,) = following.doors._ways
        for number in range(CROWD):
            made = stack.enter_context(closing(come(following, "native", f"127.0.0.{5 + number % 9}")))
            made.sendall(HELLO)
        until(lambda: len(following.doors._tasks) == CROWD + 2)
        assert came.acquire(timeout=PATIENCE_S)
        assert not came.acquire(blocking=False)
        let_go.set()
        until(lambda: sum(one.was_open for one in way.passages) == CROWD)
        assert came.acquire(timeout=PATIENCE_S)
        assert not came.acquire(blocking=False)
