"""A disk that keeps no more than it promised: the double for the door to disk.

It holds two things apart: what the running process sees, and what is durable. A file is a durable content and the
changes since; the names are durable folders and the moves since. A sync makes the changes of one file, or the moves of
one folder, durable. `crash` makes the disk that is found after a power loss: of everything that was not synced it keeps
what the given random generator says, and of a write perhaps only some of its sectors. `process_kill` makes the one
that is found after a kill -9: everything is there, and still as little durable as before.

    files = FaultyFiles()
    files.on_sync = stop_at(7)                          # a hook of the test, raises Crash
    with pytest.raises(Crash):
        work(files)
    for seed in range(100):
        recover(files.crash(random.Random(seed)))       # from the same moment, as often as you like

After a sync that failed, the changes are in doubt: seen by the process, taken by no later sync, and perhaps found after
a crash. That is what Linux does.
"""

from __future__ import annotations

import builtins
import copy
import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Literal, TypeVar

from headwater.store.disk_cells import CELL_BYTES
from headwater.store.files import Cells, File, Files, Lock, owned, parent, sync_error, write_whole

SECTOR_BYTES = 512
PAGE_BYTES = 4096
UNLIMITED_BYTES = 1 << 62

Keep = Literal["none", "all", "random", "prefix"]


class Crash(BaseException):
    """The power went out; raised by hooks, and then by everything that is tried on the same disk."""


class Fate(Enum):
    """What is certain about a change."""

    PENDING = "may be lost; the next sync makes it durable"
    DOUBTFUL = "may be lost; its sync failed, and no other takes it"
    SYNCED = "durable"


@dataclass(eq=False, slots=True)
class Write:
    """Bytes put at a place."""

    position: int
    data: bytes
    fate: Fate = Fate.PENDING

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    def apply(self, content: bytearray) -> None:
        Extend(self.position).apply(content)
        content[self.position : self.end] = self.data

    def sectors(self) -> list[Write]:
        """The parts that a disk writes wholly or not at all."""
        first_edge = self.position - self.position % SECTOR_BYTES + SECTOR_BYTES
        edges = [self.position, *range(first_edge, self.end, SECTOR_BYTES), self.end]
        return [
            Write(start, self.data[start - self.position : stop - self.position]) for start, stop in pairwise(edges)
        ]


@dataclass(eq=False, slots=True)
class Extend:
    """Zeros from the end of a file up to a size; nothing if it is longer."""

    size: int
    fate: Fate = Fate.PENDING

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.size - len(content))))


@dataclass(eq=False, slots=True)
class Truncate:
    """A file cut to a size, or lengthened with zeros."""

    size: int
    fate: Fate = Fate.PENDING

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        Extend(self.size).apply(content)


Change = Write | Extend | Truncate


class Folder:
    """Names of files and folders."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}  # as the running process sees them
        self.settled: dict[str, Node] = {}  # as they are durable, before the moves that are not settled


@dataclass(eq=False, slots=True)
class Move:
    """Names that come and go together or not at all, as a rename's do; a name that goes has no node."""

    places: tuple[tuple[Folder, str, Node | None], ...]
    fate: Fate = Fate.PENDING

    def apply(self, names_of: Callable[[Folder], dict[str, Node]]) -> None:
        for folder, name, node in self.places:
            if node is None:
                names_of(folder).pop(name, None)
            else:
                names_of(folder)[name] = node

    def touches(self, folder: Folder) -> bool:
        return any(place is folder for place, _, _ in self.places)


Step = TypeVar("Step", Change, Move)


def decide(steps: Iterable[Step], fate: Fate) -> None:
    for step in steps:
        if step.fate is Fate.PENDING:
            step.fate = fate


def take_settled(steps: list[Step]) -> list[Step]:
    """Those at the front that are durable; one behind a step that may be lost has to wait, for the order's sake."""
    count = next((index for index, step in enumerate(steps) if step.fate is not Fate.SYNCED), len(steps))
    settled = steps[:count]
    del steps[:count]
    return settled


def choose(steps: Sequence[Step], rng: random.Random, keep: Keep) -> list[bool]:
    """Whether each step survives: the synced always, the others as `keep` says."""
    unsynced = [step for step in steps if step.fate is not Fate.SYNCED]
    lost: set[Step] = set()
    match keep:
        case "none":
            lost.update(unsynced)
        case "random":
            share = rng.random()
            lost.update(step for step in unsynced if rng.random() >= share)
        case "prefix":
            lost.update(unsynced[rng.randint(0, len(unsynced)) :])
    return [step not in lost for step in steps]


