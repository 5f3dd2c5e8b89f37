"""Rates: what happened between two looks at a broker, per second, and how long it took."""

from __future__ import annotations

from headwater.clock import SECOND_US
from headwater.wire.administration import Figures, Histogram


class Rates:
    """Two looks at one broker; if it was started anew between them, everything since then counts."""

    def __init__(self, before: Figures | None, after: Figures) -> None:
        if before is not None and before.started_us != after.started_us:
            before = None
        self._before = before
        self._after = after
        begun_us = after.started_us if before is None else before.time_us
        self.seconds = max(after.time_us - begun_us, 1) / SECOND_US
        """Between the two."""
        self._ends = {one.root: one.end for one in before.roots} if before is not None else {}

    def per_s(self, counter: str) -> float:
        """How fast a counter grew."""
        before = self._before.counters.get(counter, 0) if self._before is not None else 0
        return max(0, self._after.counters.get(counter, 0) - before) / self.seconds

    def of_root_per_s(self, root: str) -> float:
        """How fast messages came to a root; 0 if it was not among the largest at the first look."""
        for one in self._after.roots:
            if one.root == root:
                return max(0, one.end - self._ends.get(root, one.end)) / self.seconds
        return 0.0

    def quantile_s(self, name: str, share: float) -> float | None:
        """How long it took at most, for this share of the times: 0.5 for the median; None if it did not happen."""
        after = self._after.histograms[name]
        before = self._before.histograms.get(name) if self._before is not None else None
        if before is not None and before.bounds_s == after.bounds_s:
            counts = tuple(new - old for new, old in zip(after.counts, before.counts, strict=True))
        else:
            counts = after.counts
        return quantile_s(Histogram(bounds_s=after.bounds_s, counts=counts, sum_s=0.0), share)


def quantile_s(found: Histogram, share: float) -> float | None:
    """The same of one histogram, evenly within a bucket; of the last, which has no bound, its beginning."""
    wanted = share * sum(found.counts)
    if not wanted:
        return None
    low_s = 0.0
    for high_s, count in zip(found.bounds_s, found.counts, strict=False):
        if wanted <= count:
            return low_s + (high_s - low_s) * wanted / count
        wanted -= count
        low_s = high_s
    return low_s
