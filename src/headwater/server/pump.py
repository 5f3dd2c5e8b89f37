"""A pump: serves one subscription of one session, over whatever connection the session has.

It takes batches from where they come (a durable subscription, a live one, history) and sends them as they are, as far
as the client has given credit and takes what is sent. One turn of the loop looks at so many batches and no more, and
what is on disk is read in a thread. Promises: never more than the credit is sent; for a client that
does not read, nothing piles up here: a durable subscription and history wait, a live one drops or ends as its policy
says; what was taken back from the client is told before anything is sent after it.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor, Future
from typing import Any

import msgspec

from headwater.actor import Actor, Offload
from headwater.delivery.cursor import Budget
from headwater.delivery.lane import Lease, Remote
from headwater.delivery.live import Live
from headwater.delivery.replay import Reading
from headwater.delivery.selection import Selection
from headwater.delivery.subscriber import Subscriber as Durable
from headwater.errors import Closed, Gap, HeadwaterError, Malformed, Recalled, TooManyFiles, Unwritable
from headwater.server.party import Party
from headwater.store.state import Rows
from headwater.wire import requests
from headwater.wire.batches import Range

CREDIT_MAX = 1 << 62
HAND_MAX = 1000
"""Messages that are taken from a durable subscription at once."""
ROOM_AGAIN_S = 0.5
"""After this it is looked whether a file can be opened again, if none could, or something noted."""


class Wake(msgspec.Struct, frozen=True):
    """There may be something to send."""


class Credit(msgspec.Struct, frozen=True, gc=False):
    """The client takes so much more."""

    messages: int
    bytes: int


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The client is done with messages."""

    id: int
    ranges: list[Range]


class Settle(msgspec.Struct, frozen=True):
    """The client is done with messages, and something else is noted together with that."""

    ranges: list[Range]
    beside: Rows
    future: Future[object]


class Spare(msgspec.Struct, frozen=True, gc=False):
    """The client has messages from another subscription: they are done with here, handed out or not."""

    root: str
    offsets: Sequence[int]


class PutBack(msgspec.Struct, frozen=True):
    """What was handed out and is not among these, by root and offset, was not sent: it is to be handed out again."""

    sent: Set[tuple[str, int]]


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The client's application has taken messages."""

    ranges: list[Range]


class Failed(msgspec.Struct, frozen=True):
    """The client could not do something with a message, or asks for more time."""

    id: int
    request: requests.Nack | requests.Reject | requests.Extend


WAKE = Wake()
UNBOUNDED = (-1, -1)
"""Credit of those who are bounded by something else: what their connection takes, and their own window."""


