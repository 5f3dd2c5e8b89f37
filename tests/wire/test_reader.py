"""Frames: whole, split anywhere, cut, flipped, forged; and how much is held and done for them."""

from __future__ import annotations

import gc
import struct
import sys
import traceback
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError, Malformed, TooLarge
from headwater.wire.frame import FIXED_BYTES, HEADER, KNOWN, Frame, Kind, pack, pack_head
from headwater.wire.reader import LARGE_BYTES, PIECE_BYTES_MIN, PIECED_BYTES_MIN, FrameReader

LIMIT = 4096
KINDS = st.sampled_from(Kind)
U32 = st.integers(0, 2**32 - 1)
FRAMES = st.builds(
    lambda kind, flags, id, payload: Frame(int(kind), flags, id, payload),
    KINDS,
    st.integers(0, 255),
    U32,
    st.binary(max_size=60),
)
NO_FRAMES = st.sampled_from(
    [
        bytes(12),  # a length of 0
        struct.pack("<I", 7) + bytes(8),
        struct.pack("<I", LIMIT) + bytes(8),
        struct.pack("<I", 2**32 - 1) + bytes(8),
        HEADER.pack(FIXED_BYTES, 0, 0, 0, 0),
        HEADER.pack(FIXED_BYTES, 255, 0, 0, 0),
        HEADER.pack(FIXED_BYTES, Kind.PING, 0, 1, 0),
        HEADER.pack(FIXED_BYTES, Kind.PING, 0, 0xFFFF, 0),
    ]
)


def packed(frame: Frame) -> bytes:
    return pack(frame.kind, frame.id, frame.payload, frame.flags)


def outcome(pieces: Sequence[bytes], limit: int = LIMIT) -> tuple[list[Frame], str]:
    """Every frame that comes of these bytes, and the error after them."""
    reader = FrameReader(limit)
    found: list[Frame] = []
    try:
        for piece in pieces:
            found += reader.feed(piece)
        if reader.error is not None:
            raise reader.error
    except (Malformed, TooLarge) as error:
        return found, str(error)
    return found, ""


