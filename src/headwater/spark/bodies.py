"""Bodies of batches, made of Arrow columns: per column and root, never per message.

The other way round from `columns`. A body is laid out as Arrow lays out columns (`store/body.py` draws it), so each of
its columns is a buffer of Arrow's, moved to begin at 0 and padded. Rows go to the pile of their root in the order in
which they come, and a pile that is high enough becomes a body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.config import Config
from headwater.errors import Malformed
from headwater.memo import Memo
from headwater.message import FROM
from headwater.spark.topics import EVERYTHING, Topics
from headwater.store.body import ZEROS, join_columns
from headwater.topics.name import check_topic

ROWS = 10_000
"""Rows at which a body is made."""
BYTES = 8 << 20
"""Bytes at which one is made even if it has fewer rows."""
HELD_BYTES_MAX = 64 << 20
"""Bytes of record batches that piles may keep alive; at this every pile becomes a body."""
ROW_WEIGHT = 32
"""What a row weighs besides its values."""
ROOTS_CACHED_MAX = 100_000

TYPES = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "retain": pa.bool_(),
}
"""What the columns of rows are brought to; Spark may use 64-bit offsets, or strings for payloads and keys."""

Numbers = np.ndarray[Any, Any]


class Encoded(NamedTuple):
    """Messages of one root, as they are sent."""

    root: str
    rows: int
    body: bytes


class _Pile:
    """Rows of one root that wait to become a body."""

    __slots__ = ("bytes", "pieces", "rows")

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.rows = 0
        self.bytes = 0

    def room(self, weights: Numbers) -> int:
        """How many of these rows still fit; one that is over the limit by itself fits where nothing else is."""
        fits = int(np.searchsorted(np.cumsum(weights[: ROWS - self.rows]), BYTES - self.bytes, "right"))
        return fits if fits or self.rows else 1

    def add(self, piece: Any, weight: int) -> None:
        self.pieces.append(piece)
        self.rows += piece.num_rows
        self.bytes += weight


class Piles:
    """Turns the record batches of a task into bodies of one root each; rows of a root keep their order."""

    def __init__(self, config: Config, topic: str | None = None, ttl_us: int = 0, table: Topics | None = None) -> None:
        """Rows that name no topic are of this one; with a `ttl_us` all expire so long after they are published. Of a
        `table` only topics that its filter matches are taken."""
        self._config = config
        self._topic = topic
        self._ttl_us = ttl_us
        self._table = table
        self._is_of_table = (table or EVERYTHING).test()
        self._piles: dict[str, _Pile] = {}
        self._held_bytes = 0
        self._roots: Memo[str, str] = Memo(ROOTS_CACHED_MAX)

    def add(self, batch: Any, time_us: int) -> Iterator[Encoded]:
        """Take rows; what is full now comes out, published at this time."""
        rows = _brought(batch, self._topic)
        for root, share in self._shares(rows):
            yield from self._pile(root, share, time_us)
        self._held_bytes = self._held_bytes + rows.nbytes if self._piles else 0
        if self._held_bytes > HELD_BYTES_MAX:
            yield from self.rest(time_us)

    def rest(self, time_us: int) -> Iterator[Encoded]:
        """What is left."""
        for root in tuple(self._piles):
            yield self._encoded(root, time_us)
        self._held_bytes = 0

    def _shares(self, rows: Any) -> Iterator[tuple[str, Any]]:
        """The rows of each root."""
        topics = rows.column("topic").dictionary_encode()
        roots = [self._root(name) for name in _texts(topics.dictionary)]
        numbers = {root: number for number, root in enumerate(dict.fromkeys(roots))}
        if len(numbers) == 1:
            yield roots[0], rows
        if len(numbers) <= 1:
            return
        by_topic = np.array([numbers[root] for root in roots], np.int32)
        by_row = by_topic[topics.indices.to_numpy()]
        sorted_rows = rows.take(pa.array(np.argsort(by_row, kind="stable")))
        ends = np.cumsum(np.bincount(by_row, minlength=len(numbers))).tolist()
        for root, start, end in zip(numbers, [0, *ends], ends, strict=False):
            yield root, sorted_rows.slice(start, end - start)

    def _root(self, topic: str) -> str:
        root = self._roots.known.get(topic)
        if root is None:
            found = check_topic(topic, self._config)
            if self._table is not None and not self._is_of_table(topic):
                raise Malformed(f'topic "{topic}" is none of this table of "{self._table}"; INSERT it INTO another')
            root = self._roots.keep(topic, found)
        return root

    def _pile(self, root: str, rows: Any, time_us: int) -> Iterator[Encoded]:
        weights = _weights(rows)
        start = 0
        while start < rows.num_rows:
            pile = self._piles.get(root)
            if pile is None:
                pile = self._piles[root] = _Pile()
            end = start + pile.room(weights[start:])
            pile.add(rows.slice(start, end - start), int(weights[start:end].sum()))
            if end < rows.num_rows or pile.rows >= ROWS or pile.bytes >= BYTES:
                yield self._encoded(root, time_us)
            start = end

    def _encoded(self, root: str, time_us: int) -> Encoded:
        pile = self._piles.pop(root)
        joined = pile.pieces[0] if len(pile.pieces) == 1 else pa.concat_batches(pile.pieces)
        return Encoded(root, pile.rows, encode(joined, time_us, self._ttl_us))


def _brought(batch: Any, topic: str | None = None) -> Any:
    """Rows with the column types of `TYPES`, in which everything is there that has to be; those that name no topic are
    of this one."""
    names, columns = [], []
    for name, type_ in TYPES.items():
        if name not in batch.schema.names:
            continue
        column = batch.column(batch.schema.get_field_index(name))
        names.append(name)
        columns.append(column if column.type == type_ else column.cast(type_))
    if topic is not None and "topic" not in names:
        names, columns = ["topic", *names], [pa.repeat(topic, batch.num_rows), *columns]
    rows = pa.RecordBatch.from_arrays(columns, names)
    if topic is not None and rows.column("topic").null_count:
        place = rows.schema.get_field_index("topic")
        rows = rows.set_column(place, "topic", pc.fill_null(rows.column("topic"), topic))
    for name in ("topic", "payload"):
        if rows.column(name).null_count:
            raise Malformed(
                f'a row has no {name}; leave such rows out with .where("{name} is not null"), '
                "or give them one with coalesce"
            )
    return rows


def _texts(column: Any) -> list[str]:
    try:
        return [str(text) for text in column.to_pylist()]
    except UnicodeDecodeError as error:
        raise Malformed(f"a topic is not UTF-8 ({error.reason}); make it of text, not of bytes") from None


def _weights(rows: Any) -> Numbers:
    """About how many bytes each row takes in a body."""
    weights = np.full(rows.num_rows, ROW_WEIGHT, np.int64)
    for name in rows.schema.names:
        column = rows.column(name)
        if name == "headers":
            pairs, names, values = _pairs(column)
            bytes_ = np.zeros(len(names) + 1, np.int64)
            np.cumsum(np.diff(_offsets(names)) + np.diff(_offsets(values)) + ROW_WEIGHT, out=bytes_[1:])
            weights += np.diff(bytes_[pairs])
        elif name != "retain":
            weights += np.diff(_offsets(column))
    return weights


def encode(rows: Any, time_us: int, ttl_us: int = 0) -> bytes:
    """The body of rows of one root; the same bytes that `encode_body` makes of the same messages."""
    count = rows.num_rows
    topics = rows.column("topic").dictionary_encode()
    retain: Sequence[Any] = ()
    keys: Sequence[Any] = ()
    headers: Sequence[Any] = ()
    there = rows.schema.names
    if "retain" in there:
        flags = pc.fill_null(rows.column("retain"), False).to_numpy(zero_copy_only=False)
        if flags.any():
            retain = _padded(flags.astype(np.uint8))
    if "key" in there:
        column = rows.column("key")
        if column.null_count < count:
            bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
            keys = (*_padded(bits), *_binary(column))
    if "headers" in there:
        pairs, names, values = _pairs(rows.column("headers"))
        if len(names):
            headers = (*_padded(pairs), *_binary(names), *_binary(values))
    return join_columns(
        count,
        len(topics.dictionary),
        (*_binary(topics.dictionary), *_padded(topics.indices.to_numpy()), *_padded(np.full(count, time_us, np.int64))),
        _padded(np.full(count, time_us + ttl_us, np.int64)) if ttl_us else (),
        retain,
        keys,
        headers,
        _binary(rows.column("payload")),
    )


def _pairs(column: Any) -> tuple[Numbers, Any, Any]:
    """Where the headers of each row begin among all pairs, and the names and values of these."""
    pairs = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    if column.null_count and np.diff(pairs)[column.is_null().to_numpy(zero_copy_only=False)].any():
        # Arrow allows that there is something behind what is null.
        column = pa.array(column.to_pylist(), column.type)
        pairs = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
    first, count = int(pairs[0]), int(pairs[-1] - pairs[0])
    names, values = column.keys.slice(first, count), column.items.slice(first, count)
    if values.null_count:
        raise Malformed("a header has no value; leave it out with map_filter, or give it an empty one")
    return _without_own(pairs - pairs[0], names, values)


def _without_own(pairs: Numbers, names: Any, values: Any) -> tuple[Numbers, Any, Any]:
    """The same without the header that the broker alone writes, as rows that are passed on may have it."""
    kept = pc.not_equal(names, FROM)
    if not len(names) or pc.all(kept).as_py():
        return pairs, names, values
    places = np.zeros(len(names) + 1, np.int32)
    np.cumsum(kept.to_numpy(zero_copy_only=False), out=places[1:])
    return places[pairs], names.filter(kept), values.filter(kept)


def _offsets(column: Any) -> Numbers:
    if not len(column):
        return np.zeros(1, np.int32)  # Arrow may leave the buffer out
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def _binary(column: Any) -> tuple[Any, ...]:
    """int32 offsets from 0 on, then the bytes; both padded."""
    offsets = _offsets(column)
    start, end = int(offsets[0]), int(offsets[-1])
    data = column.buffers()[2]
    values = memoryview(data)[start:end] if data is not None else b""
    return (*_padded(offsets - start if start else offsets), values, ZEROS[: -len(values) & 7])


def _padded(numbers: Numbers) -> Sequence[Any]:
    numbers = np.ascontiguousarray(numbers)
    return numbers.data.cast("B"), ZEROS[: -numbers.nbytes & 7]
