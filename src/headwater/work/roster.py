"""Round-robin over the queues that have messages.

A queue that had its turn goes to the end, so that each waits for no more than one turn of the others. No
I/O and no locks: whoever runs workers calls it from one thread at a time.
"""

from __future__ import annotations

from collections import deque

from headwater.work.handlers import Handler
from headwater.work.queue import Queue


class Roster:
    """The queues of a pool of workers."""

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        self._line: deque[Queue] = deque()

    def add(self, queue: Queue) -> None:
        """One more."""
        self.queues.append(queue)

    def of(self, handler: Handler) -> Queue | None:
        """The one that has the handler's subscription."""
        return next((one for one in self.queues if one.handler.shares_with(handler) and not one.is_over), None)

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more, of any queue."""
        return all(queue.is_over for queue in self.queues)

    @property
    def is_crowded(self) -> bool:
        """Whether more than one queue waits for a worker."""
        return len(self._line) > 1

    def at_work(self) -> list[Queue]:
        """Queues that somebody works on, that wait for it, or that could not be read."""
        return [one for one in self.queues if one.workers or one.is_queued or one.retry_us is not None]

    def tick_us(self, longest_us: int, shortest_us: int) -> int:
        """How long to wait before it is looked for what waits too long: several times within each ack timeout."""
        timeout_us = min((one.timeout_us for one in self.queues if one.timeout_us), default=longest_us * 6)
        return max(shortest_us, min(longest_us, timeout_us // 6))

    def wake(self, queue: Queue) -> bool:
        """There may be something to do in a queue; whether it waits for a worker now, and did not before."""
        if queue.is_queued or queue.is_over:
            return False
        if queue.workers >= queue.limit:
            queue.is_more = True
            return False
        queue.is_queued = True
        self._line.append(queue)
        return True

    def next(self) -> Queue | None:
        """Whose turn it is: a worker is at it from now on."""
        if not self._line:
            return None
        queue = self._line.popleft()
        queue.is_queued = queue.is_more = False
        queue.workers += 1
        return queue

    def leave(self, queue: Queue, is_more: bool) -> bool:
        """A worker has had its turn at a queue; whether that waits for another."""
        queue.workers -= 1
        return (is_more or queue.is_more) and self.wake(queue)

    def end(self, queue: Queue) -> None:
        """Nothing will come of a queue any more."""
        queue.is_over = True
