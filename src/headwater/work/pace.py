"""How many messages a worker takes at once: about as many as are handled within a slice of time.

Quick handlers have their messages taken and acked in large batches, slow ones one by one, so that nothing waits behind
a slow message that another worker could do, and no subscription waits long for its turn.
"""

from __future__ import annotations

SLICE_US = 10_000
"""How long a turn of a subscription is to take."""
SIZE_MAX = 1000
"""Messages that are taken at once, however quick their handler is."""
GROWTH = 4
"""By how much a turn may be larger than the one before."""


class Pace:
    """How quick a handler is."""

    __slots__ = ("each_us", "size")

    def __init__(self) -> None:
        self.each_us = float(SLICE_US)
        """What a message takes, as far as was seen."""
        self.size = 1
        """How many to take at once."""

    def note(self, count: int, took_us: int) -> None:
        """So many were handled, in this time."""
        latest = took_us / count
        # Slower counts at once, as more of it may be behind; quicker has to last.
        self.each_us = latest if latest > self.each_us else (self.each_us + latest) / 2
        fitting = int(SLICE_US / self.each_us) if self.each_us > SLICE_US / SIZE_MAX else SIZE_MAX
        self.size = max(1, min(fitting, GROWTH * self.size))
