"""Items: what is to be committed, and how those who wait for it hear when it is.

Promises: an item is finished exactly once; threads that wait for items of one group are woken one by one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import ClassVar

import msgspec

from headwater import threads

WAKE_S_MAX = 1.0
"""After this a waiting thread looks for itself, in case the one that was to wake it is gone."""


class Item(msgspec.Struct, eq=False, kw_only=True):
    """Something to be committed, and a way to hear when it is."""

    is_awaited: ClassVar[bool] = True
    """Whether a thread waits for it, unless it has a future: that thread may come back at once with another."""
    is_answered_late: ClassVar[bool] = False
    """Whether it is answered when all subscribers were told, if those are very many, and not once it is on disk."""

    weight: int = 1
    error: BaseException | None = None
    future: Future[object] | None = None
    is_finished: bool = False
    is_blocking: bool = False
    """Whether its caller waits from the start, and so can wake the next of the group."""
    _next: Item | None = None
    _done: threads.Lock | None = None
    """Held until it is finished; None as long as nobody waits for it, as most are committed by who would."""

    @property
    def roots(self) -> Sequence[str]:
        """The roots that it touches: items that touch the same one are committed in their order."""
        return ()

    def result(self) -> object:
        """What the waiting caller or the future gets."""
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether nobody has finished it yet."""
        return not self.is_finished

    def finish(self, error: BaseException | None = None) -> None:
        """Called by the committing thread, once."""
        self.error = error
        self.is_finished = True
        if self._done is not None and not self.is_blocking:
            self._done.release()
        future = self.future
        if future is not None and future.set_running_or_notify_cancel():
            if error is None:
                future.set_result(self.result())
            else:
                future.set_exception(error)

    def expect(self) -> None:
        """Its caller waits from now on, before anybody can finish it."""
        self._done = threads.Lock()
        self._done.acquire()
        self.is_blocking = True

    def wait(self) -> None:
        """Block until it is committed; raises what went wrong."""
        if self.is_blocking or not self.is_finished:
            self._block()
        if self.error is not None:
            raise self.error

    def _block(self) -> None:
        done = self._done
        if done is None:
            done = threads.Lock()
            done.acquire()
            self._done = done  # who finishes it notes that first, and looks for this then
            if self.is_finished:
                return
        while not done.acquire(timeout=WAKE_S_MAX):
            if self.is_finished:
                break
        else:
            done.release()
        self._wake_next()

    def _wake_next(self) -> None:
        if self._next is not None and self._next._done is not None:
            self._next._done.release()

    @staticmethod
    def wake(items: Sequence[Item]) -> None:
        """Let those go who wait for these: the first, who lets the second go, and so on.

        If all were woken at once they would fight for the interpreter's lock, which costs more than the commit.
        """
        blocking = [item for item in items if item.is_blocking]
        for item, following in pairwise(blocking):
            item._next = following
        if blocking and blocking[0]._done is not None:
            blocking[0]._done.release()


class Call(Item):
    """Something to be done while no group is being committed."""

    work: Callable[[], object]
    answer: object = None

    def run(self) -> None:
        """Do it, in the committing thread."""
        try:
            self.answer = self.work()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.finish(error)
        else:
            self.finish()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the system had no memory, be it for Python or for a call to the system."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
