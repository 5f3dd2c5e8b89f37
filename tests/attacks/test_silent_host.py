"""A destination that takes connections and says nothing, and names that nobody answers for, hold up nobody else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater.admin
from admin.served import serving
from headwater.channels.runner import TRIALS_MAX
from headwater.errors import NotAllowed, QuotaExceeded
from server.harness import PATIENCE_S, Running

TRIALS = 5


@contextmanager
def silent_host() -> Iterator[socket.socket]:
    """A port that takes connections, and nothing more."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as door:
        door.settimeout(PATIENCE_S)
        yield door


class Resolver:
    """Answers for names when it is told to; literal addresses are what they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: Any, *options: Any, **named: Any) -> Any:
        if not str(host).endswith(".test"):
            return self._real(host, *options, **named)
        self.asked.append(host)
        self.may_answer.wait(60)
        return [(0, 0, 0, "", ("127.0.0.1", 0))]


def test_health_is_told_while_five_trials_hang(tmp_path: Path):
    settings = {"HEADWATER_CHANNEL_CONNECT_S": "300", "HEADWATER_MQTT": "false"}
    with silent_host() as door, serving(tmp_path / "data", **settings) as served, ThreadPoolExecutor(TRIALS) as pool:
        served.read_http()
        with served.client() as http, ExitStack() as lines:
            port = door.getsockname()[1]
            spec = {"name": "n", "filter": "home/#", "destination_host": "127.0.0.1", "destination_port": port}
            made = http.post("/v1/channels", json={"kind": "tcp", **spec})
            assert made.status_code == 201, made.text
            id = made.json()["id"]

            def try_out() -> None:
                with suppress(httpx.HTTPError), served.client() as mine:  # the server is killed meanwhile
                    mine.post(f"/v1/channels/{id}/test")

            trials = [pool.submit(try_out) for _ in range(TRIALS)]
            try:
                for _ in range(2):  # the channel's own, and the first trial's
                    lines.enter_context(door.accept()[0])
                for _ in range(3):
                    assert http.get("/healthz").status_code == 200
                    assert http.get("/v1/topics").status_code == 200
                    assert http.get(f"/v1/channels/{id}").status_code == 200
                assert not any(trial.done() for trial in trials)
            finally:
                served.process.kill()


def test_trials_that_hang_are_limited():
    with silent_host() as door, Running(channel_connect_s=300.0) as running:
        (channel,) = running.bus.channels.add("n", "home/#", "127.0.0.1", door.getsockname()[1])
        with headwater.admin.connect(running.server.url) as admin, ThreadPoolExecutor(40) as pool:
            trials = [pool.submit(admin.channels.test, channel.id) for _ in range(TRIALS_MAX + 10)]
            for refused in islice(as_completed(trials, PATIENCE_S), 10):
                assert isinstance(refused.exception(), QuotaExceeded)
            assert admin.health().checks
            assert sum(trial.done() for trial in trials) == 10
            admin.close()


def test_a_name_that_hangs_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch):
    resolver = Resolver(monkeypatch)
    # A list with a network beyond loopback: whether a name is within it, only a look-up can tell.
    with (
        Running(channel_hosts=("127.0.0.0/8", "10.0.0.0/8")) as running,
        headwater.admin.connect(running.server.url) as admin,
        ThreadPoolExecutor(20) as pool,
    ):
        adding = [
            pool.submit(admin.channels.add, "n", "home/#", f"host-{place}.test", 9000, start="latest")
            for place in range(20)
        ]
        running.until(lambda: len(resolver.asked) >= 2, "some look-ups")
        admin.bus.publish("home/x", b"1")
        assert admin.levels()
        with (
            headwater.connect(running.server.url) as other,
            other.subscribe("home/#", id="s", start="earliest") as consumer,
        ):
            assert next(iter(consumer)).payload == b"1"
        assert admin.health().checks
        assert not any(one.done() for one in adding)
        resolver.may_answer.set()
        assert all(one.result(60) for one in adding)


def test_channels_whose_names_hang_do_not_fill_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    resolver = Resolver(monkeypatch)
    resolver.may_answer.set()
    with Running(tmp_path, channel_hosts=("127.0.0.0/8", "10.0.0.0/8")) as running:
        for place in range(20):
            running.bus.channels.add("n", "home/#", f"host-{place}.test", 9000)
    resolver.may_answer.clear()
    with Running(tmp_path, channel_hosts=("127.0.0.0/8", "10.0.0.0/8")) as running:
        with (
            headwater.connect(running.server.url) as bus,
            bus.subscribe("home/#", id="s", start="earliest") as consumer,
        ):
            bus.publish("home/x", b"1")
            assert next(iter(consumer)).payload == b"1"
        resolver.may_answer.set()


@pytest.mark.parametrize("hosts", [("127.0.0.0/8", "::1"), ("collector.internal",), ()])
def test_a_name_that_no_list_could_allow_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]):
    resolver = Resolver(monkeypatch)
    with Running(channel_hosts=hosts) as running, headwater.admin.connect(running.server.url) as admin:
        with pytest.raises(NotAllowed, match="channel_hosts"):
            admin.channels.add("n", "home/#", "secrets.of.others.test", 9000)
        assert resolver.asked == []