class Pump(Actor):
    """One subscription of a session."""

    __slots__ = (
        "_credit_bytes",
        "_credit_messages",
        "_is_fetching",
        "_rechecks",
        "_rest",
        "_version",
        "filter",
        "id",
        "is_abandoned",
        "is_held",
        "is_held_back",
        "is_left",
        "is_rung",
        "kind",
        "number",
        "session",
    )

    def __init__(
        self, session: Party, number: int, kind: str, id: str | None, filter: str, credit: tuple[int, int]
    ) -> None:
        super().__init__(session, session.sessions.serving.mailbox_max)
        self.session = session
        self.number = number
        self.kind = kind
        self.id = id
        self.filter = filter
        self.is_rung = False
        self.is_held = False
        """Whether it is to send nothing yet, as its client is not told that it is there."""
        self.is_held_back = False
        """Whether it could not send, and waits to be woken when its connection takes more."""
        self.is_left = False
        """Whether its session has let go of it."""
        self.is_abandoned = False
        """Whether its client is gone without a word."""
        self._credit_messages = 0
        self._credit_bytes = 0
        self._rest: Selection | None = None
        """What is left of a selection for which there was not credit enough."""
        self._is_fetching = False
        """Whether a thread reads for it."""
        self._rechecks = session.sessions.broker.rechecks
        self._version = -1
        """Of the rules and clients by which it was last asked whether it may send."""
        self._grant(*credit)

    def receive(self, message: Any) -> None:
        if self.is_left:
            return
        match message:
            case Wake():
                self._serve()
            case Credit():
                self._grant(message.messages, message.bytes)
                self._serve()
            case Ack():
                self._ack(message.id, message.ranges)
            case Settle():
                self._settle(message.ranges, message.beside, message.future)
            case Spare():
                self._spare(message.root, message.offsets)
            case PutBack():
                self._put_back(message.sent)
            case Taken():
                self._taken(message.ranges)
            case Failed():
                self._fail(message.id, message.request)

    def ring(self) -> None:
        """Have it look for something to send; from any thread."""
        self.session.sessions.wakes.ring(self)

    def on_wake(self) -> None:
        """It was rung."""
        self.tell(WAKE)

    @property
    def credit(self) -> tuple[int, int]:
        """Messages and bytes that may still be sent."""
        return max(0, self._credit_messages), max(0, self._credit_bytes)

    def _grant(self, messages: int, size: int) -> None:
        if (messages, size) == UNBOUNDED:
            self._credit_messages = self._credit_bytes = CREDIT_MAX
            return
        serving = self.session.sessions.serving
        self._credit_messages = min(self._credit_messages + messages, serving.credit_messages_max)
        self._credit_bytes = min(self._credit_bytes + size, serving.credit_bytes_max)

    # Sending

    @property
    def _may_send(self) -> bool:
        connection = self.session.connection
        return (
            connection is not None
            and not self.is_left
            and not self.is_held
            and connection.is_writable
            and not connection.is_closed
            and self._credit_messages > 0
            and self._credit_bytes > 0
            and (self._version == self._rechecks.version or self.is_allowed)
        )

    @property
    def is_allowed(self) -> bool:
        """Whether the client may have what it brings, by the rules of this very moment; it is ended soon if not."""
        version = self._rechecks.version  # read first: a change sets it last
        if self._version != version:
            if not self.session.may_take(self):
                return False
            self._version = version
        return True

    def doubt(self) -> None:
        """It is to be asked again whether the client may have this."""
        self._version = -1

    @property
    def _room_bytes(self) -> int:
        """What may be sent before it is to be looked again whether the client takes it."""
        connection = self.session.connection
        waiting = connection.waiting_bytes if connection is not None else 0
        return max(1, min(self._credit_bytes, self.session.sessions.serving.write_bytes_max - waiting))

    def _serve(self) -> None:
        try:
            self._pump()
        except TooManyFiles:
            self.session.sessions.loop.call_later(ROOM_AGAIN_S, self.ring)
        except HeadwaterError as error:
            # Nobody asked for it, so it is no answer: the pump has failed.
            raise RuntimeError(f"cannot go on: {error}") from error

    @abstractmethod
    def _pump(self) -> None:
        """Send as much as there is and may be sent."""

    def _send(self, selection: Selection) -> int:
        """Have messages leave; how many there were."""
        count, size = selection.count, self.session.deliver(self, selection)
        self._credit_messages -= count
        self._credit_bytes -= size
        counts = self.session.sessions.counts
        counts.messages_out += count
        counts.bytes_out += size
        return count

    def _send_some(self, selection: Selection) -> None:
        """As much as there is credit for; the rest waits for more."""
        if not selection.count:
            return  # what matches in it comes after the end of what was asked for, or its ttl is over
        room = min(self._credit_messages, selection.fitting(self._credit_bytes))
        if selection.count > room:
            selection, self._rest = selection.cut(room)
        self._send(selection)

    def _take_rest(self) -> Selection | None:
        rest, self._rest = self._rest, None
        return rest

    # Reading, in a thread

    def _fetch(self, work: Callable[[], None], threads: Executor) -> None:
        """Have a slice read that a look did not reach; then look again."""
        self._is_fetching = True
        Offload(self.session.sessions.loop, threads).do(work, self._fetched)

    def _fetched(self, _: None, error: BaseException | None) -> None:
        self._is_fetching = False
        if self.is_left:
            return
        if isinstance(error, Gap):
            self.notice("gap", error)
        elif isinstance(error, TooManyFiles | Unwritable):
            self.session.sessions.loop.call_later(ROOM_AGAIN_S, self.ring)
            return
        elif isinstance(error, Exception):
            self._on_unread(error)
            return
        self.tell(WAKE)

    def _on_unread(self, error: Exception) -> None:
        """It could not be read."""
        self.session.on_failure(self, RuntimeError(f"cannot go on: {error}"))

    def notice(self, what: str, error: BaseException | None = None, count: int = 0) -> None:
        """Tell the client something about this subscription."""
        self.session.notice(self.number, what, error, count)

    # What only some kinds understand

    def _ack(self, id: int, ranges: list[Range]) -> None:
        raise Malformed("only messages of a durable subscription are acked")

    def _settle(self, ranges: list[Range], beside: Rows, future: Future[object]) -> None:
        raise Malformed("only messages of a durable subscription are acked")

    def _spare(self, root: str, offsets: Sequence[int]) -> None:
        """Nothing is kept."""

    def _put_back(self, sent: Set[tuple[str, int]]) -> None:
        """Nothing is kept."""

    def _taken(self, ranges: list[Range]) -> None:
        """Nothing is timed."""

    def _fail(self, id: int, request: requests.Nack | requests.Reject | requests.Extend) -> None:
        raise Malformed("only messages of a durable subscription can be given back")

    @abstractmethod
    def leave(self) -> Callable[[], object] | None:
        """Stop; what is left to do in a thread."""


