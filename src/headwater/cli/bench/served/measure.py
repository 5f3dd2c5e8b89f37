"""Every figure of a served broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headwater.cli.bench.figure import Figure
from headwater.cli.bench.served import crowd, deliver, fan_out, latency, publish
from headwater.cli.bench.served.broker import Broker, running

SECONDS, QUICK_SECONDS = 5.0, 1.5
STORED, QUICK_STORED = 1_000_000, 200_000
IDLE, QUICK_IDLE = 5000, 1000
CONNECTING, QUICK_CONNECTING = 3000, 1000

PARTS = ("publish", "deliver", "fan-out", "latency", "idle", "connecting")


def measure(place: str, is_quick: bool, parts: tuple[str, ...] = PARTS) -> Iterator[Figure]:
    """Every figure of a served broker."""
    seconds = QUICK_SECONDS if is_quick else SECONDS
    stored = QUICK_STORED if is_quick else STORED
    brokers: dict[str, Callable[[Broker], Iterator[Figure]]] = {
        "publish": lambda broker: publish.measure(broker.address, None, seconds, "bench", broker),
        "deliver": lambda broker: deliver.measure(broker.address, None, stored, "bench", broker),
        "fan-out": lambda broker: fan_out.measure(broker, seconds),
        "latency": lambda broker: latency.measure(broker, 2 * seconds),
    }
    for part in parts:
        if part == "idle":
            yield from crowd.measure_idle(place, QUICK_IDLE if is_quick else IDLE)
        elif part == "connecting":
            yield from crowd.measure_connecting(place, QUICK_CONNECTING if is_quick else CONNECTING)
        else:
            with running(place) as broker:
                yield from brokers[part](broker)
