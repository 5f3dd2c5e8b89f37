"""A feed: what a subscription is sent, until its reader takes it.

The loop puts batches in as they arrive; readers, in whatever thread, take messages out, which are made only then. What
was taken gives the server credit to send more, half a window at a time, and for a durable subscription starts the
timer of its acks. Invariants:

- Never more than a window (`prefetch_messages`, `prefetch_bytes`) waits here, but for the batch that goes over it.
- What the server recalls is not delivered after that. When the connection is lost, what waits here of a durable
  subscription is dropped, since it is redelivered; what was delivered belongs to an older epoch, and cannot be acked.
- A feed of history keeps how far it got in each root, and goes on from there: no gap, no repeat.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from headwater import threads
from headwater.client.link import renewed
from headwater.clock import SECOND_US, Clock
from headwater.errors import Gap, HeadwaterError, Malformed, Recalled
from headwater.message import OF_HISTORY, OF_LIVE, Message
from headwater.payload import Payload
from headwater.store.body import Body
from headwater.verdicts import error_text
from headwater.wire import requests as wire
from headwater.wire.batches import Range
from headwater.wire.contents import Deliver
from headwater.wire.request import Request

SOME = 16
"""A reader that has taken all there is gives credit back once this part of a window is used: not for each message, as
that would be a frame of its own for each."""
_offset = attrgetter("offset")
_origin = attrgetter("origin")


class Held(msgspec.Struct, eq=False, weakref=True):
    """Origin of the messages of one lease: carries out `message.ack()`, `nack()`, `reject()`, `extend()`, `reply()`."""

    feed: Feed
    verbs: Verbs
    """Sends them: for threads, or for asyncio."""
    lease: int
    epoch: int
    offsets: Sequence[int] | None
    """Those of the lease; None if they are dense."""

    def ack(self, messages: Sequence[Message], wait: bool) -> Any:
        return self.verbs.ack(self.feed, messages, wait)

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> Any:
        return self._tell("nack", wire.Nack, message, error=error_text(error), delay_s=delay_s)

    def reject(self, message: Message, error: str | BaseException) -> Any:
        return self._tell("reject", wire.Reject, message, error=error_text(error))

    def extend(self, message: Message, seconds: float) -> Any:
        return self._tell("extend", wire.Extend, message, seconds=seconds)

    def _tell(self, verb: str, request: Callable[..., Request[None]], message: Message, **said: Any) -> Any:
        make = partial(request, number=self.feed.number, offset=message.offset, **said)
        return self.verbs.tell(self.feed, verb, message, make)

    def reply(self, message: Message, payload: Payload) -> Any:
        return self.verbs.reply(message, payload)


class Chunk(msgspec.Struct, eq=False):
    """A batch that has arrived, and how much of it was taken."""

    deliver: Deliver
    held: Held
    count: int
    bytes_left: int
    at: int = 0
    messages: list[Message] | None = None

    def decode(self, now_us: int | None) -> list[Message]:
        """Make its messages; with a time, those that have expired by then are left out."""
        if self.messages is not None:
            return self.messages
        deliver, held = self.deliver, self.held
        try:
            body = Body(deliver.body)
        except (ValueError, UnicodeDecodeError, IndexError) as error:
            raise Malformed(f"a batch of {deliver.root!r} cannot be read: {error}") from None
        found = body.messages(deliver.first_offset, None, held, deliver.is_retained)
        deltas, attempt = deliver.deltas, deliver.attempt
        if deltas is not None or attempt != 1:
            first = deliver.first_offset
            offsets = range(first, first + len(found)) if deltas is None else [first + delta for delta in deltas]
            found = [
                Message(
                    m.topic, offset, m.payload, m.time_us, m.key, m.header_pairs, m.retained, attempt, held, m.retain
                )
                for m, offset in zip(found, offsets, strict=True)
            ]
        if now_us is not None and body.expiries is not None:
            found = [m for m, expiry in zip(found, body.expiries, strict=True) if not 0 < expiry <= now_us]
        return found


ReadUntil = Callable[[Callable[[], bool], float | None], None]
"""Reads from the socket in the caller's thread, if it may, until something has come or the timeout is over."""


class Verbs(Protocol):
    """How a shell, for threads or for asyncio, sends acks and the like."""

    def ack(self, feed: Feed, messages: Sequence[Message], wait: bool) -> Any: ...
    def tell(self, feed: Feed, verb: str, message: Message, make: Callable[..., Request[None]]) -> Any: ...
    def reply(self, message: Message, payload: Payload) -> Any: ...


