"""Reading messages: the batch reader, and what tasks of every reader do with their spans."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.arrow.columns import Columns, coalesced
from headwater.arrow.conditions import Conditions
from headwater.clock import SystemClock
from headwater.lake.columns import MISFIT, VALUE
from headwater.message import SchemaInfo
from headwater.spark import conditions as pushed
from headwater.spark import plan
from headwater.spark.folder import Folder
from headwater.spark.options import ReadOptions
from headwater.spark.pieces import Piece, Pieces
from headwater.spark.served import Served, served_pieces
from headwater.spark.spans import Log, Span
from headwater.spark.topics import Topics
from headwater.store.batch import BadBatch
from headwater.store.log import Hole

if TYPE_CHECKING:
    from headwater.lake.values import Values


@dataclass
class SpansPartition(InputPartition):
    """What one task reads: a small value that travels to it."""

    spans: tuple[Span, ...]
    now_us: int
    """When it was planned: messages that had expired by then are left out."""
    schemas: tuple[SchemaInfo, ...] = ()
    """What payloads have to be, if it is asked what they say."""


class BatchReader(DataSourceReader):
    """Reads what there is."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.conditions = Conditions()

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        with closing(open_log(options)) as log:
            ranges = plan.ranges_of_batch(log, options, self.conditions)
            return partitions_of(log, ranges, options, self.schema) or [SpansPartition((), 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SpansPartition)
        return read_spans(self.options, self.schema, self.conditions, partition)


class PushingReader(BatchReader):
    """Reads what there is and the query's filters leave.

    A class of its own, and only for frames that ask for it: Spark 4.3 refuses a reader with `pushFilters` in a session
    where push-down is off, and where it is on, it reads every use of a frame with the filters that were pushed last.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over the filters on root, topic, offset and timestamp."""
        self.conditions, left = pushed.take(filters)
        return left


def open_log(options: ReadOptions) -> Log:
    """The log that the options name; with a lake, its history before it."""
    log: Log = Folder(options.data) if options.data is not None else Served(options.url or "", options.topics)
    try:
        return with_lake(log, options)
    except BaseException:
        log.close()
        raise


def with_lake(log: Log, options: ReadOptions) -> Log:
    """A log with the history before it, if the options name a lake; Conflict if that is another bus's."""
    if options.lake is None:
        return log
    from headwater.spark.crossing import Crossing

    return Crossing(log, options.lake)


def partitions_of(
    log: Log, ranges: Mapping[str, plan.Range], options: ReadOptions, schema: StructType
) -> list[InputPartition]:
    """Partitions that together have each offset of the ranges once."""
    now_us = SystemClock().now_us()
    schemas = schemas_of(log, options.topics) if is_typed(schema) else ()
    return [SpansPartition(spans, now_us, schemas) for spans in plan.partitions(log, ranges, options)]


def schemas_of(log: Log, topics: Topics) -> tuple[SchemaInfo, ...]:
    """What the payloads of these topics have to be."""
    return tuple(one for one in log.schemas() if topics.overlaps(one.filter))


def is_typed(schema: StructType) -> bool:
    """Whether somebody asks what payloads say."""
    return VALUE in schema.names or MISFIT in schema.names


def _values(schemas: tuple[SchemaInfo, ...], columns: Any) -> Values:
    from headwater.lake.values import Values  # most reads ask for none

    return Values(schemas, columns)


def read_spans(
    options: ReadOptions, schema: StructType, conditions: Conditions, partition: SpansPartition
) -> Iterator[Any]:
    """Record batches of a partition's messages."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    wanted = options.topics.test()
    values = _values(partition.schemas, arrow) if is_typed(schema) else None

    def archived(span: Span) -> Iterator[Any]:
        from headwater.spark.lake_reading import batches_of

        return batches_of(span, arrow, wanted, conditions, values)

    def batches(span: Span) -> Iterator[Any]:
        if span.files:
            return archived(span)
        columns = Columns(arrow, span.root, wanted, span.purges, conditions, partition.now_us, values)
        return _batches(options, span, columns, archived)

    yield from coalesced(batch for span in partition.spans for batch in batches(span))
    keep_what_is_loaded()


@cache
def keep_what_is_loaded() -> None:
    """Leave the modules that a worker has loaded out of its collections, once in its life.

    Spark has a worker collect garbage after each task, and walking what pandas and pyarrow are made of takes longer
    than reading 50,000 messages.
    """
    gc.freeze()


def pieces_of(options: ReadOptions, span: Span) -> Iterable[Piece]:
    """The batches of a span, and what is gone of it."""
    if options.data is not None:
        return Pieces(options.data, span)
    return served_pieces(options.url or "", options.topics.of_root(span.root), span)


def _batches(
    options: ReadOptions, span: Span, columns: Columns, archived: Callable[[Span], Iterator[Any]]
) -> Iterator[Any]:
    for piece in pieces_of(options, span):
        if isinstance(piece, Hole):
            yield columns.make()
            for kept in _kept(options, span, piece):
                yield from archived(kept)
            continue
        first_offset, last_offset, body, deltas, told = piece
        try:
            columns.add(first_offset, body, span.first, span.last, deltas, told)
        except BadBatch as error:
            hole = Hole(first_offset, last_offset, f"damaged: {error}")
            plan.report(span.root, hole, span.purged_upto, options.fail_on_data_loss)
        if columns.is_full:
            yield columns.make()
    yield columns.make()


def _kept(options: ReadOptions, span: Span, hole: Hole) -> list[Span]:
    """Where the lake has what the log lost since the read was planned; what it has not is reported."""
    spans: list[Span] = []
    lacking = [(hole.first, hole.last)]
    if options.lake is not None:
        from headwater.spark.crossing import lost_spans

        first, last = max(hole.first, span.first), min(hole.last, span.last)
        spans, lacking = lost_spans(options.lake, span.root, first, last, span.purges)
    for first, last in lacking:
        plan.report(span.root, Hole(first, last, hole.reason), span.purged_upto, options.fail_on_data_loss)
    return spans
