"""Rows of `headwater bench fair` about readers far behind: one who reads all of a long log, one who finds nothing in
it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import headwater
from headwater.cli.bench.fair.neighbours import Neighbour
from headwater.cli.bench.fair.table import SECONDS, at_p99, row, taken, warm_up
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import fill
from headwater.cli.bench.served.broker import SECRET, USER, running
from headwater.cli.bench.served.raw import Raw

FAR, QUICK_FAR = 5_000_000, 200_000
"""Messages that the reader is behind."""
PING_MS_MAX = 20


@row("behind")
def behind(place: str, seconds: float) -> Iterator[Figure]:
    """Another's PING while somebody reads a long log from its beginning, again and again."""
    yield from _beside(place, seconds, "reader_of_all", "a reader {:,} behind")


@row("nothing")
def nothing(place: str, seconds: float) -> Iterator[Figure]:
    """The same while somebody reads it whose filter matches nothing of it."""
    yield from _beside(place, seconds, "reader_of_nothing", "{:,} that do not match")


def _beside(place: str, seconds: float, neighbour: str, variant: str) -> Iterator[Figure]:
    count = FAR if seconds >= SECONDS else QUICK_FAR
    with (
        running(place, "scram", prepare=partial(_fill, count=count)) as broker,
        Raw(broker.address, (USER, SECRET)) as victim,
    ):
        warm_up(broker.address)
        alone = taken(victim.ping, seconds)
        with Neighbour(neighbour, broker):
            beside = taken(victim.ping, seconds)
    yield at_p99("a PING", variant.format(count), alone, beside, ("value ≤", PING_MS_MAX * 1000))


def _fill(folder: str, count: int) -> None:
    with headwater.open(folder) as bus:
        fill(bus, 1, count, "fair")
