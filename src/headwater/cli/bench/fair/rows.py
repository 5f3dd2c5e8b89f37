"""The rows of `headwater bench fair`: each is a function that measures a broker alone, lets a neighbour loose on it,
and measures again. `@row` puts it on the list."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from headwater.cli.bench.fair.neighbours import CLIENTS, STRANGERS, Neighbour, pause
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import messages
from headwater.cli.bench.served.broker import SECRET, USER, running
from headwater.cli.bench.served.latency import at_share
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.clock import SystemClock
from headwater.wire import requests

SECONDS, QUICK_SECONDS = 10.0, 2.0
"""How long something is measured, alone and beside."""
STRANGERS_MIB_MAX = 64
REQUEST_MS_MAX = 50
RECONNECT_RATIO_MAX = 10
BULK_RATIO_MAX = 5
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


def measure(place: str, is_quick: bool, only: tuple[str, ...] = ()) -> Iterator[Figure]:
    """Every row, or those that were asked for."""
    for name in only or tuple(ROWS):
        yield from ROWS[name](place, QUICK_SECONDS if is_quick else SECONDS)


@row("strangers")
def strangers(place: str, seconds: float) -> Iterator[Figure]:
    """Memory that connections take which nobody knows, each of which sends all that is taken from it."""
    with running(place, "scram") as broker:
        warm_up(broker.address)
        alone = broker.resident_bytes
        with Neighbour("strangers", broker):
            most, until_s = alone, time.perf_counter() + seconds
            while time.perf_counter() < until_s:
                most = max(most, broker.resident_bytes)
                pause(0.02)
    yield Figure(
        "memory",
        f"{STRANGERS:,} strangers",
        most / MIB,
        "MiB",
        alone / MIB,
        "alone",
        ("value ≤", alone / MIB + STRANGERS_MIB_MAX),
    )


@row("guesses")
def guesses(place: str, seconds: float) -> Iterator[Figure]:
    """Another client's request, while passwords are guessed: 1,000 CONNECT a second, each hung up at once."""
    with running(place, "scram") as broker, Raw(broker.address, (USER, SECRET)) as victim:
        warm_up(broker.address)

        def ask() -> None:
            victim.ask(requests.Topics())

        alone = taken(ask, seconds)
        with Neighbour("guesses", broker):
            beside = taken(ask, seconds)
    yield at_p99("a request", "1,000 wrong passwords/s", alone, beside, ("value ≤", REQUEST_MS_MAX * 1000))


@row("reconnect")
def reconnect(place: str, seconds: float) -> Iterator[Figure]:
    """The publishes of those who stay, while all others reconnect at once, with SCRAM, again and again."""
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    with running(place, "scram") as broker, Raw(broker.address, (USER, SECRET)) as victim:
        warm_up(broker.address)
        alone = taken(lambda: victim.publish(frame), seconds)
        with Neighbour("reconnect", broker):
            beside = taken(lambda: victim.publish(frame), seconds)
    yield at_p99("a publish", f"{CLIENTS:,} reconnect", alone, beside, ("ratio ≤", RECONNECT_RATIO_MAX))


@row("bulk")
def bulk(place: str, seconds: float) -> Iterator[Figure]:
    """The publishes of one client, while another publishes batches of 8 MB to another root."""
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    with running(place, "scram") as broker, Raw(broker.address, (USER, SECRET)) as victim:
        warm_up(broker.address)
        alone = taken(lambda: victim.publish(frame), seconds)
        with Neighbour("bulk", broker):
            beside = taken(lambda: victim.publish(frame), seconds)
    yield at_p99("bus.publish", "publish_many of 8 MB elsewhere", alone, beside, ("ratio ≤", BULK_RATIO_MAX))


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


def at_p99(what: str, beside_what: str, alone: list[float], beside: list[float], goal: object) -> Figure:
    """The 99th of a hundred, beside a neighbour, and alone."""
    return Figure(
        f"{what}, p99",
        beside_what,
        at_share(beside, 0.99) * 1e6,
        "µs",
        at_share(alone, 0.99) * 1e6,
        "alone",
        goal,  # type: ignore[arg-type]  # one of the goals
    )
