"""The door to disk: the same tests for the real one, the one in memory and the faulty one."""

from __future__ import annotations

import errno
import mmap
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from faults.faulty_files import FaultyFiles
from headwater.errors import Owned
from headwater.store import files as door
from headwater.store.disk_file import IOV_MAX, DiskFile
from headwater.store.files import DiskFiles, Files
from headwater.store.memory_files import MemoryFiles


class Place(NamedTuple):
    """A file system and a folder in it."""

    files: Files
    folder: str

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


@pytest.fixture(params=[DiskFiles, MemoryFiles, FaultyFiles])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[], Files] = request.param
    files = make()
    files.make_folder(str(tmp_path))
    return Place(files, str(tmp_path))


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    return Place(DiskFiles(), str(tmp_path))


# Files


def test_a_missing_file_is_not_opened_unless_it_is_to_be_created(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.open(place.path("log"))
    place.files.open(place.path("log"), create=True).close()
    assert place.files.open(place.path("log")).size() == 0


def test_opening_with_create_leaves_a_file_as_it_is(place: Place) -> None:
    place.files.write(place.path("log"), b"here already")
    assert place.files.open(place.path("log"), create=True).pread(100, 0) == b"here already"


def test_a_file_is_not_created_in_a_missing_folder(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.open(place.path("no/log"), create=True)


def test_what_is_written_at_a_position_is_read_there(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"abc", b"", b"defg"], 0)
    file.pwritev([b"XY"], 2)
    file.pwritev([b"!"], 7)
    assert file.pread(100, 0) == b"abXYefg!"
    assert file.pread(3, 2) == b"XYe"
    assert file.size() == 8


def test_a_write_behind_the_end_leaves_zeros_between(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"end"], 5)
    assert file.pread(8, 0) == b"\0\0\0\0\0end"


def test_a_write_of_nothing_changes_nothing(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([], 0)
    file.pwritev([b"", b""], 0)
    assert file.size() == 0


def test_a_read_at_the_end_is_short(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"abc"], 0)
    assert file.pread(10, 1) == b"bc"
    assert file.pread(10, 3) == b""
    assert file.pread(10, 30) == b""


def test_more_buffers_than_the_kernel_takes_at_once_are_all_written(place: Place) -> None:
    buffers = [b"%05d" % number for number in range(3 * IOV_MAX + 7)]
    file = place.files.open(place.path("log"), create=True)
    file.pwritev(buffers, 3)
    assert file.pread(1 << 20, 3) == b"".join(buffers)


@pytest.mark.parametrize("lengths", [[1 << 20] * 5, [0] * 3000, [3, 5 << 20, 7, 0, 11], [9 << 20], [0, 9 << 20]])
def test_more_than_is_written_at_once_is_all_written(place: Place, lengths: list[int]) -> None:
    buffers = [bytes([number % 251]) * length for number, length in enumerate(lengths, 1)]
    file = place.files.open(place.path("log"), create=True)
    file.pwritev(buffers, 4)
    assert file.pread(sum(lengths) + 1, 4) == b"".join(buffers)


def test_two_who_have_a_file_open_see_the_same(place: Place) -> None:
    one = place.files.open(place.path("log"), create=True)
    other = place.files.open(place.path("log"), write=False)
    one.pwritev([b"seen"], 0)
    assert other.pread(4, 0) == b"seen"


def test_a_file_can_be_cut_and_lengthened(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"abcdef"], 0)
    file.truncate(3)
    assert file.pread(10, 0) == b"abc"
    file.truncate(5)
    assert file.pread(10, 0) == b"abc\0\0"


def test_allocated_space_reads_as_zeros_or_is_not_there(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"abc"], 0)
    file.allocate(0, 4096)
    assert file.pread(8192, 0).rstrip(b"\0") == b"abc"
    assert file.size() in {3, 4096}


def test_a_file_opened_for_reading_is_not_written(place: Place) -> None:
    place.files.write(place.path("log"), b"abc")
    file = place.files.open(place.path("log"), write=False)
    with pytest.raises(OSError) as raised:
        file.pwritev([b"x"], 0)
    assert raised.value.errno == errno.EBADF
    assert place.files.read(place.path("log")) == b"abc"


