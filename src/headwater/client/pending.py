"""Receipts that are on their way: futures that are made and settled by the thousand.

They are `concurrent.futures.Future`s to whoever has one. All of a client share one lock, and a thread that waits for
one brings what wakes it: a frame that a thousand messages went with is answered under the lock once, and wakes nobody
but those who wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from typing import Any

from headwater import threads
from headwater.message import Receipt

OVER = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)


class _Waiter:
    """A thread that waits for one of them; what `concurrent.futures` calls it by."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = threads.Event()

    def wait(self, timeout: float | None) -> None:
        """Wait until it is settled, or the time has passed."""
        self._woken.wait(timeout)

    def add_result(self, _: Future[Receipt]) -> None:
        """It is settled."""
        self._woken.set()

    add_exception = add_cancelled = add_result


class Pending(Future[Receipt]):
    """The receipt of one message, once there is one."""

    def __init__(self, lock: threads.Condition) -> None:
        """`lock` is shared; nothing is made here that few need."""
        self._condition = lock
        self._state = PENDING
        self._result: Receipt | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    @staticmethod
    def settle(lock: threads.Condition, settled: Iterable[tuple[Pending, Receipt]]) -> None:
        """These have their receipts; those that were cancelled stay so."""
        called: list[Pending] = []
        with lock:
            for one, receipt in settled:
                if one._state in OVER:
                    continue
                one._result, one._state = receipt, FINISHED
                for waiter in one._waiters:
                    waiter.add_result(one)
                if one._done_callbacks:
                    called.append(one)
        for one in called:
            one._invoke_callbacks()  # type: ignore[attr-defined]  # as `set_result` does

    def cancel(self) -> bool:
        """Nobody wants the receipt any more; the message may be stored all the same."""
        is_cancelled = super().cancel()
        if is_cancelled:
            with self._condition:
                waiters = [waiter for waiter in self._waiters if isinstance(waiter, _Waiter)]
            for waiter in waiters:
                waiter.add_cancelled(self)
        return is_cancelled

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt; waits for it."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, or None; waits until that is known."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        if self._state in OVER:
            return
        waiter = _Waiter()
        with self._condition:
            if self._state in OVER:
                return
            self._waiters.append(waiter)
        waiter.wait(timeout)
        with self._condition:
            self._waiters.remove(waiter)
