"""`format("headwater")`: what Spark talks to.

Readers are plain values: options, schema, conditions. Spark makes them in a planner process of its own, pickles them
to its workers, and may make them again at any time; so nothing is opened before it is needed, and a task opens what it
reads itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.clock import SystemClock
from headwater.errors import Malformed
from headwater.spark import conditions as pushed
from headwater.spark import plan
from headwater.spark.columns import Columns, coalesced
from headwater.spark.conditions import Conditions
from headwater.spark.folder import Folder
from headwater.spark.options import MESSAGES, ReadOptions, check_batch, check_streaming, read_options
from headwater.spark.pieces import Pieces
from headwater.spark.spans import Span
from headwater.store.batch import BadBatch
from headwater.store.log import Hole
from headwater.topics.name import compile_filter

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
        read_options(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        check_batch(options)
        check_schema(schema)
        return BatchReader(options, schema)


def check_schema(schema: StructType) -> None:
    """That a schema a user stated has our columns, or some of them."""
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind != field.dataType.simpleString():
            raise Malformed(
                f'column "{field.name} {field.dataType.simpleString()}" is none of a topic\'s; there are '
                f"{', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}: state some of them, or no schema"
            )


@dataclass
class SpansPartition(InputPartition):
    """What one task reads: a small value that travels to it."""

    spans: tuple[Span, ...]
    now_us: int
    """When it was planned: messages that had expired by then are left out."""


class _PushFilters:
    """`pushFilters` of a reader, for sessions that push filters and for those that do not.

    Spark refuses a reader that overrides `pushFilters` in a session where push-down is off (the default), and a planner
    cannot see whether it is. It tells an override by `__func__`; this says that there is none, and is called all the
    same where push-down is on.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class BatchReader(DataSourceReader):
    """Reads what there is."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.conditions = Conditions()

    @property
    def pushFilters(self) -> Any:  # type: ignore[override]  # see _PushFilters
        """Take over the filters on root, topic, offset and timestamp."""
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        self.conditions, left = pushed.take(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        with open_log(options) as log:
            ranges = plan.ranges_of_batch(log, options, self.conditions)
            return _partitions(log, ranges, options) or [SpansPartition((), 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SpansPartition)
        return read_spans(self.options, self.schema, self.conditions, partition)


def open_log(options: ReadOptions) -> Folder:
    """The log that the options name."""
    assert options.data is not None
    return Folder(options.data)


def _partitions(log: Folder, ranges: Mapping[str, plan.Range], options: ReadOptions) -> list[InputPartition]:
    now_us = SystemClock().now_us()
    return [SpansPartition(spans, now_us) for spans in plan.partitions(log, ranges, options)]


def read_spans(
    options: ReadOptions, schema: StructType, conditions: Conditions, partition: SpansPartition
) -> Iterator[Any]:
    """Record batches of a partition's messages."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    wanted = compile_filter(options.topics)
    return coalesced(
        batch
        for span in partition.spans
        for batch in _batches(
            options, span, Columns(arrow, span.root, wanted, span.purges, conditions, partition.now_us)
        )
    )


def _batches(options: ReadOptions, span: Span, columns: Columns) -> Iterator[Any]:
    assert options.data is not None
    for piece in Pieces(options.data, span):
        if isinstance(piece, Hole):
            plan.report(span.root, piece, span.purged_upto, options.fail_on_data_loss)
            continue
        first_offset, body = piece
        try:
            columns.add(first_offset, body, span.first, span.last)
        except BadBatch as error:
            last = max(first_offset, span.first)
            hole = Hole(first_offset, last, f"damaged: {error}")
            plan.report(span.root, hole, span.purged_upto, options.fail_on_data_loss)
        if columns.is_full:
            yield columns.make()
    yield columns.make()
