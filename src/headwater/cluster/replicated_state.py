"""The state of a leader: rows reach RocksDB when their record is committed, and are seen from when they are written.

What is not committed lies over the stored rows in layers: the newest is what waits for the next record, those below are
on their way. Promises, besides those of `State`: rows and batches take effect in one order, that of the records; what
`write` was given goes with the next record, and none that is sent later comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter

from headwater import threads
from headwater.cluster.checkpoint import with_position
from headwater.cluster.record import Entry, Position, Rows
from headwater.cluster.sequencer import Hook, PendingRecord, Sequencer
from headwater.store.state import State

PENDING_BYTES_MAX = 64 << 20
"""What may wait for the next record while the engine does not answer; more is refused with Unavailable (503)."""

Layer = dict[bytes, bytes | None]
_key = itemgetter(0)


def _nothing(_: Position) -> None:
    """Nothing else is to be done."""


class ReplicatedState:
    """The state of the node that leads."""

    def __init__(self, stored: State, sequencer: Sequencer, on_pending: Callable[[], None]) -> None:
        """`on_pending` hears that rows wait for a record that nobody has asked for."""
        self.stored = stored
        """The rows that are committed and carried out."""
        self._sequencer = sequencer
        self._on_pending = on_pending
        self._lock = threads.Lock()
        self._layers: tuple[Layer, ...] = ({},)
        """The newest first. Whoever changes which there are puts another tuple in place, so that readers need no lock;
        to look through the newest, which still changes, they do."""
        self._pending_bytes = 0

    # Reading

    def get(self, key: bytes) -> bytes | None:
        for layer in self._layers:
            if key in layer:
                return layer[key]
        return self.stored.get(key)

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:  # before the stored rows are looked at: what is carried out in between is in both
            over: Layer = {}
            for layer in reversed(self._layers):
                over.update({key: value for key, value in layer.items() if key.startswith(prefix)})
        if start is not None:
            over = {key: value for key, value in over.items() if key >= start}
        if not over:
            yield from self.stored.scan(prefix, start)
            return
        below = (row for row in self.stored.scan(prefix, start) if row[0] not in over)
        above = ((key, over[key]) for key in sorted(over))
        for key, value in merge(below, above, key=_key):
            if value is not None:
                yield key, value

    # Writing

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        if self._sequencer.stopped is not None or self._pending_bytes > PENDING_BYTES_MAX:
            self._sequencer.check()
        with self._lock:
            self._layers[0].update(rows)
            self._pending_bytes += _bytes(rows)
        self._on_pending()

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._sequencer.wait(self._send(rows))

    def sync(self) -> None:
        ticket = self.flush()
        if ticket is not None:
            self._sequencer.wait(ticket)
        self._sequencer.settle()

    def flush(self) -> PendingRecord | None:
        """Send what waits, if anything does."""
        with self._sequencer.order:
            return self._send({}) if self._layers[0] else None

    def _send(self, rows: Mapping[bytes, bytes | None]) -> PendingRecord:
        return self.send((), _nothing, rows)

    def send(self, entries: Sequence[Entry], carry_out: Hook, rows: Mapping[bytes, bytes | None]) -> PendingRecord:
        """Send a record of what waits, these rows, and then these entries; if it raises, nothing of that is sent, and
        what waited waits on."""
        with self._sequencer.order:
            with self._lock:
                pending = self._layers[0]
                layer: Layer = {**pending, **rows}
                self._layers = ({}, layer, *self._layers[1:])
                self._pending_bytes = 0

            def carry_out_all(position: Position) -> None:
                self.stored.write(with_position(layer, position))
                self._drop(layer)
                carry_out(position)

            try:
                return self._sequencer.send([Rows(layer), *entries] if layer else entries, carry_out_all)
            except BaseException:
                self._drop(layer)
                with self._lock:
                    newest = {**pending, **self._layers[0]}
                    self._layers = (newest, *self._layers[1:])
                    self._pending_bytes = _bytes(newest)
                raise

    def _drop(self, layer: Layer) -> None:
        with self._lock:
            self._layers = tuple(other for other in self._layers if other is not layer)

    # Others

    @property
    def failed(self) -> str | None:
        """Why it takes nothing at the moment."""
        return self._sequencer.why or self.stored.failed

    def mend(self) -> bool:
        return not self._sequencer.is_suspended and self.stored.mend()

    def snapshot(self, path: str) -> None:
        self.sync()
        with self._sequencer.between:
            self.stored.snapshot(path)

    def close(self) -> None:
        self.stored.close()


def _bytes(rows: Mapping[bytes, bytes | None]) -> int:
    return sum(len(key) + len(value or b"") for key, value in rows.items())
