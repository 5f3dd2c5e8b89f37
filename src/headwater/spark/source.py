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
from pyspark.sql.types import StringType, StructField, StructType

from headwater.errors import Malformed
from headwater.spark.options import MESSAGES, ReadOptions, check_batch, check_streaming, read_options

MESSAGE = {
    "root": "string",
    "topic": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "headers": "map<string,string>",
    "payload": "binary",
}
BESIDE = {
    "append_time": "timestamp",
    "expires_at": "timestamp",
    "retained": "boolean",
    "producer": "string",
}
"""What messages have besides, for whoever asks for it."""
FAILURE = {"attempts": "int", "errors": "array<string>"}
COLUMNS: dict[str, dict[str, str]] = {
    MESSAGES: MESSAGE,
    "dead_letters": {"subscription": "string", **MESSAGE, **FAILURE, "dead_at": "timestamp"},
    "subscriptions": {
        "id": "string",
        "filter": "string",
        "order": "string",
        "lag": "bigint",
        "in_flight": "bigint",
        "retrying": "bigint",
        "dead": "bigint",
        "consumers": "int",
        "paused": "boolean",
        "floors": "map<string,bigint>",
    },
    "message_states": {
        "subscription": "string",
        "root": "string",
        "topic": "string",
        "offset": "bigint",
        "state": "string",
        **FAILURE,
        "deliveries": "int",
        "retry_at": "timestamp",
        "since": "timestamp",
        "consumer": "string",
    },
}
"""Of each table: names and types."""


class HeadwaterSource(DataSource):
    """Topics of a bus as a table."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> str | StructType:
        options = read_options(self.options)
        columns = ", ".join(f"{name} {kind}" for name, kind in columns_of(options).items())
        if not options.typed:
            return columns
        from headwater.spark.values import typed_columns

        return typed_columns(options) or columns

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        check_batch(options)
        check_schema(schema, options)
        # Imported here: Spark starts a process for each step of planning, and most have no need of it.
        from headwater.spark.reading import BatchReader, PushingReader
        from headwater.spark.tables import TableReader

        if options.table != MESSAGES:
            return TableReader(options, schema)
        return PushingReader(options, schema) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options)
        check_streaming(options)
        check_schema(schema, options)
        from headwater.spark.streaming import StreamReader

        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headwater.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headwater.spark.sink import stream_writer

        return stream_writer(self.options, schema)


TYPED = {"value": StructType, "misfit": StringType}
"""What messages have besides: `headwater.spark.values`."""


def _is_typed(field: StructField) -> bool:
    return isinstance(field.dataType, TYPED.get(field.name, ()))


def columns_of(options: ReadOptions) -> dict[str, str]:
    """Names and types of what is read, but for typed columns."""
    return COLUMNS[options.table] | {name: BESIDE[name] for name in options.columns}


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """That a schema which a user stated has our columns, or some of them: the others are then not even read."""
    columns = columns_of(options)
    for field in schema.fields:
        if options.table == MESSAGES and _is_typed(field):
            continue
        if columns.get(field.name) != field.dataType.simpleString():
            raise Malformed(
                f'no column "{field.name} {field.dataType.simpleString()}"; there are '
                f"{', '.join(f'{name} {kind}' for name, kind in columns.items())}: state some of them, or no schema"
            )
