"""A connection of an MQTT client: its bytes become packets, its first packet a session.

Promises: nothing but a CONNECT is taken first, and in time; a client that breaks the rules of MQTT is told the reason,
as far as its version can say it, and closed; one that is silent for one and a half times its keep alive is closed; its
will is published unless it took leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import Failed, HeadwaterError, Malformed, NotAllowed, QuotaExceeded, TimedOut, TooLarge
from headwater.mqtt.aliases import Aliases
from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import acks_bytes, encode
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.numbers import Numbers
from headwater.mqtt.packets import Ack, Auth, Connack, Connect, Disconnect, Packet, Received, Suback, Unsuback
from headwater.mqtt.properties import NONE, Properties
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import MqttError, Reason, VersionRefused, violation
from headwater.mqtt.refusal import goodbye_of, reason_of
from headwater.mqtt.window import NUMBER_MAX
from headwater.server.line import Line

if TYPE_CHECKING:
    from headwater.mqtt.authentication import Authentication, Proven
    from headwater.mqtt.greeting import Greeter
    from headwater.mqtt.packets import Will
    from headwater.server.listener import Listener
    from headwater.server.root import Served

PACKET_BYTES_MAX = 1 << 28
"""No packet is longer."""
PATIENCE = 1.5
"""Times its keep alive that a client may be silent."""


class MqttConnection(Line):
    """One MQTT client's connection."""

    __slots__ = (
        "_early",
        "_greeter",
        "_is_greeted",
        "_is_greeting",
        "_packet_s",
        "_reader",
        "alias_max",
        "aliases",
        "authentication",
        "bytes_max",
        "has_reasons",
        "is_tunnelled",
        "keep_alive_s",
        "on_proven",
        "proof",
        "receive_max",
        "unacked",
        "will",
    )

    def __init__(self, listener: Listener, greeter: Greeter) -> None:
        super().__init__(listener)
        self._greeter = greeter
        self._reader = PacketReader(limits_of(listener))
        self._early: list[Received] = []
        """What came behind a CONNECT that is not answered yet."""
        self._is_greeting = self._is_greeted = False
        self._packet_s = 0.0
        """When a packet last ended, or one began."""
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
        self.will: Will | None = None
        """What is published if the client goes without taking leave."""

    @property
    def version(self) -> int:
        """4 is MQTT 3.1.1."""
        return self._reader.version

    @property
    def packet_bytes_max(self) -> int:
        """The longest packet that is taken from the client."""
        return self._reader.limits.packet_bytes_max

    # Coming in

    def take(self, data: memoryview) -> None:
        had_begun = self._reader.waits
        packets = self._reader.feed(bytes(data))
        if packets or not had_begun:
            self._packet_s = self.heard_s
        self._take(packets)
        if self._reader.error is not None and not self.is_closed:
            raise self._reader.error

    def _take(self, packets: list[Received]) -> None:
        if not packets:
            return
        if self._is_greeting and self.authentication is not None and self.authentication.waits:
            self._take_proof(packets)
        elif self._is_greeting:
            self._early += packets
        elif self.session is not None:
            self.session.tell(packets)
        else:
            first, self._early = packets[0], packets[1:]
            if not isinstance(first, Connect):
                raise violation("the first packet of a connection is a CONNECT")
            self._is_greeting = True
            self.hold()
            self._greeter.greet(self, first)

    def _take_proof(self, packets: list[Received]) -> None:
        assert self.authentication is not None
        assert self.on_proven is not None
        match packets:
            case [Auth() as packet]:
                self.authentication.finish(packet, self.on_proven)
            case [Disconnect(), *_]:
                self.close()
            case _:
                raise violation("a client that is asked for a proof sends an AUTH, and nothing else before its CONNACK")

    def on_auth(self, packet: Auth) -> None:
        """The client of a session wants to prove again who it is, or does."""
        if self.authentication is None:
            raise violation("there is nothing to authenticate anew: the connection began without a method")
        self.authentication.again(packet)

    def on_greeted(self, answer: Connack) -> None:
        """The client has its session: it is told so, and what it sent meanwhile is taken."""
        self._is_greeting, self._is_greeted = False, True
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

    def answers(self, items: Sequence[Served]) -> bytes:
        said: list[bytes] = []
        for item in items:
            numbers: Numbers = item.id
            numbers.settle(item.error)
            if item.error is not None:
                error = item.error if isinstance(item.error, HeadwaterError) else Malformed("it failed")
                said.append(self.refusals(numbers, error))
            elif numbers.packet_ids:
                self._settle(numbers)
                said.append(acks_bytes(numbers.kind, list(numbers.packet_ids)))
        return b"".join(said)

    def refusals(self, numbers: Numbers, error: HeadwaterError) -> bytes:
        """What tells that messages were not published, and are not under way any more.

        3.1.1 has no word for it: what may never be published is acknowledged and dropped, and for what might succeed
        later the connection is closed, so that it comes again."""
        self._settle(numbers)
        if self.version == V4:
            if not isinstance(error, Malformed | NotAllowed | TooLarge | QuotaExceeded):
                self.close()
                return b""
            return acks_bytes(numbers.kind, list(numbers.packet_ids))
        if isinstance(error, Failed) and numbers.kind is Kind.PUBREC:
            # It may be stored or not. A PUBREC with a reason would free its number for another message, which the next
            # start of the server would then take for this one.
            self.say_goodbye(error)
            return b""
        reason = reason_of(error, Reason.UNSPECIFIED_ERROR)
        if isinstance(error, Malformed) and not isinstance(error, MqttError):
            reason = Reason.TOPIC_NAME_INVALID
        elif reason is Reason.PACKET_TOO_LARGE:
            reason = Reason.QUOTA_EXCEEDED
        why = Properties(reason_string=str(error)) if self.has_reasons else NONE
        said = [encode(Ack(numbers.kind, number, reason, why), V5) for number in numbers.packet_ids]
        if said and len(said[0]) > self.bytes_max:
            said = [encode(Ack(numbers.kind, number, reason), V5) for number in numbers.packet_ids]
        return b"".join(said)

    def _settle(self, numbers: Numbers) -> None:
        if numbers.kind is Kind.PUBACK:
            self.unacked -= len(numbers.packet_ids)

    # The end

    def refuse(self, error: HeadwaterError, id: int = 0) -> None:
        self.listener.on_refused(self, error)
        if not self._is_greeted:
            reason = reason_of(error, Reason.UNSPECIFIED_ERROR)
            version = error.version if isinstance(error, VersionRefused) else self.version
            if not isinstance(error, MqttError) or has_answer(reason, version):
                data = encode(Connack(False, reason, Properties(reason_string=str(error))), version or V5)
                self.write(data if len(data) <= self.bytes_max else encode(Connack(False, reason), version or V5))
            self.close()
            return
        if self.version == V5:
            self.send(Disconnect(goodbye_of(error, is_stopping=False), Properties(reason_string=str(error))))
        self.finish()

    def say_goodbye(self, error: HeadwaterError | None = None, reconnect: bool = False) -> None:
        if self._is_greeted and self.version == V5:
            self.send(Disconnect(goodbye_of(error, is_stopping=reconnect)))
        self.close()

    def on_disconnect(self, packet: Disconnect) -> None:
        """The client takes its leave."""
        if packet.reason != Reason.DISCONNECT_WITH_WILL:
            self.will = None
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None and self.session is not None:
            self._greeter.change_expiry(self, expiry_s)
        self.close()

    def look_after(self, now_s: float) -> None:
        if self._reader.waits and now_s - self._packet_s > self.listener.serving.frame_s:
            self.refuse(MqttError("a packet has begun and does not end (frame_s)"))
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
