"""Fan-out: what one client publishes, received by 1, 10 and 100 live subscribers that count bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headwater.cli.bench import goals
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import BATCH, MANY_TOPICS, ROUNDS, messages, variant
from headwater.cli.bench.served.broker import Broker, Spent
from headwater.cli.bench.served.counter import SUBSCRIPTION, counting
from headwater.cli.bench.served.publish import Stream, batches_of
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.clock import SystemClock
from headwater.wire.batches import QUIET, pack_deliver
from headwater.wire.frame import HEADER, Kind, pack

GOALS = dict(zip(goals.SUBSCRIBERS, (1_000_000, 3_000_000, 5_000_000), strict=True))
WINDOW = 4
"""Batches under way: enough to keep the broker busy, and few enough for its cores' caches to hold them."""


def measure(broker: Broker, seconds: float) -> Iterator[Figure]:
    """Deliveries per second over all subscribers; with each publish on disk before it goes out, and with QUIET."""
    for is_quiet in (False, True):
        for subscribers, goal in GOALS.items():
            for topics in (1, MANY_TOPICS):
                spent = Spent(broker)
                rate = _rate(broker, subscribers, topics, is_quiet, seconds, spent)
                yield Figure(
                    f"fan-out to {subscribers}, {'nobody waits' if is_quiet else 'synced'}",
                    variant(topics),
                    rate,
                    "deliveries/s",
                    *spent.beside(),
                    goal=("value ≥", goal),
                )


def _rate(broker: Broker, subscribers: int, topics: int, is_quiet: bool, seconds: float, spent: Spent) -> float:
    address, root = broker.address, f"fan-{topics}"
    clients = [Raw(address) for _ in range(subscribers)]
    for client in clients:
        client.subscribe(SUBSCRIPTION, f"{root}/#", "live")
    rates = []
    with counting(broker.folder, [client.socket for client in clients]) as counter:
        publisher = _Quiet(address, topics, root) if is_quiet else _Synced(address, topics, root)
        publisher.run(seconds / ROUNDS)
        for _ in range(ROUNDS):
            start, before = time.perf_counter(), counter.bytes()
            publisher.run(seconds / ROUNDS)
            received = (counter.bytes() - before) / publisher.delivered_bytes * BATCH
            rates.append(received / (time.perf_counter() - start))
            spent.add(received)
        publisher.close()
    for client in clients:
        client.close()
    return sorted(rates)[ROUNDS // 2]


def _delivered_bytes(frame: bytes, root: str) -> int:
    """How long the DELIVER frame of a batch is."""
    name = root.encode()
    published = HEADER.size + len(name) + 24 + (-(24 + len(name)) & 7)
    return len(frame) - published + len(pack_deliver(1, 0, name, 1, BATCH, 0, 0))


class _Synced:
    """Publishes as fast as it is answered."""

    def __init__(self, address: tuple[str, int], topics: int, root: str) -> None:
        frames = batches_of(topics, root, WINDOW)
        self.delivered_bytes = _delivered_bytes(frames[0], root)
        self._stream = Stream(address, None, frames)

    def run(self, seconds: float) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            self._stream.fill()
            self._stream.receive()

    def close(self) -> None:
        self._stream.finish()
        self._stream.client.close()


class _Quiet:
    """Publishes as fast as the broker reads: it is asked now and then how far it is.

    Without that a publisher for whom nobody waits outruns its subscribers, and what is measured is what they drop.
    """

    def __init__(self, address: tuple[str, int], topics: int, root: str) -> None:
        frame = publish_frame(messages(topics, root), SystemClock().now_us(), 1, QUIET)
        self.delivered_bytes = _delivered_bytes(frame, root)
        self._piece = frame + pack(Kind.PING)
        self._client = Raw(address)
        self._under_way = 0

    def run(self, seconds: float) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            while self._under_way < WINDOW:
                self._client.socket.sendall(self._piece)
                self._under_way += 1
            if self._client.read().kind == Kind.PONG:
                self._under_way -= 1

    def close(self) -> None:
        self._client.close()
