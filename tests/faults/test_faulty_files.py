"""The doubles for disk and state lose what they may lose, and nothing else: a double that cannot is worth nothing."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.faulty_files import SECTOR_BYTES, Crash, FaultyFiles, Keep
from faults.faulty_state import FaultyState
from headwater.errors import Owned
from headwater.store.files import File

SEEDS = range(200)
MODES: tuple[Keep, ...] = get_args(Keep)
OLD, NEW = b"o" * 4 * SECTOR_BYTES, b"n" * 4 * SECTOR_BYTES


@pytest.fixture
def files() -> FaultyFiles:
    files = FaultyFiles()
    files.make_folder("data")
    return files


def synced_file(files: FaultyFiles, path: str, content: bytes) -> File:
    """A file that is durable, with its name."""
    file = files.open(path, create=True)
    file.pwritev([content], 0)
    file.datasync()
    files.sync_folder("data")
    return file


def found(files: FaultyFiles, path: str, keep: Keep = "random") -> set[bytes | None]:
    """What may be read there after a crash; None if the file is gone. To go on, take `files.process_kill()`."""
    disks = [files.crash(random.Random(seed), keep) for seed in SEEDS]
    return {disk.read(path) if disk.exists(path) else None for disk in disks}


# What a crash keeps and loses


@pytest.mark.parametrize("keep", MODES)
def test_synced_data_under_a_synced_name_survives_every_crash(files: FaultyFiles, keep: Keep) -> None:
    synced_file(files, "data/log", OLD)
    assert found(files, "data/log", keep) == {OLD}


def test_an_unsynced_write_may_be_lost_kept_or_torn(files: FaultyFiles) -> None:
    synced_file(files, "data/log", OLD).pwritev([NEW], 0)
    after = found(files, "data/log")
    assert {OLD, NEW} < after
    assert len(after) > 10
    for content in after:
        assert content is not None
        sectors = [content[start : start + SECTOR_BYTES] for start in range(0, len(content), SECTOR_BYTES)]
        assert set(sectors) <= {OLD[:SECTOR_BYTES], NEW[:SECTOR_BYTES]}, "a sector is written wholly or not at all"


def test_a_torn_write_tears_at_the_disks_sectors_not_at_its_own(files: FaultyFiles) -> None:
    synced_file(files, "data/log", bytes(1000)).pwritev([b"n" * 700], 100)
    edges = {content.find(b"n") for content in found(files, "data/log") if content}
    assert edges == {-1, 100, 512}


def test_of_two_unsynced_writes_the_second_may_survive_alone(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"")
    file.pwritev([b"first"], 0)
    file.pwritev([b"second"], 5)
    assert {b"", b"first", b"firstsecond", b"\0\0\0\0\0second"} <= found(files, "data/log")


def test_a_length_may_survive_without_its_data(files: FaultyFiles) -> None:
    synced_file(files, "data/log", b"old").pwritev([b"new"], 3)
    assert found(files, "data/log") == {b"old", b"oldnew", b"old\0\0\0"}


def test_cuts_and_allocations_may_be_lost_too(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"abcdef")
    file.truncate(3)
    file.allocate(0, 8)
    assert found(files, "data/log") == {b"abcdef", b"abcdef\0\0", b"abc", b"abc\0\0\0\0\0"}


def test_keeping_none_loses_everything_unsynced_and_keeping_all_nothing(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"old")
    file.pwritev([b"new"], 1)
    files.open("data/other", create=True).pwritev([b"x"], 0)
    assert found(files, "data/log", "none") == {b"old"}
    assert found(files, "data/other", "none") == {None}
    assert found(files, "data/log", "all") == {b"onew"}
    assert found(files, "data/other", "all") == {b"x"}


def test_keeping_a_prefix_loses_a_tail_and_tears_at_most_where_it_starts(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"")
    whole = bytes(range(1, 6))
    for position, byte in enumerate(whole):
        file.pwritev([bytes([byte]) * SECTOR_BYTES * 2], position * SECTOR_BYTES * 2)
    everything = b"".join(bytes([byte]) * SECTOR_BYTES * 2 for byte in whole)
    expected = {everything[:size] for size in range(0, len(everything) + 1, SECTOR_BYTES)}
    assert found(files, "data/log", "prefix") == expected


def test_a_sync_is_of_one_file(files: FaultyFiles) -> None:
    one = synced_file(files, "data/one", b"")
    other = synced_file(files, "data/other", b"")
    one.pwritev([b"1"], 0)
    other.pwritev([b"2"], 0)
    one.datasync()
    assert found(files, "data/one") == {b"1"}
    assert b"" in found(files, "data/other")


def test_files_lose_their_writes_independently_of_each_other(files: FaultyFiles) -> None:
    for path in ("data/one", "data/other"):
        synced_file(files, path, b"").pwritev([b"x"], 0)
    disks = [files.crash(random.Random(seed)) for seed in SEEDS]
    assert {(disk.read("data/one") == b"x", disk.read("data/other") == b"x") for disk in disks} == {
        (False, False), (False, True), (True, False), (True, True)
    }  # fmt: skip


def test_the_same_seed_makes_the_same_crash(files: FaultyFiles) -> None:
    for number in range(5):
        files.open(f"data/{number}", create=True).pwritev([NEW], number)
    one, other = (files.crash(random.Random(7)) for _ in range(2))
    assert one.list("data") == other.list("data")
    assert [one.read(f"data/{name}") for name in one.list("data")] == [
        other.read(f"data/{name}") for name in other.list("data")
    ]


def test_what_a_crash_left_is_durable_and_can_be_worked_on(files: FaultyFiles) -> None:
    synced_file(files, "data/log", b"old").pwritev([b"new"], 0)
    disk = files.crash(random.Random(0), "all")
    assert disk.durable("data/log") == b"new"
    disk.open("data/log").pwritev([b"newer"], 0)
    assert disk.durable("data/log") == b"new"
    assert disk.read("data/log") == b"newer"


# Names


def test_a_synced_file_under_an_unsynced_name_can_vanish(files: FaultyFiles) -> None:
    file = files.open("data/log", create=True)
    file.pwritev([b"synced"], 0)
    file.datasync()
    assert found(files, "data/log") == {None, b"synced"}
    with pytest.raises(FileNotFoundError):
        files.durable("data/log")
    files = files.process_kill()
    files.sync_folder("data")
    assert found(files, "data/log") == {b"synced"}
    assert files.durable("data/log") == b"synced"


def test_a_synced_name_does_not_make_its_data_durable(files: FaultyFiles) -> None:
    files.open("data/log", create=True).pwritev([b"x"], 0)
    files.sync_folder("data")
    assert found(files, "data/log") == {b"", b"\0", b"x"}


def test_a_removed_file_can_come_back_until_its_folder_is_synced(files: FaultyFiles) -> None:
    synced_file(files, "data/log", b"x")
    files.remove("data/log")
    assert found(files, "data/log") == {None, b"x"}
    files = files.process_kill()
    files.sync_folder("data")
    assert found(files, "data/log") == {None}


def test_a_rename_happens_wholly_or_not_at_all(files: FaultyFiles) -> None:
    synced_file(files, "data/old", b"1")
    synced_file(files, "data/new", b"2")
    files.rename("data/old", "data/new")
    disks = [files.crash(random.Random(seed)) for seed in SEEDS]
    states = {(tuple(disk.list("data")), disk.read("data/new")) for disk in disks}
    assert states == {(("new", "old"), b"2"), (("new",), b"1")}


def test_a_rename_between_folders_loses_nothing_whichever_is_synced(files: FaultyFiles) -> None:
    files.make_folder("data/a")
    files.make_folder("data/b")
    files.open("data/a/log", create=True)
    files.sync_folder("data/a")
    files.rename("data/a/log", "data/b/log")
    for disk in (files.crash(random.Random(seed)) for seed in SEEDS):
        assert disk.exists("data/a/log") != disk.exists("data/b/log")


def test_a_link_is_a_name_of_its_own_to_the_same_file(files: FaultyFiles) -> None:
    synced_file(files, "data/old", b"x")
    files.link("data/old", "data/new")
    assert found(files, "data/new") == {None, b"x"}
    files = files.process_kill()
    files.sync_folder("data")
    disk = files.crash(random.Random(0))
    disk.open("data/old").pwritev([b"y"], 0)
    assert disk.read("data/new") == b"y"


def test_a_made_folder_is_durable_and_so_are_those_above_it(files: FaultyFiles) -> None:
    files.make_folder("data/streams/7-home")
    assert files.crash(random.Random(0), "none").exists("data/streams/7-home")


def test_a_folder_whose_sync_a_crash_prevented_takes_its_files_along(files: FaultyFiles) -> None:
    files.on_sync = stop_at(files.syncs + 2)  # the first is of the folder above, which is there
    with pytest.raises(Crash):
        files.make_folder("data/streams")
    disk = files.process_kill()
    file = disk.open("data/streams/log", create=True)
    file.datasync()
    disk.sync_folder("data/streams")
    assert found(disk, "data/streams/log") == {None, b""}
    disk = disk.process_kill()
    disk.make_folder("data/streams")  # as the next process does at its start
    assert found(disk, "data/streams/log") == {b""}


def test_removing_a_tree_can_stop_anywhere(files: FaultyFiles) -> None:
    files.make_folder("data/tree")
    for name in "abc":
        files.write(f"data/tree/{name}", b"")
    files.remove_tree("data/tree")
    assert not files.exists("data/tree")
    left = {tuple(disk.list("data/tree")) for disk in (files.crash(random.Random(seed)) for seed in SEEDS)}
    assert {(), ("a", "b", "c"), ("b",), ("a", "c")} <= left


def test_a_small_file_has_its_old_content_or_its_new_wherever_the_crash_is(files: FaultyFiles) -> None:
    files.write("data/VERSION", OLD)
    for point in (1, 2):
        disk = files.process_kill()
        disk.on_sync = stop_at(point)
        with pytest.raises(Crash):
            disk.write("data/VERSION", NEW)
        assert found(disk, "data/VERSION") == ({OLD} if point == 1 else {OLD, NEW})
    done = files.process_kill()
    done.write("data/VERSION", NEW)
    assert done.syncs == 2
    assert found(done, "data/VERSION") == {NEW}


# The end of a disk, and of a process


@pytest.mark.parametrize("end", ["crash", "process_kill"])
def test_what_was_open_before_the_end_is_dead(files: FaultyFiles, end: str) -> None:
    file = synced_file(files, "data/log", b"x")
    cells = files.cells("data/watermarks")
    lock = files.lock("data/owner.lock")
    disk = files.crash(random.Random(0), "all") if end == "crash" else files.process_kill()
    uses: Iterable[Callable[[], object]] = (
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"y"], 0),
        lambda: file.truncate(0),
        lambda: file.allocate(0, 9),
        file.datasync,
        file.size,
        lambda: cells.get(0),
        lambda: cells.set(0, 1),
        cells.sync,
        lambda: files.open("data/log"),
        lambda: files.write("data/log", b"y"),
        lambda: files.list("data"),
    )
    for use in uses:
        with pytest.raises(OSError, match="crashed"):
            use()
    file.close()
    cells.close()
    lock.release()
    assert disk.read("data/log") == b"x"


@pytest.mark.parametrize("end", ["crash", "process_kill"])
def test_the_lock_ends_with_its_process(files: FaultyFiles, end: str) -> None:
    lock = files.lock("data/owner.lock")
    disk = files.crash(random.Random(0)) if end == "crash" else files.process_kill()
    mine = disk.lock("data/owner.lock")
    lock.release()
    with pytest.raises(Owned):
        disk.lock("data/owner.lock")
    mine.release()


def test_a_killed_process_leaves_everything_it_wrote_and_nothing_more_durable(files: FaultyFiles) -> None:
    synced_file(files, "data/log", b"old").pwritev([b"new"], 0)
    files.open("data/other", create=True).pwritev([b"x"], 0)
    disk = files.process_kill()
    assert disk.read("data/log") == b"new"
    assert disk.read("data/other") == b"x"
    assert disk.durable("data/log") == b"old"
    assert found(disk, "data/other", "none") == {None}
    again = files.process_kill()
    again.open("data/log").datasync()
    assert again.durable("data/log") == b"new"


def test_after_a_crash_from_the_hook_nothing_more_reaches_the_disk(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"old")
    files.on_sync = stop_at(files.syncs + 1)
    file.pwritev([b"new"], 0)
    with pytest.raises(Crash):
        file.datasync()
    with pytest.raises(Crash):
        files.remove("data/log")  # as a finally: of the code under test would
    file.close()
    assert found(files, "data/log") == {b"old", b"new"}


def test_the_hook_is_told_of_each_sync_before_it_happens(files: FaultyFiles) -> None:
    seen: list[tuple[str, int, bytes]] = []
    file = synced_file(files, "data/log", b"")
    first = files.syncs + 1
    files.on_sync = lambda path, number: seen.append((path, number, files.durable("data/log")))
    file.pwritev([b"x"], 0)
    file.datasync()
    files.sync_folder("data")
    assert seen == [("data/log", first, b""), ("data", first + 1, b"x")]


def test_other_threads_can_work_while_the_hook_waits(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"")

    def wait_for_other(path: str, number: int) -> None:
        thread = threading.Thread(target=lambda: file.pwritev([b"x"], 0))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    files.on_sync = wait_for_other
    file.datasync()
    assert files.read("data/log") == b"x"


# Faults


def test_a_failed_sync_leaves_its_data_in_doubt_even_after_the_next(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"....")
    files.fail_sync_at = files.syncs + 1
    file.pwritev([b"a"], 0)
    with pytest.raises(OSError) as raised:
        file.datasync()
    assert raised.value.errno == errno.EIO
    assert file.pread(4, 0) == b"a..."
    file.pwritev([b"b"], 1)
    file.datasync()
    assert files.durable("data/log") == b".b.."
    assert found(files, "data/log") == {b".b..", b"ab.."}
    files = files.process_kill()
    file = files.open("data/log")
    file.pwritev([b"c"], 0)
    file.datasync()
    assert found(files, "data/log") == {b"cb.."}


def test_a_failed_sync_of_a_folder_leaves_its_names_in_doubt_even_after_the_next(files: FaultyFiles) -> None:
    files.fail_sync_at = files.syncs + 1
    files.open("data/one", create=True)
    with pytest.raises(OSError):
        files.sync_folder("data")
    files.open("data/other", create=True)
    files.sync_folder("data")
    assert found(files, "data/one") == {None, b""}
    assert found(files, "data/other") == {b""}


def test_a_failed_write_writes_nothing_and_the_next_is_fine(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"")
    files.fail_write_at = files.writes + 1
    with pytest.raises(OSError) as raised:
        file.pwritev([b"abcd"], 0)
    assert raised.value.errno == errno.EIO
    assert file.size() == 0
    file.pwritev([b"abcd"], 0)
    assert file.size() == 4


def test_a_short_write_writes_a_part_and_says_that_the_disk_is_full(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"")
    files.short_write_at = files.writes + 1
    with pytest.raises(OSError) as raised:
        file.pwritev([b"ab", b"cd"], 0)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(9, 0) == b"ab"


def test_a_full_disk_takes_what_fits_and_goes_on_when_there_is_room(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"abcd")
    files.capacity_bytes = 10
    assert files.free_bytes("data") == 6
    with pytest.raises(OSError) as raised:
        file.pwritev([b"x" * 20], 4)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(99, 0) == b"abcdxxxxxx"
    assert files.free_bytes("data") == 0
    file.pwritev([b"over"], 0)  # takes no room
    file.truncate(4)
    assert files.free_bytes("data") == 6
    with pytest.raises(OSError):
        file.allocate(0, 11)
    assert file.size() == 4
    files.capacity_bytes = 100
    file.allocate(0, 50)
    assert files.free_bytes("data") == 50
    assert files.crash(random.Random(0)).capacity_bytes == 100


def test_a_small_file_that_does_not_fit_leaves_the_old_one(files: FaultyFiles) -> None:
    files.write("data/VERSION", b"1")
    files.capacity_bytes = 2
    with pytest.raises(OSError):
        files.write("data/VERSION", b"too long")
    assert files.read("data/VERSION") == b"1"
    assert files.list("data") == ["VERSION"]


# Rot


def test_a_flipped_bit_is_seen_at_once_and_after_a_crash(files: FaultyFiles) -> None:
    file = synced_file(files, "data/log", b"\x00\x00\x00")
    files.flip("data/log", 1, bit=3)
    assert file.pread(3, 0) == b"\x00\x08\x00"
    assert files.durable("data/log") == b"\x00\x08\x00"
    assert found(files, "data/log") == {b"\x00\x08\x00"}
    files.flip("data/log", 1, bit=3)
    assert found(files, "data/log") == {b"\x00\x00\x00"}


def test_a_flip_goes_under_what_is_written_on_top_of_it(files: FaultyFiles) -> None:
    synced_file(files, "data/log", b"\x00\x00").pwritev([b"\xff"], 0)
    files.flip("data/log", 0)
    assert files.read("data/log") == b"\xff\x00"
    assert files.durable("data/log") == b"\x01\x00"
    with pytest.raises(IndexError):
        files.flip("data/log", 2)


def test_a_cut_takes_away_what_was_durable(files: FaultyFiles) -> None:
    synced_file(files, "data/log", b"abcdef")
    files.cut("data/log", 2)
    assert files.read("data/log") == b"ab"
    assert found(files, "data/log") == {b"ab"}
    with pytest.raises(ValueError, match="fewer than 3"):
        files.cut("data/log", 3)


# Cells


def test_an_unsynced_cell_may_have_any_value_since_its_sync(files: FaultyFiles) -> None:
    cells = files.cells("data/watermarks")
    cells.set(0, 1)
    cells.set(0, 2)
    cells.sync()
    files.sync_folder("data")
    for value in (3, 4, 5):
        cells.set(0, value)
    cells.set(1, 9)
    disks = [files.crash(random.Random(seed)) for seed in SEEDS]
    assert {disk.cells("data/watermarks").get(0) for disk in disks} == {2, 3, 4, 5}
    both = {(disk.cells("data/watermarks").get(0), disk.cells("data/watermarks").get(1)) for disk in disks}
    assert {(2, 0), (2, 9), (5, 0), (5, 9)} <= both
    assert files.crash(random.Random(0), "none").cells("data/watermarks").get(0) == 2
    assert files.crash(random.Random(0), "all").cells("data/watermarks").get(0) == 5
    assert files.process_kill().cells("data/watermarks").get(0) == 5


def test_stores_into_cells_are_no_writes_but_take_room_when_they_grow(files: FaultyFiles) -> None:
    cells = files.cells("data/watermarks")
    writes = files.writes
    cells.set(0, 1)
    assert files.writes == writes
    files.capacity_bytes = 4096
    with pytest.raises(OSError):
        cells.set(512, 1)
    assert cells.get(0) == 1


# The model as a whole


class Model:
    """What must be true of one file, on a screen: the values each byte may have after a crash."""

    def __init__(self) -> None:
        self.seen = bytearray(64)
        self.durable = bytearray(64)
        self.since: list[set[int]] = [set() for _ in range(64)]

    def write(self, position: int, data: bytes) -> None:
        self.seen[position : position + len(data)] = data
        for offset, byte in enumerate(data):
            self.since[position + offset].add(byte)

    def sync(self) -> None:
        self.durable[:] = self.seen
        self.since = [set() for _ in range(64)]


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 56), st.binary(min_size=1, max_size=8)),
        st.just("sync"),
        st.just("kill"),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(steps=steps, seed=st.integers(), keep=st.sampled_from(MODES))
def test_a_crash_leaves_each_byte_with_its_durable_value_or_one_written_since(
    steps: list[tuple[int, bytes] | str], seed: int, keep: Keep
) -> None:
    files, model = FaultyFiles(), Model()
    files.make_folder("data")
    file = synced_file(files, "data/log", bytes(64))
    for step in steps:
        if isinstance(step, tuple):
            file.pwritev([step[1]], step[0])
            model.write(*step)
        elif step == "sync":
            file.datasync()
            model.sync()
        else:
            files = files.process_kill()
            file = files.open("data/log")
    assert file.pread(64, 0) == model.seen
    assert files.durable("data/log") == model.durable
    content = files.crash(random.Random(seed), keep).read("data/log")
    assert len(content) == 64
    for byte, durable, since in zip(content, model.durable, model.since, strict=True):
        assert byte == durable or byte in since


# The state


def test_the_state_shows_its_rows_in_the_order_of_their_keys() -> None:
    state = FaultyState()
    state.write({b"Ab": b"2", b"Aa": b"1", b"B": b"3", b"Ac": b"4"})
    state.write({b"Ab": None, b"missing": None})
    assert state.get(b"Aa") == b"1"
    assert state.get(b"Ab") is None
    assert list(state.scan(b"A")) == [(b"Aa", b"1"), (b"Ac", b"4")]
    assert list(state.scan(b"A", start=b"Aa")) == [(b"Aa", b"1"), (b"Ac", b"4")]
    assert list(state.scan(b"A", start=b"Ab")) == [(b"Ac", b"4")]
    assert list(state.scan(b"")) == [(b"Aa", b"1"), (b"Ac", b"4"), (b"B", b"3")]


def test_a_scan_shows_the_rows_of_its_start() -> None:
    state = FaultyState({b"a": b"1", b"b": b"2"})
    rows = state.scan(b"")
    state.write({b"a": None, b"c": b"3"})
    assert list(rows) == [(b"a", b"1"), (b"b", b"2")]


def test_a_crash_of_the_state_loses_a_tail_of_whole_batches() -> None:
    state = FaultyState()
    state.write({b"a": b"0", b"z": b"0"})
    state.sync()
    for number in (b"1", b"2", b"3"):
        state.write({b"a": number, b"b": number, b"z": None})
    crashes = [state.crash(random.Random(seed)) for seed in SEEDS]
    found = {tuple(crash.scan(b"")) for crash in crashes}
    assert found == {
        ((b"a", b"0"), (b"z", b"0")),
        ((b"a", b"1"), (b"b", b"1")),
        ((b"a", b"2"), (b"b", b"2")),
        ((b"a", b"3"), (b"b", b"3")),
    }
    assert state.crash(random.Random(0), "none").get(b"a") == b"0"
    assert state.crash(random.Random(0), "all").get(b"a") == b"3"
    assert state.durable() == {b"a": b"0", b"z": b"0"}
    with pytest.raises(OSError, match="crashed"):
        state.get(b"a")
    state.close()


def test_a_killed_process_leaves_a_state_that_is_whole_and_as_little_durable() -> None:
    state = FaultyState()
    state.write({b"a": b"1"})
    after = state.process_kill()
    assert after.get(b"a") == b"1"
    assert after.crash(random.Random(0), "none").get(b"a") is None


def test_a_failed_sync_of_the_state_ends_its_log() -> None:
    state = FaultyState()
    state.fail_sync_at = 2
    state.write({b"a": b"1"})
    state.sync()
    state.write({b"a": b"2"})
    for attempt in (state.sync, state.sync, lambda: state.write({b"a": b"3"})):
        with pytest.raises(OSError) as raised:
            attempt()
        assert raised.value.errno == errno.EIO
    assert state.get(b"a") == b"2"
    assert {state.crash(random.Random(seed)).get(b"a") for seed in SEEDS} == {b"1", b"2"}


def test_the_hook_of_the_state_can_stop_it_before_a_sync() -> None:
    state = FaultyState()
    state.on_sync = lambda number: stop_at(1)("state", number)
    state.write({b"a": b"1"})
    with pytest.raises(Crash):
        state.sync()
    with pytest.raises(Crash):
        state.write({b"a": b"2"})
    assert state.crash(random.Random(0), "none").get(b"a") is None


def test_a_snapshot_of_the_state_has_its_rows_and_a_crash_leaves_it() -> None:
    state = FaultyState()
    state.write({b"a": b"1"})
    state.snapshot("backup/state")
    state.write({b"a": b"2"})
    assert state.snapshots == {"backup/state": {b"a": b"1"}}


def stop_at(point: int) -> Callable[[str, int], None]:
    """A hook that crashes at a sync, by number."""

    def hook(path: str, number: int) -> None:
        if number == point:
            raise Crash

    return hook
