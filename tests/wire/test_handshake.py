"""The handshake: every pair of a state and a kind, and values that nobody would send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Malformed
from headwater.wire.frame import Frame, Kind
from headwater.wire.handshake import (
    TRANSITIONS,
    VERSIONS,
    Challenge,
    Hello,
    Limits,
    Phase,
    Response,
    Welcome,
    choose_version,
    step,
)
from headwater.wire.requests import decode, encode

# The design's table, written out by hand: a row a kind, a column a state, the state after it or "-" for an error.
TABLE = """
            GREETING    CHALLENGED  PROVEN   OPEN   REGISTERED
HELLO       CHALLENGED  -           -        -      -
CHALLENGE   -           -           -        -      -
RESPONSE    -           PROVEN      -        -      -
OK          -           -           OPEN     -      -
REQUEST     -           -           -        OPEN   REGISTERED
REPLY       -           -           -        -      -
ERROR       -           -           -        -      -
PUBLISH     -           -           -        -      REGISTERED
PUBLISHED   -           -           -        -      -
DELIVER     -           -           -        -      -
ACK         -           -           -        -      REGISTERED
TAKEN       -           -           -        -      REGISTERED
CREDIT      -           -           -        -      REGISTERED
RECALL      -           -           -        -      -
NOTICE      -           -           -        -      -
PING        GREETING    CHALLENGED  PROVEN   OPEN   REGISTERED
PONG        GREETING    CHALLENGED  PROVEN   OPEN   REGISTERED
GOODBYE     GREETING    CHALLENGED  PROVEN   OPEN   REGISTERED
"""
LINES = [line.split() for line in TABLE.strip().splitlines()]
PAIRS = [
    (Phase[state], Kind[kind], after) for kind, *row in LINES[1:] for state, after in zip(LINES[0], row, strict=True)
]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**63)
VALUES = st.one_of(
    st.builds(
        Hello,
        versions=st.lists(st.integers(0, 2**32), max_size=4).map(tuple),
        software=TEXT,
        mechanism=st.sampled_from(["none", "scram-sha-256", "certificate", "gatekeeper"]),
        user=TEXT,
        first=st.binary(max_size=40),
    ),
    st.builds(Challenge, version=COUNT, software=TEXT, first=st.binary(max_size=40), time_us=COUNT),
    st.builds(Response, final=st.binary(max_size=40)),
    st.builds(
        Welcome,
        final=st.binary(max_size=40),
        user=TEXT,
        client_id=TEXT,
        limits=st.builds(
            Limits,
            **{name: COUNT for name in Limits.__struct_fields__ if not name.endswith(("_s", "_s_max"))},
            session_expire_after_s_max=st.floats(0, 1e9),
            keepalive_s=st.floats(0, 1e9),
        ),
    ),
)


def test_the_table_has_every_pair() -> None:
    assert len(PAIRS) == len(Phase) * len(Kind)
    assert {(state, kind) for state, kind, _ in PAIRS} == {(state, kind) for state in Phase for kind in Kind}


@pytest.mark.parametrize(("state", "kind", "after"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_a_frame_leads_to_the_state_of_the_table(state: Phase, kind: Kind, after: str) -> None:
    frame = Frame(kind, 0, 0, b"")
    if after == "-":
        with pytest.raises(Malformed, match=kind.name):
            step(state, frame)
        assert (state, kind) not in TRANSITIONS
    else:
        assert step(state, frame) is Phase[after]


def test_nothing_but_the_handshake_leads_to_open_and_no_frame_alone_to_registered() -> None:
    ways = {(a, b) for (a, _), b in TRANSITIONS.items() if a is not b}
    assert ways == {
        (Phase.GREETING, Phase.CHALLENGED),
        (Phase.CHALLENGED, Phase.PROVEN),
        (Phase.PROVEN, Phase.OPEN),
    }


@given(VALUES)
def test_values_of_the_handshake_come_back_as_they_were(value: object) -> None:
    assert decode(encode(value), type(value)) == value


@given(VALUES, st.data())
def test_a_cut_or_flipped_value_is_another_value_or_malformed(value: object, data: st.DataObject) -> None:
    packed = encode(value)
    end = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Malformed):
        decode(packed[:end], type(value))
    flipped = bytearray(packed)
    flipped[end] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode(bytes(flipped), type(value))
    except Malformed:
        pass


@given(st.binary(max_size=80), st.sampled_from([Hello, Challenge, Response, Welcome]))
def test_garbage_is_a_value_or_malformed(payload: bytes, type: type[object]) -> None:
    try:
        decode(payload, type)
    except Malformed:
        pass


def test_versions() -> None:
    assert choose_version((1,)) == 1
    assert choose_version((99, 1, 1, 0)) == 1
    for offered in ((), (0,), (2, 3)):
        with pytest.raises(Malformed):
            choose_version(offered)


def test_a_hello_without_versions_means_the_first_version_and_not_the_newest() -> None:
    """When VERSIONS grows, the default of Hello.versions has to be decided: clients that left it out spoke 1."""
    assert decode(b"\x80", Hello).versions == (1,)
    assert VERSIONS == (1,)


def test_an_error_about_versions_repeats_few_of_them() -> None:
    with pytest.raises(Malformed) as caught:
        choose_version(tuple(range(2, 16_000)))
    assert len(str(caught.value)) < 200


def test_an_unknown_mechanism_is_malformed_and_unknown_fields_are_passed_over() -> None:
    with pytest.raises(Malformed):
        decode(encode({"versions": [1], "mechanism": "plain"}), Hello)
    assert decode(encode({"versions": [1], "colour": [1, {"deep": None}]}), Hello) == Hello()


@pytest.mark.parametrize(
    "claim", [b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_a_length_that_was_made_up_is_malformed(claim: bytes) -> None:
    for name in ("versions", "first", "software", "colour"):
        with pytest.raises(Malformed):
            decode(b"\x81" + encode(name) + claim, Hello)
