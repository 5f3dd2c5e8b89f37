"""Messages as a `pyarrow.RecordBatchReader`: read as somebody takes record batches, and no sooner.

Promises: the rows that `replay` gives for the same range, each once; those of a root in the order of their offsets.
What is gathered at one time is bounded, however many roots there are; a reader that nobody has any more reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.arrow.columns import BYTES, ROWS, Columns, brought, coalesced
from headwater.arrow.conditions import Condition, Conditions
from headwater.arrow.fields import Fields
from headwater.arrow.schema import schema_of
from headwater.arrow.source import Archived, Piece, Readable, Source
from headwater.clock import from_datetime
from headwater.delivery.options import OnGap
from headwater.delivery.replay import After, check_after
from headwater.errors import Gap, Malformed
from headwater.log.purges import Purges
from headwater.store.batch import BadBatch
from headwater.topics.name import compile_filter

ADVICE = 'say on_gap="skip" to read what is left'
ROOTS_KEPT_MAX = 64
"""Roots whose dictionaries of topics are remembered from one record batch to the next."""


class Asked:
    """What `bus.arrow` is asked for; wrong options are Malformed here, before anything is read."""

    def __init__(
        self,
        filter: str,
        *,
        after: After = None,
        since: datetime | None = None,
        until: datetime | None = None,
        upto: Mapping[str, int] | None = None,
        columns: Sequence[str] | None = None,
        fields: Mapping[str, type] | None = None,
        on_gap: OnGap = "raise",
    ) -> None:
        if on_gap not in ("raise", "skip"):
            raise Malformed(f'on_gap is {on_gap!r}; use "raise" or "skip"')
        if until is not None and not isinstance(until, datetime):
            raise Malformed(f"until is {until!r}; use a datetime")
        check_after(filter, after, since)
        check_after("#", upto, None)
        self._filter = filter
        self._range: dict[str, Any] = {"after": after, "since": since, "upto": upto}
        self._until = until
        self._fields = Fields(fields or {}, schema_of(columns))
        self._skips = on_gap == "skip"
        self.schema = self._fields.schema

    def open(self, bus: Readable) -> tuple[Any, Source]:
        """A `pyarrow.RecordBatchReader` of what there is now, and where it reads; messages that have expired by now
        are left out."""
        ends: dict[str, int] = {}
        if self._until is not None:
            self._range["upto"], ends = _until(bus, self._filter, self._until, self._range["upto"])
        needed = self._fields.needed
        source = bus._columns(self._filter, needed.names, **self._range)
        gathered = Gatherer(source, needed, self._filter, from_datetime(bus.now), ends, skips=self._skips)
        batches = map(self._fields.joined, coalesced(gathered.batches()))
        return pa.RecordBatchReader.from_batches(self.schema, batches), source


def _until(
    bus: Readable, filter: str, until: datetime, upto: Mapping[str, int] | None
) -> tuple[dict[str, int], dict[str, int]]:
    """How far a moment lets each root be read; and the moment, for roots in which it is history."""
    places = {found.root: (found.places[0] - 1, found.first) for found in bus.extents(filter, [until])}
    ends = {root: from_datetime(until) for root, (last, first) in places.items() if last < first}
    if upto is None:
        return {root: last for root, (last, _) in places.items()}, ends
    return {root: min(upto[root], last) for root, (last, _) in places.items() if root in upto}, ends


class Gatherer:
    """Makes record batches of what a source gives."""

    def __init__(
        self, source: Source, schema: Any, filter: str, now_us: int, ends: Mapping[str, int], *, skips: bool
    ) -> None:
        """`ends` has the moment before which messages of a root have to be sent, where no offset tells."""
        self._source = source
        self._schema = schema
        self._wanted = compile_filter(filter)
        self._now_us = now_us
        self._ends = ends
        self._skips = skips
        self._roots: dict[str, tuple[Purges, Columns]] = {}
        self._rows = self._held = 0
        """What is gathered at this moment, of all roots."""

    def batches(self) -> Iterator[Any]:
        """Record batches, of one root each; some have no rows."""
        try:
            while (found := self._next()) is not None:
                if isinstance(found, Archived):
                    yield from self._rest()
                    yield self._archived(found)
                    continue
                if self._is_purged(found):
                    yield from self._rest()
                self._add(found)
                if self._rows >= ROWS or self._held >= BYTES:
                    yield from self._rest()
            yield from self._rest()
        finally:
            self._source.close()

    def _next(self) -> Piece | Archived | None:
        while True:
            try:
                return self._source.next()
            except Gap as gap:
                if not self._skips:
                    raise Gap(gap.root, gap.first, gap.last, gap.reason, ADVICE) from None

    def _is_purged(self, found: Piece) -> bool:
        """Whether something of its root was purged since the last of it."""
        known = self._roots.get(found.root)
        return known is not None and known[0] is not found.purges

    def _add(self, found: Piece) -> None:
        known = self._roots.get(found.root)
        if known is None or known[0] is not found.purges:
            known = self._roots[found.root] = (found.purges, self._columns(found))
        columns = known[1]
        rows, held = columns.rows, columns.held
        try:
            columns.add(found.first_offset, found.body, found.first, found.last, found.deltas)
        except BadBatch as error:
            if not self._skips:
                raise Gap(found.root, found.first_offset, found.last_offset, f"damaged: {error}", ADVICE) from error
        self._rows += columns.rows - rows
        self._held += columns.held - held

    def _columns(self, found: Piece) -> Columns:
        return Columns(
            self._schema, found.root, self._wanted, tuple(found.purges), self._conditions(found.root), self._now_us
        )

    def _conditions(self, root: str) -> Conditions:
        end_us = self._ends.get(root)
        return Conditions() if end_us is None else Conditions((Condition("timestamp", "<", end_us),))

    def _rest(self) -> Iterator[Any]:
        for _, columns in self._roots.values():
            if columns.rows:
                yield columns.make()
        self._rows = self._held = 0
        if len(self._roots) > ROOTS_KEPT_MAX:
            self._roots.clear()

    def _archived(self, found: Archived) -> Any:
        rows, end_us = found.rows, self._ends.get(found.root)
        if end_us is not None:
            rows = rows.filter(pc.less(rows.column("timestamp"), pa.scalar(end_us, rows.column("timestamp").type)))
        return brought(rows, self._schema)
