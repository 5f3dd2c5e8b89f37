"""Requests and replies: each comes back as it was; what is cut, flipped, forged or huge gets an error of the tree."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import errors
from headwater.clock import to_datetime
from headwater.errors import Gap, HeadwaterError, Malformed, NotFound, TooLarge
from headwater.message import DeadLetter, Message, SchemaInfo
from headwater.wire import administration, request, requests
from headwater.wire.frame import Frame, Kind
from headwater.wire.operations import OPERATIONS, REQUEST_BYTES_MAX, Trait, read_request
from headwater.wire.reader import FrameReader
from headwater.wire.request import OPTION_NAMES, Change, Request
from headwater.wire.requests import (
    TEXT_MAX,
    Problem,
    decode,
    encode,
    error_of,
    pack_error,
    pack_request,
    problem_of,
)
from wire.smallest import BODY, smallest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
U64 = st.integers(0, 2**64 - 1)
PLACE = U64 | st.tuples(TEXT, U64)
OPTION = TEXT | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans() | st.none()
BY_TYPE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (request.U32, st.integers(0, 2**32 - 1)),
    (request.U63, st.integers(0, 2**63 - 1)),
    (request.U64, U64),
    (request.Micros, st.integers(0, request.TIME_US_MAX)),
    (request.Seconds, st.floats(0, request.SECONDS_MAX)),
    (administration.Points, st.integers(1, administration.HISTORY_POINTS_MAX)),
]
LETTER = st.builds(
    DeadLetter,
    TEXT,
    TEXT,
    U64,
    st.binary(max_size=4),
    U64,
    st.none() | st.binary(max_size=4),
    st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
    U64,
    st.lists(TEXT, max_size=2).map(tuple),
    U64,
)
CHANNEL = st.builds(
    administration.ChannelSpec,
    name=TEXT,
    filter=TEXT,
    destination_host=TEXT,
    destination_port=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["tcp", "http"]),
    options=st.dictionaries(TEXT, OPTION, max_size=2),
)
BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "Subscribe.options": st.dictionaries(st.sampled_from(sorted(OPTION_NAMES)), OPTION),
    "Subscribe.start": st.sampled_from(["earliest", "latest"]) | U64,
    "Subscribe.after": st.none() | U64 | st.dictionaries(TEXT, U64, max_size=3),
    "Subscribe.upto": st.none() | st.dictionaries(TEXT, U64, max_size=3),
    "SeekSubscription.to": st.sampled_from(["earliest", "latest"]) | U64 | st.dictionaries(TEXT, U64, max_size=3),
    "SubscribeTo.options": st.dictionaries(TEXT, OPTION, max_size=2),
    "CreateSubscription.options": st.dictionaries(st.sampled_from(sorted(OPTION_NAMES)), OPTION),
    "CreateSubscription.start": st.sampled_from(["earliest", "latest"]) | U64,
    "AddChannels.channels": st.lists(CHANNEL, max_size=2).map(tuple),
    "ListLevels.limit": st.integers(1, administration.PAGE_MAX),
    "ReadHistory.points": st.integers(1, administration.HISTORY_POINTS_MAX),
    "Seek.to": st.sampled_from(["earliest", "latest"]) | U64 | st.dictionaries(TEXT, U64, max_size=3),
    "MarkArchived.archived": st.dictionaries(TEXT, st.integers(0, 2**63 - 1), max_size=3),
    "Extents.moments_us": st.lists(st.integers(0, request.TIME_US_MAX), max_size=3).map(tuple),
    "Delay.headers": st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    "DeadLetters.offset": st.none() | PLACE,
    "DeadLetters.after": st.none() | st.tuples(TEXT, U64),
    "Redrive.offsets": st.none() | st.lists(PLACE, max_size=4).map(tuple),
    "Mend.letters": st.lists(LETTER, max_size=2).map(tuple),
    "DropDeadLetters.offsets": st.none() | st.lists(PLACE, max_size=4).map(tuple),
    "Stage.count": st.just(2),
    "Stage.body": st.just(BODY),
}
EVERY = tuple(OPERATIONS)
NUMBERS = [
    (struct, field.name, field.type)
    for struct in EVERY
    for field in msgspec.structs.fields(struct)
    if any(named in (field.type, *get_args(field.type)) for named, _ in BY_TYPE)
]


def strategy_of(struct: type[Request[Any]]) -> st.SearchStrategy[Request[Any]]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(struct):
        named = f"{struct.__name__}.{field.name}"
        options = [field.type, *get_args(field.type)]
        numbers = [strategy for type, strategy in BY_TYPE if type in options]
        if named in BY_FIELD:
            fields[field.name] = BY_FIELD[named]
        elif numbers:
            fields[field.name] = numbers[0] | (st.none() if type(None) in options else numbers[0])
        else:
            fields[field.name] = TEXT if field.type is str else st.from_type(field.type)
    return st.builds(struct, **fields)


REQUESTS = st.sampled_from(EVERY).flatmap(strategy_of)


def asked(payload: bytes) -> Request[Any]:
    return read_request(Frame(Kind.REQUEST, 0, 1, payload))


def test_every_request_is_an_operation() -> None:
    assert set(EVERY) == {*Request.__subclasses__(), *Change.__subclasses__()} - {Change}
    assert len({struct.__name__ for struct in EVERY}) == len(EVERY)


@pytest.mark.parametrize("struct", EVERY, ids=lambda struct: struct.__name__)
def test_the_smallest_form_of_each_request_is_read(struct: type[Request[Any]]) -> None:
    assert type(asked(encode(smallest(struct)))) is struct


@pytest.mark.parametrize("struct", EVERY, ids=lambda struct: struct.__name__)
def test_a_field_that_a_newer_version_adds_is_passed_over(struct: type[Request[Any]]) -> None:
    whole = smallest(struct)
    assert asked(encode({**whole, "of a newer version": [1, {"a": 2}]})) == asked(encode(whole))


@pytest.mark.parametrize("struct", EVERY, ids=lambda struct: struct.__name__)
def test_what_an_answer_says_more_than_is_known_is_passed_over(struct: type[Request[Any]]) -> None:
    for found in structs_in(OPERATIONS[struct].answer):
        assert not found.__struct_config__.forbid_unknown_fields, found


def structs_in(kind: Any) -> set[type[msgspec.Struct]]:
    """Every struct that a type has in it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        inner = [structs_in(field.type) for field in msgspec.structs.fields(kind)]
        return {kind}.union(*inner)
    return set().union(*map(structs_in, get_args(kind)))


