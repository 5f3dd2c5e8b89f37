"""Sending: messages of one session on their way to its client.

Promises: which number stands for which message of QoS 2 is on disk before the message leaves, so that neither side
takes it for another though the server is killed in between; messages leave in the order in which they were handed over;
one that several subscriptions match comes once; one that is longer than the client takes is passed over, as is one of
the client's own where it wants none of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

import msgspec

from headwater.delivery.selection import Selection
from headwater.errors import Failed
from headwater.message import Kept, Message, expiry_of
from headwater.mqtt.aliases import ALIAS_BYTES
from headwater.mqtt.flight import Flight
from headwater.mqtt.overlap import PLAIN, Overlaps, Part
from headwater.mqtt.publishes import Publishes
from headwater.mqtt.subscription_options import SubscriptionOptions
from headwater.mqtt.window import Copy, WindowKey
from headwater.server import pump as served
from headwater.server.pump import Pump
from headwater.store import state as rows
from headwater.store.batch import ONCE, QUIET, Batch
from headwater.store.state import Rows
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.session import MqttSession


class Waiting(msgspec.Struct):
    """Packets that leave when those before them have."""

    data: bytes
    is_ready: bool


class Sending:
    """What one session is sent."""

    __slots__ = ("_flight", "_session", "outbox")

    def __init__(self, session: MqttSession, flight: Flight) -> None:
        self._session = session
        self._flight = flight
        self.outbox: deque[Waiting] | None = None
        """What waits for numbers to be on disk; None if nothing does."""

    def suspend(self) -> None:
        """The connection is lost."""
        self.outbox = None
        self._flight.suspend()

    # Messages

    def deliver(self, pump: Pump, selection: Selection) -> int:
        """Send messages; how many bytes that took of the credit."""
        session, batch, places = self._session, selection.batch, selection.places
        overlaps, wish = session.overlaps, session.wishes[pump.number]
        lease = selection.lease.number if selection.lease is not None else 0
        if batch is None or wish.is_replay:
            messages = selection.messages if batch is None else selection.taken()
            return self._deliver_messages(pump, selection.root, messages, lease)
        if not lease and not wish.no_local and (overlaps is None or pump.number not in overlaps.crossing):
            size = self._deliver_alike_to_all(batch, places, wish)
            if size:
                return size
        if overlaps is None or pump.kind not in PLAIN:
            return self._deliver_places(pump, batch, places, lease, wish)
        return self._deliver_crossing(pump, batch, places, lease, wish, overlaps)

    def _deliver_alike_to_all(self, batch: Batch, places: Sequence[int] | None, wish: SubscriptionOptions) -> int:
        """Messages of a live subscription, in the packets that all get who wish like this; 0 if this client cannot."""
        session = self._session
        connection = cast("MqttConnection", session.connection)
        if self.outbox is not None or self._flight.window.moved or connection.aliases is not None:
            return 0
        if batch.topic is not None and not wish.identifier:
            data = session.mqtt.deliveries.one(batch, connection.version)
            longest_bytes = len(data)
        else:
            made = session.mqtt.deliveries.get(batch, places, connection.version, 0, wish)
            data, longest_bytes = made.data, made.longest_bytes
        if longest_bytes > connection.bytes_max:
            return 0
        connection.write(data)
        return len(data)

    def _deliver_crossing(
        self,
        pump: Pump,
        batch: Batch,
        places: Sequence[int] | None,
        lease: int,
        wish: SubscriptionOptions,
        overlaps: Overlaps,
    ) -> int:
        """Messages of a batch, or those at these places, which other subscriptions of the session may match, too."""
        session, header, body = self._session, batch.header, batch.body
        names: Sequence[str] = body.names
        if places is not None and len(places) < len(names):
            names = body.topics_at(places)
        if not self._flight.window.moved and overlaps.is_alone(pump, names):
            return self._deliver_places(pump, batch, places, lease, wish)
        there = range(header.count) if places is None else places
        topics = body.topics if places is None else body.topics_at(places)
        offsets = [header.first_offset + place for place in there]
        headers = batch.body.headers() if session.tag else ()
        own = [at for at, place in enumerate(there) if session.tag[0] in headers[place]] if headers else ()
        size = 0
        for meeting, which in self._parts(overlaps, pump, header.root, topics, offsets, lease, own):
            some = places if len(which) == len(there) else [there[at] for at in which]
            size += self._deliver_places(pump, batch, some, lease, meeting.wish or wish, meeting.others)
        return size

    def _parts(
        self,
        overlaps: Overlaps,
        pump: Pump,
        root: str,
        topics: Sequence[str],
        offsets: Sequence[int],
        lease: int,
        own: Sequence[int],
    ) -> Iterator[Part]:
        """Messages that a subscription brings, for whom, and that somebody wants."""
        moved, number = self._flight.window.moved, pump.number
        for meeting, which in overlaps.parts(pump, root, topics, offsets, own):
            if meeting.wish is None:
                self._flight.done(pump, lease, root, [offsets[at] for at in which], meeting.others)
            elif not moved:
                yield meeting, which
            elif fresh := [at for at in which if (number, root, offsets[at]) not in moved]:
                yield meeting, fresh

    def _deliver_places(
        self,
        pump: Pump,
        batch: Batch,
        places: Sequence[int] | None,
        lease: int,
        wish: SubscriptionOptions,
        others: tuple[int, ...] = (),
    ) -> int:
        """Messages of a batch that are wanted alike: those that were sent before go as they went then."""
        header = batch.header
        qos = min(wish.qos, qos_of(header.flags)) if lease else 0
        if not (lease and self._flight.window.behind):
            return self._deliver_some(pump, batch, places, lease, qos, wish, others)
        there = range(header.count) if places is None else places
        number, root, first, known = pump.number, header.root, header.first_offset, self._flight.window.qos_of
        size = 0
        for was, run in groupby(there, lambda place: known((number, root, first + place))):
            some = list(run)
            size += self._deliver_some(pump, batch, some, lease, qos if was is None else was, wish, others)
        return size

    def _deliver_some(
        self,
        pump: Pump,
        batch: Batch,
        places: Sequence[int] | None,
        lease: int,
        qos: int,
        wish: SubscriptionOptions,
        others: tuple[int, ...],
    ) -> int:
        """The same, of one QoS."""
        session = self._session
        connection = cast("MqttConnection", session.connection)
        header, version = batch.header, connection.version
        if wish.no_local and session.tag:
            places = self._of_others(pump, batch, places, lease)
            if not places:
                return 0
        deliveries = session.mqtt.deliveries
        made = deliveries.get(batch, places, version, qos, wish)
        if made.longest_bytes > connection.bytes_max:
            there = range(header.count) if places is None else places
            sizes = {place: deliveries.make(batch.body, (place,), version, qos, wish).longest_bytes for place in there}
            places = [place for place in there if sizes[place] <= connection.bytes_max]
            long = [header.first_offset + place for place in there if sizes[place] > connection.bytes_max]
            self._flight.done(pump, lease, header.root, long, others)
            if not places:
                return 0
            made = deliveries.get(batch, places, version, qos, wish)
        if connection.aliases is not None and made.longest_bytes + ALIAS_BYTES <= connection.bytes_max:
            made = deliveries.make(batch.body, places, version, qos, wish, connection.aliases)
        first = header.first_offset
        offsets: Sequence[int] = range(first, first + header.count) if places is None else [first + p for p in places]
        if qos == 2 and pump.kind == "named":
            expiries = batch.body.expiries
            copies = [
                Copy(one.topic, one.payload, one.key, one.header_pairs, expiries[one.offset - first] if expiries else 0)
                for one in batch.body.messages(first, places)
            ]
            return self._send(pump, header.root, offsets, lease, made, copies=copies)
        return self._send(pump, header.root, offsets, lease, made, others)

    def _of_others(self, pump: Pump, batch: Batch, places: Sequence[int] | None, lease: int) -> Sequence[int]:
        """The messages that this client has not published itself; those that it has are done with."""
        there = range(batch.header.count) if places is None else places
        headers, mine = batch.body.headers(), self._session.tag[0]
        own = {place for place in there if mine in headers[place]} if headers else set()
        self._flight.done(pump, lease, batch.header.root, [batch.first_offset + place for place in own])
        return [place for place in there if place not in own]

    def _deliver_messages(self, pump: Pump, root: str, messages: Sequence[Message], lease: int) -> int:
        """Retained messages, and those that come again one by one."""
        wish, overlaps = self._session.wishes[pump.number], self._session.overlaps
        if overlaps is None or pump.kind not in PLAIN or any(one.retained for one in messages):
            return self._deliver_alike(pump, root, messages, lease, wish)
        tag = self._session.tag
        own = [at for at, one in enumerate(messages) if tag[0] in one.header_pairs] if tag else ()
        topics, offsets = [one.topic for one in messages], [one.offset for one in messages]
        size = 0
        for meeting, which in self._parts(overlaps, pump, root, topics, offsets, lease, own):
            some = [messages[at] for at in which]
            size += self._deliver_alike(pump, root, some, lease, meeting.wish or wish, meeting.others)
        return size

    def _deliver_alike(
        self,
        pump: Pump,
        root: str,
        messages: Sequence[Message],
        lease: int,
        wish: SubscriptionOptions,
        others: tuple[int, ...] = (),
    ) -> int:
        """Messages that are wanted alike."""
        size, tag = 0, self._session.tag
        if wish.no_local and tag:
            self._flight.done(pump, lease, root, [one.offset for one in messages if tag[0] in one.header_pairs])
            messages = [one for one in messages if tag[0] not in one.header_pairs]
        for qos, run in groupby(messages, lambda one: self._qos(wish, place_of(pump.number, root, one), one)):
            size += self._deliver_run(pump, root, list(run), lease, qos if lease else 0, wish, others)
        return size

    def _qos(self, wish: SubscriptionOptions, place: WindowKey, message: Message) -> int:
        """What a message goes with: what it went with before, or the lower of what it has and what is wanted."""
        before = self._flight.window.qos_of(place)
        flags = message.flags if isinstance(message, Kept) else 0
        return min(wish.qos, qos_of(flags)) if before is None else before

    def _deliver_run(
        self,
        pump: Pump,
        root: str,
        run: list[Message],
        lease: int,
        qos: int,
        wish: SubscriptionOptions,
        others: tuple[int, ...],
    ) -> int:
        """Messages of the same QoS."""
        connection = cast("MqttConnection", self._session.connection)
        of_messages, version = self._session.mqtt.deliveries.of_messages, connection.version
        made = of_messages(run, version, qos, wish)
        if made.longest_bytes > connection.bytes_max:
            long = [one for one in run if of_messages((one,), version, qos, wish).longest_bytes > connection.bytes_max]
            self._flight.done(pump, lease, root, [one.offset for one in long], others)
            run = [one for one in run if one not in long]
            if not run:
                return 0
            made = of_messages(run, version, qos, wish)
        if connection.aliases is not None and made.longest_bytes + ALIAS_BYTES <= connection.bytes_max:
            made = of_messages(run, version, qos, wish, connection.aliases)
        offsets = [place_of(0, root, one)[2] for one in run]
        if qos == 2 and pump.kind == "named":
            copies = [Copy(one.topic, one.payload, one.key, one.header_pairs, expiry_of(one)) for one in run]
            return self._send(pump, root, offsets, lease, made, copies=copies)
        return self._send(pump, root, offsets, lease, made, others)

    def _send(
        self,
        pump: Pump,
        root: str,
        offsets: Sequence[int],
        lease: int,
        made: Publishes,
        others: tuple[int, ...] = (),
        copies: Sequence[Copy] | None = None,
    ) -> int:
        """Have packets leave. With copies, the messages are the client's alone from now on."""
        if not made.qos:
            self._put(made.data, {})
            self._flight.done(pump, lease, root, offsets, others)
            return len(made.data)
        window, subscription, qos = self._flight.window, pump.number, made.qos
        numbers, again = window.add(subscription, root, offsets, qos, lease, others)
        changed: Rows = {}
        if qos == 2:
            for place, number in enumerate(numbers):
                sent = window.get(number)
                if sent is not None and not sent.is_stored:
                    sent.is_stored = True
                    sent.copy = copies[place] if copies is not None else None
                    changed[self._flight.key(number)] = rows.pack(sent)
        if window.behind and 0 not in again:
            # What was sent of it before this, and has not come again, is gone.
            here, first = (subscription, root), offsets[0]
            self._flight.end(window.forget(lambda place: place[:2] == here and 0 < place[2] < first))
        data = made.numbered(numbers, again)
        if copies is not None:
            self._put(data, changed, pump, [(lease, abs(offset), abs(offset)) for offset in offsets])
        elif changed or self.outbox is not None:
            self._put(data, changed)
        else:
            session = self._session
            assert session.connection is not None
            session.connection.write(data)
        return len(data)

    def _put(
        self,
        data: bytes,
        changed: Rows,
        pump: Pump | None = None,
        done: list[Range] | None = None,
    ) -> None:
        """Have packets leave, after these rows are on disk and the packets before them have left; with the rows,
        messages may be done with in their subscription."""
        connection = cast("MqttConnection", self._session.connection)
        if self.outbox is None:
            if not changed:
                connection.write(data)
                return
            self.outbox = deque()
        waiting = Waiting(data, not changed)
        self.outbox.append(waiting)
        if not changed:
            return

        def stored(_: object, error: BaseException | None) -> None:
            waiting.is_ready = True
            if connection is not self._session.connection:
                return
            if error is not None:
                connection.refuse(Failed("nothing can be noted any more; connect again later"))
            else:
                self._flush(connection)

        sessions = self._session.sessions
        if pump is None or done is None:
            sessions.write(changed, stored)
        else:
            # It is in the middle of handing these out, and hears of it right after that.
            pump.tell(served.Ack(0, done, changed, sessions.future(stored)))

    def _flush(self, connection: MqttConnection) -> None:
        outbox = self.outbox
        while outbox and outbox[0].is_ready:
            connection.write(outbox.popleft().data)
        if not outbox:
            self.outbox = None
            self._session.on_writable()


def place_of(subscription: int, root: str, message: Message) -> WindowKey:
    """Which message it is; a retained one is a copy."""
    return subscription, root, -message.offset if message.retained else message.offset


def qos_of(flags: int) -> int:
    """The QoS with which a batch was published; what native clients publish is as good as QoS 1."""
    return 0 if flags & QUIET else 2 if flags & ONCE else 1
