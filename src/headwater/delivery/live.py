"""A live subscription: no id and no state; a bounded buffer that is gone with its `with` block.

Promises: messages come in publish order; never more than the buffer's limits wait; what is dropped is counted; retained
messages come first, all of them, at the pace of the reader: they are read a slice at a time, and none is dropped.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.config import Config
from headwater.delivery.options import check_when_full
from headwater.delivery.reader import Reader, check_take
from headwater.delivery.retained import RetainedReading
from headwater.delivery.selection import Selection
from headwater.errors import Closed
from headwater.message import OF_LIVE, Message, Receipt, Unacked
from headwater.payload import Payload

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
        reply: Callable[[Message, Payload], Receipt],
        on_close: Callable[[Live], None],
    ) -> None:
        check_when_full(policy, "live")
        self.filter = filter
        self.dropped = 0
        """Messages that were dropped because this reader was too slow."""
        self._policy = policy
        self._config = config
        self._clock = clock
        self._origin = Unacked(OF_LIVE, reply)
        self._on_close = on_close
        self._lock = threads.Lock()
        self._changed: threads.Condition | None = None
        """Made for the first thread that waits: most of a server's never have one, and there are many."""
        self._waiting = 0
        """Threads that wait for a change."""
        self.hand: Callable[[Selection], bool] | None = None
        """Takes what is shown early at once, past the buffer; False if it cannot at the moment."""
        self._reading = threads.Lock()
        """Held by the reader, so that messages are made outside of the lock that the committing thread takes."""
        self._buffer: deque[Selection | RetainedReading] = deque()
        """What comes, in order; what is retained has its place in it, and is read when that is reached."""
        self._ready: deque[Message] | None = None
        """Messages that are made, and that the reader did not take at once; None before there is a reader here."""
        self._messages = 0
        self._bytes = 0
        self.ended: str | None = None
        """Why nothing comes any more; None while something may."""
        self._wakers: list[Callable[[], None]] = []

    # Filled by the committing thread

    def greet(self, retained: RetainedReading) -> None:
        """Retained messages come before all that comes from now on. Those that somebody asked for and that are not
        begun yet come with them."""
        with self._lock:
            if self.ended is not None or retained.is_over:
                return
            for earlier in [one for one in self._buffer if isinstance(one, RetainedReading)]:
                if earlier is not self._buffer[0]:
                    self._buffer.remove(earlier)
            self._buffer.append(retained)
            if self._changed is not None and self._waiting:
                self._changed.notify()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

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
            if self._changed is not None and self._waiting:
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
        at = 0
        while True:
            oldest = self._buffer[at]
            if isinstance(oldest, RetainedReading):
                at += 1  # it takes no room here
                continue
            over = self._messages - config.live_messages_max
            if over < oldest.count and (self._bytes <= config.live_bytes_max or at == len(self._buffer) - 1):
                break
            del self._buffer[at]
            self._forget(oldest)
            self.dropped += oldest.count
        if over > 0:
            self._buffer[at] = oldest.cut(over)[1]
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
        check_take(max, timeout_s)
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            # Not held while waiting: another thread that reads too has a timeout of its own.
            with self._reading:
                ready = self._ready
                if ready is None:
                    ready = self._ready = deque()
                while len(ready) < max:
                    found = self.take()
                    if found is not None:
                        ready.extend(found.taken(self._origin))
                    elif self.is_unread and not ready:
                        self.read_on()
                    else:
                        break
                if ready:
                    return [ready.popleft() for _ in range(min(max, len(ready)))]
            if not self._await(until_us):
                return []

    @property
    def is_unread(self) -> bool:
        """Whether the next are retained messages, which somebody has to `read_on` for."""
        buffer = self._buffer
        try:
            first = buffer[0] if buffer else None
        except IndexError:  # it was taken, or has ended, meanwhile
            return False
        return isinstance(first, RetainedReading) and first.is_unread

    def read_on(self) -> None:
        """Read the next retained messages. This takes its time, and holds nobody up; one thread at a time."""
        with self._lock:
            first = self._buffer[0] if self._buffer else None
        if isinstance(first, RetainedReading) and first.is_unread:
            try:
                first.read_on()
            except Exception:
                if self.ended is None:  # else nobody wants it any more
                    raise

    def take(self) -> Selection | None:
        """The oldest messages that came together, if there are any in memory, without those whose ttl is over."""
        with self._lock:
            while self._buffer:
                found = self._buffer[0]
                if isinstance(found, RetainedReading):
                    selection = found.take()
                    if found.is_over:
                        self._buffer.popleft()
                    elif selection is None:
                        return None
                    if selection is not None:
                        return selection
                    continue
                self._buffer.popleft()
                self._forget(found)
                return self._still_valid(found)
            return None

    def _await(self, until_us: int | None) -> bool:
        """Wait for a batch; False when the time has passed."""
        with self._lock:
            changed = self._changed
            if changed is None:
                changed = self._changed = threads.Condition(self._lock)
            while not self._buffer:
                if self.ended is not None:
                    raise Closed(self.ended)
                left_us = None if until_us is None else until_us - self._clock.monotonic_us()
                if left_us is not None and left_us <= 0:
                    return False
                self._waiting += 1
                try:
                    if not self._clock.wait(changed, left_us) and left_us is not None:
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
        places = [place for place in there if not 0 < expiries[place] <= now_us]
        return Selection(batch.root, batch, len(places), places)

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
        with self._lock:
            self._wakers.append(wake)

    def close(self) -> None:
        """Leave; what is buffered is gone."""
        self.end(CLOSED_BY_USER)
        self._on_close(self)

    def end(self, reason: str) -> None:
        """Wake the reader for good."""
        with self._lock:
            if self.ended is None:
                self.ended = reason
            self._buffer.clear()
            if self._changed is not None:
                self._changed.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()


class Ear:
    """Hears for a live subscription, as long as somebody holds that.

    It is what others hold of it: one that was forgotten, as by `for … in bus.subscribe(…): break`, is collected.
    """

    __slots__ = ("_live",)

    wants_places: ClassVar[bool] = True
    takes_early: ClassVar[bool] = True

    def __init__(self, live: Live) -> None:
        self._live = weakref.ref(live)

    def deliver(self, selection: Selection) -> None:
        """Messages that match are durable, or shown before they are."""
        live = self._live()
        if live is not None:
            live.deliver(selection)

    def end(self) -> None:
        """Wake its reader for good."""
        live = self._live()
        if live is not None:
            live.end(BUS_CLOSED)


BUS_CLOSED = "the bus is closed; open it again"
CLOSED_BY_USER = "the subscription is closed; subscribe again to go on"
