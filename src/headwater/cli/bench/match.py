"""Look-ups of the subscribers of a topic, as figures with goals."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.cli.bench import lookup
from headwater.cli.bench.figure import Figure


def measure(subscriptions: int, seconds: float) -> Iterator[Figure]:
    """All figures of matching; a wrong answer is an AssertionError."""
    found = lookup.measure(subscriptions, seconds)
    variant = f"{subscriptions:,} filters"
    name = "filter look-up"
    yield Figure(f"{name}, warm", variant, found["warm_per_s"], "look-ups/s", goal=("value ≥", 3_000_000))
    yield Figure(f"{name}, cold", variant, found["cold_per_s"], "look-ups/s", goal=("value ≥", 150_000))
    for kind in ("warm", "cold"):
        yield Figure(
            f"{name}, {kind}, 100 subscribes/s",
            variant,
            found[f"{kind}_while_changing_per_s"],
            "look-ups/s",
            found[f"{kind}_per_s"],
            "at rest",
            ("ratio ≥", 0.5),
        )
    yield Figure("memory a subscription", variant, found["bytes_per_subscription"], "bytes", goal=("value ≤", 400))
    yield Figure(
        "memory a subscription",
        "with a wildcard",
        found["bytes_per_wildcard_subscription"],
        "bytes",
        goal=("value ≤", 400),
    )
