"""The rows of the comparison: the work, who does it, how it grows, and what Headwater is to reach.

Goals have a source: `least` must hold, so must `mqtt`, beside Mosquitto; `design` is where it is going.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headwater.cli.bench import goals
from headwater.cli.bench.load import BATCH
from headwater.cli.bench.served.cores import APART, TOGETHER

At = Mapping[str, float | str]
Source = Literal["least", "mqtt", "design"]


@dataclass(frozen=True)
class Contender:
    """A broker with a setting, and how it is spoken to."""

    key: str
    title: str
    setting: str
    protocol: str
    options: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def is_headwater(self) -> bool:
        return self.setting == "headwater"


@dataclass(frozen=True)
class Goal:
    """What a contender is to reach: a multiple of the best of some others, or a figure of its own."""

    who: str
    sense: Literal["≥", "≤"]
    bound: float
    than: Sequence[str] = ()
    source: Source = "design"
    at: At = field(default_factory=dict)
    """Which point it is about: the first one that has all of these."""


@dataclass(frozen=True)
class Row:
    """The same work for all."""

    key: str
    title: str
    about: str
    unit: str
    contenders: Sequence[Contender]
    points: Sequence[At]
    """The first one is what the others grow from."""
    goals: Sequence[Goal] = ()
    work: str = ""
    """What the load generator calls it; rows without one have a measurement of their own."""
    options: Mapping[str, float | str] = field(default_factory=dict)
    figure: str = "rate"
    less_is_better: bool = False
    quick_points: int = 1
    reached_by: str = ""
    """The public call, or the program, by which a user of Headwater has what is measured."""

    def contender(self, key: str) -> Contender:
        return next(one for one in self.contenders if one.key == key)

    def axes(self) -> list[tuple[str, list[At]]]:
        """Each thing that grows while all else is as at the first point, with the points along it."""
        first, found = self.points[0], []
        for axis in first:
            along = [at for at in self.points if all(at[name] == first[name] for name in first if name != axis)]
            if len(along) > 1 and not isinstance(first[axis], str):
                found.append((axis, sorted(along, key=lambda at: float(at[axis]))))
        return found


UNITS = {
    "bytes": ("byte", "bytes"),
    "publishers": ("publisher", "publishers"),
    "topics": ("topic", "topics"),
    "subscribers": ("subscriber", "subscribers"),
    "stored": ("message stored", "messages stored"),
    "connections": ("connection", "connections"),
    "subscriptions": ("subscription", "subscriptions"),
    "processes": ("process", "processes"),
}


def named(at: At) -> str:
    """A point in words."""
    words = []
    for axis, value in at.items():
        if isinstance(value, str):
            words.append(value)
        else:
            one, many = UNITS[axis]
            words.append(f"{value:,.0f} {one if value == 1 else many}")
    return ", ".join(words)


def native(key: str = "headwater", title: str = "Headwater", **options: float | str) -> Contender:
    return Contender(key, title, "headwater", "native", options)


def mqtt(qos: int) -> Contender:
    return Contender("headwater-mqtt", f"Headwater, MQTT QoS {qos}", "headwater", "mqtt", {"qos": qos})


REDIS_ALWAYS = Contender("redis-always", "Redis, always", "redis-always", "redis")
REDIS = Contender("redis", "Redis", "redis", "redis")
REDIS_EVERYSEC = Contender("redis-everysec", "Redis, everysec", "redis-everysec", "redis")
JETSTREAM_ALWAYS = Contender("jetstream-always", "JetStream, always", "nats-always", "nats")
JETSTREAM = Contender("jetstream", "JetStream", "nats", "nats")
NATS = Contender("nats", "NATS", "nats", "nats")
RABBITMQ = Contender("rabbitmq", "RabbitMQ", "rabbitmq", "amqp")
MOSQUITTO_0 = Contender("mosquitto", "Mosquitto, QoS 0", "mosquitto", "mqtt", {"qos": 0})
MOSQUITTO_1 = Contender("mosquitto", "Mosquitto, QoS 1", "mosquitto", "mqtt", {"qos": 1})
AMQTT = Contender("amqtt", "amqtt", "amqtt", "mqtt", {"qos": 0})

DURABLE = (REDIS_ALWAYS, JETSTREAM_ALWAYS, RABBITMQ, REDIS, JETSTREAM, MOSQUITTO_1)
LIVE = (REDIS, NATS, MOSQUITTO_0)
LIVE_BATCH = 100


def _publish() -> Row:
    def at(bytes: int = 400, publishers: int = 1, topics: int = 1) -> At:
        return {"bytes": bytes, "publishers": publishers, "topics": topics}

    return Row(
        key="publish",
        title="Acked publishes",
        about="Each publisher has at most 1,000 messages in flight, or ten batches; a message counts when it is acked.",
        reached_by="`bus.publish_many_soon` with as many messages, and any MQTT client",
        unit="messages/s",
        work="publish",
        options={"in-flight": 1000},
        contenders=(
            native(
                "headwater-batches", f"Headwater, batches of {BATCH:,}", **{"batch": BATCH, "in-flight": 10 * BATCH}
            ),
            mqtt(1),
            *DURABLE,
        ),
        points=(at(), at(64), at(4096), at(publishers=4), at(publishers=16), at(topics=1000), at(64, 16, 1000)),
        goals=(
            Goal("headwater-batches", "≥", 10, ("redis-always",), "least"),
            Goal("headwater-batches", "≥", 3, ("jetstream",), "least"),
            Goal("headwater-mqtt", "≥", 4, ("redis-always",), "least"),
            Goal("headwater-mqtt", "≥", 2, ("mosquitto",), "mqtt"),
        ),
    )


def _deliver() -> Row:
    def at(bytes: int = 400, topics: int = 1) -> At:
        return {"bytes": bytes, "topics": topics}

    return Row(
        key="deliver",
        title="Durable deliveries, acked",
        about="A publisher of acked messages, and beside it a durable subscriber that acks each; until all are acked.",
        reached_by="`bus.publish_many_soon` and `bus.subscribe(filter, id=…)` with `sub.ack`, and any MQTT client",
        unit="messages/s",
        work="deliver",
        options={"in-flight": 1000},
        contenders=(
            native(
                "headwater-batches", f"Headwater, batches of {BATCH:,}", **{"batch": BATCH, "in-flight": 10 * BATCH}
            ),
            mqtt(1),
            *DURABLE,
        ),
        points=(at(), at(64), at(4096), at(topics=1000)),
        goals=(
            Goal("headwater-batches", "≥", 3, ("mosquitto",), "least"),
            Goal("headwater-batches", "≥", 4, ("mosquitto",)),
            Goal("headwater-mqtt", "≥", 1.5, ("mosquitto",), "mqtt"),
        ),
    )


def _fan_out() -> Row:
    def at(subscribers: int) -> At:
        return {"bytes": 400, "subscribers": subscribers}

    live = tuple(one.key for one in LIVE)
    return Row(
        key="fan-out",
        title="Fan-out to live subscribers",
        about="One publisher, at most 1,000 messages ahead of the slowest subscriber.",
        reached_by="`bus.send`, which the client gathers into frames, to `bus.subscribe(filter)`, and any MQTT client",
        unit="deliveries/s",
        work="fanout",
        options={"in-flight": 1000},
        contenders=(
            native("headwater-batches", f"Headwater, batches of {LIVE_BATCH}", batch=LIVE_BATCH),
            mqtt(0),
            *LIVE,
        ),
        points=tuple(map(at, goals.SUBSCRIBERS)),
        quick_points=3,
        goals=(
            Goal("headwater-batches", "≥", 1.0, live, "least", {"subscribers": 1}),
            Goal("headwater-batches", "≥", 1.5, live, "least", {"subscribers": 10}),
            Goal("headwater-batches", "≥", 1.5, live, "least", {"subscribers": 100}),
            *(Goal("headwater-batches", "≥", 2, live, at={"subscribers": count}) for count in goals.SUBSCRIBERS),
            *(Goal("headwater-mqtt", "≥", 2, ("mosquitto",), "mqtt", {"subscribers": n}) for n in goals.SUBSCRIBERS),
        ),
    )


def _round_trip() -> Row:
    def at(place: str, bytes: int = 400) -> At:
        return {"place": place, "bytes": bytes}

    return Row(
        key="round-trip",
        title="Round trip to a live subscriber",
        about="One message at a time, p50 and p99; the generator and the broker have a core each, or share one.",
        reached_by="`bus.send` to `bus.subscribe(filter)`, and any MQTT client",
        unit="µs",
        work="roundtrip",
        figure="p50_us",
        less_is_better=True,
        contenders=(native(), mqtt(0), *LIVE),
        points=(at(APART), at(TOGETHER), at(APART, 64), at(APART, 4096)),
        quick_points=2,
        goals=(
            *(Goal("headwater", "≤", 1.2, ("mosquitto",), at={"place": place}) for place in (APART, TOGETHER)),
            *(
                Goal("headwater-mqtt", "≤", 1.3, ("mosquitto",), "mqtt", {"place": place})
                for place in (APART, TOGETHER)
            ),
        ),
    )


def _durable_round_trip() -> Row:
    return Row(
        key="durable-round-trip",
        title="Round trip to a durable subscriber",
        about="One message at a time, acked to the publisher, delivered to a durable subscriber that acks it.",
        reached_by="`bus.publish` to `bus.subscribe(filter, id=…)` and `message.ack`, and any MQTT client",
        unit="µs",
        work="durable-roundtrip",
        figure="p50_us",
        less_is_better=True,
        contenders=(native(), mqtt(1), *DURABLE),
        points=({"place": APART, "bytes": 400}, {"place": TOGETHER, "bytes": 400}),
        goals=tuple(Goal("headwater", "≤", 1.2, ("redis-always",), at={"place": place}) for place in (APART, TOGETHER)),
    )


STORED = (native(), REDIS_EVERYSEC, JETSTREAM)
MILLION = 1_000_000


def _replay() -> Row:
    return Row(
        key="replay",
        title="Replay of what is stored",
        about="All messages of 400 bytes, read from the first one on.",
        reached_by="`bus.replay`",
        unit="messages/s",
        contenders=STORED,
        points=({"stored": MILLION},),
        goals=(Goal("headwater", "≥", 2, ("redis-everysec",)),),
    )


def _start() -> Row:
    return Row(
        key="start",
        title="Start after kill -9",
        about="From the start of the process until it has acked one more message after those that it had stored.",
        reached_by="`headwater serve`, then `bus.publish`",
        unit="s",
        less_is_better=True,
        contenders=STORED,
        points=({"stored": MILLION}, {"stored": 10 * MILLION}),
        goals=(
            Goal("headwater", "≤", 1, ("jetstream",), "least"),
            Goal("headwater", "≤", goals.START_S),
            Goal("headwater", "≤", goals.START_S, at={"stored": 10 * MILLION}),
        ),
    )


def _idle() -> Row:
    return Row(
        key="idle",
        title="Memory of an idle connection with a subscription",
        about="Resident memory of the broker with that many connections, less what it was before, for each.",
        reached_by="`headwater.connect` and `bus.subscribe(filter)`, and any MQTT client",
        unit="KiB",
        less_is_better=True,
        contenders=(native(), mqtt(0), REDIS, NATS, MOSQUITTO_0, AMQTT),
        points=({"connections": 2000},),
        goals=tuple(Goal(who, "≤", goals.IDLE_KIB) for who in ("headwater", "headwater-mqtt")),
    )


def _look_up() -> Row:
    def own(key: str, title: str) -> Contender:
        return Contender(key, f"Headwater, {title}", "headwater", "")

    million = {"subscriptions": MILLION}
    return Row(
        key="look-up",
        title="Filter look-ups",
        about="Which subscribers a topic has, in the process itself, at rest and while 100 filters a second change.",
        reached_by="every publish, which looks up whom it is for; `headwater bench match` measures that look-up alone",
        unit="look-ups/s",
        contenders=(
            own("warm", "warm"),
            own("cold", "cold"),
            own("warm-changing", "warm while changing"),
            own("cold-changing", "cold while changing"),
        ),
        points=tuple({"subscriptions": count} for count in (1000, 100_000, MILLION)),
        goals=(
            Goal("warm", "≥", goals.LOOK_UPS_WARM_PER_S, at=million),
            Goal("cold", "≥", goals.LOOK_UPS_COLD_PER_S, at=million),
        ),
    )


def _look_up_memory() -> Row:
    return Row(
        key="look-up-memory",
        title="Memory of a subscription",
        about="What the tree of filters takes for each.",
        reached_by="every `bus.subscribe`; `headwater bench match` measures the tree alone",
        unit="bytes",
        less_is_better=True,
        contenders=(
            Contender("plain", "Headwater, a topic", "headwater", ""),
            Contender("wildcard", "Headwater, with a wildcard", "headwater", ""),
        ),
        points=tuple({"subscriptions": count} for count in (1000, 100_000, MILLION)),
        goals=(Goal("plain", "≤", goals.SUBSCRIPTION_BYTES, at={"subscriptions": MILLION}),),
    )


def _workers() -> Row:
    def library(key: str, title: str, setting: str, protocol: str, **options: float | str) -> Contender:
        return Contender(key, title, setting, protocol, {"library": key, **options})

    others = (
        library("celery", "Celery on Redis, always", REDIS_ALWAYS.setting, "redis", jobs=2000, database=1),
        library("dramatiq", "dramatiq on Redis, always", REDIS_ALWAYS.setting, "redis", jobs=3000, database=2),
        library("rq", "RQ on Redis, always", REDIS_ALWAYS.setting, "redis", jobs=500, database=3),
        library("faststream", "FastStream on JetStream, always", JETSTREAM_ALWAYS.setting, "nats", jobs=10_000),
    )
    ours: dict[str, float | str] = {"library": "headwater", "jobs": 200_000}
    return Row(
        key="workers",
        title="Workers in Python",
        about="One process does jobs that wait on disk: a function that does nothing, and an ack after it ran.",
        reached_by="`@bus.handler` and `bus.run`",
        unit="jobs/s",
        contenders=(
            Contender("embedded", "Headwater, `@bus.handler`, embedded", "headwater", "", ours),
            native("served", "Headwater, `@bus.handler`, served", **ours),
            *others,
        ),
        points=({"processes": 1},),
        goals=tuple(Goal(who, "≥", 3, tuple(one.key for one in others), "least") for who in ("embedded", "served")),
    )


def _spark() -> Row:
    def reading(key: str, title: str, setting: str = "headwater") -> Contender:
        return Contender(key, title, setting, "")

    return Row(
        key="spark",
        title="Spark reads a topic",
        about="An aggregate over every row, from the log and from the lake, beside Spark's own scan of the same files.",
        reached_by='`spark.read.format("headwater")`',
        unit="rows/s",
        contenders=(
            reading("log", "Headwater, the log"),
            reading("history", "Headwater, history in the lake"),
            reading("parquet", "Parquet, the same files", ""),
        ),
        points=({"stored": MILLION},),
        goals=(Goal("log", "≥", 1_000_000), Goal("history", "≥", 0.8, ("parquet",))),
    )


ROWS = {
    row.key: row
    for row in (
        _publish(),
        _deliver(),
        _fan_out(),
        _round_trip(),
        _durable_round_trip(),
        _replay(),
        _start(),
        _idle(),
        _look_up(),
        _look_up_memory(),
        _workers(),
        _spark(),
    )
}
