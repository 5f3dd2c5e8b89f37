"""Recovery of one stream, the plain cases; what a faulty disk leaves behind is tested in `tests/faults`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.config import Config
from headwater.store.batch import Batch, Header, Seed, checksum, read_batch
from headwater.store.body import encode_body
from headwater.store.file_pool import FilePool
from headwater.store.files import DiskFiles
from headwater.store.log import Checkpoint, Found, Hole, Write
from headwater.store.recovery import Recovery
from headwater.store.segment import Segment
from headwater.store.stream import DiskStream

SEGMENT_BYTES = 64 * 1024
CONFIG = Config(segment_bytes=SEGMENT_BYTES, tail_bytes=0)
TIME_US = 1_700_000_000_000_000
SEED = Seed(0x5EED)


class Recovered(NamedTuple):
    """A stream after its recovery."""

    stream: DiskStream
    found: Found
    applied: list[int]
    """First offsets of the batches that were applied."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "1-home"


def fresh(folder: Path) -> DiskStream:
    files = DiskFiles()
    files.make_folder(str(folder))
    return DiskStream(files, FilePool(files, 100, write=True), SEED, CONFIG, str(folder), 1, "home")


def append(stream: DiskStream, *payloads: bytes, commits: bool = True) -> Header:
    body = encode_body(["home/t"] * len(payloads), payloads, TIME_US)
    write = Write(body, checksum(body), len(payloads))
    buffers = stream.place([write], TIME_US + stream.end)
    stream.write([write], buffers)
    if commits:
        stream.sync()
        stream.tail.add([write])
        stream.durable = stream.end
    assert write.batch is not None
    return write.batch.header


def written(folder: Path, *batches: list[bytes]) -> DiskStream:
    stream = fresh(folder)
    for payloads in batches:
        append(stream, *payloads)
    return stream


def recover(
    folder: Path,
    checkpoint: Checkpoint | None = None,
    evidence: int = 0,
    journaled: Mapping[int, tuple[Header, bytes]] | None = None,
) -> Recovered:
    stream = fresh(folder)
    applied: list[int] = []
    found = Recovery(
        DiskFiles(),
        stream.pool,
        stream,
        checkpoint or Checkpoint(),
        evidence,
        journaled or {},
        str(folder.parent / "quarantine"),
        lambda batch: applied.append(batch.first_offset),
    ).run()
    return Recovered(stream, found, applied)


def content(stream: DiskStream) -> list[tuple[int, bytes] | tuple[int, int, str]]:
    """Offset and payload of each message; of a hole, its offsets and "gone"."""
    seen: list[tuple[int, bytes] | tuple[int, int, str]] = []
    offset = stream.first_offset
    while pieces := stream.read(offset, 1 << 20):
        for piece in pieces:
            if isinstance(piece, Hole):
                seen.append((piece.first, piece.last, "gone"))
                offset = piece.last + 1
            else:
                seen += [(message.offset, message.payload) for message in piece.body.messages(piece.first_offset)]
                offset = piece.last_offset + 1
    return seen


def log(folder: Path, base: int = 1) -> Path:
    return folder / f"{base:020d}.log"


