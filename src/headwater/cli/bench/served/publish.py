"""Publishing over the wire, each publish on disk before its answer: in batches, one by one, over many connections."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

import headwater
from headwater import Receipt
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import BATCH, MANY_TOPICS, ROUNDS, messages, variant
from headwater.cli.bench.served.broker import Broker, Spent
from headwater.cli.bench.served.raw import Address, Login, Raw, Tally, publish_frame, url_of
from headwater.clock import SystemClock
from headwater.errors import Failed
from headwater.wire.batches import PUBLISHED
from headwater.wire.frame import Kind

WINDOW = 8
"""Frames of 1,000 that are under way at once."""
CALLS_MAX = 10_000
"""Calls of our own client that wait for their receipts at once."""


class Stream:
    """A connection that publishes the same frames over and over, a few of them under way."""

    def __init__(self, address: Address, login: Login | None, pieces: list[bytes]) -> None:
        self.client = Raw(address, login)
        self.tally = Tally(self.client.socket)
        self._pieces = pieces
        self._sent = 0
        self.done = 0
        """Publishes that are on disk."""

    def fill(self) -> None:
        """Send as much as may be under way."""
        while self._sent - self.done < len(self._pieces):
            self.client.socket.sendall(self._pieces[self._sent % len(self._pieces)])
            self._sent += 1

    def receive(self) -> None:
        """Wait for answers."""
        for kind, _, length, _ in self.tally.receive():
            if kind == Kind.PUBLISHED:
                self.done += length // PUBLISHED.size
            elif kind == Kind.ERROR:
                raise Failed("the broker refused a publish")

    def finish(self) -> None:
        """Wait for everything that is under way."""
        while self.done < self._sent:
            self.receive()


def measure(
    address: Address, login: Login | None, seconds: float, root: str, broker: Broker | None = None
) -> Iterator[Figure]:
    """All figures of publishing."""
    for topics in (1, MANY_TOPICS):
        spent = Spent(broker)
        rate = _rate(address, login, batches_of(topics, root), seconds, spent)
        name = "publish, 1,000 a frame, pipelined"
        yield Figure(name, variant(topics), rate, "messages/s", *spent.beside(), goal=("value ≥", 400_000))
    for verb in ("publish_soon", "send"):
        for topics in (1, MANY_TOPICS):
            spent = Spent(broker)
            rate = _rate_of_calls(address, login, verb, topics, root, seconds, spent)
            yield Figure(f"bus.{verb}, one client", variant(topics), rate, "messages/s", *spent.beside())


def batches_of(topics: int, root: str, window: int = WINDOW) -> list[bytes]:
    """Frames of 1,000."""
    batch, now_us = messages(topics, root), SystemClock().now_us()
    return [publish_frame(batch, now_us, number) for number in range(1, window + 1)]


def _rate_of_calls(
    address: Address, login: Login | None, verb: str, topics: int, root: str, seconds: float, spent: Spent
) -> float:
    """The median of messages per second that our own client has stored, a call for each."""
    batch, rates = messages(topics, root), []
    under_way: deque[Future[Receipt]] = deque()
    with headwater.connect(url_of(address, login)) as bus:
        bus.publish_many(batch)
        for _ in range(ROUNDS + 1):
            start, done = time.perf_counter(), 0
            while time.perf_counter() - start < seconds / ROUNDS:
                for topic, payload in batch:
                    if verb == "send":
                        bus.send(topic, payload)
                        continue
                    under_way.append(bus.publish_soon(topic, payload))
                    if len(under_way) > CALLS_MAX:
                        under_way.popleft().result()
                done += len(batch)
            while under_way:
                under_way.popleft().result()
            bus.publish(*batch[0])  # what was sent before it is stored before it
            rates.append(done / (time.perf_counter() - start))
            spent.add(done)
    return sorted(rates[1:])[ROUNDS // 2]


def _rate(address: Address, login: Login | None, pieces: list[bytes], seconds: float, spent: Spent) -> float:
    """The median of messages per second that a client gets answered, 1,000 in each publish."""
    stream, rates = Stream(address, login, pieces), []
    stream.fill()
    for _ in range(ROUNDS + 1):
        start, before = time.perf_counter(), stream.done
        while (elapsed := time.perf_counter() - start) < seconds / ROUNDS:
            stream.receive()
            stream.fill()
        done = BATCH * (stream.done - before)
        rates.append(done / elapsed)
        spent.add(done)
    stream.finish()
    stream.client.close()
    return sorted(rates[1:])[ROUNDS // 2]


def fill(address: Address, login: Login | None, topics: int, count: int, root: str) -> int:
    """Have so many messages stored, rounded up to whole batches; answers how many."""
    stream = Stream(address, login, batches_of(topics, root))
    rounded = -(-count // BATCH)
    for number in range(rounded):
        stream.client.socket.sendall(stream._pieces[number % WINDOW])
        stream._sent += 1
        while stream._sent - stream.done >= WINDOW:
            stream.receive()
    stream.finish()
    stream.client.close()
    return rounded * BATCH
