"""Rows as a table wants them: kept apart by its partitions, and sorted, before Spark writes them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from headwater.lake.layout import Layout

UNITS_US = {"day": 86_400_000_000, "hour": 3_600_000_000}
PREFIX = "partition_"
"""Of columns that name folders: Spark takes them out of the files."""


def laid_out(frame: DataFrame, layout: Layout) -> tuple[DataFrame, tuple[str, ...]]:
    """The rows in order, with the columns by which they are kept apart; and the names of these."""
    columns = {_named(name): _value(name) for name in layout.partition}
    kept = frame.withColumns(columns)
    return kept.sortWithinPartitions(*columns, *layout.sort), tuple(columns)


def _named(name: str) -> str:
    if name in UNITS_US:
        return name
    return f"{PREFIX}topic" if name == "topic" else "key_bucket"


def _value(name: str) -> Column:
    if name in UNITS_US:
        at, unit = "unix_micros(timestamp)", UNITS_US[name]
        return f.expr(f"cast(({at} - pmod({at}, {unit})) div {unit} as int)")
    if name == "topic":
        return f.col("topic")
    return _bucket(int(name.removeprefix("bucket(").removesuffix(")")))


def _bucket(count: int) -> Column:
    """Which bucket a key is in, by Iceberg's hash, which Spark's functions have not."""

    def bucket(keys: pa.Array) -> pa.Array:
        import mmh3

        found = [None if key is None else (mmh3.hash(key) & 0x7FFFFFFF) % count for key in keys.to_pylist()]
        return pa.array(found, pa.int32())

    made: Column = arrow_udf(bucket, "int")("key")  # type: ignore[call-overload]  # its stubs lack this use
    return made
