"""Predicate pushdown: which roots may have rows that a condition of Arrow selects, and from when on.

pyarrow knows how to tell, of a file whose rows are known to lie within bounds, that a condition holds for none of
them. Here there is no such file: it is asked about bounds alone.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from headwater.message import Extent

FORMAT = ds.ParquetFileFormat()
FAR_US = 1 << 52
"""The year 2112."""


class Bounds:
    """A condition on columns of a schema."""

    def __init__(self, condition: Any, schema: Any) -> None:
        self._condition = condition
        self._schema = schema

    def _may_hold(self, known: Any) -> bool:
        """Whether it may hold for rows of which this is known."""
        files = LocalFileSystem()
        rows = FORMAT.make_fragment("none", files, partition_expression=known)
        return any(
            True for _ in ds.FileSystemDataset([rows], self._schema, FORMAT, files).get_fragments(self._condition)
        )

    def may_have(self, extent: Extent) -> bool:
        """Whether it may hold for a message of a root."""
        root, topic, offset = ds.field("root"), ds.field("topic"), ds.field("offset")
        known = (root == extent.root) & (offset < extent.end) & (topic >= extent.root) & (topic < f"{extent.root}0")
        return self._may_hold(known)  # "0" comes after "/"

    def since_us(self) -> int:
        """The latest moment before which it holds for no message; 0 if it may for any."""
        low, high = 0, FAR_US
        while low < high:
            middle = (low + high + 1) // 2
            moment = pa.scalar(middle, self._schema.field("timestamp").type)
            if self._may_hold(ds.field("timestamp") < moment):
                high = middle - 1
            else:
                low = middle
        return low
