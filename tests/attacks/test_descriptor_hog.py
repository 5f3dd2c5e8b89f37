"""Who opens more connections than the process may have files: what is published is stored all the same."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import headwater
from cluster.conftest import runs_nats
from headwater.cli.cluster.trial import Trial
from headwater.cluster.overview import look
from server.authority import LOCAL, Authority
from server.harness import PATIENCE_S
from server.site import until

FILES_MAX = 160
NODE_FILES_MAX = 300
CROWD = 400


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server that may open few files, and its URL."""
    command = (
        f"ulimit -n {FILES_MAX}; exec {sys.executable} -m headwater serve --data data --port 0 --no-mqtt --no-http"
    )
    with subprocess.Popen(
        ["/bin/sh", "-c", " ".join((command, *arguments))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"headwaters?://\S+", process.stdout.readline())
            assert url
            yield url[0], process
        finally:
            process.kill()


def crowd(stack: ExitStack, url: str) -> None:
    parts = urlsplit(url)
    crowd_at(stack, parts.hostname or "", parts.port or 0)


def crowd_at(stack: ExitStack, host: str, port: int) -> None:
    for number in range(CROWD):
        made = socket.socket()
        stack.enter_context(made)
        made.setblocking(False)
        made.bind((f"127.0.1.{number % 200 + 1}", 0))
        made.connect_ex((host, port))


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_what_is_published_is_stored_while_a_crowd_holds_all_connections(tmp_path: Path, is_tls: bool):
    arguments = ["--set", "segment_bytes=65536", "--set", "handshake_s=60"]
    options = ""
    if is_tls:
        authority = Authority(tmp_path, "authority")
        certificate, key = authority.issue("server", "localhost", others=LOCAL)
        arguments += ["--tls-certificate", certificate, "--tls-key", key]
        options = f"?ca={authority.path}"
    with (
        serving(tmp_path, *arguments) as (url, process),
        headwater.connect(url.replace("127.0.0.1", "localhost") + options) as bus,
        ExitStack() as stack,
    ):
        crowd(stack, url)
        for number in range(100):
            bus.publish(f"r{number % 20}/x", bytes(20_000))  # segments roll all the time
        assert sum(1 for _ in bus.replay("#")) == 100
        process.terminate()
        _, told = process.communicate(timeout=PATIENCE_S)
    assert "TooManyFiles" not in told
    assert "not-accepted" not in told


class Tight(Trial):
    """A cluster whose nodes may open few files."""

    def start_node(self, name: str) -> None:
        super().start_node(name)
        # It looks what it may once it has been imported, which takes much longer than this.
        resource.prlimit(self.pid(name), resource.RLIMIT_NOFILE, (NODE_FILES_MAX, NODE_FILES_MAX))


@pytest.mark.xdist_group("nats")
def test_a_node_that_follows_does_so_while_a_crowd_is_at_its_doors(tmp_path: Path):
    """Each of whom takes two descriptors there, or three."""
    runs_nats()
    more = ("--set", "segment_bytes=65536", "--set", "handshake_s=60")
    with Tight(str(tmp_path), more=more) as trial, ExitStack() as stack:
        leader = trial.start().leader
        assert leader is not None
        following = next(name for name in trial.names if name != leader.node)
        ports = trial.ports[trial.names.index(following)]
        for port in (ports.native, ports.mqtt, ports.http):
            crowd_at(stack, "127.0.0.1", port)
        with headwater.connect(f"headwater://{leader.doors.native}") as bus:
            for number in range(200):
                bus.publish(f"r{number % 20}/x", bytes(20_000))

            def has_all() -> bool:
                reports = look(trial.engine).reports
                there = {name: reports[name].position.number for name in (leader.node, following) if name in reports}
                return len(there) == 2 and there[following] >= there[leader.node] > 200

            until(lambda: has_all() or trial.ended(), "the node following")
        assert not trial.ended(), trial.logs()
        assert "not-accepted" not in trial.logs()