class Inode:
    """A file, under whatever names."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)  # what the running process sees
        self._settled = bytearray(content)  # what is durable, before the changes that are not settled
        self._changes: list[Change] = []

    def change(self, change: Change) -> None:
        change.apply(self.content)
        self._changes.append(change)

    def sync(self, fate: Fate = Fate.SYNCED) -> None:
        decide(self._changes, fate)
        for change in take_settled(self._changes):
            change.apply(self._settled)

    def durable(self) -> bytearray:
        content = bytearray(self._settled)
        for change in self._changes:
            if change.fate is Fate.SYNCED:
                change.apply(content)
        return content

    def rot(self, change: Change) -> None:
        """Change what is durable behind everybody's back; what is written on top of it since stays."""
        change.fate = Fate.SYNCED
        after = [index + 1 for index, other in enumerate(self._changes) if other.fate is Fate.SYNCED]
        self._changes.insert(max(after, default=0), change)
        self.content[:] = self._settled
        for other in self._changes:
            other.apply(self.content)
        for settled in take_settled(self._changes):
            settled.apply(self._settled)

    def after_crash(self, rng: random.Random, keep: Keep) -> bytes:
        content = bytearray(self._settled)
        survives = choose(self._changes, rng, keep)
        first_lost = survives.index(False) if False in survives else None
        for index, change in enumerate(self._changes):
            if not survives[index]:
                parts = left_of_lost(change, rng, keep, is_first=index == first_lost)
            elif keep == "random" and change.fate is not Fate.SYNCED:
                parts = left_of_kept(change, rng)
            else:
                parts = [change]
            for part in parts:
                part.apply(content)
        return bytes(content)


Node = Inode | Folder


def left_of_kept(change: Change, rng: random.Random) -> Sequence[Change]:
    """All of it, or some sectors."""
    if isinstance(change, Write) and rng.random() < 0.5:
        return [sector for sector in change.sectors() if rng.random() < 0.5]
    return [change]


def left_of_lost(change: Change, rng: random.Random, keep: Keep, *, is_first: bool) -> Sequence[Change]:
    """Mostly nothing; but a log's first lost write may have got half way, and a length may arrive without its data."""
    if isinstance(change, Write):
        if keep == "prefix" and is_first:
            sectors = change.sectors()
            return sectors[: rng.randrange(len(sectors))]
        if keep == "random" and rng.random() < 0.25:
            return [Extend(change.end)]
    return []


class FaultyFile:
    """An open file of a faulty disk."""

    def __init__(self, disk: FaultyFiles, inode: Inode, path: str, *, write: bool) -> None:
        self._disk = disk
        self._inode: Inode | None = inode
        self._path = path
        self._write = write

    def pread(self, length: int, position: int) -> bytes:
        if position >= 1 << 63:
            raise OverflowError("no file is that long")  # as `os.pread` does
        with self._disk.running():
            return bytes(self._opened().content[position : position + length])

    def pwritev(self, buffers: Sequence[bytes | memoryview], position: int) -> None:
        with self._disk.running():
            self._disk.write_to(self._opened(write=True), b"".join(buffers), position)

    def datasync(self) -> None:
        is_failing = self._disk.begin_sync(self._path)
        with self._disk.running():
            self._opened().sync(Fate.DOUBTFUL if is_failing else Fate.SYNCED)
        if is_failing:
            raise OSError(errno.EIO, "the sync fails", self._path)

    def size(self) -> int:
        with self._disk.running():
            return len(self._opened().content)

    def allocate(self, position: int, length: int) -> None:
        with self._disk.running():
            inode = self._opened(write=True)
            self._disk.check_room(position + length - len(inode.content))
            inode.change(Extend(position + length))

    def truncate(self, size: int) -> None:
        with self._disk.running():
            self._opened(write=True).change(Truncate(size))

    def let_go(self, position: int, length: int) -> None:
        with self._disk.running():
            self._opened()

    def close(self) -> None:
        self._inode = None

    def _opened(self, *, write: bool = False) -> Inode:
        if self._inode is None or (write and not self._write):
            raise OSError(errno.EBADF, "the file is closed, or open for reading", self._path)
        return self._inode


class FaultyLock:
    """The ownership of a folder of a faulty disk."""

    def __init__(self, taken: set[str], path: str) -> None:
        self._taken = taken
        self._path = path
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._taken.discard(self._path)


