"""The workers of a bus: its handlers, and the threads that run them while somebody calls `bus.run()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headwater import threads
from headwater.clock import Clock
from headwater.errors import Conflict, Malformed
from headwater.work.handlers import Handler, Handlers, check_workers
from headwater.work.pool import Pool
from headwater.work.shift import Shift
from headwater.work.signals import stopped_by_signals

WORKERS = 8
"""Threads of a pool, unless every handler states fewer, one states more, or `run` says how many."""


class Workers:
    """Runs the handlers of one bus in threads."""

    def __init__(self, subscribe: Callable[..., Any], clock: Clock, handlers: Handlers) -> None:
        self.handlers = handlers
        self._subscribe = subscribe
        self.clock = clock
        self._lock = threads.Lock()
        self.pool: Pool | None = None

    def run(self, workers: int | None = None) -> Shift:
        """Run the handlers until SIGTERM, Ctrl-C or `stop`."""
        handlers = self.handlers.all
        pool = Pool(self._subscribe, self.clock, number_of_workers(handlers, workers, WORKERS))
        with self._lock:
            if self.pool is not None:
                raise Conflict("the handlers of this bus are being run already; one pool works for all of them")
            self.pool = pool
        try:
            with stopped_by_signals(pool.stop):
                try:
                    for handler in self.handlers.begin(pool.add):
                        pool.add(handler)
                    return pool.run()
                finally:
                    self.handlers.end()
                    pool.close()
        finally:
            self.pool = None

    def stop(self) -> None:
        """Have them stop."""
        pool = self.pool
        if pool is not None:
            pool.stop()

    def end(self) -> None:
        """Have them stop, and wait for it, unless it is one of them who asks."""
        pool = self.pool
        if pool is not None:
            pool.stop()
            pool.wait()


def number_of_workers(handlers: Sequence[Handler], stated: int | None, default: int) -> int:
    """How many are to work; Malformed (422) if that cannot be, or there is nothing to do."""
    if not handlers:
        raise Malformed("there is nothing to run; register a handler with @bus.handler(…) or bus.consume(…) first")
    if stated is not None:
        check_workers(stated)
        return stated
    return max(handler.workers or default for handler in handlers)
