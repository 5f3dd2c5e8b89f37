"""Bodies that are laid out alike are read as they would be without a memory of it, right or wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store import shapes
from headwater.store.body import Body, encode_body
from headwater.store.shapes import SHAPE_MESSAGES_MAX, SHAPES_MAX, shape_of

TIME_US = 1_700_000_000_000_000
LENGTHS = st.lists(st.integers(0, 20), min_size=2, max_size=12)
TOPICS = st.lists(st.sampled_from(["a", "a/b", "a/c", "ä/🌡"]), min_size=12, max_size=12)


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    shapes.remembered.forget()
    yield
    shapes.remembered.forget()


def made(topics: list[str], lengths: list[int], fill: bytes = b"x", time_us: int = TIME_US) -> bytes:
    return encode_body(topics[: len(lengths)], [fill * length for length in lengths], time_us)


def told(data: bytes) -> object:
    """All that a body says, or that it is refused."""
    try:
        body = Body(data)
    except (ValueError, struct.error):
        return "refused"
    said = [(one.topic, one.offset, one.payload, one.time_us) for one in body.messages(7)]
    return said, body.names, list(body.topics), body.time_span(), body.longest(), body.end, body.places_of([0])


def told_afresh(data: bytes) -> object:
    known = dict(shapes.remembered.known)
    shapes.remembered.forget()
    try:
        return told(data)
    finally:
        shapes.remembered.forget()
        shapes.remembered.known.update(known)


@given(TOPICS, LENGTHS, st.binary(min_size=1, max_size=1), st.integers(0, 2**50))
def test_a_body_that_fits_is_read_as_it_would_be(
    topics: list[str], lengths: list[int], fill: bytes, time_us: int
) -> None:
    for _ in range(2):
        told(made(topics, lengths))
    again = made(topics, lengths, fill, time_us)
    assert shape_of(again) is not None
    assert told(again) == told_afresh(again)


@given(TOPICS, LENGTHS, st.data())
def test_a_body_that_was_damaged_is_not_taken_for_one_that_fits(
    topics: list[str], lengths: list[int], data: st.DataObject
) -> None:
    whole = made(topics, lengths)
    for _ in range(2):
        told(whole)
    damaged = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    assert told(bytes(damaged)) == told_afresh(bytes(damaged))


@given(TOPICS, LENGTHS, TOPICS, LENGTHS)
def test_others_of_the_same_length_are_told_apart(
    topics: list[str], lengths: list[int], others: list[str], other_lengths: list[int]
) -> None:
    for _ in range(2):
        told(made(topics, lengths))
    other = made(others, other_lengths)
    assert told(other) == told_afresh(other)


def test_what_is_remembered_is_bounded() -> None:
    for length in range(1, 10 * SHAPES_MAX):
        for _ in range(2):
            told(made(["a"] * 2, [length, length]))
    assert len(shapes.remembered.known) <= SHAPES_MAX
    large = made(["a"] * (SHAPE_MESSAGES_MAX + 1), [1] * (SHAPE_MESSAGES_MAX + 1))
    for _ in range(3):
        told(large)
    assert shape_of(large) is None