def spoil(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def quarantined(folder: Path) -> dict[str, bytes]:
    place = folder.parent / "quarantine"
    return {path.name: path.read_bytes() for path in place.iterdir()} if place.exists() else {}


ONE_TO_FOUR: list[tuple[int, bytes] | tuple[int, int, str]] = [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]


# Nothing is wrong


def test_a_stream_that_is_whole_comes_back_and_goes_on(folder: Path) -> None:
    written(folder, [b"1"], [b"2", b"3"], [b"4"])
    stream, found, applied = recover(folder)
    assert content(stream) == ONE_TO_FOUR
    assert applied == [1, 2, 4]
    assert (found.holes, found.torn_bytes, found.from_journal, found.batches) == ([], 0, 0, 3)
    assert append(stream, b"5").first_offset == 5


def test_a_stream_without_a_file_is_empty(folder: Path) -> None:
    stream, found, applied = recover(folder)
    assert (stream.end, stream.durable, applied, found) == (0, 0, [], Found())


def test_zeros_at_the_end_are_the_end(folder: Path) -> None:
    stream = written(folder, [b"1"])
    end = stream.segments[0].end
    assert os.path.getsize(log(folder)) > end
    recovered = recover(folder)
    assert recovered.found.torn_bytes == 0
    assert recovered.stream.segments[0].end == end


def test_an_empty_file_at_the_end_is_used(folder: Path) -> None:
    stream = written(folder, [b"1"], [b"2"])
    stream.roll()
    recovered = recover(folder)
    assert recovered.found.holes == []
    assert append(recovered.stream, b"3").first_offset == 3
    assert [segment.base for segment in recovered.stream.segments] == [1, 3]
    assert content(recovered.stream) == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_a_roll_before_its_index_was_complete_costs_nothing(folder: Path) -> None:
    stream = written(folder, [b"1"], [b"2"])
    stream.roll()
    append(stream, b"3")
    os.unlink(folder / f"{1:020d}.idx")
    recovered = recover(folder)
    assert content(recovered.stream) == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_the_append_time_goes_on_from_the_last_batch(folder: Path) -> None:
    written(folder, [b"1"], [b"2"])
    stream = recover(folder).stream
    assert stream.time_us == TIME_US + 1
    body = encode_body(["home/t"], [b"3"], 0)
    write = Write(body, checksum(body), 1)
    stream.place([write], TIME_US - 10**9)
    assert write.batch is not None
    assert write.batch.header.time_us == TIME_US + 1


# The checkpoint


def checkpoint_of(stream: DiskStream) -> Checkpoint:
    stream.store_indexes()
    return Checkpoint(stream.durable, stream.segments[-1].base, stream.segments[-1].end)


def test_only_what_follows_the_checkpoint_is_applied(folder: Path) -> None:
    stream = written(folder, [b"1"], [b"2"])
    mark = checkpoint_of(stream)
    append(stream, b"3")
    append(stream, b"4")
    recovered = recover(folder, mark)
    assert recovered.applied == [3, 4]
    assert recovered.found.batches == 2
    assert content(recovered.stream) == ONE_TO_FOUR


def test_what_lies_before_the_checkpoint_is_not_read(folder: Path) -> None:
    """So that recovery does not grow with what is stored; bad bytes there are found when they are read."""
    stream = written(folder, [b"1"], [b"2"])
    mark = checkpoint_of(stream)
    append(stream, b"3")
    spoil(log(folder), 100)
    recovered = recover(folder, mark)
    assert recovered.found.holes == []
    assert content(recovered.stream) == [(1, 1, "gone"), (2, b"2"), (3, b"3")]


@pytest.mark.parametrize("harm", ["no index", "wrong position", "wrong base", "cut log"])
def test_a_checkpoint_that_does_not_fit_the_files_is_only_believed_about_what_was_applied(
    folder: Path, harm: str
) -> None:
    stream = written(folder, [b"1"], [b"2"])
    mark = checkpoint_of(stream)
    append(stream, b"3")
    append(stream, b"4")
    match harm:
        case "no index":
            os.unlink(folder / f"{1:020d}.idx")
        case "wrong position":
            mark = Checkpoint(mark.applied, mark.base, mark.position - 8)
        case "wrong base":
            mark = Checkpoint(mark.applied, 77, mark.position)
        case "cut log":
            mark = Checkpoint(mark.applied, mark.base, 1 << 30)
    recovered = recover(folder, mark)
    assert recovered.applied == [3, 4]
    assert content(recovered.stream) == ONE_TO_FOUR


def test_a_checkpoint_in_an_older_segment_goes_on_through_the_later_ones(folder: Path) -> None:
    stream = written(folder, [b"1"])
    mark = checkpoint_of(stream)
    append(stream, b"2")
    stream.roll()
    append(stream, b"3")
    stream.roll()
    append(stream, b"4")
    recovered = recover(folder, mark)
    assert recovered.applied == [2, 3, 4]
    assert content(recovered.stream) == ONE_TO_FOUR


# A torn tail


def test_a_tail_cut_at_any_byte_is_torn_and_its_offsets_are_used_again(folder: Path) -> None:
    stream = written(folder, [b"1"], [b"2", b"3"])
    start = stream.segments[0].end
    append(stream, b"never acked", commits=False)
    end = stream.segments[0].end
    whole = log(folder).read_bytes()
    for size in range(start, end):
        log(folder).write_bytes(whole[:size])
        recovered = recover(folder)
        assert recovered.stream.durable == 3, size
        assert recovered.found.holes == []
        assert (recovered.found.torn_bytes > 0) == (size > start)
        assert os.path.getsize(log(folder)) == start
        assert append(recovered.stream, b"4").first_offset == 4
        assert content(recovered.stream) == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
    assert quarantined(folder) == {}


def test_a_bad_batch_at_the_tail_that_nothing_calls_durable_is_cut(folder: Path) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"never acked", commits=False)
    spoil(log(folder), start + 100)
    recovered = recover(folder)
    assert content(recovered.stream) == [(1, b"1")]
    assert recovered.found.torn_bytes > 0
    assert recovered.found.holes == []


