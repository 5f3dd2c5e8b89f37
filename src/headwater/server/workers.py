"""Workers: threads for what blocks, in which all clients have their turn.

What one client wants done waits behind its own, and not before what others want: of those that wait, each client's
next is done in rotation. Promises: no client has all of the threads, where some are kept apart from it, so that another
finds one; what one gave is begun in the order in which it gave it; what was given before the end is done.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from headwater import threads

T = TypeVar("T")
OWN = ""
"""Who pays for what the server does by itself."""


class Workers(Executor):
    """Some threads, and who waits for one."""

    def __init__(self, name: str, count: int, apart: int = 0) -> None:
        """`apart` of the threads are never busy for one client alone."""
        self._pool = threads.ThreadPoolExecutor(count, name)
        self._count = count
        self._most = count - apart
        """How many of them one client may have."""
        self._changed = threads.Condition()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        """By client; whose turn is next comes first."""
        self._running: Counter[str] = Counter()
        self._is_closed = False

    def of(self, payer: str) -> Executor:
        """The same threads, for what is done for one client."""
        return _Turns(self, payer)

    def submit(self, work: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        """Have something of the server's own done."""
        return self.submit_for(OWN, partial(work, *given, **named))

    def submit_for(self, payer: str, work: Callable[[], T]) -> Future[T]:
        """Have something done for a client; RuntimeError once there are no threads any more."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the server has ended")
            self._waiting.setdefault(payer, deque()).append((future, work))
            self._begin()
        return future

    def _begin(self) -> None:
        """Keep the threads busy; for whoever has the lock."""
        while self._running.total() < self._count:
            payer = next((one for one in self._waiting if self._running[one] < self._most_of(one)), None)
            if payer is None:
                return
            waiting = self._waiting[payer]
            future, work = waiting.popleft()
            if waiting:
                self._waiting.move_to_end(payer)
            else:
                del self._waiting[payer]
            if future.set_running_or_notify_cancel():
                self._running[payer] += 1
                self._pool.submit(work).add_done_callback(partial(self._on_done, payer, future))

    def _most_of(self, payer: str) -> int:
        return self._most if payer else self._count

    def _on_done(self, payer: str, future: Future[T], done: Future[T]) -> None:
        """In the thread that did it, which is free in a moment."""
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)
        with self._changed:
            self._running[payer] -= 1
            if not self._running[payer]:
                del self._running[payer]
            self._begin()
            if self._is_closed and not self._running:
                self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; return when all that was given is done, or with `cancel_futures` what has begun."""
        with self._changed:
            self._is_closed = True
            dropped = [future for waiting in self._waiting.values() for future, _ in waiting] if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for future in dropped:
            future.cancel()
        with self._changed:
            while wait and self._running:
                self._changed.wait()
        self._pool.shutdown(wait)


class _Turns(Executor):
    """The workers, as one client has them."""

    __slots__ = ("_payer", "_workers")

    def __init__(self, workers: Workers, payer: str) -> None:
        self._workers = workers
        self._payer = payer

    def submit(self, work: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        return self._workers.submit_for(self._payer, partial(work, *given, **named))
