"""The rows of `headwater bench fair` about those who publish or get a lot, at once or to very many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

import headwater
from headwater.cli.bench.fair.neighbours import DEVICES, LIVE, SILENCE_S, Devices, Neighbour
from headwater.cli.bench.fair.table import at_p50, at_p99, at_worst, row, taken, taken_beside, warm_up
from headwater.cli.bench.figure import Figure, Goal
from headwater.cli.bench.load import messages
from headwater.cli.bench.served.broker import SECRET, USER, Broker, raise_files_max, running
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.clock import SystemClock
from headwater.wire.frame import Kind, pack

if TYPE_CHECKING:
    from headwater.bus import Bus

LIVE_RATIO_MAX = 3
DEVICES_MS_MAX = 50
LINEAR_SHARE = 4
"""With so many times as many durable subscribers,"""
LINEAR_RATIO_MAX = 1.5
"""a publish to all of them takes no more than this for each;"""
LINEAR_ROUNDS = 5
"""of so many publishes the one in the middle."""
RETAINED_MS_MAX = 20
RETAINED_PER_S = 100_000
"""Retained topics for each second of measuring: a million of them."""
RETAINED_AT_ONCE = 5000
BULK_RATIO_MAX = 5


@row("live")
def live(place: str, seconds: float) -> Iterator[Figure]:
    """`publish` to one root, while another root's messages go to very many live subscriptions, one after another."""
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    with running(place) as broker, Raw(broker.address) as victim:
        victim.publish(frame)
        alone = taken(lambda: victim.publish(frame), seconds)
        with Neighbour("live", broker):
            beside = taken(lambda: victim.publish(frame), seconds)
    yield at_p50("a publish", f"{LIVE:,} live subscriptions", alone, beside, ("ratio ≤", LIVE_RATIO_MAX))
    yield at_worst("a publish", f"{LIVE:,} live subscriptions", alone, beside, None)


@row("devices")
def devices(place: str, seconds: float) -> Iterator[Figure]:
    """`publish` to one root, while one `publish_many` to another reaches very many durable subscribers over MQTT."""
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    with running(place) as broker, Raw(broker.address) as victim:
        victim.publish(frame)
        alone = taken(lambda: victim.publish(frame), seconds)
        with Neighbour("devices", broker):
            beside = taken(lambda: victim.publish(frame), seconds)
    yield at_p50("a publish", f"{DEVICES:,} durable subscribers", alone, beside, None)
    goal: Goal = ("value ≤", DEVICES_MS_MAX * 1000)
    yield at_worst("a publish", f"{DEVICES:,} durable subscribers", alone, beside, goal)
    few, many = (_until_delivered_us(place, count) for count in (DEVICES // LINEAR_SHARE, DEVICES))
    goal = ("ratio ≤", LINEAR_RATIO_MAX)
    few_name = f"{DEVICES // LINEAR_SHARE:,}"
    yield Figure("until all have it, each", f"{DEVICES:,} durable subscribers", many, "µs", few, few_name, goal)


def _until_delivered_us(place: str, count: int) -> float:
    """How long one publish to so many topics takes until every subscriber has its message and the publisher its
    answer, for each of them."""
    raise_files_max()
    found: list[float] = []
    with running(place) as broker, Raw(broker.address) as publisher:
        crowd = Devices(("127.0.0.1", broker.mqtt_port))
        crowd.come(count)
        frame = crowd.publish_frame(count)
        for _ in range(LINEAR_ROUNDS):
            begun_s = time.perf_counter()
            publisher.publish(frame)
            crowd.take(count)
            found.append(time.perf_counter() - begun_s)
        crowd.leave()
    return median(found) / count * 1e6


@row("retained")
def retained(place: str, seconds: float) -> Iterator[Figure]:
    """Others' publishes and PINGs, while somebody subscribes to all of a million retained topics, and gets them all."""
    topics = int(seconds * RETAINED_PER_S)
    embedded: list[Figure] = []

    def fill(folder: str) -> None:
        with headwater.open(folder) as bus:
            for first in range(0, topics, RETAINED_AT_ONCE):
                some = range(first, min(topics, first + RETAINED_AT_ONCE))
                bus.publish_many([headwater.Outgoing(f"kept/{n % 1000}/{n}", b"%d" % n, retain=True) for n in some])
            embedded.extend(_retained_embedded(bus, topics, seconds))

    with running(place, "scram", prepare=fill) as broker:
        yield from embedded
        yield from _retained_served(broker, topics, seconds)


def _retained_embedded(bus: Bus, topics: int, seconds: float) -> Iterator[Figure]:
    def publish() -> None:
        bus.publish("fair/x", b"x")

    found = 0

    def gather() -> None:
        nonlocal found
        with bus.subscribe("#") as live:
            while found < topics and (some := live.batch(1000, timeout_s=SILENCE_S)):
                found += sum(one.retained for one in some)

    def compute() -> None:
        until_s = time.perf_counter() + seconds / 5
        while time.perf_counter() < until_s:
            pass

    computing, gathering = taken_beside(compute, publish), taken_beside(gather, publish)
    figure = at_p99("a publish", f"embedded, {topics:,} retained", computing, gathering, ("ratio ≤", 1.0))
    yield msgspec.structs.replace(figure, raw_name="beside a thread that computes")
    yield Figure("retained that came", "embedded", found, "messages", goal=("value ≥", topics))


def _retained_served(broker: Broker, topics: int, seconds: float) -> Iterator[Figure]:
    frame, ping = publish_frame(messages(1, "fair")[:1], SystemClock().now_us()), pack(Kind.PING, 0)
    warm_up(broker.address)
    with Raw(broker.address, (USER, SECRET)) as victim:

        def publish() -> None:
            victim.publish(frame)

        def pinged() -> None:
            victim.socket.sendall(ping)
            while victim.read().kind != Kind.PONG:
                pass

        calls = {"a publish": publish, "a PING": pinged}
        alone = {what: taken(call, seconds / 10) for what, call in calls.items()}
        for name, way, told in WAYS:
            beside: dict[str, list[float]] = {what: [] for what in calls}
            with Neighbour(name, broker, topics, *told) as neighbour:
                while not neighbour.is_over or not beside["a PING"]:
                    for what, call in calls.items():
                        beside[what] += taken(call, 0)
                came = neighbour.got()
            for what, times in beside.items():
                goal: Goal = ("value ≤", RETAINED_MS_MAX * 1000)
                yield at_p99(what, f"{way}, {topics:,} retained", alone[what], times, goal)
            yield Figure("retained that came", way, came, "messages", goal=("value ≥", topics))


WAYS = (("retained", "native", ()), ("retained_mqtt", "MQTT QoS 0", (0,)), ("retained_mqtt", "MQTT QoS 1", (1,)))
"""How somebody subscribes: which neighbour that is, what it is called, and what it is told."""


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
