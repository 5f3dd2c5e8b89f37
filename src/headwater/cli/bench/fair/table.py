"""The table of rows of `headwater bench fair`, and what they share.

A row is a function that measures a broker alone, lets a neighbour loose on it, and measures again. `@row` puts it on
the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from headwater.cli.bench.fair.neighbours import pause
from headwater.cli.bench.figure import Figure, Goal
from headwater.cli.bench.load import messages
from headwater.cli.bench.served.broker import SECRET, USER
from headwater.cli.bench.served.latency import at_share
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.clock import SystemClock
from headwater.wire import requests

SECONDS, QUICK_SECONDS = 10.0, 2.0
"""How long something is measured, alone and beside."""
MIB = 1024 * 1024

Row = Callable[[str, float], Iterator[Figure]]
"""Gets where to make folders, and how long to measure."""

ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    """Put a function on the list."""

    def put(measure: Row) -> Row:
        ROWS[name] = measure
        return measure

    return put


# What rows share


def warm_up(address: tuple[str, int]) -> None:
    """Have the broker do what it does for everybody, once: code is loaded, and buffers are there."""
    with Raw(address, (USER, SECRET)) as client:
        client.publish(publish_frame(messages(1, "fair"), SystemClock().now_us()))
        client.ask(requests.Topics())


def taken(call: Callable[[], object], seconds: float) -> list[float]:
    """How long each call took, one after another, a little apart: it is not the victim who is noisy."""
    found: list[float] = []
    until_s = time.perf_counter() + seconds
    while (begun_s := time.perf_counter()) < until_s or not found:
        call()
        found.append(time.perf_counter() - begun_s)
        pause(0.001)
    return found


def at_worst(what: str, beside_what: str, alone: list[float], beside: list[float], goal: Goal) -> Figure:
    """The longest, beside a neighbour, and alone."""
    return Figure(f"{what}, worst", beside_what, max(beside) * 1e6, "µs", max(alone) * 1e6, "alone", goal)


def at_p99(what: str, beside_what: str, alone: list[float], beside: list[float], goal: Goal) -> Figure:
    """The 99th of a hundred, beside a neighbour, and alone."""
    return Figure(
        f"{what}, p99",
        beside_what,
        at_share(beside, 0.99) * 1e6,
        "µs",
        at_share(alone, 0.99) * 1e6,
        "alone",
        goal,
    )
