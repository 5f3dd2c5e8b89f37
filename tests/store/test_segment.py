"""Segments: the index against a list, and walking over batches, other bytes and damage."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store.batch import HEADER_BYTES_MAX, Seed, aligned, checksum, seal_header
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles, File
from headwater.store.memory_files import MemoryFiles
from headwater.store.segment import (
    ENTRY_BYTES,
    SCAN_BYTES,
    Index,
    Segment,
    bases,
    find_next,
    header_at,
    load_index,
    store_index,
    walk,
    whole_batches,
)

FILES = DiskFiles()
SEED = Seed(0x5EED)


def batch(first_offset: int, count: int = 1, root: str = "home", payload: bytes = b"21.5") -> bytes:
    body = encode_body([f"{root}/t"] * count, [payload] * count, 1000)
    head = seal_header(SEED, root.encode(), first_offset, count, 1000 + first_offset, 0, len(body), checksum(body))
    return (head + body).ljust(aligned(len(head) + len(body)), b"\0")


def spoiled(data: bytes, place: int = -10) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place:][1:]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def file_with(path: str, *pieces: bytes) -> File:
    FILES.write(path, b"".join(pieces))
    return FILES.open(path)


def offsets_of(file: File, position: int = 0, root: str | None = "home") -> list[int]:
    return [header.first_offset for _, header, _ in whole_batches(SEED, file, position, root)]


# The index

ENTRIES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 3)), min_size=0, max_size=20
)  # how far the next batch's offset, position (in units of 8) and time are from the last one's


def index_of(steps: Sequence[tuple[int, int, int]]) -> tuple[Index, list[tuple[int, int, int]]]:
    index, entries = Index(), []
    offset, position, time_us = 100, 0, 5000
    for step_offset, step_position, step_time in steps:
        entries.append((offset, position, time_us))
        index.add(offset, position, time_us)
        offset, position, time_us = offset + step_offset, position + 8 * step_position, time_us + step_time
    return index, entries


def entries_of(index: Index) -> list[tuple[int, int, int]]:
    return list(zip(index.offsets, index.positions, index.times, strict=True))


@given(ENTRIES, st.integers(90, 220))
def test_locate_finds_the_last_batch_that_starts_at_or_before_an_offset(
    steps: list[tuple[int, int, int]], offset: int
) -> None:
    index, entries = index_of(steps)
    assert index.locate(offset) == sum(entry[0] <= offset for entry in entries) - 1


@given(ENTRIES, st.data())
def test_first_at_finds_the_first_batch_appended_at_or_after_a_time(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    index, entries = index_of(steps)
    time_us = data.draw(st.sampled_from([entry[2] for entry in entries] or [5000])) + data.draw(st.integers(-1, 1))
    assert index.first_at(time_us) == next((entry[0] for entry in entries if entry[2] >= time_us), None)


@given(ENTRIES, st.integers(0, 1500))
def test_cut_forgets_the_batches_from_a_position_on(steps: list[tuple[int, int, int]], position: int) -> None:
    index, entries = index_of(steps)
    index.stored = len(entries)
    index.cut(position)
    kept = entries[: bisect_left([entry[1] for entry in entries], position)]
    assert entries_of(index) == kept
    assert index.stored == len(kept)


@given(ENTRIES)
def test_an_index_is_read_as_it_was_packed(steps: list[tuple[int, int, int]]) -> None:
    index, entries = index_of(steps)
    data = index.pack()
    assert len(data) == ENTRY_BYTES * len(entries)
    back = Index.unpack(data)
    assert entries_of(back) == entries
    assert back.stored == len(entries)


def test_an_entry_is_laid_out_as_documented() -> None:
    index = Index()
    index.add(48211, 4096, 1_700_000_000_000_001)
    assert index.pack() == b"".join(number.to_bytes(8, "little") for number in (48211, 4096, 1_700_000_000_000_001))


def test_a_time_before_1970_is_kept() -> None:
    index = Index()
    index.add(1, 0, -5)
    assert entries_of(Index.unpack(index.pack())) == [(1, 0, -5)]


@given(ENTRIES, st.data())
def test_only_what_is_not_in_the_file_is_packed(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    index, entries = index_of(steps)
    whole = index.pack()
    index.stored = data.draw(st.integers(0, len(entries)))
    assert index.pack() == whole[ENTRY_BYTES * index.stored :]


@given(ENTRIES, st.data())
def test_an_entry_that_cannot_be_right_is_left_out_with_all_after_it(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    index, entries = index_of([*steps, (1, 1, 0)])
    place = data.draw(st.integers(0, len(entries) - 1))
    harm = data.draw(st.sampled_from(("offset", "position", "unaligned", "time", "below", "beyond")))
    _, position, time_us = entries[place]
    match harm:
        case "offset":
            index.offsets[place] = 0
        case "position":
            index.positions[place] = 1 << 63 | position
        case "unaligned":
            index.positions[place] = position + 4
        case "time":
            index.times[place] = -(1 << 63) if place else time_us
        case "below":
            index.offsets[place] = 1 << 63
        case "beyond":
            index.positions[place] = 1 << 20
    is_right = harm == "time" and place == 0
    assert index.keep_possible(100, 1000, 1 << 20) is is_right
    assert entries_of(index) == (entries if is_right else entries[:place])
    assert index.stored == 0  # so that the whole file is written again


@given(st.binary(max_size=240))
def test_of_any_bytes_only_what_leads_into_the_log_is_kept(data: bytes) -> None:
    index = Index.unpack(data)
    index.keep_possible(5, 1000, 4096)
    for column in (index.offsets, index.positions):
        assert list(column) == sorted(set(column))
    assert list(index.times) == sorted(index.times)
    assert all(5 <= offset < 1000 for offset in index.offsets)
    assert all(position < 4096 and position % 8 == 0 for position in index.positions)


@given(ENTRIES, st.data())
def test_an_index_has_all_of_one_that_lacks_some_of_its_entries_and_of_no_other(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    index, entries = index_of([*steps, (1, 1, 0)])
    some = Index()
    for entry in entries:
        if data.draw(st.booleans()):
            some.add(*entry)
    assert index.has_all_of(some)
    assert some.has_all_of(index) == (len(some) == len(index))
    column = data.draw(st.sampled_from((0, 1, 2)))
    wrong, _ = index_of([*steps, (1, 1, 0)])
    (wrong.offsets, wrong.positions, wrong.times)[column][len(wrong) - 1] += 1
    assert not index.has_all_of(wrong)


@given(ENTRIES)
def test_an_index_that_can_be_right_is_kept_whole(steps: list[tuple[int, int, int]]) -> None:
    index, entries = index_of(steps)
    index.stored = len(index)
    assert index.keep_possible(100, 1 << 64, 1 << 40)
    assert entries_of(index) == entries
    assert index.stored == len(entries)


# Index files


def test_an_index_goes_to_its_file_and_comes_back(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path), 1)
    segment.index = Index()
    segment.index.add(1, 0, 10)
    store_index(FILES, segment, sync=True)
    segment.index.add(4, 96, 11)
    store_index(FILES, segment, sync=False)
    segment.end = 200
    index, is_right = load_index(FILES, segment, 1 << 64)
    assert (entries_of(index), is_right) == ([(1, 0, 10), (4, 96, 11)], True)
    assert segment.index.stored == 2
    assert os.path.getsize(segment.index_path) == 2 * ENTRY_BYTES


def test_an_index_file_that_is_longer_is_cut(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path), 1)
    FILES.write(segment.index_path, bytes(10 * ENTRY_BYTES))
    segment.index = Index()
    segment.index.add(1, 0, 10)
    store_index(FILES, segment, sync=False)
    assert os.path.getsize(segment.index_path) == ENTRY_BYTES


def test_a_missing_index_file_is_an_empty_index(tmp_path: Path) -> None:
    index, is_right = load_index(FILES, Segment(str(tmp_path), 1), 1 << 64)
    assert (len(index), is_right) == (0, True)


def test_an_index_file_that_the_disk_cannot_read_is_an_empty_index(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path), 1)
    os.mkdir(segment.index_path)
    index, _ = load_index(FILES, segment, 1 << 64)
    assert len(index) == 0


def test_an_index_that_did_not_change_is_not_written(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path), 1)
    segment.index = Index()
    store_index(FILES, segment, sync=True)
    segment.index = None
    store_index(FILES, segment, sync=True)
    assert not os.path.exists(segment.index_path)


def test_a_segment_is_named_by_its_first_offset(tmp_path: Path) -> None:
    segment = Segment("data/streams/7-home", 48211)
    assert segment.log_path == "data/streams/7-home/00000000000000048211.log"
    assert segment.index_path == "data/streams/7-home/00000000000000048211.idx"


def test_segments_are_found_in_ascending_order_among_other_files(tmp_path: Path) -> None:
    for name in ["00000000000000048211.log", "00000000000000000001.log", "1.idx", "notes.log", "x", "9.log.tmp"]:
        (tmp_path / name).touch()
    assert bases(FILES, str(tmp_path)) == [1, 48211]
    assert bases(FILES, str(tmp_path / "missing")) == []


# Batches in a file


def test_a_header_is_read_at_its_place(path: str) -> None:
    first, second = batch(1), batch(2, 3)
    file = file_with(path, first, second)
    header = header_at(SEED, file, len(first))
    assert header is not None
    assert (header.first_offset, header.last_offset) == (2, 4)
    assert header_at(SEED, file, 8) is None
    assert header_at(SEED, file, len(first) + len(second)) is None


def test_a_header_with_very_long_names_is_read(path: str) -> None:
    body = encode_body(["a"], [b""], 0)
    head = seal_header(SEED, b"r" * 60_000, 1, 1, 0, 0, len(body), checksum(body), b"p" * 60_000, 3)
    assert len(head) <= HEADER_BYTES_MAX
    header = header_at(SEED, file_with(path, head, body), 0)
    assert header is not None
    assert header.producer == "p" * 60_000


def test_a_walk_goes_from_batch_to_batch_until_something_is_not_one(path: str) -> None:
    data = [batch(1), batch(2, 2), batch(4)]
    file = file_with(path, *data, bytes(4096))
    assert [(position, header.first_offset) for position, header, _ in walk(SEED, file, 0)] == [
        (0, 1),
        (len(data[0]), 2),
        (len(data[0]) + len(data[1]), 4),
    ]
    assert [header.first_offset for _, header, _ in walk(SEED, file, len(data[0]))] == [2, 4]
    assert list(walk(SEED, file, 8)) == []
    assert list(walk(SEED, file, 1 << 20)) == []


@pytest.mark.parametrize("missing", [1, 8, 40, 100])
def test_a_walk_stops_before_a_batch_that_the_file_ends_in(path: str, missing: int) -> None:
    last = batch(2)
    kept = last.rstrip(b"\0")[:-missing]
    assert [header.first_offset for _, header, _ in walk(SEED, file_with(path, batch(1), kept), 0)] == [1]


def test_a_walk_crosses_the_pieces_in_which_it_reads(path: str) -> None:
    large = batch(1, payload=bytes(SCAN_BYTES // 2 + 100))
    data = [large, batch(2), batch(3, payload=bytes(3 * SCAN_BYTES)), batch(4), batch(5)]
    assert [header.first_offset for _, header, _ in walk(SEED, file_with(path, *data), 0)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "before", [8, 64, SCAN_BYTES - 72, SCAN_BYTES - 64, SCAN_BYTES - 8, SCAN_BYTES, 2 * SCAN_BYTES]
)
def test_the_next_batch_is_found_behind_other_bytes(path: str, before: int) -> None:
    file = file_with(path, b"\xab" * before, batch(1))
    assert find_next(SEED, file, 0, "home") == before
    assert find_next(SEED, file, before - 7, "home") == before
    assert find_next(SEED, file, before + 8, "home") is None


def test_what_merely_looks_like_a_batch_is_passed_over(path: str) -> None:
    junk = b"HWB1" + bytes(60) + b"\0\0\0\0HWB1" + b"HWB1HWB1" + batch(9)[:32]
    file = file_with(path, junk.ljust(aligned(len(junk)), b"\0"), batch(1))
    assert find_next(SEED, file, 0, "home") == aligned(len(junk))


def test_a_batch_that_does_not_start_at_a_multiple_of_eight_is_none(path: str) -> None:
    assert find_next(SEED, file_with(path, b"\0\0\0\0", batch(1)), 0, None) is None


def test_batches_of_other_roots_are_passed_over(path: str) -> None:
    file = file_with(path, batch(1, root="hall"), batch(1), batch(2, root="hall"), batch(2))
    assert offsets_of(file) == [1, 2]
    assert find_next(SEED, file, 0, "home") == len(batch(1, root="hall"))
    assert [header.root for _, header, _ in whole_batches(SEED, file, 0, None)] == ["hall", "home", "hall", "home"]


def test_a_batch_with_a_wrong_body_is_passed_over(path: str) -> None:
    assert offsets_of(file_with(path, batch(1), spoiled(batch(2)), batch(3))) == [1, 3]


def test_a_batch_with_a_wrong_header_is_passed_over(path: str) -> None:
    assert offsets_of(file_with(path, batch(1), spoiled(batch(2), 20), batch(3))) == [1, 3]


def test_a_batch_in_the_payload_of_a_whole_one_is_not_found(path: str) -> None:
    inner = batch(77)
    body = encode_body(["home/t"], [inner], 1000)
    assert inner in body
    assert offsets_of(file_with(path, batch(1, payload=inner), batch(2))) == [1, 2]


def test_what_looks_like_a_batch_within_a_bad_one_whose_header_is_right_is_not_found(path: str) -> None:
    """Its length is known, so what stands in it is a payload, or older than it."""
    torn = batch(9, payload=bytes(1000))
    header = header_at(SEED, file_with(path, torn), 0)
    assert header is not None
    before = (batch(1) + batch(2)).ljust(header.body_bytes, b"\0")
    assert offsets_of(file_with(path, torn[: header.header_bytes], before, batch(3))) == [3]


def test_zeros_between_batches_are_passed_over(path: str) -> None:
    assert offsets_of(file_with(path, batch(1), bytes(SCAN_BYTES + 4096), batch(2))) == [1, 2]


def test_an_empty_file_has_no_batches(path: str) -> None:
    assert offsets_of(file_with(path)) == []


@given(st.lists(st.sampled_from(["whole", "body", "header", "zeros", "junk", "other"]), max_size=8))
def test_every_whole_batch_is_found_whatever_lies_between(kinds: list[str]) -> None:
    pieces, wanted = [], []
    for number, kind in enumerate(kinds, 1):
        if kind == "whole":
            wanted.append(number)
        pieces.append(
            {
                "whole": batch(number),
                "body": spoiled(batch(number)),
                "header": spoiled(batch(number), 40),
                "zeros": bytes(8 * number),
                "junk": b"HWB1\x01\x02\x03\x04" * number,
                "other": batch(number, root="hall"),
            }[kind]
        )
    assert offsets_of(in_memory(b"".join(pieces))) == wanted


def in_memory(data: bytes) -> File:
    """A file without a disk: hypothesis asks for very many."""
    files = MemoryFiles()
    files.write("log", data)
    return files.open("log")
