"""The supply of a durable subscription: what there is to deliver, root by root, and the rotation over these.

It reads the streams on behalf of the state machine, from where that stands, and passes over what does not match, was
purged or has outlived its ttl; `gaps` hear of what it finds lost. Promises: a busy root does not starve the others, as
each hand-out begins with the one after the last; a batch is not taken apart, and goes out piece by piece as there is
room. No locks: whoever serves the subscription holds its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.cursor import (
    SLICE_BATCHES,
    SLICE_BYTES,
    UNREAD,
    Budget,
    Cursor,
    Matcher,
    Unread,
    keys_of,
    places_in,
)
from headwater.delivery.deadlines import Deadlines
from headwater.delivery.gaps import Gaps
from headwater.delivery.lag import Lag
from headwater.delivery.lane import LaneId, Moment
from headwater.delivery.retained import RETAINED_BYTES, RETAINED_ROWS
from headwater.delivery.rows import CopyRow, RetainedRef, SubscriptionRow, decode_waiting
from headwater.delivery.selection import Selection
from headwater.delivery.subscription import Subscription
from headwater.log.purges import Purges
from headwater.log.retained import Page
from headwater.log.root import Root, retained_message
from headwater.log.roots import Roots
from headwater.message import Kept, Message, expiry_of
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.log import Hole
from headwater.store.state import State
from headwater.topics.name import filter_covers_root

STREAMS_AT_ONCE = 4
"""Streams of which a thread reads a slice before others have their turn."""


class Ahead(msgspec.Struct, eq=False):
    """A batch that was read and is being delivered piece by piece."""

    cursor: Cursor
    batch: Batch | None = None
    places: Sequence[int] = ()
    purges: Purges | None = None
    """Those that were known when the places were found."""
    is_being_read: bool = False
    """Whether a thread has the cursor."""


class Supply:
    """What one subscription reads."""

    def __init__(
        self,
        row: SubscriptionRow,
        machine: Subscription,
        roots: Roots,
        state: State,
        config: Config,
        clock: Clock,
        gaps: Gaps,
        deadlines: Deadlines,
    ) -> None:
        self._matcher = Matcher(row.options.filter)
        self._filter = row.options.filter
        self._number = row.number
        self._machine = machine
        self._roots = roots
        self._state = state
        self._config = config
        self._clock = clock
        self._gaps = gaps
        self._deadlines = deadlines
        self._by_key = row.options.order == "key"
        self._made = -1
        self._known: dict[int, Root] = {}
        self._ahead: dict[int, Ahead] = {}
        self._turn = 0
        """Which of the roots has its turn first."""
        self.lag = Lag(machine, self._matcher, self._known, config, clock)
        self.unread: dict[int, None] = {}
        """Streams that a look left to be read, for `begin_reading`."""
        self.kept: dict[tuple[int, int], Message] = {}
        """By stream and offset, retained messages that were read to be delivered next."""

    def open(self) -> None:
        """Roots that the filter may match; one that appeared after the subscription is read from its first message."""
        made = self._roots.made
        if made == self._made:
            return
        self._made = made
        for root in self._roots.all():
            number = root.stream.number
            if number in self._known:
                continue
            self._known[number] = root
            if filter_covers_root(self._filter, root.name):
                if (number, False) not in self._machine.lanes:
                    self._machine.open_lane(number, 0)
                self._ahead[number] = self._fresh(root)

    def close(self, stream: int) -> None:
        """Read a stream no more, whose root was removed."""
        self._known.pop(stream, None)
        self._ahead.pop(stream, None)
        self.lag.recount(stream)
        self.kept = {place: message for place, message in self.kept.items() if place[0] != stream}

    def _fresh(self, root: Root) -> Ahead:
        return Ahead(Cursor(root, self._matcher, self._machine.position(root.stream.number), self._config))

    def __contains__(self, stream: int) -> bool:
        return stream in self._ahead

    @property
    def streams(self) -> list[int]:
        """Those that the filter may match."""
        return list(self._ahead)

    def name(self, stream: int) -> str:
        """The root of a stream."""
        return self._known[stream].name

    def stream(self, root: str) -> int | None:
        """The stream of a root; None if the filter matches nothing of it."""
        return next((stream for stream in self._ahead if self._known[stream].name == root), None)

    # Reading

    def take(
        self,
        consumer: object,
        limit: int,
        now: Moment,
        found: list[Selection],
        bytes_max: int,
        budget: Budget | None,
    ) -> bool:
        """Hand out what is fresh and there is room for, until a gap has to be told; whether the budget, or the bytes,
        left something to look at."""
        machine, gaps, streams = self._machine, self._gaps, list(self._ahead)
        unread: list[int] = []
        room: int | None = None
        for step in range(len(streams)):
            stream = streams[(self._turn + step) % len(streams)]
            while gaps.untold is None:
                if room is None:
                    room = min(limit, machine.room(consumer))
                if room <= 0 or bytes_max <= 0:
                    self._turn = (self._turn + step + 1) % len(streams)
                    return room > 0  # bytes are a share of the batch: the caller may have room for more
                ahead = self._look(stream, now, budget)
                if ahead is None:
                    break
                if ahead is UNREAD:
                    unread.append(stream)
                    break
                selection, size = self._hand_out(consumer, stream, ahead, room, now, bytes_max)
                if selection is not None:
                    found.append(selection)
                    limit -= selection.count
                    bytes_max -= size
                room, cursor = None, ahead.cursor
                if not ahead.places and cursor.position > cursor.root.stream.durable:
                    break  # that was the last of it
        self._turn += 1
        for stream in unread:
            self._leave_unread(stream, is_idle=not found)
        return bool(unread)

    def _hand_out(
        self, consumer: object, stream: int, ahead: Ahead, room: int, now: Moment, bytes_max: int
    ) -> tuple[Selection | None, int]:
        """As much of a batch as there is room for, and how many of its bytes that is."""
        batch, places = ahead.batch, ahead.places
        assert batch is not None
        size, first = len(batch.data), batch.first_offset
        if size > bytes_max:
            room = min(room, batch.body.fitting(places, bytes_max))
        places, ahead.places = places[:room], places[room:]
        offsets = [first + place for place in places]
        position = first + ahead.places[0] if ahead.places else batch.last_offset + 1
        if self.lag.counted:
            self.lag.count_down(stream, offsets)
        keys = keys_of(batch, places) if self._by_key else None
        lease = self._machine.hand_out(consumer, stream, offsets, position, now, keys, room)
        count = len(lease.offsets)
        if not count:
            return None, 0
        if count != len(places):
            places = [offset - first for offset in lease.offsets]
        if lease.deadline_us:
            self._deadlines.add(lease)
        root = ahead.cursor.root.name
        return Selection(root, batch, count, places, (), lease), size * count // batch.count

    def _look(self, stream: int, now: Moment, budget: Budget | None) -> Ahead | Literal[Unread.UNREAD] | None:
        """A batch with something in it that was not handed out yet; None at the end, or if a gap before that has to be
        told. With a budget, `UNREAD` if there is more to look at than that allows."""
        ahead = self._ahead[stream]
        if ahead.is_being_read:
            if budget is not None:
                return UNREAD
            ahead = self._ahead[stream] = self._fresh(self._known[stream])  # what the thread finds is not waited for
        if ahead.places and self._is_still_there(stream, ahead, now):
            return ahead
        cursor = ahead.cursor
        while True:
            found = cursor.next(now.wall_us) if budget is None else cursor.look(now.wall_us, None, budget)
            if found is None or isinstance(found, Hole) or found is UNREAD:
                self._skip_to(stream, cursor.position)
                if isinstance(found, Hole):
                    self._gaps.meet(self._known[stream].name, found)
                    if self._gaps.untold is None:
                        continue
                    return None
                return found
            ahead.batch, ahead.places = found
            ahead.purges = cursor.root.purges
            return ahead

    def _leave_unread(self, stream: int, is_idle: bool) -> None:
        """A look has left a stream to be read: from disk, or since it found nothing in all that it went through."""
        ahead = self._ahead[stream]
        if not ahead.is_being_read and (is_idle or not ahead.cursor.has_read):
            self.unread[stream] = None

    def begin_reading(self) -> list[Ahead]:
        """Some of what was left to be read; its cursors are the caller's until it says so."""
        found = [self._ahead[stream] for stream in tuple(self.unread)[:STREAMS_AT_ONCE]]
        for ahead in found:
            del self.unread[ahead.cursor.root.stream.number]
            ahead.is_being_read = True
        return found

    def read_on(self, found: Sequence[Ahead]) -> None:
        """Read a slice of each; nobody else has them, so no lock is needed."""
        now_us = self._clock.now_us()
        for ahead in found:
            if not ahead.places:
                ahead.cursor.read_on(now_us, None, Budget(SLICE_BATCHES, SLICE_BYTES))

    def end_reading(self, found: Sequence[Ahead]) -> None:
        """They may be looked at again."""
        for ahead in found:
            ahead.is_being_read = False

    def _is_still_there(self, stream: int, ahead: Ahead, now: Moment) -> bool:
        """Drop what was purged, or outlived its ttl, since the batch was read."""
        batch, purges = ahead.batch, ahead.cursor.root.purges
        assert batch is not None
        if purges is ahead.purges and batch.body.expiries is None:
            return True
        position = batch.first_offset + ahead.places[0]
        ahead.places, ahead.purges = places_in(batch, self._matcher, position, purges, now.wall_us), purges
        self.lag.recount(stream)
        if not ahead.places:
            self._machine.skip_to(stream, batch.last_offset + 1)
        return bool(ahead.places)

    def _skip_to(self, stream: int, position: int) -> bool:
        if position <= self._machine.position(stream):
            return False
        self._machine.skip_to(stream, position)
        self.lag.recount(stream)
        return True

    def renew(self, stream: int) -> None:
        """Read on from where the state machine stands now."""
        self._ahead[stream] = self._fresh(self._known[stream])
        self.lag.recount(stream)

    def pass_over(self, stream: int, position: int) -> None:
        """Let the floor rise to a position before which nothing is wanted that was not read."""
        ahead = self._ahead[stream]
        if not ahead.places and self._skip_to(stream, position) and ahead.cursor.position < position:
            self.renew(stream)

    def fetch(self, lane: LaneId, offsets: list[int], now: Moment) -> dict[int, Message]:
        """Messages by their offsets; those that are gone are missing in the answer."""
        stream, copies = lane
        if copies:
            return self._fetch_copies(stream, offsets, now)
        root = self._known[stream]
        found: dict[int, Message] = {}
        holes: list[Hole] = []
        for offset in offsets:
            if offset in found:
                continue
            for batch in root.stream.read(offset, 1)[:1]:
                if isinstance(batch, Hole):
                    holes.append(batch)
                    continue
                there = set(places_in(batch, self._matcher, offset, root.purges, now.wall_us))
                places = [o - batch.first_offset for o in offsets if o - batch.first_offset in there]
                found.update((m.offset, m) for m in _kept(batch, places))
        for hole in holes:
            self._gaps.meet(root.name, hole)
        return found

    def read_retained(self, stream: int, after: str) -> Page:
        """Some of what a stream has retained, after a topic; this takes its time, and holds nobody up."""
        root, now_us = self._known.get(stream), self._clock.now_us()
        if root is None:
            return Page([], None, 0, 0)  # it was removed meanwhile
        page = root.retained.page
        return self._roots.look_at(lambda: page(self._filter, after, now_us, RETAINED_ROWS, RETAINED_BYTES))

    def keep(self, stream: int, messages: Iterable[Message]) -> None:
        """Retained messages that were read, and will be asked for next: they are not read again."""
        self.kept.update({(stream, message.offset): message for message in messages})

    def _fetch_copies(self, stream: int, offsets: list[int], now: Moment) -> dict[int, Message]:
        found = {}
        purges = self._known[stream].purges
        for offset in offsets:
            kept = self.kept.pop((stream, offset), None)
            if kept is not None:
                if not 0 < expiry_of(kept) <= now.wall_us and not (
                    purges and purges.hides(kept.topic, offset, kept.key)
                ):
                    found[offset] = kept
                continue
            value = self._state.get(rows.key_message(rows.COPY, self._number, stream, offset))
            row = None if value is None else decode_waiting(value)
            if isinstance(row, RetainedRef):
                message = self._retained(stream, offset, row.topic, now)
                if message is not None:
                    found[offset] = message
            elif isinstance(row, CopyRow) and not (
                0 < row.expires_us <= now.wall_us or (purges and purges.hides_key(row.topic, offset, row.key))
            ):
                found[offset] = row.message(offset)
        return found

    def _retained(self, stream: int, offset: int, topic: str, now: Moment) -> Message | None:
        """A message that was retained when the subscription asked for it, wherever it is now; None if it has expired,
        was purged, or is neither retained nor in the log any more."""
        root = self._known[stream]
        row = root.retained.get(topic)
        if row is not None and row.offset == offset:
            return retained_message(row, topic) if not 0 < row.expires_us <= now.wall_us else None
        for batch in root.stream.read(offset, 1)[:1]:
            if not isinstance(batch, Hole):
                place = offset - batch.first_offset
                if place in places_in(batch, self._matcher, offset, root.purges, now.wall_us):
                    return msgspec.structs.replace(_kept(batch, [place])[0], retained=True)
        return None


def _kept(batch: Batch, places: list[int]) -> list[Message]:
    """Messages one by one, each with what its batch knows of it."""
    expiries, retain, flags = batch.body.expiries, batch.body.retain, batch.header.flags
    return [
        Kept(
            *(m.topic, m.offset, m.payload, m.time_us, m.key, m.header_pairs),
            flags=flags,
            retain=retain is not None and bool(retain[place]),
            expires_us=expiries[place] if expiries is not None else 0,
        )
        for place, m in zip(places, batch.body.messages(batch.first_offset, places), strict=True)
    ]
