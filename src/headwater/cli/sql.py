"""`headwater sql`: ask topics in SQL."""

from __future__ import annotations

import csv
import ctypes
import sys
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from headwater.arrow import check_installed
from headwater.cli.options import At, Lake, lake_of, moment
from headwater.cli.output import bytes_object, console, emit, iso, safe, shown
from headwater.errors import Malformed

if TYPE_CHECKING:
    from headwater.arrow.result import Result

KEPT_BYTES = 32 * 1024 * 1024
"""Of what was read and freed."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h

TYPES: dict[str, type] = {"float": float, "int": int, "str": str, "bool": bool}


def sql(
    at: At,
    query: Annotated[str, typer.Argument(help="select topic, avg(value) from 'home/#' group by 1")],
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at 2026-01-31T12:00, or 10m (ago).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End before 2026-01-31T12:00, or 10m (ago).")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=TYPE", help="A JSON field as a column: celsius=float; int, str, bool."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV, with a line of names first.")] = False,
    lake: Lake = None,
) -> None:
    """Ask topics in SQL, by DuckDB; works beside the process that owns the folder.

    A filter in quotes is a table: from 'home/#'. Its columns are root, topic, "offset" (in double quotes, as it is a
    word of SQL), timestamp, key, headers, payload, and of the payload text, value (the number that it is) and json, as
    in json->>'$.sensor'.

    Needs the extra `arrow`.
    """
    check_installed("duckdb", "numpy", "pyarrow")
    if as_csv and at.json:
        raise Malformed("--json and --csv are two forms of the same rows; say one of them")
    _keep_freed_memory()
    with at.look(lake_of(lake, at.url)) as bus:
        found = bus.sql(
            query,
            since=moment(since, ago=True) if since is not None else None,
            until=moment(until, ago=True) if until is not None else None,
            fields=dict(map(_field, field or ())),
        )
    if as_csv:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(found.columns)
        lines.writerows([_text(value) for value in row] for row in found)
    else:
        show(found, at.json)


def show(found: Result, as_json: bool) -> None:
    """The rows of an answer, as objects or as a table."""
    if as_json:
        for row in found:
            emit(_object(found.columns, row))
    elif found.columns:
        _show(found)


def _keep_freed_memory() -> None:
    """Have what one read frees serve the next: the GNU C library gives it back, and fetching it anew, page by page,
    took a third of a query's processor time. Others do as they do."""
    mallopt = _of_the_library("mallopt")
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)


def _of_the_library(name: str) -> Any:
    """A function of the C library; None where it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):
        return None


def _field(said: str) -> tuple[str, type]:
    name, equals, kind = said.rpartition("=")
    if not equals or kind not in TYPES:
        raise Malformed(f'--field "{said}" has no type; write --field celsius=float, or =int, =str, =bool')
    return name, TYPES[kind]


def _show(found: Any) -> None:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for field in found.arrow.schema:
        is_number = str(field.type).startswith(("int", "uint", "float", "double", "decimal"))
        made.add_column(safe(field.name), justify="right" if is_number else "left", overflow="fold")
    for row in found:
        made.add_row(*(Text(safe(_text(value))) for value in row))
    console().print(made)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bytes():
            return shown(value)
        case datetime():
            return iso(value) if value.tzinfo is not None else value.isoformat()
        case bool():
            return str(value).lower()
    return str(value)


def _object(names: list[str], row: tuple[Any, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in zip(names, row, strict=True):
        if isinstance(value, bytes):
            found.update(bytes_object(name, value))
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """A value of a query as JSON has it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
    return _text(value)
