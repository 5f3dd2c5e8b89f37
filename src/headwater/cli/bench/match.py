"""Look-ups of the subscribers of a topic, as figures with goals."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.cli.bench import goals, lookup
from headwater.cli.bench.figure import Figure


def measure(subscriptions: int, seconds: float) -> Iterator[Figure]:
    """All figures of matching; a wrong answer is an AssertionError."""
    found = lookup.measure(subscriptions, seconds)
    variant = f"{subscriptions:,} filters"
    name = "filter look-up"
    for kind, goal in (("warm", goals.LOOK_UPS_WARM_PER_S), ("cold", goals.LOOK_UPS_COLD_PER_S)):
        yield Figure(f"{name}, {kind}", variant, found[f"{kind}_per_s"], "look-ups/s", goal=("value ≥", goal))
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
    for with_what, size in (
        (variant, found["bytes_per_subscription"]),
        ("with a wildcard", found["bytes_per_wildcard_subscription"]),
    ):
        yield Figure("memory a subscription", with_what, size, "bytes", goal=("value ≤", goals.SUBSCRIPTION_BYTES))
