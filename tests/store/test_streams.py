"""All streams of a folder: groups over one root and over many, one sync for each, and what the next process finds."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.faulty_files import FaultyFiles
from headwater.config import Config
from headwater.errors import DiskFull, Failed, ReadOnly
from headwater.store.batch import Batch, Seed, checksum
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles, Files
from headwater.store.log import Checkpoint, Found, Hole, Write
from headwater.store.memory_files import MemoryFiles
from headwater.store.stream import DiskStream
from headwater.store.streams import Streams, offset_of

TIME_US = 1_700_000_000_000_000
SEGMENT_BYTES = 64 * 1024
SEED = Seed(0x5EED)


def opened(
    folder: Path | str,
    config: Config | None = None,
    files: Files | None = None,
    applied: list[tuple[str, int]] | None = None,
) -> Streams:
    streams, _ = opened_and_met(folder, config, files, applied)
    return streams


def opened_and_met(
    folder: Path | str,
    config: Config | None = None,
    files: Files | None = None,
    applied: list[tuple[str, int]] | None = None,
) -> tuple[Streams, dict[str, Found]]:
    files = files or DiskFiles()
    files.make_folder(str(folder))
    streams = Streams(files, str(folder), SEED, config or Config())

    def apply(stream: DiskStream, batch: Batch) -> None:
        if applied is not None:
            applied.append((stream.root, batch.first_offset))

    met = streams.recover(lambda _: Checkpoint(), lambda _: 0, lambda _: [], apply, first="$delayed")
    return streams, met


def write_of(root: str, *payloads: bytes) -> Write:
    body = encode_body([f"{root}/t"] * len(payloads), payloads, TIME_US)
    return Write(body, checksum(body), len(payloads))


def append(streams: Streams, **payloads: Sequence[bytes]) -> None:
    """One group: a batch for each root."""
    group = [(streams.create(root), [write_of(root, *each)]) for root, each in payloads.items()]
    streams.append(group, TIME_US)


def payloads_of(streams: Streams, root: str) -> list[bytes | tuple[int, int]]:
    """Every payload of a root; a hole as its offsets."""
    stream = streams.get(root)
    assert stream is not None
    found: list[bytes | tuple[int, int]] = []
    offset = stream.first_offset
    while pieces := stream.read(offset, 1 << 20):
        for piece in pieces:
            if isinstance(piece, Hole):
                found.append((piece.first, piece.last))
                offset = piece.last + 1
            else:
                found += [message.payload for message in piece.body.messages(piece.first_offset)]
                offset = piece.last_offset + 1
    return found


# The folder


def test_roots_whose_names_differ_in_case_alone_have_folders_of_their_own(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, home=[b"1"], Home=[b"2"])
    streams.close()
    assert sorted(os.listdir(tmp_path / "streams")) == ["1-home", "2-=48ome"]
    streams = opened(tmp_path)
    assert payloads_of(streams, "home") == [b"1"]
    assert payloads_of(streams, "Home") == [b"2"]
    streams.close()


# Making and opening


def test_a_folder_is_laid_out_as_documented(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, home=[b"1"])
    append(streams, home=[b"2"], hall=[b"3"])
    assert sorted(os.listdir(tmp_path)) == ["journal", "manifest", "streams", "watermarks"]
    assert os.listdir(tmp_path / "streams" / "1-home") == ["00000000000000000001.log"]
    watermarks = (tmp_path / "watermarks").read_bytes()
    cells = [int.from_bytes(watermarks[8 * number :][:8], "little") for number in (1, 2)]
    assert [offset_of(cell) for cell in cells] == [2, 1]
    assert all(offset_of(cell ^ 1 << bit) == 0 for cell in cells for bit in range(64))
    streams.close()


def test_streams_are_found_again_with_their_numbers(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, b=[b"1"], a=[b"2"])
    append(streams, c=[b"3"])
    numbers = {stream.root: stream.number for stream in streams.all()}
    streams.close()
    streams = opened(tmp_path)
    assert {stream.root: stream.number for stream in streams.all()} == numbers == {"b": 1, "a": 2, "c": 3}
    assert streams.get("d") is None
    append(streams, d=[b"4"])
    assert streams.create("d").number == 4
    streams.close()


def test_creating_a_stream_that_is_there_answers_it(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    assert streams.create("a") is streams.create("a")
    streams.close()


def test_other_things_in_the_streams_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "streams" / "lost+found").mkdir(parents=True)
    (tmp_path / "streams" / "notes.txt").write_text("mine")
    streams = opened(tmp_path)
    append(streams, a=[b"1"])
    streams.close()
    streams = opened(tmp_path)
    assert payloads_of(streams, "a") == [b"1"]
    streams.close()
    assert (tmp_path / "streams" / "notes.txt").read_text() == "mine"


def test_every_batch_after_the_checkpoint_is_applied_in_order_and_the_first_root_first(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1", b"2"])
    append(streams, a=[b"3"], **{"$delayed": [b"4"]})
    streams.close()
    applied: list[tuple[str, int]] = []
    opened(tmp_path, applied=applied).close()
    assert applied == [("$delayed", 1), ("a", 1), ("a", 3)]


# Groups


def test_a_group_of_several_roots_is_read_back(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1", b"2"], b=[b"3"])
    append(streams, b=[b"4"], c=[b"5"], a=[b"6"])
    for _ in range(2):
        assert payloads_of(streams, "a") == [b"1", b"2", b"6"]
        assert payloads_of(streams, "b") == [b"3", b"4"]
        assert payloads_of(streams, "c") == [b"5"]
        streams.close()
        streams = opened(tmp_path)
    streams.close()


def test_nobody_sees_a_group_before_it_is_synced() -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    append(streams, a=[b"1"])
    append(streams, b=[b"2"])
    seen = []
    files.on_sync = lambda *_: seen.append((payloads_of(streams, "a"), payloads_of(streams, "b")))
    append(streams, a=[b"x"], b=[b"x"])
    files.on_sync = None
    assert seen
    assert all(one == ([b"1"], [b"2"]) for one in seen)
    assert payloads_of(streams, "a") == [b"1", b"x"]
    assert payloads_of(streams, "b") == [b"2", b"x"]
    streams.close()


@pytest.mark.parametrize("roots", [1, 2, 100])
def test_a_group_costs_one_sync_however_many_roots_it_touches(roots: int) -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    group = {f"r{number}": [b"x"] for number in range(roots)}
    append(streams, **group)  # makes the folders and files
    before = files.syncs
    append(streams, **group)
    assert files.syncs - before == 1
    streams.close()


def test_a_group_is_durable_when_wait_returns_whatever_the_segments_lost() -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    append(streams, a=[b"1"], b=[b"2"])
    append(streams, a=[b"3"], b=[b"4"])
    append(streams, a=[b"5"])
    for keep in ("none", "all", "random"):
        for seed in range(5):
            found = opened("data", files=files.crash(random.Random(seed), keep))
            assert payloads_of(found, "a") == [b"1", b"3", b"5"]
            assert payloads_of(found, "b") == [b"2", b"4"]
            found.abandon()


def test_what_the_segments_lack_is_appended_from_the_journal(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1"], b=[b"2"])
    append(streams, a=[b"3"], b=[b"4"], c=[b"5"])
    streams.abandon()
    for number, root in enumerate("abc", 1):
        os.truncate(tmp_path / "streams" / f"{number}-{root}" / f"{1:020d}.log", 0)
    shutil.rmtree(tmp_path / "streams" / "3-c")
    streams, met = opened_and_met(tmp_path)
    assert [payloads_of(streams, root) for root in "abc"] == [[b"1", b"3"], [b"2", b"4"], [b"5"]]
    assert {root: found.from_journal for root, found in met.items()} == {"a": 2, "b": 2, "c": 1}
    assert os.path.getsize(tmp_path / "journal") == 0
    streams.close()


def test_a_journal_whose_batches_the_segments_have_adds_nothing(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1"], b=[b"2"])
    append(streams, a=[b"3"])
    streams.abandon()
    streams, met = opened_and_met(tmp_path)
    assert [found.from_journal for found in met.values()] == [0, 0]
    assert payloads_of(streams, "a") == [b"1", b"3"]
    streams.close()


def test_a_full_journal_starts_again_once_the_segments_are_synced() -> None:
    files = FaultyFiles()
    config = Config(journal_bytes=4096)
    streams = opened("data", config, files)
    sent = [b"%d" % number * 50 for number in range(60)]
    for payload in sent:
        append(streams, a=[payload], b=[payload])
        assert len(files.read("data/journal")) <= 2 * 4096
    found = opened("data", config, files.crash(random.Random(1), "none"))
    assert payloads_of(found, "a") == payloads_of(found, "b") == sent


def test_closing_empties_the_journal(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1"], b=[b"2"])
    assert os.path.getsize(tmp_path / "journal") > 0
    streams.close()
    assert os.path.getsize(tmp_path / "journal") == 0


# Failures


@pytest.mark.parametrize("fault", ["fail_write_at", "short_write_at"])
@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_a_write_that_fails_takes_back_the_whole_group(fault: str, write: int) -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    append(streams, a=[b"1"], b=[b"2"], c=[b"3"])
    setattr(files, fault, files.writes + write)
    with pytest.raises((Failed, DiskFull)) as refused:
        append(streams, a=[b"no"], b=[b"no"], c=[b"no"])
    assert isinstance(refused.value, DiskFull) == (fault == "short_write_at")
    append(streams, a=[b"4"], b=[b"5"])
    append(streams, c=[b"6"])
    streams.close()
    streams = opened("data", files=files)
    assert [payloads_of(streams, root) for root in "abc"] == [[b"1", b"4"], [b"2", b"5"], [b"3", b"6"]]
    streams.close()


def test_a_segment_whose_sync_fails_at_the_restart_of_the_journal_keeps_no_other_from_being_synced() -> None:
    files = FaultyFiles()
    streams = opened("data", Config(journal_bytes=4096), files)
    append(streams, a=[b"a" * 700], b=[b"b" * 700], c=[b"c" * 700])
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed, match="/1-a/"):
        append(streams, a=[b"no" * 700], b=[b"no" * 700], c=[b"no" * 700])
    assert [stream.failed is not None for stream in streams.all()] == [True, False, False]
    for number, root in ((2, "b"), (3, "c")):
        assert root.encode() * 700 in files.durable(f"data/streams/{number}-{root}/{1:020d}.log")
    append(streams, b=[b"b"], c=[b"c"])
    found = opened("data", files=files.crash(random.Random(1), "none"))
    assert [payloads_of(found, root) for root in "abc"] == [[b"a" * 700], [b"b" * 700, b"b"], [b"c" * 700, b"c"]]


def test_a_failed_sync_of_one_root_makes_that_stream_read_only_and_no_other() -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    append(streams, a=[b"1"])
    append(streams, b=[b"2"])
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed):
        append(streams, a=[b"no"])
    with pytest.raises(ReadOnly):
        append(streams, a=[b"no"])
    append(streams, b=[b"3"])
    assert payloads_of(streams, "a") == [b"1"]
    assert payloads_of(streams, "b") == [b"2", b"3"]


def test_a_failed_sync_of_the_journal_makes_every_stream_read_only() -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    append(streams, a=[b"1"], b=[b"2"])
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed):
        append(streams, a=[b"no"], b=[b"no"])
    for root in "ab":
        with pytest.raises(ReadOnly):
            append(streams, **{root: [b"no"]})
    assert [payloads_of(streams, root) for root in "ab"] == [[b"1"], [b"2"]]


def test_a_stream_whose_folder_could_not_be_made_shares_its_number_with_no_other() -> None:
    files = FaultyFiles()
    streams = opened("data", files=files)
    streams.create("a")
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed):
        streams.create("b")
    assert streams.create("b").failed is not None
    assert [streams.create(root).number for root in "abc"] == [1, 2, 3]


def test_a_group_with_a_stream_that_takes_nothing_changes_no_other() -> None:
    streams = opened("data", files=FaultyFiles())
    append(streams, a=[b"1"], b=[b"2"])
    streams.create("b").fail("for a test")
    with pytest.raises(ReadOnly):
        append(streams, a=[b"no"], b=[b"no"])
    append(streams, a=[b"3"])
    assert payloads_of(streams, "a") == [b"1", b"3"]


def test_a_group_that_fails_as_its_segment_rolls_is_taken_back() -> None:
    files = FaultyFiles()
    config = Config(segment_bytes=SEGMENT_BYTES, tail_bytes=0)
    streams = opened("data", config, files)
    append(streams, a=[bytes(60_000)], b=[b"1"])
    files.fail_write_at = files.writes + 4  # the index of the first segment, a, b, and then the journal
    with pytest.raises(Failed):
        append(streams, a=[bytes(10_000)], b=[b"no"])
    append(streams, a=[b"2"], b=[b"3"])
    streams.close()
    streams = opened("data", config, files)
    assert payloads_of(streams, "a") == [bytes(60_000), b"2"]
    assert payloads_of(streams, "b") == [b"1", b"3"]


# Beside the owner


def reader_of(folder: Path) -> Streams:
    reader = Streams(DiskFiles(), str(folder), SEED, Config(), read_only=True)
    reader.look(lambda _: [])
    return reader


def test_a_reader_beside_the_owner_reads_up_to_the_watermark(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1"])
    stream, writes = streams.create("a"), [write_of("a", b"2")]
    stream.write(writes, stream.place(writes, TIME_US))
    reader = reader_of(tmp_path)
    assert payloads_of(reader, "a") == [b"1"]
    stream.sync()
    streams.show([(stream, writes)])
    reader.look(lambda _: [])
    assert payloads_of(reader, "a") == [b"1", b"2"]
    reader.close()
    streams.close()


def test_a_reader_sees_new_segments_and_roots_when_it_looks_again(tmp_path: Path) -> None:
    streams = opened(tmp_path, Config(segment_bytes=SEGMENT_BYTES))
    append(streams, a=[b"1"])
    reader = reader_of(tmp_path)
    sent = [b"1"]
    for number in range(20):
        sent.append(b"%d" % number * 5000)
        append(streams, a=[sent[-1]], b=[b"x"])
    assert payloads_of(reader, "a") == [b"1"]
    reader.look(lambda _: [])
    assert payloads_of(reader, "a") == sent
    assert len(payloads_of(reader, "b")) == 20
    reader.close()
    streams.close()


def test_a_reader_passes_over_a_root_that_its_owner_is_about_to_make(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1"])
    (tmp_path / "streams" / "2-b").mkdir()  # its watermark and its line come next
    reader = reader_of(tmp_path)
    assert [stream.root for stream in reader.all()] == ["a"]
    assert payloads_of(reader, "a") == [b"1"]
    append(streams, b=[b"2"])
    reader.look(lambda _: [])
    assert payloads_of(reader, "b") == [b"2"]
    reader.close()
    streams.close()


def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    streams = opened(tmp_path)
    append(streams, a=[b"1"], b=[b"2"])

    def everything() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}

    before = everything()
    reader = reader_of(tmp_path)
    payloads_of(reader, "a")
    reader.close()
    assert everything() == before
    streams.close()


def test_a_reader_that_looks_at_deleted_segments_gets_a_hole(tmp_path: Path) -> None:
    config = Config(segment_bytes=SEGMENT_BYTES)
    streams = opened(tmp_path, config)
    for _ in range(30):
        append(streams, a=[bytes(5000)])
    reader = reader_of(tmp_path)
    stream = streams.create("a")
    first = stream.trim(stream.segments[-1].base - 1)
    found = payloads_of(reader, "a")
    gone = [hole for hole in found if isinstance(hole, tuple)]
    assert [offset for hole in gone for offset in range(hole[0], hole[1] + 1)] == list(range(1, first))
    assert found[len(gone) :] == [bytes(5000)] * (31 - first)
    reader.close()
    streams.close()


# Memory


def test_the_newest_batches_of_all_roots_together_stay_within_their_limit(tmp_path: Path) -> None:
    streams = opened(tmp_path, Config(tails_bytes=50_000))
    for number in range(40):
        append(streams, **{f"r{number % 8}": [bytes(3000)]})
        assert sum(stream.tail.bytes for stream in streams.all()) <= 50_000 + 3200
    assert all(payloads_of(streams, f"r{number}") == [bytes(3000)] * 5 for number in range(8))
    streams.close()


def test_a_root_that_has_no_room_for_its_cell_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    streams = opened("data", files=files)
    append(streams, a=[b"1"])
    cells = files.cells("data/watermarks")

    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(type(cells), "set", fill)
        with pytest.raises(DiskFull):
            streams.create("b")
    streams.close()
    again, met = opened_and_met("data", files=files)
    assert list(met) == ["a"]
    assert again.create("b").number == 2
