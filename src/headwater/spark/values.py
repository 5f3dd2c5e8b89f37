"""Typed columns of the source: `value`, what payloads say by the schemas of their topics, and `misfit`, why they say
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.lake.columns import MISFIT, VALUE
from headwater.lake.values import value_type
from headwater.spark.options import ReadOptions
from headwater.spark.reading import open_log, schemas_of
from headwater.spark.source import BESIDE, MESSAGE

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
"""Of columns that every message has: Spark's planner has no parser for them."""


def typed(value: Any, beside: Mapping[str, str] | None = None) -> StructType:
    """The columns of messages, and a value of an Arrow type beside them."""
    fields = [StructField(name, TYPES[kind]) for name, kind in (MESSAGE | dict(beside or {})).items()]
    return StructType([*fields, StructField(VALUE, from_arrow_type(value)), StructField(MISFIT, StringType())])


def typed_columns(options: ReadOptions) -> StructType | None:
    """The columns of a read with a value; None if no schema gives it fields."""
    with closing(open_log(options)) as log:
        value = value_type(schemas_of(log, options.topics))
    return None if value is None else typed(value, {name: BESIDE[name] for name in options.columns})
