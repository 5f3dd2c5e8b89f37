"""The pipe that a command prints into, and how far whoever reads there has come."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import stat
import struct
import sys
import termios

LOOKS = 20
"""Looks without a pause, for a reader that is quick;"""
PAUSE_MS_MAX = 20
"""then with pauses from 1 ms up to this."""


class Pipe:
    """Where stdout goes, if that is no file and no terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_fifo = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        self._gone = select.poll()
        self._gone.register(descriptor, 0)  # no more than whether the reader has gone

    def wait_until_taken(self) -> None:
        """Return once everything that was written was read; BrokenPipeError if the reader goes before that."""
        looks = 0
        while self._unread():
            looks += 1
            pause_ms = 0 if looks < LOOKS else min(looks - LOOKS + 1, PAUSE_MS_MAX)
            if self._gone.poll(pause_ms) and self._unread():
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _unread(self) -> int:
        if not self._is_fifo:
            return 0  # a socket: what was written is all that is known
        found: int = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))[0]
        return found


def pipe_of_stdout() -> Pipe | None:
    """The pipe that stdout is; None if it is something else."""
    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, io.UnsupportedOperation):
        return None
    return Pipe(descriptor) if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
