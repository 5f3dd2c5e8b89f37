"""A file on this machine's disk, read and written at positions.

A write is written whole, or an OSError says that it may not be; what was written is durable after a sync that did not
fail, and not before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Sequence

from headwater.store.descriptors import opening
from headwater.store.permissions import FILE_MODE

IOV_MAX = 1024
"""Buffers that the kernel takes in one call."""
PIECE_BYTES = 7 << 18
"""What one call writes of several buffers, at most. For 2 MB and more at once Linux takes its page cache from whole
huge pages, which are often not in use yet: a virtual machine is then given each of them first, and the call takes tens
of milliseconds."""
CANNOT_ALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL}


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
