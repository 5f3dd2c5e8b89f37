"""Many clients: how fast they connect, whom that disturbs, and what each costs while it is idle.

This module is also a process that connects: `python -m headwater.cli.bench.served.crowd PORT COUNT [USER SECRET]`
connects as many clients, prints how long that took, and ends when its input does.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

from headwater.cli.bench import goals
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import latencies_s, messages
from headwater.cli.bench.served.broker import SECRET, USER, Broker, raise_files_max, running
from headwater.cli.bench.served.latency import at_share
from headwater.cli.bench.served.raw import Address, Greeting, Login, Raw, check, connect, publish_frame, subscription
from headwater.clock import SystemClock
from headwater.errors import Failed
from headwater.wire import requests
from headwater.wire.frame import Kind
from headwater.wire.reader import FrameReader

PROCESSES = 2
TOGETHER = 64
"""Clients of a process that are in their handshake at once."""
IDLE = 5000
KIB = 1024


class Crowd:
    """Clients that connect side by side, each through the whole handshake; with a filter, each subscribes to it."""

    def __init__(self, address: Address, login: Login | None, filter: str = "", kind: str = "") -> None:
        self._address = address
        self._login = login
        self._filter = filter
        self._kind = kind
        self.sockets: list[socket.socket] = []

    def connect(self, count: int) -> None:
        """So many more."""
        selector = selectors.DefaultSelector()
        begun = done = 0
        while done < count:
            while begun < count and begun - done < TOGETHER:
                self._begin(selector)
                begun += 1
            for key, _ in selector.select():
                if self._on_bytes(key.data, key.fileobj):  # type: ignore[arg-type]  # they are sockets
                    selector.unregister(key.fileobj)
                    done += 1

    def _begin(self, selector: selectors.BaseSelector) -> None:
        made, greeting = connect(self._address), Greeting(self._login)
        made.sendall(greeting.hello())
        self.sockets.append(made)
        selector.register(made, selectors.EVENT_READ, (greeting, FrameReader(1 << 20)))

    def _on_bytes(self, client: tuple[Greeting, FrameReader], connection: socket.socket) -> bool:
        greeting, reader = client
        received = connection.recv(65536)
        if not received:
            raise Failed("the broker has closed a connection")
        for frame in reader.feed(received):
            if frame.kind == Kind.REPLY and frame.id == 2:
                return True
            check(frame)
            answer = greeting.answer(frame)
            if answer is None:
                if not self._filter:
                    return True
                answer = requests.pack_request(2, subscription(1, self._filter, self._kind))
            connection.sendall(answer)
        return False

    def close(self) -> None:
        for made in self.sockets:
            made.close()


def measure_idle(place: str, count: int) -> Iterator[Figure]:
    """Memory of the broker for each connection with a session and a subscription."""
    for kind in ("live", "session"):
        with running(place) as broker:
            warm = Crowd(broker.address, None, "idle/warm", kind)
            warm.connect(TOGETHER)
            before = broker.resident_bytes
            crowd = Crowd(broker.address, None, "idle/topic", kind)
            crowd.connect(count)
            each = (broker.resident_bytes - before) / count
            crowd.close()
            warm.close()
        yield Figure(
            f"idle connection, {kind} subscription",
            f"{count:,} of them",
            each,
            "bytes",
            goal=("value ≤", goals.IDLE_KIB * KIB),
        )


def measure_connecting(place: str, count: int) -> Iterator[Figure]:
    """Clients that connect and register, in several processes; and another client's publishes meanwhile."""
    for auth, login in (("none", None), ("scram", (USER, SECRET))):
        with running(place, auth) as broker:
            beside = _Publisher(broker.address, login)
            rest = beside.publish_for(1.0)
            rates, costs, meanwhile = [], [], []
            for _ in range(3):
                rate, cost, taken = _connect(broker, login, count, beside)
                rates.append(rate)
                costs.append(cost)
                meanwhile += taken
            beside.close()
        name = f"clients connecting, SCRAM {'on' if login else 'off'}"
        with_ = f"{PROCESSES} processes"
        yield Figure(name, with_, median(rates), "clients/s", goal=("value ≥", 3000) if login is None else None)
        yield Figure(f"{name}: broker's CPU for each", with_, median(costs) * 1e6, "µs")
        yield Figure(
            f"{name}: another's publish, p99",
            with_,
            at_share(meanwhile, 0.99) * 1e6,
            "µs",
            at_share(rest, 0.99) * 1e6,
            "at rest",
        )


def _connect(broker: Broker, login: Login | None, count: int, beside: _Publisher) -> tuple[float, float, list[float]]:
    """Clients per second, the broker's seconds for each, and how long another's publishes took."""
    command = [sys.executable, "-m", "headwater.cli.bench.served.crowd", str(broker.port), str(count // PROCESSES)]
    crowds = [
        subprocess.Popen([*command, *(login or ())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  (our own module)
        for _ in range(PROCESSES)
    ]
    for crowd in crowds:
        assert crowd.stdout is not None
        crowd.stdout.readline()
    used, start = broker.cpu_s, time.perf_counter()
    for crowd in crowds:
        assert crowd.stdin is not None
        crowd.stdin.write("go\n")
        crowd.stdin.flush()
    stop = threading.Event()
    taken: list[float] = []

    def publish() -> None:
        while not stop.is_set():
            taken.extend(beside.publish_for(0))

    thread = threading.Thread(target=publish)
    thread.start()
    failed = False
    for crowd in crowds:
        assert crowd.stdout is not None
        failed |= not crowd.stdout.readline()
    elapsed = time.perf_counter() - start
    stop.set()
    thread.join()
    cost = (broker.cpu_s - used - len(taken) * beside.cpu_s_each(broker)) / count
    for crowd in crowds:
        assert crowd.stdin is not None
        crowd.stdin.close()
        crowd.wait()
    if failed:
        raise Failed("a process that was to connect clients ended by itself")
    return count / elapsed, max(0.0, cost), taken


class _Publisher:
    """Another client, which publishes one message after another."""

    def __init__(self, address: Address, login: Login | None) -> None:
        self._client = Raw(address, login)
        self._frame = publish_one()
        self._cost: float | None = None

    def publish_for(self, seconds: float) -> list[float]:
        """How long each took."""
        start, taken = time.perf_counter(), []
        while True:
            taken += latencies_s(lambda: self._client.publish(self._frame), 1)
            if time.perf_counter() - start >= seconds:
                return taken

    def cpu_s_each(self, broker: Broker) -> float:
        """What the broker spends on one of these publishes, measured once."""
        if self._cost is None:
            before = broker.cpu_s
            published = len(self.publish_for(1.0))
            self._cost = (broker.cpu_s - before) / published
        return self._cost

    def close(self) -> None:
        self._client.close()


def publish_one() -> bytes:
    """A PUBLISH frame of one message."""
    return publish_frame(messages(1, "beside")[:1], SystemClock().now_us())


def _main(port: str, count: str, *login: str) -> None:
    raise_files_max()
    crowd = Crowd(("127.0.0.1", int(port)), (login[0], login[1]) if login else None)
    print("ready", flush=True)
    sys.stdin.readline()
    crowd.connect(int(count))
    print("done", flush=True)
    sys.stdin.read()
    crowd.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
