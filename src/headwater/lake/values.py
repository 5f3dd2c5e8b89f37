"""Values: what payloads say, as columns beside them, by the schemas of their topics.

A schema gives the column `value` its fields, those of several schemas together; a payload that is no object is its
field `value`. What has another type from schema to schema, what may be of several types, and what a schema says nothing
about, are text: JSON, as it was published. A row that does not fit has no value, and says why in `misfit`.

    {"type": "integer"}             int64          a number beyond 64 bits is a misfit here
    {"type": "number"}              double
    {"type": "boolean"}             bool
    {"type": "string"}              string         of date-time a timestamp, of date a date, of base64 binary
    {"enum": […]}                   string, int64 or bool, if all are
    {"type": "array", "items": …}   list
    {"type": "object"}              struct of its properties; a map if it has none
    anything else                   string, with JSON in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from headwater.config import Config
from headwater.lake.columns import MISFIT, VALUE
from headwater.log.schemas import Matching, Standing
from headwater.message import SchemaInfo
from headwater.schema.checker import UNFIT, Schema
from headwater.schema.document import Node

FIELDS_MAX = 1000
"""Fields of an object that are columns; what it has beyond them is in the payload alone."""
NULL = b"null"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MOMENT = pa.timestamp("us", tz="UTC")
INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
STRINGS = {"date-time": MOMENT, "date": pa.date32()}
PLAIN = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
PYTHON: dict[pa.DataType, Any] = {
    pa.int64(): INT64,
    pa.float64(): float,
    pa.bool_(): bool,
    pa.date32(): date,
    pa.binary(): bytes,
    MOMENT: datetime,
}

Reader = Callable[[bytes], tuple[Any, str | None]]
"""What a payload says, or why it says nothing."""


# The types of columns


def value_type(schemas: Iterable[SchemaInfo]) -> pa.StructType | None:
    """The type of the column that these schemas describe together; None if they describe none."""
    fields = _fields(_properties([msgspec.json.decode(one.text) for one in schemas]))
    return pa.struct(fields) if fields else None


def type_of_node(node: Node) -> pa.StructType | None:
    """The same of one schema, as it stands."""
    fields = _fields(_properties([node]))
    return pa.struct(fields) if fields else None


def _alternatives(nodes: Iterable[Node]) -> list[Node]:
    """What a value may be besides null."""
    found = [one for node in nodes for one in node.get("anyOf", (node,))]
    return [node for node in found if node.get("type") != "null" and node.get("enum") != [None]]


def _properties(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Of each property what it may be. What is no object is a property itself."""
    found: dict[str, list[Node]] = {}
    for node in _alternatives(nodes):
        for name, one in node["properties"].items() if "properties" in node else ((VALUE, node),):
            found.setdefault(name, []).append(one)
    if not any(found.get(VALUE, ())):
        found.pop(VALUE, None)  # of which no schema says anything
    return found


def _fields(properties: Mapping[str, list[Node]]) -> list[tuple[str, pa.DataType]]:
    """Those that can be columns: engines tell no two names apart by case, and take a point for a step."""
    known: set[str] = set()
    fields: list[tuple[str, pa.DataType]] = []
    for name, nodes in properties.items():
        if name and "." not in name and name.casefold() not in known and len(fields) < FIELDS_MAX:
            known.add(name.casefold())
            fields.append((name, _kind(nodes)))
    return fields


def _kind(nodes: Iterable[Node]) -> pa.DataType:
    """The type of a column of values that may be any of these."""
    found = _alternatives(nodes)
    if found and all("properties" in node for node in found):
        fields = _fields(_properties(found))
        return pa.struct(fields) if fields else pa.string()
    kinds = {_kind_of(node) for node in found}
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    return kinds.pop() if len(kinds) == 1 else pa.string()


def _kind_of(node: Node) -> pa.DataType:
    name = node.get("type")
    if "enum" in node:
        kinds = {type(value) for value in node["enum"] if value is not None}
        return {int: pa.int64(), bool: pa.bool_()}.get(kinds.pop(), pa.string()) if len(kinds) == 1 else pa.string()
    if name == "array" and "items" in node:
        return pa.list_(_kind([node["items"]]))
    if name == "object" and "properties" not in node:
        return pa.map_(pa.string(), _kind([node["additionalProperties"]]))
    if name == "string":
        return pa.binary() if "contentEncoding" in node else STRINGS.get(node.get("format", ""), pa.string())
    return PLAIN.get(str(name), pa.string())


def _is_text(node: Node) -> bool:
    if "enum" in node:
        return all(isinstance(value, str | None) for value in node["enum"])
    return node.get("type") == "string" and "contentEncoding" not in node


# Reading payloads


