"""Fields of JSON payloads as columns: `fields={"celsius": float, "sensor.id": str}`.

A payload that is no JSON object, has no such field, or has something of another type there, has null in the column;
whole numbers are numbers of any kind. A dot leads into an object within.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import Malformed

TYPES: dict[type, Any] = {
    float: pa.float64(),
    int: pa.int64(),
    str: pa.string(),
    bool: pa.bool_(),
}
INT64 = range(-(1 << 63), 1 << 63)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Fields:
    """Adds columns to record batches that have payloads."""

    def __init__(self, fields: Mapping[str, type], schema: Any) -> None:
        """Of rows with the columns of `schema`."""
        check_fields(fields, schema.names)
        self.schema = schema
        for name, kind in fields.items():
            self.schema = self.schema.append(pa.field(name, TYPES[kind]))
        self.needed = schema
        """The columns that have to be read."""
        if fields and "payload" not in schema.names:
            self.needed = schema.append(pa.field("payload", pa.binary()))
        self._names = schema.names
        self._fields = [(name.split("."), kind) for name, kind in fields.items()]

    def joined(self, batch: Any) -> Any:
        """The same rows with the fields."""
        if not self._fields:
            return batch
        columns: list[list[Any]] = [[] for _ in self._fields]
        for payload in batch.column("payload"):
            try:
                found = _decode(payload.as_buffer())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = {}
            for column, (path, kind) in zip(columns, self._fields, strict=True):
                column.append(_at(found, path, kind))
        arrays = [batch.column(name) for name in self._names]
        arrays += [pa.array(column, TYPES[kind]) for column, (_, kind) in zip(columns, self._fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _at(found: Any, path: list[str], kind: type) -> Any:
    """What is at the end of a path, if it is of a type; else None."""
    for name in path:
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    if kind is float and type(found) is int:
        return float(found)
    if type(found) is not kind or (kind is int and found not in INT64):
        return None
    return found


def check_fields(fields: Mapping[str, type], columns: Sequence[str]) -> None:
    """Malformed unless columns can be made of them, beside those that there are."""
    if not isinstance(fields, Mapping):
        raise Malformed(f'fields is {fields!r}; name each with its type, as in fields={{"celsius": float}}')
    named: Mapping[Any, Any] = fields
    for name, kind in named.items():
        if not isinstance(name, str) or not all(name.split(".")):
            raise Malformed(f'{name!r} is no field; write its name, or "sensor.id" for one within another')
        if kind not in TYPES:
            raise Malformed(f'field "{name}" is to be {kind!r}; use one of float, int, str, bool')
        if name in columns:
            raise Malformed(f'field "{name}" has the name of a column; leave that out with columns=')
