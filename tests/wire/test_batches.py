"""Frames that carry batches and speak about them: to the byte, cut, flipped, forged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Malformed, TooLarge
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire import batches
from headwater.wire.batches import (
    PICKED,
    QUIET,
    RETAINED,
    check_count,
    pack_credit,
    pack_deliver,
    pack_publish,
    pack_published,
    pack_ranges,
    read_credit,
    read_deliver,
    read_publish,
    read_published,
    read_ranges,
)
from headwater.wire.contents import Publish, Published
from headwater.wire.frame import Frame, Kind
from headwater.wire.reader import FrameReader
from wire.vectors import read_vectors

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BODIES = st.lists(st.binary(max_size=20), min_size=1, max_size=6).map(
    lambda payloads: (len(payloads), encode_body(["a/b"] * len(payloads), payloads, 1))
)
RANGES = st.lists(
    st.tuples(U64, U64, U64).map(lambda one: (one[0], min(one[1:]), max(one[1:]))),
    max_size=6,
)
READERS: dict[Kind, Callable[[Frame], Any]] = {
    Kind.PUBLISH: read_publish,
    Kind.PUBLISHED: read_published,
    Kind.DELIVER: read_deliver,
    Kind.ACK: read_ranges,
    Kind.TAKEN: read_ranges,
    Kind.RECALL: read_ranges,
    Kind.CREDIT: read_credit,
}
BINARY = [vector for vector in read_vectors() if vector.kind in READERS]


def only(data: bytes) -> Frame:
    (frame,) = FrameReader(1 << 20).feed(data)
    return frame


def refused(frame: Frame) -> bool:
    """Whether a frame is refused, by an error of the tree; any other error fails the test."""
    try:
        READERS[Kind(frame.kind)](frame)
    except (Malformed, TooLarge):
        return True
    return False


@given(U32, NAMES, NAMES.filter(bool) | st.none(), U64, BODIES, st.sampled_from([0, QUIET]))
def test_a_publish_comes_back_as_it_was(
    id: int, root: str, producer: str | None, sequence: int, body: tuple[int, bytes], flags: int
) -> None:
    count, data = body
    sequence = sequence if producer else 0
    pieces = pack_publish(id, root, count, checksum(data), data, producer, sequence, flags)
    assert pieces[1] is data  # sent as it is
    frame = only(b"".join(pieces))
    assert (frame.kind, frame.id, frame.flags) == (Kind.PUBLISH, id, flags)
    assert read_publish(frame) == Publish(root, count, checksum(data), producer, sequence, data)
    assert (len(frame.payload) - len(data)) % 8 == 0


@given(st.lists(st.tuples(U32, st.booleans(), U64, I64), max_size=6))
def test_published_comes_back_as_it_was(done: list[tuple[int, bool, int, int]]) -> None:
    assert read_published(only(pack_published(done))) == [Published(*one) for one in done]


@given(U32, U64, NAMES, U64, BODIES, U32, st.booleans(), st.booleans(), st.data())
def test_a_delivery_comes_back_as_it_was(
    subscription: int,
    lease: int,
    root: str,
    first: int,
    body: tuple[int, bytes],
    attempt: int,
    is_retained: bool,
    is_picked: bool,
    data: st.DataObject,
) -> None:
    count, stored = body
    deltas = data.draw(st.lists(U32, min_size=count, max_size=count)) if is_picked else None
    head = pack_deliver(
        subscription,
        lease,
        root.encode(),
        first,
        count,
        checksum(stored),
        len(stored),
        attempt,
        deltas,
        RETAINED if is_retained else 0,
    )
    frame = only(head + stored)
    read = read_deliver(frame)
    assert (read.subscription, read.lease, read.root, read.first_offset) == (subscription, lease, root, first)
    assert (read.count, read.attempt, read.is_retained) == (count, attempt, is_retained)
    assert (read.crc, read.body) == (checksum(stored), stored)
    assert (None if read.deltas is None else list(read.deltas)) == deltas
    assert bool(frame.flags & PICKED) == is_picked
    assert (len(frame.payload) - len(stored)) % 8 == 0


@given(st.sampled_from([Kind.ACK, Kind.TAKEN, Kind.RECALL]), U32, U32, RANGES)
def test_ranges_come_back_as_they_were(kind: Kind, id: int, subscription: int, ranges: Sequence[batches.Range]) -> None:
    frame = only(pack_ranges(kind, id, subscription, ranges))
    assert (frame.kind, frame.id) == (kind, id)
    assert read_ranges(frame) == (subscription, ranges)


@given(U32, U64, U64)
def test_credit_comes_back_as_it_was(subscription: int, messages: int, size: int) -> None:
    frame = only(pack_credit(subscription, messages, size))
    assert (frame.id, read_credit(frame)) == (subscription, (messages, size))


@pytest.mark.parametrize("vector", BINARY, ids=lambda vector: vector.name)
def test_every_truncation_is_refused_unless_it_ends_within_a_body_or_between_entries(vector: Any) -> None:
    frame = only(vector.data)
    for end in range(len(frame.payload)):
        cut = Frame(frame.kind, frame.flags, frame.id, frame.payload[:end])
        if refused(cut):
            continue
        if frame.kind == Kind.PUBLISHED:
            assert end % batches.PUBLISHED.size == 0
        else:
            assert frame.kind in (Kind.PUBLISH, Kind.DELIVER)
            body = vector.value["body"]["bytes"]
            assert end >= len(frame.payload) - len(body) // 2  # the rest is for the checksum to find
            assert checksum(READERS[vector.kind](cut).body) != vector.value["crc"]


@pytest.mark.parametrize("vector", BINARY, ids=lambda vector: vector.name)
def test_every_flipped_bit_is_refused_or_read_as_something_else_or_is_padding(vector: Any) -> None:
    frame = only(vector.data)
    read = READERS[vector.kind]
    right = read(frame)
    same = 0
    for bit in range(8 * len(frame.payload)):
        flipped = bytearray(frame.payload)
        flipped[bit // 8] ^= 1 << bit % 8
        changed = Frame(frame.kind, frame.flags, frame.id, bytes(flipped))
        same += not refused(changed) and read(changed) == right
    assert same <= 7 * 8 * 2  # zeros after the names, and after the offsets


@given(st.sampled_from(sorted(READERS)), st.integers(0, 255), U32, st.binary(max_size=120))
def test_garbage_is_a_value_or_an_error_of_the_tree(kind: Kind, flags: int, id: int, payload: bytes) -> None:
    refused(Frame(kind, flags, id, payload))


@pytest.mark.parametrize("count", [0, 1, 3, 2**31, 2**32 - 1])
def test_a_publish_that_announces_another_number_of_messages_than_its_body_is_refused(count: int) -> None:
    body = encode_body(["a", "a"], [b"x", b"y"], 1)
    with pytest.raises(Malformed):
        read_publish(only(b"".join(pack_publish(1, "a", count, checksum(body), body))))
    forged = struct.pack("<I", count) + body[4:]
    if count not in (1, 3):  # a body that lies as well is found out by its length; small lies, by whoever stores it
        with pytest.raises(Malformed):
            check_count(count, forged)


@pytest.mark.parametrize("body", [b"", b"\0", bytes(3), bytes(16)])
def test_a_body_that_holds_nothing_is_refused(body: bytes) -> None:
    for count in (0, 1, 2):
        with pytest.raises(Malformed):
            check_count(count, body)


def test_names_that_reach_outside_of_a_publish_or_are_no_text_are_refused() -> None:
    body = encode_body(["a"], [b"x"], 1)
    for root_bytes, producer_bytes in ((65_535, 65_535), (65_535, 0), (0, 65_535)):
        head = batches.PUBLISH.pack(1, 0, root_bytes, producer_bytes, 0, 0)
        with pytest.raises(Malformed):
            read_publish(Frame(Kind.PUBLISH, 0, 0, head + body))
    head = batches.PUBLISH.pack(1, 0, 1, 0, 0, 0) + b"\xff" + bytes(7)
    with pytest.raises(Malformed, match="UTF-8"):
        read_publish(Frame(Kind.PUBLISH, 0, 0, head + body))


def test_a_sequence_without_a_producer_is_refused() -> None:
    body = encode_body(["a"], [b"x"], 1)
    with pytest.raises(Malformed, match="producer"):
        read_publish(only(b"".join(pack_publish(1, "a", 1, 0, body, None, 7))))


def test_what_is_to_be_zero_has_to_be() -> None:
    body = encode_body(["a"], [b"x"], 1)
    publish = batches.PUBLISH.pack(1, 0, 1, 0, 1, 0) + b"a" + bytes(7) + body
    deliver = batches.DELIVER.pack(0, 1, 1, 0, 1, 1, 1) + b"a" + bytes(7) + body
    assert refused(Frame(Kind.PUBLISH, 0, 0, publish))
    assert refused(Frame(Kind.DELIVER, 0, 0, deliver))


@pytest.mark.parametrize("count", [2, 2**31, 2**32 - 1])
def test_offsets_that_reach_outside_of_a_delivery_are_refused(count: int) -> None:
    payload = batches.DELIVER.pack(0, 1, count, 0, 1, 0, 0) + bytes(4)
    assert refused(Frame(Kind.DELIVER, PICKED, 0, payload))


@pytest.mark.parametrize("count", [0, 2, 2**31, 2**32 - 1])
def test_ranges_that_are_not_as_many_as_announced_are_refused(count: int) -> None:
    payload = batches.RANGES.pack(5, count) + batches.RANGE.pack(1, 2, 3)
    assert refused(Frame(Kind.ACK, 0, 0, payload))


def test_a_range_that_ends_before_it_begins_is_refused_wherever_it_stands() -> None:
    good = [(1, 5, 5), (1, 0, 2**64 - 1)]
    for place in range(3):
        bad = [*good[:place], (1, 6, 5), *good[place:]]
        assert refused(only(pack_ranges(Kind.ACK, 1, 5, bad)))
    assert not refused(only(pack_ranges(Kind.ACK, 1, 5, good)))


def test_more_ranges_than_anybody_has_in_flight_are_too_large() -> None:
    frame = only(pack_ranges(Kind.ACK, 1, 5, [(1, 2, 3)] * 4))
    assert len(read_ranges(frame, 4)[1]) == 4
    with pytest.raises(TooLarge):
        read_ranges(frame, 3)
    many = batches.RANGES.pack(5, batches.RANGES_MAX + 1) + bytes(24) * (batches.RANGES_MAX + 1)
    with pytest.raises(TooLarge):
        read_ranges(Frame(Kind.ACK, 0, 0, many))


@pytest.mark.parametrize("size", [0, 8, 15, 17, 32])
def test_credit_has_its_size(size: int) -> None:
    assert refused(Frame(Kind.CREDIT, 0, 0, bytes(size)))
