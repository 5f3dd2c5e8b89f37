"""Bytes to standard output."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from headwater.stdout import Stdout


class Pipe(io.RawIOBase):
    """One that takes a little at a time, as a pipe may where Python does not buffer."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        some = bytes(data)[:7]
        self.taken += some
        return len(some)


def test_what_is_written_is_written_whole_though_a_pipe_takes_a_part(monkeypatch: pytest.MonkeyPatch):
    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, write_through=True))  # type: ignore[type-var]  # as python -u has it
    out = Stdout()
    out.write(b"a sentence that is longer\n")
    out.write(b"")
    out.write(b"and another one\n")
    out.flush()
    assert pipe.taken == b"a sentence that is longer\nand another one\n"


def test_where_it_is_buffered_it_is_there_after_a_flush(capfdbinary: pytest.CaptureFixture[bytes]):
    out = Stdout()
    out.write(bytes(300_000))
    out.flush()
    assert capfdbinary.readouterr().out == bytes(300_000)
