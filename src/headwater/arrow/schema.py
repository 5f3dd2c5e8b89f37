"""The columns of messages, as Arrow has them: those of the Spark source, and of the lake's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.errors import Malformed

SCHEMA = pa.schema(
    [
        ("root", pa.string()),
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("payload", pa.binary()),
    ]
)


def schema_of(columns: Sequence[str] | None) -> Any:
    """Some of the columns, in the order in which they are asked for; all of them for None."""
    if columns is None:
        return SCHEMA
    if isinstance(columns, str):
        raise Malformed(f"columns is {columns!r}; use a list of names, as in columns=[{columns!r}]")
    for name in columns:
        if name not in SCHEMA.names:
            raise Malformed(f'no column "{name}"; there are {", ".join(SCHEMA.names)}, and JSON fields by fields=')
    if len(set(columns)) < len(columns):
        raise Malformed(f"a column is named twice in {list(columns)}")
    return pa.schema([SCHEMA.field(name) for name in columns])
