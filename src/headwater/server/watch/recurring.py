"""Work of the server's own that comes again and again, in a thread beside the loop, one run after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from headwater.server.log import Log

log = Log("headwater.server")


class Recurring:
    """Does something every few seconds, from `every_s` on; a run that fails is told in the log, and the next comes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        work: Callable[[], None],
        every_s: float,
        trouble: str,
    ) -> None:
        """`trouble` is the event of the log when a run failed; with `every_s` 0 it is never done."""
        self._loop = loop
        self._executor = executor
        self._work = work
        self._every_s = every_s
        self._trouble = trouble
        self._is_stopped = False
        self._timer = loop.call_later(every_s, self._begin) if every_s else None

    @property
    def is_on(self) -> bool:
        """Whether it comes again."""
        return self._timer is not None and not self._is_stopped

    def stop(self) -> None:
        """Do it no more; a run that is under way ends."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._loop.run_in_executor(self._executor, self._work).add_done_callback(self._done)

    def _done(self, done: asyncio.Future[None]) -> None:
        if done.cancelled() or self._is_stopped:
            return
        error = done.exception()
        if error is not None:
            log.warning(self._trouble, error=repr(error))
        self._timer = self._loop.call_later(self._every_s, self._begin)
