"""The rows of `headwater bench fair`: each is a function that measures a broker alone, lets a neighbour loose on it,
and measures again. `@row` puts it on the list."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

import headwater
from headwater import threads
from headwater.cli.bench.fair.neighbours import CLIENTS, DEVICES, LIVE, SILENCE_S, STRANGERS, Neighbour, pause
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.load import messages
from headwater.cli.bench.served.broker import SECRET, USER, Broker, running
from headwater.cli.bench.served.latency import at_share
from headwater.cli.bench.served.raw import Raw, publish_frame
from headwater.cli.temporary import temporary_folder
from headwater.clock import SystemClock
from headwater.wire import requests
from headwater.wire.frame import Kind, pack

SECONDS, QUICK_SECONDS = 10.0, 2.0
"""How long something is measured, alone and beside."""
STRANGERS_MIB_MAX = 64
REQUEST_MS_MAX = 50
RECONNECT_RATIO_MAX = 10
LIVE_RATIO_MAX = 3
DEVICES_MS_MAX = 50
RETAINED_MS_MAX = 20
RETAINED_PER_S = 100_000
"""Retained topics for each second of measuring: a million of them."""
RETAINED_AT_ONCE = 5000
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


@row("live")
def live(place: str, seconds: float) -> Iterator[Figure]:
    """`publish` to one root, while another root's messages go to very many live subscriptions, one after another."""
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    with running(place) as broker, Raw(broker.address) as victim:
        victim.publish(frame)
        alone = taken(lambda: victim.publish(frame), seconds)
        with Neighbour("live", broker):
            beside = taken(lambda: victim.publish(frame), seconds)
    yield at("p50", 0.5, "a publish", f"{LIVE:,} live subscriptions", alone, beside, ("ratio ≤", LIVE_RATIO_MAX))
    yield at("worst", 1.0, "a publish", f"{LIVE:,} live subscriptions", alone, beside, None)


@row("devices")
def devices(place: str, seconds: float) -> Iterator[Figure]:
    """`publish` to one root, while one `publish_many` to another reaches very many durable subscribers over MQTT."""
    frame = publish_frame(messages(1, "fair")[:1], SystemClock().now_us())
    with running(place) as broker, Raw(broker.address) as victim:
        victim.publish(frame)
        alone = taken(lambda: victim.publish(frame), seconds)
        with Neighbour("devices", broker):
            beside = taken(lambda: victim.publish(frame), seconds)
    yield at("p50", 0.5, "a publish", f"{DEVICES:,} durable subscribers", alone, beside, None)
    goal = ("value ≤", DEVICES_MS_MAX * 1000)
    yield at("worst", 1.0, "a publish", f"{DEVICES:,} durable subscribers", alone, beside, goal)


@row("retained")
def retained(place: str, seconds: float) -> Iterator[Figure]:
    """Others' publishes and PINGs, while somebody subscribes to all of a million retained topics, and gets them all."""
    topics = int(seconds * RETAINED_PER_S)
    with temporary_folder(place, "headwater-bench") as filled:
        with headwater.open(f"{filled}/bus") as bus:
            for first in range(0, topics, RETAINED_AT_ONCE):
                some = range(first, min(topics, first + RETAINED_AT_ONCE))
                bus.publish_many([headwater.Outgoing(f"kept/{n % 1000}/{n}", b"%d" % n, retain=True) for n in some])
            yield from _retained_embedded(bus, topics, seconds)
        with running(place, "scram", filled) as broker:
            yield from _retained_served(broker, topics, seconds)


def _retained_embedded(bus: headwater.Bus, topics: int, seconds: float) -> Iterator[Figure]:
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
                goal = ("value ≤", RETAINED_MS_MAX * 1000)
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


def taken_beside(work: Callable[[], None], call: Callable[[], object]) -> list[float]:
    """The same, while another thread of this process is at something."""
    thread = threads.Thread(target=work)
    thread.start()
    found: list[float] = []
    while thread.is_alive() or not found:
        found += taken(call, 0)
    return found


def at_p99(what: str, beside_what: str, alone: list[float], beside: list[float], goal: object) -> Figure:
    """The 99th of a hundred, beside a neighbour, and alone."""
    return at("p99", 0.99, what, beside_what, alone, beside, goal)


def at(
    name: str, share: float, what: str, beside_what: str, alone: list[float], beside: list[float], goal: object
) -> Figure:
    """The one below which that share of all lies, beside a neighbour, and alone."""
    return Figure(
        f"{what}, {name}",
        beside_what,
        at_share(beside, share) * 1e6,
        "µs",
        at_share(alone, share) * 1e6,
        "alone",
        goal,  # type: ignore[arg-type]  # one of the goals
    )
