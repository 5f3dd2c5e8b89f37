"""From the bytes after a packet's fixed header to the packet.

Each rule of the specifications that one packet can break by itself is checked here; what it takes a session to know
(an identifier in use, a topic alias over the maximum, a filter that may not be) is checked above.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.mqtt.fields import Fields, check_topic_name
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from headwater.mqtt.properties import NONE, WILL, Properties, read_properties
from headwater.mqtt.reasons import REASONS_V4, SUBACK_CODES_V4, VALID, MqttError, Reason, VersionRefused, violation

PROTOCOL_NAME: Final = b"MQTT"
PROTOCOL_NAME_3_1: Final = b"MQIsdp"
SHARED: Final = "$share/"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one packet may bring."""

    packet_bytes_max: int
    connect_bytes_max: int
    """The same for the first packet, whose sender nobody knows yet."""
    properties_max: int
    """In one packet, user properties included; a will has as many again."""
    subscriptions_max: int
    """Filters in one SUBSCRIBE or UNSUBSCRIBE."""


class Decoder:
    """Reads the packets of one connection, whose version it learns from the CONNECT."""

    __slots__ = ("is_server", "limits", "version")

    def __init__(self, limits: Limits, *, is_server: bool, version: int) -> None:
        self.limits = limits
        self.is_server = is_server
        self.version = version
        """4 or 5; 0 before the CONNECT. Known, too, where the rest of the CONNECT was wrong."""

    def decode(self, kind: Kind, flags: int, fields: Fields) -> Packet:
        """The packet whose fixed header has been read, and which ends where the fields do."""
        packet = self._read(kind, flags, fields)
        fields.finish()
        return packet

    def _read(self, kind: Kind, flags: int, fields: Fields) -> Packet:
        match kind:
            case Kind.CONNECT:
                return _read_connect(self, fields)
            case Kind.CONNACK:
                return _read_connack(self, fields)
            case Kind.PUBLISH:
                return _read_publish(self, flags, fields)
            case Kind.PUBACK | Kind.PUBREC | Kind.PUBREL | Kind.PUBCOMP:
                return _read_ack(self, kind, fields)
            case Kind.SUBSCRIBE:
                return _read_subscribe(self, fields)
            case Kind.SUBACK:
                return _read_suback(self, fields)
            case Kind.UNSUBSCRIBE:
                return _read_unsubscribe(self, fields)
            case Kind.UNSUBACK:
                return _read_unsuback(self, fields)
            case Kind.PINGREQ:
                return Pingreq()
            case Kind.PINGRESP:
                return Pingresp()
            case Kind.DISCONNECT:
                return _read_disconnect(self, fields)
            case Kind.AUTH:
                return _read_auth(self, fields)

    def properties(self, fields: Fields, place: int) -> Properties:
        """The properties, which 3.1.1 does not have."""
        return read_properties(fields, place, self.limits.properties_max) if self.version == V5 else NONE


def _read_connect(decoder: Decoder, fields: Fields) -> Connect:
    """Name, level, flags, keep alive, properties; client id, will, user name, password.

    The flags, the highest bit first:

        ├───────────┼──────────┼─────────────┼──────────────┼──────┼─────────────┼───┤
        │ user name │ password │ will retain │ will QoS (2) │ will │ clean start │ 0 │
        └───────────┴──────────┴─────────────┴──────────────┴──────┴─────────────┴───┘
    """
    decoder.version = _read_version(fields)
    bits = fields.byte("the connect flags")
    _check_connect_flags(bits, decoder.version)
    keep_alive_s = fields.short("the keep alive")
    properties = decoder.properties(fields, Kind.CONNECT)
    client_id = fields.text("the client identifier")
    will = None
    if bits & 0x04:
        will_properties = decoder.properties(fields, WILL)
        topic = fields.text("the will's topic")
        if not topic:
            raise violation("the will's topic is empty; give it at least one level")
        check_topic_name(topic, "the will's topic")
        will = Will(topic, fields.binary("the will"), bits >> 3 & 3, bool(bits & 0x20), will_properties)
    user_name = fields.text("the user name") if bits & 0x80 else None
    password = fields.binary("the password") if bits & 0x40 else None
    return Connect(client_id, decoder.version, bool(bits & 0x02), keep_alive_s, will, user_name, password, properties)


