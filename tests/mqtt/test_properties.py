"""Properties: the table, where each may stand, what each may say, and how many there may be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.mqtt.encoding import encode
from headwater.mqtt.fields import Fields, binary_bytes, text_bytes, variable_bytes
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Connect, Publish, Will
from headwater.mqtt.properties import (
    BY_ID,
    NONE,
    PROPERTIES,
    WILL,
    Properties,
    Property,
    Type,
    properties_bytes,
    read_properties,
)
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import MqttError, Reason
from mqtt.samples import LIMITS, outcome, properties, refusal, values

PLACES = sorted({place for row in PROPERTIES for place in row.places})
MALFORMED, VIOLATION = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
SMALLEST: dict[Type, bytes] = {
    Type.BYTE: b"\1",
    Type.SHORT: b"\0\1",
    Type.LONG: b"\0\0\0\1",
    Type.VARIABLE: b"\1",
    Type.BINARY: binary_bytes(b"x"),
    Type.TEXT: text_bytes("x"),
    Type.PAIR: text_bytes("x") + text_bytes("y"),
}
by_name = pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.name)


def block(*ones: bytes) -> bytes:
    data = b"".join(ones)
    return variable_bytes(len(data)) + data


def smallest(row: Property) -> bytes:
    return bytes((row.id,)) + SMALLEST[row.type]


def read(data: bytes, place: int, count_max: int = 50) -> Properties:
    fields = Fields(data, 0, len(data))
    found = read_properties(fields, place, count_max)
    fields.finish()
    return found


def reason_of(data: bytes, place: int, count_max: int = 50) -> Reason:
    with pytest.raises(MqttError) as caught:
        read(data, place, count_max)
    return caught.value.reason


def test_the_table_and_the_values_have_the_same_names_in_the_same_order() -> None:
    assert tuple(row.name for row in PROPERTIES) == Properties.__struct_fields__
    assert [row.id for row in PROPERTIES] == sorted(BY_ID)
    assert len(PROPERTIES) == 27


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_properties_come_back_as_they_were(place: int, data: st.DataObject) -> None:
    some = data.draw(properties(place))
    raw = properties_bytes(some, place)
    assert read(raw, place) == some
    for end in range(len(raw)):
        assert reason_of(raw[:end], place) == MALFORMED


@by_name
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_property_stands_where_the_table_says_and_nowhere_else(row: Property, data: st.DataObject) -> None:
    value = data.draw(values(row))
    for place in PLACES:
        found = {row.name: value[:1] if row.may_repeat else value}
        if row.name == "authentication_data":
            found["authentication_method"] = "x"
        some = Properties(**found)
        if place in row.places:
            assert read(properties_bytes(some, place), place) == some
        else:
            with pytest.raises(MqttError):
                properties_bytes(some, place)
            assert reason_of(block(smallest(row)), place) == MALFORMED


@by_name
def test_a_property_is_there_once_unless_it_may_repeat(row: Property) -> None:
    place = row.places[0]
    twice = block(smallest(row), smallest(row))
    if row.may_repeat:
        assert len(getattr(read(twice, place), row.name)) == 2
    else:
        assert reason_of(twice, place) == VIOLATION


def test_a_subscribe_has_one_subscription_identifier() -> None:
    assert reason_of(block(b"\x0b\1", b"\x0b\2"), Kind.SUBSCRIBE) == VIOLATION
    assert read(block(b"\x0b\1", b"\x0b\2"), Kind.PUBLISH).subscription_identifiers == (1, 2)


@pytest.mark.parametrize(
    ("place", "raw", "reason"),
    [
        (Kind.CONNECT, "21 0000", VIOLATION),  # receive maximum
        (Kind.CONNECT, "27 00000000", VIOLATION),  # maximum packet size
        (Kind.PUBLISH, "23 0000", Reason.TOPIC_ALIAS_INVALID),
        (Kind.SUBSCRIBE, "0b 00", VIOLATION),
        (Kind.PUBLISH, "0b 00", VIOLATION),
    ],
)
def test_zero_is_refused_where_it_means_nothing(place: Kind, raw: str, reason: Reason) -> None:
    assert reason_of(block(bytes.fromhex(raw)), place) == reason


@pytest.mark.parametrize("row", [row for row in PROPERTIES if row.type is Type.BYTE], ids=lambda row: row.name)
def test_a_byte_that_says_yes_or_no_is_0_or_1(row: Property) -> None:
    for value in range(256):
        raw = block(bytes((row.id, value)))
        if value <= 1:
            assert getattr(read(raw, row.places[0]), row.name) == value
        else:
            assert reason_of(raw, row.places[0]) == VIOLATION


def test_a_property_that_nobody_knows_is_malformed() -> None:
    for number in set(range(128)) - BY_ID.keys():
        assert reason_of(block(bytes((number, 0))), Kind.CONNECT) == MALFORMED
    assert reason_of(block(b"\x80\x01\0"), Kind.CONNECT) == MALFORMED
    assert reason_of(block(b"\x91\x00\0\0\0\1"), Kind.CONNECT) == MALFORMED  # 0x11 in two bytes


@pytest.mark.parametrize("raw", ["80 00", "80 80 00", "80 80 80 00", "85 80 80 00", "80 80 80 80 01", "ff ff ff ff 7f"])
def test_a_number_of_variable_length_has_the_fewest_bytes_and_at_most_four(raw: str) -> None:
    assert reason_of(bytes.fromhex(raw), Kind.CONNECT) == MALFORMED


@given(st.integers(0, 268_435_455))
def test_a_number_of_variable_length_comes_back_as_it_was(number: int) -> None:
    data = variable_bytes(number)
    fields = Fields(data, 0, len(data))
    assert fields.variable("it") == number
    fields.finish()


def test_the_lengths_of_the_specification_are_written_as_printed() -> None:
    table = {0: "00", 127: "7f", 128: "8001", 16_383: "ff7f", 16_384: "808001", 2_097_151: "ffff7f"}
    table |= {2_097_152: "80808001", 268_435_455: "ffffff7f", 321: "c102"}
    assert {number: variable_bytes(number).hex() for number in table} == table


def test_user_properties_keep_their_order_and_their_repeats() -> None:
    pairs = (("b", "1"), ("a", "2"), ("b", "3"), ("", ""))
    packet = Publish("t", b"", properties=Properties(user_properties=pairs))
    assert outcome(PacketReader(LIMITS, version=V5), [encode(packet, V5)]) == ([packet], 0)


def test_bad_text_in_a_property_is_malformed() -> None:
    for bad in (b"\0\1\xff", b"\0\1\0", b"\0\3\xed\xa0\x80"):
        assert reason_of(block(b"\x03" + bad), Kind.PUBLISH) == MALFORMED
        assert reason_of(block(b"\x26" + bad + text_bytes("x")), Kind.PUBLISH) == MALFORMED
        assert reason_of(block(b"\x26" + text_bytes("x") + bad), Kind.PUBLISH) == MALFORMED


def test_properties_have_a_limit() -> None:
    full = [smallest(BY_ID[0x26])] * 50
    assert len(read(block(*full), Kind.PUBLISH).user_properties) == 50
    assert reason_of(block(*full, full[0]), Kind.PUBLISH) == Reason.QUOTA_EXCEEDED
    few = block(*full[:20])  # so few that they are remembered
    assert len(read(few, Kind.PUBLISH).user_properties) == 20
    assert reason_of(few, Kind.PUBLISH, 19) == Reason.QUOTA_EXCEEDED


def test_authentication_data_needs_a_method() -> None:
    assert reason_of(block(b"\x16" + binary_bytes(b"x")), Kind.CONNECT) == VIOLATION
    assert refusal("f0 02 18 00") == VIOLATION  # and an AUTH needs one in any case


@pytest.mark.parametrize("topic", ["", "+", "a/#", "#"])
def test_a_response_topic_is_the_name_of_one_topic(topic: str) -> None:
    for place in (Kind.PUBLISH, WILL):
        assert reason_of(block(b"\x08" + text_bytes(topic)), place) == VIOLATION


def test_a_server_does_not_change_the_session_expiry_when_it_disconnects() -> None:
    raw = "e0 07 00 05 11 00000001"
    assert refusal(raw, is_server=True) == 0
    assert refusal(raw, is_server=False) == VIOLATION


def test_the_wills_properties_are_its_own() -> None:
    will = Will("w", b"", properties=Properties(will_delay_interval=5, user_properties=(("a", "b"),)))
    packet = Connect("c", will=will, properties=Properties(receive_maximum=9))
    assert outcome(PacketReader(LIMITS), [encode(packet, V5)]) == ([packet], 0)


def test_there_are_no_properties_in_3_1_1() -> None:
    packet = Publish("a", b"x", properties=Properties(content_type="text"))
    assert outcome(PacketReader(LIMITS, version=V4), [encode(packet, V4)]) == ([Publish("a", b"x")], 0)


def test_a_block_without_properties_is_always_the_same() -> None:
    assert read(b"\0", Kind.CONNECT) is NONE
    assert properties_bytes(Properties(), Kind.CONNECT) == b"\0"
