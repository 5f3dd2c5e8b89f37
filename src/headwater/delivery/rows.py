"""Stored rows of subscriptions, and the group commit that makes them durable.

`Subscription` knows states; here they become keys and values. Acks of a moment, of all subscriptions, go into one
write and one sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

import msgspec

from headwater.delivery.lane import Changes, Failure, LaneId
from headwater.delivery.options import Options
from headwater.errors import Failed, HeadwaterError, Unwritable
from headwater.log.group_commit import GroupCommit
from headwater.log.items import Item
from headwater.message import DeadLetter, Headers, Kept, Message
from headwater.store import state as rows
from headwater.store.state import Rows, State

COPIES = 0x8000_0000
"""Set in the stream's number where a row is about a copy and not about the stream's own message."""


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A durable subscription as it is stored. There may be 100,000 at once, and the garbage collector walks none."""

    number: int
    options: Options
    created_us: int
    used_us: int
    """When a consumer last came or went."""
    paused: bool = False
    owner: str = ""
    """The client of a server who made it; empty if that was nobody's."""


class CopyRow(msgspec.Struct, frozen=True, array_like=True):
    """A copy of a message that waits for one subscription alone."""

    topic: str
    payload: bytes
    time_us: int
    key: bytes | None
    headers: Headers
    retained: bool
    expires_us: int = 0
    """When its ttl ends; 0 for never."""
    flags: int = 0
    """How it was published, as its batch said."""

    def message(self, offset: int) -> Message:
        said = (self.topic, offset, self.payload, self.time_us, self.key, self.headers, self.retained)
        return Kept(*said, flags=self.flags, expires_us=self.expires_us)


class RetainedRef(msgspec.Struct, frozen=True, array_like=True):
    """A retained message that waits for one subscription alone; its row's key says which. It is read where it is when
    it is handed out, as there may be any number of subscriptions that wait for it."""

    topic: str
    key: bytes | None


class RetainedRest(msgspec.Struct, frozen=True, array_like=True):
    """Retained messages of a stream that wait for one subscription alone, and of which there are too many to note each
    of them at once: those of the topics after one. They are noted, as references, some at a time."""

    after: str
    upto: int
    """Of those that were published later none is meant: they come by themselves."""
    again: int = 0
    """Up to where all are wanted once more after that; 0 if they are not."""

    def behind(self, last: str | None) -> RetainedRest | None:
        """What is left behind a topic, or behind the last."""
        if last is not None:
            return msgspec.structs.replace(self, after=last)
        return RetainedRest("", self.again) if self.again else None


Waiting = CopyRow | RetainedRef
REF_FIRST = 0x92
"""How a row begins that is a reference: an array of two."""
REST_FIRST = 0x93
"""How one begins that is a rest: an array of three."""
REST = 0
"""What stands for the offset in the key of a rest: no message has it."""


def decode_waiting(value: bytes) -> Waiting | RetainedRest:
    """What waits for one subscription alone: a copy, a retained message, or the rest of these."""
    if value[0] == REF_FIRST:
        return msgspec.msgpack.decode(value, type=RetainedRef)
    if value[0] == REST_FIRST:
        return msgspec.msgpack.decode(value, type=RetainedRest)
    return msgspec.msgpack.decode(value, type=CopyRow)


def copy_rows(number: int, copies: Mapping[int, Mapping[int, Waiting]]) -> Rows:
    """Rows of copies that wait for one subscription, by stream and offset."""
    return {
        rows.key_message(rows.COPY, number, stream, offset): rows.pack(copy)
        for stream, found in copies.items()
        for offset, copy in found.items()
    }


def copy_keys(copies: Mapping[int, Waiting]) -> list[bytes | str]:
    """What order="key" goes by, for copies in the order of their offsets."""
    found = (copies[offset] for offset in sorted(copies))
    return [copy.topic if copy.key is None else copy.key for copy in found]


def rest_rows(number: int, rests: Mapping[int, RetainedRest | None]) -> Rows:
    """Rows of what is left to be noted of each stream; None if nothing is."""
    return {
        rows.key_message(rows.COPY, number, stream, REST): None if rest is None else rows.pack(rest)
        for stream, rest in rests.items()
    }


