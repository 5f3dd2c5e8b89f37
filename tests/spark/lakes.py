"""A lake without Spark: the archive's commits with files that Arrow writes, for tests that need many of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

import headwater
import headwater.bus
from headwater.lake import files as lake_files
from headwater.lake.lake import append, offset_of, open_lake
from headwater.message import Message

DAY_US = 86_400_000_000
SCHEMA = pa.schema(
    [
        ("root", pa.string()),
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("payload", pa.binary()),
    ]
)


def write(path: Path | str, messages: Sequence[Message], rows_per_group: int = 1000) -> None:
    """A data file."""
    rows = [
        {
            "root": message.root,
            "topic": message.topic,
            "offset": message.offset,
            "timestamp": message.time_us,
            "key": message.key,
            "headers": list(message.header_pairs),
            "payload": message.payload,
        }
        for message in messages
    ]
    with lake_files.parquet_writer(str(path), SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA), row_group_size=rows_per_group)


def archive(lake: Path | str, bus: headwater.bus.Bus, root: str, upto: int) -> None:
    """One commit: what comes after the archived offset, a file a day."""
    opened = open_lake(str(lake))
    opened.claim(bus.id)
    table = opened.make_table(root)
    after = offset_of(table)
    messages = list(bus.replay(f"{root}/#", after=after, upto={root: upto}))
    folder = lake_files.new_attempt(table, f"{after + 1}-{upto}")
    paths = []
    for day in sorted({message.time_us // DAY_US for message in messages}):
        paths.append(f"{folder}/day={day}/part.parquet")
        write(paths[-1], [message for message in messages if message.time_us // DAY_US == day], rows_per_group=7)
    append(table, paths, after, after + 1, upto)


def commit_deletes(table: Table, delete: DataFile) -> None:
    """Name a file of deletes in a table, as engines do that delete rows without writing data files anew."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        producer.append_data_file(delete)
