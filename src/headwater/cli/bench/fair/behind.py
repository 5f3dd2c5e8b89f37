"""Rows of `headwater bench fair` about readers far behind: one who reads all of a long log, one who finds nothing in
it. The disk is cold: the page cache is told over and over to let go of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import headwater
from headwater import threads
from headwater.cli.bench.fair.neighbours import Neighbour, pause
from headwater.cli.bench.fair.table import SECONDS, at_p99, row, taken, warm_up
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import fill
from headwater.cli.bench.served.broker import SECRET, USER, running
from headwater.cli.bench.served.raw import Raw
from headwater.store.files import DiskFiles

FAR, QUICK_FAR = 5_000_000, 200_000
"""Messages that the reader is behind."""
PING_MS_MAX = 20
COLD_S = 0.5
"""How often the page cache lets go of the log."""


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
        with cold(broker.folder), Neighbour(neighbour, broker):
            beside = taken(victim.ping, seconds)
    yield at_p99("a PING", variant.format(count), alone, beside, ("value ≤", PING_MS_MAX * 1000))


@contextmanager
def cold(folder: str) -> Iterator[None]:
    """Keep what is read of a folder's streams from being in memory the next time."""
    is_over = threads.Event()

    def let_go() -> None:
        while not is_over.is_set():
            for path in Path(folder).glob("streams/**/*.log"):
                file = DiskFiles().open(str(path), write=False)
                file.let_go(0, file.size())
                file.close()
            pause(COLD_S)

    thread = threads.Thread(target=let_go)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _fill(folder: str, count: int) -> None:
    with headwater.open(folder) as bus:
        fill(bus, 1, count, "fair")
