"""Sending: messages of one session on their way to its client, and what the client says about them.

Promises: which number stands for which message of QoS 2 is on disk before the message leaves, and that the client has
it before its PUBREL leaves, so that neither side takes it for another though the server is killed in between; messages
leave in the order in which they were handed over; one that is longer than the client takes is passed over, as is one
of the client's own where it wants none of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

import msgspec

from headwater.errors import Failed
from headwater.message import Kept, Message
from headwater.mqtt.aliases import ALIAS_BYTES
from headwater.mqtt.delivery import expiry_of
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import Kind
from headwater.mqtt.packets import Ack
from headwater.mqtt.publishes import Publishes
from headwater.mqtt.reasons import Reason
from headwater.mqtt.window import Copy, Place, Sent, Window
from headwater.mqtt.wish import Wish
from headwater.server import subscriber as served
from headwater.server.subscriber import Subscriber
from headwater.store import state as rows
from headwater.store.batch import ONCE, QUIET, Batch
from headwater.store.early import Early
from headwater.store.state import Rows
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.session import MqttSession


class Waiting(msgspec.Struct):
    """Packets that leave when those before them have."""

    data: bytes
    is_ready: bool


class Steps(msgspec.Struct):
    """What there is to note of messages that a client has, and to answer then."""

    ranges: list[Range] = []
    changed: Rows = {}
    answers: list[Ack] = []


NOWHERE: Place = (0, "", 0)


class Sending:
    """What one session is sent."""

    __slots__ = ("_outbox", "_session", "window")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self.window = Window()
        self._outbox: deque[Waiting] | None = None
        """What waits for numbers to be on disk; None if nothing does."""

    @property
    def room(self) -> int:
        """How many more messages the client takes now."""
        return self.window.room if self._outbox is None else 0

    # Connections come and go

    def on_registered(self, connection: MqttConnection) -> None:
        """The client knows its session: what it has and has not said the last word about is told again, and what
        waits for it alone is sent again."""
        for number in self.window.released():
            connection.send(Ack(Kind.PUBREL, number))
        of_messages = self._session.sessions.deliveries.of_messages
        for number, sent in self.window.copies().items():
            assert sent.copy is not None
            wish = self._session.wishes.get(sent.place[0], Wish())
            made = of_messages([sent.copy.message()], connection.version, sent.qos, wish)
            connection.write(made.numbered([number], [True]))

    def suspend(self) -> None:
        """The connection is lost."""
        self._outbox = None
        kinds = {one.number: one.kind for one in self._session.row.subscriptions}

        def comes_again(sent: Sent) -> bool:
            """Not what is no longer subscribed to, nor what goes to others who share the subscription."""
            kind = kinds.get(sent.place[0])
            return kind == "session" or (kind is not None and sent.copy is not None)

        self._write(dict.fromkeys(map(self._key, self.window.suspend(comes_again))))

    def forget(self, subscription: int) -> None:
        """A subscription has ended."""
        self._write(dict.fromkeys(map(self._key, self.window.forget(subscription))))

    def restore(self, found: dict[int, Sent]) -> None:
        """Numbers were found in the store; those of subscriptions that are gone are free."""
        known = {one.number for one in self._session.row.subscriptions}
        gone: Rows = {}
        for number, sent in found.items():
            if sent.is_received or sent.place[0] in known:
                self.window.restore(number, sent)
            else:
                gone[self._key(number)] = None
        self._write(gone)

    def unstored(self) -> Rows:
        """Rows of numbers that a server which ends in good order knows, and would not otherwise."""
        return {self._key(number): rows.pack(sent) for number, sent in self.window.unstored().items()}

    # Messages

    def deliver_batch(self, subscriber: Subscriber, batch: Batch, places: Sequence[int] | None, lease: int) -> int:
        """Send messages of a batch, or those at these places."""
        session = self._session
        wish = session.wishes[subscriber.number]
        connection = cast("MqttConnection", session.connection)
        header, version = batch.header, connection.version
        if wish.is_replay:
            messages = batch.body.messages(header.first_offset, places)
            return self.deliver_messages(subscriber, header.root, messages, lease)
        qos = min(wish.qos, qos_of(header.flags)) if lease else 0
        if wish.no_local and session.tag:
            places = self._of_others(subscriber, batch, places, lease)
            if not places:
                return 0
        deliveries = session.sessions.deliveries
        made = deliveries.get(batch, places, version, qos, wish)
        if made.longest_bytes > connection.bytes_max:
            there = range(header.count) if places is None else places
            sizes = {place: deliveries.make(batch.body, (place,), version, qos, wish).longest_bytes for place in there}
            places = [place for place in there if sizes[place] <= connection.bytes_max]
            self._done(subscriber, lease, [header.first_offset + place for place in there if place not in set(places)])
            if not places:
                return 0
            made = deliveries.get(batch, places, version, qos, wish)
        if connection.aliases is not None and made.longest_bytes + ALIAS_BYTES <= connection.bytes_max:
            made = deliveries.make(batch.body, places, version, qos, wish, connection.aliases)
        first = header.first_offset
        offsets: Sequence[int] = range(first, first + header.count) if places is None else [first + p for p in places]
        if qos == 2 and subscriber.kind == "named":
            expiries = batch.body.expiries
            copies = [
                Copy(one.topic, one.payload, one.key, one.headers, expiries[one.offset - first] if expiries else 0)
                for one in batch.body.messages(first, places)
            ]
            return self._send(subscriber, header.root, offsets, lease, made, copies)
        return self._send(subscriber, header.root, offsets, lease, made)

    def deliver_one(self, subscriber: Subscriber, early: Early) -> int:
        """Send one message, shown early, of a live subscription."""
        session = self._session
        connection = cast("MqttConnection", session.connection)
        if self._outbox is None and connection.aliases is None and session.wishes[subscriber.number].is_plain:
            data = session.sessions.deliveries.one(early, connection.version)
            if len(data) <= connection.bytes_max:
                connection.write(data)
                return len(data)
        return self.deliver_batch(subscriber, early.batch, None, 0)

    def _of_others(
        self, subscriber: Subscriber, batch: Batch, places: Sequence[int] | None, lease: int
    ) -> Sequence[int]:
        """The messages that this client has not published itself; those that it has are done with."""
        there = range(batch.header.count) if places is None else places
        headers, mine = batch.body.headers(), self._session.tag[0]
        own = {place for place in there if mine in headers[place]} if headers else set()
        self._done(subscriber, lease, [batch.first_offset + place for place in own])
        return [place for place in there if place not in own]

    def deliver_messages(self, subscriber: Subscriber, root: str, messages: Sequence[Message], lease: int) -> int:
        """Retained messages, and those that come again one by one."""
        wish = self._session.wishes[subscriber.number]
        size, tag = 0, self._session.tag
        if wish.no_local and tag:
            self._done(subscriber, lease, [one.offset for one in messages if tag[0] in one.headers])
            messages = [one for one in messages if tag[0] not in one.headers]
        for qos, run in groupby(messages, lambda one: self._qos(wish, place_of(subscriber.number, root, one), one)):
            size += self._deliver_run(subscriber, root, list(run), lease, qos if lease else 0, wish)
        return size

    def _qos(self, wish: Wish, place: Place, message: Message) -> int:
        """What a message goes with: what it went with before, or the lower of what it has and what is wanted."""
        before = self.window.qos_of(place)
        flags = message.flags if isinstance(message, Kept) else 0
        return min(wish.qos, qos_of(flags)) if before is None else before

    def _deliver_run(
        self, subscriber: Subscriber, root: str, run: list[Message], lease: int, qos: int, wish: Wish
    ) -> int:
        """Messages of the same QoS."""
        connection = cast("MqttConnection", self._session.connection)
        of_messages, version = self._session.sessions.deliveries.of_messages, connection.version
        made = of_messages(run, version, qos, wish)
        if made.longest_bytes > connection.bytes_max:
            long = [one for one in run if of_messages((one,), version, qos, wish).longest_bytes > connection.bytes_max]
            self._done(subscriber, lease, [one.offset for one in long])
            run = [one for one in run if one not in long]
            if not run:
                return 0
            made = of_messages(run, version, qos, wish)
        if connection.aliases is not None and made.longest_bytes + ALIAS_BYTES <= connection.bytes_max:
            made = of_messages(run, version, qos, wish, connection.aliases)
        offsets = [place_of(0, root, one)[2] for one in run]
        if qos == 2 and subscriber.kind == "named":
            copies = [Copy(one.topic, one.payload, one.key, one.headers, expiry_of(one)) for one in run]
            return self._send(subscriber, root, offsets, lease, made, copies)
        return self._send(subscriber, root, offsets, lease, made)

    def _send(
        self,
        subscriber: Subscriber,
        root: str,
        offsets: Sequence[int],
        lease: int,
        made: Publishes,
        copies: Sequence[Copy] | None = None,
    ) -> int:
        """Have packets leave. With copies, the messages are the client's alone from now on."""
        if not made.qos:
            self._put(made.data, {})
            self._done(subscriber, lease, offsets)
            return len(made.data)
        add, subscription, qos = self.window.add, subscriber.number, made.qos
        numbers: list[int] = []
        again: list[bool] = []
        changed: Rows = {}
        for place, offset in enumerate(offsets):
            number, sent, is_again = add((subscription, root, offset), qos, lease)
            numbers.append(number)
            again.append(is_again)
            if qos == 2 and not sent.is_stored:
                sent.is_stored = True
                sent.copy = copies[place] if copies is not None else None
                changed[self._key(number)] = rows.pack(sent)
        if self.window.is_behind and not again[0]:
            self.window.pass_over(subscription, root, offsets[0])
        data = made.numbered(numbers, again if any(again) else None)
        if copies is None:
            self._put(data, changed)
        else:
            self._put(data, changed, subscriber, [(lease, abs(offset), abs(offset)) for offset in offsets])
        return len(data)

    def _put(
        self,
        data: bytes,
        changed: Rows,
        subscriber: Subscriber | None = None,
        done: list[Range] | None = None,
    ) -> None:
        """Have packets leave, after these rows are on disk and the packets before them have left; with the rows,
        messages may be done with in their subscription."""
        connection = cast("MqttConnection", self._session.connection)
        if self._outbox is None:
            if not changed:
                connection.write(data)
                return
            self._outbox = deque()
        waiting = Waiting(data, not changed)
        self._outbox.append(waiting)
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
        if subscriber is None or done is None:
            sessions.write(changed, stored)
        else:
            # It is in the middle of handing these out, and hears of it right after that.
            subscriber.tell(served.Settle(done, changed, sessions.future(stored)))

    def _flush(self, connection: MqttConnection) -> None:
        outbox = self._outbox
        while outbox and outbox[0].is_ready:
            connection.write(outbox.popleft().data)
        if not outbox:
            self._outbox = None
            self._session.on_writable()

    # What the client says

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """The client is done with messages: of QoS 1, or of those that it refused."""
        was_full = self.window.room == 0
        done = [(number, sent) for number in numbers if (sent := self.window.take(number)) is not None]
        self._write({self._key(number): None for number, sent in done if sent.is_stored})
        self._settle([sent for _, sent in done])
        if was_full:
            self._session.on_writable()

    def receive(self, connection: MqttConnection, numbers: Sequence[int]) -> None:
        """The client has messages of QoS 2: they are not sent again, only their numbers are still in use."""
        waiting: dict[int, Steps] = {}
        for number in numbers:
            sent = self.window.get(number)
            reason = Reason.SUCCESS if sent is not None else Reason.PACKET_IDENTIFIER_NOT_FOUND
            is_fresh = sent is not None and not sent.is_received
            subscription, _, offset = sent.place if sent is not None and is_fresh else NOWHERE
            steps = waiting.setdefault(subscription, Steps())
            steps.answers.append(Ack(Kind.PUBREL, number, reason))
            if sent is not None and is_fresh:
                sent.is_received = sent.is_stored = True
                if sent.copy is None:
                    steps.ranges.append((sent.lease, abs(offset), abs(offset)))
                sent.copy = None
                steps.changed[self._key(number)] = rows.pack(sent)
        for subscription, steps in waiting.items():
            self._take_steps(connection, subscription, steps)

    def _take_steps(self, connection: MqttConnection, subscription: int, steps: Steps) -> None:
        """Note that the client has messages, and that they are done with in their subscription, all or none of it;
        then have their PUBRELs leave."""

        def stored(_: object, error: BaseException | None) -> None:
            if error is None and connection is self._session.connection:
                connection.write(b"".join(encode(one, connection.version) for one in steps.answers))

        sessions, subscriber = self._session.sessions, self._session.subscribers.get(subscription)
        if subscriber is None or not steps.ranges:
            sessions.write(steps.changed, stored)
        else:
            subscriber.tell(served.Settle(steps.ranges, steps.changed, sessions.future(stored)))

    def complete(self, numbers: Sequence[int]) -> None:
        """The client has said the last word about messages of QoS 2: their numbers are free."""
        done = [(number, sent) for number in numbers if (sent := self.window.take(number)) is not None]
        self._write({self._key(number): None for number, _ in done})
        self._session.on_writable()

    def _settle(self, done: Sequence[Sent]) -> None:
        """Messages are done with in their subscriptions, too."""
        by_subscription: dict[int, list[Range]] = {}
        for sent in done:
            number, _, offset = sent.place
            if sent.copy is not None:
                continue
            by_subscription.setdefault(number, []).append((sent.lease, abs(offset), abs(offset)))
        for number, ranges in by_subscription.items():
            subscriber = self._session.subscribers.get(number)
            if subscriber is not None:
                subscriber.tell(served.Ack(0, ranges))

    def _done(self, subscriber: Subscriber, lease: int, offsets: Sequence[int]) -> None:
        """Messages that nobody acknowledges are done with when they are sent, or passed over."""
        if not lease or not offsets:
            return
        if isinstance(offsets, range):
            subscriber.tell(served.Ack(0, [(lease, offsets[0], offsets[-1])]))
        else:
            subscriber.tell(served.Ack(0, [(lease, abs(offset), abs(offset)) for offset in offsets]))

    def _key(self, number: int) -> bytes:
        return rows.key_number(rows.SENT, self._session.row.id, number)

    def _write(self, changed: Rows) -> None:
        if changed:
            self._session.sessions.write(changed)


def place_of(subscription: int, root: str, message: Message) -> Place:
    """Which message it is; a retained one is a copy."""
    return subscription, root, -message.offset if message.retained else message.offset


def qos_of(flags: int) -> int:
    """The QoS with which a batch was published; what native clients publish is as good as QoS 1."""
    return 0 if flags & QUIET else 2 if flags & ONCE else 1