class FaultyCells:
    """Numbers in a mapped file: each store may reach the disk or not, on its own, until the next sync."""

    def __init__(self, disk: FaultyFiles, inode: Inode, path: str, *, write: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._write = write
        self._file = FaultyFile(disk, inode, path, write=write)

    def get(self, index: int) -> int:
        return int.from_bytes(self._file.pread(CELL_BYTES, index * CELL_BYTES), "little")

    def set(self, index: int, value: int) -> None:
        if not self._write:
            raise TypeError("the cells are open for reading")
        end = (index + 1) * CELL_BYTES
        if end > self._file.size():
            self._file.allocate(0, end + -end % PAGE_BYTES)
        with self._disk.running():
            self._inode.change(Write(index * CELL_BYTES, value.to_bytes(CELL_BYTES, "little")))

    def sync(self) -> None:
        self._file.datasync()

    def close(self) -> None:
        self._file.close()


class FaultyFiles(Files):
    """A file system whose faults a test decides."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """All files together; a write beyond it is cut short with ENOSPC. May change at any time."""
        self.syncs = 0
        """How many there were: datasync of files and cells, sync_folder."""
        self.writes = 0
        """How many there were: pwritev."""
        self.fail_sync_at: int | None = None
        """The number of the sync that raises EIO: 1 is the first, `syncs + 1` the next."""
        self.fail_write_at: int | None = None
        """The number of the write that raises EIO and writes nothing."""
        self.short_write_at: int | None = None
        """The number of the write that writes half of its bytes, then raises ENOSPC."""
        self.on_sync: Callable[[str, int], None] | None = None
        """Called before each sync with its path and number; if it raises Crash, nothing more reaches this disk."""
        self._root = Folder()
        self._moves: list[Move] = []
        self._locks: set[str] = set()
        self._mutex = threading.RLock()
        self._stopped_by: type[Crash] | type[OSError] | None = None

    # What tests do to it

    def crash(self, rng: random.Random, keep: Keep = "random") -> FaultyFiles:
        """The disk as it is found after a power loss; this one, and what is open on it, is of no use any more."""
        self._stop(OSError)
        moves = [move for move, survives in zip(self._moves, choose(self._moves, rng, keep), strict=True) if survives]
        names_of = names_after(moves)
        copies: dict[Node, Node] = {}

        def found(node: Node) -> Node:
            if node not in copies:
                copies[node] = Inode(node.after_crash(rng, keep)) if isinstance(node, Inode) else found_folder(node)
            return copies[node]

        def found_folder(folder: Folder) -> Folder:
            after = Folder()
            after.settled = {name: found(node) for name, node in sorted(names_of(folder).items())}
            after.names = dict(after.settled)
            return after

        disk = FaultyFiles(capacity_bytes=self.capacity_bytes)
        disk._root = found_folder(self._root)
        return disk

    def process_kill(self) -> FaultyFiles:
        """The disk as the next process finds it after a kill -9: all is there; what was not durable is not now."""
        self._stop(OSError)
        disk = FaultyFiles(capacity_bytes=self.capacity_bytes)
        disk._root, disk._moves = copy.deepcopy((self._root, self._moves))
        return disk

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Turn over a bit of what is durable."""
        inode = self._inode(path)
        inode.rot(Write(position, bytes([inode.durable()[position] ^ 1 << bit])))

    def cut(self, path: str, size: int) -> None:
        """Shorten what is durable."""
        inode = self._inode(path)
        if size > len(inode.durable()):
            raise ValueError(f"{path} has {len(inode.durable())} durable bytes, fewer than {size}")
        inode.rot(Truncate(size))

    def durable(self, path: str) -> bytes:
        """The content that is certain to be found after a crash; FileNotFoundError if not even the name is."""
        names_of = names_after(move for move in self._moves if move.fate is Fate.SYNCED)
        node: Node | None = self._root
        for name in parts(path):
            node = names_of(node).get(name) if isinstance(node, Folder) else None
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no file of this name is durable", path)
        return bytes(node.durable())

    # What Headwater does with it

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        with self.running():
            return FaultyFile(self, self._inode(path, create=create), path, write=write)

    def exists(self, path: str) -> bool:
        with self.running():
            return self._find(path) is not None

    def list(self, path: str) -> builtins.list[str]:
        with self.running():
            folder = self._find(path)
            return sorted(folder.names) if isinstance(folder, Folder) else []

    def make_folder(self, path: str) -> None:
        names = parts(path)
        levels = ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        there = [level for level in levels if self.exists(level)]
        for level in there[-1:]:
            self.sync_folder(parent(level))
        for level in levels[len(there) :]:
            with self.running():
                if self._find(level) is None:
                    self._move((*self._place(level), Folder()))
            self.sync_folder(parent(level))
        with self.running():
            self._folder(path)

    def remove(self, path: str) -> None:
        with self.running():
            if self._find(path) is not None:
                self._inode(path)
                self._move((*self._place(path), None))

    def remove_tree(self, path: str) -> None:
        with self.running():
            node = self._find(path)
            if isinstance(node, Folder):
                for name in sorted(node.names):
                    self.remove_tree(f"{path}/{name}")
            if node is not None:
                self._move((*self._place(path), None))

    def rename(self, old: str, new: str) -> None:
        with self.running():
            node = self._find(old)
            if node is None:
                raise missing(old)
            self._move((*self._place(old), None), (*self._place(new), node))

    def link(self, old: str, new: str) -> None:
        with self.running():
            if self._find(new) is not None:
                raise FileExistsError(errno.EEXIST, "this name is taken", new)
            self._move((*self._place(new), self._inode(old)))

    def sync_files(self, files: Sequence[File]) -> builtins.list[OSError | None]:
        return [sync_error(file) for file in files]  # in turn, so that a run can be repeated

    def close_to_others(self, path: str, *, whole: bool = False) -> builtins.list[str]:
        return []

    def sync_folder(self, path: str) -> None:
        is_failing = self.begin_sync(path)
        with self.running():
            folder = self._folder(path)
            moves = [move for move in self._moves if move.touches(folder)]
            decide(moves, Fate.DOUBTFUL if is_failing else Fate.SYNCED)
            for move in take_settled(self._moves):
                move.apply(lambda folder: folder.settled)
        if is_failing:
            raise OSError(errno.EIO, "the sync fails", path)

    def read(self, path: str) -> bytes:
        with self.running():
            return bytes(self._inode(path).content)

    def write(self, path: str, data: bytes) -> None:
        write_whole(self, path, data)

    def free_bytes(self, path: str) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        with self._mutex:
            files = {node for node in self._below(self._root) if isinstance(node, Inode)}
            return max(0, self.capacity_bytes - sum(len(inode.content) for inode in files))

    def lock(self, path: str) -> Lock:
        with self.running():
            name = "/".join(parts(path))
            if name in self._locks:
                raise owned(path, os.getpid())
            inode = self._inode(path, create=True)
            inode.change(Truncate(0))
            inode.change(Write(0, b"%d\n" % os.getpid()))
            self._locks.add(name)
            return FaultyLock(self._locks, name)

    def cells(self, path: str, *, write: bool = True) -> Cells:
        with self.running():
            return FaultyCells(self, self._inode(path, create=write), path, write=write)

    def secret(self, length: int) -> bytes:  # always the same, so that a run is as its seed has it
        return bytes(range(length))

    # What its files, cells and methods share

    @contextmanager
    def running(self) -> Iterator[None]:
        """One at a time, and none after the crash."""
        with self._mutex:
            if self._stopped_by is not None:
                raise self._stopped_by(errno.EIO, "this disk has crashed; use the one that crash() returned")
            yield

    def begin_sync(self, path: str) -> bool:
        """Count a sync and tell the hook; whether it is to fail."""
        with self.running():
            self.syncs += 1
            number = self.syncs
        if self.on_sync is not None:
            try:
                self.on_sync(path, number)  # outside the mutex: it may wait for what other threads do
            except Crash:
                self._stop(Crash)
                raise
        return number == self.fail_sync_at

    def write_to(self, inode: Inode, data: bytes, position: int) -> None:
        """Write all of it, or as much as the faults allow."""
        self.writes += 1
        if self.writes == self.fail_write_at:
            raise OSError(errno.EIO, "the write fails")
        fits = len(data) // 2 if self.writes == self.short_write_at else len(data)
        growth = position + len(data) - len(inode.content)
        fits = min(fits, len(data) - max(0, growth - self.free_bytes("")))
        if fits > 0:
            inode.change(Write(position, data[:fits]))
        if fits < len(data):
            raise OSError(errno.ENOSPC, "the disk is full")

    def check_room(self, growth: int) -> None:
        if growth > self.free_bytes(""):
            raise OSError(errno.ENOSPC, "the disk is full")

    def _stop(self, error: type[Crash] | type[OSError]) -> None:
        with self._mutex:
            self._stopped_by = error

    def _move(self, *places: tuple[Folder, str, Node | None]) -> None:
        move = Move(places)
        move.apply(lambda folder: folder.names)
        self._moves.append(move)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in parts(path):
            node = node.names.get(name) if isinstance(node, Folder) else None
        return node

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if node is None:
            raise missing(path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", path)
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        *above, name = parts(path)
        return self._folder("/".join(above)), name

    def _inode(self, path: str, *, create: bool = False) -> Inode:
        node = self._find(path)
        if node is None and create:
            node = Inode()
            self._move((*self._place(path), node))
        if node is None:
            raise missing(path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        return node

    def _below(self, folder: Folder) -> Iterator[Node]:
        for node in folder.names.values():
            yield node
            if isinstance(node, Folder):
                yield from self._below(node)


def names_after(moves: Iterable[Move]) -> Callable[[Folder], dict[str, Node]]:
    """What is in each folder when these moves, and no others, are added to what is settled."""
    changed: dict[Folder, dict[str, Node]] = {}

    def names_of(folder: Folder) -> dict[str, Node]:
        return changed.setdefault(folder, dict(folder.settled))

    for move in moves:
        move.apply(names_of)
    return names_of


def parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such file or folder", path)
