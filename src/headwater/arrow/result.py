"""The result of a query: as tuples, dicts, an Arrow table, or a frame."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from headwater.errors import Malformed
from headwater.html import table as html_table

if TYPE_CHECKING:
    import pyarrow

Library = Literal["pandas", "polars"]
SHOWN = 20
"""Rows that a repr shows."""


class Result:
    """The rows of an answer: iterate it, or take it as `arrow`, `frame()` or `rows()`.

    Whatever reads Arrow takes it as it is: `polars.DataFrame(result)`, `pyarrow.table(result)`.
    """

    def __init__(self, table: Any) -> None:
        self.arrow: pyarrow.Table = table
        """All of it, as a `pyarrow.Table`."""

    @property
    def columns(self) -> list[str]:
        """What they are called."""
        return list(self.arrow.column_names)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The rows, as tuples."""
        for batch in self.arrow.to_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, as dicts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self]

    def frame(self, library: Library | None = None) -> Any:
        """A frame of pandas or Polars; by default of the one that is installed, pandas first."""
        return frame_of(self.arrow, library)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.arrow.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        head = [self.columns, *([_shown(value) for value in row] for row in Result(self.arrow.slice(0, SHOWN)))]
        widths = [max(map(len, cells)) for cells in zip(*head, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in head]
        more = len(self) - SHOWN
        return "\n".join([*lines, f"and {more:,} more rows"] if more > 0 else lines)

    def _repr_html_(self) -> str:
        return html_table(self.columns, ([_shown(value) for value in row] for row in self), len(self))


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def library_of(library: Library | None) -> Library:
    """The one that makes frames; Malformed, with the command that helps, if it is not there."""
    if library is None:
        library = next((name for name in ("pandas", "polars") if find_spec(name)), None)
        if library is None:
            raise Malformed("a frame is one of pandas or Polars: pip install pandas, or pip install polars")
    if library not in ("pandas", "polars"):
        raise Malformed(f'library is {library!r}; use "pandas" or "polars"')
    if find_spec(library) is None:
        raise Malformed(f"{library} is not installed: pip install {library}")
    return library


def frame_of(table: Any, library: Library | None) -> Any:
    """A frame of pandas or Polars with the rows of a table."""
    if library_of(library) == "pandas":
        return table.to_pandas()
    import polars

    return polars.from_arrow(table)
