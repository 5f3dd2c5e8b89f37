"""Which cores the two ends of a measurement run on: where a process happens to be decides how long it takes to wake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

APART = "a core each"
TOGETHER = "one core"
PLACES = (APART, TOGETHER)


@contextmanager
def placed(place: str, *peers: int) -> Iterator[None]:
    """Keep this process and its peers on cores; where the system cannot, or has one core alone, they stay free."""
    if not hasattr(os, "sched_setaffinity") or len(free := sorted(os.sched_getaffinity(0))) < 2:
        yield
        return
    _keep(os.getpid(), {free[0] if place == APART else free[1]})
    for peer in peers:
        _keep(peer, {free[1]})
    try:
        yield
    finally:
        for process in (os.getpid(), *peers):
            _keep(process, set(free))


def _keep(process: int, cores: set[int]) -> None:
    """With all of its threads; those that come later stay where the one that started them is."""
    try:
        for thread in os.scandir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread.name), cores)
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        pass
