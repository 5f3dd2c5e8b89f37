"""How a process that serves for days uses its memory: what is freed is soon needed again."""

from __future__ import annotations

import ctypes
import gc

COLLECT_AFTER_OBJECTS = 10_000
"""Objects that may be made, less those that were freed, until the youngest are looked at;"""
COLLECT_AFTER_LOOKS = 3
"""such looks until those that were left by them are looked at once more. Each look holds up everybody: more of them are
shorter, and are no more work."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What glibc calls its settings."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Free memory that is kept rather than given back to the system;"""
MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""pieces so large are asked of the system one by one, and given back. glibc takes no larger number."""


def spare_the_collector() -> None:
    """Have Python's garbage collector look at less, and less often.

    What a server has loaded by now stays for good, and what passes through it is freed by its counts of references:
    a walk over all of it would find nothing, and would hold up everybody for as long as it takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, COLLECT_AFTER_LOOKS)


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
