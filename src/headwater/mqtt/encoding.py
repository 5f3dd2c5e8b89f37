"""From a packet to its bytes.

    ├──────┬───────┼────────────────────────┼─────────────────┄
    │ kind │ flags │ remaining length (var) │ what decoding.py reads
    └──────┴───────┴────────────────────────┴─────────────────┄

Promises: what is encoded for a version is decoded by that version to the same packet, but for what it does not know
(properties in 3.1.1); a packet that cannot be encoded raises `MqttError`.
"""

from __future__ import annotations

from typing import Final

from headwater.mqtt.decoding import PROTOCOL_NAME
from headwater.mqtt.fields import binary_bytes, text_bytes, variable_bytes
from headwater.mqtt.kinds import FLAGS, V4, V5, Kind
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
)
from headwater.mqtt.properties import NONE, WILL, Properties, properties_bytes
from headwater.mqtt.reasons import MqttError, return_code

FIRST_BYTES: Final = {kind: bytes((kind << 4 | flags,)) for kind, flags in FLAGS.items()}
PINGREQ: Final = FIRST_BYTES[Kind.PINGREQ] + b"\0"
PINGRESP: Final = FIRST_BYTES[Kind.PINGRESP] + b"\0"
ACK_HEADS: Final = {kind: FIRST_BYTES[kind] + b"\x02" for kind in (Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP)}
"""How an acknowledgement begins that says no more than success; its number follows."""


def encode(packet: Packet, version: int) -> bytes:
    """A packet's bytes."""
    match packet:
        case Publish():
            return _publish(packet, version)
        case Ack():
            return _ack(packet, version)
        case Pingreq():
            return PINGREQ
        case Pingresp():
            return PINGRESP
        case Connect():
            return _framed(Kind.CONNECT, _connect(packet))
        case Connack():
            return _framed(Kind.CONNACK, _connack(packet, version))
        case Subscribe():
            return _framed(Kind.SUBSCRIBE, _subscribe(packet, version))
        case Suback():
            return _framed(Kind.SUBACK, _suback(packet, version))
        case Unsubscribe():
            return _framed(Kind.UNSUBSCRIBE, _unsubscribe(packet, version))
        case Unsuback():
            return _framed(Kind.UNSUBACK, _unsuback(packet, version))
        case Disconnect():
            return _framed(Kind.DISCONNECT, _reason(packet.reason, packet.properties, Kind.DISCONNECT, version))
        case Auth():
            if version == V4:
                raise MqttError("there is no AUTH in MQTT 3.1.1")
            return _framed(Kind.AUTH, _reason(packet.reason, packet.properties, Kind.AUTH, version))


def acks_bytes(kind: Kind, packet_ids: list[int]) -> bytes:
    """Acknowledgements that say no more than success, one after the other."""
    head = ACK_HEADS[kind]
    return head + head.join([number.to_bytes(2, "big") for number in packet_ids]) if packet_ids else b""


def _framed(kind: Kind, body: list[bytes]) -> bytes:
    length = sum(map(len, body))
    return b"".join((FIRST_BYTES[kind], variable_bytes(length), *body))


def _properties(properties: Properties, place: int, version: int) -> bytes:
    return properties_bytes(properties, place) if version == V5 else b""


def _number(packet_id: int) -> bytes:
    if not packet_id:
        raise MqttError("a packet that needs an identifier has none; the first is 1")
    return packet_id.to_bytes(2, "big")


def _connect(packet: Connect) -> list[bytes]:
    will, version = packet.will, packet.version
    bits = packet.clean_start << 1
    payload = [text_bytes(packet.client_id)]
    if will is not None:
        bits |= 0x04 | will.qos << 3 | will.retain << 5
        payload += (_properties(will.properties, WILL, version), text_bytes(will.topic), binary_bytes(will.payload))
    if packet.user_name is not None:
        bits |= 0x80
        payload.append(text_bytes(packet.user_name))
    if packet.password is not None:
        bits |= 0x40
        payload.append(binary_bytes(packet.password))
    start = binary_bytes(PROTOCOL_NAME) + bytes((version, bits)) + packet.keep_alive_s.to_bytes(2, "big")
    return [start, _properties(packet.properties, Kind.CONNECT, version), *payload]


def _connack(packet: Connack, version: int) -> list[bytes]:
    code = packet.reason if version == V5 else return_code(packet.reason)
    return [bytes((packet.session_present, code)), _properties(packet.properties, Kind.CONNACK, version)]


def _publish(packet: Publish, version: int) -> bytes:
    flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    topic = text_bytes(packet.topic)
    number = _number(packet.packet_id) if packet.qos else b""
    properties = _properties(packet.properties, Kind.PUBLISH, version)
    length = variable_bytes(len(topic) + len(number) + len(properties) + len(packet.payload))
    return b"".join((bytes((Kind.PUBLISH << 4 | flags,)), length, topic, number, properties, packet.payload))


def _ack(packet: Ack, version: int) -> bytes:
    number = _number(packet.packet_id)
    rest = _reason(packet.reason, packet.properties, packet.kind, version)
    return _framed(packet.kind, [number, *rest]) if rest else ACK_HEADS[packet.kind] + number


def _reason(reason: int, properties: Properties, kind: Kind, version: int) -> list[bytes]:
    """A reason and properties, unless they say nothing or there are none in this version."""
    if version == V4 or (not reason and properties is NONE):
        return []
    if properties is NONE:
        return [bytes((reason,))]
    return [bytes((reason,)), properties_bytes(properties, kind)]


def _subscribe(packet: Subscribe, version: int) -> list[bytes]:
    body = [_number(packet.packet_id), _properties(packet.properties, Kind.SUBSCRIBE, version)]
    for subscription in packet.subscriptions:
        body += (text_bytes(subscription.filter), bytes((_options(subscription, version),)))
    return body


def _options(subscription: Subscription, version: int) -> int:
    if version == V4:
        return subscription.qos
    no_local, as_published = subscription.no_local << 2, subscription.retain_as_published << 3
    return subscription.qos | no_local | as_published | subscription.retain_handling << 4


def _suback(packet: Suback, version: int) -> list[bytes]:
    codes = packet.reasons if version == V5 else [min(reason, 0x80) for reason in packet.reasons]
    return [_number(packet.packet_id), _properties(packet.properties, Kind.SUBACK, version), bytes(codes)]


def _unsubscribe(packet: Unsubscribe, version: int) -> list[bytes]:
    properties = _properties(packet.properties, Kind.UNSUBSCRIBE, version)
    return [_number(packet.packet_id), properties, *map(text_bytes, packet.filters)]


def _unsuback(packet: Unsuback, version: int) -> list[bytes]:
    properties = _properties(packet.properties, Kind.UNSUBACK, version)
    return [_number(packet.packet_id), properties, bytes(packet.reasons) if version == V5 else b""]
