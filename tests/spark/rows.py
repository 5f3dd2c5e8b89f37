"""Reading as Spark's planner and tasks do, without Spark, or by the reader in its own process, which needs it; and what
a replay says about the same folder."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import Filter
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import headwater
import headwater.bus
from headwater.message import Message
from headwater.spark.options import check_batch, read_options
from headwater.spark.reading import PushingReader
from spark import jvm

SCHEMA = StructType(
    [
        StructField("root", StringType()),
        StructField("topic", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("payload", BinaryType()),
    ]
)
Row = tuple[Any, ...]


def batches(place: object, filters: Sequence[Filter] = (), **options: object) -> list[list[Any]]:
    """The record batches of each partition; of a folder, or of a server if the place is its address."""
    source = "url" if str(place).startswith("headwater") else "data"
    asked = read_options({source: str(place), **{name: str(value) for name, value in options.items()}})
    check_batch(asked)
    reader = PushingReader(asked, SCHEMA)
    left = list(reader.pushFilters(list(filters)))
    assert not left, "a filter was not taken over"
    partitions = pickle.loads(pickle.dumps(list(reader.partitions())))
    reader = pickle.loads(pickle.dumps(reader))
    return [list(reader.read(partition)) for partition in partitions]


def partitions(place: object, filters: Sequence[Filter] = (), **options: object) -> list[list[Row]]:
    """The rows of each partition."""
    if jvm.SPARK is not None:
        return jvm.partitions(place, filters, **options)
    return [
        [row_of(row) for batch in part for row in checked(batch).to_pylist()]
        for part in batches(place, filters, **options)
    ]


def checked(batch: Any) -> Any:
    batch.validate(full=True)
    return batch


def rows(place: object, filters: Sequence[Filter] = (), **options: object) -> list[Row]:
    """All rows, by root and offset."""
    return by_place(row for part in partitions(place, filters, **options) for row in part)


def row_of(row: dict[str, Any]) -> Row:
    return (
        row["root"],
        row["topic"],
        row["offset"],
        row["timestamp"],
        row["key"],
        dict(row["headers"]),
        row["payload"],
    )


def row_of_message(message: Message) -> Row:
    return (
        message.root,
        message.topic,
        message.offset,
        message.timestamp,
        message.key,
        dict(message.headers),
        message.payload,
    )


def replayed(folder: object, filter: str = "#") -> list[Row]:
    """What a replay yields, by root and offset."""
    with headwater.open(str(folder), read_only=True) as bus:
        return by_place(map(row_of_message, bus.replay(filter)))


def by_place(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], row[2]))


def trim(bus: headwater.bus.Bus) -> None:
    """Delete every message that is stored by now, as retention would in time."""

    def delete() -> None:
        bus.core.data.streams.seal()
        for root in bus.core.roots.all():
            root.stream.trim(root.stream.durable)

    bus.core.roots.commit.run(delete)
