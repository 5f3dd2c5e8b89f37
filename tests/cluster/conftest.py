"""What tests of a cluster stand on: three real NATS servers, started once, with a bus of its own for each test."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.cli.nats_servers import NatsServers, nats_server
from headwater.cluster.nats_engine import NatsEngine
from headwater.config import Clustering
from headwater.errors import NotFound, Unavailable

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with NATS servers go to one worker, as these are started once."""
    for item in items:
        if "nats" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("nats"))


def runs_nats() -> None:
    """Skip the test where the engine cannot run."""
    try:
        subprocess.run([nats_server(), "--version"], capture_output=True, check=True)
    except (NotFound, OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nats-server does not run here, so a cluster is not tried: {error}")


def started(folder: Path, count: int = 3) -> NatsServers:
    """Servers that answer."""
    runs_nats()
    servers = NatsServers(folder, count)
    servers.start()
    return servers


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    servers = started(tmp_path_factory.mktemp("nats"))
    try:
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def clustering(nats: NatsServers) -> Clustering:
    """Settings of a cluster that nobody else is in."""
    return Clustering(cluster=nats.urls, bus=f"t{os.getpid()}-{next(_numbers)}", lease_s=1.0)


def joined(clustering: Clustering, node: str = "n1") -> NatsEngine:
    """An engine that works, however soon after the servers were started."""
    for _ in range(60):
        try:
            engine = NatsEngine(clustering, node)
        except Unavailable:
            continue
        try:
            engine.open_rows()
            engine.make()
        except Unavailable:
            engine.close()
            continue
        return engine
    pytest.fail("the NATS servers did not come up")


@pytest.fixture
def engines(clustering: Clustering) -> Iterator[Callable[[str], NatsEngine]]:
    """An engine for a node, as many as are asked for."""
    made: list[NatsEngine] = []

    def make(node: str) -> NatsEngine:
        made.append(joined(clustering, node))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
