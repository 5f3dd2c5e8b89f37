"""A live subscription: no id and no state; a bounded buffer that is gone with its `with` block.

Promises: messages come in publish order; never more than the buffer's limits wait; what is dropped is counted; retained
messages come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.reader import Reader, check_max
from headwater.delivery.selection import Selection
from headwater.errors import Closed, Malformed
from headwater.message import OF_LIVE, Message, Receipt, Unacked

Policy = Literal["drop_oldest", "disconnect"]


class Live(Reader):
    """What `bus.subscribe(filter)` without an id gives."""

    wants_places: ClassVar[bool] = True
    takes_early: ClassVar[bool] = True

    def __init__(
        self,
        filter: str,
        policy: Policy,
        config: Config,
        clock: Clock,
        reply: Callable[[Message, bytes], Receipt],
        on_close: Callable[[Live], None],
    ) -> None:
        if policy not in ("drop_oldest", "disconnect"):
            raise Malformed(f'when_full is {policy!r}; use "drop_oldest" or "disconnect"')
        self.filter = filter
        self.dropped = 0
        """Messages that were dropped because this reader was too slow."""
        self._policy = policy
        self._config = config
        self._clock = clock
        self._origin = Unacked(OF_LIVE, reply)
        self._on_close = on_close
        self._lock = threads.Lock()
        self._changed = threads.Condition(self._lock)
        self._waiting = 0
        """Threads that wait for a change."""
        self.hand: Callable[[Selection], bool] | None = None
        """Takes what is shown early at once, past the buffer; False if it cannot at the moment."""
        self._reading = threads.Lock()
        """Held by the reader, so that messages are made outside of the lock that the committing thread takes."""
        self._buffer: deque[Selection] = deque()
        self._ready: deque[Message] = deque()
        self._messages = 0
        self._bytes = 0
        self.ended: str | None = None
        """Why nothing comes any more; None while something may."""
        self._wakers: list[Callable[[], None]] = []

    # Filled by the committing thread

    def greet(self, retained: list[Message]) -> None:
        """Retained messages come before all others."""
        over = len(retained) - self._config.live_messages_max
        if over > 0 and self._policy == "disconnect":
            self.ended = self._too_slow()
            return
        self.dropped += max(0, over)
        self._ready.extend(
            msgspec.structs.replace(message, origin=self._origin) for message in retained[max(0, over) :]
        )

    def deliver(self, selection: Selection) -> None:
        """Messages that match are durable, or shown before they are."""
        batch = selection.batch
        assert batch is not None
        may_pass = batch.is_early and self.hand is not None and not self._buffer and self.ended is None
        if may_pass and self.hand is not None and self.hand(selection):
            return
        with self._lock:
            if self.ended is not None:
                return
            self._buffer.append(selection)
            self._messages += selection.count
            self._bytes += len(batch.data)
            if self._messages > self._config.live_messages_max or self._bytes > self._config.live_bytes_max:
                self._overflow()
            if self._waiting:
                self._changed.notify()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def _overflow(self) -> None:
        config = self._config
        if self._policy == "disconnect":
            self._buffer.clear()
            self.ended = self._too_slow()
            return
        while self._buffer:
            oldest = self._buffer[0]
            over = self._messages - config.live_messages_max
            if over < oldest.count and (self._bytes <= config.live_bytes_max or len(self._buffer) == 1):
                break
            self._buffer.popleft()
            self._forget(oldest)
            self.dropped += oldest.count
        if over > 0:
            self._buffer[0] = oldest.cut(over)[1]
            self._messages -= over
            self.dropped += over

    def _too_slow(self) -> str:
        return (
            f'the reader of "{self.filter}" was too slow: more than {self._config.live_messages_max} messages '
            f"(live_messages_max) or {self._config.live_bytes_max} bytes (live_bytes_max) waited; read faster, or "
            'subscribe with when_full="drop_oldest" or with an id'
        )

    def _forget(self, selection: Selection) -> None:
        assert selection.batch is not None
        self._messages -= selection.count
        self._bytes -= len(selection.batch.data)

    # Drained by the reader

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""
        check_max(max)
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            # Not held while waiting: another thread that reads too has a timeout of its own.
            with self._reading:
                if not self._ready:
                    found = self.take()
                    if found is not None:
                        self._ready.extend(found.taken(self._origin))
                if self._ready:
                    return [self._ready.popleft() for _ in range(min(max, len(self._ready)))]
            if not self._await(until_us):
                return []

    def take_retained(self) -> Message | None:
        """The next of the retained messages that come first."""
        return self._ready.popleft() if self._ready else None

    def take(self) -> Selection | None:
        """The oldest messages that came together, if there are any, without those whose ttl is over."""
        with self._lock:
            if not self._buffer:
                return None
            found = self._buffer.popleft()
            self._forget(found)
        return self._still_valid(found)

    def _await(self, until_us: int | None) -> bool:
        """Wait for a batch; False when the time has passed."""
        with self._changed:
            while not self._buffer:
                if self.ended is not None:
                    raise Closed(self.ended)
                left_us = None if until_us is None else until_us - self._clock.monotonic_us()
                if left_us is not None and left_us <= 0:
                    return False
                self._waiting += 1
                try:
                    if not self._clock.wait(self._changed, left_us) and left_us is not None:
                        until_us = 0  # one last look
                finally:
                    self._waiting -= 1
            return True

    def _still_valid(self, selection: Selection) -> Selection:
        batch = selection.batch
        if batch is None or batch.body.expiries is None:
            return selection
        expiries, now_us = batch.body.expiries, self._clock.now_us()
        there = range(batch.count) if selection.places is None else selection.places
        return Selection(batch.root, batch, [place for place in there if not 0 < expiries[place] <= now_us])

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                found = self.batch(1000)
            except Closed:
                if self.ended in (CLOSED_BY_USER, BUS_CLOSED):
                    return
                raise
            yield from found

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call this, from the committing thread, whenever something arrives."""
        with self._changed:
            self._wakers.append(wake)

    def close(self) -> None:
        """Leave; what is buffered is gone."""
        self.end(CLOSED_BY_USER)
        self._on_close(self)

    def end(self, reason: str) -> None:
        """Wake the reader for good."""
        with self._changed:
            if self.ended is None:
                self.ended = reason
            self._buffer.clear()
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()


BUS_CLOSED = "the bus is closed; open it again"
CLOSED_BY_USER = "the subscription is closed; subscribe again to go on"
