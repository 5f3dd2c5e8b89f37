"""Unix sockets: names in folders, which nobody but this user reaches."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headwater.errors import Malformed
from headwater.store.descriptors import opening
from headwater.store.permissions import FILE_MODE

SOCKET_PATH_BYTES_MAX = 100
"""Of a Unix socket: what every system takes, with some to spare."""
DESCRIPTORS = "/proc/self/fd"
"""Where what this process has open is found by its number."""


@contextmanager
def within_reach(path: str) -> Iterator[str]:
    """A Unix socket's path as the system takes it: a long one leads through its folder, held open meanwhile."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX or not os.path.isdir(DESCRIPTORS):
        yield path
        return
    with opening():
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{DESCRIPTORS}/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def make(path: str) -> socket.socket:
    """A Unix socket in place of one that an earlier process left, which nobody but this user reaches: who tries
    before it is listened on is refused, whatever its mode."""
    remove(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with within_reach(path) as near:
            made.bind(near)
            os.chmod(near, FILE_MODE)
    except BaseException:
        made.close()
        raise
    return made


def remove(path: str) -> None:
    """Remove a Unix socket that an earlier process left; whatever else has that name is refused."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Malformed(f'"{path}" is a file and no socket; choose another path for the Unix socket')
    with suppress(FileNotFoundError):
        os.unlink(path)
