"""A session of an MQTT client: the same sessions and subscribers as the native protocol's, in MQTT's words.

QoS 0 subscriptions are live ones; those of QoS 1 and 2 are durable subscriptions of the session, whose messages wait
for the client to come back. Promises: a PUBLISH that is acknowledged is on disk; what the client has not acknowledged
comes again over its next connection, in order, with the number that it had; never more messages are on their way than
the client takes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from headwater.delivery.live import Live
from headwater.delivery.options import Options
from headwater.errors import Closed, HeadwaterError, Malformed, NotAllowed, QuotaExceeded
from headwater.message import Headers, Message
from headwater.mqtt.encoding import PINGRESP
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Acks,
    Auth,
    Disconnect,
    Pingreq,
    Publish,
    Received,
    Run,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from headwater.mqtt.publishes import Publishes
from headwater.mqtt.publishing import Publishing
from headwater.mqtt.reasons import Reason, violation
from headwater.mqtt.refusal import reason_of
from headwater.mqtt.translation import block_of
from headwater.mqtt.will import LastWill
from headwater.mqtt.window import NUMBER_MAX, Sent, Window
from headwater.mqtt.wish import Wish
from headwater.server import subscriber as served
from headwater.server.log import Log
from headwater.server.session import Fresh, Session
from headwater.server.session_row import SubscriptionOf
from headwater.server.subscriber import LiveSubscriber, Subscriber
from headwater.store.batch import ONCE, QUIET, Batch
from headwater.topics.name import check_filter
from headwater.wire.batches import Range

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.server.line import Line
    from headwater.server.session_row import SessionRow
    from headwater.server.sessions import Sessions

CREDIT = (1 << 40, 1 << 40)
"""The window and the connection's buffer are what bounds deliveries here."""

FROM = "headwater-from"
"""The header that tells whose message it is, of sessions that do not want their own."""

log = Log("headwater.mqtt")


