"""A session of an MQTT client: the same sessions and pumps as the native protocol's, in MQTT's words.

Promises: a PUBLISH that is acknowledged is on disk; what the client has not acknowledged comes again over its next
connection, in order, with the number that it had; never more messages are on their way than the client takes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from headwater.delivery.selection import Selection
from headwater.errors import Closed, HeadwaterError, NotAllowed
from headwater.mqtt.encoding import PINGRESP
from headwater.mqtt.flight import Flight
from headwater.mqtt.kinds import Kind
from headwater.mqtt.packets import (
    Ack,
    Acks,
    Auth,
    Disconnect,
    Publish,
    Received,
    Run,
    Subscribe,
    Unsubscribe,
)
from headwater.mqtt.publishing import Publishing
from headwater.mqtt.reader import PINGREQ
from headwater.mqtt.reasons import violation
from headwater.mqtt.receiving import ReceivedRow
from headwater.mqtt.sending import Sending
from headwater.mqtt.subscribing import SubscribingSession
from headwater.mqtt.will import LastWill
from headwater.mqtt.window import Sent
from headwater.server.durable_pump import DurablePump
from headwater.server.log import Log
from headwater.server.pump import Pump
from headwater.server.session_row import SubscriptionOf
from headwater.store import state as rows
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.protocol import MqttProtocol
    from headwater.mqtt.wills import KeptWill
    from headwater.server.connection import Connection
    from headwater.server.session_row import SessionRow

SHARE_MAX = 16
"""Messages of a shared subscription that one client is given before the next has its turn."""

log = Log("headwater.mqtt")


class MqttSession(SubscribingSession):
    """One MQTT client's session."""

    __slots__ = ("_publishing", "_sending", "_waiting", "_will", "flight", "is_whole")

    def __init__(self, mqtt: MqttProtocol, row: SessionRow) -> None:
        super().__init__(mqtt, row)
        self.is_whole = False
        """Whether what is stored of its numbers was read; there is nothing to read of a new one."""
        self._waiting: list[Received] = []
        """Messages, and what came behind them, that wait for a SUBSCRIBE before them to be through."""
        self._publishing = Publishing(self)
        self.flight = Flight(self)
        self._sending = Sending(self, self.flight)
        self._will = LastWill(self)

    # Connections come and go

    def recover(self, then: Callable[[BaseException | None], None]) -> None:
        """Read what is stored of its numbers, once."""
        if self.is_whole:
            then(None)
            return
        roots, receiving = self.sessions.broker.core.roots, self._publishing.receiving
        sent_prefix = rows.SENT + self.row.id.encode() + b"\0"
        sent: dict[int, Sent] = {}
        received: list[ReceivedRow] = []

        def work() -> None:
            for key, value in self.sessions.rows_of(sent_prefix):
                sent[rows.number_in(key)] = msgspec.msgpack.decode(value, type=Sent)
            for _, value in self.sessions.rows_of(rows.RECEIVED + self.row.id.encode()):
                received.append(msgspec.msgpack.decode(value, type=ReceivedRow))

        def done(_: object, error: BaseException | None) -> None:
            if error is None and not self.is_whole:
                self.is_whole = True
                self.flight.restore(sent)
            then(error)

        def both() -> None:
            work()
            if not self.is_whole:
                row = received[0] if received else None
                roots.settled(partial(receiving.recover, row))

        self.later(both, done)

    def attach(self, connection: Connection) -> None:
        mine, old = cast("MqttConnection", connection), cast("MqttConnection | None", self.connection)
        self._will.forget()
        super().attach(connection)
        left = old.take_will() if old is not None else None
        if left is not None and not left.delay_s:
            self.mqtt.wills.publish(left)
        elif left is not None:
            self.mqtt.wills.drop(left)
        self.making.clear()
        self._waiting = []
        self.flight.window.size = mine.receive_max
        self._publishing.on_connected()

    def on_registered(self, connection: Connection) -> None:
        """The client knows that the session is its own: every subscription of it goes on."""
        if connection is self.connection:
            self._resume_all()  # first, as what is sent again says which subscription it is for
            self.flight.on_registered(cast("MqttConnection", connection))

    def _resumed(
        self,
        one: SubscriptionOf,
        numbers: set[int],
        pump: DurablePump | None,
        error: BaseException | None,
    ) -> None:
        if one.number in self.wishes:
            super()._resumed(one, numbers, pump, error)
        else:
            numbers.discard(one.number)  # it was unsubscribed meanwhile
        if pump is not None:
            self.flight.on_attached(pump)
        if self.overlaps is not None:
            self.on_writable()

    def _detach_all(self) -> None:
        super()._detach_all()
        self.replays.clear()
        if self.overlaps is not None:
            self.overlaps.on_lost()
        self._sending.suspend()

    def on_lost(self, connection: Connection) -> None:
        is_mine = connection is self.connection
        super().on_lost(connection)
        left = cast("MqttConnection", connection).take_will() if is_mine else None
        if left is not None:
            self._will.wait(left)

    def recover_will(self, kept: KeptWill) -> None:
        """A server that is no more has left a will of this session."""
        self._will.recover(kept)

    def end(self) -> None:
        connection = cast("MqttConnection | None", self.connection)
        left = connection.take_will() if connection is not None else None
        if left is not None:
            self.mqtt.wills.publish(left)
        self._will.publish()
        super().end()
        for one in self.subscriptions.values():
            if one.kind == "named":
                self._delete_shared(one.id)

    def on_forgotten(self) -> None:
        self.mqtt.forget(self)

    def erase(self) -> None:
        keys = [key for key, _ in self.sessions.rows_of(rows.SENT + self.row.id.encode() + b"\0")]
        self.sessions.broker.core.rows.enqueue(dict.fromkeys([*keys, rows.RECEIVED + self.row.id.encode()]))
        super().erase()

    def leaves(self) -> list[Callable[[], object]]:
        unstored, write = self.flight.unstored(), self.sessions.broker.core.rows.write
        return [*super().leaves(), lambda: write(unstored)]

    @property
    def room(self) -> int:
        """How many more messages the client takes."""
        overlaps = self.overlaps
        may_send = self._sending.outbox is None and (overlaps is None or overlaps.is_whole)
        return self.flight.window.room if may_send else 0

    @property
    def share_max(self) -> int:
        return SHARE_MAX

    # Packets

    def receive(self, packets: list[Received]) -> None:
        connection = cast("MqttConnection | None", self.connection)
        if self._waiting:
            self._waiting += packets
            return
        pings = 0
        for place, packet in enumerate(packets):
            if packet is PINGREQ:
                pings += 1
                continue
            if connection is None or connection is not self.connection or connection.is_closed or connection.is_ending:
                return
            if self.making and self._comes_after(packet):
                self._waiting = packets[place:]
                connection.hold()
                break
            try:
                self._on_packet(connection, packet)
            except HeadwaterError as error:
                connection.refuse(error)
                return
        if pings and connection is not None:
            connection.write(PINGRESP * pings)

    def _comes_after(self, packet: Received) -> bool:
        """Whether what a packet says is about subscriptions that are being made."""
        match packet:
            case Run() | Publish():
                return bool(self.making)
            case Subscribe():
                return not self.making.isdisjoint(one.filter for one in packet.subscriptions)
            case Unsubscribe():
                return not self.making.isdisjoint(packet.filters)
        return False

    def _on_subscribed(self, packet: Subscribe) -> None:
        """What the client sent behind a SUBSCRIBE comes after it."""
        super()._on_subscribed(packet)
        if self._waiting and self.connection is not None and not self._comes_after(self._waiting[0]):
            waiting, self._waiting = self._waiting, []
            self.connection.release()
            self.tell(waiting)

    def _on_packet(self, connection: MqttConnection, packet: Received) -> None:
        match packet:
            case Run():
                self._publishing.take_run(connection, packet)
            case Publish():
                self._publishing.take(connection, packet)
            case Acks():
                self.flight.window.check(packet.kind, packet.packet_ids)
                self._on_acks(connection, packet.kind, packet.packet_ids)
            case Ack():
                self.flight.window.check(packet.kind, (packet.packet_id,))
                is_refused = packet.reason >= 0x80 and packet.kind in (Kind.PUBACK, Kind.PUBREC)
                # What the client will never take is done with, as if it had: there is nothing to try again.
                self._on_acks(connection, Kind.PUBACK if is_refused else packet.kind, (packet.packet_id,))
            case Subscribe():
                self._on_subscribe(connection, packet)
            case Unsubscribe():
                self._on_unsubscribe(connection, packet)
            case Disconnect():
                connection.on_disconnect(packet)
            case Auth():
                connection.on_auth(packet)
            case _:
                raise violation("this packet is not one for a server")

    def _on_acks(self, connection: MqttConnection, kind: Kind, packet_ids: Sequence[int]) -> None:
        match kind:
            case Kind.PUBACK:
                self.flight.acknowledge(packet_ids)
            case Kind.PUBREL:
                self._publishing.release(connection, packet_ids)
            case Kind.PUBREC:
                self.flight.receive(connection, packet_ids)
            case Kind.PUBCOMP:
                self.flight.complete(packet_ids)

    def answer_when(self, id: int, future: Future[object]) -> None:
        future.add_done_callback(lambda done: self._note(done.exception()))

    # Deliveries

    def deliver(self, pump: Pump, selection: Selection) -> int:
        return self._sending.deliver(pump, selection)

    def recall(self, pump: Pump, ranges: Sequence[Range]) -> None:
        """MQTT cannot take messages back: the client acknowledges what it has, or loses the connection."""

    def notice(self, number: int, what: str, error: BaseException | None = None, count: int = 0) -> None:
        if what == "ended" and not isinstance(error, NotAllowed) and self.connection is not None:
            self.connection.say_goodbye(Closed("a subscription has ended; connect and subscribe again"))
        elif what == "gap":
            log.at_will(logging.WARNING, "mqtt-gap", session=self.row.id, gap=str(error))

    def _drop_row(self, name: str) -> None:
        one = self.subscriptions.get(name)
        if one is not None:
            self._forget_wish(one.number)
            self.flight.forget(one.number)  # which is stored before the row is
        super()._drop_row(name)
