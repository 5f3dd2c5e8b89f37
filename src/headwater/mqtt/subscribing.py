"""Subscribing: what an MQTT session takes from, and how its client wants it.

QoS 0 subscriptions are live ones; those of QoS 1 and 2 are durable subscriptions of the session, whose messages wait
for the client to come back; `$share/group/filter` is one durable subscription for all who share it,
`$replay/place/filter` reads history first, and `$SYS` tells the broker's figures. Promises: a subscription is stored
with its session before the client hears of it, and it hears of it before the first message; one that is made again
misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headwater.delivery.live import Live
from headwater.delivery.options import Options
from headwater.delivery.replay import Reading
from headwater.delivery.selection import Selection
from headwater.errors import Closed, HeadwaterError, Malformed, NotFound, QuotaExceeded
from headwater.log.root import MQTT_SYS
from headwater.message import FROM, Headers, Message
from headwater.mqtt.broker_topics import Watch, WatchPump
from headwater.mqtt.overlap import PLAIN, Overlaps
from headwater.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from headwater.mqtt.reasons import Reason, violation
from headwater.mqtt.refusal import reason_of
from headwater.mqtt.replaying import ReplayStart, split_replay
from headwater.mqtt.subscription_options import SubscriptionOptions
from headwater.mqtt.window import NUMBER_MAX
from headwater.server.live_pump import LivePump
from headwater.server.pump import UNBOUNDED, Pump
from headwater.server.reading_pump import ReadingPump
from headwater.server.session import Fresh, Session
from headwater.server.session_row import SubscriptionOf
from headwater.topics.name import check_filter

if TYPE_CHECKING:
    from headwater.mqtt.connection import MqttConnection
    from headwater.mqtt.protocol import MqttProtocol
    from headwater.server.connection import Connection
    from headwater.server.session_row import SessionRow

CREDIT = UNBOUNDED
"""The window and the connection's buffer are what bounds deliveries here."""


