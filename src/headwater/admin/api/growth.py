"""Growth: rates of what only grows, from the differences between the times that somebody looked.

Nothing is sampled while nobody looks: who looks for the first time learns a count, and from the second time on a rate.
"""

from __future__ import annotations

from collections import OrderedDict

from headwater.clock import SECOND_US, Clock, SystemClock

KEPT_MAX = 20_000
"""Counts that are remembered; beyond it the one unused for longest is forgotten."""
SPAN_US_MIN = SECOND_US
"""Those who look more often are told the last rate again."""


class Growth:
    """Remembers counts."""

    def __init__(self, clock: Clock | None = None, kept_max: int = KEPT_MAX) -> None:
        self._clock = clock or SystemClock()
        self._kept_max = kept_max
        self._seen: OrderedDict[str, tuple[int, int, float | None]] = OrderedDict()
        """By name: when, how many, and the rate by then."""

    def rate(self, name: str, count: int) -> float | None:
        """How many a second come to something that has so many now; None the first time."""
        now_us = self._clock.monotonic_us()
        at_us, before, rate = self._seen.pop(name, (now_us, count, None))
        if now_us - at_us >= SPAN_US_MIN:
            rate = max(0, count - before) * SECOND_US / (now_us - at_us)
            at_us, before = now_us, count
        self._seen[name] = at_us, before, rate
        if len(self._seen) > self._kept_max:
            self._seen.popitem(last=False)
        return rate
