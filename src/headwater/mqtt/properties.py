"""Properties, which MQTT 5 puts into most packets: what each is called, its type, and where it may stand.

    ├──────────────┼──────────────┼───────┼──────────────┼───────┄
    │ length (var) │ id (var)     │ value │ id (var)     │ value
    └──────────────┴──────────────┴───────┴──────────────┴───────┄

`PROPERTIES` is table 2-4 of the specification; `WILL` stands for the properties of a CONNECT's will. A block that
breaks a rule of that table raises `MqttError` with the reason that the specification names; one without properties is
always the same object, `NONE`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from headwater.memo import Memo
from headwater.message import Headers
from headwater.mqtt.fields import LENGTH_MAX, VARIABLE_MAX, Fields, binary_bytes, text_bytes, variable_bytes
from headwater.mqtt.kinds import Kind
from headwater.mqtt.reasons import MqttError, Reason, violation

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC = Kind.CONNECT, Kind.CONNACK, Kind.PUBLISH, Kind.PUBACK, Kind.PUBREC
PUBREL, PUBCOMP, SUBSCRIBE, SUBACK = Kind.PUBREL, Kind.PUBCOMP, Kind.SUBSCRIBE, Kind.SUBACK
UNSUBSCRIBE, UNSUBACK, DISCONNECT, AUTH = Kind.UNSUBSCRIBE, Kind.UNSUBACK, Kind.DISCONNECT, Kind.AUTH
WILL: Final = 0
"""Where the properties of a will stand: no packet has this kind."""

ANSWERS: Final = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
EVERYWHERE: Final = (CONNECT, WILL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, *ANSWERS)


class Type(Enum):
    """How a property's value is written."""

    BYTE = 1
    SHORT = 2
    LONG = 3
    VARIABLE = 4
    BINARY = 5
    TEXT = 6
    PAIR = 7


class Property(NamedTuple):
    """A row of the specification's table."""

    id: int
    name: str
    type: Type
    places: tuple[int, ...]
    least: int = 0
    most: int = 0xFFFF_FFFF
    may_repeat: bool = False


PROPERTIES: Final = (
    Property(0x01, "payload_format_indicator", Type.BYTE, (PUBLISH, WILL), most=1),
    Property(0x02, "message_expiry_interval", Type.LONG, (PUBLISH, WILL)),
    Property(0x03, "content_type", Type.TEXT, (PUBLISH, WILL)),
    Property(0x08, "response_topic", Type.TEXT, (PUBLISH, WILL)),
    Property(0x09, "correlation_data", Type.BINARY, (PUBLISH, WILL)),
    Property(0x0B, "subscription_identifiers", Type.VARIABLE, (PUBLISH, SUBSCRIBE), 1, VARIABLE_MAX, may_repeat=True),
    Property(0x11, "session_expiry_interval", Type.LONG, (CONNECT, CONNACK, DISCONNECT)),
    Property(0x12, "assigned_client_identifier", Type.TEXT, (CONNACK,)),
    Property(0x13, "server_keep_alive", Type.SHORT, (CONNACK,), most=LENGTH_MAX),
    Property(0x15, "authentication_method", Type.TEXT, (CONNECT, CONNACK, AUTH)),
    Property(0x16, "authentication_data", Type.BINARY, (CONNECT, CONNACK, AUTH)),
    Property(0x17, "request_problem_information", Type.BYTE, (CONNECT,), most=1),
    Property(0x18, "will_delay_interval", Type.LONG, (WILL,)),
    Property(0x19, "request_response_information", Type.BYTE, (CONNECT,), most=1),
    Property(0x1A, "response_information", Type.TEXT, (CONNACK,)),
    Property(0x1C, "server_reference", Type.TEXT, (CONNACK, DISCONNECT)),
    Property(0x1F, "reason_string", Type.TEXT, ANSWERS),
    Property(0x21, "receive_maximum", Type.SHORT, (CONNECT, CONNACK), least=1, most=LENGTH_MAX),
    Property(0x22, "topic_alias_maximum", Type.SHORT, (CONNECT, CONNACK), most=LENGTH_MAX),
    Property(0x23, "topic_alias", Type.SHORT, (PUBLISH,), least=1, most=LENGTH_MAX),
    Property(0x24, "maximum_qos", Type.BYTE, (CONNACK,), most=1),
    Property(0x25, "retain_available", Type.BYTE, (CONNACK,), most=1),
    Property(0x26, "user_properties", Type.PAIR, EVERYWHERE, may_repeat=True),
    Property(0x27, "maximum_packet_size", Type.LONG, (CONNECT, CONNACK), least=1),
    Property(0x28, "wildcard_subscription_available", Type.BYTE, (CONNACK,), most=1),
    Property(0x29, "subscription_identifier_available", Type.BYTE, (CONNACK,), most=1),
    Property(0x2A, "shared_subscription_available", Type.BYTE, (CONNACK,), most=1),
)

BY_ID: Final = {row.id: row for row in PROPERTIES}