def test_a_closed_file_is_refused_and_may_be_closed_again(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"abc"], 0)
    file.datasync()
    file.close()
    file.close()
    for use in (lambda: file.pread(1, 0), lambda: file.pwritev([b"x"], 0), file.datasync, file.size):
        with pytest.raises((OSError, ValueError)):
            use()


def test_a_removed_file_stays_for_those_who_have_it_open(place: Place) -> None:
    file = place.files.open(place.path("log"), create=True)
    file.pwritev([b"abc"], 0)
    place.files.remove(place.path("log"))
    assert file.pread(3, 0) == b"abc"
    assert not place.files.exists(place.path("log"))


# Names


def test_a_folder_lists_its_files_and_folders_sorted(place: Place) -> None:
    for name in ("b", "a", "c"):
        place.files.write(place.path(name), b"")
    place.files.make_folder(place.path("b2/below"))
    assert place.files.list(place.folder) == ["a", "b", "b2", "c"]
    assert place.files.list(place.path("b2")) == ["below"]


def test_a_missing_folder_lists_nothing(place: Place) -> None:
    assert place.files.list(place.path("no")) == []


def test_a_folder_that_is_there_may_be_made_again(place: Place) -> None:
    place.files.make_folder(place.path("a/b"))
    place.files.write(place.path("a/b/c"), b"kept")
    place.files.make_folder(place.path("a/b/"))
    assert place.files.read(place.path("a/b/c")) == b"kept"


def test_a_folder_is_not_made_where_a_file_is(place: Place) -> None:
    place.files.write(place.path("a"), b"")
    with pytest.raises(OSError) as raised:
        place.files.make_folder(place.path("a"))
    assert raised.value.errno in {errno.EEXIST, errno.ENOTDIR}


def test_removing_what_is_missing_is_fine(place: Place) -> None:
    place.files.remove(place.path("no"))
    place.files.remove_tree(place.path("no"))


def test_a_tree_is_removed_with_everything_in_it(place: Place) -> None:
    place.files.make_folder(place.path("tree/a/b"))
    place.files.write(place.path("tree/a/b/c"), b"")
    place.files.write(place.path("tree2"), b"")
    place.files.remove_tree(place.path("tree"))
    assert not place.files.exists(place.path("tree"))
    assert not place.files.exists(place.path("tree/a/b/c"))
    assert place.files.list(place.folder) == ["tree2"]


def test_a_rename_takes_the_place_of_the_file_that_had_the_name(place: Place) -> None:
    place.files.write(place.path("old"), b"old")
    place.files.write(place.path("new"), b"new")
    place.files.rename(place.path("old"), place.path("new"))
    assert place.files.list(place.folder) == ["new"]
    assert place.files.read(place.path("new")) == b"old"
    with pytest.raises(FileNotFoundError):
        place.files.rename(place.path("old"), place.path("new"))


def test_a_renamed_folder_takes_its_content_along(place: Place) -> None:
    place.files.make_folder(place.path("a/b"))
    place.files.write(place.path("a/b/c"), b"kept")
    place.files.rename(place.path("a"), place.path("z"))
    assert place.files.read(place.path("z/b/c")) == b"kept"
    assert not place.files.exists(place.path("a/b"))


def test_a_link_is_a_second_name_for_the_same_file(place: Place) -> None:
    place.files.write(place.path("old"), b"abc")
    place.files.link(place.path("old"), place.path("new"))
    place.files.open(place.path("old")).pwritev([b"X"], 1)
    place.files.remove(place.path("old"))
    assert place.files.read(place.path("new")) == b"aXc"


def test_a_link_to_a_name_that_is_taken_is_refused(place: Place) -> None:
    place.files.write(place.path("old"), b"abc")
    place.files.write(place.path("new"), b"def")
    with pytest.raises(FileExistsError):
        place.files.link(place.path("old"), place.path("new"))
    assert place.files.read(place.path("new")) == b"def"


def test_a_folder_can_be_synced_and_a_missing_one_not(place: Place) -> None:
    place.files.sync_folder(place.folder)
    with pytest.raises(FileNotFoundError):
        place.files.sync_folder(place.path("no"))


