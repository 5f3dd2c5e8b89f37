"""Publishing: in batches, one by one, by many threads at once, and to many roots at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from statistics import median

import headwater
from headwater.bus import Bus
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import (
    BATCH,
    MANY_TOPICS,
    MESSAGE_BYTES,
    PAGE,
    RawFile,
    batch_bytes,
    calls_per_s,
    in_turns,
    latencies_s,
    messages,
    variant,
)
from headwater.cli.temporary import temporary_folder

THREADS = 16
ROOTS = 100


def measure(place: str, seconds: float) -> Iterator[Figure]:
    """All figures of publishing."""
    for figure in (_many, _one, _threads, _roots):
        for topics in (1, MANY_TOPICS):
            yield figure(place, topics, seconds)


def _many(place: str, topics: int, seconds: float) -> Figure:
    """`publish_many`, 1,000 a call, against writev and fdatasync of as many bytes."""
    batch = messages(topics)
    buffers = [os.urandom(64), os.urandom(batch_bytes(batch) - 64)]
    with temporary_folder(place, "headwater-bench") as folder, headwater.open(f"{folder}/bus") as bus:
        raw = RawFile(f"{folder}/raw")
        published, written = in_turns(
            [
                lambda limit: calls_per_s(lambda: bus.publish_many(batch), limit),
                lambda limit: calls_per_s(lambda: raw.append(buffers), limit),
            ],
            seconds,
        )
        raw.close()
    return Figure(
        "publish_many, 1,000 a call",
        variant(topics),
        published * BATCH,
        "messages/s",
        written * BATCH,
        "writev + fdatasync",
        ("ratio ≥", 0.5),
    )


def _one(place: str, topics: int, seconds: float) -> Figure:
    """A single `publish`, against an append of 4 KiB and fdatasync."""
    payload = os.urandom(MESSAGE_BYTES)
    names = cycle([topic for topic, _ in messages(topics)])
    with temporary_folder(place, "headwater-bench") as folder, headwater.open(f"{folder}/bus") as bus:
        raw = RawFile(f"{folder}/raw")
        published: list[float] = []
        written: list[float] = []
        latencies_s(lambda: bus.publish(next(names), payload), topics)
        start = time.perf_counter()
        while not published or time.perf_counter() - start < seconds:
            published += latencies_s(lambda: bus.publish(next(names), payload), 50)
            written += latencies_s(lambda: raw.append([PAGE]), 50)
        raw.close()
    return Figure(
        "publish, one thread, p50",
        variant(topics),
        median(published) * 1e6,
        "µs",
        median(written) * 1e6,
        "4 KiB + fdatasync",
        ("ratio ≤", 1.6),
    )


def _threads(place: str, topics: int, seconds: float) -> Figure:
    """Single publishes by 16 threads, against one."""
    names = [topic for topic, _ in messages(topics)]
    with temporary_folder(place, "headwater-bench") as folder, headwater.open(f"{folder}/bus") as bus:
        many, one = in_turns(
            [
                lambda limit: _publishes_per_s(bus, names, THREADS, limit),
                lambda limit: _publishes_per_s(bus, names, 1, limit),
            ],
            seconds,
        )
    return Figure(
        f"publish, {THREADS} threads", variant(topics), many, "messages/s", one, "one thread", ("ratio ≥", 4.0)
    )


def _publishes_per_s(bus: Bus, names: list[str], threads: int, seconds: float) -> float:
    payload = os.urandom(MESSAGE_BYTES)
    ready = threading.Barrier(threads + 1)
    counts = [0] * threads
    stop = threading.Event()

    def publish(number: int) -> None:
        ready.wait()
        done = 0
        for name in cycle(names[number::threads] or names):
            bus.publish(name, payload)
            done += 1
            if stop.is_set():
                break
        counts[number] = done

    workers = [threading.Thread(target=publish, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    start = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - start)


def _roots(place: str, topics: int, seconds: float) -> Figure:
    """`publish_many`, 1,000 a call, spread over 100 roots, against one root."""
    below = max(1, topics // ROOTS)
    spread = [
        (f"root{number % ROOTS}/device{number // ROOTS % below}/temp", os.urandom(MESSAGE_BYTES))
        for number in range(BATCH)
    ]
    together = messages(topics, "together")
    with temporary_folder(place, "headwater-bench") as folder, headwater.open(f"{folder}/bus") as bus:
        bus.publish_many(spread)
        many, one = in_turns(
            [
                lambda limit: calls_per_s(lambda: bus.publish_many(spread), limit),
                lambda limit: calls_per_s(lambda: bus.publish_many(together), limit),
            ],
            seconds,
        )
    return Figure(
        f"publish_many over {ROOTS} roots",
        f"{ROOTS * below:,} topics",
        many * BATCH,
        "messages/s",
        one * BATCH,
        "one root",
        ("ratio ≥", 0.3),
    )