def test_batches_behind_a_torn_one_of_the_same_group_are_cut_with_it(folder: Path) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", commits=False)
    append(stream, b"3", commits=False)
    spoil(log(folder), start + 100)
    recovered = recover(folder)
    assert content(recovered.stream) == [(1, b"1")]
    assert recovered.found.holes == []
    assert append(recovered.stream, b"again").first_offset == 2


def test_a_batch_whose_outcome_nobody_learned_is_kept_if_it_is_whole(folder: Path) -> None:
    stream = written(folder, [b"1"])
    append(stream, b"2", commits=False)
    assert content(recover(folder).stream) == [(1, b"1"), (2, b"2")]


# Acknowledged messages that went bad


def test_a_bad_batch_that_a_later_header_calls_durable_is_set_apart(folder: Path) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    end = stream.segments[0].end
    append(stream, b"4")
    spoil(log(folder), start + 100)
    bad = log(folder).read_bytes()[start:end]
    recovered = recover(folder)
    assert content(recovered.stream) == [(1, b"1"), (2, 3, "gone"), (4, b"4")]
    assert [(hole.first, hole.last) for hole in recovered.found.holes] == [(2, 3)]
    assert "damaged" in recovered.found.holes[0].reason
    assert list(quarantined(folder).values()) == [bad]
    assert recovered.applied == [1, 4]


@pytest.mark.parametrize("position", [0, 20, 64, 100])
def test_a_bad_last_batch_is_set_apart_if_the_watermarks_call_it_durable(folder: Path, position: int) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    spoil(log(folder), start + position)
    bad = log(folder).read_bytes()[start:].rstrip(b"\0")
    recovered = recover(folder, evidence=3)
    assert [(hole.first, hole.last) for hole in recovered.found.holes] == [(2, 3)]
    assert recovered.stream.durable == 3
    assert [data.rstrip(b"\0") for data in quarantined(folder).values()] == [bad]
    assert append(recovered.stream, b"4").first_offset == 4
    assert content(recovered.stream) == [(1, b"1"), (2, 3, "gone"), (4, b"4")]


def test_offsets_that_the_state_has_seen_are_not_used_twice(folder: Path) -> None:
    written(folder, [b"1"])
    recovered = recover(folder, Checkpoint(applied=5))
    assert [(hole.first, hole.last) for hole in recovered.found.holes] == [(2, 5)]
    assert append(recovered.stream, b"6").first_offset == 6
    assert content(recovered.stream) == [(1, b"1"), (2, 5, "gone"), (6, b"6")]


