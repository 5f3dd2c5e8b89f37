"""Permissions: what is stored is for the user that runs this process, and for nobody else."""

from __future__ import annotations

import errno
import os
import stat

from headwater.errors import ReadOnly

FILE_MODE = 0o600
FOLDER_MODE = 0o700
"""What is stored is for the user that runs this process, and for nobody else."""
FOLDER_MODE_ABOVE = 0o755
"""Of folders above it that are made on the way."""
OTHERS = 0o077
OTHERS_WRITE = 0o022


def refusal(path: str, error: OSError) -> ReadOnly:
    """What to tell somebody who may not write to a folder."""
    if error.errno == errno.EROFS:
        return ReadOnly(
            f'"{path}" is on a disk that is mounted to be read only: what is there can be looked at, not changed; have '
            "it mounted to be written, or copy the folder elsewhere"
        )
    return ReadOnly(
        f'"{path}" may not be read and written by this user; do this as the user whose folder it is, or give it away'
    )


def is_writable(path: str) -> bool:
    """Whether something can be written in a folder, as far as its permissions and its disk say; True if it is none."""
    return not os.path.isdir(path) or os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def check_writable(path: str) -> None:
    """ReadOnly (503) if nothing can be written in a folder."""
    if not is_writable(path):
        is_mounted_so = os.statvfs(path).f_flag & os.ST_RDONLY
        raise refusal(path, OSError(errno.EROFS if is_mounted_so else errno.EACCES, ""))


def close(path: str) -> bool:
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
