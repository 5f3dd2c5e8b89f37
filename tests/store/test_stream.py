"""A stream on real files: dense offsets, what readers see and when, rolling, trimming, and damage."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import headwater
from faults.faulty_files import FaultyFiles
from headwater import Outgoing
from headwater.bus import Bus
from headwater.config import Config
from headwater.errors import Failed, ReadOnly
from headwater.store import indexes
from headwater.store.batch import Batch, Seed, checksum
from headwater.store.body import encode_body
from headwater.store.disk_file import DiskFile
from headwater.store.file_pool import FilePool
from headwater.store.files import DiskFiles, Files
from headwater.store.indexes import LOADED_MAX
from headwater.store.log import Hole, Write
from headwater.store.segment import ENTRY_BYTES, whole_batches
from headwater.store.stream import LET_GO_BYTES, DiskStream, open_segments

SEGMENT_BYTES = 64 * 1024
MIB = 1 << 20
ON_DISK = Config(segment_bytes=SEGMENT_BYTES, tail_bytes=0)
IN_MEMORY = Config(segment_bytes=SEGMENT_BYTES)
TIME_US = 1_700_000_000_000_000
SEED = Seed(0x5EED)


def make(folder: Path | str, config: Config = ON_DISK, files: Files | None = None) -> DiskStream:
    files = files or DiskFiles()
    files.make_folder(f"{folder}/1-home")
    pool = FilePool(files, config.open_files_max, write=True)
    return DiskStream(files, pool, SEED, config, f"{folder}/1-home", 1, "home")


@pytest.fixture
def stream(tmp_path: Path) -> DiskStream:
    return make(tmp_path)


def write_of(*payloads: bytes, producer: bytes | None = None, sequence: int = 0) -> Write:
    body = encode_body(["home/t"] * len(payloads), payloads, TIME_US)
    return Write(body, checksum(body), len(payloads), producer, sequence)


def write(stream: DiskStream, *writes: Write, now_us: int = TIME_US) -> None:
    buffers = stream.place(writes, now_us)
    stream.write(writes, buffers)


def show(stream: DiskStream, *writes: Write) -> None:
    stream.tail.add(writes)
    stream.durable = stream.end


def append(stream: DiskStream, *payloads: bytes, now_us: int = TIME_US) -> Batch:
    """One batch, durable and seen."""
    made = write_of(*payloads)
    write(stream, made, now_us=now_us)
    stream.sync()
    show(stream, made)
    assert made.batch is not None
    return made.batch


def fill(stream: DiskStream, segments: int, payload_bytes: int = 5000) -> list[bytes]:
    """Batches of two messages until there are so many segments; answers every payload."""
    payloads: list[bytes] = []
    while len(stream.segments) < segments:
        pair = [bytes([len(payloads) % 251]) * payload_bytes, b"%d" % len(payloads)]
        payloads += pair
        append(stream, *pair, now_us=TIME_US + 1000 * len(payloads))
    return payloads


def read_on(stream: DiskStream, offset: int = 1, bytes_max: int = MIB) -> list[tuple[int, bytes] | Hole]:
    """Everything from an offset on, as a reader that goes on and on finds it."""
    found: list[tuple[int, bytes] | Hole] = []
    while part := stream.read(offset, bytes_max):
        for piece in part:
            if isinstance(piece, Hole):
                found.append(piece)
                offset = piece.last + 1
                continue
            messages = piece.body.messages(piece.first_offset)
            found += [(message.offset, message.payload) for message in messages if message.offset >= offset]
            offset = piece.last_offset + 1
    return found


def numbered(payloads: Sequence[bytes], first: int = 1) -> list[tuple[int, bytes]]:
    return list(enumerate(payloads, first))


def spoil(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x40]))


# Offsets and what readers see


def test_an_empty_stream_has_nothing_and_starts_at_one(stream: DiskStream) -> None:
    assert (stream.first_offset, stream.durable, stream.end, stream.size) == (1, 0, 0, (0, 0))
    assert stream.read(1, MIB) == ()
    assert stream.offset_at(TIME_US) == 1


def test_offsets_are_dense_from_one(stream: DiskStream) -> None:
    batches = [append(stream, *[b"x"] * count) for count in (1, 3, 2)]
    assert [(batch.first_offset, batch.last_offset) for batch in batches] == [(1, 1), (2, 4), (5, 6)]
    assert (stream.first_offset, stream.durable, stream.end) == (1, 6, 6)


@pytest.mark.parametrize("config", [ON_DISK, IN_MEMORY], ids=["disk", "memory"])
def test_what_is_appended_is_read(tmp_path: Path, config: Config) -> None:
    stream = make(tmp_path, config)
    append(stream, b"1", b"2")
    append(stream, b"3")
    assert read_on(stream) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert read_on(stream, 3) == [(3, b"3")]
    assert read_on(stream, 4) == []


@pytest.mark.parametrize("config", [ON_DISK, IN_MEMORY], ids=["disk", "memory"])
def test_a_read_from_within_a_batch_answers_that_batch(tmp_path: Path, config: Config) -> None:
    stream = make(tmp_path, config)
    append(stream, b"1", b"2", b"3")
    append(stream, b"4")
    for offset in (1, 2, 3):
        first = stream.read(offset, 1)[0]
        assert isinstance(first, Batch)
        assert (first.first_offset, first.last_offset) == (1, 3)


@pytest.mark.parametrize("config", [ON_DISK, IN_MEMORY], ids=["disk", "memory"])
def test_readers_see_a_batch_once_it_is_committed_and_never_before(tmp_path: Path, config: Config) -> None:
    stream = make(tmp_path, config)
    append(stream, b"1")
    made = write_of(b"2")
    write(stream, made)
    assert (stream.end, stream.durable) == (2, 1)
    assert read_on(stream) == [(1, b"1")]
    assert stream.read(2, MIB) == ()
    stream.sync()
    assert stream.read(2, MIB) == ()
    show(stream, made)
    assert read_on(stream) == [(1, b"1"), (2, b"2")]


def test_a_header_states_the_watermark_at_its_writing(stream: DiskStream) -> None:
    assert append(stream, b"1", b"2").header.durable == 0
    made = [write_of(b"3"), write_of(b"4")]
    write(stream, *made)
    assert [each.batch.header.durable for each in made if each.batch] == [2, 2]
    stream.sync()
    show(stream, *made)
    assert append(stream, b"5").header.durable == 4


def test_the_append_time_never_decreases_whatever_the_clock_does(stream: DiskStream) -> None:
    times = [append(stream, b"x", now_us=TIME_US + step).header.time_us for step in (0, -(10**9), 5, 4, 10**9, 0)]
    assert times == [TIME_US, TIME_US, TIME_US + 5, TIME_US + 5, TIME_US + 10**9, TIME_US + 10**9]


def test_a_producer_and_its_sequence_are_kept(stream: DiskStream) -> None:
    made = write_of(b"x", producer="größe".encode(), sequence=9)
    write(stream, made)
    stream.sync()
    show(stream, made)
    (batch,) = stream.read(1, MIB)
    assert isinstance(batch, Batch)
    assert (batch.header.producer, batch.header.sequence) == ("größe", 9)


@pytest.mark.parametrize("config", [ON_DISK, IN_MEMORY], ids=["disk", "memory"])
def test_a_read_answers_about_as_much_as_was_asked_for_and_at_least_one_batch(tmp_path: Path, config: Config) -> None:
    stream = make(tmp_path, config)
    for _ in range(10):
        append(stream, bytes(5000))
    assert len(stream.read(1, 1)) == 1
    assert 2 <= len(stream.read(1, 12_000)) <= 3
    assert len(stream.read(1, MIB)) == 10


def test_a_read_from_memory_ends_with_the_batch_that_makes_it_as_large_as_was_asked_for(tmp_path: Path) -> None:
    stream = make(tmp_path, IN_MEMORY)
    length = len(append(stream, b"1").data)
    append(stream, b"2")
    assert [len(stream.read(1, length + more)) for more in (-1, 0, 1)] == [1, 1, 2]


def test_a_batch_larger_than_a_read_is_read_whole(stream: DiskStream) -> None:
    append(stream, b"before")
    append(stream, bytes(50_000))
    append(stream, b"after")
    assert read_on(stream, bytes_max=1) == [(1, b"before"), (2, bytes(50_000)), (3, b"after")]


def test_the_newest_batches_stay_in_memory_within_their_limit(tmp_path: Path) -> None:
    stream = make(tmp_path, Config(segment_bytes=SEGMENT_BYTES, tail_bytes=20_000))
    payloads = [bytes([number]) * 3000 for number in range(30)]
    for payload in payloads:
        append(stream, payload)
        assert stream.tail.bytes <= 20_000
    assert read_on(stream) == numbered(payloads)
    stream.tail.drop()
    assert stream.tail.bytes == 0
    assert read_on(stream) == numbered(payloads)


def test_compressed_batches_come_back_whole(tmp_path: Path) -> None:
    squeezed = make(tmp_path, Config(compression="zstd", tail_bytes=0))
    payloads = [b"so much air " * 200, b"small"]
    append(squeezed, *payloads)
    assert squeezed.segments[0].end < len(payloads[0])
    assert read_on(squeezed) == numbered(payloads)


# Segments


def test_a_segment_rolls_when_the_next_batch_would_make_it_larger(stream: DiskStream) -> None:
    payloads = fill(stream, segments=4)
    *closed, active = stream.segments
    for segment, following in zip(closed, stream.segments[1:], strict=True):
        assert 0 < segment.end <= SEGMENT_BYTES
        assert os.path.getsize(segment.log_path) == segment.end
        entries = sum(1 for piece in range(segment.base, following.base, 2))
        assert os.path.getsize(segment.index_path) == entries * ENTRY_BYTES
    assert os.path.getsize(active.log_path) >= active.end
    assert read_on(stream) == numbered(payloads)


def test_a_batch_larger_than_a_segment_has_one_of_its_own(stream: DiskStream) -> None:
    payloads = [b"before", bytes(3 * SEGMENT_BYTES), b"after"]
    for payload in payloads:
        append(stream, payload)
    assert [segment.base for segment in stream.segments] == [1, 2, 3]
    assert read_on(stream) == numbered(payloads)


def test_the_active_segment_is_extended_ahead_with_zeros(tmp_path: Path) -> None:
    stream = make(tmp_path, Config())
    append(stream, b"x")
    (segment,) = stream.segments
    with open(segment.log_path, "rb") as file:
        data = file.read()
    assert len(data) > segment.end
    assert data[segment.end :].strip(b"\0") == b""


def test_nothing_is_extended_ahead_if_nothing_is_to_be(tmp_path: Path) -> None:
    stream = make(tmp_path, Config(preallocate_bytes=0))
    append(stream, b"x")
    assert os.path.getsize(stream.segments[0].log_path) == stream.segments[0].end


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[tuple[int, int]]]:
    """By file: from where to where the page cache was told to let go, in order."""
    spans: dict[int, list[tuple[int, int]]] = {}
    let_go = DiskFile.let_go

    def remember(file: DiskFile, position: int, length: int) -> None:
        spans.setdefault(os.fstat(file.descriptor).st_ino, []).append((position, position + length))
        let_go(file, position, length)

    monkeypatch.setattr(DiskFile, "let_go", remember)
    return spans


def test_the_page_cache_keeps_the_newest_alone(tmp_path: Path, gone: dict[int, list[tuple[int, int]]]) -> None:
    stream = make(tmp_path, Config(segment_bytes=3 * LET_GO_BYTES, page_cache_bytes=MIB, tail_bytes=0))
    payloads = fill(stream, segments=3, payload_bytes=MIB)
    before, active = stream.segments[-2:]
    while active.end < 2.5 * LET_GO_BYTES:
        payloads.append(b"x" * MIB)
        append(stream, payloads[-1])
    for segment, kept in ((before, 0), (active, MIB)):
        spans = gone[os.stat(segment.log_path).st_ino]
        assert [begin for begin, _ in spans] == [0, *(upto for _, upto in spans[:-1])]
        assert kept <= segment.end - spans[-1][1] < kept + (LET_GO_BYTES + 2 * MIB if kept else 1)
    assert read_on(stream) == numbered(payloads)


def test_the_page_cache_keeps_what_it_likes_if_told_so(tmp_path: Path, gone: dict[int, list[tuple[int, int]]]) -> None:
    stream = make(tmp_path, Config(segment_bytes=3 * LET_GO_BYTES, page_cache_bytes=3 * LET_GO_BYTES))
    fill(stream, segments=3, payload_bytes=MIB)
    assert gone == {}


def test_memory_that_cannot_be_let_go_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EINVAL, "no such thing here")

    monkeypatch.setattr(DiskFile, "let_go", fail)
    stream = make(tmp_path, Config(segment_bytes=3 * LET_GO_BYTES, page_cache_bytes=MIB, tail_bytes=0))
    payloads = fill(stream, segments=2, payload_bytes=MIB)
    assert read_on(stream) == numbered(payloads)


@pytest.mark.parametrize("bytes_max", [1, 10_000, MIB])
def test_a_reader_crosses_segments(stream: DiskStream, bytes_max: int) -> None:
    payloads = fill(stream, segments=5)
    start = stream.segments[2].base - 1
    assert read_on(stream, start, bytes_max) == numbered(payloads)[start - 1 :]


def test_more_segments_than_indexes_may_be_in_memory_are_read(tmp_path: Path) -> None:
    stream = make(tmp_path)
    payloads = fill(stream, segments=LOADED_MAX + 8, payload_bytes=30_000)
    loaded = [segment for segment in stream.segments if segment.index is not None]
    assert len(loaded) <= LOADED_MAX + 1
    assert read_on(stream) == numbered(payloads)
    assert sum(segment.index is not None for segment in stream.segments) <= LOADED_MAX + 1


# The index is a hint


def reopened(stream: DiskStream) -> DiskStream:
    """The same files, seen for the first time."""
    fresh = make(Path(stream.folder).parent)
    fresh.segments = open_segments(DiskFiles(), fresh.folder)
    fresh.segments[-1].end = stream.segments[-1].end
    fresh.end = fresh.durable = stream.durable
    return fresh


@pytest.mark.parametrize(
    "harm",
    [
        os.unlink,
        lambda path: Path(path).write_bytes(b""),
        lambda path: Path(path).write_bytes(random.Random(1).randbytes(1000)),
        lambda path: Path(path).write_bytes(Path(path).read_bytes()[: 2 * ENTRY_BYTES]),
        lambda path: Path(path).write_bytes(Path(path).read_bytes()[ENTRY_BYTES:]),
        lambda path: spoil(path, ENTRY_BYTES + 8),
        lambda path: spoil(path, ENTRY_BYTES),
    ],
    ids=["missing", "empty", "random", "short", "first lost", "a position wrong", "an offset wrong"],
)
def test_an_index_that_is_wrong_is_rebuilt_from_the_log(stream: DiskStream, harm: Callable[[str], None]) -> None:
    payloads = fill(stream, segments=3)
    for segment in stream.segments[:-1]:
        harm(segment.index_path)
    for start in (1, 2, 5, stream.segments[1].base + 3):
        assert read_on(reopened(stream), start, 1) == numbered(payloads)[start - 1 :]


def test_the_active_segment_is_read_with_an_index_that_is_behind(stream: DiskStream) -> None:
    append(stream, b"1")
    stream.store_indexes()
    append(stream, b"2", b"3")
    assert os.path.getsize(stream.segments[-1].index_path) == ENTRY_BYTES
    assert read_on(reopened(stream)) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert read_on(reopened(stream), 3) == [(3, b"3")]


# Time


def test_an_offset_is_found_by_time(stream: DiskStream) -> None:
    fill(stream, segments=4)
    times = {}
    for piece in stream.read(1, 1 << 30):
        assert isinstance(piece, Batch)
    offset = 1
    while pieces := stream.read(offset, MIB):
        for piece in pieces:
            assert isinstance(piece, Batch)
            times[piece.first_offset] = piece.header.time_us
            offset = piece.last_offset + 1
    for first, time_us in times.items():
        assert stream.offset_at(time_us) == first
        assert stream.offset_at(time_us - 1) == first
    assert stream.offset_at(0) == 1
    assert stream.offset_at(max(times.values()) + 1) == stream.durable + 1


def test_of_batches_with_the_same_time_the_first_is_found(stream: DiskStream) -> None:
    for _ in range(40):
        append(stream, bytes(5000), now_us=TIME_US)
    assert len(stream.segments) > 2
    append(stream, b"later", now_us=TIME_US + 1)
    assert stream.offset_at(TIME_US) == 1
    assert stream.offset_at(TIME_US + 1) == 41


def test_a_time_is_not_answered_with_what_is_not_durable_yet(stream: DiskStream) -> None:
    append(stream, b"1")
    write(stream, write_of(b"2"), write_of(b"3"), now_us=TIME_US + 10)
    assert stream.offset_at(TIME_US + 10) == 2
    assert stream.offset_at(TIME_US + 11) == 2


# Trimming


def test_trim_deletes_whole_segments_up_to_an_offset(stream: DiskStream) -> None:
    payloads = fill(stream, segments=4)
    second, third = stream.segments[1].base, stream.segments[2].base
    assert stream.trim(third - 2) == second
    assert stream.first_offset == second
    assert stream.trim(second) == second
    names = sorted(os.listdir(stream.folder))
    assert [name for name in names if name.endswith(".log")] == [f"{s.base:020d}.log" for s in stream.segments]
    assert len([name for name in names if name.endswith(".idx")]) == 2
    assert read_on(stream) == [Hole(1, second - 1, "deleted by retention"), *numbered(payloads)[second - 1 :]]


def test_a_trim_that_a_kill_interrupts_leaves_no_index_without_its_log(tmp_path: Path) -> None:
    """Which the next process would never look for, and never delete."""

    class Killed(DiskFiles):
        left = 1

        def remove(self, path: str) -> None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            super().remove(path)

    stream = make(tmp_path, files=Killed())
    fill(stream, segments=3)
    with pytest.raises(KeyboardInterrupt):
        stream.trim(stream.segments[1].base)
    names = os.listdir(stream.folder)
    assert not [name for name in names if name.endswith(".idx") and name.replace(".idx", ".log") not in names]


def test_what_is_beyond_a_size_ends_with_a_segment_and_is_never_in_the_active_one(stream: DiskStream) -> None:
    assert stream.beyond(0) == 0
    fill(stream, segments=4)
    sizes = [segment.end for segment in stream.segments]
    bases = [segment.base for segment in stream.segments]
    assert stream.beyond(sum(sizes)) == 0
    assert stream.beyond(sum(sizes) - 1) == bases[1] - 1
    assert stream.beyond(sum(sizes[1:])) == bases[1] - 1
    assert stream.beyond(sum(sizes[1:]) - 1) == bases[2] - 1
    assert stream.beyond(0) == bases[3] - 1


def test_the_active_segment_is_not_deleted_while_it_has_more(stream: DiskStream) -> None:
    fill(stream, segments=2)
    active = stream.segments[-1].base
    append(stream, b"x", b"y")
    assert stream.trim(stream.durable - 1) == active


def test_a_stream_that_is_trimmed_wholly_goes_on_with_the_next_offset(stream: DiskStream) -> None:
    payloads = fill(stream, segments=3)
    assert stream.trim(stream.durable) == len(payloads) + 1
    assert [segment.end for segment in stream.segments] == [0]
    assert append(stream, b"next").first_offset == len(payloads) + 1
    assert read_on(stream) == [
        Hole(1, len(payloads), "deleted by retention"),
        (len(payloads) + 1, b"next"),
    ]


def test_trim_of_an_empty_stream_does_nothing(stream: DiskStream) -> None:
    assert stream.trim(100) == 1


def test_trimmed_messages_are_not_read_from_memory(tmp_path: Path) -> None:
    stream = make(tmp_path, IN_MEMORY)
    append(stream, b"1")
    stream.trim(1)
    assert read_on(stream) == [Hole(1, 1, "deleted by retention")]
    assert stream.tail.bytes == 0


def test_a_reader_that_is_trimmed_away_gets_a_hole_and_no_other_error(tmp_path: Path) -> None:
    stream = make(tmp_path)
    fill(stream, segments=12)
    wrong: list[BaseException] = []
    found: list[tuple[int, bytes] | Hole] = []
    started = threading.Event()

    def read() -> None:
        try:
            started.set()
            for _ in range(30):
                found.extend(read_on(stream, 1, 1))
        except BaseException as error:
            wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    started.wait()
    for segment in list(stream.segments[1:]):
        stream.trim(segment.base - 1)
    reader.join()
    assert wrong == []
    assert found


# Damage


def test_a_damaged_batch_is_a_hole_that_names_its_offsets_and_what_follows_stays_readable(stream: DiskStream) -> None:
    append(stream, b"1")
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    append(stream, b"4")
    spoil(stream.segments[0].log_path, start + 100)
    first, hole, last = read_on(stream)
    assert (first, last) == ((1, b"1"), (4, b"4"))
    assert isinstance(hole, Hole)
    assert (hole.first, hole.last) == (2, 3)
    assert "damaged" in hole.reason


def test_a_damaged_header_is_a_hole_too(stream: DiskStream) -> None:
    append(stream, b"1")
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    append(stream, b"4")
    spoil(stream.segments[0].log_path, start + 17)
    assert [(p.first, p.last) if isinstance(p, Hole) else p for p in read_on(stream)] == [(1, b"1"), (2, 3), (4, b"4")]


def test_damage_at_the_end_of_a_segment_ends_with_it(stream: DiskStream) -> None:
    payloads = fill(stream, segments=3)
    second = stream.segments[1].base
    segment = stream.segments[0]
    assert segment.index is not None
    spoil(segment.log_path, segment.index.positions[-1] + 30)
    found = read_on(stream)
    assert [(p.first, p.last) for p in found if isinstance(p, Hole)] == [(second - 2, second - 1)]
    assert [p for p in found if not isinstance(p, Hole)] == [
        pair for pair in numbered(payloads) if pair[0] not in (second - 2, second - 1)
    ]


def test_damage_at_the_start_of_a_segment_is_a_hole_for_each_reader_and_not_only_the_first(stream: DiskStream) -> None:
    append(stream, b"1")
    append(stream, b"2")
    spoil(stream.segments[0].log_path, 17)
    for _ in range(3):
        hole, second = read_on(stream)
        assert isinstance(hole, Hole)
        assert (hole.first, hole.last, second) == (1, 1, (2, b"2"))


def test_a_read_from_within_a_damaged_batch_is_a_hole_from_there_on(stream: DiskStream) -> None:
    append(stream, b"1", b"2", b"3")
    append(stream, b"4")
    spoil(stream.segments[0].log_path, 100)
    (hole,) = stream.read(2, MIB)
    assert isinstance(hole, Hole)
    assert (hole.first, hole.last) == (2, 3)


def test_any_byte_of_the_log_may_go_bad_and_no_reader_sees_it(tmp_path: Path) -> None:
    stream = make(tmp_path)
    payloads = [b"one", b"two", b"three", b"four"]
    for payload in payloads:
        append(stream, payload)
    (segment,) = stream.segments
    right = numbered(payloads)
    whole = Path(segment.log_path).read_bytes()[: segment.end]
    for position in range(segment.end):
        Path(segment.log_path).write_bytes(whole)
        spoil(segment.log_path, position)
        found = read_on(reopened(stream))
        offsets: list[int] = []
        for piece in found:
            offsets += range(piece.first, piece.last + 1) if isinstance(piece, Hole) else [piece[0]]
            assert isinstance(piece, Hole) or piece in right
        assert offsets == [1, 2, 3, 4], position
        assert sum(isinstance(piece, Hole) for piece in found) <= 1


def test_known_holes_are_answered_without_looking(stream: DiskStream) -> None:
    append(stream, b"1", b"2")
    stream.holes = [Hole(1, 2, "as recovery said")]
    assert stream.read(1, MIB) == (Hole(1, 2, "as recovery said"),)


# When the disk fails


def test_a_write_that_is_undone_leaves_nothing(stream: DiskStream) -> None:
    append(stream, b"1")
    position = stream.segments[-1].end
    write(stream, write_of(b"2"), write_of(b"3"))
    stream.undo(1, position)
    assert (stream.end, stream.durable) == (1, 1)
    assert os.path.getsize(stream.segments[-1].log_path) == position
    assert append(stream, b"again").first_offset == 2
    assert read_on(stream) == [(1, b"1"), (2, b"again")]


@pytest.mark.parametrize("fault", ["fail_write_at", "short_write_at"])
def test_a_write_that_fails_changes_nothing(fault: str) -> None:
    files = FaultyFiles()
    stream = make("data", files=files)
    append(stream, b"1")
    setattr(files, fault, files.writes + 1)
    with pytest.raises(OSError):
        write(stream, write_of(b"2", b"3"))
    assert (stream.end, stream.durable) == (1, 1)
    assert append(stream, b"after").first_offset == 2
    assert read_on(stream) == [(1, b"1"), (2, b"after")]


def test_after_a_failed_sync_the_stream_takes_nothing_and_says_so() -> None:
    files = FaultyFiles()
    stream = make("data", files=files)
    append(stream, b"1")
    write(stream, write_of(b"2"))
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed, match="read-only"):
        stream.sync()
    with pytest.raises(ReadOnly, match="open it again"):
        stream.place([write_of(b"3")], TIME_US)
    assert read_on(stream) == [(1, b"1")]


# Threads


def test_readers_beside_an_appender_see_dense_offsets_in_order(tmp_path: Path) -> None:
    stream = make(tmp_path, Config(segment_bytes=SEGMENT_BYTES, tail_bytes=8000, open_files_max=2))
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        try:
            offset = 1
            while not (done.is_set() and offset > stream.durable):
                pieces = stream.read(offset, 10_000)
                if not pieces:
                    done.wait(0.001)  # lets the appender have the interpreter
                for piece in pieces:
                    assert isinstance(piece, Batch)
                    assert piece.first_offset <= offset <= piece.last_offset
                    for message in piece.body.messages(piece.first_offset):
                        assert message.payload.startswith(b"%d " % message.offset)
                    offset = piece.last_offset + 1
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 600, 2):
        append(stream, b"%d " % number + bytes(700), b"%d " % (number + 1))
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


# What the newest batches take in memory


def tiny(bus: Bus) -> None:
    for _ in range(400):
        bus.publish("home/a", b"x")


def tiny_of_topics(bus: Bus) -> None:
    for number in range(400):
        bus.publish(f"home/a topic of its own/{number}", b"x")


def together(bus: Bus) -> None:
    for turn in range(20):
        bus.publish_many([(f"home/{turn}/{number}", bytes(20)) for number in range(200)])


def with_options(bus: Bus) -> None:
    pairs = tuple((f"name {number}", f"a value {number}") for number in range(5))
    for turn in range(20):
        bus.publish_many(
            [
                Outgoing(
                    f"home/{turn}", b"x", retain=True, ttl_s=60.0, key=b"k%d" % number, headers=pairs[: number % 6]
                )
                for number in range(100)
            ]
        )


def with_many_headers(bus: Bus) -> None:
    for turn in range(50):
        bus.publish("home/a", b"x", headers=[(f"{turn}{number}", "") for number in range(64)])


@pytest.mark.parametrize("publish", [tiny, tiny_of_topics, together, with_options, with_many_headers])
def test_the_tail_holds_no_more_memory_than_it_counts_and_may(publish: Callable[[Bus], None]) -> None:
    config = Config(tail_bytes=150_000, tails_bytes=1 << 30)
    with headwater.open(":memory:", config) as bus:
        publish(bus)
        stream: Any = bus.core.roots.get("home").stream  # type: ignore[union-attr]
        stream.tail.drop()
        tracemalloc.start()
        try:
            # Read by a filter with a wildcard and by a topic, as what is remembered then stays.
            with bus.subscribe("home/#") as everything, bus.subscribe("home/a") as some:
                publish(bus)
                everything.batch(100_000, 0)
                some.batch(100_000, 0)
            list(bus.replay("home/a", after=stream.durable - 2))
            bus.core.roots.commit.run(bus.core.roots.checkpoints.make)
            gc.collect()
            counted, batches, before = stream.tail.bytes, len(stream.tail), tracemalloc.get_traced_memory()[0]
            stream.tail.drop()
            gc.collect()
            held = before - tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert batches
    assert held <= counted <= config.tail_bytes


def test_an_index_that_is_made_while_a_batch_is_written_has_it_once(
    stream: DiskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        append(stream, b"%d" % number)
    walk = whole_batches

    def slowly(*args: Any) -> Iterator[Any]:
        for place, found in enumerate(walk(*args)):
            if not place:
                append(stream, b"5")
            yield found

    monkeypatch.setattr(indexes, "whole_batches", slowly)
    segment = stream.segments[-1]
    stream.indexes.rebuild(segment, segment.index)
    append(stream, b"6")
    assert segment.index is not None
    assert list(segment.index.offsets) == [1, 2, 3, 4, 5, 6, 7]
    assert list(segment.index.positions) == sorted(set(segment.index.positions))
