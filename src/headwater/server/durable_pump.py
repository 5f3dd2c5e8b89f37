"""The pump of a durable subscription, named or of a session's own: hand-outs go to the client, and acks come back.

Promises: an ack counts for what the client was given over this connection and still has, and for nothing else; what was
taken back from the client is told before anything is sent after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from functools import partial

from headwater.delivery.cursor import Budget
from headwater.delivery.lane import Lease, Remote
from headwater.delivery.subscriber import Subscriber as Durable
from headwater.errors import Closed, Gap, Malformed, Recalled
from headwater.server.party import Party
from headwater.server.pump import Ack, Pump
from headwater.wire import requests
from headwater.wire.batches import Range

HAND_MAX = 1000
"""Messages that are taken from a durable subscription at once."""


class DurablePump(Pump):
    """A named subscription, or one of the session's own."""

    __slots__ = ("_hand_max", "_leases", "acked", "durable", "ticket")

    def __init__(
        self,
        session: Party,
        number: int,
        kind: str,
        durable: Durable,
        ticket: Remote,
        credit: tuple[int, int],
        hand_max: int = HAND_MAX,
    ) -> None:
        super().__init__(session, number, kind, durable.options.id, durable.options.filter, credit)
        self.durable = durable
        self.ticket = ticket
        self.acked = 0
        """Messages that the client was done with."""
        self._hand_max = hand_max
        self._leases: dict[int, tuple[Lease, set[int], list[int]]] = {}
        """By number: the hand-out, what of it the client still has, and all of it in ascending order."""
        durable.waiters.set(ticket, partial(session.sessions.wakes.ring, self))

    def _pump(self) -> None:
        if self.ticket.recalls:
            self._recall()
        session, durable = self.session, self.durable
        room = min(self._credit_messages, self._hand_max, session.room)
        if len(durable.books.machine.consumers) > 1:
            room = min(room, session.share_max)
        if not (room > 0 and self._may_send) and not durable.books.is_ended:
            session.hold_back(self)
            return
        connection, write_bytes_max = session.connection, session.sessions.serving.write_bytes_max
        waiting = connection.waiting_bytes if connection is not None else 0
        room_bytes = max(1, min(self._credit_bytes, write_bytes_max - waiting))
        try:
            found = durable.hand(self.ticket, room, room_bytes, Budget())
        except Gap as gap:
            self.notice("gap", gap)
            self.ring()
            return
        except Closed as error:
            self.session.on_ended(self, error)
            return
        for selection in found:
            lease = selection.lease
            assert lease is not None
            # Of what was handed out again, some may have been gone, or given up on.
            sent = lease.offsets if selection.batch is not None else sorted(one.offset for one in selection.messages)
            self._leases[lease.number] = (lease, set(sent), sent)
            count, size = self._send(selection)
            room -= count
            room_bytes -= size
        if not self._is_fetching and durable.is_unread:
            self._fetch(durable.read_on, session.sessions.readers)
        if found and (room <= 0 or room_bytes <= 0):
            # There may be more. What is written leaves before the next look, and others have their turn.
            self.ring()

    def recall_all(self) -> None:
        """Take back what the client has: it comes again from another pump."""
        ranges = [(number, offset, offset) for number, (_, left, _) in self._leases.items() for offset in left]
        self._leases = {}
        if ranges:
            self.session.recall(self, _merged(ranges))

    def _recall(self) -> None:
        """Tell the client what was taken back from it."""
        recalls, self.ticket.recalls = self.ticket.recalls, []
        ranges = []
        for number, offset in recalls:
            if self._forget(number, (offset,)):
                ranges.append((number, offset, offset))
        if ranges:
            self.session.recall(self, _merged(ranges))

    def _forget(self, number: int, offsets: Sequence[int]) -> bool:
        entry = self._leases.get(number)
        if entry is None:
            return False
        entry[1].difference_update(offsets)
        if not entry[1]:
            del self._leases[number]
        return True

    def _held(self, ranges: Sequence[Range]) -> list[tuple[Lease, list[int]]]:
        """What the client means, of what it was given, hand-out by hand-out; Recalled (409) if it has nothing of it any
        more."""
        held: list[tuple[Lease, list[int]]] = []
        for number, first, last in _merged(ranges) if len(ranges) > 1 else ranges:
            entry = self._leases.get(number)
            if entry is None:
                raise Recalled(
                    f"this message is not yours any more: it was acked, or it comes again (hand-out {number})"
                )
            offsets = entry[2]
            meant = offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]
            if not meant:
                raise Malformed(f"hand-out {number} has no messages from {first} to {last}")
            if held and held[-1][0] is entry[0]:
                held[-1][1].extend(meant)
            else:
                held.append((entry[0], meant))
        return held

    def _ack(self, ack: Ack) -> None:
        done, future = self._held(ack.ranges), ack.future
        if future is None:
            future = Future()
            self.session.answer_when(ack.id, future)
        try:
            self.durable.settlement.ack_leases(done, future, ack.beside)
        except BaseException as error:
            future.set_exception(error)
            return
        for lease, offsets in done:
            self._forget(lease.number, offsets)
            self.acked += len(offsets)

    def _spare(self, root: str, offsets: Sequence[int]) -> None:
        for number, offset in self.durable.settlement.spare(root, offsets):
            self._forget(number, (offset,))

    def _put_back(self, sent: Set[tuple[str, int]]) -> None:
        for lease, left, _ in tuple(self._leases.values()):
            root = self.durable.supply.name(lease.lane[0])
            unsent = [offset for offset in sorted(left) if (root, offset) not in sent]
            if unsent and not lease.lane[1]:
                self.durable.settlement.put_back(lease, unsent)
        self._recall()

    @property
    def has_any(self) -> bool:
        """Whether the client has messages that it is not done with."""
        return bool(self._leases)

    def _taken(self, ranges: list[Range]) -> None:
        for number, first, last in _merged(ranges):
            entry = self._leases.get(number)
            if entry is not None:
                offsets = entry[2]
                taken = offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]
                if taken:
                    self.durable.timeouts.begin(entry[0], taken)

    def _fail(self, id: int, request: requests.Nack | requests.Reject | requests.Extend) -> None:
        ((lease, _),) = self._held(((request.lease, request.offset, request.offset),))
        future: Future[object] = Future()
        match request:
            case requests.Extend():
                self.durable.settlement.extend(lease, request.offset, request.seconds)
                future.set_result(None)
            case requests.Nack():
                offset, error, delay_s = request.offset, request.error, request.delay_s
                item = self.durable.settlement.note_nack(lease, offset, error, delay_s, future=future)
                self.session.finish_rows(item, future)
            case requests.Reject():
                item = self.durable.settlement.note_reject(lease, request.offset, request.error, future=future)
                self.session.finish_rows(item, future)
        if self.ticket.recalls:
            self._recall()  # before the answer: whoever has that takes nothing any more that was recalled
        self.session.answer_when(id, future)

    def leave(self) -> Callable[[], object] | None:
        self.durable.waiters.set(self.ticket, None)
        durable, ticket, vanished = self.durable, self.ticket, self.is_abandoned
        dispatcher = self.session.sessions.broker.core.dispatcher
        return lambda: dispatcher.detach(durable, ticket, vanished=vanished)


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """The same ranges, neighbours joined."""
    joined: list[Range] = []
    for number, first, last in sorted(ranges):
        if joined and joined[-1][0] == number and joined[-1][2] + 1 >= first:
            joined[-1] = (number, joined[-1][1], max(last, joined[-1][2]))
        else:
            joined.append((number, first, last))
    return joined
