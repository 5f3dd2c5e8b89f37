"""Descriptors: how many files this process may have open, and what to say when there are no more."""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.errors import TooManyFiles


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
