"""The rotation over the roots of a subscription, from which fresh messages are handed out.

Promises: a busy root does not starve the others, as each hand-out begins with the one after the last; a batch is not
taken apart, and goes out piece by piece as there is room. No locks: whoever serves the subscription holds its own.
"""

from __future__ import annotations

from headwater.delivery.cursor import UNREAD, Budget, keys_of
from headwater.delivery.gaps import Gaps
from headwater.delivery.lane import Moment
from headwater.delivery.selection import NO_LIMIT, Selection
from headwater.delivery.subscription import Subscription
from headwater.delivery.supply import Ahead, Supply
from headwater.delivery.timeouts import Timeouts


class Rotation:
    """That of one subscription."""

    __slots__ = ("_by_key", "_gaps", "_machine", "_supply", "_timeouts", "_turn")

    def __init__(self, machine: Subscription, supply: Supply, gaps: Gaps, timeouts: Timeouts) -> None:
        self._machine = machine
        self._supply = supply
        self._gaps = gaps
        self._timeouts = timeouts
        self._by_key = machine.options.order == "key"
        self._turn = 0

    def take(
        self,
        consumer: object,
        limit: int,
        now: Moment,
        found: list[Selection],
        bytes_max: int,
        budget: Budget | None,
    ) -> bool:
        """Hand out what there is room for, until a gap has to be told; whether the budget left something to look at."""
        streams = self._supply.streams
        unread: list[int] = []
        for step in range(len(streams)):
            stream = streams[(self._turn + step) % len(streams)]
            while self._gaps.untold is None:
                room = min(limit, self._machine.room(consumer))
                if room <= 0 or bytes_max <= 0:
                    self._turn = (self._turn + step + 1) % len(streams)
                    return False
                ahead = self._supply.look(stream, now, budget)
                if ahead is None:
                    break
                if ahead is UNREAD:
                    unread.append(stream)
                    break
                selection = self._hand_out(consumer, stream, ahead, room, now, bytes_max)
                if selection is not None:
                    found.append(selection)
                    limit -= selection.count
                    if bytes_max != NO_LIMIT:
                        bytes_max -= selection.bytes
        self._turn += 1
        for stream in unread:
            self._supply.leave_unread(stream, is_idle=not found)
        return bool(unread)

    def _hand_out(
        self, consumer: object, stream: int, ahead: Ahead, room: int, now: Moment, bytes_max: int
    ) -> Selection | None:
        batch = ahead.batch
        assert batch is not None
        if bytes_max != NO_LIMIT:
            room = min(room, batch.body.fitting(ahead.places, bytes_max))
        places, ahead.places = ahead.places[:room], ahead.places[room:]
        first = batch.first_offset
        offsets = [first + place for place in places]
        position = first + ahead.places[0] if ahead.places else batch.last_offset + 1
        self._supply.count_down(stream, offsets)
        wanted = self._machine.wanted(stream, offsets)
        if wanted is not offsets and len(wanted) != len(offsets):
            places = [offset - first for offset in wanted]
        keys = keys_of(batch, places) if self._by_key else None
        lease = self._machine.hand_out(consumer, stream, wanted, position, now, keys)
        if not lease.offsets:
            return None
        if len(lease.offsets) != len(places):
            places = [offset - first for offset in lease.offsets]
        self._timeouts.hold(lease)
        return Selection(ahead.cursor.root.name, batch, places, (), lease)
