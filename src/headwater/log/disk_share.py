"""What a large group has of the disk, while others commit: half of the time.

It goes to disk in pieces, each of which is synced, so that no sync of theirs has to wait for all of it; and after each
piece the disk is left to them for as long as that took, so that most of theirs find it free. Where nothing of another
root was committed for a while it has the disk's whole speed: what comes to its own root has to wait for it anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater import threads
from headwater.clock import Clock
from headwater.log.root import SYS

SHARED_US = 1_000_000
"""So long after a group of others, the disk counts as shared."""
PAUSE_US_MAX = 5_000
"""How long it is left to them, at most: a disk that is slow now and then is not left alone for as long again."""


class DiskShare:
    """Who uses the disk beside a large group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause = threads.Condition()
        self.roots: list[str] = []
        """Of the latest group, large ones apart;"""
        self.begun_us = -SHARED_US
        """when that began to be committed, which whoever commits the next of the same roots sets,"""
        self._others_us = -SHARED_US
        """and when the latest of others did."""

    def note(self, roots: list[str], begun_us: int) -> None:
        """A group of these roots is committed, and is no large one; by the thread that commits. What the broker tells
        about itself now and then is no reason to have others wait."""
        if roots == [SYS]:
            return
        if roots != self.roots:
            self.roots, self._others_us = roots, self.begun_us
        self.begun_us = begun_us

    def is_shared(self, root: str) -> bool:
        """Whether others use it besides those who wait for this root; from any thread."""
        latest_us = self._others_us if self.roots == [root] else self.begun_us
        return self._clock.monotonic_us() - latest_us < SHARED_US

    def give_way(self, root: str, sync: Callable[[], None]) -> None:
        """Between two pieces of what this root is brought: if others use the disk, sync what was written, and leave it
        to them for as long."""
        if not self.is_shared(root):
            return
        begun_us = self._clock.monotonic_us()
        sync()
        took_us = min(self._clock.monotonic_us() - begun_us, PAUSE_US_MAX)
        if took_us > 0:
            with self._pause:
                self._clock.wait(self._pause, took_us)
