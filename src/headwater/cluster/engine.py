"""What a node asks of the engine: a replicated stream, a few rows with revisions, and the way to other nodes.

Promises of whoever is behind `Engine`: what `publish` told as `Acked` is on the disks of a quorum; two messages never
get the same sequence; a row is written only over the revision that its writer named. Nothing is promised about answers:
they may be lost, come twice or late, and one that a server which is behind has given may be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from headwater.errors import HeadwaterError, Unavailable

__all__ = (
    "Acked",
    "Engine",
    "Handler",
    "Reader",
    "ReaderLost",
    "Refused",
    "Row",
    "Seen",
    "StreamLost",
    "Told",
    "Unanswered",
    "Unavailable",
)


class StreamLost(HeadwaterError, code=503):
    """The engine has no stream for this bus, though it should."""


class ReaderLost(Exception):
    """A reader's messages do not follow one another any more, or it is cut off: read again from the last one."""


class Acked(msgspec.Struct, frozen=True):
    """A message is stored at this sequence."""

    sequence: int


class Refused(msgspec.Struct, frozen=True):
    """The stream's last sequence is not the expected one, but this, as far as the engine said."""

    last: int | None = None


class Unanswered(msgspec.Struct, frozen=True):
    """No answer came in time, or one that says nothing about what became of the message."""

    why: str = ""


Told = Acked | Refused | Unanswered


class Seen(msgspec.Struct, frozen=True):
    """What is at a sequence (None: nothing, or no more); and the first and last one, as of after that was read."""

    data: bytes | None
    first: int
    last: int


class Row(msgspec.Struct, frozen=True):
    """A row of the engine, and the revision by which it may be replaced."""

    value: bytes
    revision: int


class Reader(Protocol):
    """Messages of the stream, in order, from one sequence on."""

    def next(self, timeout_s: float) -> Sequence[tuple[int, bytes]]:
        """What has come, at least one message unless time is up; raises `ReaderLost`."""

    def close(self) -> None:
        """Ask for no more."""


Handler = Callable[[bytes], bytes]


class Engine(Protocol):
    """The engine, as one node sees it. Callbacks come in its own thread, never from within the call that was given
    them, and must be short."""

    @property
    def part_bytes_max(self) -> int:
        """Of a message's data."""

    def publish(self, after: int, data: bytes, attempt: int, told: Callable[[Told], None]) -> None:
        """Store a message if the stream's last sequence is `after`. `told` is called once; the larger `attempt`, the
        longer is an answer waited for."""

    def look(self, sequence: int, told: Callable[[Seen | None], None]) -> None:
        """What the server that leads the stream has at a sequence; None if nobody answers."""

    def bounds(self) -> tuple[int, int]:
        """The stream's first and last sequence; raises `Unavailable`, or `StreamLost`."""

    def extent(self) -> tuple[int, int, int]:
        """The same, and how many bytes it holds."""

    def time_us(self) -> int:
        """The wall clock of one of its servers; raises `Unavailable`."""

    def make(self, first: int = 1) -> None:
        """Make the stream, unless there is one, so that its first sequence is this."""

    def unmake(self) -> None:
        """Delete the stream, and all that is in it."""

    def read(self, after: int) -> Reader:
        """Messages behind a sequence. Raises `Unavailable`, or `StreamLost`."""

    def trim(self, upto: int) -> None:
        """Delete messages up to a sequence; raises `Unavailable`."""

    def unsynced(self) -> list[str]:
        """Its servers that say of themselves that they answer before what they stored is on disk; by name. Those who
        tell nothing are left out."""

    # Other nodes

    def ask(self, node: str, verb: str, data: bytes, timeout_s: float) -> bytes:
        """What another node's handler answers; raises `Unavailable` if none does, or the error that it raised."""

    def ask_all(self, verb: str, data: bytes, timeout_s: float, enough: int) -> list[bytes]:
        """What the handlers of all nodes answer that are there, those that refuse left out; returns before time is up
        once there are `enough`. Works without any row, and without a stream."""

    def answer(self, node: str, handlers: Mapping[str, Handler]) -> None:
        """Answer others' questions, in threads, under this name."""

    # Rows

    def open_rows(self) -> None:
        """Make the place for them, unless there is one; raises `Unavailable`."""

    def take_lease(self, value: bytes) -> int | None:
        """The lease's revision; None if somebody has it. It is gone when it was not renewed for its time."""

    def renew_lease(self, value: bytes, revision: int) -> int | None:
        """Its new revision; None if it is another's, or gone. Both raise `Unavailable`: then it may be either way."""

    def release_lease(self, revision: int) -> None:
        """Have it no more, if it still is of this revision."""

    def lease(self) -> Row | None:
        """Who has it."""

    def row(self, key: str) -> Row | None:
        """A row that stays; keys are letters, digits, `-`, `_` and `.`."""

    def rows(self, prefix: str) -> dict[str, Row]:
        """All rows whose keys begin so."""

    def put_row(self, key: str, value: bytes, revision: int | None = None) -> int | None:
        """Its new revision; with a revision (0: there is none), None unless it is of that one. None: whatever it is."""

    def delete_row(self, key: str) -> None:
        """A row is no more."""

    def close(self) -> None:
        """Let go of the connection; whatever waits for an answer is told `Unanswered`."""