class LivePump(Pump):
    """A live subscription: whatever matches from now on."""

    __slots__ = ("_dropped", "live")

    def __init__(self, session: Party, number: int, live: Live, credit: tuple[int, int]) -> None:
        super().__init__(session, number, "live", None, live.filter, credit)
        self.live = live
        self._dropped = 0
        live.add_waker(self.ring)
        live.hand = self._hand

    def _hand(self, selection: Selection) -> bool:
        """Send what is shown early, in the turn that brought it, if nothing is to be sent before it."""
        if self.is_rung or self._rest is not None or not self._may_send:
            return False
        batch = selection.batch
        assert batch is not None
        if batch.topic is not None:  # one message without options: there is credit for one
            self._send(selection)
        elif batch.body.expiries is not None:
            return False
        elif self._credit_messages >= batch.count and self._credit_bytes >= len(batch.data):
            self._send(selection)
        else:
            self._send_some(selection)
        return True

    def _pump(self) -> None:
        live = self.live
        while self._may_send:
            found = self._take_rest() or live.take()
            if found is None:
                if live.is_unread and not self._is_fetching:
                    self._fetch(live.read_on, self.session.sessions.readers)
                break
            self._send_some(found)
        else:
            self.session.hold_back(self)
        if live.dropped != self._dropped:
            self._note_drops()
            self.notice("dropped", count=self._dropped)
        if live.ended is not None:
            self.session.on_ended(self, Closed(live.ended))

    def _note_drops(self) -> None:
        dropped = self.live.dropped
        self.session.sessions.counts.dropped += dropped - self._dropped
        self._dropped = dropped

    @property
    def dropped(self) -> int:
        """Messages that were lost, as the client was too slow."""
        return self.live.dropped

    def leave(self) -> Callable[[], object] | None:
        self._note_drops()
        return self.live.close


