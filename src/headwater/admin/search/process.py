"""A search in a process of its own, which reads the folder beside its owner and takes little where others want the
machine: nobody's publish waits for it.

It is told on its input what to search, as a line of JSON; tells on its output how far it is, a line now and then, and
at the end what it has found; and ends early, with what it has by then, when its input does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import msgspec

import headwater
from headwater import errors, threads
from headwater.admin.search.search import MOST, Asked, Progress, Search
from headwater.admin.search.wanted import Wanted
from headwater.clock import SECOND_US, SystemClock, to_datetime
from headwater.errors import Failed, Gap, HeadwaterError
from headwater.message import Headers, Message
from headwater.stdout import Stdout

NICENESS = 10
"""How much it steps back behind the process that starts it, which does so behind the server."""
TELL_US = SECOND_US // 10
ASKED_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 32 << 20
"""Of what it says: the largest is what it has found."""


class Told(msgspec.Struct, kw_only=True, frozen=True):
    """What to search: of which folder, and lake, whoever starts the process adds."""

    folder: str = ""
    lake: str = ""
    filter: str
    where: str = ""
    text: str = ""
    key: str = ""
    header: str = ""
    after: dict[str, int] | None = None
    since_us: int | None = None
    until_us: int | None = None
    most: int = MOST

    @property
    def asked(self) -> Asked:
        """The same for a search; Malformed (422) if it is none."""
        wanted = Wanted(where=self.where, text=self.text, key=self.key, header=self.header)
        return Asked(self.filter, wanted, self.after, _moment(self.since_us), _moment(self.until_us), self.most)


class _Row(msgspec.Struct, array_like=True):
    topic: str
    offset: int
    payload: bytes
    time_us: int
    key: bytes | None
    headers: Headers


class Found(msgspec.Struct, kw_only=True):
    """What came of it."""

    rows: list[_Row] = msgspec.field(default_factory=list)
    gaps: list[tuple[str, int, int, str]] = msgspec.field(default_factory=list)
    places: dict[str, int] = msgspec.field(default_factory=dict)
    """Of each root the offset up to which it was looked at."""
    progress: Progress = Progress()
    is_end: bool = False
    """Whether all of the range was looked at."""

    @property
    def messages(self) -> Iterator[Message]:
        """The messages."""
        return (Message(*msgspec.structs.astuple(row)) for row in self.rows)

    @classmethod
    def by(cls, search: Search) -> Found:
        """What a search has found."""
        rows = [
            _Row(one.topic, one.offset, one.payload, one.time_us, one.key, one.header_pairs) for one in search.found
        ]
        gaps = [(gap.root, gap.first, gap.last, gap.reason) for gap in search.gaps]
        return cls(rows=rows, gaps=gaps, places=search.places, progress=search.progress, is_end=search.is_end)


class Said(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of its output."""

    progress: Progress | None = None
    found: Found | None = None
    error: tuple[str, str] | None = None
    """What went wrong: its kind, and a sentence."""

    def check(self) -> None:
        """The error that it tells of, if it does."""
        if self.error is not None:
            kind = getattr(errors, self.error[0], Failed)
            raise (Failed if kind is Gap else kind)(self.error[1])


def _moment(time_us: int | None) -> Any:
    return None if time_us is None else to_datetime(time_us)


def run() -> int:
    """Search as the input says; the exit code."""
    os.nice(NICENESS)
    source = sys.stdin.buffer
    asked = msgspec.json.decode(source.readline(ASKED_BYTES_MAX), type=Told)
    try:
        with headwater.open(asked.folder, read_only=True, lake=asked.lake or None) as bus:
            search = Search(bus, asked.asked, _Teller())
            threads.Thread(target=_stop_with, args=(search, source), daemon=True).start()
            search.run()
        _say(Said(found=Found.by(search)))
    except HeadwaterError as error:
        _say(Said(error=(type(error).__name__, str(error.args[0]))))
    sys.stdout.flush()
    os._exit(0)  # the thread that waits for the input would be waited for


def _stop_with(search: Search, source: IO[bytes]) -> None:
    source.read()
    search.stop()


class _Teller:
    """Says now and then how far a search is."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._at_us = 0

    def __call__(self, search: Search) -> None:
        now_us = self._clock.monotonic_us()
        if now_us - self._at_us >= TELL_US:
            self._at_us = now_us
            _say(Said(progress=search.progress))


def _say(said: Said) -> None:
    out = Stdout()
    out.write(msgspec.json.encode(said) + b"\n")
    out.flush()
