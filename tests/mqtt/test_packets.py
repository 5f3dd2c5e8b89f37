"""Every packet of both versions: there and back, cut, flipped, and wrong in each way that the specifications name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.mqtt.encoding import encode
from headwater.mqtt.fields import variable_bytes
from headwater.mqtt.kinds import FLAGS, V4, V5, Kind
from headwater.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import REASONS, VALID, MqttError, Reason, VersionRefused, return_code
from mqtt.samples import LIMITS, kinds, outcome, packets, reader_of, refusal, refusal_of_connect
from mqtt.vectors import VECTORS

MALFORMED, VIOLATION = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
CASES = [pytest.param(kind, version, id=f"{kind.name}-{version}") for version in (V4, V5) for kind in kinds(version)]
some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
few = settings(some, max_examples=8)


@pytest.mark.parametrize(("kind", "version"), CASES)
@some
@given(st.data())
def test_a_packet_comes_back_as_it_was(kind: Kind, version: int, data: st.DataObject) -> None:
    packet = data.draw(packets(kind, version))
    raw = encode(packet, version)
    assert raw[0] >> 4 == kind
    reader = reader_of(kind, version)
    assert outcome(reader, [raw]) == ([packet], 0)
    assert reader.version == version
    assert reader.partial is None


@pytest.mark.parametrize(("kind", "version"), CASES)
@some
@given(st.data())
def test_every_truncation_waits_for_more(kind: Kind, version: int, data: st.DataObject) -> None:
    raw = encode(data.draw(packets(kind, version)), version)
    for end in range(len(raw)):
        reader = reader_of(kind, version)
        assert outcome(reader, [raw[:end]]) == ([], 0)
        assert len(reader.partial or b"") == end


@pytest.mark.parametrize(("kind", "version"), CASES)
@few
@given(st.data())
def test_every_flipped_bit_gives_packets_an_error_with_a_reason_or_a_wait(
    kind: Kind, version: int, data: st.DataObject
) -> None:
    packet = data.draw(packets(kind, version))
    raw = encode(packet, version)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        found, reason = outcome(reader_of(kind, version), [bytes(flipped)])
        assert reason == 0 or reason in VALID[Kind.CONNACK] | VALID[Kind.DISCONNECT]
        assert reason or found != [packet]


@pytest.mark.parametrize(("version", "packet", "raw"), [pytest.param(*v[1:], id=v[0]) for v in VECTORS])
def test_the_examples_of_the_specifications_are_read_and_written_as_printed(
    version: int, packet: Any, raw: str
) -> None:
    data = bytes.fromhex(raw)
    assert encode(packet, version) == data
    assert outcome(reader_of(Kind(data[0] >> 4), version), [data]) == ([packet], 0)


def test_reasons_and_property_blocks_that_say_nothing_may_be_left_out_or_not() -> None:
    for raw in ("40 02 000a", "40 03 000a 00", "40 04 000a 00 00"):
        assert outcome(PacketReader(LIMITS, version=V5), [bytes.fromhex(raw)]) == ([Ack(Kind.PUBACK, 10)], 0)
    for raw in ("e0 00", "e0 01 00", "e0 02 00 00"):
        assert outcome(PacketReader(LIMITS, version=V5), [bytes.fromhex(raw)]) == ([Disconnect()], 0)


# What every packet has.


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("kind", set(Kind) - {Kind.PUBLISH, Kind.CONNECT})
def test_reserved_flags_are_malformed_with_the_first_byte(kind: Kind, version: int) -> None:
    for flags in set(range(16)) - {FLAGS[kind]}:
        assert outcome(reader_of(kind, version), [bytes((kind << 4 | flags,))]) == ([], MALFORMED)


def test_reserved_flags_of_a_connect_are_malformed() -> None:
    for flags in range(1, 16):
        assert refusal_of_connect(bytes((0x10 | flags,))) == MALFORMED


def test_a_packet_of_kind_0_is_malformed() -> None:
    assert refusal("00 00") == MALFORMED
    assert refusal("00 00", V4) == MALFORMED


def test_there_is_no_auth_in_3_1_1() -> None:
    assert refusal("f0 00", V4) == MALFORMED
    assert refusal("f0 00", V5) == 0
    with pytest.raises(MqttError):
        encode(outcome(PacketReader(LIMITS, version=V5), [b"\xf0\0"])[0][0], V4)


@pytest.mark.parametrize("raw", ["32 07 0001 61 0000 00 78", "40 02 0000", "50 02 0000", "62 02 0000", "70 02 0000"])
def test_a_packet_identifier_of_0_is_refused(raw: str) -> None:
    assert refusal(raw, V4) == VIOLATION
    assert refusal(raw, V5) == VIOLATION


def test_a_packet_identifier_of_0_is_refused_in_subscribe_and_unsubscribe() -> None:
    assert refusal("82 07 0000 00 0001 61 00") == VIOLATION
    assert refusal("82 06 0000 0001 61 00", V4) == VIOLATION
    assert refusal("a2 06 0000 00 0001 61") == VIOLATION
    assert refusal("a2 05 0000 0001 61", V4) == VIOLATION
    for packet in (Publish("a", b"", 1), Ack(Kind.PUBACK, 0), Subscribe(0, ()), Unsubscribe(0, ())):
        with pytest.raises(MqttError):
            encode(packet, V5)


@pytest.mark.parametrize(
    "raw",
    [
        "30 03 0001 ff",  # no UTF-8
        "30 05 0003 eda080",  # U+D800
        "30 05 0003 edbfbf",  # U+DFFF
        "30 04 0002 c080",  # U+0000, too long
        "30 04 0002 c3 28",
        "30 03 0001 00",  # U+0000
        "30 05 0003 61 00 62",
    ],
)
def test_text_that_is_not_utf8_or_has_a_nul_is_malformed(raw: str) -> None:
    assert refusal(raw, V4) == MALFORMED
    assert refusal(raw, V5) == MALFORMED


@pytest.mark.parametrize("version", [V4, V5])
def test_bad_text_is_refused_in_every_field(version: int) -> None:
    block = "00" if version == V5 else ""
    for first, rest in ((0x82, "0002 61ff 00"), (0xA2, "0002 61ff")):  # filters
        body = bytes.fromhex(f"0001 {block} {rest}")
        assert refusal(bytes((first, len(body))) + body, version) == MALFORMED
    start = f"0004 4d515454 0{version}"
    assert refusal_of_connect(connect(f"{start} 02 0000 {block} 0002 61ff")) == MALFORMED  # the client identifier
    assert refusal_of_connect(connect(f"{start} 06 0000 {block} 0000 {block} 0001 ff 0001 6d")) == MALFORMED  # the will
    assert refusal_of_connect(connect(f"{start} 82 0000 {block} 0000 0001 ff")) == MALFORMED  # the user name


@pytest.mark.parametrize("version", [V4, V5])
def test_a_byte_order_mark_is_part_of_the_text(version: int) -> None:
    raw = encode(Publish("\ufeffa", b""), version)
    assert b"\xef\xbb\xbfa" in raw
    assert outcome(PacketReader(LIMITS, version=version), [raw]) == ([Publish("\ufeffa", b"")], 0)


@pytest.mark.parametrize(
    "raw",
    ["c0 01 00", "40 03 000a 00", "62 03 000a 00", "e0 01 00", "e0 02 00 00"],
)
def test_bytes_after_the_end_of_a_packet_are_malformed_in_3_1_1(raw: str) -> None:
    assert refusal(raw, V4) == MALFORMED


@pytest.mark.parametrize("raw", ["c0 01 00", "40 05 000a 00 00 00", "e0 03 00 00 00", "f0 06 00 03 15 0000 00 00"])
def test_bytes_after_the_end_of_a_packet_are_malformed_in_5(raw: str) -> None:
    assert refusal(raw, V5) == MALFORMED


def test_a_packet_that_ends_within_a_field_is_malformed() -> None:
    for raw in (
        "30 01 00",
        "30 03 0005 61",
        "32 04 0001 61 00",
        "40 01 00",
        "82 04 0001 00 00",
        "82 06 0001 00 0001 61",
    ):
        assert refusal(raw) == MALFORMED


# CONNECT.

GOOD_V4 = "0004 4d515454 04 02 003c 0001 61"


def connect(raw: str) -> bytes:
    body = bytes.fromhex(raw)
    return bytes((0x10, len(body))) + body


def test_a_plain_connect_is_taken() -> None:
    assert refusal_of_connect(connect(GOOD_V4)) == 0


@pytest.mark.parametrize(
    ("raw", "level", "version"),
    [
        ("0006 4d5149736470 03 02 003c 0001 61", 3, V4),  # MQTT 3.1
        ("0006 4d5149736470 04 02 003c 0001 61", 4, V4),
        ("0004 4d515454 03 02 003c 0001 61", 3, V4),
        ("0004 4d515454 00 02 003c 0001 61", 0, V4),
        ("0004 4d515454 06 02 003c 00 0001 61", 6, V5),
        ("0004 4d515454 84 02 003c 0001 61", 0x84, V5),  # a bridge
    ],
)
def test_another_version_is_refused_so_that_its_client_understands(raw: str, level: int, version: int) -> None:
    with pytest.raises(VersionRefused) as caught:
        PacketReader(LIMITS).feed(connect(raw))
    assert (caught.value.level, caught.value.version) == (level, version)
    assert caught.value.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION
    answer = encode(Connack(False, caught.value.reason), caught.value.version)
    assert answer.hex(" ") == ("20 02 00 01" if version == V4 else "20 03 00 84 00")


def test_another_protocol_is_refused() -> None:
    for name in ("0004 48545450", "0004 6d717474", "0003 4d5154", "0000"):
        assert refusal_of_connect(connect(f"{name} 04 02 003c 0001 61")) == Reason.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("flags", "rest"),
    [
        ("03", ""),  # reserved
        ("0a", ""),  # QoS 1 of no will
        ("12", ""),
        ("22", ""),  # retain of no will
        ("1e", "0001 77 0001 6d"),  # QoS 3
    ],
)
def test_connect_flags_that_contradict_each_other_are_malformed(version: int, flags: str, rest: str) -> None:
    block = "00" if version == V5 else ""
    raw = f"0004 4d515454 0{version} {flags} 003c {block} 0001 61 {block if rest else ''} {rest}"
    assert refusal_of_connect(connect(raw)) == MALFORMED


def test_a_password_without_a_user_name_is_malformed_in_3_1_1_alone() -> None:
    assert refusal_of_connect(connect("0004 4d515454 04 42 003c 0001 61 0001 70")) == MALFORMED
    assert refusal_of_connect(connect("0004 4d515454 05 42 003c 00 0001 61 0001 70")) == 0


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        ("02", ""),  # no client identifier
        ("06", "0001 61"),  # no will
        ("06", "0001 61 {} 0001 77"),  # half a will
        ("82", "0001 61"),  # no user name
        ("c2", "0001 61 0001 75"),  # no password
        ("02", "0001 61 0001 75"),  # a user name without its flag
        ("82", "0001 61 0001 75 0001 70"),  # a password without its flag
    ],
)
def test_a_connect_has_the_fields_that_its_flags_say(version: int, flags: str, payload: str) -> None:
    block = "00" if version == V5 else ""
    raw = f"0004 4d515454 0{version} {flags} 003c {block} {payload.format(block)}"
    assert refusal_of_connect(connect(raw)) == MALFORMED


def test_a_block_of_properties_is_there_even_if_it_has_none() -> None:
    assert refusal_of_connect(connect("0004 4d515454 05 02 003c 0001 61")) == MALFORMED
    assert refusal_of_connect(connect("0004 4d515454 05 02 003c 00 0001 61")) == 0


@pytest.mark.parametrize("topic", ["a/+", "#", "a#b"])
def test_a_will_goes_to_one_topic(topic: str) -> None:
    data = encode(Connect("a", V5, will=Will(topic, b"")), V5)
    assert refusal_of_connect(data) == Reason.TOPIC_NAME_INVALID
    assert refusal_of_connect(encode(Connect("a", V5, will=Will("", b"")), V5)) == VIOLATION


def test_acknowledge_flags_are_checked() -> None:
    assert refusal("20 02 02 00", V4, is_server=False) == MALFORMED
    assert refusal("20 02 01 05", V4, is_server=False) == VIOLATION  # present, and refused
    assert refusal("20 03 01 87 00", V5, is_server=False) == VIOLATION
    assert refusal("20 02 00 06", V4, is_server=False) == VIOLATION


# PUBLISH.


@pytest.mark.parametrize("version", [V4, V5])
def test_qos_3_is_malformed(version: int) -> None:
    for flags in (6, 7, 14, 15):
        assert refusal(bytes((0x30 | flags, 6, 0, 1, 97, 0, 1, 0)), version) == MALFORMED


@pytest.mark.parametrize("version", [V4, V5])
def test_a_repeat_with_qos_0_is_malformed(version: int) -> None:
    assert refusal("38 04 0001 61 00", version) == MALFORMED
    assert refusal("39 04 0001 61 00", version) == MALFORMED


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("topic", ["+", "a/+/b", "#", "a/#", "a+", "a#"])
def test_a_topic_name_has_no_wildcards(version: int, topic: str) -> None:
    assert refusal(encode(Publish(topic, b"x"), version), version) == Reason.TOPIC_NAME_INVALID


def test_an_empty_topic_needs_an_alias() -> None:
    assert refusal("30 02 0000", V4) == VIOLATION
    assert refusal("30 03 0000 00") == VIOLATION
    assert refusal("30 06 0000 03 23 0001") == 0


def test_a_clients_publish_has_no_subscription_identifier() -> None:
    raw = "30 06 0001 61 02 0b01"
    assert refusal(raw, is_server=True) == VIOLATION
    assert refusal(raw, is_server=False) == 0


# SUBSCRIBE and UNSUBSCRIBE.


@pytest.mark.parametrize("raw", ["82 02 0001", "a2 02 0001"])
def test_a_subscribe_or_unsubscribe_without_a_filter_is_refused(raw: str) -> None:
    assert refusal(raw, V4) == VIOLATION
    assert refusal(raw.replace(" 02 ", " 03 ") + "00", V5) == VIOLATION


def test_an_empty_filter_is_refused() -> None:
    assert refusal("82 05 0001 0000 00", V4) == VIOLATION
    assert refusal("a2 04 0001 0000", V4) == VIOLATION
    assert refusal("82 06 0001 00 0000 00", V5) == VIOLATION
    assert refusal("a2 05 0001 00 0000", V5) == VIOLATION


def test_reserved_options_of_a_filter_are_malformed() -> None:
    for options in (0x40, 0x80, 0xC0):
        assert refusal(bytes.fromhex("82 07 0001 00 0001 61") + bytes((options,))) == MALFORMED
    for options in range(3, 256):
        assert refusal(bytes.fromhex("82 06 0001 0001 61") + bytes((options,)), V4) == MALFORMED


def test_qos_3_of_a_filter_is_refused() -> None:
    assert refusal("82 07 0001 00 0001 61 03") == VIOLATION


def test_retain_handling_3_is_refused() -> None:
    assert refusal("82 07 0001 00 0001 61 30") == VIOLATION


def test_a_shared_subscription_is_not_without_its_own_messages() -> None:
    packet = Subscribe(1, (Subscription("$share/g/a", no_local=True),))
    assert refusal(encode(packet, V5)) == VIOLATION


def test_filters_have_a_limit() -> None:
    full = tuple(Subscription(f"a/{n}") for n in range(LIMITS.subscriptions_max))
    assert refusal(encode(Subscribe(1, full), V5)) == 0
    assert refusal(encode(Subscribe(1, (*full, Subscription("b"))), V5)) == Reason.QUOTA_EXCEEDED
    names = tuple(one.filter for one in full)
    assert refusal(encode(Unsubscribe(1, names), V5)) == 0
    assert refusal(encode(Unsubscribe(1, (*names, "b")), V5)) == Reason.QUOTA_EXCEEDED


def test_an_answer_has_a_reason_for_some_filter() -> None:
    for raw in ("90 03 0001 00", "b0 03 0001 00"):
        assert refusal(raw, V5, is_server=False) == VIOLATION
    assert refusal("90 02 0001", V4, is_server=False) == VIOLATION


# Reasons, and packets that only one side sends.


@pytest.mark.parametrize("kind", [kind for kind in Kind if VALID[kind]])
def test_a_packet_has_only_reasons_of_its_own(kind: Kind) -> None:
    is_server = kind in (Kind.AUTH, Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP)
    starts = {Kind.CONNACK: "00", Kind.DISCONNECT: "", Kind.AUTH: "", Kind.SUBACK: "000100", Kind.UNSUBACK: "000100"}
    start = bytes.fromhex(starts.get(kind, "0001"))
    end = {Kind.CONNACK: b"\0", Kind.AUTH: bytes.fromhex("03 15 0000")}.get(kind, b"")
    for code in range(256):
        body = start + bytes((code,)) + end
        raw = bytes((kind << 4 | FLAGS[kind], len(body))) + body
        assert refusal(raw, V5, is_server=is_server) == (0 if code in VALID[kind] else VIOLATION)


def test_a_suback_of_3_1_1_grants_or_refuses_and_no_more() -> None:
    for code in range(256):
        raw = bytes.fromhex("90 03 0001") + bytes((code,))
        assert refusal(raw, V4, is_server=False) == (0 if code in (0, 1, 2, 0x80) else VIOLATION)
    assert encode(Suback(1, (0x87, 0x8F, 2)), V4) == bytes.fromhex("90 05 0001 80 80 02")


def test_every_reason_has_a_name_and_a_row() -> None:
    assert {row.code for row in REASONS} == set(map(int, Reason))
    assert all(row.kinds and row.text for row in REASONS)
    for reason in Reason:
        assert 0 <= return_code(reason) <= 5
        assert (return_code(reason) == 0) == (reason < 0x80 and reason == 0)


def test_a_packet_that_cannot_be_written_is_an_error() -> None:
    for packet in (Publish("a" * 65_536, b""), Connect("a", password=b"x" * 65_536)):
        with pytest.raises(MqttError) as caught:
            encode(packet, V5)
        assert caught.value.reason == Reason.PACKET_TOO_LARGE
    with pytest.raises(MqttError):
        variable_bytes(1 << 28)
