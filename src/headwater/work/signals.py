"""SIGTERM and Ctrl-C: the first asks for a graceful stop, the second ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call this at the first of these signals, and raise KeyboardInterrupt at the second; in the main thread alone,
    as signals are its."""
    count = 0

    def on_signal(*_: object) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        stop()

    before = {}
    try:
        try:
            for number in STOPPING:
                before[number] = signal.signal(number, on_signal)
        except ValueError:  # not the main thread
            pass
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
