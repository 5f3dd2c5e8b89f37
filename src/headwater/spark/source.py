"""`format("headwater")`: what Spark talks to.

Readers are plain values: options, schema, conditions. Spark makes them in a planner process of its own, pickles them
to its workers, and may make them again at any time; so nothing is opened before it is needed, and a task opens what it
reads itself.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.errors import Malformed
from headwater.spark.options import MESSAGES, ReadOptions, check_batch, check_streaming, read_options
from headwater.spark.reading import BatchReader, PushingReader
from headwater.spark.sink import batch_writer, stream_writer
from headwater.spark.streaming import StreamReader
from headwater.spark.tables import TABLES, TableReader

COLUMNS = {
    "root": "string",
    "topic": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "headers": "map<string,string>",
    "payload": "binary",
}


class HeadwaterSource(DataSource):
    """Topics of a bus as a table."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> str:
        columns = columns_of(read_options(self.options))
        return ", ".join(f"{name} {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        check_batch(options)
        check_schema(schema, columns_of(options))
        if options.table != MESSAGES:
            return TableReader(options, schema)
        return PushingReader(options, schema) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options)
        check_streaming(options)
        check_schema(schema, columns_of(options))
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self.options, schema)


def columns_of(options: ReadOptions) -> dict[str, str]:
    """Names and types of what is read."""
    return COLUMNS if options.table == MESSAGES else TABLES[options.table]


def check_schema(schema: StructType, columns: dict[str, str]) -> None:
    """That a schema which a user stated has our columns, or some of them: the others are then not even read."""
    for field in schema.fields:
        if columns.get(field.name) != field.dataType.simpleString():
            raise Malformed(
                f'no column "{field.name} {field.dataType.simpleString()}"; there are '
                f"{', '.join(f'{name} {kind}' for name, kind in columns.items())}: state some of them, or no schema"
            )
