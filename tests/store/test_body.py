"""The body of a batch: its columns to the byte, and what becomes of bodies that nobody wrote."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.message import Headers, Message
from headwater.store import body as module
from headwater.store.body import COLUMNS_AT, EXPIRIES, HEADERS, KEYS, RETAIN, Body, encode_body, encode_one

TIME_US = 1_700_000_000_000_001
REFUSED = (ValueError, struct.error)
"""What `open_columns` turns into BadBatch."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Few names, so that messages share their topics; some that are long, empty in a level, or not ASCII.
TOPICS = st.sampled_from(["a", "a/b", "a//c", "/", "home/küche/🌡", "x" * 300]) | TEXT.filter(bool)
PAIRS = st.lists(st.tuples(st.sampled_from(["unit", "", "größe"]) | TEXT, TEXT), max_size=4).map(tuple)
KEYS_ = st.none() | st.binary(max_size=12)
EXPIRY = st.sampled_from([0, 1, TIME_US]) | st.integers(0, 2**60)


class Given(NamedTuple):
    """A message as it is handed to `encode_body`."""

    topic: str
    payload: bytes
    key: bytes | None = None
    headers: Headers = ()
    retain: bool = False
    expiry: int = 0


MESSAGES = st.lists(
    st.builds(Given, TOPICS, st.binary(max_size=40), KEYS_, PAIRS, st.booleans(), EXPIRY), min_size=1, max_size=12
)
PLAIN = st.lists(st.tuples(TOPICS, st.binary(max_size=40)).map(lambda pair: Given(*pair)), min_size=1, max_size=12)


def encode(messages: Sequence[Given], time_us: int = TIME_US) -> bytes:
    return encode_body(
        [m.topic for m in messages],
        [m.payload for m in messages],
        time_us,
        expiries=[m.expiry for m in messages],
        retain=[m.retain for m in messages],
        keys=[m.key for m in messages],
        headers=[m.headers for m in messages],
    )


def said(message: Message) -> tuple[object, ...]:
    return (message.topic, message.offset, message.payload, message.time_us, message.key, message.header_pairs)


def look_at_everything(body: Body) -> list[tuple[object, ...]]:
    """All that a body can be asked; answers the messages."""
    whole = body.messages(1)
    places = list(range(body.count))
    assert [said(m) for m in body.messages(1, places)] == [said(m) for m in whole]
    assert list(body.topics) == [m.topic for m in whole]
    assert [body.payload(place) for place in places] == [m.payload for m in whole]
    for name in body.names:
        chosen = body.places_of([number for number, known in enumerate(body.names) if known == name])
        assert [whole[place].topic for place in chosen] == [name] * len(chosen)
    list(body.expiries or ()), list(body.retain or ()), list(body.keys or ())
    return [said(m) for m in whole]


# What goes in comes out


@given(MESSAGES | PLAIN, st.integers(-(2**60), 2**60), st.integers(1, 2**60))
@example([Given("a", b"", key=b"")], 0, 1)
@example([Given("a", b"", headers=(("n", "1"), ("n", "2"), ("", "")))], 0, 1)
def test_messages_come_out_as_they_went_in(messages: list[Given], time_us: int, first_offset: int) -> None:
    data = encode(messages, time_us)
    body = Body(data)
    assert body.count == len(messages)
    assert [said(m) for m in body.messages(first_offset)] == [
        (m.topic, offset, m.payload, time_us, m.key, m.headers) for offset, m in enumerate(messages, first_offset)
    ]
    assert [bool(flag) for flag in body.retain or bytes(len(messages))] == [m.retain for m in messages]
    assert list(body.expiries or [0] * len(messages)) == [m.expiry for m in messages]
    look_at_everything(body)


@given(MESSAGES)
def test_a_body_has_the_optional_columns_that_its_messages_need_and_no_others(messages: list[Given]) -> None:
    wanted = (
        (KEYS if any(m.key is not None for m in messages) else 0)
        | (HEADERS if any(m.headers for m in messages) else 0)
        | (RETAIN if any(m.retain for m in messages) else 0)
        | (EXPIRIES if any(m.expiry for m in messages) else 0)
    )
    data = encode(messages)
    assert int.from_bytes(data[COLUMNS_AT], "little") == Body(data).columns == wanted


