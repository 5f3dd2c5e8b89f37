"""Who reads at a node that follows may read there what rules let them read at the one that leads, and comes in by no
other way than by the node's doors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from cluster.nodes import Leader, another, first
from cluster.readers import Follower
from headwater.errors import NotAllowed, Unauthenticated
from headwater.wire.frame import Kind, pack
from headwater.wire.handshake import READS, Hello
from headwater.wire.requests import encode
from server.harness import PATIENCE_S, SECRET

ANN = f"ann:{quote(SECRET)}@"


@contextmanager
def pair(path: Path, auth: str) -> Iterator[tuple[Leader, Follower]]:
    """A leader with a client that may read some of what there is, and a node that follows it."""
    one = first(path / "n1")
    two = another(one, path / "n2")
    leader = one.lead(1)
    leader.core.clients.add("ann", secret=SECRET)
    leader.core.acl.allow("ann", "subscribe", "home/#")
    leader.bus.publish_many([("home/a", b"for ann"), ("office/a", b"for others")])
    follower = Follower(two, auth=auth)
    try:
        follower.apply(leader)
        yield leader, follower
    finally:
        follower.close()
        leader.close()


def test_rules_hold_there_and_so_do_secrets(tmp_path: Path):
    with pair(tmp_path, "scram") as (_, follower), follower.connect(ANN) as bus:
        assert [message.payload for message in bus.replay("home/#")] == [b"for ann"]
        for reads in (bus.replay, bus.follow, bus.subscribe, bus.retained):
            with pytest.raises(NotAllowed, match="office/#"), reads("office/#") as reading:
                reading.next(timeout_s=PATIENCE_S)
        assert bus.topics("#")[0].topic == "home/a"
        for stranger in ("", f"ann:{quote('a guess')}@"):
            with pytest.raises(Unauthenticated):
                follower.connect(stranger)


def test_what_is_taken_away_at_the_leader_is_gone_there_once_it_is_applied(tmp_path: Path):
    with pair(tmp_path, "scram") as (leader, follower), follower.connect(ANN) as bus:
        with bus.subscribe("home/#") as live:
            leader.core.acl.remove("ann", "subscribe", "home/#")
            follower.apply(leader)
            with pytest.raises(NotAllowed, match="home/#"):
                live.next(timeout_s=PATIENCE_S)
        with pytest.raises(NotAllowed, match="home/#"):
            list(bus.replay("home/#"))
        leader.core.clients.remove("ann")
        follower.apply(leader)
        with pytest.raises(Unauthenticated):
            follower.connect(ANN)


@pytest.mark.parametrize("auth", ["gatekeeper", "scram", "none"])
def test_nobody_comes_in_behind_its_doors(tmp_path: Path, auth: str):
    """What serves there listens on loopback, where gatekeepers are believed, wherever the node's doors are."""
    with (
        pair(tmp_path, auth) as (_, follower),
        socket.create_connection(("127.0.0.1", follower.port), PATIENCE_S) as made,
    ):
        hello = Hello(mechanism="gatekeeper", user="ann")
        made.sendall(pack(Kind.HELLO, payload=encode(hello), flags=READS))
        assert is_closed(made)


def is_closed(made: socket.socket) -> bool:
    """Whether the other side closes, and says nothing."""
    try:
        return made.recv(100) == b""
    except ConnectionResetError:
        return True