class Feed:
    """What one subscription is sent."""

    def __init__(
        self,
        number: int,
        kind: str,
        filter: str,
        id: str | None,
        window: tuple[int, int],
        clock: Clock,
        verbs: Verbs,
        flush: Callable[[Feed], None],
    ) -> None:
        """`flush` is called, from any thread, when TAKEN or CREDIT is due: see `owed`."""
        self.number = number
        self.kind = kind
        self.filter = filter
        self.id = id
        self.is_open = False
        """Whether the server has confirmed it."""
        self.readers = 1
        """Consumers that take from it."""
        self.takers: set[int] = set()
        """Those of them that have taken something."""
        self.is_given_back = False
        """Whether what the server has sent is being given back to it: until that is through, nothing is taken."""
        self.retire: Callable[[], None] | None = None
        """Have the only reader, which nobody holds any more, leave now rather than once its messages are let go of."""
        self.dropped = 0
        """Messages of a live one that the server dropped because this reader was too slow."""
        self.epoch = 0
        """Rises with each connection."""
        self.places: dict[str, int] = {}
        """Per root, the last offset that has arrived."""
        self._window_messages, self._window_bytes = window
        self._clock = clock
        self._verbs = verbs
        self._flush = flush
        self._dropped_before = 0
        self._lock = threads.Lock()
        self._changed = threads.Condition(self._lock)
        self._reading = threads.Lock()
        """Held while messages are made, so that the loop does not wait for it."""
        self._chunks: deque[Chunk | Gap] = deque()
        self._waiting = 0
        self._wakers: list[Callable[[], None]] = []
        self._used_messages = 0
        self._used_bytes = 0
        self._taken: list[Range] = []
        self._is_flushing = False
        self.error: HeadwaterError | None = None
        """Why nothing comes any more."""
        self._is_over = False

    @property
    def is_durable(self) -> bool:
        """Whether its messages are acked."""
        return self.kind in ("named", "session")

    # Filled in the loop

    def put(self, deliver: Deliver) -> None:
        """A batch has arrived."""
        deltas = deliver.deltas
        last = deliver.first_offset + (deltas[-1] if deltas else deliver.count - 1)
        if not deliver.is_retained:
            self.places[deliver.root] = max(last, self.places.get(deliver.root, 0))
        offsets = None if deltas is None else [deliver.first_offset + delta for delta in deltas]
        held = Held(self, self._verbs, deliver.lease, self.epoch, offsets)
        with self._lock:
            if self.error is None and not self.is_given_back:
                self._chunks.append(Chunk(deliver, held, deliver.count, len(deliver.body)))
        self.wake()

    def messages_of(self, deliver: Deliver) -> list[Message]:
        """The messages of a batch, for whoever has them as they come: then nothing is put in here."""
        held = Held(self, self._verbs, deliver.lease, self.epoch, None)
        return Chunk(deliver, held, deliver.count, 0).decode(None)

    def put_gap(self, gap: Gap) -> None:
        """Messages are gone: the reader gets the gap once, in order."""
        self.places[gap.root] = max(gap.last, self.places.get(gap.root, 0))
        with self._lock:
            self._chunks.append(gap)
        self.wake()

    def recall(self, ranges: Sequence[Range]) -> None:
        """Drop what the server has recalled, as far as the reader has not taken it."""
        with self._lock:
            for lease, first, last in ranges:
                for chunk in [c for c in self._chunks if isinstance(c, Chunk) and c.held.lease == lease]:
                    self._recall(chunk, first, last)
            self._note_flush()

    def _recall(self, chunk: Chunk, first: int, last: int) -> None:
        left = chunk.decode(None)[chunk.at :]
        kept = [message for message in left if not first <= message.offset <= last]
        self._used_messages += len(left) - len(kept)
        chunk.messages, chunk.at = kept, 0
        if not kept:
            self._used_bytes += chunk.bytes_left
            self._chunks.remove(chunk)

    def renew(self) -> None:
        """The connection is lost, or all was given back: leases are void, and what comes begins with a whole window."""
        with self._lock:
            self.epoch += 1
            self._taken.clear()
            self._used_messages = self._used_bytes = 0
            if self.is_durable:
                self._chunks.clear()
            else:
                for chunk in self._chunks:
                    if isinstance(chunk, Chunk):  # its credit was of the old connection
                        chunk.bytes_left = chunk.count = 0
            self._dropped_before = self.dropped

    def drop(self, count: int) -> None:
        """The server has dropped so many by now, since the subscription was made on this connection."""
        self.dropped = self._dropped_before + count

    def fail(self, error: HeadwaterError) -> None:
        """Nothing comes any more: every read raises this from now on."""
        with self._lock:
            if self.error is None and not self._is_over:
                self.error = error
                self._chunks.clear()
        self.wake()

    def finish(self) -> None:
        """History was read to its end."""
        with self._lock:
            self._is_over = True
        self.wake()

    def wake(self) -> None:
        """Wake readers."""
        if self._waiting:
            with self._lock:
                self._changed.notify_all()
        for wake in self._wakers:
            wake()

    # Drained by readers, in any thread

    @property
    def is_over(self) -> bool:
        """Whether everything was taken, and nothing more will come."""
        return self._is_over and not self._chunks

    def take(self, limit: int) -> list[Message]:
        """Up to so many messages that are there, without waiting; raises a gap, or why nothing comes any more."""
        found: list[Message] = []
        with self._reading:
            while len(found) < limit:
                head = self._head(found)
                if head is None:
                    break
                messages = head.decode(self._clock.now_us() if self.kind == "live" else None)
                with self._lock:
                    if not self._chunks or self._chunks[0] is not head:
                        continue  # recalled meanwhile
                    if head.messages is None:
                        head.messages = messages
                    more = self._take_from(head, limit - len(found))
                    self._note_flush()
                found = found + more if found else more
        return found

    def _head(self, found: Sequence[Message]) -> Chunk | None:
        """The oldest batch; what is to be raised waits until what was found before it is handed out."""
        with self._lock:
            if self.error is not None:
                if found:
                    return None
                raise renewed(self.error)
            if self.is_given_back:
                return None
            head = self._chunks[0] if self._chunks else None
            if isinstance(head, Gap):
                if found:
                    return None
                self._chunks.popleft()
                raise head
            return head

    def _take_from(self, chunk: Chunk, limit: int) -> list[Message]:
        messages = chunk.messages
        assert messages is not None
        found = messages[chunk.at : chunk.at + limit] if chunk.at or limit < len(messages) else messages
        chunk.at += len(found)
        self._used_messages += len(found) if chunk.count else 0
        if chunk.at >= len(messages):
            self._chunks.popleft()
            if chunk.count > len(messages) and not chunk.held.lease:
                self._used_messages += chunk.count - len(messages)  # expired
            self._used_bytes += chunk.bytes_left
        if found and chunk.held.lease and self.is_durable:
            self._taken.append((chunk.held.lease, found[0].offset, found[-1].offset))
        return found

    @property
    def _is_half_used(self) -> bool:
        return 2 * self._used_messages >= self._window_messages or 2 * self._used_bytes >= self._window_bytes

    @property
    def _is_some_used(self) -> bool:
        used, size = SOME * self._used_messages, SOME * self._used_bytes
        return used >= self._window_messages or size >= self._window_bytes

    def _note_flush(self) -> None:
        """Ask for a flush if one is due: half a window is used, nothing is left here and some of it is used, or timers
        are to start."""
        if self._is_flushing:
            return
        if self._taken or self._is_half_used or (not self._chunks and self._is_some_used):
            self._is_flushing = True
            self._flush(self)

    def owed(self) -> tuple[list[Range], int, int]:
        """What to send to the server, once: ranges that were taken, and the credit for them."""
        with self._lock:
            self._is_flushing = False
            taken, self._taken = self._taken, []
            messages = size = 0
            if self._is_half_used or not self._chunks:
                messages, self._used_messages = self._used_messages, 0
                size, self._used_bytes = self._used_bytes, 0
            return joined(taken), messages, size

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call this, in the loop, whenever there may be something to take."""
        self._wakers.append(wake)

    def wait(
        self, limit: int, timeout_s: float | None, check: Callable[[], None], read: ReadUntil | None = None
    ) -> list[Message]:
        """Messages, waiting for the first of them; from any thread but the loop's. Empty at the end, or in time.

        `check` raises if this reader, of possibly several, is closed. `read` reads until something is there, if this
        thread may.
        """
        until_us = None if timeout_s is None else self._clock.monotonic_us() + round(timeout_s * SECOND_US)
        while True:
            check()
            found = self.take(limit)
            if found or self.is_over:
                return found
            if read is not None and timeout_s != 0:
                read(self._is_any, None if until_us is None else self._left_us(until_us) / SECOND_US)
            if not self._await(until_us):
                return []

    def _is_any(self) -> bool:
        """Whether there is something to take, or to raise."""
        return (bool(self._chunks) and not self.is_given_back) or self.error is not None or self._is_over

    def _left_us(self, until_us: int) -> int:
        return until_us - self._clock.monotonic_us()

    def _await(self, until_us: int | None) -> bool:
        """Wait for a change, unless there is something to take; False when the time has passed."""
        with self._lock:
            if self._is_any():
                return True
            left_us = None if until_us is None else self._left_us(until_us)
            if left_us is not None and left_us <= 0:
                return False
            self._waiting += 1
            try:
                self._clock.wait(self._changed, left_us)
            finally:
                self._waiting -= 1
            return True

    def wait_batch(self, check: Callable[[], None]) -> Deliver | None:
        """The next batch as it came, waiting for it; None at the end. Not for feeds that also hand out messages."""
        while True:
            check()
            with self._reading:
                head = self._head(())
                if head is not None:
                    with self._lock:
                        self._chunks.popleft()
                        self._used_messages += head.count
                        self._used_bytes += head.bytes_left
                        self._note_flush()
                    return head.deliver
            if self.is_over:
                return None
            self._await(None)

    # Acks

    def ranges_of(self, messages: Iterable[Message], wait: bool) -> list[Range]:
        """Ranges that ack these; Recalled (409) if one of them is of an older connection, unless nobody waits."""
        by_held: dict[Held, list[int]] = {}
        given = messages if isinstance(messages, list | tuple) else list(messages)
        if given and len(set(map(_origin, given))) == 1:
            by_held[self._mine(given[0])] = list(map(_offset, given))
        else:
            for message in given:
                by_held.setdefault(self._mine(message), []).append(message.offset)
        ranges: list[Range] = []
        for held, offsets in by_held.items():
            if held.epoch != self.epoch:
                if wait:
                    raise self.recalled(offsets[0])
                continue
            ranges += _ranges(held, offsets)
        return ranges

    def _mine(self, message: Message) -> Held:
        origin = message.origin
        if isinstance(origin, Held) and origin.feed is self:
            return origin
        raise Malformed(f'this message did not come from subscription "{self.id}"; ack it where it came from')

    def refuse(self, verb: str) -> None:
        """Malformed (422) for a verb that messages of this kind do not have; an ack of a live one does nothing."""
        refusals = {} if self.is_durable else OF_LIVE if self.kind == "live" else OF_HISTORY
        if verb in refusals:
            raise Malformed(refusals[verb])

    def lease_of(self, message: Message) -> int:
        """The lease of a message that is still ours; Recalled (409) if the connection was lost since."""
        held = self._mine(message)
        if held.epoch != self.epoch:
            raise self.recalled(message.offset)
        return held.lease

    def recalled(self, offset: int) -> Recalled:
        """What an ack of a message gets that was handed out on a connection, or by a consumer, that is gone."""
        return Recalled(
            f'message {offset} of subscription "{self.id}" was handed out on a connection that was lost, or by a '
            "consumer that is closed; it comes again, unless its ack had arrived"
        )


def _ranges(held: Held, offsets: list[int]) -> list[Range]:
    """Offsets of one lease as ranges, each of messages that are adjacent in it."""
    lease, count = held.lease, len(offsets)
    first, last = offsets[0], offsets[-1]
    if held.offsets is None:
        if last - first + 1 == count and (count < 3 or offsets == list(range(first, last + 1))):
            return [(lease, first, last)]
    else:
        at = bisect_left(held.offsets, first)
        if held.offsets[at : at + count] == offsets:
            return [(lease, first, last)]
    return joined([(lease, offset, offset) for offset in offsets])


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same ranges, those that meet made one; in order."""
    found: list[Range] = []
    for lease, first, last in sorted(ranges):
        if found and found[-1][0] == lease and found[-1][2] + 1 >= first:
            found[-1] = (lease, found[-1][1], max(last, found[-1][2]))
        else:
            found.append((lease, first, last))
    return found