@given(MESSAGES)
def test_a_topic_stands_in_the_dictionary_once(messages: list[Given]) -> None:
    names = Body(encode(messages)).names
    assert list(names) == list(dict.fromkeys(m.topic for m in messages))


@given(MESSAGES, st.data())
def test_messages_at_some_places_are_those_of_the_whole(messages: list[Given], data: st.DataObject) -> None:
    body = Body(encode(messages))
    places = data.draw(st.lists(st.integers(0, len(messages) - 1), unique=True).map(sorted))
    whole = body.messages(7)
    assert [said(m) for m in body.messages(7, places)] == [said(whole[place]) for place in places]


@given(MESSAGES, st.sets(TOPICS))
def test_the_places_of_topics_are_those_of_their_messages(messages: list[Given], wanted: set[str]) -> None:
    body = Body(encode(messages))
    places = [place for place, m in enumerate(messages) if m.topic in wanted]
    assert body.places_of([number for number, name in enumerate(body.names) if name in wanted]) == places


def test_encoding_the_same_topics_again_and_again_gives_the_same_bytes() -> None:
    topics = [f"home/{number % 70}" for number in range(100)]
    payloads = [b"%d" % number for number in range(100)]
    first = encode_body(topics, payloads, TIME_US)
    for other in range(200):  # more different ones than are remembered
        encode_body([f"{topic}/{other}" for topic in topics], payloads, TIME_US)
    assert encode_body(topics, payloads, TIME_US) == encode_body(list(topics), payloads, TIME_US) == first
    assert list(Body(first).topics) == topics


def test_two_dictionaries_of_the_same_bytes_and_other_bounds_are_told_apart() -> None:
    assert Body(encode_body(["ab", "c"], [b"", b""], TIME_US)).names == ("ab", "c")
    assert Body(encode_body(["a", "bc"], [b"", b""], TIME_US)).names == ("a", "bc")
    assert Body(encode_body(["abc"], [b""], TIME_US)).names == ("abc",)


def test_messages_of_a_retained_copy_are_flagged_and_have_their_origin() -> None:
    origin = object()
    (message,) = Body(encode([Given("a", b"x")])).messages(3, None, origin, True)
    assert message.retained
    assert message.origin is origin
    assert message.attempt == 1


# The layout of docs/reference/storage.md, to the byte

EVERYTHING = [
    Given("home/a", b"21.5", key=b"k", headers=(("u", "C"), ("u", "°")), retain=True, expiry=77),
    Given("home/bc", b"", key=None),
    Given("home/a", b"123456789", key=b"", headers=(("", ""),)),
]
EVERYTHING_HEX = (
    "03000000020000000f00000000000000"  # 3 messages, 2 topics, all four optional columns
    "00000000060000000d00000000000000"  # topic names: int32[3], padded
    "686f6d652f61686f6d652f6263000000"  # home/a home/bc
    "00000000010000000000000000000000"  # topic index: int32[3], padded
    "01401e18240a060001401e18240a0600"  # times: int64[3]
    "01401e18240a0600"
    "4d000000000000000000000000000000"  # expiries: int64[3]
    "0000000000000000"
    "0100000000000000"  # retain: uint8[3], padded
    "0500000000000000"  # keys: validity bits 0 and 2
    "00000000010000000100000001000000"  # int32[4]
    "6b00000000000000"
    "00000000020000000200000003000000"  # headers: int32[4] into pairs
    "00000000010000000200000002000000"  # names: int32[4]
    "7575000000000000"
    "00000000010000000300000003000000"  # values: int32[4]
    "43c2b00000000000"
    "0000000004000000040000000d000000"  # payloads: int32[4]
    "32312e35313233343536373839000000"
)


def test_a_body_with_every_column_is_laid_out_as_documented() -> None:
    data = encode(EVERYTHING)
    assert data.hex() == EVERYTHING_HEX
    look_at_everything(Body(data))


