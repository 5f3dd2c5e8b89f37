"""A connection of an MQTT client: its bytes become packets, its first packet a session.

Promises: nothing but a CONNECT is taken first, and in time; publishes are answered in the order in which they came, and
none that was not stored is called stored; a client that breaks the rules of MQTT is told the reason,
as far as its version can say it, and closed; one that is silent for one and a half times its keep alive is closed; its
will is published unless it took leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import Failed, HeadwaterError, Malformed, NotAllowed, SchemaMismatch, TimedOut
from headwater.mqtt.aliases import Aliases
from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import acks_bytes, encode
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packet_ids import NOBODY, PacketIds, Which
from headwater.mqtt.packets import Ack, Auth, Connack, Connect, Disconnect, Packet, Received, Suback, Unsuback
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import MqttError, Reason, VersionRefused, violation
from headwater.mqtt.refusal import goodbye_of, reason_of
from headwater.mqtt.window import NUMBER_MAX
from headwater.server.connection import EXPIRED, GONE, Connection, Elsewhere

if TYPE_CHECKING:
    from headwater.mqtt.authentication import Authentication, Proven
    from headwater.mqtt.greeting import Greeter
    from headwater.mqtt.receiving import Receiving
    from headwater.mqtt.wills import KeptWill
    from headwater.server.entry import Served
    from headwater.server.listener import Listener

PACKET_BYTES_MAX = 1 << 28
"""No packet is longer."""
PATIENCE = 1.5
"""Times its keep alive that a client may be silent."""
BEFORE_CONNACK = "a client that is asked for a proof sends an AUTH, and nothing else before its CONNACK"


class MqttConnection(Connection):
    """One MQTT client's connection."""

    __slots__ = (
        "_early",
        "_ending",
        "_greeter",
        "_is_greeted",
        "_is_greeting",
        "_reader",
        "_unanswered",
        "alias_max",
        "aliases",
        "authentication",
        "bytes_max",
        "has_reasons",
        "is_ending",
        "is_tunnelled",
        "keep_alive_s",
        "on_proven",
        "proof",
        "receive_max",
        "unacked",
        "version",
        "will",
    )

    def __init__(self, listener: Listener, greeter: Greeter) -> None:
        super().__init__(listener)
        self.version = 0
        """As its CONNECT says; 4 is MQTT 3.1.1."""
        self._greeter = greeter
        self._reader = PacketReader(limits_of(listener))
        self._early: list[Received] = []
        """What came behind a CONNECT that is not answered yet."""
        self._is_greeting = self._is_greeted = False
        self._unanswered: deque[PacketIds] | None = None
        """Packets that came and are not answered yet, in their order; made with the first."""
        self._ending: HeadwaterError | None = None
        """What the connection is closed for once all that came before it is answered."""
        self.is_ending = False
        """Whether it is to be closed, and nothing more is taken."""
        self.is_tunnelled = False
        """Whether it came over a WebSocket: whoever it is, it is not the process at the other end of the line."""
        self.authentication: Authentication | None = None
        """Of a client that proves who it is in more than one packet."""
        self.on_proven: Proven | None = None
        """What is to be done once it has, at the beginning."""
        self.proof = NONE
        """What shows the client then that the server knows its secret, too."""
        self.keep_alive_s = 0.0
        self.receive_max = NUMBER_MAX
        self.unacked = 0
        """Messages of QoS 1 that are on their way to disk."""
        self.bytes_max = PACKET_BYTES_MAX
        """The longest packet that the client takes."""
        self.has_reasons = True
        """Whether it wants to be told in words why something was refused."""
        self.alias_max = listener.serving.mqtt_aliases_max
        self.aliases: Aliases | None = None
        """Topics that the client takes numbers for."""
        self.will: KeptWill | None = None
        """What is published if the client goes without taking leave."""

    @property
    def packet_bytes_max(self) -> int:
        """The longest packet that is taken from the client."""
        return self._reader.limits.packet_bytes_max

    @property
    def language(self) -> str:
        way = " over WebSocket" if self.is_tunnelled else ""
        return f"MQTT {'3.1.1' if self.version == V4 else '5'}{way}"

    # Coming in

    def take(self, data: memoryview) -> None:
        reader, session = self._reader, self.session
        had_begun = reader.partial is not None
        packets = reader.feed(bytes(data))
        waiting = 0 if reader.partial is None else len(reader.partial)
        if had_begun or waiting:
            self.note_begun(waiting, is_another=not had_begun or len(packets) > 0)
        if packets and session is not None and not self._is_greeting:
            session.tell(packets)
        elif packets:
            self._greet(packets)
        if reader.error is not None and not self.is_closed:
            raise reader.error
        if waiting:
            self.check_holding()

    def _greet(self, packets: list[Received]) -> None:
        if self._is_greeting and self.authentication is not None and self.authentication.waits:
            self._take_proof(packets)
        elif self._is_greeting:
            self._early += packets
        else:
            first, self._early = packets[0], packets[1:]
            if not isinstance(first, Connect):
                raise violation("the first packet of a connection is a CONNECT")
            self.version = first.version
            self._is_greeting = True
            self.hold()
            self._greeter.greet(self, first)

    def _is_over(self, events: int) -> bool:
        """One that sent all it has behind its CONNECT may have ended its side, and is served all the same."""
        return bool(events & GONE) or (events != 0 and not self._early and self._reader.partial is None)

    def let_go(self) -> None:
        super().let_go()
        self._reader.let_go()
        self._early = []
        self.authentication = self.on_proven = None

    def drop_partial(self) -> None:
        self._reader.let_go()

    def check_nothing_follows(self) -> None:
        """Who is to be asked for a proof has nothing to say before that."""
        if self._early or self._reader.partial is not None:
            raise violation(BEFORE_CONNACK)

    def _take_proof(self, packets: list[Received]) -> None:
        assert self.authentication is not None
        assert self.on_proven is not None
        match packets:
            case [Auth() as packet]:
                self.authentication.finish(packet, self.on_proven)
            case [Disconnect(), *_]:
                self.close()
            case _:
                raise violation(BEFORE_CONNACK)

    def on_auth(self, packet: Auth) -> None:
        """The client of a session wants to prove again who it is, or does."""
        if self.authentication is None:
            raise violation("there is nothing to authenticate anew: the connection began without a method")
        self.authentication.again(packet)

    def on_greeted(self, answer: Connack) -> None:
        """The client has its session: it is told so, and what it sent meanwhile is taken."""
        self._is_greeting, self._is_greeted = False, True
        self.on_proven = None
        self._reader.bytes_max = self._reader.limits.packet_bytes_max
        self._limit_writes(self.listener.serving.write_bytes_max)
        self._greeter.on_greeted(self)
        self.send(answer)
        self.release()
        session = self.session
        if session is not None:
            session.on_registered(self)
            early, self._early = self._early, []
            if early:
                session.tell(early)

    # Going out

    def send(self, packet: Packet) -> None:
        """Send one packet; one that is too long for the client goes without its words. A client that takes not even
        a CONNACK cannot be served."""
        data = encode(packet, self.version or V5)
        if len(data) > self.bytes_max and isinstance(packet, Ack | Disconnect | Suback | Unsuback):
            data = encode(msgspec.structs.replace(packet, properties=NONE), self.version)
        if len(data) <= self.bytes_max:
            self.write(data)
        elif isinstance(packet, Connack):
            self.close()

    def expect(self, kind: Kind, packet_ids: Sequence[int], receiving: Receiving | None = None) -> PacketIds:
        """Packets have come that are to be answered, after those that came before them."""
        numbers = PacketIds(kind, packet_ids, receiving)
        if self._unanswered is None:
            self._unanswered = deque()
        self._unanswered.append(numbers)
        return numbers

    def answers(self, items: Sequence[Served]) -> bytes:
        for item in items:
            error = item.error
            if error is not None and not isinstance(error, HeadwaterError):
                error = Failed(f"it could not be stored: {error}")
            if error is not None and item.is_quiet:
                self._greeter.refused.noted(self.user, self.client_id, error)
            self._settle(item.id, error)
        return self._due()

    def settle(self, which: Which, error: HeadwaterError | None = None) -> None:
        """It is known of packets, before anything is on its way to disk, what becomes of them."""
        if error is not None and which[0] is NOBODY:
            self._greeter.refused.dropped(self.user, self.client_id, error)
        self._settle(which, error)
        self.write(self._due())

    def _settle(self, which: Which, error: HeadwaterError | None) -> None:
        numbers, places = which
        if numbers is NOBODY:
            return
        if error is None and numbers.receiving is None:
            numbers.left -= 1  # there is nothing to remember of them
            return
        is_end = error is not None and self._ends_with(numbers, error)
        numbers.settle(places, error, is_end)
        if is_end:
            self._stop()

    def _ends_with(self, numbers: PacketIds, error: HeadwaterError) -> bool:
        """Whether what was refused closes the connection. 3.1.1 has no word for a refusal: what its client may not do
        may be acknowledged and dropped ([MQTT-3.3.5-2]); anything else that is acknowledged is on disk. After a failure
        of the disk nobody knows whether a message is stored, and a PUBREC with a reason would free its number for
        another message, which the next start of the server would take for this one; that stays so when it comes again,
        and is refused for another reason."""
        if numbers.are_unsure:
            return True
        if self.version == V4:
            return not isinstance(error, NotAllowed)
        return numbers.kind is Kind.PUBREC and isinstance(error, Failed)

    def _due(self) -> bytes:
        """The answers that may leave: of those that came first, as far as it is known what became of them."""
        said: list[bytes] = []
        unanswered = self._unanswered
        while unanswered and not unanswered[0].left:
            numbers = unanswered.popleft()
            if numbers.kind is Kind.PUBACK:
                self.unacked -= len(numbers.packet_ids)
            if numbers.refused is None:
                said.append(acks_bytes(numbers.kind, list(numbers.packet_ids)))
                continue
            end = self._say_each(numbers, numbers.refused, said)
            if end is not None:
                self.write(b"".join(said))
                self._greeter.refused.closed(self.user, self.client_id, self.address, end)
                unanswered.clear()
                self._finish_with(end)
                return b""
        if self._ending is not None and not unanswered:
            self.write(b"".join(said))
            self._refuse(self._ending)
            return b""
        return b"".join(said)

    def _say_each(
        self, numbers: PacketIds, refused: dict[int, HeadwaterError], said: list[bytes]
    ) -> HeadwaterError | None:
        """Answer packets of which some were refused, up to one that ends the connection: why that was."""
        counting = self._greeter.refused
        for place, number in enumerate(numbers.packet_ids):
            error = refused.get(place)
            if place == numbers.ends_at:
                return error
            if error is None or self.version == V4:
                said.append(acks_bytes(numbers.kind, [number]))
            if error is not None and self.version == V4:
                counting.dropped(self.user, self.client_id, error)
            elif error is not None:
                counting.told(1)
                said.append(self._refusal(numbers.kind, number, error))
        return None

    def _refusal(self, kind: Kind, number: int, error: HeadwaterError) -> bytes:
        """What tells a client of MQTT 5 that a message was not stored."""
        reason = reason_of(error, Reason.UNSPECIFIED_ERROR)
        if isinstance(error, Malformed) and not isinstance(error, (MqttError, SchemaMismatch)):
            reason = Reason.TOPIC_NAME_INVALID
        elif reason is Reason.PACKET_TOO_LARGE:
            reason = Reason.QUOTA_EXCEEDED  # the other may not stand there
        if self.has_reasons:
            said = encode(Ack(kind, number, reason, Properties(reason_string=str(error))), V5)
            if len(said) <= self.bytes_max:
                return said
        return encode(Ack(kind, number, reason), V5)

    def _stop(self) -> None:
        """Take nothing more: it is to be closed."""
        if not self.is_ending:
            self.is_ending = True
            self.hold()

    # The end

    def refuse(self, error: HeadwaterError, id: int = 0) -> None:
        if self.is_ending:
            return
        if self._unanswered:  # what was stored before it is acknowledged first
            self._ending = error
            self._stop()
        else:
            self._refuse(error)

    def _refuse(self, error: HeadwaterError) -> None:
        if self._is_greeted and isinstance(error, MqttError) and error.reason is Reason.PACKET_TOO_LARGE:
            self._greeter.refused.closed(self.user, self.client_id, self.address, error)
        else:
            self.listener.on_refused(self, error)
        if not self._is_greeted:
            reason = reason_of(error, Reason.UNSPECIFIED_ERROR)
            version = error.version if isinstance(error, VersionRefused) else self._reader.version
            if not isinstance(error, MqttError) or has_answer(reason, version):
                data = encode(Connack(False, reason, Properties(reason_string=str(error))), version or V5)
                self.write(data if len(data) <= self.bytes_max else encode(Connack(False, reason), version or V5))
            self.close()
            return
        self._finish_with(error)

    def _finish_with(self, error: HeadwaterError) -> None:
        """Say no more than why."""
        if self.version == V5:
            self.send(Disconnect(goodbye_of(error, is_stopping=False), Properties(reason_string=str(error))))
        self.finish()

    def say_goodbye(
        self, error: HeadwaterError | None = None, reconnect: bool = False, elsewhere: Elsewhere | None = None
    ) -> None:
        if self._is_greeted and self.version == V5:
            address = "" if elsewhere is None or self.is_tunnelled else elsewhere[2 if self.has_tls else 1]
            if address:
                self.send(Disconnect(Reason.USE_ANOTHER_SERVER, Properties(server_reference=address)))
            else:
                self.send(Disconnect(goodbye_of(error, is_stopping=reconnect)))
        self.close()

    def expire(self) -> None:
        if not self.is_ending:
            self.say_goodbye(MqttError(EXPIRED, Reason.MAXIMUM_CONNECT_TIME))

    def on_disconnect(self, packet: Disconnect) -> None:
        """The client takes its leave. Its will is gone from the disk, too, before the connection is closed: whoever
        sees that knows that it will not be published, though the server be killed."""
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None and self.session is not None:
            self._greeter.change_expiry(self, expiry_s)  # or it is no DISCONNECT, and the will stands
        left = self.take_will() if packet.reason != Reason.DISCONNECT_WITH_WILL else None
        if left is None:
            self.close()
            return
        self._stop()
        self._greeter.wills.drop(left, lambda *_: self.close())

    def take_will(self) -> KeptWill | None:
        """What is to be published, or dropped, as the client is gone: whoever takes it sees to that."""
        left, self.will = self.will, None
        return left

    def look_after(self, now_s: float) -> None:
        if self.is_dripping(now_s):
            self.refuse(MqttError("a packet has begun and does not get on (frame_s)"))
        elif self.keep_alive_s and now_s - self.heard_s > PATIENCE * self.keep_alive_s:
            self.refuse(TimedOut("nothing was heard for one and a half times the keep alive"))


def has_answer(reason: Reason, version: int) -> bool:
    """Whether a CONNECT that breaks the rules is answered with a CONNACK before the connection is closed: in 3.1.1 not
    if it does not conform, and what is no CONNECT never."""
    if version == V4:
        return reason not in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
    return version == V5 or reason is Reason.PACKET_TOO_LARGE


def limits_of(listener: Listener) -> Limits:
    """How much one packet may bring."""
    serving, told = listener.serving, listener.limits
    return Limits(
        packet_bytes_max=told.message_bytes_max + told.header_bytes_max + told.topic_bytes_max + 64,
        connect_bytes_max=serving.hello_bytes_max,
        properties_max=told.headers_max + 16,
        subscriptions_max=serving.subscriptions_per_session_max,
    )
