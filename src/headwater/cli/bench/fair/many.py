"""Rows of `headwater bench fair` about durable subscriptions by the thousand, none of which anybody takes from:
retention looks after all of them, and somebody lists them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import headwater
from headwater.cli.bench.fair.neighbours import Neighbour
from headwater.cli.bench.fair.table import SECONDS, at_worst, row, taken, taken_beside, warm_up
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import fill, messages
from headwater.cli.bench.served.broker import SECRET, USER, Settings, running
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.clock import SystemClock
from headwater.config import Config
from headwater.delivery.options import Options
from headwater.delivery.rows import SubscriptionRow
from headwater.store import state as rows
from headwater.store.state import Rows
from headwater.wire import requests
from headwater.wire.request import PAGE_MAX

MANY, MOST = 10_000, 100_000
"""Durable subscriptions;"""
QUICK_SHARE = 10
"""a quick run has a tenth of them."""
STORED = 100_000
"""Messages that wait when they are listed."""
WAIT_MS_MAX = 50
LIST_S_MAX = 2.0
ROOT = "fair"
RETENTION: dict[str, object] = {"segment_bytes": 1 << 16, "retention": {"age_s": 0.5}, "retention_interval_s": 1.0}
"""Retention finds something to do whenever it looks."""


@row("retention")
def retention(place: str, seconds: float) -> Iterator[Figure]:
    """The longest that others wait while retention looks after many subscriptions, again and again."""
    frame = publish_frame(messages(1, ROOT)[:1], SystemClock().now_us())
    for most in (MANY, MOST):
        count = most if seconds >= SECONDS else most // QUICK_SHARE
        found: list[tuple[list[float], list[float]]] = []
        for there in (0, count):
            with (
                running(
                    place, "scram", Settings(config=RETENTION), partial(subscribe, count=there, stored=0)
                ) as broker,
                Raw(broker.address, (USER, SECRET)) as victim,
                Raw(broker.address, (USER, SECRET)) as asking,
            ):
                warm_up(broker.address)
                published = taken(partial(victim.publish, frame), seconds / 2)
                found.append((published, taken(asking.ping, seconds / 2)))
        for what, alone, beside in zip(("a publish", "a PING"), *found, strict=True):
            yield at_worst(what, f"retention, {count:,} subscriptions", alone, beside, ("value ≤", WAIT_MS_MAX * 1000))


@row("listing")
def listing(place: str, seconds: float) -> Iterator[Figure]:
    """How long all of many subscriptions take to be listed, page by page, while others publish; and how long others
    wait meanwhile."""
    is_quick = seconds < SECONDS
    count, stored = (MOST // QUICK_SHARE, STORED // QUICK_SHARE) if is_quick else (MOST, STORED)
    with (
        running(place, "scram", prepare=partial(subscribe, count=count, stored=stored)) as broker,
        Raw(broker.address, (USER, SECRET)) as asking,
        Raw(broker.address, (USER, SECRET)) as victim,
    ):
        warm_up(broker.address)
        alone = listed(asking, count)
        with Neighbour("publishers", broker):
            beside = listed(asking, count)
        quiet = taken(victim.ping, alone)
        others = taken_beside(lambda: listed(asking, count), victim.ping)
    variant = f"{count:,}, others publish"
    yield Figure("subscriptions, listed", variant, beside, "s", alone, "alone", ("value ≤", LIST_S_MAX))
    yield at_worst("a PING", f"{count:,} are listed", quiet, others, ("value ≤", WAIT_MS_MAX * 1000))


def listed(asking: Raw, count: int) -> float:
    """How long it takes to list all subscriptions in pages."""
    begun_s, found, after = time.perf_counter(), 0, None
    while page := asking.ask(requests.Subscriptions(after=after, limit=PAGE_MAX)):
        found += len(page)
        after = page[-1].id
    assert found == count
    return time.perf_counter() - begun_s


def subscribe(folder: str, count: int, stored: int) -> None:
    """Make a folder with so many subscriptions, in one write, as each by itself would take a sync; and with so many
    messages that none of them has acked."""
    with headwater.open(folder, Config(subscriptions_max=MOST)) as bus:
        fill(bus, 1, max(stored, 1), ROOT)
        root = bus.core.roots.get(ROOT)
        assert root is not None
        stream, now_us = root.stream.number, SystemClock().now_us()
        made: Rows = {rows.COUNTERS: count.to_bytes(4, "big")}
        for number in range(1, count + 1):
            options = Options(id=f"resting-{number:06}", filter=f"{ROOT}/{number}/#")
            resting = SubscriptionRow(number=number, options=options, created_us=now_us, used_us=now_us)
            made[rows.SUBSCRIPTION + options.id.encode()] = rows.pack(resting)
            made[rows.key_pair(rows.FLOOR, number, stream)] = bytes(8)
        bus.core.state.commit(made)