def test_a_stream_that_lost_everything_goes_on_after_the_gap(folder: Path) -> None:
    written(folder, [b"1"])
    os.unlink(log(folder))
    recovered = recover(folder, evidence=7)
    assert [(hole.first, hole.last) for hole in recovered.found.holes] == [(1, 7)]
    assert append(recovered.stream, b"8").first_offset == 8


def test_what_was_found_is_found_again_by_the_next_recovery(folder: Path) -> None:
    stream = written(folder, [b"1"], [b"2"])
    start = stream.segments[0].end
    append(stream, b"3")
    spoil(log(folder), start + 100)
    first = recover(folder, evidence=3)
    append(first.stream, b"4")
    second = recover(folder, evidence=4)
    assert content(second.stream) == [(1, b"1"), (2, b"2"), (3, 3, "gone"), (4, b"4")]


def test_a_closed_segment_that_misses_its_end_has_a_gap(folder: Path) -> None:
    stream = written(folder, [b"1"])
    size = stream.segments[0].end
    append(stream, b"2")
    stream.roll()
    append(stream, b"3")
    os.truncate(log(folder), size)
    recovered = recover(folder)
    assert content(recovered.stream) == [(1, b"1"), (2, 2, "gone"), (3, b"3")]


def test_a_missing_segment_is_a_gap(folder: Path) -> None:
    stream = written(folder, [b"1"])
    for payload in (b"2", b"3"):
        stream.roll()
        append(stream, payload)
    os.unlink(log(folder, 2))
    os.unlink(folder / f"{2:020d}.idx")
    recovered = recover(folder, Checkpoint(applied=1, base=1, position=stream.segments[0].end))
    assert [(hole.first, hole.last) for hole in recovered.found.holes] == [(2, 2)]
    assert content(recovered.stream) == [(1, b"1"), (2, 2, "gone"), (3, b"3")]


def test_batches_of_another_root_do_not_count(folder: Path) -> None:
    stream = written(folder, [b"1"])
    other = fresh(folder.parent / "2-hall")
    other.root, other.root_bytes = "hall", b"hall"
    append(other, b"a")
    append(other, b"b")
    alien = log(folder.parent / "2-hall").read_bytes()[: other.segments[0].end]
    data = log(folder).read_bytes()
    end = stream.segments[0].end
    log(folder).write_bytes(data[:end] + alien)
    recovered = recover(folder)
    assert content(recovered.stream) == [(1, b"1")]


# The journal


def journaled(folder: Path, *offsets: int) -> dict[int, tuple[Header, bytes]]:
    """Batches of a stream as they stand in the journal."""
    data = log(folder).read_bytes()
    found: dict[int, tuple[Header, bytes]] = {}
    at = 0
    while data[at : at + 4] == b"HWB1":
        batch = read_batch(SEED, data, at)
        assert isinstance(batch, Batch)
        start = at + batch.header.header_bytes
        found[batch.first_offset] = (batch.header, data[start : start + batch.header.body_bytes])
        at += batch.header.bytes
    return {offset: found[offset] for offset in offsets}


@pytest.mark.parametrize("cut", [0, 1, 8, 70, 10_000])
def test_what_the_segment_lacks_is_appended_from_the_journal(folder: Path, cut: int) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    append(stream, b"4")
    batches = journaled(folder, 2, 4)
    whole = log(folder).read_bytes()
    log(folder).write_bytes(whole[: start + cut])
    recovered = recover(folder, journaled=batches)
    assert content(recovered.stream) == ONE_TO_FOUR
    assert log(folder).read_bytes().rstrip(b"\0") == whole.rstrip(b"\0")
    assert recovered.found.holes == []
    assert recovered.found.from_journal == (0 if cut == 10_000 else 2)
    assert recovered.applied == [1, 2, 4]
    assert append(recovered.stream, b"5").first_offset == 5