def test_a_small_file_is_replaced_whole_and_leaves_nothing_beside_it(place: Place) -> None:
    place.files.write(place.path("VERSION"), b"a long first version")
    place.files.write(place.path("VERSION"), b"2")
    assert place.files.read(place.path("VERSION")) == b"2"
    assert place.files.list(place.folder) == ["VERSION"]


def test_what_a_crash_left_beside_a_small_file_does_not_get_into_it(place: Place) -> None:
    place.files.open(place.path("VERSION.tmp"), create=True).pwritev([b"half of something long"], 0)
    place.files.write(place.path("VERSION"), b"2")
    assert place.files.read(place.path("VERSION")) == b"2"


def test_reading_a_missing_file_says_so(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.read(place.path("no"))


def test_there_is_room(place: Place) -> None:
    assert place.files.free_bytes(place.folder) > 0


def test_a_secret_is_as_long_as_asked_for(place: Place) -> None:
    assert [len(place.files.secret(length)) for length in (0, 1, 8, 100)] == [0, 1, 8, 100]


@pytest.mark.parametrize("files", [DiskFiles(), MemoryFiles()])
def test_no_two_secrets_are_alike(files: Files) -> None:
    assert len({files.secret(8) for _ in range(100)}) == 100


# Ownership


def test_a_folder_has_one_owner_at_a_time(place: Place) -> None:
    lock = place.files.lock(place.path("owner.lock"))
    with pytest.raises(Owned, match="is owned by this process; close it there, or open it here with read_only=True"):
        place.files.lock(place.path("owner.lock"))
    lock.release()
    lock.release()
    place.files.lock(place.path("owner.lock")).release()


def test_releasing_a_lock_twice_does_not_release_the_next_owners(place: Place) -> None:
    first = place.files.lock(place.path("owner.lock"))
    first.release()
    second = place.files.lock(place.path("owner.lock"))
    first.release()
    with pytest.raises(Owned):
        place.files.lock(place.path("owner.lock"))
    second.release()


def test_the_lock_file_holds_the_owners_pid(place: Place) -> None:
    place.files.write(place.path("owner.lock"), b"12345678901\n")
    lock = place.files.lock(place.path("owner.lock"))
    assert place.files.read(place.path("owner.lock")) == b"%d\n" % os.getpid()
    lock.release()


@contextmanager
def other_process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A second Python; what it prints and reads is how the test talks with it."""
    source = str(Path(door.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


OWN = """
import sys
from headwater.store.files import DiskFiles
lock = DiskFiles().lock(sys.argv[1])
print("mine", flush=True)
input()
"""


def test_a_folder_of_another_process_is_refused_with_its_pid(disk: Place) -> None:
    with other_process(OWN, disk.path("owner.lock")) as owner:
        assert said(owner) == "mine"
        with pytest.raises(Owned) as raised:
            disk.files.lock(disk.path("owner.lock"))
        assert str(raised.value) == (
            f'Owned(409): "{disk.folder}" is owned by process {owner.pid}; '
            "close it there, or open it here with read_only=True"
        )
        assert raised.value.retryable


def test_a_killed_process_owns_nothing(disk: Place) -> None:
    with other_process(OWN, disk.path("owner.lock")) as owner:
        assert said(owner) == "mine"
        owner.kill()
        owner.wait()
        disk.files.lock(disk.path("owner.lock")).release()


def test_an_owner_that_has_not_written_its_pid_yet_is_called_another_process(disk: Place) -> None:
    lock = disk.files.lock(disk.path("owner.lock"))
    disk.files.open(disk.path("owner.lock")).truncate(0)
    with pytest.raises(Owned, match="is owned by another process"):
        disk.files.lock(disk.path("owner.lock"))
    lock.release()


FORK = """
import os, sys
from headwater.store.files import DiskFiles
lock = DiskFiles().lock(sys.argv[1])
if os.fork() == 0:
    lock.release()
    os._exit(0)
os.wait()
print("forked", flush=True)
input()
"""


def test_a_forked_child_does_not_release_its_parents_lock(disk: Place) -> None:
    with other_process(FORK, disk.path("owner.lock")) as owner:
        assert said(owner) == "forked"
        with pytest.raises(Owned, match=f"process {owner.pid};"):
            disk.files.lock(disk.path("owner.lock"))


LEFT_TO_A_CHILD = """
import os, signal, sys
from headwater.store.files import DiskFiles
reads, writes = os.pipe()
os.close(0)
lock = DiskFiles().lock(sys.argv[1])
assert lock._file.descriptor == 0
if os.fork() == 0:
    os.close(writes)
    os.read(reads, 1)  # until its parent ends
    os._exit(0)
lock.release()
print("released", flush=True)
signal.pause()
"""


def test_a_lock_is_released_though_a_forked_child_has_its_file_open_as_descriptor_0_too(disk: Place) -> None:
    disk.files.lock(disk.path("owner.lock")).release()
    with other_process(LEFT_TO_A_CHILD, disk.path("owner.lock")) as owner:
        assert said(owner) == "released"
        disk.files.lock(disk.path("owner.lock")).release()


# Cells


def test_a_cell_is_zero_until_it_is_set(place: Place) -> None:
    cells = place.files.cells(place.path("watermarks"))
    assert cells.get(0) == 0
    assert cells.get(5000) == 0
    cells.set(0, 7)
    cells.set(3, 2**64 - 1)
    assert [cells.get(index) for index in range(5)] == [7, 0, 0, 2**64 - 1, 0]
    cells.close()


def test_cells_grow_and_keep_what_they_had(place: Place) -> None:
    cells = place.files.cells(place.path("watermarks"))
    for index in (0, 511, 512, 5000, 1024):
        cells.set(index, index + 1)
    assert [cells.get(index) for index in (0, 511, 512, 5000, 1024)] == [1, 512, 513, 5001, 1025]
    cells.sync()
    cells.close()
    cells.close()
    again = place.files.cells(place.path("watermarks"))
    assert again.get(5000) == 5001
    again.close()


def test_readers_of_cells_see_sets_and_growth_at_once(place: Place) -> None:
    writer = place.files.cells(place.path("watermarks"))
    reader = place.files.cells(place.path("watermarks"), write=False)
    assert reader.get(0) == 0
    writer.set(0, 1)
    assert reader.get(0) == 1
    writer.set(9999, 2)
    assert reader.get(9999) == 2
    assert reader.get(0) == 1
    with pytest.raises((OSError, TypeError)):
        reader.set(0, 3)
    writer.close()
    reader.close()


def test_missing_cells_are_not_created_by_a_reader(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.cells(place.path("watermarks"), write=False)
    assert not place.files.exists(place.path("watermarks"))


def test_a_thread_that_grows_cells_does_not_wipe_out_what_another_set_meanwhile(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DiskFile.pwritev
    is_growing, has_set = threading.Event(), threading.Event()

    def slow(file: DiskFile, buffers: Sequence[bytes], position: int) -> None:
        if not is_growing.is_set():
            is_growing.set()
            has_set.wait(0.2)
        real(file, buffers, position)

    monkeypatch.setattr(DiskFile, "pwritev", slow)
    cells = disk.files.cells(disk.path("watermarks"))
    first = threading.Thread(target=lambda: cells.set(0, 1))
    first.start()
    is_growing.wait()
    cells.set(1, 2)
    has_set.set()
    first.join()
    assert (cells.get(0), cells.get(1)) == (1, 2)
    cells.close()


COUNT = """
import sys
from headwater.store.files import DiskFiles
cells = DiskFiles().cells(sys.argv[1], write=False)
for line in sys.stdin:
    print(cells.get(int(line)), flush=True)
"""


def test_cells_are_seen_from_a_second_process(disk: Place) -> None:
    cells = disk.files.cells(disk.path("watermarks"))
    cells.set(3, 41)
    with other_process(COUNT, disk.path("watermarks")) as reader:
        for index, value in ((3, 41), (3, 42), (70_000, 43)):
            cells.set(index, value)
            tell(reader, str(index))
            assert said(reader) == str(value)
    cells.close()


def test_the_file_of_cells_is_whole_pages_without_holes(disk: Place) -> None:
    cells = disk.files.cells(disk.path("watermarks"))
    cells.set(600, 1)
    cells.sync()
    status = os.stat(disk.path("watermarks"))
    assert status.st_size % mmap.PAGESIZE == 0
    assert status.st_blocks * 512 >= status.st_size
    cells.close()


# The real disk's own


def test_a_short_write_is_continued(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwritev, 0

    def short(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        nonlocal calls
        calls += 1
        return real(descriptor, [b"".join(buffers)[:5]], position)

    monkeypatch.setattr(os, "pwritev", short)
    buffers = [b"abc", b"", b"defghij", b"k", b"lmnop"]
    file = disk.files.open(disk.path("log"), create=True)
    file.pwritev(buffers, 2)
    assert file.pread(100, 2) == b"abcdefghijklmnop"
    assert calls == 4


def test_short_writes_of_many_buffers_are_continued(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        assert len(buffers) <= IOV_MAX
        return real(descriptor, [b"".join(buffers)[:1001]], position)

    monkeypatch.setattr(os, "pwritev", short)
    buffers = [bytes([number % 251]) * (number % 13) for number in range(2500)]
    file = disk.files.open(disk.path("log"), create=True)
    file.pwritev(buffers, 0)
    assert file.pread(1 << 20, 0) == b"".join(buffers)


def test_no_call_writes_so_much_of_several_buffers_that_it_takes_huge_pages(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.pwritev, []

    def noted(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        written.append((len(buffers), sum(map(len, buffers))))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "pwritev", noted)
    file = disk.files.open(disk.path("log"), create=True)
    file.pwritev([bytes(40), bytes(40_000), bytes(4)] * 100, 0)
    file.pwritev([bytes(10)] * 200 + [bytes(3 << 20)] + [bytes(400_000)] * 7, 0)
    assert sum(length for _, length in written) == 100 * 40_044 + 2000 + (3 << 20) + 7 * 400_000
    assert all(length < 2 << 20 or count == 1 for count, length in written)
    assert len(written) < 20


def test_a_disk_that_fills_up_within_a_write_says_so(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    room = [4, 0]

    def full(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        if not (fits := room.pop(0)):
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, [b"".join(buffers)[:fits]], position)

    monkeypatch.setattr(os, "pwritev", full)
    file = disk.files.open(disk.path("log"), create=True)
    with pytest.raises(OSError) as raised:
        file.pwritev([b"abc", b"def"], 0)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(10, 0) == b"abcd"


def test_a_file_that_takes_nothing_ends_the_write(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="takes no more"):
        disk.files.open(disk.path("log"), create=True).pwritev([b"abc"], 0)


def test_a_short_read_is_continued(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    disk.files.write(disk.path("log"), b"abcdefghij")
    monkeypatch.setattr(os, "pread", lambda descriptor, length, position: real(descriptor, min(length, 3), position))
    assert disk.files.open(disk.path("log")).pread(8, 1) == b"bcdefghi"
    assert disk.files.read(disk.path("log")) == b"abcdefghij"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_the_file_system_cannot_allocate_nothing_happens(
    disk: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(number))
    file = disk.files.open(disk.path("log"), create=True)
    file.allocate(0, 4096)
    assert file.size() == 0


def test_no_room_to_allocate_is_not_passed_over(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(OSError) as raised:
        disk.files.open(disk.path("log"), create=True).allocate(0, 4096)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_across_devices_a_link_is_a_copy(disk: Place, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "link", failing(number))
    monkeypatch.setattr(door, "COPY_BYTES", 1000)
    content = bytes(range(256)) * 10
    disk.files.write(disk.path("old"), content)
    disk.files.link(disk.path("old"), disk.path("new"))
    assert disk.files.read(disk.path("new")) == content
    with pytest.raises(FileExistsError):
        disk.files.link(disk.path("old"), disk.path("new"))


def test_a_copy_that_fails_leaves_nothing(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.files.write(disk.path("old"), b"abc")
    monkeypatch.setattr(os, "link", failing(errno.EXDEV))
    monkeypatch.setattr(os, "pwritev", failing(errno.ENOSPC))
    with pytest.raises(OSError) as raised:
        disk.files.link(disk.path("old"), disk.path("new"))
    assert raised.value.errno == errno.ENOSPC
    assert disk.files.list(disk.folder) == ["old"]


def test_a_small_file_that_cannot_be_written_stays_as_it_was(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.files.write(disk.path("VERSION"), b"1")
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    with pytest.raises(OSError) as raised:
        disk.files.write(disk.path("VERSION"), b"2")
    assert raised.value.errno == errno.EIO
    assert disk.files.read(disk.path("VERSION")) == b"1"
    assert disk.files.list(disk.folder) == ["VERSION"]


def test_a_small_file_is_synced_then_renamed_then_its_folder_is_synced(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record(monkeypatch, "fdatasync", "replace", "fsync")
    disk.files.write(disk.path("VERSION"), b"1")
    assert calls == ["fdatasync", "replace", "fsync"]


def test_new_folders_are_made_durable_from_the_top(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(monkeypatch, "mkdir", "fsync")
    disk.files.make_folder(disk.path("a/b"))
    assert calls == ["fsync", "mkdir", "fsync", "mkdir", "fsync"]


def test_a_folder_that_is_there_may_be_one_that_a_killed_process_did_not_sync(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.files.make_folder(disk.path("a"))
    calls = record(monkeypatch, "mkdir", "fsync")
    disk.files.make_folder(disk.path("a"))
    assert calls == ["fsync"]


def test_a_folder_that_cannot_be_synced_by_request_is_left_to_its_file_system(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    disk.files.sync_folder(disk.folder)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError):
        disk.files.sync_folder(disk.folder)


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_many_files_are_synced_each_whatever_becomes_of_the_others(
    disk: Place, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [disk.files.open(disk.path(f"f{number}"), create=True) for number in range(count)]
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    inodes = [os.stat(disk.path(f"f{number}")).st_ino for number in range(count)]
    for file in files[1:2]:
        file.close()
    errors = disk.files.sync_files(files)
    assert [error is not None for error in errors] == [number == 1 for number in range(count)]
    assert sorted(synced) == sorted(inode for number, inode in enumerate(inodes) if number != 1)


def test_files_are_synced_also_where_no_more_threads_are_to_be_had(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files = [disk.files.open(disk.path(f"f{number}"), create=True) for number in range(5)]
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert disk.files.sync_files(files) == [None] * 5


def test_removing_a_tree_does_not_follow_links_out_of_it(disk: Place) -> None:
    disk.files.make_folder(disk.path("tree"))
    disk.files.make_folder(disk.path("elsewhere"))
    disk.files.write(disk.path("elsewhere/precious"), b"kept")
    os.symlink(disk.path("elsewhere"), disk.path("tree/way_out"))
    disk.files.remove_tree(disk.path("tree"))
    assert disk.files.list(disk.folder) == ["elsewhere"]
    assert disk.files.read(disk.path("elsewhere/precious")) == b"kept"


def test_relative_paths_are_within_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = DiskFiles()
    files.make_folder("data")
    files.write("VERSION", b"1")
    assert files.list(".") == ["VERSION", "data"]
    lock = files.lock("owner.lock")
    with pytest.raises(Owned, match=re.escape('"." is owned')):
        files.lock("owner.lock")
    lock.release()


def test_nothing_is_left_open(disk: Place) -> None:
    before = os.listdir("/dev/fd")
    disk.files.write(disk.path("VERSION"), b"1")
    disk.files.make_folder(disk.path("a/b"))
    disk.files.link(disk.path("VERSION"), disk.path("a/VERSION"))
    lock = disk.files.lock(disk.path("owner.lock"))
    with pytest.raises(Owned):
        disk.files.lock(disk.path("owner.lock"))
    lock.release()
    cells = disk.files.cells(disk.path("watermarks"))
    for index in (0, 1000, 5000):
        cells.set(index, 1)
    cells.close()
    assert len(os.listdir("/dev/fd")) == len(before)


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def record(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The calls of these functions of os, in order, from here on."""
    calls: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in names:
        watch(name)
    return calls
