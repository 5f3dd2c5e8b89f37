"""A query in a process of its own, which reads log and lake beside the server and takes little where others want the
machine.

It is told on its input what to ask, as a line of JSON, and answers with one. Promises: it reads topics and nothing
else; what whoever asks is not shown, it does not read; memory, rows and bytes of the answer are bounded, and its time
by whoever started it; it ends when its input does, which is when whoever started it is gone.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import IO, Any

import msgspec

import headwater
from headwater import errors, threads
from headwater.arrow import query
from headwater.errors import Failed, HeadwaterError, TooLarge
from headwater.stdout import Stdout
from headwater.topics.name import filters_overlap

NICENESS = 10
ASKED_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 16 << 20
"""Of the answer."""
BESIDE_BYTES = 512 << 20
"""What the process may take besides: Python, libraries and threads,"""
CORE_BYTES = 32 << 20
"""of which there are some for each core."""
CELL_CHARS_MAX = 10_000
"""A longer text of a cell is cut."""
EXACT_MAX = 1 << 53
"""Beyond it a whole number is a text: many readers of JSON would round it."""


class Told(msgspec.Struct, kw_only=True, frozen=True):
    """What to ask; folder, lake and limits are added by whoever starts the process."""

    query: str
    rows_max: int
    closed: tuple[str, ...] = ()
    """Filters of what whoever asks is not shown."""
    asked_by: str = ""
    folder: str = ""
    lake: str = ""
    memory_bytes: int = 0


class Answered(msgspec.Struct, kw_only=True):
    """What came of it."""

    columns: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Names and types."""
    rows: list[list[Any]] = msgspec.field(default_factory=list)
    total: int = 0
    """Rows of the answer; `rows` has the first of them."""
    error: tuple[str, str] | None = None
    """What went wrong: its kind, and a sentence."""

    def check(self) -> None:
        """The error that it tells of, if it does."""
        if self.error is not None:
            raise getattr(errors, self.error[0], Failed)(self.error[1])


def run() -> int:
    """Answer what the input asks; the exit code."""
    os.nice(NICENESS)
    source = sys.stdin.buffer
    told = msgspec.json.decode(source.readline(ASKED_BYTES_MAX), type=Told)
    _limit_memory(told.memory_bytes)
    threads.Thread(target=_end_with, args=(source,), daemon=True).start()
    try:
        answered = _answered(told)
        line = msgspec.json.encode(answered)
        if len(line) >= LINE_BYTES_MAX:
            raise TooLarge(f"the answer has {len(line)} bytes; select less, or ask for fewer rows")
    except HeadwaterError as error:
        line = msgspec.json.encode(Answered(error=(type(error).__name__, str(error.args[0]))))
    out = Stdout()
    out.write(line + b"\n")
    out.flush()
    os._exit(0)  # the thread that waits for the input would be waited for


def _limit_memory(memory_bytes: int) -> None:
    """Let this process have what DuckDB, the answer, and the same as it is sent may take: there are functions whose
    results DuckDB does not count."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve a gigabyte at once
    most = 3 * memory_bytes + BESIDE_BYTES + CORE_BYTES * (os.cpu_count() or 1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _end_with(source: IO[bytes]) -> None:
    """End at once, however long the query would take."""
    source.read()
    os._exit(1)


def _answered(told: Told) -> Answered:
    try:
        return _answer(told)
    except MemoryError:
        raise TooLarge(
            f"the query needs more than {told.memory_bytes >> 20} MiB (sql_memory_bytes); narrow it"
        ) from None


def _answer(told: Told) -> Answered:
    with headwater.open(told.folder, read_only=True, lake=told.lake or None) as bus:
        found = query(bus, told.query, None, told.memory_bytes, check=_checking(told)).answer().arrow
    columns = [(field.name, str(field.type)) for field in found.schema]
    first = found.slice(0, told.rows_max)
    rows = [[_plain(value) for value in row] for row in zip(*(one.to_pylist() for one in first.columns), strict=True)]
    return Answered(columns=columns, rows=rows, total=found.num_rows)


def _checking(told: Told) -> Callable[[str], None]:
    def check(filter: str) -> None:
        if any(filters_overlap(filter, closed) for closed in told.closed):
            raise errors.NotAllowed(
                f'"{told.asked_by}" does not see all that "{filter}" matches; ask for less, or as an admin'
            )

    return check


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) <= EXACT_MAX else str(value)
        case float():
            return value if isfinite(value) else None
        case str():
            return value[:CELL_CHARS_MAX]
        case bytes():
            return value[:CELL_CHARS_MAX].decode(errors="replace")
        case Decimal():
            return _plain(int(value)) if value == value.to_integral_value() else float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
    return str(value)[:CELL_CHARS_MAX]