def test_a_hole_in_the_segment_is_filled_from_the_journal(folder: Path) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    batches = journaled(folder, 2)
    append(stream, b"4")
    whole = log(folder).read_bytes()
    spoil(log(folder), start + 100)
    recovered = recover(folder, journaled=batches)
    assert content(recovered.stream) == ONE_TO_FOUR
    assert recovered.found == Found(batches=3, from_journal=1)
    assert log(folder).read_bytes() == whole, "it stands where it stood, and what follows it was not moved"
    assert quarantined(folder) == {}


def test_a_bad_end_that_the_journal_has_is_not_set_apart_though_it_was_acknowledged(folder: Path) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    append(stream, b"4")
    batches = journaled(folder, 2, 4)
    spoil(log(folder), start + 100)
    spoil(log(folder), stream.segments[0].end - 8)
    recovered = recover(folder, evidence=4, journaled=batches)
    assert content(recovered.stream) == ONE_TO_FOUR
    assert (recovered.found.holes, recovered.found.torn_bytes) == ([], 0)
    assert quarantined(folder) == {}


def test_of_a_bad_end_only_what_the_journal_lacks_is_a_gap(folder: Path) -> None:
    stream = written(folder, [b"1"])
    start = stream.segments[0].end
    append(stream, b"2", b"3")
    append(stream, b"4")
    batches = journaled(folder, 2)
    spoil(log(folder), start + 100)
    spoil(log(folder), stream.segments[0].end - 8)
    recovered = recover(folder, evidence=4, journaled=batches)
    assert content(recovered.stream) == [(1, b"1"), (2, b"2"), (3, b"3"), (4, 4, "gone")]
    assert len(quarantined(folder)) == 1


CLOSED = [[b"1"], [b"2"], [b"3"], [b"4"]]


@pytest.mark.parametrize(
    ("bad", "has", "gone"),
    [
        ([2], [2], []),
        ([2, 3], [2, 3], []),
        ([2, 3], [2], [3]),
        ([2, 3], [3], [2]),
        ([4], [4], []),
        ([3, 4], [3], [4]),
        ([3, 4], [4], [3]),
        ([1], [1], []),
        ([1, 2, 3, 4], [1, 2, 3, 4], []),
        ([2], [], [2]),
    ],
)
@pytest.mark.parametrize("is_closed", [True, False])
def test_what_went_bad_is_put_back_from_the_journal_and_only_the_rest_is_set_apart(
    folder: Path, bad: list[int], has: list[int], gone: list[int], is_closed: bool
) -> None:
    stream = written(folder, *CLOSED)
    batches = journaled(folder, *has)
    index = stream.segments[0].index
    assert index is not None
    if is_closed:
        stream.roll()
    append(stream, b"5")
    whole = log(folder).read_bytes()
    for number in bad:
        spoil(log(folder), index.positions[number - 1] + 100)
    recovered = recover(folder, journaled=batches)
    kept = [(n, b"%d" % n) for n in range(1, 6) if n not in gone]
    assert [piece for piece in content(recovered.stream) if len(piece) == 2] == kept
    assert [(hole.first, hole.last) for hole in recovered.found.holes] == [(n, n) for n in gone]
    assert recovered.found.from_journal == len(has)
    assert recovered.applied == [n for n in range(1, 6) if n not in gone]
    assert len(quarantined(folder)) == len(gone)
    if not gone:
        assert log(folder).read_bytes() == whole
    again = recover(folder, evidence=5)
    assert [piece for piece in content(again.stream) if len(piece) == 2] == kept


