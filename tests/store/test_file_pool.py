"""The pool of open files: what is closed first, what stays open, and what is done where no more may be."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwater.errors import TooManyFiles
from headwater.store.file_pool import FilePool
from headwater.store.files import DiskFiles, File

FILES = DiskFiles()


def pool_of(tmp_path: Path, count: int, limit: int) -> tuple[FilePool, list[str]]:
    paths = [str(tmp_path / str(number)) for number in range(count)]
    for number, path in enumerate(paths):
        FILES.write(path, b"%d" % number * 100)
    return FilePool(FILES, limit, write=True), paths


def are_open(paths: list[str]) -> list[bool]:
    """Which of these files this process has open."""
    held = set()
    for number in os.listdir("/dev/fd"):
        try:
            held.add(os.fstat(int(number)).st_ino)
        except OSError:
            continue  # the one that listed them
    return [os.stat(path).st_ino in held for path in paths]


def test_the_file_unused_for_longest_is_closed_first(tmp_path: Path) -> None:
    pool, paths = pool_of(tmp_path, 3, limit=2)
    for number in (0, 1, 0, 2):
        pool.get(paths[number])
    assert are_open(paths) == [True, False, True]
    pool.close()
    assert are_open(paths) == [False, False, False]


def test_a_file_is_not_closed_under_its_reader(tmp_path: Path) -> None:
    pool, paths = pool_of(tmp_path, 2, limit=1)
    reader = pool.get(paths[0])
    pool.get(paths[1])
    assert reader.pread(3, 0) == b"000"
    del reader
    assert are_open(paths) == [False, True]
    pool.close()


def test_a_file_with_unsynced_writes_stays_open(tmp_path: Path) -> None:
    pool, paths = pool_of(tmp_path, 4, limit=1)
    pool.write(paths[0], [b"!"], 0)
    for path in paths[1:]:
        pool.get(path)
    assert are_open(paths)[0]
    assert pool.dirty == [paths[0]]
    pool.datasync(paths[0])
    assert pool.dirty == []
    for path in paths[1:]:
        pool.get(path)
    assert not are_open(paths)[0]
    pool.close()


def test_a_file_that_is_forgotten_is_closed_and_not_dirty(tmp_path: Path) -> None:
    pool, paths = pool_of(tmp_path, 1, limit=4)
    pool.get(paths[0])
    pool.written(paths[0])
    pool.forget(paths[0])
    pool.forget(paths[0])
    assert are_open(paths) == [False]
    assert pool.dirty == []


def test_threads_that_read_more_files_than_may_be_open_read_what_they_asked_for(tmp_path: Path) -> None:
    pool, paths = pool_of(tmp_path, 6, limit=1)
    wrong: list[object] = []

    def read(start: int) -> None:
        try:
            for step in range(600):
                number = (start + step) % len(paths)
                data = pool.get(paths[number]).pread(100, 0)
                if data != b"%d" % number * 100:
                    wrong.append((number, data[:10]))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert wrong == []


class Recording(DiskFiles):
    """A disk that notes what is synced together, and may refuse to open or to sync."""

    def __init__(self) -> None:
        self.syncs: list[int] = []
        self.opens_left = 1 << 30
        self.is_failing = False

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        if not self.opens_left:
            self.opens_left = 1
            raise TooManyFiles("no more")
        self.opens_left -= 1
        return super().open(path, create=create, write=write)

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        self.syncs.append(len(files))
        return [OSError(errno.EIO, "no") if self.is_failing else None for _ in files]


def recording(tmp_path: Path, count: int, limit: int) -> tuple[FilePool, list[str], Recording]:
    files = Recording()
    paths = pool_of(tmp_path, count, limit)[1]
    return FilePool(files, limit, write=True), paths, files


def test_files_with_unsynced_writes_count_and_the_oldest_are_synced_together(tmp_path: Path) -> None:
    pool, paths, files = recording(tmp_path, 60, limit=16)
    for path in paths:
        pool.write(path, [b"!"], 0)
        assert sum(are_open(paths)) <= 16
    assert len(files.syncs) < 60 // 4
    assert min(files.syncs) > 4
    assert paths[0] not in pool.dirty
    assert paths[-1] in pool.dirty
    assert all(is_open for path, is_open in zip(paths, are_open(paths), strict=True) if path in pool.dirty)
    for path in paths[:30]:
        pool.get(path)
        assert sum(are_open(paths)) <= 16
    pool.close()


def test_writing_to_the_same_files_again_syncs_nothing(tmp_path: Path) -> None:
    pool, paths, files = recording(tmp_path, 13, limit=16)
    for path in paths * 20:
        pool.write(path, [b"!"], 0)
    assert files.syncs == []
    pool.close()


def test_recovered_files_count_too(tmp_path: Path) -> None:
    pool, paths, _ = recording(tmp_path, 60, limit=16)
    for path in paths:
        pool.get(path)
        pool.written(path)
        assert sum(are_open(paths)) <= 16
    pool.close()


def test_a_sync_that_fails_is_told_once_and_never_tried_again(tmp_path: Path) -> None:
    pool, paths, files = recording(tmp_path, 3, limit=2)
    told: list[str] = []

    def tell(path: str, error: OSError) -> Exception:
        told.append(path)
        return error

    pool.on_failed_sync = tell
    files.is_failing = True
    pool.write(paths[0], [b"!"], 0)
    with pytest.raises(OSError, match="no"):
        pool.write(paths[1], [b"!"], 0)
    assert told == [paths[0]]
    assert Path(paths[1]).read_bytes() == b"1" * 100, "what could not have its place was not written"
    pool.write(paths[1], [b"!"], 0)
    assert (told, files.syncs) == ([paths[0]], [1])
    pool.close()


def test_where_no_more_may_be_opened_files_that_are_not_in_use_are_closed(tmp_path: Path) -> None:
    pool, paths, files = recording(tmp_path, 10, limit=100)
    for path in paths[:8]:
        pool.get(path)
    files.opens_left = 0
    assert pool.get(paths[9]).pread(1, 0) == b"9"
    assert are_open(paths) == [False] * 4 + [True] * 4 + [False, True]
    pool.close()


def test_where_no_more_may_be_opened_the_writer_syncs_what_holds_files_open(tmp_path: Path) -> None:
    pool, paths, files = recording(tmp_path, 10, limit=100)
    for path in paths[:8]:
        pool.write(path, [b"!"], 0)
    files.opens_left = 0
    with pytest.raises(TooManyFiles):
        pool.get(paths[8])  # any thread may be here, and only one may sync
    assert files.syncs == []
    files.opens_left = 0
    pool.write(paths[9], [b"!"], 0)
    assert files.syncs == [4]
    assert sum(are_open(paths)) < 9
    pool.close()


def test_room_for_others_is_made_without_a_sync_while_idle_files_are_open(tmp_path: Path) -> None:
    pool, paths, files = recording(tmp_path, 6, limit=100)
    for path in paths[:4]:
        pool.get(path)
    pool.write(paths[4], [b"!"], 0)
    assert pool.make_room()
    assert files.syncs == [], "there were others to close"
    assert are_open(paths) == [False, False, True, True, True, False]
    pool.datasync(paths[4])
    while any(are_open(paths)):
        assert pool.make_room()
    assert not pool.make_room(), "nothing is left to close"
    pool.close()
