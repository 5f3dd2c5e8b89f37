"""The table of rows of `headwater bench fair`, and what they share.

A row is a function that measures a broker alone, lets a neighbour loose on it, and measures again. `@row` puts it on
the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from headwater import threads
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


def taken_beside(work: Callable[[], object], call: Callable[[], object]) -> list[float]:
    """The same, while another thread of this process is at something."""
    thread = threads.Thread(target=work)
    thread.start()
    found: list[float] = []
    while thread.is_alive() or not found:
        found += taken(call, 0)
    return found


def at_worst(what: str, beside_what: str, alone: list[float], beside: list[float], goal: Goal | None) -> Figure:
    """The longest, beside a neighbour, and alone."""
    return _at("worst", 1.0, what, beside_what, alone, beside, goal)


def at_p99(what: str, beside_what: str, alone: list[float], beside: list[float], goal: Goal | None) -> Figure:
    """The 99th of a hundred, beside a neighbour, and alone."""
    return _at("p99", 0.99, what, beside_what, alone, beside, goal)


def at_p50(what: str, beside_what: str, alone: list[float], beside: list[float], goal: Goal | None) -> Figure:
    """The one in the middle, beside a neighbour, and alone."""
    return _at("p50", 0.5, what, beside_what, alone, beside, goal)


def _at(
    name: str, share: float, what: str, beside_what: str, alone: list[float], beside: list[float], goal: Goal | None
) -> Figure:
    value, raw = at_share(beside, share) * 1e6, at_share(alone, share) * 1e6
    return Figure(f"{what}, {name}", beside_what, value, "µs", raw, "alone", goal)
