"""A ring of samples: the last so many intervals of a fixed length, a few numbers each, in one flat array.

An interval is known by its number since 1970, so that one that nobody sampled is a gap and never a line drawn over it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isnan, nan

Values = Sequence[float | None]


class Ring:
    """Samples of one thing."""

    def __init__(self, lines: int, slots: int) -> None:
        self._lines = lines
        self._slots = slots
        self._values = array("f", [nan]) * (lines * slots)
        self.last = -1
        """The newest interval that was sampled."""

    def put(self, slot: int, values: Values) -> None:
        """What was seen in an interval; those passed over since the last are gaps."""
        if slot <= self.last - self._slots or slot >= self.last + self._slots:  # the clock was set, or it is the first
            self._values = array("f", [nan]) * len(self._values)
            self.last = slot
        for passed in range(self.last + 1, slot):
            self._write(passed, [nan] * self._lines)
        self._write(slot, [nan if value is None else value for value in values])
        self.last = max(self.last, slot)

    def get(self, slot: int) -> list[float | None]:
        """What was seen in an interval; None where nobody knows."""
        if not self.last - self._slots < slot <= self.last:
            return [None] * self._lines
        at = slot % self._slots * self._lines
        return [None if isnan(value) else value for value in self._values[at : at + self._lines]]

    def _write(self, slot: int, values: Sequence[float]) -> None:
        at = slot % self._slots * self._lines
        self._values[at : at + self._lines] = array("f", values)
