"""How long a failed message waits before it is tried again."""

from __future__ import annotations

from collections.abc import Callable

DOUBLINGS_MAX = 62
"""Beyond it every delay is at its maximum anyway, and a float would overflow."""


def delay_s(attempt: int, first_s: float, max_s: float, jitter_share: float, random: Callable[[], float]) -> float:
    """Seconds to wait after so many attempts failed: `first_s` after one, twice that after two, …, at most `max_s`.

    `jitter_share` of it is drawn at random, downwards, so that failures do not come back in step.
    """
    whole = min(max_s, first_s * 2.0 ** min(max(attempt, 1) - 1, DOUBLINGS_MAX))
    return whole * (1.0 - jitter_share * random())