class Properties(msgspec.Struct, frozen=True, repr_omit_defaults=True, kw_only=True):
    """The properties of one packet; None is one that is not there, and those that may repeat are tuples."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: Headers = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NONE: Final = Properties()
EMPTY: Final = b"\0"
"""The block without properties."""

BLOCKS_CACHED_MAX: Final = 1_000
BLOCK_CACHED_BYTES_MAX: Final = 200

_blocks: Memo[tuple[bytes, int], Properties] = Memo(BLOCKS_CACHED_MAX)
"""Blocks of PUBLISH packets that were read, by the count allowed, as many messages have the same properties."""


def read_properties(fields: Fields, place: int, count_max: int) -> Properties:
    """The block that begins here."""
    length = fields.variable("the properties' length")
    if not length:
        return NONE
    start = fields.skip(length, "the properties")
    if place != PUBLISH or length > BLOCK_CACHED_BYTES_MAX:
        return _read_block(Fields(fields.data, start, fields.at), place, count_max)
    key = (fields.data[start : fields.at], count_max)
    properties = _blocks.known.get(key)
    if properties is None:
        properties = _blocks.keep(key, _read_block(Fields(fields.data, start, fields.at), place, count_max))
    return properties


def _read_block(block: Fields, place: int, count_max: int) -> Properties:
    found: dict[str, Any] = {}
    count = 0
    while block.at < block.end:
        count += 1
        if count > count_max:
            raise MqttError(f"a packet has more than {count_max} properties; send fewer", Reason.QUOTA_EXCEEDED)
        _read_one(block, place, found)
    for repeated in ("user_properties", "subscription_identifiers"):
        if repeated in found:
            found[repeated] = tuple(found[repeated])
    properties = Properties(**found)
    _check(properties, place)
    return properties


def _read_one(block: Fields, place: int, found: dict[str, Any]) -> None:
    number = block.variable("a property's identifier")
    row = BY_ID.get(number)
    if row is None:
        raise MqttError(f"there is no property 0x{number:02x}")
    if place not in row.places:
        raise MqttError(f"{row.name} may not stand in {_place_name(place)}")
    if row.name in found and not row.may_repeat:
        raise violation(f"{row.name} is there twice")
    value = _read_value(block, row)
    if isinstance(value, int) and not row.least <= value <= row.most:
        reason = Reason.TOPIC_ALIAS_INVALID if row.name == "topic_alias" else Reason.PROTOCOL_ERROR
        raise MqttError(f"{row.name} is {value}, which is none of {row.least} to {row.most}", reason)
    if row.may_repeat:
        found.setdefault(row.name, []).append(value)
    else:
        found[row.name] = value


def _read_value(block: Fields, row: Property) -> int | bytes | str | tuple[str, str]:
    match row.type:
        case Type.BYTE:
            return block.byte(row.name)
        case Type.SHORT:
            return block.short(row.name)
        case Type.LONG:
            return block.long(row.name)
        case Type.VARIABLE:
            return block.variable(row.name)
        case Type.BINARY:
            return block.binary(row.name)
        case Type.TEXT:
            return block.text(row.name)
        case Type.PAIR:
            return block.text("a user property's name"), block.text("a user property's value")


def _check(properties: Properties, place: int) -> None:
    """What the table cannot say: properties that need one another, and values with rules of their own."""
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise violation("authentication_data is there without authentication_method")
    topic = properties.response_topic
    if topic is not None and (not topic or "+" in topic or "#" in topic):
        raise violation("response_topic is empty or contains + or #; give the name of one topic")
    if place == SUBSCRIBE and len(properties.subscription_identifiers) > 1:
        raise violation("subscription_identifiers has more than one in a SUBSCRIBE")


def _place_name(place: int) -> str:
    return "a will" if place == WILL else Kind(place).name


def properties_bytes(properties: Properties, place: int) -> bytes:
    """The block of these properties."""
    if properties is NONE:
        return EMPTY
    pieces: list[bytes] = []
    for row in PROPERTIES:
        value = getattr(properties, row.name)
        if value is None or (row.may_repeat and not value):
            continue
        if place not in row.places:
            raise MqttError(f"{row.name} may not stand in {_place_name(place)}")
        for one in value if row.may_repeat else (value,):
            pieces += (bytes((row.id,)), _value_bytes(row.type, one))
    block = b"".join(pieces)
    return variable_bytes(len(block)) + block


def _value_bytes(type: Type, value: Any) -> bytes:
    match type:
        case Type.BYTE:
            return bytes((value,))
        case Type.SHORT:
            return int(value).to_bytes(2, "big")
        case Type.LONG:
            return int(value).to_bytes(4, "big")
        case Type.VARIABLE:
            return variable_bytes(value)
        case Type.BINARY:
            return binary_bytes(value)
        case Type.TEXT:
            return text_bytes(value)
        case Type.PAIR:
            return text_bytes(value[0]) + text_bytes(value[1])
