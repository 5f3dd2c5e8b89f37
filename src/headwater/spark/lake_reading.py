"""Reading data files of the lake in tasks of the source: Arrow batches, as those that are made of the log.

Batch reads of history alone do better with `headwater.spark.table`, where Spark's own Parquet reader does this; a
stream, and a batch read with the option `lake`, come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from headwater.spark.columns import ROWS
from headwater.spark.conditions import Conditions
from headwater.spark.lake import Archived
from headwater.spark.lake_files import located
from headwater.spark.spans import Span

Wanted = Callable[[str], bool]


def batches_of(span: Span, schema: Any, wanted: Wanted, conditions: Conditions) -> Iterator[Any]:
    """Record batches of the messages that the lake has of a span, by offset."""
    needed = list(dict.fromkeys([*schema.names, "topic", "offset", "timestamp"]))
    inside = (dataset.field("offset") >= span.first) & (dataset.field("offset") <= span.last)
    is_wanted = conditions.topic_test(wanted)
    for batch in _in_order([_scanned(file, needed, inside) for file in span.files]):
        mask = _mask(batch, is_wanted, conditions)
        found = batch if mask is None else batch.filter(mask)
        yield pa.RecordBatch.from_arrays([_as(found.column(field.name), field.type) for field in schema], schema=schema)


def _scanned(file: str, columns: list[str], inside: Any) -> Iterator[Any]:
    filesystem, path = located(file)
    scanned = dataset.dataset(path, format="parquet", filesystem=filesystem).to_batches(
        columns=columns, filter=inside, batch_size=ROWS, use_threads=False
    )
    return (batch for batch in scanned if batch.num_rows)


def _in_order(files: list[Iterator[Any]]) -> Iterator[Any]:
    """The batches of files that are each sorted by offset, in the order of all of them."""
    if len(files) == 1:
        yield from files[0]
        return
    held = {at: batch for at, file in enumerate(files) if (batch := next(file, None)) is not None}
    while held:
        upto = min(_offsets(batch)[-1] for batch in held.values())
        parts = []
        for at, batch in tuple(held.items()):
            count = int(np.searchsorted(_offsets(batch), upto, side="right"))
            parts.append(batch.slice(0, count))
            rest = batch.slice(count) if count < batch.num_rows else next(files[at], None)
            if rest is None:
                del held[at]
            else:
                held[at] = rest
        yield from pa.Table.from_batches(parts).sort_by("offset").combine_chunks().to_batches()


def _offsets(batch: Any) -> Any:
    return batch.column("offset").to_numpy(zero_copy_only=False)


def first_since(archived: Archived, time_us: int, otherwise: int) -> int:
    """The first archived offset of a message sent at or after a time."""
    best = otherwise
    for file in archived.files:
        if file.newest_us >= time_us and file.first < best:
            filesystem, path = located(file.path)
            moment = pa.scalar(time_us, pa.timestamp("us", tz="UTC"))
            found = dataset.dataset(path, format="parquet", filesystem=filesystem).to_table(
                columns=["offset"], filter=dataset.field("timestamp") >= moment
            )
            best = min(best, pc.min(found["offset"]).as_py() if found.num_rows else best)
    return best


def _mask(batch: Any, is_wanted: Wanted, conditions: Conditions) -> Any:
    """Which rows are wanted; None if all are."""
    masks = []
    topics = batch.column("topic").dictionary_encode()
    wants = np.array([is_wanted(name) for name in topics.dictionary.to_pylist()], np.bool_)
    if not wants.all():
        masks.append(wants[topics.indices.to_numpy(zero_copy_only=False)])
    for column in ("offset", "timestamp"):
        for condition in conditions.on(column):
            numbers = batch.column(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
            masks.append(condition.of_numbers(numbers))
    return pa.array(np.logical_and.reduce(masks)) if masks else None


def _as(column: Any, kind: Any) -> Any:
    """A column as Spark spells its type."""
    if column.type == kind:
        return column
    if pa.types.is_map(kind):
        column = pa.concat_arrays([column])  # without the offset of a slice
        return pa.MapArray.from_arrays(
            column.offsets, column.keys.cast(kind.key_type), column.items.cast(kind.item_type), type=kind
        )
    return column.cast(kind)
