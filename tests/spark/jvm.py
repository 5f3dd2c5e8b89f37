"""The same questions to the reader in Spark's own process: what `rows` asks of the Python one, through a session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import datasource as spark
from pyspark.sql import functions as f

from headwater import errors
from headwater.spark.jar import find

SPARK: SparkSession | None = None
"""The session that reads, while there is one."""
OURS = re.compile(r"headwater\.errors\.(\w+): \w+\(\d+\): (.*)")
GAP = re.compile(r'messages (\d+) to (\d+) of "(.*)" are gone \((.*)\); (.*)')


@contextmanager
def reading(session: SparkSession) -> Iterator[None]:
    """Have rows read by the session; skipped where no jar was built."""
    global SPARK  # noqa: PLW0603  # functions of other modules ask for it
    if find() is None:
        pytest.skip("the reader in Spark's own process is not built: `make jvm` does it, where there is javac")
    SPARK = session
    try:
        yield
    finally:
        SPARK = None


def frame(place: object, **options: object) -> Any:
    assert SPARK is not None
    source = "url" if str(place).startswith("headwater") else "data"
    asked = {source: str(place), "reader": "jvm", **{name: str(value) for name, value in options.items()}}
    return SPARK.read.format("headwater").options(**asked).load()


def partitions(place: object, filters: Sequence[spark.Filter] = (), **options: object) -> list[list[tuple[Any, ...]]]:
    """The rows of each partition that has any."""
    try:
        asked = frame(place, **options)
        for filter in filters:
            asked = asked.where(_column(filter))
        found: dict[int, list[tuple[Any, ...]]] = {}
        for row in asked.withColumn("part", f.spark_partition_id()).collect():
            found.setdefault(row.part, []).append(_plain(row))
    except PySparkException as error:
        raise _ours(error) from error
    return [found[part] for part in sorted(found)]


def _plain(row: Any) -> tuple[Any, ...]:
    """A row as a replay says it; Spark gives local times without a zone, and bytearrays."""
    key = None if row.key is None else bytes(row.key)
    return (row.root, row.topic, row.offset, row.timestamp.astimezone(UTC), key, row.headers, bytes(row.payload))


def _ours(error: PySparkException) -> Exception:
    found = OURS.findall(str(error))
    if not found:
        return error
    name, said = found[-1]
    gap = GAP.match(said)
    if gap is not None:
        return errors.Gap(gap[3], int(gap[1]), int(gap[2]), gap[4], gap[5])
    kind: type[Exception] = getattr(errors, name)
    return kind(said)


def _column(filter: Any) -> Any:
    if isinstance(filter, spark.Not):
        return ~_column(filter.child)
    column = f.col(filter.attribute[0])
    match filter:
        case spark.EqualTo():
            return column == _value(filter)
        case spark.GreaterThan():
            return column > _value(filter)
        case spark.LessThan():
            return column < _value(filter)
        case spark.StringStartsWith():
            return column.startswith(_value(filter))
        case spark.In():
            return column.isin(*filter.value)
        case spark.IsNull():
            return column.isNull()
    raise AssertionError(filter)


def _value(filter: Any) -> Any:
    value = filter.value
    return f.lit(value) if isinstance(value, datetime) else value
