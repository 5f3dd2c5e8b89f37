"""The process that serves HTTP beside the server: killed, orphaned, ended, and without a port."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

import headwater
from admin.served import TIMEOUT_S, Served, serving
from headwater.server.tls import peer_name
from server.authority import LOCAL, Authority


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def pid_of(served: Served) -> int:
    met = re.search(r" http .*pid=(\d+)", served.wait_for(" http url="))
    assert met
    return int(met[1])


def wait_until_gone(url: str) -> None:
    """Until nobody listens there."""
    host, port = url.partition("://")[2].split(":")
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError(f"{url} is still served")


def others(url: str) -> dict[str, datetime]:
    """Sessions, and since when they are connected; that of the process itself is none of them."""
    found = httpx.get(f"{url}/v1/sessions", timeout=TIMEOUT_S).json()["sessions"]
    return {one["id"]: datetime.fromisoformat(one["connected"]) for one in found}


def test_it_is_started_again_when_it_is_killed_and_ends_when_the_server_is(data: Path):
    with serving(data) as served, headwater.connect(served.url) as bus:
        first = served.read_http()
        before = others(first)
        killed = datetime.now(UTC)
        os.kill(pid_of(served), signal.SIGKILL)
        for n in range(100):
            bus.publish("home/x", b"%d" % n)
        second = served.read_http()
        assert second != first
        asked: dict[str, str | int] = {"filter": "home/#", "limit": 1000}
        page = httpx.get(f"{second}/v1/messages", params=asked, timeout=TIMEOUT_S).json()
        assert len(page["messages"]) == 100
        ((id, since),) = others(second).items()
        assert id in before
        assert since < killed  # who is connected natively never noticed
        served.process.kill()
        served.process.wait(TIMEOUT_S)
        wait_until_gone(second)


def test_the_process_itself_is_none_of_those_who_are_counted(data: Path):
    with serving(data) as served, headwater.connect(served.url), headwater.connect(served.url):
        url = served.read_http()
        assert len(others(url)) == 2
        until = time.monotonic() + TIMEOUT_S
        while "headwater_connections_opened_total 3.0\n" not in (told := httpx.get(f"{url}/metrics").text):
            assert time.monotonic() < until, told  # what it told last is shown for a moment more
        assert "headwater_connections 2.0\n" in told
        assert "headwater_sessions 2.0\n" in told


def test_who_asks_without_tls_where_it_is_spoken_is_told_and_the_reverse(data: Path, tmp_path: Path):
    certificate, key = Authority(tmp_path, "us").issue("server", "broker", others=LOCAL)
    with serving(data, "--tls-certificate", certificate, "--tls-key", key) as served:
        url = served.read_http().replace("https:", "http:")
        answer = httpx.get(f"{url}/v1/topics", timeout=TIMEOUT_S)
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            "this port speaks TLS: begin the address with https://",
        )
        with pytest.raises(headwater.Disconnected, match="it speaks HTTP"):
            headwater.connect(url.replace("http:", "headwater:"))
        assert " no-tls " in served.wait_for(" no-tls ")


def test_who_speaks_no_http_is_told_at_once(data: Path):
    with serving(data) as served:
        url = served.read_http()
        with pytest.raises(headwater.Disconnected, match="it speaks HTTP"):
            headwater.connect(url.replace("http:", "headwater:"))
        with pytest.raises(httpx.ConnectError):
            httpx.get(url.replace("http:", "https:"), timeout=TIMEOUT_S)
        host, port = url.partition("://")[2].split(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as peer:
            peer.sendall(b"\x16\x03\x01\x02\x00")
            assert b"begin the address with http://" in peer.makefile("rb").read()


def test_it_speaks_tls_where_the_server_does_and_ends_with_it_whoever_follows(data: Path, tmp_path: Path):
    authority = Authority(tmp_path, "us")
    certificate, key = authority.issue("server", "localhost", others=LOCAL)
    with serving(data, "--tls-certificate", certificate, "--tls-key", key) as served:
        url = served.read_http()
        assert url.startswith("https://")
        there = url.replace("127.0.0.1", "localhost")
        trusted = ssl.create_default_context(cafile=authority.path)
        with httpx.Client(verify=trusted, base_url=there, timeout=TIMEOUT_S) as http:
            assert http.post("/v1/topics/x/messages", content=b"1", headers={"Origin": there}).status_code == 201
            with http.stream("GET", "/v1/messages/follow") as stream:
                lines = stream.iter_lines()
                next(lines)
                served.process.terminate()
                assert served.process.wait(TIMEOUT_S) == 0
                with suppress(httpx.HTTPError):
                    for _ in lines:
                        pass
        wait_until_gone(url)


def test_a_port_that_is_in_use_leaves_the_server_serving_and_says_what_to_do(data: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(data, "--http-port", port) as served:
            line = served.wait_for("http-failed")
            assert f"port {port} of 127.0.0.1 is in use" in line
            assert "--http-port" in line
            with headwater.connect(served.url) as bus:
                assert bus.publish("home/x", b"1").offset == 1
            taken.close()
            # It is tried again, and by then the port is free.
            assert served.read_http().endswith(f":{port}")


def name_over_https(url: str, authority: Authority) -> str | None:
    host, port = url.partition("://")[2].split(":")
    context = ssl.create_default_context(cafile=authority.path)
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return peer_name(connection)


def test_sighup_gives_https_the_new_certificate_and_keeps_the_old_one_if_it_is_bad(data: Path, tmp_path: Path):
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server", "before", others=LOCAL)
    with serving(data, "--tls-certificate", certificate, "--tls-key", key) as served:
        url = served.read_http()
        assert name_over_https(url, authority) == "before"
        authority.issue("server", "after", others=LOCAL)
        served.process.send_signal(signal.SIGHUP)
        for _ in ("the server's", "HTTP's"):
            served.wait_for("certificates-loaded")
        assert name_over_https(url, authority) == "after"
        Path(certificate).write_text("garbage")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("certificates-kept")
        assert name_over_https(url, authority) == "after"
