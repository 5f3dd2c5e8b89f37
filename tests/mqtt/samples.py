"""Any packet of either version, for property tests; and what a reader makes of bytes, packet by packet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import FROM_CLIENT, V4, V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Acks,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Received,
    Run,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from headwater.mqtt.properties import NONE, PROPERTIES, WILL, Properties, Property, Type
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import REASONS_V4, VALID, MqttError

LIMITS = Limits(packet_bytes_max=4096, connect_bytes_max=2048, properties_max=50, subscriptions_max=8)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
TOPICS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=8)
FILTERS = st.sampled_from(("a", "home/+/temp", "#", "$share/group/home/#", "é/€")) | TEXTS.filter(bool)
BINARIES = st.binary(max_size=12)
NUMBERS = st.integers(1, 65_535)
QOS = st.integers(0, 2)
VERSIONS = st.sampled_from((V4, V5))

TYPES: dict[Kind, type[Any]] = {
    Kind.CONNECT: Connect,
    Kind.CONNACK: Connack,
    Kind.PUBLISH: Publish,
    Kind.PUBACK: Ack,
    Kind.PUBREC: Ack,
    Kind.PUBREL: Ack,
    Kind.PUBCOMP: Ack,
    Kind.SUBSCRIBE: Subscribe,
    Kind.SUBACK: Suback,
    Kind.UNSUBSCRIBE: Unsubscribe,
    Kind.UNSUBACK: Unsuback,
    Kind.PINGREQ: Pingreq,
    Kind.PINGRESP: Pingresp,
    Kind.DISCONNECT: Disconnect,
    Kind.AUTH: Auth,
}


def values(row: Property) -> st.SearchStrategy[Any]:
    """What a property may say."""
    match row.type:
        case Type.BYTE | Type.SHORT | Type.LONG | Type.VARIABLE:
            one: st.SearchStrategy[Any] = st.integers(row.least, row.most)
        case Type.BINARY:
            one = BINARIES
        case Type.TEXT:
            one = TOPICS if row.name == "response_topic" else TEXTS
        case Type.PAIR:
            one = st.tuples(TEXTS, TEXTS)
    return st.lists(one, min_size=1, max_size=3).map(tuple) if row.may_repeat else one


@st.composite
def properties(draw: st.DrawFn, place: int, without: Sequence[str] = ()) -> Properties:
    """Some of the properties that may stand in a place."""
    rows = [row for row in PROPERTIES if place in row.places and row.name not in without]
    found = {row.name: draw(values(row)) for row in draw(st.lists(st.sampled_from(rows), unique=True, max_size=4))}
    if place == Kind.AUTH or "authentication_data" in found:
        found.setdefault("authentication_method", "SCRAM-SHA-256")
    if place == Kind.SUBSCRIBE and "subscription_identifiers" in found:
        found["subscription_identifiers"] = found["subscription_identifiers"][:1]
    return Properties(**found) if found else NONE


def of_place(place: int, version: int, *without: str) -> st.SearchStrategy[Properties]:
    return properties(place, without) if version == V5 else st.just(NONE)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = st.builds(Will, TOPICS, BINARIES, QOS, st.booleans(), of_place(WILL, version))
    user_name = draw(st.none() | TEXTS)
    has_password = version == V5 or user_name is not None
    return Connect(
        draw(TEXTS),
        version,
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        draw(st.none() | will),
        user_name,
        draw(st.none() | BINARIES) if has_password else None,
        draw(of_place(Kind.CONNECT, version)),
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(QOS)
    extra = draw(of_place(Kind.PUBLISH, version, "subscription_identifiers"))
    topic = draw(TOPICS | st.just("")) if extra.topic_alias else draw(TOPICS)
    number = draw(NUMBERS) if qos else 0
    return Publish(topic, draw(BINARIES), qos, draw(st.booleans()), draw(st.booleans()) and qos > 0, number, extra)


def reasons(kind: Kind, version: int) -> st.SearchStrategy[int]:
    if version == V5:
        return st.sampled_from(sorted(VALID[kind] or {0}))
    if kind == Kind.CONNACK:
        return st.sampled_from(sorted(REASONS_V4.values()))
    return st.sampled_from((0, 1, 2, 0x80)) if kind == Kind.SUBACK else st.just(0)


def subscriptions(version: int) -> st.SearchStrategy[Subscription]:
    if version == V4:
        return st.builds(Subscription, FILTERS, QOS)
    full = st.builds(Subscription, FILTERS, QOS, st.booleans(), st.booleans(), QOS)
    return full.filter(lambda one: not (one.no_local and one.filter.startswith("$share/")))


def packets(kind: Kind, version: int) -> st.SearchStrategy[Any]:
    """Any packet of a kind."""
    extra = of_place(kind, version) if kind not in (Kind.PINGREQ, Kind.PINGRESP) else st.just(NONE)
    codes = st.lists(reasons(kind, version), min_size=1, max_size=3).map(tuple)
    match kind:
        case Kind.CONNECT:
            return connects(version)
        case Kind.CONNACK:
            built = st.builds(Connack, st.booleans(), reasons(kind, version), extra)
            return built.filter(lambda one: not (one.session_present and one.reason))
        case Kind.PUBLISH:
            return publishes(version)
        case Kind.SUBSCRIBE:
            found = st.lists(subscriptions(version), min_size=1, max_size=3).map(tuple)
            return st.builds(Subscribe, NUMBERS, found, extra)
        case Kind.SUBACK:
            return st.builds(Suback, NUMBERS, codes, extra)
        case Kind.UNSUBSCRIBE:
            return st.builds(Unsubscribe, NUMBERS, st.lists(FILTERS, min_size=1, max_size=3).map(tuple), extra)
        case Kind.UNSUBACK:
            if version == V4:
                return st.builds(Unsuback, NUMBERS)
            return st.builds(Unsuback, NUMBERS, codes, extra)
        case Kind.PINGREQ | Kind.PINGRESP:
            return st.builds(TYPES[kind])
        case Kind.DISCONNECT | Kind.AUTH:
            return st.builds(TYPES[kind], reasons(kind, version), extra)
        case _:
            return st.builds(Ack, st.just(kind), NUMBERS, reasons(kind, version), extra)


def kinds(version: int) -> list[Kind]:
    return [kind for kind in Kind if version == V5 or kind != Kind.AUTH]


def reader_of(kind: Kind, version: int) -> PacketReader:
    """Of the side that gets such packets."""
    return PacketReader(LIMITS, is_server=kind in FROM_CLIENT, version=0 if kind == Kind.CONNECT else version)


def each(received: Sequence[Received]) -> list[Packet]:
    """Packets one by one."""
    found: list[Packet] = []
    for one in received:
        if isinstance(one, Run):
            found += one.publishes()
        elif isinstance(one, Acks):
            found += one.each()
        else:
            found.append(one)
    return found


def outcome(reader: PacketReader, pieces: Sequence[bytes]) -> tuple[list[Packet], int]:
    """Every packet that comes of these bytes, and the reason of the error after them, or 0."""
    found: list[Packet] = []
    try:
        for piece in pieces:
            found += each(reader.feed(piece))
        if reader.error is not None:
            raise reader.error
    except MqttError as error:
        return found, int(error.reason)
    return found, 0


def refusal(data: str | bytes, version: int = V5, *, is_server: bool = True) -> int:
    """The reason for which bytes, in hex, are refused after a CONNECT of a version; 0 if they are not."""
    reader = PacketReader(LIMITS, is_server=is_server, version=version)
    return outcome(reader, [bytes.fromhex(data) if isinstance(data, str) else data])[1]


def refusal_of_connect(data: str | bytes) -> int:
    return refusal(data, 0)


def cut_at(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place <= len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def encoded(sent: Sequence[Packet], version: int) -> bytes:
    return b"".join(encode(packet, version) for packet in sent)
