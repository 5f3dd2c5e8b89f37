"""From publish to delivery, one message in flight: beside an echo of the same size, and beside a sync.

This module is also the echo: `python -m headwater.cli.bench.served.latency` prints its port, and stops when its input
ends.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import cast

from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import PAGE, RawFile, latencies_s, messages
from headwater.cli.bench.served.broker import Broker
from headwater.cli.bench.served.cores import APART, PLACES, placed
from headwater.cli.bench.served.raw import Raw, connect, publish_frame
from headwater.clock import SystemClock
from headwater.wire import batches
from headwater.wire.frame import LENGTH_BYTES, Kind
from headwater.wire.reader import FrameReader

TURNS = 50
ROOT = "latency"


def measure(broker: Broker, seconds: float) -> Iterator[Figure]:
    """p50 and p99, taken in turns with the echo and the sync: with a core for each end, and with both on one.

    Left alone, the system puts a small echo on the core of its client and a broker, which has threads, on another: the
    two would be compared by how long it takes to wake a core.
    """
    command = [sys.executable, "-m", "headwater.cli.bench.served.latency"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:  # noqa: S603  (our own module)
        assert peer.stdout is not None
        assert peer.stdin is not None
        echo = connect(("127.0.0.1", int(peer.stdout.readline())))
        raw = RawFile(f"{broker.folder}/raw")
        publisher = Raw(broker.address)
        publisher.publish(publish_frame(messages(1, ROOT)[:1], SystemClock().now_us()))
        for place in PLACES:
            with placed(place, broker.pid, peer.pid):
                yield from _live(broker, publisher, echo, seconds / 4, place)
                yield from _durable(broker, publisher, echo, raw, seconds / 4, place)
        raw.close()
        echo.close()
        publisher.close()
        peer.stdin.close()


def _live(broker: Broker, publisher: Raw, echo: socket.socket, seconds: float, place: str) -> Iterator[Figure]:
    frame = publish_frame(messages(1, ROOT)[:1], SystemClock().now_us(), flags=batches.QUIET)
    taken: dict[str, list[float]] = {"live": [], "echo": []}
    with Raw(broker.address) as client:
        live = _Live(client)
        _turns(taken, seconds, live=lambda: live.one(publisher, frame), echo=lambda: _echo(echo, frame))
    yield from _figures("live, nobody waits", place, taken["live"], taken["echo"], "echo")


def _durable(
    broker: Broker, publisher: Raw, echo: socket.socket, raw: RawFile, seconds: float, place: str
) -> Iterator[Figure]:
    frame = publish_frame(messages(1, ROOT)[:1], SystemClock().now_us())
    taken: dict[str, list[float]] = {"durable": [], "echo": [], "sync": []}
    with Raw(broker.address) as client:
        durable = _Durable(client)
        _turns(
            taken,
            seconds,
            durable=lambda: durable.one(publisher, frame),
            echo=lambda: _echo(echo, frame),
            sync=lambda: _timed(lambda: raw.append([PAGE])),
        )
    limit = [one + other for one, other in zip(sorted(taken["echo"]), sorted(taken["sync"]), strict=True)]
    yield from _figures("durable", place, taken["durable"], limit, "echo + fdatasync")


def _turns(taken: dict[str, list[float]], seconds: float, **calls: object) -> None:
    for call in calls.values():
        latencies_s(call, TURNS)  # type: ignore[arg-type]  # each is a call that answers seconds
    start = time.perf_counter()
    while not all(taken.values()) or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            taken[name] += [call() for _ in range(TURNS)]  # type: ignore[operator]


def _figures(name: str, place: str, taken: list[float], limit: list[float], raw_name: str) -> Iterator[Figure]:
    for at, share in (("p50", 0.5), ("p99", 0.99)):
        value, raw = at_share(taken, share), at_share(limit, share)
        goal = ("ratio ≤", 1.5) if at == "p50" and place == APART else None
        yield Figure(f"publish → delivered, {name}, {at}", place, value * 1e6, "µs", raw * 1e6, raw_name, goal)  # type: ignore[arg-type]


def at_share(taken: list[float], share: float) -> float:
    """The value below which that share of them lies."""
    return sorted(taken)[min(len(taken) - 1, int(len(taken) * share))]


def _timed(call: object) -> float:
    return latencies_s(call, 1)[0]  # type: ignore[arg-type]


def _echo(connection: socket.socket, frame: bytes) -> float:
    start, left = time.perf_counter(), len(frame)
    connection.sendall(frame)
    while left:
        left -= len(connection.recv(65536))
    return time.perf_counter() - start


def _delivered(client: Raw) -> bytes:
    """A DELIVER frame, as it was received: to take it apart is not what is measured."""
    received = client.socket.recv(65536)
    while len(received) < LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "little"):
        received += client.socket.recv(65536)
    assert received[LENGTH_BYTES] == Kind.DELIVER, "a DELIVER frame, and nothing else"
    return received


class _Live:
    """A live subscriber, in the process of its publisher."""

    def __init__(self, client: Raw) -> None:
        self.client = client
        client.subscribe(1, f"{ROOT}/#", "live")

    def one(self, publisher: Raw, frame: bytes) -> float:
        start = time.perf_counter()
        publisher.socket.sendall(frame)
        _delivered(self.client)
        return time.perf_counter() - start


class _Durable:
    """A durable one; each message is acked, and the ack answered, before the next is published."""

    def __init__(self, client: Raw) -> None:
        self.client = client
        client.subscribe(1, f"{ROOT}/#", "session")

    def one(self, publisher: Raw, frame: bytes) -> float:
        client = self.client
        start = time.perf_counter()
        publisher.socket.sendall(frame)
        received = _delivered(client)
        taken = time.perf_counter() - start
        deliver = batches.read_deliver(FrameReader(len(received)).feed(received)[0])
        ranges = [(deliver.lease, deliver.first_offset, deliver.first_offset + deliver.count - 1)]
        client.socket.sendall(batches.pack_ranges(Kind.ACK, client.next_id(), 1, ranges))
        client.socket.sendall(batches.pack_credit(1, deliver.count, len(deliver.body)))
        while client.read().kind != Kind.REPLY:
            pass
        while publisher.read().kind != Kind.PUBLISHED:
            pass
        return taken


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    from headwater.serving.process import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve())
