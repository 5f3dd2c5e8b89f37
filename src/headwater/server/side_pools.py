"""Side pools: threads apart from the shared ones, for what must not wait for other work, or takes others' time.

A session's requests are done one after another, in threads that all share. Out of that turn go probes, which are to be
answered whatever else is asked, and what looks up names, which nobody may answer for. Long publishes are put together
and checked by a thread of their own: the loop would answer nobody meanwhile. Each client has its turn here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headwater.errors import QuotaExceeded
from headwater.server.workers import OWN, Workers
from headwater.wire.operations import Operation, Trait

PROBERS = 2
PROBES_MAX = 256
"""Probes under way or waiting; one more: QuotaExceeded (429)."""
RESOLVERS = 4
LOOK_UPS_MAX = 64
"""The same, of requests that look up names."""

CHECKERS = 1
CHECKS_MAX = 1 << 30
"""No connection has more than one publish checked, and is not read from meanwhile."""

Then = Callable[[Any, BaseException | None], None]


class SidePool:
    """Threads of its own, and how much may wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, workers: int, most: int) -> None:
        self._loop = loop
        self._name = name
        self._most = most
        self._count = 0
        self.pool = Workers(f"headwater-{name}", workers)

    def do(self, work: Callable[[], Any], then: Then, payer: str = OWN) -> None:
        """Have something done for a client, in no order, then hear of it on the loop."""
        if self._count >= self._most:
            then(None, QuotaExceeded(f"{self._count} requests wait for a {self._name} already; try again in a while"))
            return
        try:
            started = self._loop.run_in_executor(self.pool.of(payer), work)
        except RuntimeError:  # the threads are gone: the server has ended meanwhile
            return
        self._count += 1
        started.add_done_callback(lambda done: self._done(done, then))

    def _done(self, done: asyncio.Future[Any], then: Then) -> None:
        self._count -= 1
        error = done.exception() if not done.cancelled() else asyncio.CancelledError()
        then(done.result() if error is None else None, error)


class SidePools:
    """Those of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.probes = SidePool(loop, "probe", PROBERS, PROBES_MAX)
        self.names = SidePool(loop, "name", RESOLVERS, LOOK_UPS_MAX)
        self.checks = SidePool(loop, "check", CHECKERS, CHECKS_MAX)

    def of(self, operation: Operation) -> SidePool | None:
        """Where an operation is done; None for its session's turn."""
        if Trait.PROBE in operation.traits:
            return self.probes
        return self.names if Trait.NAMES in operation.traits else None

    def close(self) -> None:
        """Take no more. Nobody waits for a look-up that may take as long as it likes."""
        self.probes.pool.shutdown()
        self.checks.pool.shutdown(cancel_futures=True)
        self.names.pool.shutdown(wait=False, cancel_futures=True)
