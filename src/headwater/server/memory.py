"""How a process that serves for days uses its memory: what is freed is soon needed again."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

from headwater.clock import processor_us

COLLECT_AFTER_OBJECTS = 2_000
"""Objects that may be made, less those that were freed, until the youngest are looked at;"""
COLLECT_AFTER_LOOKS = 3
"""such looks until those that were left by them are looked at once more. Each look holds up everybody: more of them are
shorter (2 to 3 ms of 10,000 objects, 15 to 25 ms of 50,000), and less work, as what is looked at is still at hand."""
OLD_AFTER_LOOKS = 50
"""Those second looks until what both have left is worth a look;"""
NEVER = 1 << 30
"""before which it is not looked at, however many there were."""
LOOK_S = 1.0
"""How often is asked whether it is time, and over how long whether it is quiet;"""
QUIET_US = 20_000
"""which it is if the process has computed for less than this."""
OLD_AT_LATEST_LOOKS = 6 * 3600
"""It is never so quiet: after this many times, six hours, all wait for what has come since the last look."""
OLD_LOOKS_MAX = 800
"""So many of those looks at the latest, which is eight million objects: garbage among them is not to fill the memory of
a server that is never quiet."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc calls its settings."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Free memory that is kept rather than given back to the system;"""
MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""pieces so large are asked of the system one by one, and given back. glibc takes no larger number."""


class Collector:
    """Python's garbage collector, held to what nobody waits for.

    What passes through a server is freed by its counts of references, and what stays (sessions, subscriptions) stays
    for good: a walk over all of it finds next to nothing, and holds up everybody while it lasts (0.3 s with 8,000
    sessions). So the young are looked at as they come, a few milliseconds at a time, and all the others in a moment in
    which nothing goes on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, spent_us: Callable[[], int] = processor_us) -> None:
        self._loop = loop
        self._spent_us = spent_us
        self._before_us = 0
        """What had been spent when it was last asked."""
        self._late = 0
        """How often it was asked since it was time."""

    def start(self) -> None:
        """From now on nothing else collects."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER_OBJECTS, COLLECT_AFTER_LOOKS, NEVER)
        self._before_us = self._spent_us()
        self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self.look()
        self._loop.call_later(LOOK_S, self._look)

    def look(self) -> None:
        """Collect what is old, if it is time to, and quiet."""
        now_us = self._spent_us()
        is_quiet, self._before_us = now_us - self._before_us < QUIET_US, now_us
        looks = gc.get_count()[2]
        if looks < OLD_AFTER_LOOKS:
            return
        self._late += 1
        if is_quiet:
            gc.unfreeze()
        elif self._late < OLD_AT_LATEST_LOOKS and looks < OLD_LOOKS_MAX:
            return
        gc.collect()
        gc.freeze()
        self._late, self._before_us = 0, self._spent_us()


def keep_what_is_freed() -> None:
    """Have the memory of messages that have passed through be used for the next.

    Left to itself the allocator gives it back to the system, which hands it out again page by page, each with an
    interrupt and full of zeros. Does nothing where the C library has no such setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(TRIM_THRESHOLD, KEPT_BYTES_MAX)
    mallopt(MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def give_back() -> None:
    """Give the system all memory that is free, also between what is in use; takes some milliseconds, in which other
    threads may have to wait for memory. Does nothing where the C library cannot."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)
