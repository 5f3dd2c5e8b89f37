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
import mmap
import os
import resource
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from headwater import threads
from headwater.errors import Malformed, Owned, ReadOnly, TooManyFiles

IOV_MAX = 1024
"""Buffers that the kernel takes in one call."""
PIECE_BYTES = 7 << 18
"""What one call writes of several buffers, at most. For 2 MB and more at once Linux takes its page cache from whole
huge pages, which are often not in use yet: a virtual machine is then given each of them first, and the call takes tens
of milliseconds."""
COPY_BYTES = 1 << 20
"""Bytes that are copied at a time where a hard link is not to be had."""
CELL_BYTES = 8
SYNCS_AT_ONCE_MAX = 8
"""Threads that sync many files; twice as many were hardly faster, one alone took twice as long."""

FILE_MODE = 0o600
FOLDER_MODE = 0o700
"""What is stored is for the user that runs this process, and for nobody else."""
FOLDER_MODE_ABOVE = 0o755
"""Of folders above it that are made on the way."""
OTHERS = 0o077
OTHERS_WRITE = 0o022

SOCKET_PATH_BYTES_MAX = 100
"""Of a Unix socket: what every system takes, with some to spare."""
DESCRIPTORS = "/proc/self/fd"
"""Where what this process has open is found by its number."""

CANNOT_ALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL}
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


@contextmanager
def within_reach(path: str) -> Iterator[str]:
    """A Unix socket's path as the system takes it: a long one leads through its folder, held open meanwhile."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX or not os.path.isdir(DESCRIPTORS):
        yield path
        return
    with opening():
        folder = os.open(parent(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{DESCRIPTORS}/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def refusal(path: str, error: OSError) -> ReadOnly:
    """What to tell somebody who may not write to a folder."""
    if error.errno == errno.EROFS:
        return ReadOnly(
            f'"{path}" is on a disk that is mounted to be read only; have it mounted to be written, or copy the folder '
            "elsewhere, also to look at it"
        )
    return ReadOnly(
        f'"{path}" may not be read and written by this user; do this as the user whose folder it is, or give it away'
    )


def check_writable(path: str) -> None:
    """ReadOnly (503) if nothing can be written in a folder: also those who only read it need that, for RocksDB."""
    if os.path.isdir(path) and not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        is_mounted_so = os.statvfs(path).f_flag & os.ST_RDONLY
        raise refusal(path, OSError(errno.EROFS if is_mounted_so else errno.EACCES, ""))


def open_files_limit() -> int:
    """How many files this process may have open, sockets included."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit(wanted: int) -> int:
    """Let this process have so many files open, or as many as it may; answers how many that are.

    For a process that is ours: in another's, code that uses `select` may fail once there are more than 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # some systems allow less than they say
            pass
    return open_files_limit()


@contextmanager
def opening() -> Iterator[None]:
    """What is done in here takes a descriptor: TooManyFiles (503) if there is none to be had."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENFILE:
            raise TooManyFiles(
                "the machine may open no more files (fs.file-max); nothing has changed: try again"
            ) from None
        if error.errno == errno.EMFILE:
            raise TooManyFiles(
                f"this process may open no more than {open_files_limit()} files; nothing has changed: try again, "
                "and raise the limit (ulimit -n, LimitNOFILE=)"
            ) from None
        raise


