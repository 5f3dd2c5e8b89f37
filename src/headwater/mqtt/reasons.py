"""Reason codes: what each means and which packet may carry it, as table 2-6 of MQTT 5 has them; and the error that
bytes which are no packet raise, which carries one of them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from headwater.errors import Malformed
from headwater.mqtt.kinds import V4, V5, Kind

CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP = Kind.CONNACK, Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP
SUBACK, UNSUBACK, DISCONNECT, AUTH = Kind.SUBACK, Kind.UNSUBACK, Kind.DISCONNECT, Kind.AUTH


class Reason(IntEnum):
    """A reason code; from 0x80 on, something was refused."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ReasonRow(NamedTuple):
    """A row of the specification's table: a code, its name there, and the packets in which it may stand."""

    code: int
    text: str
    kinds: tuple[Kind, ...]


REASONS: Final = (
    ReasonRow(0x00, "Success", (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, UNSUBACK, AUTH)),
    ReasonRow(0x00, "Normal disconnection", (DISCONNECT,)),
    ReasonRow(0x00, "Granted QoS 0", (SUBACK,)),
    ReasonRow(0x01, "Granted QoS 1", (SUBACK,)),
    ReasonRow(0x02, "Granted QoS 2", (SUBACK,)),
    ReasonRow(0x04, "Disconnect with Will Message", (DISCONNECT,)),
    ReasonRow(0x10, "No matching subscribers", (PUBACK, PUBREC)),
    ReasonRow(0x11, "No subscription existed", (UNSUBACK,)),
    ReasonRow(0x18, "Continue authentication", (AUTH,)),
    ReasonRow(0x19, "Re-authenticate", (AUTH,)),
    ReasonRow(0x80, "Unspecified error", (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)),
    ReasonRow(0x81, "Malformed Packet", (CONNACK, DISCONNECT)),
    ReasonRow(0x82, "Protocol Error", (CONNACK, DISCONNECT)),
    ReasonRow(0x83, "Implementation specific error", (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)),
    ReasonRow(0x84, "Unsupported Protocol Version", (CONNACK,)),
    ReasonRow(0x85, "Client Identifier not valid", (CONNACK,)),
    ReasonRow(0x86, "Bad User Name or Password", (CONNACK,)),
    ReasonRow(0x87, "Not authorized", (CONNACK, PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT)),
    ReasonRow(0x88, "Server unavailable", (CONNACK,)),
    ReasonRow(0x89, "Server busy", (CONNACK, DISCONNECT)),
    ReasonRow(0x8A, "Banned", (CONNACK,)),
    ReasonRow(0x8B, "Server shutting down", (DISCONNECT,)),
    ReasonRow(0x8C, "Bad authentication method", (CONNACK, DISCONNECT)),
    ReasonRow(0x8D, "Keep Alive timeout", (DISCONNECT,)),
    ReasonRow(0x8E, "Session taken over", (DISCONNECT,)),
    ReasonRow(0x8F, "Topic Filter invalid", (SUBACK, UNSUBACK, DISCONNECT)),
    ReasonRow(0x90, "Topic Name invalid", (CONNACK, PUBACK, PUBREC, DISCONNECT)),
    ReasonRow(0x91, "Packet Identifier in use", (PUBACK, PUBREC, SUBACK, UNSUBACK)),
    ReasonRow(0x92, "Packet Identifier not found", (PUBREL, PUBCOMP)),
    ReasonRow(0x93, "Receive Maximum exceeded", (DISCONNECT,)),
    ReasonRow(0x94, "Topic Alias invalid", (DISCONNECT,)),
    ReasonRow(0x95, "Packet too large", (CONNACK, DISCONNECT)),
    ReasonRow(0x96, "Message rate too high", (DISCONNECT,)),
    ReasonRow(0x97, "Quota exceeded", (CONNACK, PUBACK, PUBREC, SUBACK, DISCONNECT)),
    ReasonRow(0x98, "Administrative action", (DISCONNECT,)),
    ReasonRow(0x99, "Payload format invalid", (CONNACK, PUBACK, PUBREC, DISCONNECT)),
    ReasonRow(0x9A, "Retain not supported", (CONNACK, DISCONNECT)),
    ReasonRow(0x9B, "QoS not supported", (CONNACK, DISCONNECT)),
    ReasonRow(0x9C, "Use another server", (CONNACK, DISCONNECT)),
    ReasonRow(0x9D, "Server moved", (CONNACK, DISCONNECT)),
    ReasonRow(0x9E, "Shared Subscriptions not supported", (SUBACK, DISCONNECT)),
    ReasonRow(0x9F, "Connection rate exceeded", (CONNACK, DISCONNECT)),
    ReasonRow(0xA0, "Maximum connect time", (DISCONNECT,)),
    ReasonRow(0xA1, "Subscription Identifiers not supported", (SUBACK, DISCONNECT)),
    ReasonRow(0xA2, "Wildcard Subscriptions not supported", (SUBACK, DISCONNECT)),
)

VALID: Final = {kind: frozenset(row.code for row in REASONS if kind in row.kinds) for kind in Kind}
"""The codes that may stand in each kind of packet."""

SUBACK_CODES_V4: Final = frozenset({0, 1, 2, 0x80})
"""What a SUBACK of 3.1.1 may say."""

RETURN_CODES_V4: Final = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,  # unacceptable protocol version
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,  # identifier rejected
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}
"""What a CONNACK of 3.1.1 says for a reason of MQTT 5."""

REASONS_V4: Final = {code: reason for reason, code in RETURN_CODES_V4.items()}

_NOT_ALLOWED_V4: Final = frozenset(
    {Reason.BANNED, Reason.BAD_AUTHENTICATION_METHOD, Reason.TOPIC_NAME_INVALID, Reason.PACKET_TOO_LARGE}
)
"""What will not be another time, either."""


def return_code(reason: int) -> int:
    """What a CONNACK of 3.1.1 says for any reason: there are five refusals, so the nearest of them."""
    if reason in _NOT_ALLOWED_V4:
        return 5
    return RETURN_CODES_V4.get(Reason(reason), 3)


class MqttError(Malformed):
    """Bytes that are no packet, or a packet that may not be: `reason` is what to tell the peer before closing."""

    def __init__(self, sentence: str, reason: Reason = Reason.MALFORMED_PACKET) -> None:
        super().__init__(sentence, reason)
        self.reason = reason


class VersionRefused(MqttError):
    """A CONNECT of another MQTT than 3.1.1 and 5; `level` is what it stated."""

    def __init__(self, sentence: str, level: int) -> None:
        Malformed.__init__(self, sentence, level)
        self.reason = Reason.UNSUPPORTED_PROTOCOL_VERSION
        self.level = level

    @property
    def version(self) -> int:
        """The version in which its client will understand a CONNACK."""
        return V5 if self.level > V5 else V4


def violation(sentence: str) -> MqttError:
    """The error for a packet that can be read and says what it must not."""
    return MqttError(sentence, Reason.PROTOCOL_ERROR)
