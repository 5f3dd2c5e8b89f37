"""The one door to disk: everything that Headwater writes to a file goes through here.

What holds behind the door:

- A write is written whole, or an OSError says that it may not be.
- What was written is durable after `datasync` of its file, and not before.
- A name (made, renamed, linked or removed) is durable after `sync_folder` of its folder, and not before.
- A failed sync is never repeated: the kernel may have dropped the data and call the next sync a success.
- A file that cannot be opened because too many are is `TooManyFiles` and no OSError: nothing is wrong with any disk.

Tests pass in doubles that hold to this and to nothing more (`tests/faults/faulty_files.py`).
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import tempfile
from collections.abc import Sequence
from typing import Protocol

from headwater import threads
from headwater.errors import Owned
from headwater.store.descriptors import opening
from headwater.store.disk_cells import DiskCells
from headwater.store.disk_file import DiskFile, sync_to_medium
from headwater.store.permissions import FOLDER_MODE, FOLDER_MODE_ABOVE, OTHERS, OTHERS_WRITE, close

COPY_BYTES = 1 << 20
"""Bytes that are copied at a time where a hard link is not to be had."""
SYNCS_AT_ONCE_MAX = 8
"""Threads that sync many files; twice as many were hardly faster, one alone took twice as long."""

CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}


class File(Protocol):
    """An open file, read and written at positions; there is no buffer and no current place."""

    def pread(self, length: int, position: int) -> bytes:
        """Read; fewer bytes come back only where the file ends."""

    def pwritev(self, buffers: Sequence[bytes | memoryview], position: int) -> None:
        """Write all of the buffers, one after the other; after an OSError any part may be in the file."""

    def datasync(self) -> None:
        """Make everything written so far durable."""

    def size(self) -> int:
        """Bytes from the start of the file to its end, preallocated ones included."""

    def allocate(self, position: int, length: int) -> None:
        """Take disk space ahead, as zeros up to a new end of the file; does nothing where that is not to be had."""

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""

    def let_go(self, position: int, length: int) -> None:
        """Have memory for what is on disk be used for something else; reading it is slower then, and right."""

    def close(self) -> None:
        """Close it, without a sync; closing twice is fine."""


class Lock(Protocol):
    """The ownership of a folder."""

    def release(self) -> None:
        """Let others have it; releasing twice is fine."""


class Cells(Protocol):
    """Numbers that other processes see at once: u64 each, zero until set."""

    def get(self, index: int) -> int:
        """The number in a cell, whole: never half of an old one and half of a new one."""

    def set(self, index: int, value: int) -> None:
        """Put a number into a cell; not durable until `sync`."""

    def sync(self) -> None:
        """Make all of them durable."""

    def close(self) -> None:
        """Close them, without a sync; closing twice is fine."""


class Files(Protocol):
    """A file system, as far as Headwater needs one."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """Open a file as it is; with `create`, also one that is not there yet."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder of this name."""

    def list(self, path: str) -> builtins.list[str]:
        """The names in a folder, sorted; none if it is missing."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, durably; one that is there is fine."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is fine."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it; a missing one is fine."""

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name, in place of the file that had it."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name; across devices, a synced copy. A name that is taken is refused."""

    def sync_files(self, files: Sequence[File]) -> builtins.list[OSError | None]:
        """`datasync` of each file, whatever becomes of the others; answers what went wrong with each."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""

    def read(self, path: str) -> bytes:
        """All of a small file."""

    def write(self, path: str, data: bytes) -> None:
        """Replace all of a small file, durably: after a crash it has its old content or the new, wholly."""

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written to the device of this path."""

    def lock(self, path: str) -> Lock:
        """Own a folder by a lock file in it; Owned if another has it."""

    def cells(self, path: str, *, write: bool = True) -> Cells:
        """Open a file of shared numbers; with `write`, also one that is not there yet."""

    def secret(self, length: int) -> bytes:
        """Bytes that nobody can guess."""

    def close_to_others(self, path: str, *, whole: bool = False) -> builtins.list[str]:
        """Let nobody but this user read a folder, and what is in it, if others may; with `whole`, also what others
        cannot get at. Answers what is somebody else's, and stays as it is."""


def parent(path: str) -> str:
    """The folder that a path is in."""
    return os.path.dirname(path) or "."


def write_whole(files: Files, path: str, data: bytes) -> None:
    """Replace a small file by way of a temporary one beside it."""
    beside = path + ".tmp"
    try:
        file = files.open(beside, create=True)
        try:
            file.truncate(0)  # a crash may have left one
            file.pwritev([data], 0)
            file.datasync()
        finally:
            file.close()
        files.rename(beside, path)
    except OSError:
        files.remove(beside)
        raise
    files.sync_folder(parent(path))


def owned(path: str, pid: int | None) -> Owned:
    """What to tell somebody who cannot have a lock."""
    owner = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
    return Owned(f'"{parent(path)}" is owned by {owner}; close it there, or open it here with read_only=True')


def sync_error(file: File) -> OSError | None:
    """Sync a file's data; answers what went wrong."""
    try:
        file.datasync()
    except OSError as error:
        return error
    return None


