"""How the columns of a table follow the schemas of its root: fields are added, and those that are there stay.

Files from before have nulls in them. What has another type by now keeps its column, with nulls from then on: each row
has its payload.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from headwater.lake.columns import MISFIT, VALUE
from headwater.lake.lake import LostRace


def type_in(table: Table) -> Any:
    """The type that the value has in a table; None if that has none."""
    found = [field for field in table.schema().fields if field.name == VALUE]
    return _plain(schema_to_pyarrow(found[0].field_type, include_field_ids=False)) if found else None


def add_columns(table: Table, value: Any) -> Any:
    """Have a table with a value that has at least these fields; the type that it has then."""
    there = type_in(table)
    wanted = value if there is None else grown(there, value)
    if wanted != there:
        try:
            with table.update_schema() as change:
                change.union_by_name(pa.schema([(VALUE, wanted), (MISFIT, pa.string())]))
        except CommitFailedException as error:
            raise LostRace(f"somebody else changed the columns of {table.name()} meanwhile; run again") from error
    return wanted


def _plain(kind: Any) -> Any:
    """A type as it is spelt here: pyiceberg takes those that may be large."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _plain(kind.item_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def grown(there: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """A type with what another has beyond it: fields are added, and those that are there stay as they are."""
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        theirs = {field.name.casefold(): field.type for field in wanted}
        fields = [(field.name, grown(field.type, theirs.pop(field.name.casefold(), field.type))) for field in there]
        known = {name.casefold() for name, _ in fields}
        return pa.struct([*fields, *((one.name, one.type) for one in wanted if one.name.casefold() not in known)])
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        return pa.list_(grown(there.value_type, wanted.value_type))
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return pa.map_(pa.string(), grown(there.item_type, wanted.item_type))
    return there
