"""What a node's HTTP says of its cluster, and that what a follower passes on is heard as its client's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import httpx
import msgspec
import pytest

from cluster.following import Following, View
from headwater.cluster.leader import Leader
from headwater.serving.sidecar import Sidecar
from headwater.settings import load
from headwater.wire.administration import Failover, NodeStatus
from server.harness import PATIENCE_S, Running
from server.site import until

NOW_US = 1_700_000_000_000_000
FOLLOWER = NodeStatus(
    name="n2", role="following", address="h2:7411", record=40, lag_records=2, lag_s=0.25, seen_us=NOW_US
)
LEADING = NodeStatus(name="n1", role="leading", address="h1:7411", record=42, lag_records=0, lag_s=0.0, seen_us=NOW_US)


@pytest.fixture(scope="module")
def leading() -> Iterator[str]:
    """A leader's URL for HTTP."""
    view = View("n1", "leading")
    view.said = msgspec.structs.replace(
        view.said,
        record=42,
        failovers=3,
        nodes=(LEADING, FOLLOWER),
        timeline=(Failover(time_us=NOW_US, epoch=1, node="n1", took_s=3.5),),
    )
    running = Running()
    running.server.cluster = view
    with running:
        urls: list[str] = []
        sidecar = Sidecar(running.server, load({"http_port": ("--http-port", 0)}, {}, None), urls.append)
        running.run(sidecar.start())
        until(lambda: urls, "the process for HTTP")
        try:
            yield urls[0]
        finally:
            running.run(sidecar.stop())


def test_metrics_tell_how_the_cluster_is(leading: str):
    text = httpx.get(f"{leading}/metrics", timeout=PATIENCE_S).text
    assert "headwater_cluster_leading 1.0" in text
    assert "headwater_cluster_failovers_total 3.0" in text
    assert 'headwater_cluster_node_lag_seconds{node="n2"} 0.25' in text


def test_readiness_tells_the_role(leading: str):
    found = httpx.get(f"{leading}/readyz", timeout=PATIENCE_S)
    assert (found.status_code, found.json()["role"]) == (200, "leading")


def test_what_a_follower_passes_on_counts_by_its_clients_address(leading: str):
    """One from another machine needs a token, though the follower is on this one."""
    with Following(http=True, http_host="127.0.0.1") as following:
        following.point(Leader(node="n1", http=leading.removeprefix("http://")))
        port = following.port("http")
        assert httpx.get(f"http://127.0.0.1:{port}/v1/topics", timeout=PATIENCE_S).status_code == 200
        other = ("127.0.0.9", 0)
        with closing(socket.create_connection(("127.0.0.1", port), source_address=other)) as made:
            made.settimeout(PATIENCE_S)
            made.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n")
            assert made.recv(100).split()[1] in (b"401", b"403")
