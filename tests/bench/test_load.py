"""The load generator of the comparison: it builds, it measures what it says, and it notices what is wrong."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtt.peer import Served
from server.harness import Running

SOURCES = Path(__file__).resolve().parents[2] / "bench" / "peers" / "load"
MESSAGE_BYTES = 16
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to build the load generator with")
    program = tmp_path_factory.mktemp("load") / "load"
    sources = sorted(map(str, SOURCES.glob("*.c")))
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, *sources], check=True)
    return program


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


def ran(load: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [load, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, input=""
    )
    assert done.returncode in {0, 2}, done
    return done


def figures(load: Path, *arguments: object) -> dict[str, Any]:
    done = ran(load, *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def problem(load: Path, *arguments: object) -> str:
    done = ran(load, *arguments)
    assert done.returncode == 2, done.stdout
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("protocol", ["native", "mqtt"])
@pytest.mark.parametrize(
    ("work", "options", "messages"),
    [
        ("publish", ("--count", 1050, "--batch", 100, "--topics", 7), 1050),
        ("publish", ("--count", 300, "--publishers", 3), 300),
        ("deliver", ("--count", 500), 500),
        ("backlog", ("--count", 500, "--batch", 50), 500),
        ("fanout", ("--count", 200, "--subscribers", 5, "--in-flight", 20), 1000),
        ("roundtrip", ("--rounds", 20), 20),
        ("durable-roundtrip", ("--rounds", 20), 20),
    ],
)
def test_a_served_broker_does_each_work(
    load: Path, served: Served, protocol: str, work: str, options: tuple[object, ...], messages: int
):
    port = served.protocol.port if protocol == "mqtt" else served.server.port
    found = figures(load, protocol, work, "--port", port, "--bytes", 64, *options)
    assert found["messages"] == messages
    assert {"seconds", "rate", "cpu_seconds", "cpu_share"} < found.keys()
    assert ("p50_us" in found) is work.endswith("roundtrip")
    served.until(lambda: not served.bus.subscriptions(), "nothing is left behind")


def test_what_was_filled_is_replayed_from_the_start(load: Path, served: Served):
    port = ("--port", served.server.port)
    assert figures(load, "native", "fill", *port, "--count", 1500, "--batch", 1000)["messages"] == 1500
    assert figures(load, "native", "fill", *port, "--count", 1000, "--first", 1500)["messages"] == 1000
    assert figures(load, "native", "replay", *port, "--count", 2500)["messages"] == 2500
    assert "over after 2500 messages" in problem(load, "native", "replay", *port, "--count", 2501)


def test_what_the_broker_refuses_is_told_in_its_words(load: Path):
    with Running(auth="scram") as running:
        sent = problem(load, "native", "publish", "--port", running.server.port)
    assert sent.startswith("load: Headwater refused publisher 0: ")
    assert "scram" in sent


def test_the_generator_itself_is_measured_against_a_sink(load: Path):
    for work in ("publish", "deliver", "fanout"):
        assert figures(load, "sink", work, "--count", 5000)["messages"] == 5000


@pytest.fixture
def sink() -> Iterator[Callable[[Callable[[socket.socket, bytes], None]], int]]:
    """A sink of ten messages to one publisher, or one subscriber and a publisher, that answers as a test wants."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(answer: Callable[[socket.socket, bytes], None]) -> int:
        def serve() -> None:
            line, _ = listener.accept()
            with line, contextlib.suppress(ConnectionError):  # the generator ends as soon as it notices
                role = line.recv(1)
                if role == b"S":
                    line.sendall(b"S")
                    publisher, _ = listener.accept()
                else:
                    publisher = line.dup()
                with publisher:
                    if role == b"S":
                        publisher.recv(1)
                    messages = b""
                    while len(messages) < 10 * MESSAGE_BYTES and (more := publisher.recv(1 << 16)):
                        messages += more
                    answer(line, messages)
                    publisher.recv(1 << 16)

        threads.append(threading.Thread(target=serve))
        threads[0].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(TIMEOUT_S)
    listener.close()


def told(load: Path, port: int, work: str, *options: object) -> str:
    return problem(load, "sink", work, "--port", port, "--bytes", MESSAGE_BYTES, "--count", 10, *options)


def test_an_ack_too_many_is_noticed(load: Path, sink: Callable[..., int]):
    port = sink(lambda line, messages: line.sendall(struct.pack("<I", 11)))
    assert "acked more than publisher 0 has sent" in told(load, port, "publish")


def test_an_ack_too_few_is_noticed(load: Path, sink: Callable[..., int]):
    port = sink(lambda line, messages: line.sendall(struct.pack("<I", 9)))
    assert "nothing has come for 2 s: of 10 published" in told(load, port, "publish", "--timeout", 2)


def test_a_doubled_message_is_noticed(load: Path, sink: Callable[..., int]):
    port = sink(lambda line, messages: line.sendall(messages[:MESSAGE_BYTES] + messages[:-MESSAGE_BYTES]))
    assert "message 0 was delivered twice" in told(load, port, "fanout")


def test_a_lost_message_is_noticed(load: Path, sink: Callable[..., int]):
    other = struct.pack("<Q", 99) + bytes(MESSAGE_BYTES - 8)
    port = sink(lambda line, messages: line.sendall(messages[:-MESSAGE_BYTES] + other))
    assert "has 10 messages of 10, and message 9 is not among them" in told(load, port, "fanout")


def test_what_cannot_be_is_refused_before_anything_is_done(load: Path):
    assert "nobody answers" in problem(load, "native", "publish", "--port", 1)
    assert "sink cannot do replay" in problem(load, "sink", "replay", "--count", 1)
    assert "--bytes is 3; give a whole number from 8" in problem(load, "mqtt", "publish", "--bytes", 3)
