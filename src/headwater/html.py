"""Small tables of HTML: what a notebook shows of a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

ROWS_MAX = 20
"""Rows that a table shows; of others it says how many there are."""
CELL_MAX = 80
"""Characters of a cell."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """The first of so many rows, below their head."""
    lines = [_row("th", head), *(_row("td", row) for row in islice(rows, ROWS_MAX))]
    more = f"<p>and {count - ROWS_MAX:,} more</p>" if count > ROWS_MAX else ""
    return f"<table>{''.join(lines)}</table>{more}"


def facts(of: str, named: Iterable[tuple[str, object]]) -> str:
    """What is known of one thing: a name and a value a row."""
    rows = [(name, value) for name, value in named if value not in (None, "", (), False)]
    return f"<table>{_row('th', (of, ''))}{''.join(_row('td', row) for row in rows)}</table>"


def shortened(payload: bytes) -> str:
    """A payload as text, if it is some."""
    try:
        text = payload[: 4 * CELL_MAX].decode()
    except UnicodeDecodeError as error:
        text = payload[: error.start].decode() if error.start > 2 * CELL_MAX else ""
    return text if text and text.isprintable() else f"{len(payload):,} bytes"


def _row(cell: str, values: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{cell}>{_cell(value)}</{cell}>' for value in values)}</tr>"


def _cell(value: object) -> str:
    from html import escape

    text = str(value)
    return escape(text if len(text) <= CELL_MAX else f"{text[:CELL_MAX]}…")