def _read_version(fields: Fields) -> int:
    name = fields.binary("the protocol's name")
    if name not in (PROTOCOL_NAME, PROTOCOL_NAME_3_1):
        raise MqttError(
            "the protocol's name is not MQTT; connect with a client of MQTT 3.1.1 or 5",
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
        )
    level = fields.byte("the protocol's level")
    if name != PROTOCOL_NAME or level not in (V4, V5):
        raise VersionRefused(f"MQTT of level {level} is not spoken here; connect with MQTT 3.1.1 or 5", level)
    return level


def _check_connect_flags(bits: int, version: int) -> None:
    if bits & 0x01:
        raise MqttError("the lowest connect flag is 1; it is reserved")
    if bits & 0x18 == 0x18:
        raise MqttError("the will has QoS 3; there are 0, 1 and 2")
    if not bits & 0x04 and bits & 0x38:
        raise MqttError("there is a QoS or retain for a will, and no will")
    if version == V4 and bits & 0x40 and not bits & 0x80:
        raise MqttError("there is a password without a user name; MQTT 3.1.1 wants both")


def _read_connack(decoder: Decoder, fields: Fields) -> Connack:
    bits = fields.byte("the acknowledge flags")
    if bits > 1:
        raise MqttError("a reserved acknowledge flag is 1")
    code = fields.byte("the return code")
    if decoder.version == V4:
        if code not in REASONS_V4:
            raise violation(f"there is no return code {code}")
        reason: int = REASONS_V4[code]
    else:
        reason = _known(code, Kind.CONNACK)
    if reason and bits:
        raise violation("a session is present and the connection is refused")
    return Connack(bool(bits), reason, decoder.properties(fields, Kind.CONNACK))


def _read_publish(decoder: Decoder, flags: int, fields: Fields) -> Publish:
    qos = flags >> 1 & 3
    if qos == 3:
        raise MqttError("a PUBLISH has QoS 3; there are 0, 1 and 2")
    if flags & 8 and not qos:
        raise MqttError("a PUBLISH with QoS 0 is marked as a repeat")
    topic = fields.text("the topic")
    check_topic_name(topic)
    packet_id = fields.packet_id() if qos else 0
    properties = decoder.properties(fields, Kind.PUBLISH)
    if not topic and properties.topic_alias is None:
        raise violation("the topic is empty and there is no topic alias; give one of them")
    if decoder.is_server and properties.subscription_identifiers:
        raise violation("a client's PUBLISH has a subscription identifier, which only a server may send")
    return Publish(topic, fields.rest(), qos, bool(flags & 1), bool(flags & 8), packet_id, properties)


def _read_ack(decoder: Decoder, kind: Kind, fields: Fields) -> Ack:
    """Number; then, in MQTT 5 and if they say anything, reason and properties."""
    packet_id = fields.packet_id()
    if decoder.version == V4 or fields.at == fields.end:
        return Ack(kind, packet_id)
    reason, properties = _read_reason(decoder, kind, fields)
    return Ack(kind, packet_id, reason, properties)


def _read_reason(decoder: Decoder, kind: Kind, fields: Fields) -> tuple[int, Properties]:
    """A reason and, unless the packet ends there, properties."""
    reason = _known(fields.byte("the reason code"), kind)
    return reason, decoder.properties(fields, kind) if fields.at < fields.end else NONE


def _known(code: int, kind: Kind) -> int:
    if code not in VALID[kind]:
        raise violation(f"reason code 0x{code:02x} may not stand in {kind.name}")
    return code


def _read_subscribe(decoder: Decoder, fields: Fields) -> Subscribe:
    packet_id = fields.packet_id()
    properties = decoder.properties(fields, Kind.SUBSCRIBE)
    found: list[Subscription] = []
    while fields.at < fields.end:
        _check_count(len(found) + 1, decoder.limits)
        found.append(_read_subscription(_read_filter(fields), fields.byte("a filter's options"), decoder.version))
    if not found:
        raise violation("a SUBSCRIBE has no filter")
    return Subscribe(packet_id, tuple(found), properties)


