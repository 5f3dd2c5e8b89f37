"""Reading data files of the lake in tasks of the source: Arrow batches, as those that are made of the log.

Batch reads of history alone do better with `headwater.spark.table`, where Spark's own Parquet reader does this; a
stream, and a batch read with the option `lake`, come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.arrow.columns import BYTES, ROWS, brought
from headwater.arrow.conditions import Conditions
from headwater.lake.columns import MISFIT, VALUE, Store
from headwater.lake.purged_rows import without
from headwater.lake.scan import in_order, scanned
from headwater.lake.stores import know_all
from headwater.log.purges import Purges
from headwater.spark.spans import Span

if TYPE_CHECKING:
    from headwater.lake.values import Values

Wanted = Callable[[str], bool]


def batches_of(span: Span, schema: Any, wanted: Wanted, conditions: Conditions, values: Values | None) -> Iterator[Any]:
    """Record batches of the messages that the lake has of a span, by offset. What they say is asked of their payloads
    again: the schemas of now are not those by which they were archived."""
    asked = [name for name in schema.names if name not in (VALUE, MISFIT)]
    needed = list(
        dict.fromkeys([*asked, "topic", "offset", "timestamp", "key", *(("payload",) if values is not None else ())])
    )
    know_all([each for path, deletes in span.files for each in (path, *deletes)], span.store or Store())
    is_wanted = conditions.topic_test(wanted)
    files = [(span.first, scanned(file, needed, span.first, span.last, ROWS, BYTES)) for file in span.files]
    purges = Purges(span.purges)
    for rows in in_order(files):
        batch = without(rows, purges)
        mask = _mask(batch, is_wanted, conditions)
        found = batch if mask is None else batch.filter(mask)
        if values is not None:
            told = values.columns(found.column("topic").dictionary_encode(), found.column("payload"))
            columns = {**{name: found.column(name) for name in found.schema.names}, **told}
            found = pa.RecordBatch.from_pydict(columns)
        yield brought(found, schema)


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
