"""A live subscription: no id and no state; a bounded buffer that is gone with its `with` block.

Promises: messages come in publish order; never more than the buffer's limits wait; what is dropped is counted; retained
messages come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.errors import Closed, Malformed
from headwater.log.early import Early
from headwater.log.root import Root
from headwater.message import Message, Receipt
from headwater.store.batch import Batch

Policy = Literal["drop_oldest", "disconnect"]


class Live:
    """What `bus.subscribe(filter)` without an id gives."""

    wants_places: ClassVar[bool] = True

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
        self._reply = reply
        self._on_close = on_close
        self._lock = threads.Lock()
        self._changed = threads.Condition(self._lock)
        self._waiting = 0
        """Threads that wait for a change."""
        self.hand: Callable[[Batch, Sequence[int] | None], bool] | None = None
        """Takes a batch at once, past the buffer, from whoever shows it early; False if it cannot at the moment."""
        self.hand_one: Callable[[Early], bool] | None = None
        """The same for one message; those who set none get a batch."""
        self._reading = threads.Lock()
        """Held by the reader, so that messages are made outside of the lock that the committing thread takes."""
        self._batches: deque[tuple[Batch, Sequence[int] | None, int]] = deque()
        self._ready: deque[Message] = deque()
        self._messages = 0
        self._bytes = 0
        self._closed: str | None = None
        self._wakers: list[Callable[[], None]] = []

    # The thread that commits puts in.

    def greet(self, retained: list[Message]) -> None:
        """Retained messages come before all others."""
        over = len(retained) - self._config.live_messages_max
        if over > 0 and self._policy == "disconnect":
            self._closed = self._too_slow()
            return
        self.dropped += max(0, over)
        self._ready.extend(msgspec.structs.replace(message, origin=self) for message in retained[max(0, over) :])

    def on_batch(self, root: Root, batch: Batch, places: Sequence[int] | None) -> None:
        """A batch with messages that match is durable, or shown before it is."""
        count = batch.header.count if places is None else len(places)
        with self._lock:
            if self._closed is not None:
                return
            self._batches.append((batch, places, count))
            self._messages += count
            self._bytes += len(batch.data)
            if self._messages > self._config.live_messages_max or self._bytes > self._config.live_bytes_max:
                self._overflow()
            if self._waiting:
                self._changed.notify()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def on_early(self, root: Root, batch: Batch, places: Sequence[int] | None) -> None:
        """A batch that nobody waits for is on its way to disk."""
        if self.hand is None or self._batches or self._closed is not None or not self.hand(batch, places):
            self.on_batch(root, batch, places)

    def on_one(self, root: Root, early: Early) -> None:
        """One message that nobody waits for is on its way to disk."""
        if self.hand_one is None or self._batches or self._closed is not None or not self.hand_one(early):
            self.on_early(root, early.batch, None)

    def _overflow(self) -> None:
        config = self._config
        if self._policy == "disconnect":
            self._batches.clear()
            self._closed = self._too_slow()
            return
        while self._batches:
            batch, places, count = self._batches[0]
            over = self._messages - config.live_messages_max
            if over < count and (self._bytes <= config.live_bytes_max or len(self._batches) == 1):
                break
            self._batches.popleft()
            self._forget(batch, count)
            self.dropped += count
        if over > 0:
            kept = (range(batch.header.count) if places is None else places)[over:]
            self._batches[0] = (batch, kept, count - over)
            self._messages -= over
            self.dropped += over

    def _too_slow(self) -> str:
        return (
            f'the reader of "{self.filter}" was too slow: more than {self._config.live_messages_max} messages '
            f"(live_messages_max) or {self._config.live_bytes_max} bytes (live_bytes_max) waited; read faster, or "
            'subscribe with when_full="drop_oldest" or with an id'
        )

    def _forget(self, batch: Batch, count: int) -> None:
        self._messages -= count
        self._bytes -= len(batch.data)

    # The reader takes out.

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when the time has passed."""
        found = self.batch(1, timeout_s)
        return found[0] if found else None

    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""
        check_max(max)
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            # Not held while waiting: another thread that reads too has a timeout of its own.
            with self._reading:
                if not self._ready:
                    batch = self.take_batch()
                    if batch is not None:
                        self._ready.extend(self._messages_of(*batch))
                if self._ready:
                    return [self._ready.popleft() for _ in range(min(max, len(self._ready)))]
            if not self._await(until_us):
                return []

    def take_retained(self) -> Message | None:
        """The next of the retained messages that come first."""
        return self._ready.popleft() if self._ready else None

    def take_batch(self) -> tuple[Batch, Sequence[int] | None] | None:
        """The oldest batch, if there is one, and the places of the messages in it that match; None for all."""
        with self._lock:
            if not self._batches:
                return None
            batch, places, count = self._batches.popleft()
            self._forget(batch, count)
            return batch, places

    def _await(self, until_us: int | None) -> bool:
        """Wait for a batch; False when the time has passed."""
        with self._changed:
            while not self._batches:
                if self._closed is not None:
                    raise Closed(self._closed)
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

    def still_valid(self, batch: Batch, places: Sequence[int] | None) -> tuple[Batch, Sequence[int] | None]:
        """The same places without those whose ttl is over."""
        expiries = batch.body.expiries
        if expiries is None:
            return batch, places
        now_us = self._clock.now_us()
        there = range(batch.header.count) if places is None else places
        return batch, [place for place in there if not 0 < expiries[place] <= now_us]

    def _messages_of(self, batch: Batch, places: Sequence[int] | None) -> list[Message]:
        return batch.body.messages(batch.first_offset, self.still_valid(batch, places)[1], self)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                found = self.batch(1000)
            except Closed:
                if self._closed in (CLOSED_BY_USER, BUS_CLOSED):
                    return
                raise
            yield from found

    @property
    def ended(self) -> str | None:
        """Why nothing comes any more; None while something may."""
        return self._closed

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
            if self._closed is None:
                self._closed = reason
            self._batches.clear()
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a message of it can be asked.

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        """Nothing is kept about a live subscription, so there is nothing to note."""

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        raise Malformed("a live subscription keeps nothing to hand out again; subscribe with an id for that")

    def reject(self, message: Message, error: str | BaseException) -> None:
        raise Malformed("a live subscription has no dead letters; subscribe with an id for that")

    def extend(self, message: Message, seconds: float) -> None:
        raise Malformed("a live subscription has no ack timeout; subscribe with an id for that")

    def reply(self, message: Message, payload: bytes) -> Receipt:
        return self._reply(message, payload)


def check_max(max: int) -> None:
    """Malformed unless a batch of so many can be asked for."""
    if type(max) is not int or max < 1:
        raise Malformed(f"a batch of {max!r} messages; ask for 1 or more")


BUS_CLOSED = "the bus is closed; open it again"
CLOSED_BY_USER = "the subscription is closed; subscribe again to go on"