class DiskLock:
    """A flock, which ends with its process however that ends; the file holds the owner's pid."""

    def __init__(self, path: str) -> None:
        self._file = DiskFile(path, os.O_RDWR | os.O_CREAT)
        self._pid = os.getpid()
        try:
            fcntl.flock(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Over the last owner's, then cut: a file that was emptied first could find no room on a full disk.
            pid = b"%d\n" % self._pid
            self._file.pwritev([pid], 0)
            self._file.truncate(len(pid))
        except BlockingIOError:
            pid = self._file.pread(20, 0).strip()
            self._file.close()
            raise owned(path, int(pid) if pid.isdigit() else None) from None
        except OSError:
            self._file.close()
            raise

    def release(self) -> None:
        # A forked child shares the lock with its parent: it may drop its descriptor, not the parent's ownership.
        if self._file.descriptor >= 0 and self._pid == os.getpid():
            fcntl.flock(self._file.descriptor, fcntl.LOCK_UN)
        self._file.close()


def open_nowhere() -> int:
    """A descriptor that swallows whatever is written to it."""
    return os.open(os.devnull, os.O_WRONLY)


def write_to_stderr(line: bytes) -> None:
    """Say something past every buffer and lock, for a process that is about to end."""
    os.write(2, line)


class DiskFiles:
    """The machine's file system."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        return DiskFile(path, (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> builtins.list[str]:
        try:
            with opening():
                return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        missing = []
        path = os.path.normpath(path)
        while not os.path.isdir(path):
            missing.append(path)
            path = parent(path)
        try:
            # Whoever made this one may have been killed before its sync, so it counts as new.
            self.sync_folder(parent(path))
        except PermissionError:
            pass  # a folder that we may not read is not one that we made something in
        for folder in reversed(missing):
            try:
                os.mkdir(folder, FOLDER_MODE if folder == missing[0] else FOLDER_MODE_ABOVE)
            except FileExistsError:
                if not os.path.isdir(folder):
                    raise
            self.sync_folder(parent(folder))

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def make_private_folder(self, prefix: str) -> str:
        """A new folder among the system's temporary ones that only this user may enter."""
        return tempfile.mkdtemp(prefix=prefix)

    def is_of_this_user(self, path: str) -> bool:
        """Whether a folder is such that nobody but this user, or who may do anything, can have put there what is in it;
        whoever may do anything takes the word of a folder's user."""
        found = os.stat(path)
        return os.geteuid() in (found.st_uid, 0) and not found.st_mode & OTHERS_WRITE

    def remove_tree(self, path: str) -> None:
        try:
            with opening():
                entries = builtins.list(os.scandir(path))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self.remove_tree(entry.path)
            else:
                self.remove(entry.path)
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno not in CANNOT_LINK:
                raise
            self._copy(old, new)

    def lead_to(self, old: str, new: str) -> None:
        """Make a name that leads to a file, on whatever disk that is."""
        os.symlink(os.path.abspath(old), new)

    def _copy(self, old: str, new: str) -> None:
        source = self.open(old, write=False)
        try:
            copy = DiskFile(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                position = 0
                while data := source.pread(COPY_BYTES, position):
                    copy.pwritev([data], position)
                    position += len(data)
                copy.datasync()
            except OSError:
                self.remove(new)
                raise
            finally:
                copy.close()
        finally:
            source.close()

    def close_to_others(self, path: str, *, whole: bool = False) -> builtins.list[str]:
        try:
            if not os.stat(path).st_mode & OTHERS and not whole:
                return []
        except FileNotFoundError:
            return []
        left = []
        with opening():
            for folder, folders, names in os.walk(path):
                left += [inner for name in (*folders, *names) if not close(inner := os.path.join(folder, name))]
        if not close(os.path.realpath(path)):  # last: once it is closed, so is all that is in it
            left.append(path)
        return left

    def sync_files(self, files: Sequence[File]) -> builtins.list[OSError | None]:
        # Side by side, as a file system makes durable in one go what several threads ask it for.
        errors: builtins.list[OSError | None] = [None] * len(files)
        places = iter(range(len(files)))

        def sync() -> None:
            for place in places:
                errors[place] = sync_error(files[place])

        others = [threads.Thread(target=sync) for _ in files[1:SYNCS_AT_ONCE_MAX]]
        started = []
        for thread in others:
            try:
                thread.start()
            except RuntimeError:  # no more threads are to be had: then those that run do it all
                break
            started.append(thread)
        sync()
        for thread in started:
            thread.join()
        return errors

    def sync_folder(self, path: str) -> None:
        folder = DiskFile(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_to_medium(folder.descriptor)
        except OSError as error:
            # Some network file systems sync names by themselves and refuse to be asked.
            if error.errno != errno.EINVAL:
                raise
        finally:
            folder.close()

    def read(self, path: str) -> bytes:
        file = self.open(path, write=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write(self, path: str, data: bytes) -> None:
        write_whole(self, path, data)

    def free_bytes(self, path: str) -> int:
        device = os.statvfs(path)
        return device.f_bavail * device.f_frsize

    def lock(self, path: str) -> Lock:
        return DiskLock(path)

    def cells(self, path: str, *, write: bool = True) -> Cells:
        return DiskCells(path, write=write)

    def secret(self, length: int) -> bytes:
        return os.urandom(length)
