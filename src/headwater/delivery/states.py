"""What is known of each message of a subscription: what `bus.states()` lists.

Where a message stands, the state machine knows; what its topic is, the log; who gave up on it, the dead letters. Nobody
who takes from the subscription waits while the log is read. Beside the folder's owner only what is stored is known: a
message that was handed out again is still in retry there.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.lane import Failure, LaneId, MessageState
from headwater.delivery.progress import KnownMessage
from headwater.delivery.rows import DeadRow, RetainedRest, decode_waiting
from headwater.errors import HeadwaterError
from headwater.log.roots import Roots
from headwater.message import StateInfo
from headwater.store import state as rows
from headwater.store.log import Hole
from headwater.store.state import State

NEVER_FAILED = Failure(0, 0)


class States:
    """The messages of every subscription that are neither simply pending nor acked."""

    def __init__(self, dispatcher: Dispatcher, state: State, roots: Roots) -> None:
        self._dispatcher = dispatcher
        self._state = state
        self._roots = roots

    def all(self, id: str) -> list[StateInfo]:
        """Those of a subscription, by root and offset."""
        return list(self.each(id))

    def each(self, id: str, after: int = 0) -> Iterator[StateInfo]:
        """The same one by one, without the first of them."""
        number, known = self._dispatcher.use(id, lambda one: (one.number, one.progress.known()))
        known.sort(key=lambda one: (one.root, one.offset, one.lane))
        return (self._told(number, one) for one in known[after:])

    def _told(self, number: int, one: KnownMessage) -> StateInfo:
        if one.state is MessageState.ACKED:
            dead = self._letter(number, one.lane, one.offset)
            if dead is not None:
                return StateInfo(
                    *(one.root, dead.topic, one.offset, MessageState.DEAD.value, dead.attempts),
                    errors=dead.errors,
                    since_us=dead.dead_at_us,
                    consumer=dead.by or None,
                )
        failure, lease = one.failure or NEVER_FAILED, one.lease
        is_waiting = one.state is MessageState.RETRY
        since_us = None if lease is None else lease.since_us
        if is_waiting and failure.delay_us is not None:
            since_us = failure.retry_at_us - failure.delay_us
        return StateInfo(
            *(one.root, self._topic(number, one.root, one.lane, one.offset), one.offset, one.state.value),
            attempts=failure.attempts,
            deliveries=failure.vanished,
            retry_at_us=failure.retry_at_us if is_waiting else None,
            errors=failure.errors,
            since_us=since_us,
            consumer=(failure.by if lease is None else lease.who) or None,
        )

    def _letter(self, number: int, lane: LaneId, offset: int) -> DeadRow | None:
        value = self._state.get(rows.key_message(rows.DEAD, number, lane[0], offset))
        return None if value is None else msgspec.msgpack.decode(value, type=DeadRow)

    def _topic(self, number: int, name: str, lane: LaneId, offset: int) -> str | None:
        """The topic of a message; None if it is gone, or cannot be read."""
        stream, is_copy = lane
        if is_copy:
            value = self._state.get(rows.key_message(rows.COPY, number, stream, offset))
            waiting = None if value is None else decode_waiting(value)
            return None if waiting is None or isinstance(waiting, RetainedRest) else waiting.topic
        root = self._roots.get(name)
        try:
            found = root.stream.read(offset, 1)[:1] if root is not None else []
        except (OSError, HeadwaterError):
            return None  # what is wrong with the disk is for who takes from it; here, others are to be seen
        for batch in found:
            if not isinstance(batch, Hole) and batch.first_offset <= offset <= batch.last_offset:
                return batch.body.topics_at([offset - batch.first_offset])[0]
        return None