@pytest.mark.parametrize("struct", EVERY, ids=lambda struct: struct.__name__)
def test_a_request_without_a_field_that_has_to_be_there_is_malformed(struct: type[Request[Any]]) -> None:
    whole = smallest(struct)
    for name in whole:
        with pytest.raises(Malformed):
            asked(encode({field: value for field, value in whole.items() if field != name}))


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1), REQUESTS)
def test_a_request_comes_back_as_it_was(id: int, request: Request[Any]) -> None:
    (frame,) = FrameReader(1 << 20).feed(pack_request(id, request))
    assert (frame.kind, frame.id) == (Kind.REQUEST, id)
    assert read_request(frame) == request


@given(REQUESTS, st.data())
def test_a_cut_request_is_malformed_and_a_flipped_one_is_another_or_of_the_tree(
    request: Request[Any], data: st.DataObject
) -> None:
    packed = encode(request)
    at = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Malformed):
        asked(packed[:at])
    with pytest.raises(Malformed):
        asked(packed + b"\xc0")
    flipped = bytearray(packed)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        asked(bytes(flipped))
    except HeadwaterError:
        pass


@pytest.mark.parametrize("struct", EVERY, ids=lambda struct: struct.__name__)
def test_every_truncation_and_flipped_bit_of_a_small_request_is_one_or_malformed(struct: type[Request[Any]]) -> None:
    packed = encode(smallest(struct))
    for end in range(len(packed)):
        with pytest.raises(Malformed):
            asked(packed[:end])
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            asked(bytes(flipped))
        except Malformed:
            pass


