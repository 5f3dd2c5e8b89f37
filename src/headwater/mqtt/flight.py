"""Messages in flight: those that one session was sent with a number, what its client says about them, and what becomes
of them when the connection or their subscription is gone.

Promises: that the client has a message of QoS 2, and that its subscription is done with it, is on disk before its
PUBREL leaves; a number that the client may know stands for no other message before both sides have said the last word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import Kind
from headwater.mqtt.packets import Ack
from headwater.mqtt.reasons import Reason
from headwater.mqtt.subscription_options import SubscriptionOptions
from headwater.mqtt.window import Sent, Window, WindowKey
from headwater.server import pump as served
from headwater.server.durable_pump import DurablePump
from headwater.server.pump import Pump
from headwater.store import state as rows
from headwater.store.state import Rows
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.session import MqttSession


class Steps(msgspec.Struct):
    """What there is to note of messages that a client has, and to answer then."""

    ranges: list[Range] = []
    changed: Rows = {}
    answers: list[Ack] = []


NOWHERE: WindowKey = (0, "", 0)


class Flight:
    """What one client has been sent and is not done with."""

    __slots__ = ("_session", "window")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self.window = Window()

    # Connections come and go

    def on_registered(self, connection: MqttConnection) -> None:
        """The client knows its session: what it has and has not said the last word about is told again, and what
        waits for it alone is sent again."""
        for number in self.window.released():
            connection.send(Ack(Kind.PUBREL, number))
        of_messages = self._session.mqtt.deliveries.of_messages
        for number, sent in self.window.copies().items():
            assert sent.copy is not None
            wish = self._session.wishes.get(sent.place[0], SubscriptionOptions())
            made = of_messages([sent.copy.message()], connection.version, sent.qos, wish)
            connection.write(made.numbered([number], (0,)))

    def suspend(self) -> None:
        """The connection is lost."""
        kinds = {one.number: one.kind for one in self._session.subscriptions.values()}

        def comes_again(sent: Sent) -> bool:
            """Not what is no longer subscribed to, nor what goes to others who share the subscription."""
            kind = kinds.get(sent.place[0])
            return kind == "session" or (kind is not None and sent.copy is not None)

        self._write(self._let_go(self.window.suspend(comes_again)).changed)

    def forget(self, subscription: int) -> None:
        """A subscription has ended; what was sent of it and others match, too, is theirs from now on."""
        overlaps = self._session.overlaps
        if overlaps is not None:
            moved = self.window.move(subscription, overlaps.heir)
            self._write({self.key(number): rows.pack(sent) for number, sent in moved.items() if sent.is_stored})
            for one in overlaps.durables():
                one.tell(served.PutBack(self.window.sent_of(one.number)))
        self.end(self.window.forget(lambda place: place[0] == subscription))

    def on_attached(self, pump: DurablePump) -> None:
        """A subscription is served: what was sent of it before, and is done with in it, does not come again."""
        number, undone = pump.number, pump.durable.progress.undone

        def is_done(place: WindowKey) -> bool:
            return place[0] == number and place[2] > 0 and not undone(place[1], place[2:])

        self.end(self.window.forget(is_done))

    def _let_go(self, gone: Mapping[int, Sent]) -> Steps:
        """Messages do not come again. Of QoS 1 their numbers are free; of QoS 2 the client may know them, and would
        take other messages for the old ones: it is told that they are over, as if it had said that it has them."""
        steps = Steps()
        for number, sent in gone.items():
            if sent.qos == 2:
                sent.is_received, sent.copy = True, None
                self.window.restore(number, sent)
                steps.answers.append(Ack(Kind.PUBREL, number))
            if sent.is_stored:
                steps.changed[self.key(number)] = rows.pack(sent) if sent.qos == 2 else None
        return steps

    def end(self, gone: Mapping[int, Sent]) -> None:
        """Messages do not come again: the client, if it is there, is told so of those whose numbers it knows."""
        connection = cast("MqttConnection | None", self._session.connection)
        steps = self._let_go(gone)
        if connection is not None and steps.answers:
            self._take_steps(connection, 0, steps)
        else:
            self._write(steps.changed)

    def restore(self, found: dict[int, Sent]) -> None:
        """Numbers were found in the store, also of subscriptions that are gone."""
        known = {one.number for one in self._session.subscriptions.values()}
        gone: dict[int, Sent] = {}
        for number, sent in found.items():
            if sent.is_received or sent.place[0] in known:
                self.window.restore(number, sent)
            else:
                gone[number] = sent
        self._write(self._let_go(gone).changed)

    def unstored(self) -> Rows:
        """Rows of numbers that a server which ends in good order knows, and would not otherwise."""
        return {self.key(number): rows.pack(sent) for number, sent in self.window.unstored().items()}

    # What the client says

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """The client is done with messages: of QoS 1, or of those that it refused."""
        session = self._session
        was_full = self.window.room == 0
        done = self.window.take(numbers)
        stored: Rows = {self.key(number): None for number, sent in done if sent.is_stored}
        if stored:
            session.sessions.write(stored)
        if session.overlaps is not None:
            self._spare_others([sent for _, sent in done])
        by_subscription: dict[int, list[Range]] = {}
        for _, sent in done:
            number, _, offset = sent.place
            if sent.copy is None and sent.lease:
                by_subscription.setdefault(number, []).append((sent.lease, abs(offset), abs(offset)))
        for number, ranges in by_subscription.items():
            pump = session.pumps.get(number)
            if pump is not None:
                pump.tell(served.Ack(0, ranges))
        if was_full:
            session.on_writable()

    def receive(self, connection: MqttConnection, numbers: Sequence[int]) -> None:
        """The client has messages of QoS 2: they are not sent again, only their numbers are still in use."""
        waiting: dict[int, Steps] = {}
        fresh: list[Sent] = []
        for number in numbers:
            sent = self.window.get(number)
            reason = Reason.SUCCESS if sent is not None else Reason.PACKET_IDENTIFIER_NOT_FOUND
            is_fresh = sent is not None and not sent.is_received
            subscription, _, offset = sent.place if sent is not None and is_fresh else NOWHERE
            steps = waiting.setdefault(subscription, Steps())
            steps.answers.append(Ack(Kind.PUBREL, number, reason))
            if sent is not None and is_fresh:
                fresh.append(sent)
                sent.is_received = sent.is_stored = True
                if sent.copy is None and sent.lease:
                    steps.ranges.append((sent.lease, abs(offset), abs(offset)))
                sent.copy = None
                steps.changed[self.key(number)] = rows.pack(sent)
        if self._session.overlaps is not None:
            self._spare_others(fresh)
        for subscription, steps in waiting.items():
            self._take_steps(connection, subscription, steps)

    def _take_steps(self, connection: MqttConnection, subscription: int, steps: Steps) -> None:
        """Note that the client has messages, and that they are done with in their subscription, all or none of it;
        then have their PUBRELs leave."""

        def stored(_: object, error: BaseException | None) -> None:
            if error is None and connection is self._session.connection:
                connection.write(b"".join(encode(one, connection.version) for one in steps.answers))

        sessions, pump = self._session.sessions, self._session.pumps.get(subscription)
        if pump is None or not steps.ranges:
            sessions.write(steps.changed, stored)
        else:
            pump.tell(served.Ack(0, steps.ranges, steps.changed, sessions.future(stored)))

    def complete(self, numbers: Sequence[int]) -> None:
        """The client has said the last word about messages of QoS 2: their numbers are free."""
        self._write({self.key(number): None for number, _ in self.window.take(numbers)})
        self._session.on_writable()

    def _spare_others(self, done: Sequence[Sent]) -> None:
        """Messages are done with in the other subscriptions that match them. It is noted there first: what is not done
        with in its own comes again, and would not elsewhere."""
        passed: dict[tuple[int, str], list[int]] = {}
        for sent in done:
            number, root, offset = sent.place
            for other in sent.others if sent.lease or sent.copy is not None else (number, *sent.others):
                passed.setdefault((other, root), []).append(offset)
        for (other, root), offsets in passed.items():
            self._spare((other,), root, offsets)

    def _spare(self, others: Sequence[int], root: str, offsets: Sequence[int]) -> None:
        for number in others:
            pump = self._session.pumps.get(number)
            if pump is not None:
                pump.tell(served.Spare(root, offsets))

    def done(self, pump: Pump, lease: int, root: str, offsets: Sequence[int], others: Sequence[int] = ()) -> None:
        """Messages that nobody acknowledges are done with when they are sent, or passed over."""
        if not lease or not offsets:
            return
        self._spare(others, root, offsets)
        if isinstance(offsets, range):
            pump.tell(served.Ack(0, [(lease, offsets[0], offsets[-1])]))
        else:
            pump.tell(served.Ack(0, [(lease, abs(offset), abs(offset)) for offset in offsets]))

    def key(self, number: int) -> bytes:
        """Of the row of a message with this number."""
        return rows.key_number(rows.SENT, self._session.row.id, number)

    def _write(self, changed: Rows) -> None:
        if changed:
            self._session.sessions.write(changed)
