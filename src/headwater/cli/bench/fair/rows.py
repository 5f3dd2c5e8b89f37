"""The rows of `headwater bench fair` about crowds that connect, and all of them (`measure`)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headwater.cli.bench.fair import behind, many, traffic  # noqa: F401  # their rows are on the list
from headwater.cli.bench.fair.certificate import certificate
from headwater.cli.bench.fair.neighbours import CLIENTS, STRANGERS, Neighbour, pause
from headwater.cli.bench.fair.table import MIB, QUICK_SECONDS, ROWS, SECONDS, at_p99, row, taken, warm_up
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import messages
from headwater.cli.bench.served.broker import SECRET, USER, Settings, running
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.cli.temporary import temporary_folder
from headwater.clock import SystemClock
from headwater.wire import requests

STRANGERS_MIB_MAX = 64
GONE_MIB_MAX = 16
TLS_SECONDS_MIN = 1.0
GONE_S = 7.0
"""How long after they have gone it is looked what is held: memory is given back now and then."""
REQUEST_MS_MAX = 50
RECONNECT_RATIO_MAX = 10


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


@row("tls-strangers")
def tls_strangers(place: str, seconds: float) -> Iterator[Figure]:
    """The same over TLS, and what is held when they have gone."""
    with (
        temporary_folder(place, "headwater-bench-tls") as folder,
        running(place, "scram", Settings(serving=certificate(folder))) as broker,
    ):
        alone = most = broker.resident_bytes
        with Neighbour("tls_strangers", broker):
            until_s = time.perf_counter() + max(seconds, TLS_SECONDS_MIN)
            while time.perf_counter() < until_s:
                most = max(most, broker.resident_bytes)
                pause(0.02)
        pause(GONE_S)
        gone = broker.resident_bytes
    goal = alone / MIB + STRANGERS_MIB_MAX
    variant = f"{STRANGERS:,} strangers with TLS"
    yield Figure("memory", variant, most / MIB, "MiB", alone / MIB, "alone", ("value ≤", goal))
    goal = alone / MIB + GONE_MIB_MAX
    yield Figure("memory", f"{variant}, gone", gone / MIB, "MiB", alone / MIB, "alone", ("value ≤", goal))


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
