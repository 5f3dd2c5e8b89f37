"""A lake's files in a store, for Spark: through its own connector, or through Arrow in tasks where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.arrow.columns import brought
from headwater.arrow.conditions import Conditions
from headwater.lake import files as lake_files
from headwater.lake.columns import FilePlace, Store
from headwater.lake.layout import NULL_FOLDER
from headwater.lake.scan import BYTES, scanned
from headwater.lake.stores import for_hadoop, hadoop_of, know, know_all, local_path
from headwater.spark.spans import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_AT_ONCE = 64
"""Tasks that read data files which Spark does not read by itself."""
ROW_GROUP_BYTES = 64 << 20
EVERYTHING = (1 << 63) - 1
WRITTEN = "path string, rows long"


def reaches(spark: SparkSession, location: str) -> bool:
    """Whether Spark's own readers and writers open what is at a location."""
    return local_path(location) is not None or _has_connector(spark, for_hadoop(location).partition(":")[0])


@cache
def _has_connector(spark: SparkSession, scheme: str) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types

    java: Any = spark
    try:
        java._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, java._jsc.hadoopConfiguration())
    except Py4JError:
        return False
    return True


def read_natively(spark: SparkSession, paths: Sequence[str], schema: Any, store: Store) -> DataFrame:
    """Spark's own scan of data files."""
    return spark.read.options(**hadoop_of(store)).schema(schema).parquet(*map(for_hadoop, paths))


def read_spans(spark: SparkSession, spans: Sequence[Span], schema: str) -> DataFrame:
    """The rows of data files that are to be seen: without what was purged, or deleted by others."""
    return _each(spark, spans, partial(_rows, _arrow(schema)), schema)


def read_whole(spark: SparkSession, places: Sequence[FilePlace], schema: Any, store: Store) -> DataFrame:
    """All columns of data files, with all that is not deleted in them."""
    spans = [Span("", 1, EVERYTHING, files=(place,), store=store) for place in places]
    kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    return _each(spark, spans, partial(_whole, _arrow(kind)), kind)


def _arrow(schema: Any) -> Any:
    kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    return to_arrow_schema(cast("StructType", kind), timezone="UTC")


def _each(spark: SparkSession, spans: Sequence[Span], read: Any, schema: Any) -> DataFrame:
    packed = spark.createDataFrame([(msgspec.msgpack.encode(span),) for span in spans], "span binary")
    return packed.repartition(min(len(spans), FILES_AT_ONCE)).mapInArrow(read, schema)


def _spans(packed: Iterator[pa.RecordBatch]) -> Iterator[Span]:
    for batch in packed:
        for each in batch.column("span").to_pylist():
            yield msgspec.msgpack.decode(each, type=Span)


# In tasks


def _rows(columns: pa.Schema, packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from headwater.spark.lake_reading import batches_of

    for span in _spans(packed):
        yield from batches_of(span, columns, lambda _: True, Conditions(), None)


def _whole(columns: pa.Schema, packed: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for span in _spans(packed):
        know_all([path for path, _ in span.files], span.store or Store())
        for place in span.files:
            for batch in scanned(place, columns.names, span.first, span.last, size=BYTES):
                yield brought(_completed(batch, columns), columns)


def _completed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """With nothing in the columns that its file is older than."""
    for field in columns:
        if field.name not in batch.schema.names:
            batch = batch.append_column(field.name, pa.nulls(batch.num_rows, field.type))
    return batch


def write(frame: DataFrame, attempt: str, store: Store, apart: Sequence[str]) -> int:
    """Write Parquet into the folder of an attempt with Arrow, by these columns; how many rows. What tasks left that
    ended early, or were run twice, is deleted."""
    found = frame.mapInArrow(partial(_written, attempt, store, apart), WRITTEN).collect()
    kept = {row.path for row in found}
    for path, _ in lake_files.files_below(attempt):
        if path not in kept:
            lake_files.delete(path)
    return sum(row.rows for row in found)


def _written(
    attempt: str, store: Store, apart: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: rows come in the order of the columns that keep them apart."""
    know(attempt, store)
    writer: pq.ParquetWriter | None = None
    done: list[tuple[str, int]] = []
    current: str | None = None
    held: list[Any] = []

    def flush(output: pq.ParquetWriter) -> None:
        if held:
            output.write_table(pa.Table.from_batches(held))
            held.clear()

    for batch in batches:
        for folder, rows in _by_folder(batch, apart):
            if folder != current:
                if writer is not None:
                    flush(writer)
                    writer.close()
                path, current = f"{attempt}/{folder}/{uuid4().hex}.parquet", folder
                writer = lake_files.parquet_writer(path, rows.schema)
                done.append((path, 0))
            held.append(rows)
            done[-1] = (done[-1][0], done[-1][1] + rows.num_rows)
            if writer is not None and sum(one.nbytes for one in held) > ROW_GROUP_BYTES:
                flush(writer)
    if writer is not None:
        flush(writer)
        writer.close()
    yield pa.RecordBatch.from_pydict({"path": [path for path, _ in done], "rows": [rows for _, rows in done]})


def _by_folder(batch: pa.RecordBatch, apart: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows that follow one another and belong into one folder, which is named as Spark names it."""
    columns, rest = [batch.column(name) for name in apart], batch.drop_columns(list(apart))
    codes = [column.dictionary_encode(null_encoding="encode").indices.to_numpy() for column in columns]
    changes = np.flatnonzero(np.any([np.diff(code) != 0 for code in codes], axis=0)) + 1
    for begin, end in pairwise([0, *changes.tolist(), batch.num_rows]):
        if begin < end:
            values = (column[begin].as_py() for column in columns)
            yield "/".join(map(_folder, apart, values)), rest.slice(begin, end - begin)


def _folder(name: str, value: object) -> str:
    return f"{name}={NULL_FOLDER if value is None else quote(str(value), safe='')}"
