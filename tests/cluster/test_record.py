"""Records: what is decoded is what was encoded, and nothing else is a record."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cluster.record import (
    BEGINNING,
    PART,
    PARTS_MAX,
    Append,
    BadRecord,
    Create,
    Entry,
    Epoch,
    Record,
    Remove,
    Roll,
    Rows,
    Trim,
    decode,
    encode,
    join,
    open_part,
)
from headwater.errors import TooLarge

NUMBERS = st.integers(0, 2**32 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Append, NUMBERS, st.binary(max_size=200)),
    st.builds(Rows, st.dictionaries(st.binary(max_size=20), st.none() | st.binary(max_size=20), max_size=5)),
    st.builds(Create, NUMBERS, st.text(max_size=10), OFFSETS),
    st.builds(Remove, NUMBERS, OFFSETS),
    st.builds(Roll, NUMBERS, OFFSETS),
    st.builds(Trim, NUMBERS, OFFSETS),
    st.builds(Epoch, OFFSETS, st.text(max_size=10), st.text(max_size=10), st.text(max_size=10)),
)
RECORDS = st.builds(
    Record,
    st.integers(1, 2**64 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(min_size=16, max_size=16),
    st.lists(ENTRIES, max_size=6).map(tuple),
)


def record(*entries: Entry, number: int = 7, previous: bytes = BEGINNING) -> Record:
    return Record(number, 3, 1_700_000_000_000_000, previous, entries)


@given(RECORDS, st.integers(PART.size + 1, 300))
@settings(deadline=None)
def test_a_record_is_decoded_as_it_was_encoded_in_however_many_parts(made: Record, part_bytes_max: int) -> None:
    encoded = encode(made, part_bytes_max)
    assert all(len(part) <= part_bytes_max for part in encoded.parts)
    parts = [open_part(part) for part in encoded.parts]
    assert join(parts) == made
    assert {part.digest for part in parts} == {encoded.digest}
    assert all(after.continues(before) for before, after in itertools.pairwise(parts))


@given(RECORDS, st.data())
@settings(deadline=None)
def test_a_part_with_a_flipped_bit_is_no_record(made: Record, data: st.DataObject) -> None:
    [part] = encode(made, 1 << 20).parts
    place = data.draw(st.integers(0, len(part) * 8 - 1))
    flipped = bytearray(part)
    flipped[place // 8] ^= 1 << place % 8
    with pytest.raises(BadRecord):
        decode(bytes(flipped))


@given(st.binary(max_size=300))
def test_other_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(BadRecord):
        decode(data)


def test_entries_that_end_early_are_refused_even_under_right_checksums() -> None:
    class Cut(bytes):
        """Says of itself that it is longer than it is."""

        def __len__(self) -> int:
            return super().__len__() + 1

    encoded = encode(record(Append(1, Cut(b"abc"))), 1 << 20)
    with pytest.raises(BadRecord):
        decode(encoded.parts[0])


def test_the_same_record_has_the_same_bytes_everywhere() -> None:
    made = record(Append(1, b"batch"), Rows({b"k": b"v", b"gone": None}))
    assert encode(made, 1 << 20) == encode(made, 1 << 20)
    assert encode(made, 1 << 20).digest.hex() == "adf1117495e952127f144f21fc26f72d"


def test_each_digest_vouches_for_the_one_before() -> None:
    entry = Append(1, b"batch")
    one, other = encode(record(entry), 1 << 20), encode(record(entry, previous=b"x" * 16), 1 << 20)
    assert one.digest != other.digest


def test_the_digest_is_of_the_record_and_not_of_how_it_was_cut() -> None:
    made = record(Append(1, bytes(1000)))
    assert encode(made, 200).digest == encode(made, 1 << 20).digest


def test_parts_of_different_records_do_not_join() -> None:
    one, other = encode(record(Append(1, bytes(100))), 150), encode(record(Append(1, b"x" * 100)), 150)
    with pytest.raises(BadRecord):
        join([open_part(one.parts[0]), open_part(other.parts[1])])


def test_a_missing_part_is_noticed() -> None:
    encoded = encode(record(Append(1, bytes(500))), 150)
    with pytest.raises(BadRecord):
        join([open_part(part) for part in encoded.parts[:-1]])


def test_a_record_of_too_many_parts_is_refused_with_what_to_do() -> None:
    with pytest.raises(TooLarge, match="max_payload"):
        encode(record(Append(1, bytes(PARTS_MAX * 10))), PART.size + 10)


def test_an_entry_of_a_kind_that_is_not_known_says_that_the_node_is_to_be_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [part] = encode(record(Trim(1, 5)), 1 << 20).parts
    monkeypatch.delitem(__import__("headwater.cluster.record", fromlist=["KINDS"]).KINDS, 6)
    with pytest.raises(BadRecord, match="upgrade"):
        decode(part)
