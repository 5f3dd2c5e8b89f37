"""RocksDB's log as bytes: what is written is read, and whatever is bad costs no more than itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store import wal
from headwater.store.batch import checksum

PAYLOADS = st.lists(
    st.binary(min_size=1, max_size=60) | st.integers(1, 100_000).map(lambda size: b"x" * size), max_size=8
)


def payloads(data: bytes) -> list[bytes]:
    return [record.payload for record in wal.records(data) if record.payload]


@given(PAYLOADS)
def test_what_is_encoded_is_read_back(given_: list[bytes]) -> None:
    data = wal.encode(given_)
    assert payloads(data) == given_
    assert wal.is_whole(data)


@given(PAYLOADS, st.data())
def test_a_flipped_bit_costs_the_record_it_is_in_and_shows(given_: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(wal.encode(given_))
    if not data:
        return
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= 1 << draw.draw(st.integers(0, 7))
    found = payloads(bytes(data))
    assert not wal.is_whole(bytes(data))
    assert [payload for payload in given_ if payload in found] == found or len(found) < len(given_)


def test_a_record_whose_length_is_right_costs_no_neighbours() -> None:
    given_ = [b"%04d" % number for number in range(100)]
    data = bytearray(wal.encode(given_))
    data[data.index(b"0050") + 1] ^= 1
    assert payloads(bytes(data)) == given_[:50] + given_[51:]


@given(st.binary(max_size=70_000))
def test_whatever_the_bytes_are_walking_them_ends(data: bytes) -> None:
    assert payloads(data) == []


@given(PAYLOADS, st.integers(0, 200_000))
def test_a_log_that_was_cut_has_the_records_before_the_cut(given_: list[bytes], size: int) -> None:
    found = payloads(wal.encode(given_)[:size])
    assert found == given_[: len(found)]


@given(PAYLOADS, st.integers(0, 200_000), st.integers(0, 300))
def test_what_a_crash_leaves_is_torn_at_most(given_: list[bytes], size: int, zeros: int) -> None:
    data = wal.encode(given_)
    assert wal.is_torn_at_most(data[:size])
    assert wal.is_torn_at_most(data + bytes(zeros))


def test_garbage_behind_a_log_or_a_bad_record_within_it_is_more_than_torn() -> None:
    data = wal.encode([b"one", b"two", b"three"])
    assert not wal.is_torn_at_most(data + b"garbage, and more of it")
    assert not wal.is_torn_at_most(data + data[4:])
    for place in range(len(data) - len(b"three") - wal.HEAD.size):
        if place % 10 not in (4, 5):  # a length that points beyond the end looks like that of a torn record
            assert not wal.is_torn_at_most(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]), place


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300))))
def test_the_rows_of_a_write_are_read_back(pairs: list[tuple[bytes, bytes]]) -> None:
    payload = wal.WRITE.pack(7, len(pairs)) + b"".join(wal.put(key, value) for key, value in pairs)
    assert wal.rows_in(payload) == pairs
    assert wal.rows_in(payload + b"\x0f") is None
    if pairs:
        assert wal.rows_in(payload[:-1]) is None, "the last value is cut off"


def test_a_write_with_anything_but_puts_and_deletes_is_not_read_as_rows() -> None:
    put = wal.put(b"key", b"value")
    assert wal.rows_in(wal.WRITE.pack(7, 1) + put) == [(b"key", b"value")]
    merge = bytes((2,)) + put[1:]  # laid out alike, and something else
    assert wal.rows_in(wal.WRITE.pack(7, 1) + merge) is None
    assert wal.rows_in(wal.WRITE.pack(7, 2) + put) is None, "one is missing"


def part(kind: int, payload: bytes) -> bytes:
    """A part whose checksum is right, whatever its kind."""
    crc = checksum(bytes((kind,)) + payload)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFF_FFFF
    return wal.HEAD.pack(masked, len(payload), kind) + payload


@pytest.mark.parametrize("kind", [0, 5, 255])
def test_a_part_of_a_kind_that_is_none_is_bad_though_its_checksum_is_right(kind: int) -> None:
    assert payloads(part(wal.WHOLE, b"one")) == [b"one"]
    data = part(kind, b"one") + part(wal.WHOLE, b"two")
    assert payloads(data) == [b"two"]
    assert not wal.is_whole(data)


def test_a_part_that_would_leave_its_block_is_bad_though_its_checksum_is_right() -> None:
    fits = b"x" * (wal.BLOCK_BYTES - 3 * wal.HEAD.size)
    data = part(wal.WHOLE, fits) + part(wal.WHOLE, b"y" * 2 * wal.HEAD.size)
    assert payloads(data) == [fits]
    assert not wal.is_whole(data)


@pytest.mark.parametrize("left", range(wal.HEAD.size + 2))
def test_a_record_begins_in_the_next_block_where_its_head_does_not_fit(left: int) -> None:
    given_ = [b"x" * (wal.BLOCK_BYTES - wal.HEAD.size - left), b"y"]
    data = wal.encode(given_)
    assert payloads(data) == given_
    assert wal.is_whole(data)