class SubscribingSession(Session):
    """The subscriptions of one MQTT client's session."""

    __slots__ = ("_last_number", "making", "mqtt", "overlaps", "plain", "replays", "tag", "wishes")

    def __init__(self, mqtt: MqttProtocol, row: SessionRow) -> None:
        super().__init__(mqtt.sessions, row)
        self.mqtt = mqtt
        self.wishes: dict[int, SubscriptionOptions] = {}
        """By the subscription's number."""
        self.replays: dict[str, SubscriptionOf] = {}
        """By their filters; they are the connection's, not the session's."""
        self.plain: dict[int, SubscriptionOf] = {}
        """Those that are neither shared nor replays, by their numbers."""
        self.overlaps: Overlaps | None = None
        """Of a session with several of these."""
        self.making: set[str] = set()
        """Filters of SUBSCRIBE packets that are not answered yet."""
        self.tag: Headers = ()
        """What its publishes carry, so that subscriptions that want none of its own messages know them."""
        self._last_number = max((one.number for one in row.subscriptions), default=0)

    def _resume_all(self) -> None:
        """The client is back: every subscription of its session goes on."""
        for one in self.subscriptions.values():
            self._note_wish(one)
            if one.kind == "live" and one.number not in self.pumps:
                self._open_live(one, False, self._note)
        self._attach_all([one for one in self.subscriptions.values() if one.kind != "live"])

    def _note_wish(self, one: SubscriptionOf) -> None:
        wish = self.wishes[one.number] = one.extension or SubscriptionOptions()
        if wish.no_local and not self.tag:
            self.tag = (self.mark,)
        if one.kind not in PLAIN:
            return
        self.plain[one.number] = one
        if self.overlaps is not None:
            self.overlaps.put(one)
        elif len(self.plain) > 1:
            self.overlaps = Overlaps(self)
            for other in self.plain.values():
                self.overlaps.put(other)

    def _forget_wish(self, number: int) -> None:
        self.wishes.pop(number, None)
        self.plain.pop(number, None)
        if self.overlaps is not None:
            self.overlaps.remove(number)

    def _objection(self, connection: Connection | None, number: int, filter: str) -> HeadwaterError | None:
        if number not in self.wishes and connection is self.connection:
            return Closed("it was unsubscribed meanwhile")
        return super()._objection(connection, number, filter)

    @property
    def mark(self) -> tuple[str, str]:
        """The header that tells that a message is its own."""
        return FROM, f"{self.row.user}/{self.row.client}"

    # Subscribing

    def _on_subscribe(self, connection: MqttConnection, packet: Subscribe) -> None:
        identifier = packet.properties.subscription_identifiers[0] if packet.properties.subscription_identifiers else 0
        reasons: list[int] = [-1] * len(packet.subscriptions)

        def made(place: int, reason: int) -> None:
            reasons[place] = reason
            if min(reasons) >= 0 and connection is self.connection:
                connection.send(Suback(packet.packet_id, tuple(reasons)))
                self._on_subscribed(packet)

        self.making.update(one.filter for one in packet.subscriptions)
        for place, one in enumerate(packet.subscriptions):
            then = partial(made, place)
            try:
                self._subscribe(one, identifier, then)
            except HeadwaterError as error:
                self.sessions.counts.refuse(error.code)
                then(reason_of(error, Reason.TOPIC_FILTER_INVALID))

    def _on_subscribed(self, packet: Subscribe) -> None:
        """A SUBSCRIBE is answered: its messages may come."""
        self.making.difference_update(one.filter for one in packet.subscriptions)
        for one in packet.subscriptions:
            known = self._known(one.filter)
            pump = self.pumps.get(known.number) if known is not None else None
            if pump is not None and pump.is_held:
                pump.is_held = False
                pump.ring()

    def _hold(self, number: int) -> None:
        """Have messages of a new subscription wait for its SUBACK."""
        self.pumps[number].is_held = True

    def _subscribe(self, one: Subscription, identifier: int, then: Callable[[int], None]) -> None:
        sessions = self.sessions
        place, wanted = split_replay(one.filter)
        if place is not None:
            self._replay(one, wanted, place, identifier, then)
            return
        group, wanted = split_shared(one.filter)
        check_filter(wanted, sessions.broker.core.config)
        is_sys = is_of_sys(wanted)
        # What others may share takes a rule, also for the session's own answers.
        check = sessions.broker.check_subscribe if group is None else sessions.broker.check_named
        check(self.row.user, self.row.id, wanted)
        if group is not None and one.no_local:
            raise violation("a shared subscription cannot leave out the client's own messages")
        if group is not None and is_sys:
            raise Malformed(f'"{MQTT_SYS}" is told to each who subscribes, and cannot be shared')
        qos = 0 if is_sys else one.qos
        wish = SubscriptionOptions(qos, one.no_local, one.retain_as_published, identifier)
        kind = "named" if group is not None else "session" if qos else "live"
        known = self._known(one.filter)
        if known is not None and known.kind in (kind, "session"):
            self._change(known, wish, one.retain_handling == 0 and group is None, then)
            return
        if known is None and len(self.wishes) >= sessions.serving.subscriptions_per_session_max:
            raise QuotaExceeded("this session has as many subscriptions as subscriptions_per_session_max allows")
        self._last_number += 1
        name = one.filter if group is not None else f"{self.row.id}:{one.filter}"
        made = SubscriptionOf(self._last_number, kind, name, wanted, *CREDIT, wish)
        self._note_wish(made)
        # A live subscription that becomes a durable one is not new: its retained messages come if they always do.
        with_retained = group is None and one.retain_handling < (2 if known is None else 1)
        made_known = partial(self._made, made, known, then)
        if kind == "live":
            self._open_live(made, with_retained, made_known)
        else:
            self._open_durable(made, with_retained, made_known)

    def _replay(
        self, one: Subscription, wanted: str, place: ReplayStart, identifier: int, then: Callable[[int], None]
    ) -> None:
        """History, and then what comes. It lasts as long as the connection, and asks for no acknowledgements: each
        message says where a client that comes back can go on."""
        core, serving, owner = self.sessions.broker.core, self.sessions.serving, self.share
        check_filter(wanted, core.config)
        self.sessions.broker.check_subscribe(self.row.user, self.row.id, wanted)
        known = self.replays.get(one.filter)
        if known is not None:
            self._remove(known)
        if len(self.wishes) >= serving.subscriptions_per_session_max:
            raise QuotaExceeded("this session has as many subscriptions as subscriptions_per_session_max allows")
        self._last_number += 1
        wish = SubscriptionOptions(0, one.no_local, one.retain_as_published, identifier, is_replay=True)
        made = SubscriptionOf(self._last_number, "follow", one.filter, wanted, *CREDIT, wish)
        self._note_wish(made)
        self.replays[one.filter] = made

        def make() -> Reading:
            if isinstance(place, int):
                return core.read(wanted, after=max(0, place - 1), follows=True, owner=owner)
            return core.read(wanted, since=place, follows=True, owner=owner)

        def opened(error: BaseException | None) -> None:
            if error is not None:
                self._remove(made)
                is_bad = isinstance(error, Malformed)
                then(reason_of(error, Reason.TOPIC_FILTER_INVALID if is_bad else Reason.UNSPECIFIED_ERROR))
            else:
                self._hold(made.number)
                then(0)

        def serve(reading: Reading) -> Pump:
            return ReadingPump(self, made.number, "follow", reading, CREDIT)

        self._open(made.number, wanted, make, serve, opened)

    def _known(self, filter: str) -> SubscriptionOf | None:
        if filter in self.replays:
            return self.replays[filter]
        return self.subscriptions.get(filter) or self.subscriptions.get(f"{self.row.id}:{filter}")

    def _made(
        self,
        one: SubscriptionOf,
        replaced: SubscriptionOf | None,
        then: Callable[[int], None],
        error: BaseException | None,
    ) -> None:
        """A subscription was made, or was not: if it was, it takes the place of the one before it."""
        if error is not None:
            self._forget_wish(one.number)
            self.on_writable()  # what waited for it to be made goes on
            then(reason_of(error, Reason.UNSPECIFIED_ERROR))
            return
        self._hold(one.number)
        if replaced is not None:
            self._leave(replaced)
        self._store(one, then)
        if self.overlaps is not None:
            self.on_writable()

    def _store(self, one: SubscriptionOf, then: Callable[[int], None]) -> None:
        """It is stored with the session before the client hears of it."""
        granted = one.extension.qos if one.extension is not None else 0
        self._keep(one, lambda _, error: then(granted if error is None else reason_of(error, Reason.UNSPECIFIED_ERROR)))

    def _change(
        self, known: SubscriptionOf, wish: SubscriptionOptions, with_retained: bool, then: Callable[[int], None]
    ) -> None:
        """The same filter again: what is wanted of it is now this, and nothing that comes is missed."""
        one = msgspec.structs.replace(known, extension=wish)
        self._note_wish(one)

        def stored(reason: int) -> None:
            then(reason)
            if with_retained and reason < Reason.UNSPECIFIED_ERROR and self.connection is not None:
                self._send_retained(one)

        self._store(one, stored)

    def _send_retained(self, one: SubscriptionOf) -> None:
        """Send what is retained once more."""
        core = self.sessions.broker.core
        if one.kind == "session":
            again = partial(core.dispatcher.send_retained, one.id)
            self._for_client(again, lambda _, error: self._note(error))
        elif isinstance(pump := self.pumps.get(one.number), LivePump):
            self._for_client(partial(core.greet_again, pump.live), lambda _, error: self._note(error))
        elif is_of_sys(one.filter):
            self._show_figures(self.connection, one)

    def _show_figures(self, connection: Connection | None, one: SubscriptionOf) -> None:
        told = self.mqtt.broker_topics

        def show(messages: list[Message] | None, error: BaseException | None) -> None:
            pump = self.pumps.get(one.number)
            if pump is None or connection is not self.connection or not pump.is_allowed:
                return
            if messages and error is None:
                for message in messages:
                    self.deliver(pump, Selection(message.root, None, 1, None, (message,)))

        self._for_client(lambda: told.retained(one.filter), show)

    def _open_live(
        self, one: SubscriptionOf, with_retained: bool, then: Callable[[BaseException | None], None]
    ) -> None:
        if is_of_sys(one.filter):
            self._watch(one, with_retained, then)
            return
        core, owner = self.sessions.broker.core, self.share
        self.sessions.entry.give_places()  # what came before this SUBSCRIBE is before it, also in the log

        def make() -> Live:
            return core.listen(one.filter, owner=owner, with_retained=with_retained)

        def serve(live: Live) -> LivePump:
            return LivePump(self, one.number, live, CREDIT)

        self._open(one.number, one.filter, make, serve, then)

    def _watch(self, one: SubscriptionOf, with_retained: bool, then: Callable[[BaseException | None], None]) -> None:
        topics = self.mqtt.broker_topics

        def serve(watch: Watch) -> Pump:
            topics.add(watch)
            return WatchPump(self, one.number, watch)

        self._open(one.number, one.filter, lambda: topics.watch(one.filter, with_retained), serve, then)

    def _open_durable(
        self, one: SubscriptionOf, with_retained: bool, then: Callable[[BaseException | None], None]
    ) -> None:
        core = self.sessions.broker.core
        options = Options(
            id=one.id,
            filter=one.filter,
            order="none" if one.kind == "named" else "strict",
            max_in_flight=min(NUMBER_MAX, core.config.max_in_flight_max),
            ack_timeout_s=0,
            max_attempts=0,
            max_deliveries=0,
            on_gap="skip",
            # Sessions delete what they share; this is for what a crash keeps them from.
            expire_after_s=2 * self.sessions.serving.session_expire_after_s_max if one.kind == "named" else None,
        )
        # From now on, not from when the thread has made it: what others published before this SUBSCRIBE is not part of
        # it. What they publish after it is, but for what shares a commit with the look at the roots' ends: that is
        # acknowledged before this is, so nobody who has seen the SUBACK has published it.
        entry = self.sessions.entry
        entry.give_places()
        ends = core.dispatcher.ends(one.filter, is_quiet=entry.is_empty)
        if self.overlaps is not None and one.kind in PLAIN:
            self.overlaps.begin(one.number, ends)
        fresh = Fresh(options, {}, ends, with_retained)
        self._attach_durable(one.number, one.kind, one.id, one.filter, CREDIT, lambda _, error: then(error), fresh)

    # Unsubscribing

    def _on_unsubscribe(self, connection: MqttConnection, packet: Unsubscribe) -> None:
        reasons = []
        for wanted in packet.filters:
            known = self._known(wanted)
            if known is not None:
                self._remove(known)
            reasons.append(Reason.SUCCESS if known is not None else Reason.NO_SUBSCRIPTION_EXISTED)
        answer = Unsuback(packet.packet_id, tuple(reasons))

        # It leaves after what was asked before it is done, and noted.
        send = partial(self._answer, connection, answer)
        self._for_client(lambda: None, lambda _, __: self.sessions.write({}, send))

    def _answer(self, connection: MqttConnection, answer: Unsuback, _: object, error: BaseException | None) -> None:
        if connection is self.connection:
            self._note(error)
            connection.send(answer)

    def _leave(self, one: SubscriptionOf) -> Pump | None:
        """Take no more from a subscription."""
        pump = self.pumps.pop(one.number, None)
        self._forget_wish(one.number)
        if pump is not None:
            self._let_go(pump)
        return pump

    def _remove(self, one: SubscriptionOf) -> None:
        self._leave(one)
        if one.kind == "follow":
            self.replays.pop(one.id, None)
            return
        self._drop_row(one.id)
        if one.kind == "session":
            self.later(partial(self._delete, one.id), lambda _, error: self._note(error))
        elif one.kind == "named":
            self._delete_shared(one.id)

    def _delete(self, id: str) -> None:
        try:
            self.sessions.broker.core.durables.expire(id)
        except NotFound:
            pass

    def _delete_shared(self, id: str) -> None:
        """A subscription that others may share is deleted with the last of them."""
        if not self.sessions.has_taker(id):
            self.later(partial(self._delete, id), lambda _, error: self._note(error))


def is_of_sys(filter: str) -> bool:
    """Whether a filter is for the broker's figures."""
    return filter.partition("/")[0] == MQTT_SYS


def split_shared(filter: str) -> tuple[str | None, str]:
    """The group of a shared subscription, and the filter itself."""
    if not filter.startswith("$share/"):
        return None, filter
    _, group, rest = (*filter.split("/", 2), "")[:3]
    if not group or not rest or "+" in group or "#" in group:
        raise Malformed(f"{filter[:80]!r} is no shared subscription; write $share/group/filter")
    return group, rest
