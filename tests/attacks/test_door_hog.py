"""A door hog: a stranger who connects to a node of a cluster that does not lead, again and again, and says nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from cluster.following import Following, View
from headwater.cluster.leader import Leader
from mqtt.peer import Served
from server.harness import PATIENCE_S
from server.site import until

SHARE = 3
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
        until(lambda: way._waiting["127.0.0.5"] == SHARE)
        with closing(come(following, door)) as refused:
            assert not is_let_in(refused)
        with closing(come(following, door, "127.0.0.6")) as other:
            assert is_let_in(other)
        if said:
            return  # that one of these has gone is seen when somebody leads
        hogs[0].close()
        until(lambda: way._waiting["127.0.0.5"] == SHARE - 1)
        with closing(come(following, door)) as again:
            assert is_let_in(again)
        for hog in hogs:
            hog.close()
        until(lambda: not way._waiting and not way._by_network)


def test_those_who_are_passed_on_do_not_count(leader: Served):
    with Following(mqtt=True, handshakes_per_address_max=SHARE) as following, ExitStack() as stack:
        following.point(Leader(node="n1", epoch=1, mqtt=f"127.0.0.1:{leader.protocol.port}"))
        for number in range(2 * SHARE):
            made = stack.enter_context(closing(come(following, "mqtt")))
            made.sendall(CONNECT[:-3] + b"c%02d" % number)
            assert made.recv(100)[:1] == b"\x20"