class ReadingPump(Pump):
    """History, and with `follow` what comes after it."""

    __slots__ = ("reading",)

    def __init__(self, session: Party, number: int, kind: str, reading: Reading, credit: tuple[int, int]) -> None:
        super().__init__(session, number, kind, None, reading.filter, credit)
        self.reading = reading
        reading.add_waker(self.ring)

    def _pump(self) -> None:
        budget, has_sent = Budget(), False
        while self._may_send and not self._is_fetching:
            try:
                found = self._take_rest()
                if found is None and not self.reading.look(budget):
                    if has_sent and budget.is_spent:
                        self.ring()  # others have their turn
                    else:
                        sessions = self.session.sessions
                        threads = sessions.executor if self.reading.is_in_history else sessions.readers
                        self._fetch(self.reading.fetch, threads)
                    return
                found = found or self.reading.take()
            except Gap as gap:
                self.notice("gap", gap)
                continue
            if found is None:
                if self.kind == "replay":
                    self.notice("over")
                    self.session.on_over(self)
                return
            self._send_some(found)
            has_sent = True
        self.session.hold_back(self)

    def _on_unread(self, error: Exception) -> None:
        if isinstance(error, HeadwaterError):
            self.session.on_ended(self, error)
        else:
            self.session.on_failure(self, error)

    def leave(self) -> Callable[[], object] | None:
        return self.reading.close


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
        durable.set_waker(ticket, self.ring)

    def _pump(self) -> None:
        if self.ticket.recalls:
            self._recall()
        room = min(self._credit_messages, self._hand_max, self.session.room)
        if self.durable.consumers > 1:
            room = min(room, self.session.share_max)
        if not (room > 0 and self._may_send) and not self.durable.is_ended:
            self.session.hold_back(self)
            return
        room_bytes = self._room_bytes
        try:
            found = self.durable.hand(self.ticket, room, room_bytes, Budget())
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
            room -= self._send(selection)
            room_bytes -= selection.bytes
        if self.durable.is_unread and not self._is_fetching:
            self._fetch(self.durable.read_on, self.session.sessions.readers)
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
        for number, first, last in _merged(ranges):
            entry = self._leases.get(number)
            if entry is None:
                raise Recalled(
                    f"hand-out {number} is not with this connection any more; its messages were acked, or come again"
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

    def _ack(self, id: int, ranges: list[Range]) -> None:
        future: Future[object] = Future()
        done = self._held(ranges)
        self.session.answer_when(id, future)
        self._note_done(done, None, future)

    def _settle(self, ranges: list[Range], beside: Rows, future: Future[object]) -> None:
        self._note_done(self._held(ranges), beside, future)

    def _note_done(self, done: list[tuple[Lease, list[int]]], beside: Rows | None, future: Future[object]) -> None:
        try:
            self.durable.ack_leases(done, future, beside)
        except BaseException as error:
            future.set_exception(error)
            return
        for lease, offsets in done:
            self._forget(lease.number, offsets)
            self.acked += len(offsets)

    def _spare(self, root: str, offsets: Sequence[int]) -> None:
        for number, offset in self.durable.spare(root, offsets):
            self._forget(number, (offset,))

    def _put_back(self, sent: Set[tuple[str, int]]) -> None:
        for lease, left, _ in tuple(self._leases.values()):
            root = self.durable.root_of(lease)
            unsent = [offset for offset in sorted(left) if (root, offset) not in sent]
            if unsent and not lease.lane[1]:
                self.durable.put_back(lease, unsent)
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
                    self.durable.begin(entry[0], taken)

    def _fail(self, id: int, request: requests.Nack | requests.Reject | requests.Extend) -> None:
        ((lease, _),) = self._held(((request.lease, request.offset, request.offset),))
        future: Future[object] = Future()
        match request:
            case requests.Extend():
                self.durable.extend_lease(lease, request.offset, request.seconds)
                future.set_result(None)
            case requests.Nack():
                item = self.durable.note_nack(lease, request.offset, request.error, request.delay_s, future=future)
                self.session.finish_rows(item, future)
            case requests.Reject():
                item = self.durable.note_reject(lease, request.offset, request.error, future=future)
                self.session.finish_rows(item, future)
        if self.ticket.recalls:
            self._recall()  # before the answer: whoever has that takes nothing any more that was recalled
        self.session.answer_when(id, future)

    def leave(self) -> Callable[[], object] | None:
        self.durable.set_waker(self.ticket, None)
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
