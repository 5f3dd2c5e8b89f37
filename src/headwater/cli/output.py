"""What commands print: for people, in colours and with nothing that could move their cursor; for machines, as JSON.

With --json every command prints one object a line:

- a message: topic, offset, time (ISO 8601, UTC), payload (text) or payload_base64 (if it is not UTF-8), headers
  (pairs, in order), retained, attempt, and key or key_base64 if it has one;
- others as the command's help says.

Times are ISO 8601 in UTC everywhere. What went wrong is a sentence on stderr, and the exit code tells.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.message import DeadLetter, Message
from headwater.stdout import Stdout

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str | Text]]
"""Titles, and the cell of each; a title after > is one of numbers, which stand on the right."""

PREVIEW_CHARS = 60
WIDTH_UNSEEN = 160
"""Columns of a table that goes into a file or a pipe."""


@cache
def console() -> Console:
    """Where results go."""
    found = Console(highlight=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = WIDTH_UNSEEN
    return found


@cache
def side() -> Console:
    """Where everything else goes: errors, warnings, progress."""
    return Console(stderr=True, highlight=False)


def complain(sentence: str) -> None:
    """Say what went wrong."""
    side().print(Text(safe(sentence), style="red"), soft_wrap=True)


def remark(sentence: str) -> None:
    """Say something that is worth knowing beside the result."""
    side().print(Text(safe(sentence), style="yellow"), soft_wrap=True)


def say(*parts: str | tuple[str, str]) -> None:
    """A line of plain or styled text; what came from a user is made safe by the caller."""
    console().print(Text.assemble(*parts), soft_wrap=True)


def tell(as_json: bool, found: dict[str, Any], *parts: str | tuple[str, str]) -> None:
    """What came of a command: for machines an object, for people a line."""
    emit(found) if as_json else say(*parts)


def counted(count: int, noun: str) -> str:
    """So many of something: 1 message, 2 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def done(name: str, what: str, as_json: bool) -> None:
    """Say what was done with something that has a name."""
    tell(as_json, {"id": name, "done": what}, (safe(name), "cyan"), f"  {what}")


def safe(text: str) -> str:
    """Text with nothing in it that a terminal would obey: control characters, escapes, reversed writing."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        char if char.isprintable() and char != "\\" else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )


def shown(payload: bytes, as_hex: bool = False) -> str:
    """A payload as people can read it: text where it is text, else hexadecimal."""
    if not as_hex:
        try:
            return safe(payload.decode())
        except UnicodeDecodeError:
            pass
    return "0x" + payload.hex()


def preview(payload: bytes) -> str:
    """The beginning of a payload."""
    text = shown(payload[: 4 * PREVIEW_CHARS] if len(payload) > 4 * PREVIEW_CHARS else payload)
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"


def iso(time: datetime) -> str:
    """A moment for machines."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def clock_time(time: datetime) -> str:
    """A moment for people, in their zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


# Tables


def named(text: str) -> Text:
    """What a row is about."""
    return Text(safe(text), style="cyan")


def number(count: int, style: str = "") -> Text:
    """A number in its style, unless it is 0."""
    return Text(f"{count:,}", style=style if count else "dim")


def table(found: Iterable[T], columns: Columns[T]) -> Table:
    """What was found, a row each; cells are text, whatever is in them."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        made.add_column(title.lstrip(">"), justify="right" if title.startswith(">") else "left", overflow="fold")
    for one in found:
        cells = (cell(one) for cell in columns.values())
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return made


def show_all(found: Iterable[T], columns: Columns[T], object_of: Callable[[T], dict[str, Any]], as_json: bool) -> None:
    """What was found: for machines an object each, for people a table."""
    if not as_json:
        console().print(table(found, columns))
        return
    for one in found:
        emit(object_of(one))


# JSON


def emit(value: dict[str, Any]) -> None:
    """One object, on a line of its own."""
    Stdout().write(msgspec.json.encode(value) + b"\n")


def bytes_object(name: str, value: bytes) -> dict[str, str]:
    """Bytes by their name: as text, or as Base64 if they are none."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def payload_object(payload: bytes) -> dict[str, str]:
    """A payload for machines: as text, or as Base64 if it is none."""
    return bytes_object("payload", payload)


def message_object(message: Message | DeadLetter) -> dict[str, Any]:
    """A message for machines."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "offset": message.offset,
        "time": iso(message.time),
        **payload_object(message.payload),
        "headers": message.header_pairs,
    }
    if message.key is not None:
        found.update(bytes_object("key", message.key))
    if isinstance(message, Message):
        found.update(retained=message.retained, attempt=message.attempt)
    return found


class Messages:
    """Prints messages one after another."""

    def __init__(self, as_json: bool, as_hex: bool, raw: bool) -> None:
        self._hex = as_hex
        self._print: Callable[[Message], None]
        if as_json:
            self._print = self._json
        elif raw:
            self._print = self._raw
        elif console().is_terminal:
            self._print = self._styled
        else:
            self._print = self._plain

    def print(self, message: Message) -> None:
        self._print(message)

    def print_all(self, found: Iterable[Message | None], count: int | None) -> int:
        """Messages up to so many, and how many there were; at None, whoever reads sees what was printed so far."""
        seen = 0
        for message in found:
            if message is None:
                self.flush()
                continue
            self.print(message)
            seen += 1
            if seen == count:
                break
        self.flush()
        return seen

    def flush(self) -> None:
        """Let whoever reads see what was printed so far."""
        sys.stdout.flush()

    def _json(self, message: Message) -> None:
        emit(message_object(message))

    def _raw(self, message: Message) -> None:
        Stdout().write(message.payload + b"\n")

    def _plain(self, message: Message) -> None:
        sys.stdout.write(f"{safe(message.topic)}\t{message.offset}\t{shown(message.payload, self._hex)}\n")

    def _styled(self, message: Message) -> None:
        marks = ["retained"] if message.retained else []
        if message.attempt > 1:
            marks.append(f"attempt {message.attempt}")
        say(
            (safe(message.topic), "cyan"),
            "  ",
            (str(message.offset), "dim"),
            "  ",
            shown(message.payload, self._hex),
            (f"  ({', '.join(marks)})" if marks else "", "yellow"),
        )


# Progress


@contextmanager
def progress(what: str, total: float | None, unit: str = "messages") -> Iterator[Callable[[int], None]]:
    """A bar on the terminal while something takes long; call what it gives with each step. None where nobody looks."""
    if not side().is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        (DownloadColumn(binary_units=True), TransferSpeedColumn())
        if unit == "bytes"
        else (TextColumn("{task.completed:,.0f} " + unit), TextColumn("{task.fields[rate]}"))
    )
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn(), console=side(), transient=True
    ) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(step: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=step, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