class Values:
    """What payloads of some topics say, as columns of a type."""

    def __init__(self, schemas: Iterable[SchemaInfo], columns: pa.Schema) -> None:
        """`columns` says of what type a value is, if it is one of them."""
        made = {one.filter: Schema.stored(one.text) for one in schemas}
        self._standing = Standing(made, Config().message_bytes_max)
        self._kind = columns.field(VALUE).type if VALUE in columns.names else pa.struct([])
        self._readers: dict[Matching, Reader] = {}

    def columns(self, topics: Any, payloads: Any) -> dict[str, Any]:
        """The columns of messages, by their names; of one of their topics, in a dictionary, and one of payloads."""
        names, index, payloads = topics.dictionary.to_pylist(), topics.indices.to_pylist(), payloads.to_pylist()
        readers = [self._reader(name) for name in names]
        values: list[Any] = [None] * len(payloads)
        misfits: list[str | None] = [None] * len(payloads)
        for place, payload in enumerate(payloads):
            reader = readers[index[place]]
            if reader is not None and payload:
                values[place], misfits[place] = reader(payload)
        return {VALUE: _array(values, self._kind), MISFIT: pa.array(misfits, pa.string())}

    def _reader(self, topic: str) -> Reader | None:
        matching = self._standing.of(topic)
        if not matching:
            return None
        found = self._readers.get(matching)
        if found is None:
            found = self._readers[matching] = _reader([schema for _, schema in matching], self._kind)
        return found


def _reader(schemas: Sequence[Schema], kind: pa.StructType) -> Reader:
    nodes = [schema.document.node for schema in schemas]
    is_object = any("properties" in node for node in _alternatives(nodes))
    struct = _struct(_properties(nodes), kind)
    read = msgspec.json.Decoder(struct | None).decode
    misfits = [schema.misfit for schema in schemas]

    def reader(payload: bytes) -> tuple[Any, str | None]:
        for misfit in misfits:
            why = misfit(payload)
            if why is not None:
                return None, why
        try:
            return read(payload if is_object else b'{"value":%s}' % payload), None
        except UNFIT as error:
            return None, f"it fits, and is no column: {error}"

    return reader


def _struct(properties: Mapping[str, list[Node]], kind: pa.StructType) -> Any:
    """A Struct with what of these properties has a column."""
    fields, names = [], {}
    for place, field in enumerate(kind):
        if field.name in properties:
            type_ = _python(properties[field.name], field.type)
            if type_ is not None:
                fields.append((f"f{place}", type_, None))
                names[f"f{place}"] = field.name
    return msgspec.defstruct("Value", fields, rename=names, gc=False)


def _python(nodes: Iterable[Node], kind: pa.DataType) -> Any:
    """What is decoded for a column, or null; None if it has another type by now."""
    found = _alternatives(nodes)
    if pa.types.is_string(kind):
        return str | None if found and all(map(_is_text, found)) else msgspec.Raw
    if pa.types.is_struct(kind):
        return _struct(_properties(found), kind) | None if all("properties" in node for node in found) else None
    if any("properties" in node for node in found):
        return None
    if pa.types.is_list(kind):
        inner = _inner(found, "items", kind.value_type)
        return None if inner is None else list[inner] | None  # type: ignore[valid-type]  # made just now
    if pa.types.is_map(kind):
        inner = _inner(found, "additionalProperties", kind.item_type)
        return None if inner is None else dict[str, inner] | None  # type: ignore[valid-type]  # made just now
    own = _kind(found)
    return PYTHON[kind] | None if own == kind or (own, kind) == (pa.int64(), pa.float64()) else None


def _inner(nodes: Sequence[Node], word: str, kind: pa.DataType) -> Any:
    return _python([node[word] for node in nodes], kind) if all(word in node for node in nodes) else None


# Making columns


def _array(values: Sequence[Any], kind: pa.DataType) -> Any:
    """A column of what was decoded for it."""
    if pa.types.is_struct(kind):
        parts = [
            _array([None if value is None else getattr(value, f"f{place}", None) for value in values], field.type)
            for place, field in enumerate(kind)
        ]
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=missing)
    if pa.types.is_list(kind):
        parts = _array([one for value in values if value for one in value], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(values), parts, type=kind)
    if pa.types.is_map(kind):
        keys = pa.array([name for value in values if value for name in value], kind.key_type)
        parts = _array([one for value in values if value for one in value.values()], kind.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, parts, type=kind)
    if pa.types.is_timestamp(kind):
        moments = [None if value is None else (value - EPOCH) // MICROSECOND for value in values]
        return pa.array(moments, pa.int64()).cast(kind)
    if pa.types.is_string(kind):
        return pa.array([_text(value) if type(value) is msgspec.Raw else value for value in values], kind)
    return pa.array(values, kind)


def _offsets(values: Sequence[Any]) -> Any:
    """Where lists begin; none where there is no list."""
    ends = list(accumulate((len(value) if value else 0 for value in values), initial=0))
    return pa.array(
        [None if value is None else at for value, at in zip(values, ends[:-1], strict=True)] + ends[-1:], pa.int32()
    )


def _text(raw: msgspec.Raw) -> str | None:
    data = bytes(raw)
    return None if data == NULL else data.decode()