def test_each_column_is_found_where_the_drawing_says() -> None:
    data = encode(EVERYTHING)
    assert struct.unpack_from("<IIII", data, 0) == (3, 2, KEYS | HEADERS | RETAIN | EXPIRIES, 0)
    assert struct.unpack_from("<3i", data, 16) == (0, 6, 13)
    assert data[32:45] == b"home/ahome/bc"
    assert struct.unpack_from("<3i", data, 48) == (0, 1, 0)
    assert struct.unpack_from("<3q", data, 64) == (TIME_US,) * 3
    assert struct.unpack_from("<3q", data, 88) == (77, 0, 0)
    assert tuple(data[112:115]) == (1, 0, 0)
    assert data[120] == 0b101
    assert struct.unpack_from("<4i", data, 128) == (0, 1, 1, 1)
    assert data[144:145] == b"k"
    assert struct.unpack_from("<4i", data, 152) == (0, 2, 2, 3)
    assert struct.unpack_from("<4i", data, 168) == (0, 1, 2, 2)
    assert data[184:186] == b"uu"
    assert struct.unpack_from("<4i", data, 192) == (0, 1, 3, 3)
    assert data[208:211] == "C°".encode()
    assert struct.unpack_from("<4i", data, 216) == (0, 4, 4, 13)
    assert data[232:245] == b"21.5123456789"
    assert len(data) == 248


def test_a_plain_message_has_no_optional_columns() -> None:
    data = encode([Given("a", b"xy")])
    assert (
        data.hex()
        == (
            "01000000010000000000000000000000"
            "0000000001000000"  # topic names
            "6100000000000000"
            "0000000000000000"  # topic index
            + struct.pack("<q", TIME_US).hex()  # times
            + "0000000002000000"  # payloads
            "7879000000000000"
        )
    )


@given(MESSAGES | PLAIN)
def test_everything_in_a_body_is_padded_to_a_multiple_of_eight(messages: list[Given]) -> None:
    assert len(encode(messages)) % 8 == 0


# Bodies that nobody wrote


BODIES = [
    encode(EVERYTHING),
    encode([Given("a", b"xy")]),
    encode([Given("a", b"x"), Given("a", b"y")]),
    encode([Given("a", b"x"), Given("b", b"y", retain=True)]),
    encode([Given("a", b"x", key=b"k"), Given("b", b"", headers=(("n", "v"),))]),
]


@pytest.mark.parametrize("data", BODIES, ids=len)
def test_a_body_cut_anywhere_is_refused_unless_only_padding_is_missing(data: bytes) -> None:
    whole = look_at_everything(Body(data))
    for length in range(len(data)):
        try:
            body = Body(data[:length])
        except REFUSED:
            continue
        assert data[length:].strip(b"\0") == b""
        assert look_at_everything(body) == whole


@pytest.mark.parametrize("data", BODIES, ids=len)
def test_a_body_with_a_bit_turned_over_is_refused_or_can_be_read(data: bytes) -> None:
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            body = Body(bytes(damaged))
        except REFUSED:
            continue
        look_at_everything(body)


WITH_HEADERS = st.builds(
    lambda some, pairs: some[0]._replace(headers=pairs), PLAIN, st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4)
)


@given(WITH_HEADERS, st.integers(12, 200), st.sampled_from([0, 1, 4, 128]))
@settings(max_examples=300)
def test_a_message_with_headers_is_read_at_a_glance_as_it_is_with_all_care(one: Given, place: int, bit: int) -> None:
    data = bytearray(encode([one]))
    if place < len(data):
        data[place] ^= bit
    raw = bytes(data)

    def careful() -> tuple[object, ...]:
        body = Body.__new__(Body)
        body.data, body.count, body.columns, body._span, body._where = raw, 1, HEADERS, None, None
        body._read(1)
        return (*map(said, body.messages(7)), body.end, body.time_span())

    def at_a_glance() -> tuple[object, ...]:
        body = Body(raw)
        return (*map(said, body.messages(7)), body.end, body.time_span())

    if struct.unpack_from("<III", raw) == (1, 1, HEADERS):
        assert outcome(at_a_glance) == outcome(careful)