class MqttSession(Session):
    """One MQTT client's session."""

    __slots__ = ("_last_number", "_publishing", "_will", "_wishes", "tag", "window")

    def __init__(self, sessions: Sessions, row: SessionRow) -> None:
        super().__init__(sessions, row)
        self.window = Window(0)
        self.tag: Headers = ()
        """What its publishes carry, so that subscriptions that want none of its own messages know them."""
        self._publishing = Publishing(self)
        self._will = LastWill(self)
        self._wishes: dict[int, Wish] = {}
        self._last_number = max((one.number for one in row.subscriptions), default=0)

    # Connections come and go

    def attach(self, connection: Line) -> None:
        self._will.forget()
        super().attach(connection)
        self.window.size = cast("MqttConnection", connection).receive_max
        self._publishing.on_connected()

    def on_registered(self, connection: Line) -> None:
        """The client knows that the session is its own: every subscription of it goes on."""
        for one in self.row.subscriptions:
            wish = one.wish or Wish()
            self._wishes[one.number] = wish
            self._note_wish(wish)
            if one.kind == "live":
                self._open_live(one, with_retained=False, then=self._note)
        self._attach_all([one for one in self.row.subscriptions if one.kind != "live"])

    def _detach_all(self) -> None:
        super()._detach_all()
        self.window.suspend()

    def on_lost(self, connection: Line) -> None:
        will, is_mine = cast("MqttConnection", connection).will, connection is self.connection
        super().on_lost(connection)
        if will is not None and is_mine and not self.sessions.is_closing:
            self._will.wait(will)

    def end(self) -> None:
        super().end()
        self._will.publish()

    @property
    def room(self) -> int:
        """How many more messages the client takes."""
        return self.window.room

    # Packets

    def receive(self, packets: list[Received]) -> None:
        connection = cast("MqttConnection | None", self.connection)
        for packet in packets:
            if connection is None or connection is not self.connection or connection.is_closed:
                return
            try:
                self._on_packet(connection, packet)
            except HeadwaterError as error:
                connection.refuse(error)
                return

    def _on_packet(self, connection: MqttConnection, packet: Received) -> None:
        match packet:
            case Run():
                self._publishing.take_run(connection, packet)
            case Publish():
                self._publishing.take(connection, packet)
            case Acks():
                self._on_acks(connection, packet.kind, packet.packet_ids)
            case Ack():
                self._on_ack(connection, packet)
            case Pingreq():
                connection.write(PINGRESP)
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

    # Acknowledgements

    def _on_acks(self, connection: MqttConnection, kind: Kind, packet_ids: Sequence[int]) -> None:
        match kind:
            case Kind.PUBACK:
                self._acknowledge(packet_ids)
            case Kind.PUBREL:
                self._publishing.release(connection, packet_ids)
            case Kind.PUBREC:
                self._on_received(connection, packet_ids)
            case Kind.PUBCOMP:
                self._on_complete(packet_ids)

    def _on_ack(self, connection: MqttConnection, packet: Ack) -> None:
        if packet.reason < 0x80 or packet.kind not in (Kind.PUBACK, Kind.PUBREC):
            self._on_acks(connection, packet.kind, (packet.packet_id,))
            return
        # The client will never take it: there is nothing to try again.
        sent = self.window.take(packet.packet_id)
        if sent is not None:
            self._settle([sent])

    def _acknowledge(self, packet_ids: Sequence[int]) -> None:
        take = self.window.take
        self._settle([sent for sent in map(take, packet_ids) if sent is not None])

    def _settle(self, done: Sequence[Sent]) -> None:
        """The client is done with messages: that is stored, and there is room for others."""
        was_full = self.window.room <= len(done)
        by_subscriber: dict[int, list[Range]] = {}
        for sent in done:
            offset = sent.place[2]
            by_subscriber.setdefault(sent.subscriber, []).append((sent.lease, offset, offset))
        for number, ranges in by_subscriber.items():
            subscriber = self.subscribers.get(number)
            if subscriber is not None:
                subscriber.tell(served.Ack(0, ranges))
        if was_full:
            self.on_writable()

    def _on_received(self, connection: MqttConnection, packet_ids: Sequence[int]) -> None:
        """The client has messages of QoS 2: they are not sent again, only their numbers are still in use."""
        for number in packet_ids:
            sent = self.window.get(number)
            if sent is not None and not sent.is_received:
                sent.is_received = True
                self._settle([sent])
            known = sent is not None
            connection.send(Ack(Kind.PUBREL, number, Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND))

    def _on_complete(self, packet_ids: Sequence[int]) -> None:
        for number in packet_ids:
            self.window.take(number)
        self.on_writable()

    def answer_when(self, id: int, future: Future[object]) -> None:
        future.add_done_callback(lambda done: self._note(done.exception()))

    # Deliveries

    def deliver_batch(self, subscriber: Subscriber, batch: Batch, places: Sequence[int] | None, lease: int) -> int:
        wish = self._wishes[subscriber.number]
        connection = cast("MqttConnection", self.connection)
        header = batch.header
        if wish.no_local and self.tag:
            places = self._of_others(subscriber, batch, places, lease)
            if not places:
                return 0
        qos = min(wish.qos, qos_of(header.flags)) if lease else 0
        made = self.sessions.deliveries.get(
            batch, places, connection.version, qos, wish.retain_as_published, wish.identifiers
        )
        if not qos:
            connection.write(made.data)
            if lease:
                self._done_at_once(subscriber, lease, header.first_offset, places, header.count)
            return len(made.data)
        first = header.first_offset
        offsets: Sequence[int] = range(first, first + header.count) if places is None else [first + p for p in places]
        numbers, again = self._number(subscriber, header.root, offsets, lease)
        data = made.numbered(numbers, again)
        connection.write(data)
        return len(data)

    def _number(
        self, subscriber: Subscriber, root: str, offsets: Sequence[int], lease: int
    ) -> tuple[list[int], list[bool] | None]:
        """A number for each message, and which of them had theirs before."""
        add, name = self.window.add, subscriber.id or ""
        found = [add(Sent((name, root, offset), subscriber.number, lease)) for offset in offsets]
        again = [is_again for _, is_again in found]
        return [number for number, _ in found], again if any(again) else None

    def _done_at_once(
        self, subscriber: Subscriber, lease: int, first: int, places: Sequence[int] | None, count: int
    ) -> None:
        """Messages that nobody acknowledges are done with when they are sent."""
        if places is None:
            subscriber.tell(served.Ack(0, [(lease, first, first + count - 1)]))
        else:
            subscriber.tell(served.Ack(0, [(lease, first + place, first + place) for place in places]))

    def _of_others(
        self, subscriber: Subscriber, batch: Batch, places: Sequence[int] | None, lease: int
    ) -> Sequence[int]:
        """The messages that this client has not published itself; those that it has are done with."""
        there = range(batch.header.count) if places is None else places
        headers = batch.body.headers()
        if not headers:
            return there
        mine = self.tag[0]
        own = [place for place in there if mine in headers[place]]
        if own and lease:
            self._done_at_once(subscriber, lease, batch.header.first_offset, own, 0)
        return [place for place in there if mine not in headers[place]] if own else there

    def deliver_messages(self, subscriber: Subscriber, root: str, messages: Sequence[Message], lease: int) -> int:
        """Retained messages, and those that come again one by one."""
        wish = self._wishes[subscriber.number]
        connection = cast("MqttConnection", self.connection)
        qos = min(wish.qos, 1) if lease else 0
        blocks = [block_of(one.headers, one.key, identifiers=wish.identifiers) for one in messages]
        made = Publishes(
            [one.topic for one in messages],
            [one.payload for one in messages],
            version=connection.version,
            qos=qos,
            retain=[one.retained for one in messages],
            properties=blocks if connection.version == V5 else None,
        )
        if not qos:
            connection.write(made.data)
            return len(made.data)
        data = made.numbered(*self._number(subscriber, root, [one.offset for one in messages], lease))
        connection.write(data)
        return len(data)

    def recall(self, subscriber: Subscriber, ranges: Sequence[Range]) -> None:
        """MQTT cannot take messages back: the client acknowledges what it has, or loses the connection."""

    def notice(self, number: int, what: str, error: BaseException | None = None, count: int = 0) -> None:
        if what == "ended" and not isinstance(error, NotAllowed) and self.connection is not None:
            self.connection.say_goodbye(Closed("a subscription has ended; connect and subscribe again"))
        elif what == "gap":
            log.at_will(logging.WARNING, "mqtt-gap", session=self.row.id, gap=str(error))

    # Subscribing

    def _on_subscribe(self, connection: MqttConnection, packet: Subscribe) -> None:
        identifier = packet.properties.subscription_identifiers[0] if packet.properties.subscription_identifiers else 0
        reasons: list[int] = [-1] * len(packet.subscriptions)

        def made(place: int, reason: int) -> None:
            reasons[place] = reason
            if min(reasons) >= 0 and connection is self.connection:
                connection.send(Suback(packet.packet_id, tuple(reasons)))

        for place, one in enumerate(packet.subscriptions):
            then = partial(made, place)
            try:
                self._subscribe(one, identifier, then)
            except HeadwaterError as error:
                then(reason_of(error, Reason.TOPIC_FILTER_INVALID))

    def _subscribe(self, one: Subscription, identifier: int, then: Callable[[int], None]) -> None:
        sessions = self.sessions
        group, wanted = split_shared(one.filter)
        check_filter(wanted, sessions.broker.bus.config)
        sessions.broker.check_subscribe(self.row.user, self.row.id, wanted)
        if group is not None and one.no_local:
            raise violation("a shared subscription cannot leave out the client's own messages")
        wish = Wish(one.qos, one.no_local, one.retain_as_published, identifier)
        kind = "named" if group is not None else "session" if one.qos else "live"
        known = self._known(one.filter)
        if known is not None and known.kind == kind:
            self._change(known, wish, one.retain_handling == 0 and group is None, then)
            return
        if known is not None:
            self._remove(known)
        if len(self.row.subscriptions) >= sessions.serving.subscriptions_per_session_max:
            raise QuotaExceeded("this session has as many subscriptions as subscriptions_per_session_max allows")
        self._last_number += 1
        name = one.filter if group is not None else f"{self.row.id}:{one.filter}"
        made = SubscriptionOf(self._last_number, kind, name, wanted, *CREDIT, wish)
        self._wishes[made.number] = wish
        self._note_wish(wish)
        with_retained = one.retain_handling != 2 and group is None
        if kind == "live":
            self._open_live(made, with_retained, partial(self._kept, made, then))
        else:
            self._open_durable(made, with_retained, partial(self._kept, made, then))

    def _known(self, filter: str) -> SubscriptionOf | None:
        names = (filter, f"{self.row.id}:{filter}")
        return next((one for one in self.row.subscriptions if one.id in names), None)

    def _kept(self, one: SubscriptionOf, then: Callable[[int], None], error: BaseException | None) -> None:
        """A subscription was made, or was not: if it was, it is stored with the session before the client hears."""
        if error is not None:
            self._wishes.pop(one.number, None)
            then(reason_of(error, Reason.UNSPECIFIED_ERROR))
            return
        granted = one.wish.qos if one.wish is not None else 0
        self._keep(one, lambda _, error: then(granted if error is None else reason_of(error, Reason.UNSPECIFIED_ERROR)))

    def _change(self, known: SubscriptionOf, wish: Wish, with_retained: bool, then: Callable[[int], None]) -> None:
        """The same filter again: what is wanted of it is now this, and nothing that comes is missed."""
        one = msgspec.structs.replace(known, wish=wish)
        self._wishes[one.number] = wish
        self._note_wish(wish)
        bus, connection = self.sessions.broker.bus, self.connection

        def found(messages: list[Message], error: BaseException | None) -> None:
            subscriber = self.subscribers.get(one.number)
            if error is None and subscriber is not None and connection is self.connection:
                for message in messages:
                    self.deliver_messages(subscriber, message.root, [message], 0)

        self._kept(one, then, None)
        if with_retained:
            self._for_client(lambda: bus.retained(one.filter), found)

    def _open_live(
        self, one: SubscriptionOf, with_retained: bool, then: Callable[[BaseException | None], None]
    ) -> None:
        bus = self.sessions.broker.bus

        def make() -> Live:
            live: Live = bus.subscribe(one.filter)
            while not with_retained and live.take_retained() is not None:
                pass
            return live

        self._open(one.number, one.filter, make, lambda live: LiveSubscriber(self, one.number, live, CREDIT), then)

    def _open_durable(
        self, one: SubscriptionOf, with_retained: bool, then: Callable[[BaseException | None], None]
    ) -> None:
        config = self.sessions.broker.bus.config
        options = Options(
            id=one.id,
            filter=one.filter,
            order="none" if one.kind == "named" else "strict",
            max_in_flight=min(NUMBER_MAX, config.max_in_flight_max),
            ack_timeout_s=0,
            max_attempts=0,
            on_gap="skip",
        )
        fresh = Fresh(options, {}, "latest", with_retained)
        self._attach_durable(one.number, one.kind, one.id, one.filter, CREDIT, lambda _, error: then(error), fresh)

    def _note_wish(self, wish: Wish) -> None:
        if wish.no_local:
            self.tag = ((FROM, self.row.id),)

    # Unsubscribing

    def _on_unsubscribe(self, connection: MqttConnection, packet: Unsubscribe) -> None:
        reasons = []
        for wanted in packet.filters:
            known = self._known(wanted)
            if known is not None:
                self._remove(known)
            reasons.append(Reason.SUCCESS if known is not None else Reason.NO_SUBSCRIPTION_EXISTED)
        answer = Unsuback(packet.packet_id, tuple(reasons))
        self._for_client(lambda: None, lambda _, __: connection.send(answer))

    def _remove(self, one: SubscriptionOf) -> None:
        subscriber = self.subscribers.pop(one.number, None)
        self.window.forget(one.number, one.id)
        self._wishes.pop(one.number, None)
        self._drop_row(one.id)
        if subscriber is not None:
            self._let_go(subscriber)
        is_shared = one.kind == "named" and any(
            other.id == one.id for session in self.sessions.all() for other in session.row.subscriptions
        )
        if one.kind != "live" and not is_shared:
            bus = self.sessions.broker.bus
            self.later(lambda: bus.durables.expire(one.id), lambda _, error: self._note(error))


def qos_of(flags: int) -> int:
    """The QoS with which a batch was published; what native clients publish is as good as QoS 1."""
    return 0 if flags & QUIET else 2 if flags & ONCE else 1


def split_shared(filter: str) -> tuple[str | None, str]:
    """The group of a shared subscription, and the filter itself."""
    if not filter.startswith("$share/"):
        return None, filter
    _, group, rest = (*filter.split("/", 2), "")[:3]
    if not group or not rest or "+" in group or "#" in group:
        raise Malformed(f"{filter[:80]!r} is no shared subscription; write $share/group/filter")
    return group, rest
