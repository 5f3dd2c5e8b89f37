"""What a large group has of the disk, while others commit: half of the time.

It goes to disk in pieces, each of which is synced, so that no sync of theirs has to wait for all of it; and after each
piece the disk is left to them for as long as that took, so that most of theirs find it free. Where nobody has committed
for a while it has the disk's whole speed.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater import threads
from headwater.clock import Clock

SHARED_US = 1_000_000
"""So long after a group of others, the disk counts as shared."""
PAUSE_US_MAX = 5_000
"""How long it is left to them, at most: a disk that is slow now and then is not left alone for as long again."""


class DiskShare:
    """Who uses the disk beside a large group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause = threads.Condition()
        self.last_us = -SHARED_US
        """When a group, large ones apart, last began to be committed."""

    def is_shared(self) -> bool:
        """Whether others use it; from any thread."""
        return self._clock.monotonic_us() - self.last_us < SHARED_US

    def give_way(self, sync: Callable[[], None]) -> None:
        """Between two pieces: if others use it, sync what was written, and leave it to them for as long."""
        if not self.is_shared():
            return
        begun_us = self._clock.monotonic_us()
        sync()
        took_us = min(self._clock.monotonic_us() - begun_us, PAUSE_US_MAX)
        if took_us > 0:
            with self._pause:
                self._clock.wait(self._pause, took_us)
