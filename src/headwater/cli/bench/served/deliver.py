"""Delivery over the wire: a durable subscription whose every hand-out is acked, and history."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median

from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import MANY_TOPICS, variant
from headwater.cli.bench.served.broker import Broker, Spent
from headwater.cli.bench.served.publish import fill
from headwater.cli.bench.served.raw import Address, Login, Raw, Tally, subscription
from headwater.errors import Failed
from headwater.wire import batches, requests
from headwater.wire.frame import Kind

WINDOWS = (10_000, 64)
"""A window for throughput, and the default."""
ROUNDS = 3
CREDIT_AFTER_BYTES = 16 * 1024 * 1024


def measure(
    address: Address, login: Login | None, count: int, root: str, broker: Broker | None = None
) -> Iterator[Figure]:
    """All figures of durable delivery."""
    for topics in (1, MANY_TOPICS):
        name = f"{root}-{topics}"
        stored = fill(address, login, topics, count, name)
        for window in WINDOWS:
            spent = Spent(broker)
            rate = median(_drain(address, login, name, stored, window) for _ in range(ROUNDS))
            spent.add(ROUNDS * stored)
            yield Figure(
                f"durable delivery, acked, {window:,} in flight",
                variant(topics),
                rate,
                "messages/s",
                *spent.beside(),
                goal=("value ≥", 200_000) if window == WINDOWS[0] else None,
            )


def measure_replay(address: Address, login: Login | None, count: int, root: str) -> Iterator[Figure]:
    """History, as it is stored."""
    for topics in (1, MANY_TOPICS):
        name = f"{root}-{topics}"
        stored = fill(address, login, topics, count, name)
        rates = []
        for _ in range(ROUNDS):
            with Raw(address, login) as client:
                start = time.perf_counter()
                client.socket.sendall(requests.pack_request(1, subscription(1, f"{name}/#", "replay")))
                Receiver(client, acks=False).take(stored)
                rates.append(stored / (time.perf_counter() - start))
        yield Figure("replay", variant(topics), median(rates), "messages/s")


def _drain(address: Address, login: Login | None, root: str, count: int, window: int) -> float:
    """Messages per second from the subscription to the last ack on disk."""
    with Raw(address, login) as client:
        name = f"bench-{os.urandom(4).hex()}"
        start = time.perf_counter()
        options = {"max_in_flight": window}
        subscribe = subscription(1, f"{root}/#", "named", id=name, start="earliest", options=options)
        client.socket.sendall(requests.pack_request(client.next_id(), subscribe))
        Receiver(client, acks=True).take(count)
        elapsed = time.perf_counter() - start
        client.ask(requests.Unsubscribe(id=name))
    return count / elapsed


class Receiver:
    """Takes everything of subscription 1, acks it in the ranges in which it came, and gives the credit back."""

    def __init__(self, client: Raw, acks: bool) -> None:
        self._client = client
        self._acks = acks
        self._waiting = 1  # for the answer to the subscription

    def take(self, count: int) -> None:
        """So many messages, and the answers to their acks."""
        client, tally = self._client, Tally(self._client.socket)
        taken = credited = credited_bytes = 0
        while taken < count or self._waiting:
            ranges: list[batches.Range] = []
            for kind, _, _, head in tally.receive():
                if kind == Kind.DELIVER:
                    lease, first, messages = batches.DELIVER.unpack(head)[:3]
                    ranges.append((lease, first, first + messages - 1))
                    taken += messages
                elif kind == Kind.REPLY:
                    self._waiting -= 1
                elif kind in (Kind.ERROR, Kind.GOODBYE):
                    raise Failed("the broker refused a subscription or an ack")
            said = b""
            if ranges and self._acks:
                said = batches.pack_ranges(Kind.ACK, client.next_id(), 1, ranges)
                self._waiting += 1
            if tally.bytes - credited_bytes > CREDIT_AFTER_BYTES:
                said += batches.pack_credit(1, taken - credited, tally.bytes - credited_bytes)
                credited, credited_bytes = taken, tally.bytes
            if said:
                client.socket.sendall(said)
