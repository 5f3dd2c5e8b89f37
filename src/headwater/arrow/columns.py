"""Arrow record batches, made of the bodies of batches: per column and body, never per message.

A body is laid out as Arrow lays out columns (`store/body.py` draws it). Bodies are gathered until there are enough rows
(Spark takes 10,000 at a time twice as fast as 1,000); then the same columns of all of them are joined, their offsets
moved on by what stands before them, and the result is wrapped as it is; the payloads of a body that is large enough
by itself are not copied. What is not wanted (other topics, purged or
expired messages, offsets outside the span) goes by one mask over the rows, and only where there is any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.arrow.conditions import Conditions
from headwater.lake.purged_rows import spared_by_key
from headwater.log.purges import Purge, Purges
from headwater.memo import Memo
from headwater.store.batch import BadBatch
from headwater.store.body import COLUMNS_KNOWN, EXPIRIES, FIXED, HEADERS, KEYS, NAMES_AT, RETAIN, Layout, values_at

if TYPE_CHECKING:
    from headwater.lake.values import Values

ROWS = 10_000
"""Rows that a record batch has, or a few more."""
BYTES = 16 << 20
"""Bytes at which a record batch is made though it has fewer rows."""
HELD_BYTES = 64 << 20
"""The same for the bodies that are held meanwhile, whose payloads may not be among the columns that are read."""
DICTIONARIES_MAX = 256
INT32 = struct.Struct("<i")
INT32_AT = INT32.unpack_from

MOMENT = pa.timestamp("us", tz="UTC")
Numbers = np.ndarray[Any, Any]
Wanted = Callable[[str], bool]


class Binary:
    """Values of varying length, gathered from bodies: where each ends, and the bytes of all of them."""

    __slots__ = ("bases", "bytes", "count", "counts", "ends", "pieces")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.ends: list[memoryview | bytes] = []
        self.pieces: list[memoryview | bytes] = []
        self.counts: list[int] = []
        self.bases: list[int] = []
        self.bytes = 0
        self.count = 0

    def add(self, count: int, ends: memoryview | bytes, piece: memoryview | bytes) -> None:
        self.counts.append(count)
        self.bases.append(self.bytes)
        self.ends.append(ends)
        self.pieces.append(piece)
        self.bytes += len(piece)
        self.count += count

    def offsets(self) -> Numbers:
        """Where each value starts, and the last ends."""
        ends = np.frombuffer(b"".join(self.ends), np.int32)
        offsets = np.zeros(len(ends) + 1, np.int32)
        np.add(ends, np.repeat(np.array(self.bases, np.int32), self.counts), out=offsets[1:])
        return offsets

    def array(self, kind: Any, validity: Any = None, nulls: int = 0) -> Any:
        """The Arrow array of all values."""
        offsets = self.offsets()
        values = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        return pa.Array.from_buffers(
            kind, len(offsets) - 1, [validity, pa.py_buffer(offsets), pa.py_buffer(values)], nulls
        )


class Dictionary:
    """The topic names of a body, which of them are wanted, and up to where they were purged."""

    __slots__ = ("count", "ends", "purged_upto", "text", "wants", "wants_all", "wants_any")

    def __init__(self, raw: bytes, count: int, wanted: Wanted, purges: Purges) -> None:
        start = values_at(0, count)
        ends = struct.unpack_from(f"<{count + 1}i", raw)
        try:
            names = [raw[start + a : start + b].decode() for a, b in pairwise(ends)]
        except UnicodeDecodeError as error:
            raise BadBatch(f"a topic is not UTF-8: {error}") from error
        self.count = count
        self.ends = raw[4 : 4 * (count + 1)]
        self.text = raw[start:]
        self.wants = np.array([wanted(name) for name in names], np.bool_)
        self.wants_all = bool(self.wants.all())
        self.wants_any = bool(self.wants.any())
        self.purged_upto = np.array(purges.uptos(names) if len(purges) else (), np.int64)


class Columns:
    """Gathers bodies of one root, and makes record batches of them."""

    def __init__(
        self,
        schema: Any,
        root: str,
        wanted: Wanted,
        purges: tuple[Purge, ...],
        conditions: Conditions,
        now_us: int,
        values: Values | None = None,
    ) -> None:
        """`schema` has any of the columns; Spark spells their types in its own way. `values` makes those of schemas."""
        self._values = values
        self._schema = schema
        self._root = root
        self._wanted = conditions.topic_test(wanted)
        self._purges = Purges(purges)
        self._on_offset = conditions.on("offset")
        self._on_time = conditions.on("timestamp")
        self._now_us = now_us
        self._names = set(schema.names)
        self._dictionaries: Memo[tuple[int, bytes], Dictionary] = Memo(DICTIONARIES_MAX)
        self._topics, self._keys, self._payloads = Binary(), Binary(), Binary()
        self._header_names, self._header_values = Binary(), Binary()
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.held = 0
        """Bytes of the bodies that are kept."""
        self._starts: list[int] = []
        """What to add to a row's number to have its offset, by body."""
        self._counts: list[int] = []
        self._index: list[memoryview] = []
        self._places: dict[Dictionary, int] = {}
        self._topic_bases: list[int] = []
        self._times: list[memoryview] = []
        self._expiries: list[tuple[int, memoryview]] = []
        self._retain: list[tuple[int, memoryview]] = []
        self._told: list[tuple[int, str | None]] = []
        """What the headers of batches say, by body: when they were appended, and by which producer."""
        self._validity: list[tuple[int, memoryview]] = []
        self._pairs: list[tuple[int, int, memoryview]] = []
        self._picked: list[tuple[int, Numbers]] = []
        self._cut: tuple[int, int] | None = None
        for column in (self._topics, self._keys, self._payloads, self._header_names, self._header_values):
            column.clear()

    @property
    def is_full(self) -> bool:
        columns = self._payloads.bytes + self._keys.bytes + self._header_values.bytes
        return self.rows >= ROWS or columns >= BYTES or self.held >= HELD_BYTES

    # Gathering

    def add(
        self,
        first_offset: int,
        body: bytes,
        first: int,
        last: int,
        deltas: Sequence[int] | None = None,
        told: tuple[int, str | None] | None = None,
    ) -> None:
        """Gather the messages of a body from offset `first` to `last`; `BadBatch` if it is none, and it is left out.

        Their offsets are dense, unless `deltas` says how far each is from the first.
        """
        try:
            self._add(first_offset, body, first, last, deltas, told or (0, None))
        except struct.error as error:
            raise BadBatch(f"the body's columns are wrong: {error}") from error

    def _add(
        self,
        first_offset: int,
        body: bytes,
        first: int,
        last: int,
        deltas: Sequence[int] | None,
        told: tuple[int, str | None],
    ) -> None:
        count, topics, columns, _ = FIXED.unpack_from(body)
        if not 0 < topics <= count or count * 8 > len(body) or columns & ~COLUMNS_KNOWN:
            raise BadBatch("its counts are impossible")
        layout = Layout(body, count, topics, columns)
        if layout.reach > len(body):
            raise BadBatch("a column ends outside the body")
        view = memoryview(body)
        _ends(view, NAMES_AT, topics)
        dictionary = self._dictionary(body[NAMES_AT : layout.names_end], topics)
        if not dictionary.wants_any:
            return
        index = view[layout.index_at : layout.index_at + 4 * count]
        numbers = np.frombuffer(index, np.int32)
        if numbers.min() < 0 or numbers.max() >= topics:
            raise BadBatch("a topic's index is outside the dictionary")
        times = view[layout.times_at : layout.expiries_at]
        expiries = view[layout.expiries_at : layout.retain_at] if columns & EXPIRIES else None
        bits = view[layout.bits_at : layout.bits_at + (count + 7) // 8]
        keys = (bits, *_binary(view, layout.keys_at, count)) if columns & KEYS else None
        headers = self._headers(view, layout, count) if columns & HEADERS else None
        payloads = _binary(view, layout.lengths_at, count)
        if deltas is not None and len(deltas) != count:
            raise BadBatch("its offsets are not as many as its messages")
        # Nothing is gathered before all of it was found to be right.
        if expiries is not None:
            self._expiries.append((self.rows, expiries))
        if columns & RETAIN:
            self._retain.append((self.rows, view[layout.retain_at : layout.retain_at + count]))
        self._told.append(told)
        if keys is not None and ("key" in self._names or self._purges.keys):
            self._add_keys(count, *keys)
        if headers is not None:
            self._add_headers(*headers)
        if "payload" in self._names or self._values is not None:
            self._payloads.add(count, *payloads)
        self._topic_bases.append(self._place_of(dictionary))
        self._index.append(index)
        self._times.append(times)
        self._starts.append(first_offset - self.rows)
        self._counts.append(count)
        last_offset = first_offset + (count - 1 if deltas is None else deltas[-1])
        if deltas is not None:
            self._picked.append((self.rows, first_offset + np.array(deltas, np.int64)))
        if first_offset < first or last_offset > last:
            self._cut = (first, last)
        self.rows += count
        self.held += len(body)

    def _dictionary(self, raw: bytes, topics: int) -> Dictionary:
        """The names of a body; the same few hundred devices tend to come together again and again."""
        known = self._dictionaries.known.get((topics, raw))
        if known is None:
            known = self._dictionaries.keep((topics, raw), Dictionary(raw, topics, self._wanted, self._purges))
        return known

    def _place_of(self, dictionary: Dictionary) -> int:
        """Where this dictionary's names begin among those of the record batch."""
        place = self._places.get(dictionary)
        if place is None:
            place = self._places[dictionary] = self._topics.count
            self._topics.add(dictionary.count, dictionary.ends, dictionary.text)
        return place

    def _add_keys(self, count: int, bits: memoryview, ends: memoryview, data: memoryview) -> None:
        self._fill_keys(self.rows)
        self._validity.append((self.rows, bits))
        self._keys.add(count, ends, data)

    def _fill_keys(self, rows: int) -> None:
        """No keys for the bodies since the last one that had any."""
        missing = rows - self._keys.count
        if missing:
            self._keys.add(missing, bytes(4 * missing), b"")

    @staticmethod
    def _headers(view: memoryview, layout: Layout, count: int) -> tuple[int, memoryview, Any, Any]:
        ends, pairs = _ends(view, layout.pairs_at, count), layout.pairs
        names = _binary(view, layout.header_names_at, pairs)
        values = _binary(view, layout.header_values_at, pairs)
        for text_ends, text in (names, values):
            _check_text(text_ends, text)
        return pairs, ends, names, values

    def _add_headers(self, pairs: int, ends: memoryview, names: Any, values: Any) -> None:
        if pairs and "headers" in self._names:
            self._pairs.append((self.rows, self._header_names.count, ends))
            self._header_names.add(pairs, *names)
            self._header_values.add(pairs, *values)

    # Making record batches

    def make(self) -> Any:
        """The record batch of what was gathered, which is forgotten; it may have no rows."""
        if not self.rows:
            return _empty(self._schema)
        offsets = np.arange(self.rows, dtype=np.int64)
        offsets += np.repeat(np.array(self._starts, np.int64), self._counts)
        for start, picked in self._picked:
            offsets[start : start + len(picked)] = picked
        times = np.frombuffer(b"".join(self._times), np.int64)
        index = np.frombuffer(b"".join(self._index), np.int32)
        if len(self._places) > 1:
            index = index + np.repeat(np.array(self._topic_bases, np.int32), self._counts)
        mask = self._mask(offsets, times, index)
        told: dict[str, Any] = {}
        if self._values is not None:
            topics = pa.DictionaryArray.from_arrays(pa.array(index), self._topics.array(pa.string()))
            told = self._values.columns(topics, self._payloads.array(pa.binary()))
        made = [
            told[field.name] if field.name in told else self._column(field, offsets, times, index)
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
        if mask is not None:
            batch = batch.filter(pa.array(mask))
        self._clear()
        return batch

    def _column(self, field: Any, offsets: Numbers, times: Numbers, index: Numbers) -> Any:
        match field.name:
            case "root":
                return pa.repeat(pa.scalar(self._root, field.type), self.rows)
            case "topic":
                names = self._topics.array(pa.string())
                if len(names) == 1:
                    return pa.repeat(names[0], self.rows).cast(field.type)
                return names.take(pa.array(index)).cast(field.type)
            case "offset":
                return pa.array(offsets)
            case "timestamp":
                return pa.Array.from_buffers(field.type, self.rows, [None, pa.py_buffer(times)], 0)
            case "key":
                return self._key_column().cast(field.type)
            case "headers":
                return self._header_column(field.type)
            case "append_time" | "expires_at" | "retained" | "producer":
                return self._beside(field.name).cast(field.type)
        return self._payloads.array(pa.binary()).cast(field.type)

    def _beside(self, name: str) -> Any:
        """What a message has besides, as few ask for it."""
        if name == "expires_at":
            moments = np.zeros(self.rows, np.int64)
            for start, expiries in self._expiries:
                moments[start : start + len(expiries) // 8] = np.frombuffer(expiries, np.int64)
            return pa.array(moments, pa.int64(), mask=moments == 0).cast(MOMENT)
        if name == "retained":
            flags = np.zeros(self.rows, np.bool_)
            for start, retain in self._retain:
                flags[start : start + len(retain)] = np.frombuffer(retain, np.uint8) != 0
            return pa.array(flags)
        bodies = pa.array(np.repeat(np.arange(len(self._counts)), self._counts))
        if name == "producer":
            return pa.array([producer for _, producer in self._told], pa.string()).take(bodies)
        return pa.array([time_us for time_us, _ in self._told], pa.int64()).cast(MOMENT).take(bodies)

    def _key_column(self) -> Any:
        if not self._validity:
            return pa.nulls(self.rows, pa.binary())
        self._fill_keys(self.rows)
        there = np.zeros(self.rows, np.uint8)
        for start, bits in self._validity:
            found = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
            end = min(start + len(found), self.rows)
            there[start:end] |= found[: end - start]
        valid = pa.py_buffer(np.packbits(there, bitorder="little"))
        return self._keys.array(pa.binary(), valid, self.rows - int(there.sum()))

    def _header_column(self, kind: Any) -> Any:
        offsets = np.zeros(self.rows + 1, np.int32)
        for start, pairs, ends in self._pairs:
            numbers = np.frombuffer(ends, np.int32)
            offsets[start + 1 : start + 1 + len(numbers)] = numbers + pairs
        np.maximum.accumulate(offsets, out=offsets)
        names, values = self._header_names.array(pa.string()), self._header_values.array(pa.string())
        kept = _last_of_each(names, offsets)
        if kept is not None:
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets].astype(np.int32)
            chosen = pa.array(kept)
            names, values = names.filter(chosen), values.filter(chosen)
        return pa.MapArray.from_arrays(
            pa.array(offsets), names.cast(kind.key_type), values.cast(kind.item_type), type=kind
        )

    def _mask(self, offsets: Numbers, times: Numbers, index: Numbers) -> Numbers | None:
        """Which rows are wanted; None if all are."""
        masks: list[Numbers] = []
        if not all(dictionary.wants_all for dictionary in self._places):
            masks.append(np.concatenate([dictionary.wants for dictionary in self._places])[index])
        if self._cut is not None:
            masks.append((offsets >= self._cut[0]) & (offsets <= self._cut[1]))
        if len(self._purges) and self._purges.highest >= offsets[0]:
            masks.append(offsets > np.concatenate([dictionary.purged_upto for dictionary in self._places])[index])
            if self._validity and self._purges.keys:
                names = self._topics.array(pa.string()).to_pylist()
                spared = spared_by_key(self._purges, names, index, offsets, self._key_column())
                masks += [] if spared is None else [spared]
        if self._expiries:
            expiries = np.zeros(self.rows, np.int64)
            for start, column in self._expiries:
                numbers = np.frombuffer(column, np.int64)
                expiries[start : start + len(numbers)] = numbers
            masks.append((expiries <= 0) | (expiries > self._now_us))
        masks += [condition.of_numbers(offsets) for condition in self._on_offset]
        masks += [condition.of_numbers(times) for condition in self._on_time]
        if not masks:
            return None
        mask = np.logical_and.reduce(masks)
        return None if mask.all() else mask


def _ends(view: memoryview, at: int, count: int) -> memoryview:
    """Where values end; they begin at 0 and never decrease."""
    column = view[at : at + 4 * (count + 1)]
    numbers = np.frombuffer(column, np.int32)
    if numbers[0] != 0 or (numbers[1:] < numbers[:-1]).any():
        raise BadBatch("a column's offsets decrease")
    return column[4:]


def _binary(view: memoryview, at: int, count: int) -> tuple[memoryview, memoryview]:
    """Where values end, and their bytes."""
    ends, start = _ends(view, at, count), values_at(at, count)
    return ends, view[start : start + (INT32_AT(ends, len(ends) - 4)[0] if count else 0)]


def _check_text(ends: memoryview, text: memoryview) -> None:
    """That each string is UTF-8; most are ASCII, which is told at once."""
    data = bytes(text)
    if data.isascii():
        return
    try:
        for a, b in pairwise([0, *np.frombuffer(ends, np.int32).tolist()]):
            data[a:b].decode()
    except UnicodeDecodeError as error:
        raise BadBatch(f"a header is not UTF-8: {error}") from error


def _last_of_each(names: Any, offsets: Numbers) -> Numbers | None:
    """Which pairs to keep so that no message has a name twice, the last one winning; None if none has."""
    if len(names) < 2:
        return None
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    keys = (rows * (int(codes.max()) + 1) + codes)[::-1]
    _, last = np.unique(keys, return_index=True)
    if len(last) == len(keys):
        return None
    kept = np.zeros(len(keys), np.bool_)
    kept[len(keys) - 1 - last] = True
    return kept


def _empty(schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def brought(rows: Any, schema: Any) -> Any:
    """The columns of a schema out of rows of a lake, as it spells their types."""
    return pa.RecordBatch.from_arrays([_as(rows.column(field.name), field.type) for field in schema], schema=schema)


def _as(column: Any, kind: Any) -> Any:
    if column.type == kind:
        return column
    if pa.types.is_map(kind):
        column = pa.concat_arrays([column])  # without the offset of a slice
        return pa.MapArray.from_arrays(
            column.offsets, column.keys.cast(kind.key_type), column.items.cast(kind.item_type), type=kind
        )
    return column.cast(kind)


def coalesced(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows in record batches that are neither tiny nor huge."""
    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield from _cut(pa.concat_batches(held) if len(held) > 1 else held[0])
            held, rows, size = [], 0, 0
    if held:
        yield from _cut(pa.concat_batches(held) if len(held) > 1 else held[0])


def _cut(batch: Any) -> Iterator[Any]:
    """Slices of a record batch with far too many rows; nothing is copied."""
    pieces = max(1, round(batch.num_rows / ROWS))
    step = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