@pytest.mark.parametrize("cut", [0, 8, 100, 300])
def test_a_closed_segment_that_was_cut_is_completed_from_the_journal(folder: Path, cut: int) -> None:
    stream = written(folder, *CLOSED)
    batches = journaled(folder, 1, 2, 3, 4)
    stream.roll()
    append(stream, b"5")
    whole = log(folder).read_bytes()
    os.truncate(log(folder), cut)
    recovered = recover(folder, journaled=batches)
    assert content(recovered.stream) == [*ONE_TO_FOUR, (5, b"5")]
    assert log(folder).read_bytes() == whole
    assert (recovered.found.holes, quarantined(folder)) == ([], {})


@pytest.mark.parametrize("length", [1, 100])
def test_what_would_not_fit_never_stood_there(folder: Path, length: int) -> None:
    stream = written(folder, [b"1"], [b"2" * 50], [b"3"])
    elsewhere = folder.parent / "2-home"
    written(elsewhere, [b"1"], [b"2" * length])
    index = stream.segments[0].index
    assert index is not None
    spoil(log(folder), index.positions[1] + 100)
    recovered = recover(folder, journaled=journaled(elsewhere, 2))
    assert content(recovered.stream) == [(1, b"1"), (2, 2, "gone"), (3, b"3")]


def test_what_would_reach_into_the_good_batch_before_it_never_stood_there(folder: Path) -> None:
    stream = written(folder, *CLOSED)
    elsewhere = folder.parent / "2-home"
    written(elsewhere, [b"1"], [b"2"], [b"3" * 250])
    index = stream.segments[0].index
    assert index is not None
    for number in (2, 3):
        spoil(log(folder), index.positions[number - 1] + 100)
    recovered = recover(folder, journaled=journaled(elsewhere, 3))
    assert content(recovered.stream) == [(1, b"1"), (2, 3, "gone"), (4, b"4")]
    assert content(recover(folder, evidence=4).stream) == [(1, b"1"), (2, 3, "gone"), (4, b"4")]


def test_the_index_of_a_closed_segment_is_whole_after_a_recovery_that_walked_it(folder: Path) -> None:
    stream = written(folder, *CLOSED)
    stream.roll()
    append(stream, b"5")
    path = Path(stream.segments[0].index_path)
    whole = path.read_bytes()
    for harmed in (b"", whole[:30], b"\xff" * len(whole), whole[:24] + bytes(24) + whole[48:]):
        path.write_bytes(harmed)
        recover(folder)
        assert path.read_bytes() == whole


def test_what_the_stream_has_is_not_appended_again(folder: Path) -> None:
    written(folder, [b"1"], [b"2"])
    recovered = recover(folder, journaled=journaled(folder, 1, 2))
    assert content(recovered.stream) == [(1, b"1"), (2, b"2")]
    assert recovered.found.from_journal == 0


def test_a_journal_that_does_not_join_the_stream_and_was_never_durable_adds_nothing(folder: Path) -> None:
    stream = written(folder, [b"1"])
    append(stream, b"2", commits=False)
    append(stream, b"3", commits=False)
    batches = journaled(folder, 3)
    start = read_batch(SEED, log(folder).read_bytes())
    assert start is not None
    os.truncate(log(folder), start.header.bytes)
    recovered = recover(folder, journaled=batches)
    assert content(recovered.stream) == [(1, b"1")]
    assert recovered.found.holes == []


def test_without_a_place_that_can_be_used_no_segment_before_what_is_applied_is_walked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = written(folder, *[[bytes(40_000)] for _ in range(8)])
    bases = [segment.base for segment in stream.segments]
    assert len(bases) > 5
    walked: list[str] = []
    walk = Recovery._walk_closed

    def remember(recovery: Recovery, segment: Segment, *rest: int) -> None:
        walked.append(segment.log_path)
        walk(recovery, segment, *rest)

    monkeypatch.setattr(Recovery, "_walk_closed", remember)
    recovered = recover(folder, Checkpoint(applied=bases[-3], base=77))
    assert walked == [str(log(folder, base)) for base in bases[-3:-1]]
    assert recovered.stream.end == 8