class DeadRow(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter as it is stored."""

    topic: str
    payload: bytes
    time_us: int
    key: bytes | None
    headers: Headers
    attempts: int
    errors: tuple[str, ...]
    dead_at_us: int
    by: str = ""
    """The consumer that had it last, as far as that is known."""

    def letter(self, subscription: str, offset: int) -> DeadLetter:
        topic, *rest, _ = msgspec.structs.astuple(self)
        return DeadLetter(subscription, topic, offset, *rest)


class KeptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that went with its session, and whose dead letters are kept."""

    number: int
    id: str
    user: str
    """Whose session it was."""
    owner: str
    """In whose share its letters count."""
    ended_us: int


def kept_key(row: KeptRow) -> bytes:
    """Where it is stored."""
    return rows.key_words(rows.KEPT, row.id, str(row.number))


def kept_of(state: State, id: str) -> list[KeptRow]:
    """Those of this id, the oldest first."""
    found = [msgspec.msgpack.decode(value, type=KeptRow) for _, value in state.scan(rows.key_words(rows.KEPT, id, ""))]
    return sorted(found, key=lambda row: row.number)


def all_kept(state: State) -> Iterator[KeptRow]:
    """Every one of them."""
    return (msgspec.msgpack.decode(value, type=KeptRow) for _, value in state.scan(rows.KEPT))


class Resting(msgspec.Struct, frozen=True, gc=False):
    """A subscription that nobody takes from, in numbers."""

    floors: dict[int, int]
    """By stream."""
    acked: int
    """Above the floors."""
    failed: int
    copies: int
    dead: int


class RowsItem(Item):
    """Rows on their way to disk."""

    rows: Rows
    is_owed: bool
    """Whether memory has changed already, so that they have to be stored later if that fails now."""


class RowCommit:
    """Writes rows in groups; what was committed in order stays in order.

    When the state fails, those who wait get an error. Rows that memory reflects already are owed: `resume` writes them,
    in their order, before anything else. The others are as if nobody had asked for them.
    """

    ROWS_MAX = 1_000_000
    """Rows that may wait for one commit; whoever acks beyond it waits its turn."""

    def __init__(self, state: State, on_trouble: Callable[[str], None]) -> None:
        self._state = state
        self.refusal: Callable[[], HeadwaterError | None] = lambda: None
        """What to tell whoever asks for something while nothing is written, if somebody else knows better."""
        self.is_held: Callable[[], bool] | None = None
        """Whether nothing may be handed out at the moment, as another node might be doing that; None: always."""
        self._on_trouble = on_trouble
        self._owed: Rows = {}
        self._group = GroupCommit[RowsItem]("state", self._commit, self.ROWS_MAX, self.ROWS_MAX)
        self.kick = self._group.kick
        """Has what was enqueued written soon."""

    def when_given_up(self, tell: Callable[[str], None]) -> None:
        """Have this called once nothing can be written any more, as the process is out of memory."""
        self._group.on_given_up = tell

    @property
    def failed(self) -> str | None:
        """Why nothing is written at the moment."""
        return self._state.failed

    @property
    def is_owing(self) -> bool:
        """Whether memory knows more than the state, as that failed."""
        return bool(self._owed)

    def check(self) -> None:
        """Unwritable (503) while nothing is written: to be asked before memory changes."""
        if self._state.failed is not None:
            raise self._refusal()

    def _refusal(self) -> HeadwaterError:
        return self.refusal() or Unwritable(
            f"nothing can be noted at the moment: {self._state.failed}; see to the disk, it is tried again by itself"
        )

    def enqueue(self, changed: Rows, future: Future[object] | None = None, is_owed: bool = True) -> RowsItem:
        """Take rows in; their order is that of these calls."""
        item = RowsItem(changed, is_owed, weight=len(changed), future=future)
        self._group.enqueue(item)
        return item

    def drive(self, item: RowsItem) -> None:
        """Return when these rows are durable."""
        self._group.drive(item)

    def flush(self) -> None:
        """Return when everything enqueued so far is in the state; Unwritable (503) if something of it may not be."""
        self._group.run(self.check)

    def write(self, changed: Rows) -> None:
        """Write rows, durably."""
        if changed:
            self.check()
            self.drive(self.enqueue(changed, is_owed=False))

    def run(self, work: Callable[[], None]) -> None:
        """Do something while no rows are being written."""
        self._group.run(work)

    def close(self) -> None:
        """Write what waits."""
        self._group.close()

    def _commit(self, items: list[RowsItem]) -> None:
        if self._state.failed is not None:
            self._owe(items)
            raise self._refusal()
        changed: Rows = dict(self._owed)
        for item in items:
            changed.update(item.rows)
        try:
            if changed:  # else somebody waits for those before it, which are on disk by now
                self._state.commit(changed)
        except MemoryError:
            raise
        except Exception as error:
            self._owe(items)
            reason = self.failed or f"the state store failed ({error})"
            self._on_trouble(f"acks and changes are not stored: {reason}")
            if isinstance(error, HeadwaterError):
                raise
            raise Failed(f"it is not on disk: {reason}") from error
        self._owed = {}
        for item in items:
            item.finish()

    def _owe(self, items: list[RowsItem]) -> None:
        for item in items:
            if item.is_owed:
                self._owed.update(item.rows)

    def resume(self) -> bool:
        """Write again after the state failed, first what is owed; False while that cannot be."""
        return self._group.run(self._resume)

    def _resume(self) -> bool:
        if not self._state.mend():
            return False
        if self._owed:
            try:
                self._state.commit(self._owed)
            except Exception:  # it says why in `failed`
                return False
            self._owed = {}
        return True


def lane_number(lane: LaneId) -> int:
    """How a lane is written in a key."""
    stream, copies = lane
    return stream | COPIES if copies else stream


def lane_of(number: int) -> LaneId:
    """The lane that a key is about."""
    return number & ~COPIES, bool(number & COPIES)


def rows_of(number: int, changes: Changes) -> Rows:
    """What a call of the state machine changed; dead letters apart, which need their messages."""
    changed: Rows = {}
    for stream, offset in changes.unacked:
        changed[rows.key_message(rows.ACKED, number, stream, offset)] = None
    for stream, offset in changes.acked:
        changed[rows.key_message(rows.ACKED, number, stream, offset)] = b""
    for (lane, offset), failure in changes.failures.items():
        value = None if failure is None else rows.pack(failure)
        changed[rows.key_message(rows.FAILURE, number, lane_number(lane), offset)] = value
    for stream, offset in changes.copies_done:
        changed[rows.key_message(rows.COPY, number, stream, offset)] = None
    for stream, floor in changes.floors.items():
        changed[rows.key_pair(rows.FLOOR, number, stream)] = floor.to_bytes(8, "big")
    return changed


def floors_of(state: State, number: int) -> dict[int, int]:
    """The acked floor of each stream that a subscription has a place in."""
    return {
        rows.pair_in(key)[1]: int.from_bytes(value[:8], "big")
        for key, value in state.scan(rows.key_u32(rows.FLOOR, number))
    }


def acked_of(state: State, number: int) -> dict[int, list[int]]:
    """Per stream, what is acked above the floor."""
    found: dict[int, list[int]] = {}
    for key, _ in state.scan(rows.key_u32(rows.ACKED, number)):
        found.setdefault(rows.pair_in(key)[1], []).append(rows.offset_in(key))
    return found


def failures_of(state: State, number: int) -> dict[LaneId, dict[int, Failure]]:
    """Per lane, messages that failed."""
    found: dict[LaneId, dict[int, Failure]] = {}
    for key, value in state.scan(rows.key_u32(rows.FAILURE, number)):
        lane = lane_of(rows.pair_in(key)[1])
        found.setdefault(lane, {})[rows.offset_in(key)] = msgspec.msgpack.decode(value, type=Failure)
    return found


def copies_of(state: State, number: int) -> tuple[dict[int, dict[int, Waiting]], dict[int, RetainedRest]]:
    """Per stream, copies that wait for a subscription, and what is left to be noted."""
    found: dict[int, dict[int, Waiting]] = {}
    rests: dict[int, RetainedRest] = {}
    for key, value in state.scan(rows.key_u32(rows.COPY, number)):
        stream, waiting = rows.pair_in(key)[1], decode_waiting(value)
        if isinstance(waiting, RetainedRest):
            rests[stream] = waiting
        else:
            found.setdefault(stream, {})[rows.offset_in(key)] = waiting
    return found, rests


def resting_of(state: State, number: int) -> Resting:
    """A subscription that nobody takes from, in numbers."""

    def count(kind: bytes) -> int:
        return sum(1 for _ in state.scan(rows.key_u32(kind, number)))

    return Resting(floors_of(state, number), count(rows.ACKED), count(rows.FAILURE), count(rows.COPY), count(rows.DEAD))


def rows_about(state: State, number: int, stream: int) -> Iterator[bytes]:
    """Keys of all that a subscription has of one stream."""
    yield rows.key_pair(rows.FLOOR, number, stream)
    for kind in (rows.ACKED, rows.FAILURE, rows.COPY, rows.DEAD):
        for key, _ in state.scan(rows.key_pair(kind, number, stream)):
            yield key
    for key, _ in state.scan(rows.key_pair(rows.FAILURE, number, lane_number((stream, True)))):
        yield key


def every_row(state: State, number: int) -> Rows:
    """Rows that delete everything about a subscription but its definition."""
    gone: Rows = {}
    for kind in (rows.FLOOR, rows.ACKED, rows.FAILURE, rows.COPY, rows.DEAD, rows.MENDED, rows.REDRIVEN):
        for key, _ in state.scan(rows.key_u32(kind, number)):
            gone[key] = None
    return gone
