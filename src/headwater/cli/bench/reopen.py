"""Opening after kill -9: a process that publishes is killed, and another one opens what it left behind.

This module is also that process: `python -m headwater.cli.bench.reopen FOLDER COUNT` opens the folder, prints how long
that took, publishes until COUNT messages are stored, prints `ready`, and goes on publishing until it is killed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

import headwater
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import BATCH, messages
from headwater.cli.temporary import temporary_folder

KILLS = 3
SHARE = 10
GROWTH_MAX = 2.0


def measure(place: str, stored: int) -> Iterator[Figure]:
    """How long open takes, with a tenth of the messages and with all of them."""
    few = _median_open_s(place, stored // SHARE)
    many = _median_open_s(place, stored)
    name = "open after kill -9"
    yield Figure(name, f"{stored // SHARE:,} stored", few, "s", goal=("value ≤", 0.5))
    yield Figure(name, f"{stored:,} stored", many, "s", goal=("value ≤", 0.5))
    yield Figure(
        "open, does it grow?",
        f"{stored:,} stored",
        many,
        "s",
        few,
        f"{stored // SHARE:,} stored",
        ("ratio ≤", GROWTH_MAX),
    )


def _median_open_s(place: str, stored: int) -> float:
    with temporary_folder(place, "headwater-bench") as folder:
        _publish_until_killed(f"{folder}/bus", stored)
        return median(_publish_until_killed(f"{folder}/bus", stored) for _ in range(KILLS))


def _publish_until_killed(folder: str, stored: int) -> float:
    """Seconds that open took; the process that opened is killed under load."""
    command = [sys.executable, "-m", "headwater.cli.bench.reopen", folder, str(stored)]
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


def _publish(folder: str, stored: int) -> None:
    start = time.perf_counter()
    bus = headwater.open(folder)
    print(time.perf_counter() - start, flush=True)
    batch = messages(1)
    last = 0
    while last < stored:
        last = bus.publish_many(batch)[-1].offset
    # A good part of what recovery may have to read is written before the end, whatever was stored.
    for _ in range(60_000 // BATCH):
        bus.publish_many(batch)
    print("ready", flush=True)
    while True:
        bus.publish_many(batch)


if __name__ == "__main__":
    _publish(sys.argv[1], int(sys.argv[2]))
