"""The only door to threads: locks, conditions, threads and pools of them are made here.

What stands here is Python's own, and costs nothing more. It is one place, so that a simulation can put doubles there
that it wakes itself, one after another and in an order that comes from a seed (docs/contribute/architecture.md,
"Playing the server from a seed"). So whoever needs one of these takes it from here when it makes it,
`threads.Lock()`, and keeps none from the time of its import.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event, Lock, RLock, Thread, current_thread, get_ident, local

__all__ = (
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "Thread",
    "ThreadPoolExecutor",
    "current_thread",
    "get_ident",
    "local",
)
