"""Messages as Arrow's columns, without Spark and without Java: `pip install 'headwater[arrow]'`.

The way of a row: a `source` gives the bodies of batches as they stand, embedded or served, and what a lake has as rows;
`columns` makes Arrow of them, and `reader` a `pyarrow.RecordBatchReader`, with `fields` out of JSON beside them. `sql`
has DuckDB ask a `table` for the columns that a query needs, and `result` is what comes of it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headwater.errors import Malformed

if TYPE_CHECKING:
    from headwater.arrow.reader import Asked
    from headwater.arrow.source import Readable
    from headwater.arrow.sql import Query

EXTRA = "pip install 'headwater[arrow]'"


def check_installed(*names: str) -> None:
    """Malformed, with the command that helps, unless these packages are there."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise Malformed(f"this is read with {' and '.join(missing)}, which is not installed: {EXTRA}")


def query(bus: Readable, query: str, params: Any, memory_bytes: int, **options: Any) -> Query:
    """What `bus.sql` is asked for."""
    check_installed("duckdb", "numpy", "pyarrow")
    from headwater.arrow.sql import Query

    return Query(bus, query, params, memory_bytes, **options)


def frame(bus: Readable, filter: str, library: Any, **options: Any) -> Any:
    """What `bus.frame` gives."""
    wanted = asked(filter, **options)
    from headwater.arrow.result import frame_of, library_of

    library = library_of(library)
    return frame_of(wanted.open(bus)[0].read_all(), library)


def asked(filter: str, **options: Any) -> Asked:
    """What `bus.arrow` is asked for; pyarrow is loaded by whoever asks first."""
    check_installed("numpy", "pyarrow")
    from headwater.arrow.reader import Asked

    return Asked(filter, **options)
