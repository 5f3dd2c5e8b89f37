"""The batch: its header to the byte, and every truncation and bit flip of it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.store.batch import (
    HEADER,
    PRODUCER,
    ZSTD,
    BadBatch,
    Batch,
    Header,
    Seed,
    aligned,
    checksum,
    open_body,
    open_columns,
    read_batch,
    read_header,
    seal_header,
    seed_of,
    stored_body,
)
from headwater.store.body import Body, encode_body
from headwater.store.compression import compress

TIME_US = 1_700_000_000_000_001
SECRET = bytes.fromhex("0123456789abcdef")
SEED = seed_of(SECRET)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=24)
ROOTS = st.sampled_from(["", "a", "home", "küche", "$delayed"]) | TEXT
PRODUCERS = st.none() | st.sampled_from(["", "importer", "größe"]) | TEXT
U64 = st.integers(0, 2**63)


def batch_of(
    body: bytes,
    count: int,
    root: str = "home",
    first_offset: int = 7,
    durable: int = 6,
    producer: str | None = None,
    sequence: int = 0,
    compression: str = "none",
) -> bytes:
    """A whole batch, up to where the next one starts."""
    stored, flags = stored_body(body, compression, 0)
    header = seal_header(
        SEED,
        root.encode(),
        first_offset,
        count,
        TIME_US,
        durable,
        len(stored),
        checksum(body),
        None if producer is None else producer.encode(),
        sequence,
        flags,
    )
    return (header + stored).ljust(aligned(len(header) + len(stored)), b"\0")


def resealed(data: bytes, change: Callable[[bytearray], None]) -> bytes:
    """A batch whose header was changed and has a right checksum again."""
    changed = bytearray(data)
    change(changed)
    (header_bytes,) = struct.unpack_from("<I", changed, 8)
    struct.pack_into("<I", changed, 4, google_crc32c.value(SECRET + changed[8:header_bytes]))
    return bytes(changed)


TWO = encode_body(["home/a", "home/b"], [b"21.5", b"x" * 20], TIME_US, keys=[b"k", None], retain=[True, False])
PLAIN = batch_of(TWO, 2)
PRODUCED = batch_of(TWO, 2, producer="importer", sequence=41)
SQUEEZED = batch_of(encode_body(["home/a"] * 20, [b"so much air " * 4] * 20, TIME_US), 20, compression="zstd")
BATCHES = pytest.mark.parametrize("data", [PLAIN, PRODUCED, SQUEEZED], ids=["plain", "produced", "zstd"])


def content(batch: Batch) -> tuple[Header, bytes]:
    batch.body.messages(batch.first_offset)
    return batch.header, batch.data


# What goes in comes out


@given(ROOTS, U64, st.integers(1, 5), st.integers(-(2**62), 2**62), U64, PRODUCERS, U64, st.binary(max_size=40))
@settings(max_examples=60)
def test_a_batch_comes_out_as_it_went_in(
    root: str,
    first_offset: int,
    count: int,
    time_us: int,
    durable: int,
    producer: str | None,
    sequence: int,
    payload: bytes,
) -> None:
    body = encode_body([root + "/x"] * count, [payload] * count, TIME_US)
    head = seal_header(
        SEED,
        root.encode(),
        first_offset,
        count,
        time_us,
        durable,
        len(body),
        checksum(body),
        None if producer is None else producer.encode(),
        sequence,
    )
    batch = read_batch(SEED, head + body)
    assert batch is not None
    flags = 0 if producer is None else PRODUCER
    wanted = Header(
        root, first_offset, count, time_us, durable, producer, sequence, flags, len(head), len(body), checksum(body)
    )
    assert batch.header == read_header(SEED, head) == wanted
    assert batch.data == body
    assert (batch.first_offset, batch.last_offset) == (first_offset, first_offset + count - 1)
    assert [m.payload for m in batch.body.messages(first_offset)] == [payload] * count
    assert wanted.bytes == aligned(len(head) + len(body))


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_a_batch_is_found_at_its_place_among_others(before: bytes, after: bytes) -> None:
    batch = read_batch(SEED, before + PLAIN + after, len(before))
    assert batch is not None
    assert content(batch)[1] == TWO


@given(TEXT, st.none() | TEXT)
def test_a_header_is_a_multiple_of_eight_bytes_long(root: str, producer: str | None) -> None:
    name = None if producer is None else producer.encode()
    head = seal_header(SEED, root.encode(), 1, 1, 0, 0, 0, 0, name)
    assert len(head) % 8 == 0
    assert len(head) - 64 - len(root.encode()) - len(name or b"") in range(8)


@pytest.mark.parametrize("length", range(18))
def test_aligned_is_the_next_multiple_of_eight(length: int) -> None:
    assert aligned(length) % 8 == 0
    assert length <= aligned(length) < length + 8


def test_a_producer_without_a_name_is_not_no_producer() -> None:
    some, none = (read_header(SEED, seal_header(SEED, b"a", 1, 1, 0, 0, 0, 0, name, 3)) for name in (b"", None))
    assert some is not None
    assert none is not None
    assert some.producer == ""
    assert none.producer is None


def test_whether_a_batch_retains_is_told_without_its_columns() -> None:
    retains = read_batch(SEED, PLAIN)
    assert retains is not None
    assert retains.has_retained
    body = encode_body(["a"], [b""], TIME_US, retain=[False])
    plain = read_batch(SEED, batch_of(body, 1))
    assert plain is not None
    assert not plain.has_retained


# The layout of docs/reference/storage.md, to the byte

HEADER_HEX = (
    "48574231"  # magic "HWB1"
    "{crc}"  # header crc: of the folder's seed and everything after it
    "50000000"  # header bytes: 64 + 4 + 8, padded to 80
    "98000000"  # body bytes: 152
    "0700000000000000"  # first offset
    "01401e18240a0600"  # append time, µs
    "0600000000000000"  # durable watermark
    "2900000000000000"  # sequence
    "02000000"  # count
    "{body_crc}"  # body crc
    "0200"  # flags: producer and sequence are set
    "0400"  # bytes of the root's name
    "0800"  # bytes of the producer's name
    "0000"
    "686f6d65"  # home
    "696d706f72746572"  # importer
    "00000000"
)


def test_a_header_is_laid_out_as_documented() -> None:
    header = PRODUCED[:80]
    crcs = {
        "crc": struct.pack("<I", google_crc32c.value(SECRET + header[8:])).hex(),
        "body_crc": struct.pack("<I", google_crc32c.value(TWO)).hex(),
    }
    assert header.hex() == HEADER_HEX.format(**crcs)
    assert PRODUCED[80 : 80 + len(TWO)] == TWO
    assert HEADER.size == 64


def test_each_field_is_found_where_the_drawing_says() -> None:
    assert PRODUCED[:4] == b"HWB1"
    assert struct.unpack_from("<II", PRODUCED, 8) == (80, len(TWO))
    assert struct.unpack_from("<QqQQ", PRODUCED, 16) == (7, TIME_US, 6, 41)
    assert struct.unpack_from("<II", PRODUCED, 48) == (2, google_crc32c.value(TWO))
    assert struct.unpack_from("<HHHH", PRODUCED, 56) == (2, 4, 8, 0)
    assert PRODUCED[64:76] == b"homeimporter"
    assert struct.unpack_from("<H", SQUEEZED, 56) == (ZSTD,)


STORED_HEX = (
    "485742318070819b48000000900000000c0000000000000001401e18240a06000b000000000000000500000000000000"
    "01000000f6939e4b0200040003000000686f6d657072640001000000010000000f000000000000000000000006000000"
    "686f6d652f740000000000000000000000401e18240a06000a401e18240a060001000000000000000100000000000000"
    "00000000010000006b0000000000000000000000010000000000000004000000756e6974000000000000000003000000"
    "c2b0430000000000000000000400000032312e3500000000"
)


def test_a_batch_stored_by_an_earlier_version_is_read() -> None:
    """A folder of format 1 must be readable for as long as the format is 1: these bytes never change."""
    batch = read_batch(SEED, bytes.fromhex(STORED_HEX))
    assert batch is not None
    (message,) = batch.body.messages(batch.first_offset)
    assert (batch.header.root, batch.first_offset, batch.header.durable) == ("home", 12, 11)
    assert (batch.header.producer, batch.header.sequence, batch.header.time_us) == ("prd", 5, TIME_US)
    assert (message.topic, message.payload, message.time_us) == ("home/t", b"21.5", TIME_US - 1)
    assert (message.key, message.header_pairs) == (b"k", (("unit", "°C"),))
    assert list(batch.body.expiries or ()) == [TIME_US + 9]
    assert batch.has_retained


# Truncated


@BATCHES
def test_a_batch_cut_anywhere_needs_more_or_is_bad_or_is_whole(data: bytes) -> None:
    batch = read_batch(SEED, data)
    assert batch is not None
    end = batch.header.header_bytes + batch.header.body_bytes
    for length in range(len(data)):
        found = read_batch(SEED, data[:length])
        assert (found is None) == (length < end), length
        assert found is None or content(found) == content(batch)


@BATCHES
def test_a_header_cut_anywhere_needs_more(data: bytes) -> None:
    header = read_header(SEED, data)
    assert header is not None
    for length in range(header.header_bytes):
        assert read_header(SEED, data[:length]) is None
    assert read_header(SEED, data[: header.header_bytes]) == header


@pytest.mark.parametrize("data", [b"X", b"HX", b"HWB0", b"HWB2" + bytes(60), bytes(64), b"\0", bytes(3)])
def test_what_cannot_become_a_batch_is_bad_at_once(data: bytes) -> None:
    with pytest.raises(BadBatch):
        read_header(SEED, data)
    with pytest.raises(BadBatch):
        read_batch(SEED, data)


# Sealed with another seed


@given(st.integers(0, 2**32 - 1))
def test_a_header_is_believed_with_its_own_seed_alone(seed: int) -> None:
    head = seal_header(Seed(seed), b"home", 7, 2, TIME_US, 6, len(TWO), checksum(TWO))
    assert read_header(Seed(seed), head) is not None
    for other in (SEED, Seed(0), Seed(seed ^ 1)):
        if other != seed:
            with pytest.raises(BadBatch):
                read_header(other, head)


def test_the_body_is_stored_as_its_publisher_made_it_whatever_the_seed() -> None:
    one, other = (seal_header(Seed(seed), b"home", 7, 2, TIME_US, 6, len(TWO), checksum(TWO)) for seed in (1, 2))
    assert one[4:8] != other[4:8]
    assert (one[:4], one[8:]) == (other[:4], other[8:])


# Damaged


@BATCHES
def test_a_batch_with_a_bit_turned_over_is_bad_or_needs_more_or_is_equal(data: bytes) -> None:
    batch = read_batch(SEED, data)
    assert batch is not None
    end = batch.header.header_bytes + batch.header.body_bytes
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = read_batch(SEED, bytes(damaged))
        except BadBatch:
            continue
        assert found is None or content(found) == content(batch)
        assert found is None or bit // 8 >= end or data is SQUEEZED, f"bit {bit} is covered by no checksum"


@given(st.binary(max_size=400), st.integers(0, 8))
@settings(max_examples=200)
def test_random_bytes_are_no_batch(data: bytes, at: int) -> None:
    for bytes_ in (data, b"HWB1" + data, PLAIN[:64] + data):
        try:
            found = read_batch(SEED, bytes_, at if bytes_ is data else 0)
        except BadBatch:
            continue
        assert found is None or content(found) == (read_header(SEED, PLAIN), TWO)


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.sampled_from([0, ZSTD]))
@settings(max_examples=200)
def test_a_body_that_is_no_columns_but_has_a_right_checksum_is_bad(data: bytes, count: int, flags: int) -> None:
    stored = compress(data) if flags else data
    head = seal_header(SEED, b"a", 1, count, 0, 0, len(stored), checksum(data), flags=flags)
    batch = read_batch(SEED, head + stored)
    assert batch is not None
    with pytest.raises(BadBatch):
        _ = batch.body


@given(st.binary(max_size=100))
def test_a_body_that_does_not_decompress_is_bad(data: bytes) -> None:
    head = seal_header(SEED, b"a", 1, 1, 0, 0, len(data), checksum(data), flags=ZSTD)
    with pytest.raises(BadBatch):
        read_batch(SEED, head + data)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: struct.pack_into("<I", data, 48, 3), "another count than the body's"),
        (lambda data: struct.pack_into("<I", data, 52, 1), "another body checksum"),
        (lambda data: struct.pack_into("<H", data, 56, ZSTD), "a body that is no zstd frame"),
        (lambda data: struct.pack_into("<I", data, 12, len(TWO) - 8), "a shorter body"),
        (lambda data: data.__setitem__(64, 0xFF), "a root that is not UTF-8"),
        (lambda data: data.__setitem__(70, 0xFF), "a producer that is not UTF-8"),
    ],
)
def test_a_header_with_a_right_checksum_that_is_wrong_all_the_same_is_bad(
    change: Callable[[bytearray], None], what: str
) -> None:
    with pytest.raises(BadBatch):
        content(read_batch(SEED, resealed(PRODUCED, change)) or pytest.fail(what))


@pytest.mark.parametrize("names", [(4, 9), (5, 8), (0, 0), (65535, 65535), (4, 17)])
def test_names_that_do_not_fill_the_header_are_bad(names: tuple[int, int]) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into("<HH", data, 58, *names)

    changed = bytearray(PRODUCED)
    change(changed)
    with pytest.raises(BadBatch):
        read_header(SEED, bytes(changed))
    if aligned(64 + sum(names)) != 80:
        with pytest.raises(BadBatch):
            read_header(SEED, resealed(PRODUCED, change))


def test_columns_are_checked_against_the_header() -> None:
    header = read_header(SEED, PLAIN)
    assert header is not None
    assert isinstance(open_columns(header, TWO), Body)
    with pytest.raises(BadBatch):
        open_columns(header, encode_body(["a"], [b""], 0))
    with pytest.raises(BadBatch):
        open_columns(header, b"")


def test_a_stored_body_is_checked_against_the_header() -> None:
    header = read_header(SEED, PLAIN)
    assert header is not None
    assert open_body(header, TWO) == TWO
    with pytest.raises(BadBatch):
        open_body(header, TWO[:-1])


# Compression


def test_a_body_that_shrinks_is_stored_as_a_zstd_frame_and_its_checksum_is_of_the_whole() -> None:
    batch = read_batch(SEED, SQUEEZED)
    assert batch is not None
    assert batch.header.flags & ZSTD
    assert batch.header.body_bytes < len(batch.data)
    assert batch.header.body_crc == checksum(batch.data)


def test_a_body_that_does_not_shrink_is_stored_as_it_is() -> None:
    assert stored_body(TWO[:8], "zstd", 0) == (TWO[:8], 0)


def test_a_small_body_is_not_compressed() -> None:
    air = bytes(1000)
    assert stored_body(air, "zstd", 1001) == (air, 0)
    assert stored_body(air, "zstd", 1000)[1] == ZSTD
    assert stored_body(air, "none", 0) == (air, 0)
