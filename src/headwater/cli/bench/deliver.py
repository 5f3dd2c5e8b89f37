"""Durable delivery: messages taken a hundred at a time, each hundred acked on disk before the next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import headwater
from headwater import Message
from headwater.bus import Bus
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import MANY_TOPICS, PAGE, ROUNDS, RawFile, fill, latencies_s, variant
from headwater.cli.temporary import temporary_folder

TAKEN = 100
WINDOW = 1000


def measure(place: str, count: int) -> Iterator[Figure]:
    """All figures of delivery."""
    for topics in (1, MANY_TOPICS):
        with temporary_folder(place, "headwater-bench") as folder, headwater.open(f"{folder}/bus") as bus:
            count = fill(bus, topics, count)
            raw = RawFile(f"{folder}/raw")
            rates, handled, syncs = [], [], []
            for number in range(ROUNDS):
                rates.append(_drain(bus, f"bench{number}", count))
                handled.append(_handle(bus, f"handled{number}", count))
                syncs += latencies_s(lambda: raw.append([PAGE]), 100)  # noqa: B023  (called at once)
            raw.close()
        yield Figure(
            "durable delivery, batch(100), sub.ack",
            variant(topics),
            median(rates),
            "messages/s",
            TAKEN / median(syncs),
            "a sync per 100",
            ("value ≥", 250_000),
        )
        yield Figure(
            "the same by a handler that does nothing, bus.run",
            variant(topics),
            median(handled),
            "messages/s",
            median(rates),
            "batch(100), sub.ack",
            ("ratio ≥", 0.7),
        )


def _drain(bus: Bus, id: str, count: int) -> float:
    """Messages per second from the first to the last that is stored."""
    with bus.subscribe("bench/#", id=id, start="earliest", max_in_flight=WINDOW) as sub:
        left = count
        start = time.perf_counter()
        while left:
            taken = sub.batch(TAKEN, 10)
            sub.ack(taken)
            left -= len(taken)
        return count / (time.perf_counter() - start)


def _handle(bus: Bus, id: str, count: int) -> float:
    """Messages per second from the first to the last whose handler has returned and is acked."""
    left = count

    def nothing(_: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            bus.stop()

    bus.consume("bench/#", nothing, id=id, start="earliest", max_in_flight=WINDOW)
    start = time.perf_counter()
    bus.run(workers=1)
    return count / (time.perf_counter() - start)
