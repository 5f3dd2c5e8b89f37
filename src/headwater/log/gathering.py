"""Gathering: callers that were just answered have a moment to come back, as a few large groups beat many small ones.

Promises: nobody waits longer than that moment, and when it is in vain time after time, ever more rarely. Whoever holds
the group commit's `places` calls this, and lets go of it while it waits.
"""

from __future__ import annotations

from headwater import threads

CALLERS_MIN = 3
"""Fewer callers than this are not waited for."""
GATHER_S = 0.001
"""How long the commit thread waits, at most, for those it has just answered to come back."""
AGAIN_AFTER_MAX = 64
"""Groups until it waits again, after it did in vain time after time; at first it is four, as once may be bad luck."""


class Gathering:
    """That of one commit thread."""

    __slots__ = ("_came", "_pause", "_pause_left", "answered", "expected")

    def __init__(self, places: threads.Lock) -> None:
        self._came = threads.Condition(places)
        self.answered = 0
        """How many callers waited for the last group."""
        self.expected = 0
        """How many items the commit thread waits for, if it does."""
        self._pause = 0
        """Groups that are left out before it waits for anybody again; more each time it is in vain."""
        self._pause_left = 0

    def note(self, pending: int) -> None:
        """An item came while it waits: so many are there."""
        if pending >= self.expected:
            self.expected = 0
            self._came.notify()

    def wait(self, pending: int, items_max: int) -> None:
        """Wait for those who were just answered, if that has been worth it; so many are there already."""
        answered, self.answered = self.answered, 0
        if answered < CALLERS_MIN:
            return
        if self._pause_left:
            self._pause_left -= 1
            return
        self.expected = min(pending + answered, items_max)
        if self._came.wait(GATHER_S):
            self._pause = 0
        else:
            self._pause = self._pause_left = min(max(4, 2 * self._pause), AGAIN_AFTER_MAX)
        self.expected = 0