@given(TEXT, st.binary(max_size=40), st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_a_message_with_headers_is_encoded_by_itself_as_with_others(
    topic: str, payload: bytes, pairs: list[tuple[str, str]]
) -> None:
    encoded = encode_one(topic, payload, TIME_US, tuple(pairs))
    assert encoded == encode([Given(topic, payload, headers=tuple(pairs))])
    assert encoded == encode_one(topic, payload, TIME_US, tuple(pairs)), "now that it is remembered"


def outcome(read: Callable[[], tuple[object, ...]]) -> object:
    try:
        return read()
    except REFUSED:
        return "refused"


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_are_refused_or_can_be_read(data: bytes) -> None:
    try:
        body = Body(data)
    except REFUSED:
        return
    look_at_everything(body)


@given(MESSAGES, st.data())
@settings(max_examples=300)
def test_a_body_with_another_number_in_it_is_refused_or_can_be_read(messages: list[Given], data: st.DataObject) -> None:
    whole = encode(messages)
    place = 4 * data.draw(st.integers(0, len(whole) // 4 - 1))
    number = data.draw(st.sampled_from([0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, len(whole)]))
    damaged = whole[:place] + struct.pack("<I", number) + whole[place + 4 :]
    try:
        body = Body(damaged)
    except REFUSED:
        return
    look_at_everything(body)


@pytest.mark.parametrize(
    ("place", "numbers", "what"),
    [
        (0, (0, 0, 0, 0), "no message"),
        (0, (1, 2, 0, 0), "more topics than messages"),
        (0, (2**32 - 1, 1, 0, 0), "more messages than bytes"),
        (0, (3, 2, 0x1F, 0), "a column that is not known"),
        (16, (1, 6, 13), "names that do not start at 0"),
        (16, (0, 14, 13), "names whose offsets decrease"),
        (16, (0, 6, 10_000), "names that end outside"),
        (16, (0, 6, -1), "names that end before they start"),
        (48, (0, 2, 0), "an index outside the dictionary"),
        (48, (0, -1, 0), "an index below the dictionary"),
        (152, (0, 2, 1, 3), "headers whose places decrease"),
        (152, (0, 2, 2, 1 << 30), "more headers than bytes"),
        (216, (0, 4, 3, 13), "payloads whose offsets decrease"),
        (216, (0, 4, 4, 1 << 20), "payloads that end outside"),
    ],
)
def test_columns_that_contradict_the_body_are_refused(place: int, numbers: tuple[int, ...], what: str) -> None:
    data = bytearray(encode(EVERYTHING))
    for number in numbers:
        struct.pack_into("<i" if number < 0 else "<I", data, place, number)
        place += 4
    with pytest.raises(REFUSED):
        Body(bytes(data))


def test_an_index_outside_a_dictionary_of_one_topic_is_refused() -> None:
    data = bytearray(encode([Given("a", b"x"), Given("a", b"y")]))
    assert struct.unpack_from("<2i", data, 32) == (0, 0)
    struct.pack_into("<2i", data, 32, 0, 1)
    with pytest.raises(REFUSED):
        Body(bytes(data))


def test_names_that_are_not_utf_8_are_refused() -> None:
    data = bytearray(encode(EVERYTHING))
    data[32] = 0xFF
    with pytest.raises(REFUSED):
        Body(bytes(data))


def test_what_is_remembered_of_dictionaries_has_a_limit() -> None:
    for number in range(3 * module.NAMES_CACHED_MAX):
        Body(encode([Given(f"limit/{number}", b"")]))
    assert len(module._names_cache.known) <= module.NAMES_CACHED_MAX


def test_as_many_messages_fit_as_their_payloads_allow_and_at_least_one() -> None:
    body = Body(encode_body(["a/x"] * 5, [bytes(size) for size in (10, 20, 30, 40, 50)], 0))
    assert [body.fitting(range(5), limit) for limit in (0, 10, 29, 30, 60, 149, 10_000)] == [1, 1, 1, 2, 3, 4, 5]
    assert body.fitting((1, 3, 4), 60) == 2


def test_how_the_topics_of_large_batches_are_laid_out_is_remembered_within_a_limit() -> None:
    for batch in range(30):
        topics = [f"home/{batch}/{number}" for number in range(20_000)]
        module._topic_columns(topics)
        remembered = sum(map(len, module._columns_cache.known))
        assert len(topics) <= remembered <= module.COLUMNS_CACHED_MESSAGES_MAX
