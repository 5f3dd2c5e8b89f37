"""Dead letters, grouped: what each subscription gave up on, why, on which topics, and what it looks like.

Spark reads the table, groups it, and picks the examples; the driver gets no more than it is to show.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from headwater.clock import to_datetime
from headwater.errors import Malformed

GROUP = ("subscription", "error", "topic")
EXAMPLE_BYTES_MAX = 1024
"""Of a payload that is shown as an example."""


class Example(msgspec.Struct, frozen=True):
    """A letter of a group."""

    offset: int
    payload: bytes
    """Its first `EXAMPLE_BYTES_MAX` bytes."""


class Group(msgspec.Struct, frozen=True):
    """Letters of one subscription and topic that ended with the same error."""

    subscription: str
    error: str
    topic: str
    letters: int
    attempts: int
    """The most that one of them had."""
    first: datetime
    last: datetime
    """When the first and the last of them was given up on."""
    examples: tuple[Example, ...]
    """Those with the lowest offsets."""


class Grouped(msgspec.Struct, frozen=True):
    """The largest groups, and how many there are in all."""

    groups: tuple[Group, ...]
    groups_in_all: int
    letters_in_all: int


def group(letters: DataFrame, examples: int = 3) -> DataFrame:
    """A row for each subscription, last error and topic."""
    known = letters.select(
        *("subscription", "topic", "offset", "attempts"),
        f.coalesce(f.element_at("errors", -1), f.lit("")).alias("error"),
        f.substring("payload", 1, EXAMPLE_BYTES_MAX).alias("payload"),
        f.unix_micros("dead_at").alias("dead_at_us"),
    )
    rank = f.row_number().over(Window.partitionBy(*GROUP).orderBy("offset"))
    example = f.when(f.col("rank") <= examples, f.struct("offset", "payload"))
    return (
        known.withColumn("rank", rank)
        .groupBy(*GROUP)
        .agg(
            f.count("*").alias("letters"),
            f.max("attempts").alias("attempts"),
            f.min("dead_at_us").alias("first_us"),
            f.max("dead_at_us").alias("last_us"),
            f.sort_array(f.collect_list(example)).alias("examples"),
        )
    )


def grouped(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    subscription: str | None = None,
    examples: int = 3,
    groups_max: int = 100,
) -> Grouped:
    """The largest groups of the dead letters of a bus, or of one of its subscriptions."""
    if examples < 0 or groups_max < 1:
        raise Malformed("examples count from 0, groups from 1 on")
    letters = spark.read.format("headwater").options(**source).option("table", "dead_letters").load()
    if subscription is not None:
        letters = letters.where(f.col("subscription") == subscription)
    found = group(letters, examples).cache()
    try:
        totals = found.agg(f.count("*"), f.coalesce(f.sum("letters"), f.lit(0))).first()
        assert totals is not None
        largest = found.orderBy(f.desc("letters"), *GROUP).limit(groups_max).collect()
    finally:
        found.unpersist()
    return Grouped(tuple(_group(row) for row in largest), totals[0], totals[1])


def _group(row: Row) -> Group:
    return Group(
        row["subscription"],
        row["error"],
        row["topic"],
        row["letters"],
        row["attempts"],
        to_datetime(row["first_us"]),
        to_datetime(row["last_us"]),
        tuple(Example(one["offset"], bytes(one["payload"])) for one in row["examples"]),
    )
