"""Files that live in memory and end with their process: what `headwater.open(":memory:")` stands on.

They behave as files on a disk do that never fails, fills up or loses anything. A sync has nothing to do, and neither
has `allocate`, as on the file systems that cannot: memory is taken when it is written.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Sequence

from headwater.store.disk_cells import CELL_BYTES
from headwater.store.files import Cells, File, Lock, owned, sync_error

FREE_BYTES = 1 << 62


class MemoryFile:
    """An open file: a view of bytes that all who have it open share."""

    __slots__ = ("_content", "_write")

    def __init__(self, content: bytearray, *, write: bool) -> None:
        self._content: bytearray | None = content
        self._write = write

    def pread(self, length: int, position: int) -> bytes:
        if self._content is None:
            raise self._refusal()
        return bytes(self._content[position : position + length])

    def pwritev(self, buffers: Sequence[bytes | memoryview], position: int) -> None:
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        content = self._content
        if content is None or not self._write:
            raise self._refusal()
        if position > len(content):
            content += bytes(position - len(content))
        if position == len(content):
            content += data  # one copy; a slice would take two
        else:
            content[position : position + len(data)] = data

    def datasync(self) -> None:
        if self._content is None:
            raise self._refusal()

    def size(self) -> int:
        if self._content is None:
            raise self._refusal()
        return len(self._content)

    def allocate(self, position: int, length: int) -> None:  # memory is taken when it is written
        if self._content is None or not self._write:
            raise self._refusal()

    def truncate(self, size: int) -> None:
        content = self._content
        if content is None or not self._write:
            raise self._refusal()
        if size < len(content):
            del content[size:]
        else:
            content += bytes(size - len(content))

    def let_go(self, position: int, length: int) -> None:  # there is nothing but memory
        if self._content is None:
            raise self._refusal()

    def close(self) -> None:
        self._content = None

    def _refusal(self) -> OSError:
        return OSError(errno.EBADF, "the file is closed" if self._content is None else "the file is open for reading")


class MemoryLock:
    """The ownership of a folder within this process."""

    def __init__(self, taken: set[str], key: str) -> None:
        self._taken = taken
        self._key: str | None = key

    def release(self) -> None:
        if self._key is not None:
            self._taken.discard(self._key)
            self._key = None


class MemoryCells:
    """Numbers in a file in memory."""

    def __init__(self, content: bytearray, *, write: bool) -> None:
        self._content = content
        self._write = write

    def get(self, index: int) -> int:
        return int.from_bytes(self._content[index * CELL_BYTES : (index + 1) * CELL_BYTES], "little")

    def set(self, index: int, value: int) -> None:
        content, at = self._content, index * CELL_BYTES
        if not self._write:
            raise OSError(errno.EBADF, "the file is open for reading")
        if len(content) < at:
            content += bytes(at - len(content))
        content[at : at + CELL_BYTES] = value.to_bytes(CELL_BYTES, "little")

    def sync(self) -> None:  # there is nothing but memory
        return

    def close(self) -> None:
        return


class MemoryFiles:
    """A file system in memory; its topmost folder is always there."""

    def __init__(self) -> None:
        # Each folder by its path, with what it holds: a file's bytes (the same object for each of its hard links), or
        # None for a folder.
        self._folders: dict[str, dict[str, bytearray | None]] = {"": {}}
        self._locks: set[str] = set()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        folder, name = self._place(path)
        if create:
            folder.setdefault(name, bytearray())
        return MemoryFile(self._content(path), write=write)

    def exists(self, path: str) -> bool:
        above, _, name = key(path).rpartition("/")
        return key(path) in self._folders or name in self._folders.get(above, {})

    def list(self, path: str) -> builtins.list[str]:
        return sorted(self._folders.get(key(path), {}))

    def make_folder(self, path: str) -> None:
        above = ""
        for name in filter(None, key(path).split("/")):
            if self._folders[above].setdefault(name, None) is not None:
                raise FileExistsError(errno.EEXIST, "a file has this name", path)
            above = f"{above}/{name}" if above else name
            self._folders.setdefault(above, {})

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._content(path)
            folder, name = self._place(path)
            del folder[name]

    def remove_tree(self, path: str) -> None:
        if not self.exists(path):
            return
        folder, name = self._place(path)
        for below in self._with_those_below(path):
            del self._folders[below]
        del folder[name]

    def rename(self, old: str, new: str) -> None:
        if not self.exists(old):
            raise missing(old)
        (from_folder, from_name), (to_folder, to_name) = self._place(old), self._place(new)
        if from_folder.get(from_name) is None:
            if self.list(new):
                raise OSError(errno.ENOTEMPTY, "a folder that is not empty has this name", new)
            for below in self._with_those_below(old):
                self._folders[key(new) + below[len(key(old)) :]] = self._folders.pop(below)
        to_folder[to_name] = from_folder.pop(from_name)

    def link(self, old: str, new: str) -> None:
        content = self._content(old)
        folder, name = self._place(new)
        if name in folder:
            raise FileExistsError(errno.EEXIST, "this name is taken", new)
        folder[name] = content

    def sync_files(self, files: Sequence[File]) -> builtins.list[OSError | None]:
        return [sync_error(file) for file in files]

    def close_to_others(self, path: str, *, whole: bool = False) -> builtins.list[str]:  # nobody else sees it
        return []

    def sync_folder(self, path: str) -> None:
        if key(path) not in self._folders:
            raise missing(path)

    def read(self, path: str) -> bytes:
        return bytes(self._content(path))

    def write(self, path: str, data: bytes) -> None:
        folder, name = self._place(path)
        folder[name] = bytearray(data)

    def free_bytes(self, path: str) -> int:  # there is one device
        return FREE_BYTES

    def lock(self, path: str) -> Lock:
        if key(path) in self._locks:
            raise owned(path, os.getpid())
        self.write(path, b"%d\n" % os.getpid())
        self._locks.add(key(path))
        return MemoryLock(self._locks, key(path))

    def cells(self, path: str, *, write: bool = True) -> Cells:
        if write:
            self.open(path, create=True)
        return MemoryCells(self._content(path), write=write)

    def secret(self, length: int) -> bytes:
        return os.urandom(length)

    def _place(self, path: str) -> tuple[dict[str, bytearray | None], str]:
        above, _, name = key(path).rpartition("/")
        if above not in self._folders:
            raise missing(path)
        return self._folders[above], name

    def _content(self, path: str) -> bytearray:
        folder, name = self._place(path)
        if name not in folder:
            raise missing(path)
        content = folder[name]
        if content is None:
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        return content

    def _with_those_below(self, path: str) -> builtins.list[str]:
        return [other for other in self._folders if other == key(path) or other.startswith(key(path) + "/")]


def key(path: str) -> str:
    """One spelling for each path: no slash at either end, none doubled."""
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def missing(path: str) -> FileNotFoundError:
    """The error for a name that is not there."""
    return FileNotFoundError(errno.ENOENT, "no such file or folder", path)
