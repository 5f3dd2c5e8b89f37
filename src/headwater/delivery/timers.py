"""One timer queue for everything that has to happen later: retries, ack timeouts, delayed messages, retention.

A thread sleeps until the earliest moment; there is one, however many wait. Each owner has at most one moment in the
queue: setting it again replaces it. Moments are of the clock that never jumps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable

from headwater import threads
from headwater.clock import Clock

Ring = Callable[[], None]


class Timers:
    """Moments at which owners want to be called."""

    def __init__(self, clock: Clock, on_trouble: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_trouble = on_trouble
        self._changed = threads.Condition()
        self._heap: list[tuple[int, int, Hashable]] = []
        self._due: dict[Hashable, tuple[int, Ring]] = {}
        self._count = 0
        self._closed = False
        self._thread: threads.Thread | None = None

    def set(self, owner: Hashable, due_us: int | None, ring: Ring) -> None:
        """Call `ring` at a monotonic moment; None takes the owner out of the queue."""
        with self._changed:
            known = self._due.get(owner)
            if due_us is None:
                self._due.pop(owner, None)
                return
            self._due[owner] = (due_us, ring)
            if known is not None and known[0] <= due_us:
                return  # at the earlier moment the thread finds out; most deadlines move on and never come
            self._push(due_us, owner)
            if len(self._heap) > 64 + 2 * len(self._due):
                self._rebuild()
            if self._thread is None and not self._closed:
                self._thread = threads.Thread(target=self._run, name="headwater-timers", daemon=True)
                self._thread.start()
            elif self._heap[0][0] == due_us:
                self._changed.notify()

    def _push(self, due_us: int, owner: Hashable) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due_us, self._count, owner))

    def _rebuild(self) -> None:
        """Drop the moments that were replaced meanwhile."""
        self._heap = [(due_us, number, owner) for number, (owner, (due_us, _)) in enumerate(self._due.items())]
        heapq.heapify(self._heap)

    def close(self) -> None:
        """Ring for nobody any more."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._heap.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threads.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                ring = self._next()
            if ring is not None:
                try:
                    ring()
                except Exception as error:
                    self._on_trouble(f"a timer failed: {error!r}")

    def _next(self) -> Ring | None:
        """Who is to be called now; waits if nobody is."""
        while self._heap:
            due_us, _, owner = self._heap[0]
            known = self._due.get(owner)
            if known is None or known[0] != due_us:
                heapq.heappop(self._heap)
                if known is not None and known[0] > due_us:
                    self._push(known[0], owner)
                continue
            remaining_us = due_us - self._clock.monotonic_us()
            if remaining_us > 0:
                self._clock.wait(self._changed, remaining_us)
                return None
            heapq.heappop(self._heap)
            del self._due[owner]
            return known[1]
        self._clock.wait(self._changed, None)
        return None
