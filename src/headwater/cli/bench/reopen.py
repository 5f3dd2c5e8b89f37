"""Opening after kill -9: a process that publishes is killed, and another one opens what it left behind.

This module is also that process: `python -m headwater.cli.bench.reopen FOLDER COUNT` opens the folder, prints how long
that took, publishes until COUNT messages are stored, prints `ready`, and goes on publishing until it is killed. With
a third word, `retained`, each message is retained by a topic of its own, and what follows comes to any of these.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from statistics import median

import headwater
from headwater.cli.bench import goals
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import BATCH, messages
from headwater.cli.temporary import temporary_folder
from headwater.config import Config

KILLS = 3
SHARE = 10
GROWTH_MAX = 2.0
PUBLISHED_AFTER = 60_000
"""Messages that are published before the kill, whatever was stored: a good part of what recovery may have to read."""

Batches = Iterator[Sequence[tuple[str, bytes] | headwater.Outgoing]]


def measure(place: str, stored: int) -> Iterator[Figure]:
    """How long open takes, with a tenth of the messages and with all of them, and if a topic each retains them."""
    few = _median_open_s(place, stored // SHARE)
    many = _median_open_s(place, stored)
    name = "open after kill -9"
    yield Figure(name, f"{stored // SHARE:,} stored", few, "s", goal=("value ≤", goals.START_S))
    yield Figure(name, f"{stored:,} stored", many, "s", goal=("value ≤", goals.START_S))
    yield Figure(
        "open, does it grow?",
        f"{stored:,} stored",
        many,
        "s",
        few,
        f"{stored // SHARE:,} stored",
        ("ratio ≤", GROWTH_MAX),
    )
    retained = _median_open_s(place, stored, "retained")
    yield Figure(name, f"{stored:,} retained topics", retained, "s", goal=("value ≤", 2.0))


def _median_open_s(place: str, stored: int, *words: str) -> float:
    with temporary_folder(place, "headwater-bench") as folder:
        _publish_until_killed(f"{folder}/bus", stored, *words)
        return median(_publish_until_killed(f"{folder}/bus", stored, *words) for _ in range(KILLS))


def _publish_until_killed(folder: str, stored: int, *words: str) -> float:
    """Seconds that open took; the process that opened is killed under load."""
    command = [sys.executable, "-m", "headwater.cli.bench.reopen", folder, str(stored), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603  (our own module)
        assert child.stdout is not None
        try:
            opened = child.stdout.readline()
            ready = child.stdout.readline()
        finally:
            child.kill()
    if ready.strip() != "ready":
        raise headwater.Failed(f"the process that was to publish into {folder} ended by itself")
    return float(opened)


def _publish(folder: str, stored: int, first: Batches, then: Batches) -> None:
    config = Config(topics_per_root_max=stored + BATCH, retained_per_root_max=stored + BATCH)
    start = time.perf_counter()
    bus = headwater.open(folder, config=config)
    print(time.perf_counter() - start, flush=True)
    last = 0
    while last < stored:
        last = bus.publish_many(next(first))[-1].offset
    for _ in range(PUBLISHED_AFTER // BATCH):
        bus.publish_many(next(then))
    print("ready", flush=True)
    while True:
        bus.publish_many(next(then))


def _each(topics: int) -> Batches:
    """Retained messages of so many topics, one after another."""
    for first in range(0, topics, BATCH):
        yield [_retained(place) for place in range(first, first + BATCH)]


def _any(topics: int) -> Batches:
    """Retained messages of these topics, whichever it happens to be."""
    drawn = random.Random(topics)
    while True:
        yield [_retained(place) for place in drawn.sample(range(topics), BATCH)]


def _retained(place: int) -> headwater.Outgoing:
    return headwater.Outgoing(f"bench/device{place}/temp", b"21.5", retain=True)


if __name__ == "__main__":
    count = int(sys.argv[2])
    if sys.argv[3:]:
        _publish(sys.argv[1], count, _each(count), _any(count))
    else:
        _publish(sys.argv[1], count, *([repeat(messages(1))] * 2))
