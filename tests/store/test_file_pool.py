"""The pool of open files: what is closed first, what stays open, and what is done where no more may be."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from headwater.store.file_pool import FilePool
from headwater.store.files import DiskFiles

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
    pool.synced(paths[0])
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