@given(st.binary(max_size=100))
def test_garbage_is_a_request_or_malformed(payload: bytes) -> None:
    try:
        asked(payload)
    except Malformed:
        pass


@settings(deadline=None)  # each goes through every field of every request
@given(st.recursive(OPTION, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)))
def test_values_where_they_do_not_belong_are_malformed_or_fine(value: Any) -> None:
    for struct in EVERY:
        whole = smallest(struct)
        for field in msgspec.structs.fields(struct):
            try:
                asked(encode({**whole, field.name: value}))
            except Malformed:
                pass


@pytest.mark.parametrize(("struct", "name", "type"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_numbers_that_cannot_be_are_malformed(struct: type[Request[Any]], name: str, type: Any) -> None:
    for value in (-1, -(2**63), -0.5, float("nan"), float("inf"), float("-inf")):
        with pytest.raises(Malformed):
            asked(encode({**smallest(struct), name: value}))


def test_a_subscription_number_fits_the_id_of_a_frame() -> None:
    whole = smallest(requests.Subscribe)
    asked(encode({**whole, "number": 2**32 - 1}))
    with pytest.raises(Malformed):
        asked(encode({**whole, "number": 2**32}))


def test_the_last_moment_is_one_that_a_calendar_knows() -> None:
    assert to_datetime(request.TIME_US_MAX).year == 9999
    with pytest.raises(Malformed):
        asked(encode({**smallest(requests.Delay), "deliver_at_us": request.TIME_US_MAX + 1}))


@pytest.mark.parametrize("struct", [requests.DeadLetters, requests.Redrive, requests.DropDeadLetters])
def test_places_are_not_negative(struct: type[Request[Any]]) -> None:
    name = "offset" if struct is requests.DeadLetters else "offsets"
    for place in (-1, ["home", -1]):
        value = place if name == "offset" else [1, place]
        with pytest.raises(Malformed, match="-1"):
            asked(encode({**smallest(struct), name: value}))


@pytest.mark.parametrize("name", ["id", "filter", "number", "colour", ""])
def test_options_name_nothing_that_the_request_itself_says(name: str) -> None:
    """A filter among the options could pass by the rules that the request's own was checked against."""
    with pytest.raises(Malformed, match="option"):
        asked(encode({**smallest(requests.Subscribe), "options": {name: "#"}}))
    with pytest.raises(Malformed, match="option"):
        requests.Subscribe(number=1, filter="a", kind="named", options={name: "#"})


def test_options_are_few_and_flat() -> None:
    wrong: list[dict[str, Any]] = [{"order": []}, {"order": {}}, {"order": b"x"}, {f"o{n}": 1 for n in range(33)}]
    for options in wrong:
        with pytest.raises(Malformed):
            asked(encode({**smallest(requests.Subscribe), "options": options}))


def test_a_staged_body_holds_what_is_announced() -> None:
    for count in (0, 1, 3, 2**32 - 1):
        with pytest.raises(Malformed):
            asked(encode({**smallest(requests.Stage), "count": count}))


def test_a_long_request_is_too_large_unless_it_brings_messages() -> None:
    blob = bytes(REQUEST_BYTES_MAX)
    asked(encode({**smallest(requests.Delay), "payload": blob}))
    asked(encode({**smallest(requests.Stage), "body": BODY + blob}))
    for struct in EVERY:
        if Trait.CARRIES not in OPERATIONS[struct].traits:
            with pytest.raises(TooLarge):
                asked(encode({**smallest(struct), "colour": blob}))
    with pytest.raises(Malformed):
        asked(blob)
    with pytest.raises(TooLarge):
        asked(encode({"do": "Nothing", "colour": blob}))


def test_a_long_request_is_refused_without_decoding_what_is_in_it() -> None:
    size = 4 << 20
    payload = b"\x85" + b"".join(
        encode(name) + encode(value)
        for name, value in (("do", "Subscribe"), ("number", 1), ("filter", "a"), ("kind", "live"))
    )
    payload += encode("options") + b"\x81\xa5order\xdd" + size.to_bytes(4, "big") + b"\x90" * size
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            asked(payload)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1x"])
def test_values_nested_without_end_are_malformed(nest: bytes) -> None:
    for name in ("options", "colour"):
        payload = b"\x85" + b"".join(
            encode(key) + encode(value)
            for key, value in (("do", "Subscribe"), ("number", 1), ("filter", "a"), ("kind", "live"))
        )
        with pytest.raises(Malformed):
            asked(payload + encode(name) + nest * 100_000)


@pytest.mark.parametrize("claim", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
def test_a_length_that_was_made_up_takes_no_memory(claim: bytes) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        for struct in EVERY:
            whole = smallest(struct)
            for field in msgspec.structs.fields(struct):
                rest = {name: value for name, value in whole.items() if name != field.name}
                payload = bytes((0x81 + len(rest),)) + encode(rest)[1:] + encode(field.name) + claim
                with pytest.raises(Malformed):
                    asked(payload)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_errors_quote_little_of_what_was_sent() -> None:
    with pytest.raises(Malformed) as caught:
        asked(encode({"do": "x" * 100_000}))
    assert len(str(caught.value)) < 400


def test_the_types_survive_garbage_collection() -> None:
    """msgspec 0.22 crashes there on some unions; see `Place`."""
    code = (
        "import gc\nfrom headwater.wire import requests as r, handshake as h, operations as o\n"
        "for type in (*o.REPLIES.values(), h.Hello, h.Welcome, r.Problem, r.Notice, r.Goodbye):\n"
        "    try: r.decode(b'', type)\n    except r.Malformed: pass\n"
        "for _ in range(20): gc.collect()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# Errors

TREE = [error for error in requests.BY_NAME.values() if error not in requests.WITH_MORE]


@pytest.mark.parametrize("error", TREE, ids=lambda error: error.__name__)
def test_an_error_of_the_tree_comes_back_as_it_was(error: type[HeadwaterError]) -> None:
    (frame,) = FrameReader(1 << 20).feed(pack_error(7, error("what to do")))
    assert (frame.kind, frame.id) == (Kind.ERROR, 7)
    back = error_of(decode(frame.payload, Problem))
    assert type(back) is error
    assert str(back) == str(error("what to do"))


def test_a_gap_comes_back_with_its_offsets() -> None:
    back = error_of(problem_of(Gap("home", 3, 9, "damage")))
    assert isinstance(back, Gap)
    assert (back.root, back.first, back.last, back.reason) == ("home", 3, 9, "damage")


def test_an_error_that_is_not_ours_tells_its_type_alone() -> None:
    problem = problem_of(KeyError("a secret"))
    assert (problem.kind, problem.code) == ("Failed", 500)
    assert "secret" not in problem.text
    assert "KeyError" in problem.text


@pytest.mark.parametrize(
    ("kind", "code", "known"),
    [
        ("Newer", 404, NotFound),
        ("Newer", 409, errors.Conflict),
        ("Newer", 422, Malformed),
        ("Newer", 999, HeadwaterError),
        ("Gap", 410, HeadwaterError),  # one without offsets
        ("error_of", 500, HeadwaterError),
    ],
)
def test_an_error_of_an_unknown_kind_is_known_by_its_code(kind: str, code: int, known: type[HeadwaterError]) -> None:
    back = error_of(Problem(kind=kind, code=code, text="text"))
    assert isinstance(back, known)


def test_texts_are_cut_and_what_utf_8_cannot_say_is_replaced() -> None:
    assert len(problem_of(Malformed("x" * 10 * TEXT_MAX)).text) == TEXT_MAX
    assert len(problem_of(Gap("home", 1, 2, "x" * 10 * TEXT_MAX)).gap[3]) == TEXT_MAX  # type: ignore[index]  # a gap has one
    assert pack_error(1, Malformed("file \udc80"))
    assert pack_error(1, Gap("home", 1, 2, "file \udc80"))
    assert pack_error(1, Malformed())


def test_a_row_carries_its_payload_once_whatever_that_is_and_a_schema_its_text() -> None:
    assert request.carried(Message("home/x", 1, b"\xff" * 9, 0, b"key", (("a", "bc"),))) == 9 + 3 + 3
    assert request.carried(SchemaInfo("home/#", "{}", 0)) == 2