def cut_at(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place <= len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(FRAMES)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert outcome([packed(frame)]) == ([frame], "")
    assert pack_head(frame.kind, frame.id, len(frame.payload), frame.flags) + frame.payload == packed(frame)


def test_frames_split_at_every_byte_come_out_the_same() -> None:
    frames = [Frame(Kind.PING, 0, 0, b""), Frame(Kind.PUBLISH, 1, 2**32 - 1, b"x" * 30), Frame(Kind.ACK, 0, 7, b"y")]
    data = b"".join(map(packed, frames))
    for place in range(len(data) + 1):
        assert outcome([data[:place], data[place:]]) == (frames, "")
    assert outcome([data[at : at + 1] for at in range(len(data))]) == (frames, "")


@given(st.lists(FRAMES, max_size=5), NO_FRAMES | st.just(b""), st.lists(st.integers(0, 400), max_size=8))
@example([Frame(Kind.PING, 0, 0, b"")], bytes(12), [])
@example([], HEADER.pack(FIXED_BYTES, 255, 0, 0, 0), [4, 5, 11])
def test_frames_and_the_error_after_them_do_not_depend_on_how_bytes_were_split(
    frames: list[Frame], bad: bytes, places: list[int]
) -> None:
    data = b"".join(map(packed, frames)) + bad
    whole = outcome([data])
    assert whole[0] == frames
    assert bool(whole[1]) == bool(bad)
    assert outcome(cut_at(data, places)) == whole
    assert outcome([data[at : at + 1] for at in range(len(data))]) == whole


LENGTHS = st.sampled_from([0, 30, LARGE_BYTES - 13, LARGE_BYTES - 12, LARGE_BYTES, 2 * LARGE_BYTES, 40_000])
LARGE_LIMIT = 50_000


@given(
    st.lists(LENGTHS, max_size=8),
    st.sampled_from([b"", bytes(12), HEADER.pack(2 * LARGE_BYTES, 255, 0, 0, 0), HEADER.pack(LARGE_LIMIT, 1, 0, 0, 0)]),
    st.lists(st.integers(0, 300_000), max_size=8),
)
@example([LARGE_BYTES, 30, LARGE_BYTES], b"", [5, LARGE_BYTES, LARGE_BYTES + 20])
def test_large_frames_come_out_the_same_among_small_ones_however_bytes_were_split(
    lengths: list[int], bad: bytes, places: list[int]
) -> None:
    frames = [Frame(Kind.PUBLISH, 0, place, bytes([place]) * length) for place, length in enumerate(lengths)]
    data = b"".join(map(packed, frames)) + bad
    for pieces in ([data], cut_at(data, places), cut_at(data, range(0, len(data), 9973))):
        found, error = outcome(pieces, LARGE_LIMIT)
        assert found == frames
        assert bool(error) == bool(bad)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_garbage_gives_frames_an_error_of_the_tree_or_a_wait_for_more(data: bytes, places: list[int]) -> None:
    assert outcome([data]) == outcome(cut_at(data, places))


def test_every_truncation_waits_for_more() -> None:
    data = pack(Kind.PUBLISH, 3, b"payload")
    for end in range(len(data)):
        reader = FrameReader(LIMIT)
        assert reader.feed(data[:end]) == []
        assert reader.waits == (end > 0)
        assert reader.error is None


def test_every_flipped_bit_gives_another_frame_an_error_or_a_wait() -> None:
    data = pack(Kind.PUBLISH, 3, b"payload", 1)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found, error = outcome([bytes(flipped)])
        assert error or found != [Frame(Kind.PUBLISH, 1, 3, b"payload")]
        assert all(frame.kind in KNOWN for frame in found)


@pytest.mark.parametrize("kind", sorted(set(range(256)) - KNOWN))
def test_an_unknown_kind_is_refused_before_its_payload_is_here(kind: int) -> None:
    with pytest.raises(Malformed):
        FrameReader(LIMIT).feed(HEADER.pack(FIXED_BYTES + 1000, kind, 0, 0, 0))


def test_a_length_is_refused_with_its_fourth_byte() -> None:
    for length, error in ((FIXED_BYTES - 1, Malformed), (LIMIT - 3, TooLarge), (2**32 - 1, TooLarge)):
        reader = FrameReader(LIMIT)
        data = struct.pack("<I", length)
        assert reader.feed(data[:3]) == []
        with pytest.raises(error):
            reader.feed(data[3:])
    assert FrameReader(LIMIT).feed(struct.pack("<I", LIMIT - 4)) == []


def test_a_frame_of_exactly_the_limit_is_taken_and_a_limit_may_be_raised() -> None:
    assert len(FrameReader(LIMIT).feed(pack(Kind.PUBLISH, 0, bytes(LIMIT - 12)))) == 1
    reader = FrameReader(LIMIT)
    reader.bytes_max = 2 * LIMIT
    assert len(reader.feed(pack(Kind.PUBLISH, 0, bytes(LIMIT)))) == 1


def test_frames_before_bad_bytes_are_handed_out_and_nothing_after_them() -> None:
    reader = FrameReader(LIMIT)
    assert [frame.kind for frame in reader.feed(pack(Kind.PING) + bytes(12) + pack(Kind.PONG))] == [Kind.PING]
    assert isinstance(reader.error, Malformed)
    assert not reader.waits
    for received in (b"", pack(Kind.PONG), b"x"):
        with pytest.raises(Malformed):
            reader.feed(received)


def test_an_error_keeps_nothing_alive_however_often_it_is_raised() -> None:
    reader = FrameReader(LIMIT)
    depths = []
    for _ in range(5):
        with pytest.raises(Malformed) as caught:
            reader.feed(bytes(12))
        depths.append(len(traceback.extract_tb(caught.tb)))
    assert reader.error is not None
    assert reader.error.__traceback__ is None
    assert max(depths) == depths[0]


def test_received_bytes_may_be_a_view_of_a_buffer_that_is_used_again() -> None:
    buffer = bytearray(pack(Kind.PUBLISH, 1, b"abc") + pack(Kind.PUBLISH, 2, b"def")[:13])
    reader = FrameReader(LIMIT)
    (first,) = reader.feed(memoryview(buffer))
    buffer[:] = b"\xff" * len(buffer)
    (second,) = reader.feed(b"ef")
    assert (first.payload, second.payload) == (b"abc", b"def")
    buffer.append(0)  # nobody holds on to it


def test_what_is_held_for_a_partial_frame_is_what_was_received() -> None:
    limit = 64 << 20
    reader = FrameReader(limit)
    gc.collect()
    tracemalloc.start()
    try:
        reader.feed(HEADER.pack(limit - 4, Kind.PUBLISH, 0, 0, 0))
        held, _ = tracemalloc.get_traced_memory()
        assert held < 4096  # the announced length costs nothing
        for _ in range(64):
            reader.feed(bytes(16 << 10))
        held, _ = tracemalloc.get_traced_memory()
        assert held < 1.3 * (1 << 20) + 4096
    finally:
        tracemalloc.stop()


def test_many_readers_with_a_byte_each_hold_little() -> None:
    readers = [FrameReader(LIMIT) for _ in range(1000)]
    for reader in readers:
        reader.feed(b"\x10")
    assert all(reader.waits for reader in readers)
    assert sum(sys.getsizeof(reader.partial) for reader in readers) < 100 * len(readers)


def test_a_reader_looks_at_a_dripping_frame_only_when_it_could_say_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    split = FrameReader._split

    def counted(self: FrameReader, data: bytes, found: list[Frame]) -> None:
        nonlocal looks
        looks += 1
        split(self, data, found)

    monkeypatch.setattr(FrameReader, "_split", counted)
    data = pack(Kind.PUBLISH, 1, bytes(3000))
    reader = FrameReader(LIMIT)
    found = [frame for at in range(len(data)) for frame in reader.feed(data[at : at + 1])]
    assert len(found) == 1
    assert looks == 4  # its first byte, its length, its header, its end


LONG = bytes(range(256)) * (PIECED_BYTES_MIN // 256 + 3)


@pytest.mark.parametrize("size", [1000, PIECE_BYTES_MIN - 1, PIECE_BYTES_MIN, 100_000, 300_000, len(LONG) + 100])
@pytest.mark.parametrize("kind", [Kind.PUBLISH, Kind.REQUEST])
def test_long_publishes_are_left_in_pieces_and_say_the_same(kind: Kind, size: int) -> None:
    frames = [Frame(int(kind), 1, 7, LONG), Frame(int(Kind.PING), 0, 0, b"between"), Frame(int(kind), 0, 8, LONG)]
    data = b"".join(map(packed, frames))
    reader = FrameReader(1 << 20)
    reader.is_pieced = True
    found: list[Frame] = []
    for at in range(0, len(data), size):
        found += reader.feed(memoryview(data)[at : at + size])
    whole = [Frame(one.kind, one.flags, one.id, one.payload + b"".join(one.pieces)) for one in found]
    assert whole == frames
    assert not reader.waits
    assert any(one.pieces for one in found) == (kind == Kind.PUBLISH and size < len(LONG))
    assert all(len(piece) >= PIECE_BYTES_MIN for one in found for piece in one.pieces[:-2])


def test_what_is_held_of_a_long_publish_is_what_was_received_though_it_drips() -> None:
    data = packed(Frame(int(Kind.PUBLISH), 0, 1, LONG))
    reader = FrameReader(1 << 20)
    reader.is_pieced = True
    for at in range(0, len(data) - 1, 50):
        assert not reader.feed(data[at : min(at + 50, len(data) - 1)])
        assert reader.waiting_bytes == min(at + 50, len(data) - 1)
    assert len(reader._pieces) <= len(data) // PIECE_BYTES_MIN
    reader.let_go()
    assert not reader._pieces


def test_errors_of_frames_are_of_the_tree() -> None:
    assert issubclass(Malformed, HeadwaterError)
    assert issubclass(TooLarge, HeadwaterError)