class DiskFile:
    """A file descriptor."""

    __slots__ = ("descriptor",)

    def __init__(self, path: str, flags: int) -> None:
        with opening():
            self.descriptor = os.open(path, flags, FILE_MODE)

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self.descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self.descriptor, missing, position + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[bytes | memoryview], position: int) -> None:
        length = sum(map(len, buffers))
        if (length > PIECE_BYTES and len(buffers) > 1) or len(buffers) > IOV_MAX:
            pieces = length // PIECE_BYTES + 1
            each = min(-(-len(buffers) // pieces), IOV_MAX)
            for first in range(0, len(buffers), each):
                piece = buffers[first : first + each]
                self.pwritev(piece, position)
                position += sum(map(len, piece))
            return
        written = os.pwritev(self.descriptor, buffers, position) if length else 0
        if written != length:
            self._write_rest(buffers, position, written)

    def _write_rest(self, buffers: Sequence[bytes | memoryview], position: int, written: int) -> None:
        rest = [memoryview(buffer) for buffer in buffers]
        first = 0
        while True:
            position += written
            while first < len(rest) and written >= len(rest[first]):
                written -= len(rest[first])
                first += 1
            if first == len(rest):
                return
            rest[first] = rest[first][written:]
            written = os.pwritev(self.descriptor, rest[first : first + IOV_MAX], position)
            if not written:
                raise OSError(errno.EIO, "the file takes no more bytes")

    def datasync(self) -> None:
        if sys.platform == "darwin":
            sync_to_medium(self.descriptor)
        else:
            os.fdatasync(self.descriptor)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def allocate(self, position: int, length: int) -> None:
        if sys.platform == "darwin":
            return
        try:
            os.posix_fallocate(self.descriptor, position, length)
        except OSError as error:
            if error.errno not in CANNOT_ALLOCATE:
                raise

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def let_go(self, position: int, length: int) -> None:
        if sys.platform != "darwin":
            os.posix_fadvise(self.descriptor, position, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        # Forgotten first: the number may be another file's a moment later.
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # A reader in another thread may be the last to hold a file that the pool let go of.
        if getattr(self, "descriptor", -1) >= 0:
            self.close()


def sync_to_medium(descriptor: int) -> None:
    """Sync data and metadata, through the drive's cache."""
    if sys.platform == "darwin":
        # fsync stops at the drive's cache here; not every volume knows how to go on from there.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(descriptor)


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


class DiskCells:
    """A mapped file, shared with whoever maps it too.

    A cell is in the machine's own byte order, so that it is loaded and stored in one move, and is written nowhere but
    on the machine that reads it. When the file grows it is mapped anew; the old mapping stays until the last thread
    that uses it is done, and shows the same memory.
    """

    _map: mmap.mmap | None
    _cells: memoryview[int]

    def __init__(self, path: str, *, write: bool) -> None:
        self._file = DiskFile(path, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
        self._access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        self._growing = threads.Lock()
        self._map_file()

    def get(self, index: int) -> int:
        cells = self._cells
        if index >= len(cells):
            with self._growing:
                cells = self._map_file()
            if index >= len(cells):
                return 0
        return cells[index]

    def set(self, index: int, value: int) -> None:
        cells = self._cells
        if index >= len(cells):
            with self._growing:
                cells = self._grow(index)
        cells[index] = value

    def sync(self) -> None:
        if self._map is not None:
            self._map.flush()

    def close(self) -> None:
        self._cells.release()
        self._map = None
        self._file.close()

    def _grow(self, index: int) -> memoryview[int]:
        old = self._file.size()
        new = -(-(index + 1) * CELL_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        # Written rather than left as a hole: a store into a hole of a full disk is a SIGBUS, a write is an OSError.
        self._file.pwritev([bytes(max(0, new - old))], old)
        return self._map_file()

    def _map_file(self) -> memoryview[int]:
        length = self._file.size() // CELL_BYTES * CELL_BYTES
        if length:
            with opening():  # it has a descriptor of its own
                self._map = mmap.mmap(self._file.descriptor, length, access=self._access)
            self._cells = memoryview(self._map).cast("Q")
        else:
            self._map, self._cells = None, memoryview(b"").cast("Q")
        return self._cells


def _close(path: str) -> bool:
    """Let nobody but its owner have a file or folder; False if that is not this user."""
    try:
        # No link is followed: whoever could write here may have put one that leads elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO)
    try:
        found = os.fstat(descriptor)
        if not found.st_mode & OTHERS:
            return True
        if found.st_uid != os.geteuid():
            return False
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~OTHERS)
    except OSError:  # some file systems know no modes
        return False
    finally:
        os.close(descriptor)
    return True


def close_by_default() -> None:
    """Have files that others make for this process, as RocksDB does, be readable by its user alone. For a process that
    is ours: what another's leaves to its umask is not ours to decide."""
    os.umask(OTHERS)


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

    def make_socket(self, path: str) -> socket.socket:
        """A Unix socket in place of one that an earlier process left, which nobody but this user reaches: who tries
        before it is listened on is refused, whatever its mode."""
        self.remove_socket(path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with within_reach(path) as near:
                made.bind(near)
                os.chmod(near, FILE_MODE)
        except BaseException:
            made.close()
            raise
        return made

    def is_of_this_user(self, path: str) -> bool:
        """Whether a folder is such that nobody but this user, or who may do anything, can have put there what is in it;
        whoever may do anything takes the word of a folder's user."""
        found = os.stat(path)
        return os.geteuid() in (found.st_uid, 0) and not found.st_mode & OTHERS_WRITE

    def remove_socket(self, path: str) -> None:
        """Remove a Unix socket that an earlier process left; whatever else has that name is refused."""
        try:
            mode = os.stat(path, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise Malformed(f'"{path}" is a file and no socket; choose another path for the Unix socket')
        self.remove(path)

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
                left += [inner for name in (*folders, *names) if not _close(inner := os.path.join(folder, name))]
        if not _close(os.path.realpath(path)):  # last: once it is closed, so is all that is in it
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
