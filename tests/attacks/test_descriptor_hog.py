"""Who opens more connections than the process may have files: what is published is stored all the same."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import headwater
from server.authority import LOCAL, Authority
from server.harness import PATIENCE_S

FILES_MAX = 160
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
    for number in range(CROWD):
        made = socket.socket()
        stack.enter_context(made)
        made.setblocking(False)
        made.bind((f"127.0.1.{number % 200 + 1}", 0))
        made.connect_ex((parts.hostname or "", parts.port or 0))


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