def _read_subscription(filter: str, options: int, version: int) -> Subscription:
    """A filter with its options, the highest bit first; in 3.1.1 all but QoS are 0.

    ├───────┼─────────────────────┼─────────────────────┼──────────┼─────────┤
    │ 0 (2) │ retain handling (2) │ retain as published │ no local │ QoS (2) │
    └───────┴─────────────────────┴─────────────────────┴──────────┴─────────┘
    """
    if version == V4:
        if options > 2:
            raise MqttError(f"the QoS of a filter is {options}; there are 0, 1 and 2")
        return Subscription(filter, options)
    if options & 0xC0:
        raise MqttError("a reserved option of a filter is 1")
    if options & 3 == 3:
        raise violation("the QoS of a filter is 3; there are 0, 1 and 2")
    if options & 0x30 == 0x30:
        raise violation("the retain handling of a filter is 3; there are 0, 1 and 2")
    if options & 4 and filter.startswith(SHARED):
        raise violation("a shared subscription cannot be without the messages of its own client")
    return Subscription(filter, options & 3, bool(options & 4), bool(options & 8), options >> 4)


def _read_filter(fields: Fields) -> str:
    found = fields.text("a filter")
    if not found:
        raise violation("a filter is empty; give it at least one level")
    return found


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.subscriptions_max:
        raise MqttError(
            f"a packet has more than {limits.subscriptions_max} filters; send several packets", Reason.QUOTA_EXCEEDED
        )


def _read_suback(decoder: Decoder, fields: Fields) -> Suback:
    packet_id = fields.packet_id()
    properties = decoder.properties(fields, Kind.SUBACK)
    codes = fields.rest()
    if not codes:
        raise violation("a SUBACK has no reason code")
    valid = VALID[Kind.SUBACK] if decoder.version == V5 else SUBACK_CODES_V4
    if not valid.issuperset(codes):
        raise violation("a SUBACK has a reason code that it may not have")
    return Suback(packet_id, tuple(codes), properties)


def _read_unsubscribe(decoder: Decoder, fields: Fields) -> Unsubscribe:
    packet_id = fields.packet_id()
    properties = decoder.properties(fields, Kind.UNSUBSCRIBE)
    found: list[str] = []
    while fields.at < fields.end:
        _check_count(len(found) + 1, decoder.limits)
        found.append(_read_filter(fields))
    if not found:
        raise violation("an UNSUBSCRIBE has no filter")
    return Unsubscribe(packet_id, tuple(found), properties)


def _read_unsuback(decoder: Decoder, fields: Fields) -> Unsuback:
    packet_id = fields.packet_id()
    if decoder.version == V4:
        return Unsuback(packet_id)
    properties = decoder.properties(fields, Kind.UNSUBACK)
    codes = fields.rest()
    if not codes:
        raise violation("an UNSUBACK has no reason code")
    if not VALID[Kind.UNSUBACK].issuperset(codes):
        raise violation("an UNSUBACK has a reason code that it may not have")
    return Unsuback(packet_id, tuple(codes), properties)


def _read_disconnect(decoder: Decoder, fields: Fields) -> Disconnect:
    if decoder.version == V4 or fields.at == fields.end:
        return Disconnect()
    reason, properties = _read_reason(decoder, Kind.DISCONNECT, fields)
    if not decoder.is_server and properties.session_expiry_interval is not None:
        raise violation("a server's DISCONNECT has a session expiry interval, which only a client may send")
    return Disconnect(reason, properties)


def _read_auth(decoder: Decoder, fields: Fields) -> Auth:
    if decoder.version == V4:
        raise MqttError("there is no AUTH in MQTT 3.1.1")
    if fields.at == fields.end:
        return Auth()
    reason, properties = _read_reason(decoder, Kind.AUTH, fields)
    if properties.authentication_method is None:
        raise violation("an AUTH has no authentication_method")
    return Auth(reason, properties)
