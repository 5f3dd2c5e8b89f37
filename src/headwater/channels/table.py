"""Channels as a table: CSV, for spreadsheets and for moving them to another broker.

Two heads are known: `id,name,destination_host,destination_port`, with which the filter is given beside the file, and
the full one, which adds filter, kind, path and batch_messages_max. The columns may come in any order, and those of the
full one that are left out have their defaults. Secrets are never in it: an http channel that is read gets a new one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

import msgspec

from headwater.errors import Malformed
from headwater.wire.administration import ChannelInfo, ChannelSpec

SHORT = ("id", "name", "destination_host", "destination_port")
FULL = ("id", "name", "filter", "kind", "destination_host", "destination_port", "path", "batch_messages_max")
NUMBERS = ("destination_port", "batch_messages_max")
CELL_CHARS_MAX = 4096

_OBEYED = ("=", "+", "-", "@", "\t", "\r", "'")
"""How a cell begins that a spreadsheet would take for a formula; such a one is written with ' before it."""


def write_table(channels: Iterable[ChannelInfo]) -> str:
    """The full table of channels."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(FULL)
    for channel in channels:
        writer.writerow([_inert(str(getattr(channel, column))) for column in FULL])
    return written.getvalue()


def read_table(text: str, filter: str | None = None) -> list[tuple[int, ChannelSpec]]:
    """The channels of a table, each with the line that it ends on; Malformed (422) names every line that is wrong."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    found: list[tuple[int, ChannelSpec]] = []
    troubles: list[str] = []
    try:
        head = next(reader, [])
        _check_head(head, filter)
        for cells in reader:
            if not any(cells):
                continue
            try:
                found.append((reader.line_num, _spec(head, cells, filter)))
            except Malformed as error:
                troubles.append(f"line {reader.line_num}: {error.args[0]}")
    except csv.Error as error:
        troubles.append(f"line {reader.line_num}: it is no CSV: {error}")
    if troubles:
        raise Malformed("; ".join(troubles))
    return found


def _check_head(head: list[str], filter: str | None) -> None:
    unknown = set(head) - set(FULL)
    missing = set(SHORT) - set(head)
    if unknown or missing or len(set(head)) != len(head):
        raise Malformed(
            f"line 1: it names the columns: {','.join(SHORT)} (with a filter beside it), or {','.join(FULL)}"
        )
    if ("filter" in head) == (filter is not None):
        raise Malformed(
            "line 1: the table has a column filter; leave --filter out"
            if filter is not None
            else "line 1: the table has no column filter; say what is pushed with --filter"
        )


def _spec(head: list[str], cells: list[str], filter: str | None) -> ChannelSpec:
    if len(cells) != len(head):
        raise Malformed(f"{len(cells)} columns where there are {len(head)}")
    if any(len(cell) > CELL_CHARS_MAX for cell in cells):
        raise Malformed(f"a cell is longer than {CELL_CHARS_MAX} characters")
    given: dict[str, object] = {
        column: _read(column, cell) for column, cell in zip(head, cells, strict=True) if cell != ""
    }
    if filter is not None:
        given["filter"] = filter
    _check_given(given)
    try:
        return msgspec.convert(given, ChannelSpec)
    except msgspec.ValidationError as error:
        raise Malformed(str(error)) from None


def _check_given(given: Mapping[str, object]) -> None:
    for column in ("name", "filter", "destination_host", "destination_port"):
        if column not in given:
            raise Malformed(f"{column} is empty")


def _read(column: str, cell: str) -> object:
    if column in NUMBERS:
        if not (cell.isascii() and cell.isdecimal() and len(cell) < 10):
            raise Malformed(f"{column} is {cell[:40]!r}; use a number")
        return int(cell)
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(_OBEYED) else cell


def _inert(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_OBEYED) else cell
