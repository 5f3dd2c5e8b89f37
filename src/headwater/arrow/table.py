"""Topics as a table that DuckDB scans: it pushes down the columns that a query needs, and its conditions.

To DuckDB this is one of pyarrow's datasets, which it lets leave out columns and rows. Each scan is a reading of its
own, up to the same offsets; nothing is read before there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headwater.arrow.bounds import Bounds
from headwater.arrow.reader import Asked
from headwater.arrow.schema import SCHEMA
from headwater.arrow.source import Readable
from headwater.clock import to_datetime
from headwater.delivery.options import OnGap
from headwater.message import Extent

TEXT = "text"
AHEAD = timedelta(days=1)
"""A message may say that it was sent so much later than it was appended; a broker takes no more."""


class Table(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The messages of a filter, up to now."""

    def __init__(
        self,
        bus: Readable,
        filter: str,
        extents: Sequence[Extent],
        fields: Mapping[str, type],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        on_gap: OnGap = "raise",
    ) -> None:
        self.filter = filter
        self.failed: Exception | None = None
        """What a scan met: of an error DuckDB passes on the words alone."""
        self._bus = bus
        self._extents = extents
        self._fields = fields
        self._range: dict[str, Any] = {"until": until, "on_gap": on_gap}
        self._since = since
        self._schema = Asked(filter, since=since, fields=fields, **self._range).schema.append(
            pa.field(TEXT, pa.string())
        )

    @property
    def schema(self) -> Any:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Scan:
        """What DuckDB asks for when it begins to scan."""
        wanted = list(self._schema.names if columns is None else columns)
        # Some may be read in vain, as a condition is looked through for names alone.
        beside = [name for name in self._schema.names if filter is not None and name in str(filter)]
        needed = list(dict.fromkeys([*wanted, *beside]))
        schema = pa.schema([self._schema.field(name) for name in wanted])

        def batches() -> Iterator[Any]:
            try:
                for batch in self._read(needed, filter):
                    yield (batch if filter is None else batch.filter(filter)).select(wanted)
            except Exception as error:
                self.failed = error
                raise

        return Scan(lambda: pa.RecordBatchReader.from_batches(schema, batches()))

    def _read(self, names: Sequence[str], filter: Any) -> Iterator[Any]:
        columns = [name for name in names if name in SCHEMA.names]
        if TEXT in names and "payload" not in columns:
            columns.append("payload")
        since, upto = self._since, {extent.root: extent.end - 1 for extent in self._extents}
        if filter is not None:
            bounds = Bounds(filter, self._schema)
            upto = {extent.root: upto[extent.root] for extent in self._extents if bounds.may_have(extent)}
            earliest_us = bounds.since_us()
            if earliest_us:
                since = max(found for found in (since, to_datetime(earliest_us) - AHEAD) if found is not None)
        if not upto:
            return
        asked = Asked(
            self.filter,
            since=since,
            upto=upto,
            columns=columns,
            fields={name: kind for name, kind in self._fields.items() if name in names},
            **self._range,
        )
        for batch in asked.open(self._bus)[0]:
            yield batch.append_column(TEXT, texts(batch.column("payload"))) if TEXT in names else batch


class Scan:
    """A scan that was asked for."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self.to_reader = begin


def texts(payloads: Any) -> Any:
    """Payloads as text, not copied where all of them are; null where one is not UTF-8."""
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(payload) for payload in payloads.to_pylist()], pa.string())


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
