"""Folders that are gone when their work is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.store.files import DiskFiles


@contextmanager
def temporary_folder(inside: str, name: str) -> Iterator[str]:
    """A new folder inside another one, removed at the end."""
    files = DiskFiles()
    path = f"{inside}/{name}-{os.getpid()}-{os.urandom(3).hex()}"
    files.make_folder(path)
    try:
        yield path
    finally:
        files.remove_tree(path)


def temporary_place() -> str:
    """Where the machine keeps what need not last."""
    return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  (the folder made in it has a name of its own)
