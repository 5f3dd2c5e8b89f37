"""The body of a batch: columns as Arrow lays them out, each starting at a multiple of 8 bytes.

    0               4               8               12              16
    ├───────────────┼───────────────┼───────────────┼───────────────┤
 0  │ messages n    │ topics t      │ columns       │ 0             │
    ├───────────────┴───────────────┴───────────────┴───────────────┤
    │ topic names     int32[t+1] offsets, then UTF-8 bytes          │
    │ topic index     int32[n]                                      │
    │ times           int64[n], µs, when the publisher sent it      │
    │ expiries        int64[n], µs, 0 = never     if columns & 8    │
    │ retain          uint8[n]                    if columns & 4    │
    │ keys            validity bits, int32[n+1], bytes  columns & 1 │
    │ headers         int32[n+1] into pairs, then names and values, │
    │                 each int32[p+1], bytes      if columns & 2    │
    │ payloads        int32[n+1] offsets, then bytes                │
    └───────────────────────────────────────────────────────────────┘

A body is made once, by the publishing side, and never rewritten. Work on it is per column, not per message.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, compress, pairwise, repeat
from typing import Any

from headwater.memo import Memo
from headwater.message import Headers, Message
from headwater.store.shapes import Shape, is_worth_a_shape, remember, shape_of

KEYS = 1
HEADERS = 2
RETAIN = 4
EXPIRIES = 8
COLUMNS_KNOWN = KEYS | HEADERS | RETAIN | EXPIRIES
FIXED = struct.Struct("<IIII")
COLUMNS_AT = slice(8, 12)
"""Where it says which optional columns there are."""
NAMES_AT = FIXED.size
ONE_HEAD = struct.Struct("<IIIIii")
"""One message without optional columns, up to the topic's bytes;"""
ONE_TAIL = struct.Struct("<iiqii")
"""and what is after them: index, time, and where the payload begins and ends."""
LED = struct.Struct("<i4xqii")
"""One message with headers alone: its index and time, and where its pairs begin and end;"""
PAYLOAD = struct.Struct("<ii")
"""and behind its pairs where its payload begins and ends."""
ONE_PAIRS_MAX = 16
REMEMBERED_BYTES_MAX = 1024
"""Names of headers that are longer together are read and encoded each time."""
ONE_FIXED = struct.pack("<III", 1, 1, 0)
"""How each of these begins."""
ZEROS = bytes(8)
Piece = bytes | memoryview
FIRST = (0,)
"""The index of a single message."""
NAMES_CACHED_MAX = 64
COLUMNS_CACHED_MAX = 256
COLUMNS_CACHED_MESSAGES_MAX = 100_000
PACKERS_MAX = 4096
ORDERS_MAX = 64
ORDERS_TOPICS_MAX = 10_000
WHERE_SHIFT = 6
"""Where fewer than one in so many (two to this) of the topics are asked for, it is remembered where each is."""
HELD_BYTES = 768
"""What a batch takes in memory besides its body: its header, its columns, and the objects that these are;"""
HELD_TOPIC_BYTES = 96
"""each topic of its dictionary;"""
HELD_MESSAGE_BYTES = 40
"""each message, the place of its payload;"""
HELD_KEY_BYTES = 56
HELD_HEADERS_BYTES = 64
HELD_PAIR_BYTES = 192
"""and keys and headers, where there are any."""

_names_cache: Memo[bytes, tuple[str, ...]] = Memo(NAMES_CACHED_MAX)
"""Decoded topic dictionaries, as the same few hundred devices tend to come together again and again."""

_header_names_cache: Memo[bytes, tuple[str, ...]] = Memo(NAMES_CACHED_MAX)
"""Decoded names of headers, as the same few come in all messages of a kind."""

_header_columns_cache: Memo[tuple[str, ...], bytes] = Memo(NAMES_CACHED_MAX)
"""Encoded names of the headers of a single message, for the same reason."""

_columns_cache: Memo[tuple[str, ...], tuple[bytes, int, bytes]] = Memo(COLUMNS_CACHED_MAX, COLUMNS_CACHED_MESSAGES_MAX)
"""Encoded topic columns, for the same reason."""

_one_heads: Memo[tuple[str, tuple[str, ...]], tuple[bytes, bytes]] = Memo(COLUMNS_CACHED_MAX)
"""What a body of one message with headers has before its time and behind it, by topic and names."""

_orders: Memo[int, bytes] = Memo(ORDERS_MAX)
"""By number of topics: the index of a batch in which each has one message, in the order of the dictionary."""

_packers: Memo[int, struct.Struct] = Memo(PACKERS_MAX)
"""By count: the module's own cache of formats is small, and looking it up costs as much as packing ten numbers."""


def encode_body(
    topics: Sequence[str],
    payloads: Sequence[bytes],
    time_us: int | Sequence[int],
    expiries: Sequence[int] | None = None,
    retain: Sequence[bool] | None = None,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
) -> bytes:
    """The bytes of messages that go together, published at one time or each at its own; TypeError if a payload is not
    bytes."""
    count = len(topics)
    # Remembered, as the same devices tend to report together.
    topic_columns, topic_count, start = _columns_cache.known.get(tuple(topics)) or _topic_columns(topics)
    if isinstance(time_us, int):
        times = time_us.to_bytes(8, "little", signed=True) * count
    else:
        times = array("q", time_us).tobytes()
    if expiries is None and retain is None and keys is None and headers is None:
        if count == 1:
            payload = payloads[0]
            size = len(payload)
            return b"".join((start, times, PAYLOAD.pack(0, size), payload, ZEROS[: -size & 7]))
        offsets = list(accumulate(map(len, payloads), initial=0))
        return b"".join((start, times, _int32(offsets), *payloads, ZEROS[: -offsets[-1] & 7]))
    return join_columns(
        count,
        topic_count,
        (topic_columns, times),
        (array("q", expiries).tobytes(),) if expiries is not None and any(expiries) else (),
        (bytes(retain), ZEROS[: -count & 7]) if retain is not None and any(retain) else (),
        _key_columns(keys) if keys is not None and any(key is not None for key in keys) else (),
        _header_columns(headers) if headers is not None and any(headers) else (),
        _binary(payloads),
    )


def encode_one(topic: str, payload: bytes, time_us: int, headers: Headers) -> bytes:
    """The same of one message that has headers and no other options, as questions and their answers are."""
    key = topic, tuple([name for name, _ in headers])
    known = _one_heads.known.get(key)
    if known is None:
        columns, _, _ = _columns_cache.known.get((topic,)) or _topic_columns((topic,))
        known = FIXED.pack(1, 1, HEADERS, 0) + columns, _header_names(key[1])
        if len(known[0]) + len(known[1]) <= REMEMBERED_BYTES_MAX:
            _one_heads.keep(key, known)
    values = [value.encode() for _, value in headers]
    size = len(payload)
    return b"".join(
        (
            known[0],
            time_us.to_bytes(8, "little", signed=True),
            known[1],
            *_binary(values),
            PAYLOAD.pack(0, size),
            payload,
            ZEROS[: -size & 7],
        )
    )


def join_columns(
    count: int,
    topic_count: int,
    first: Sequence[Piece],
    expiries: Sequence[Piece],
    retain: Sequence[Piece],
    keys: Sequence[Piece],
    headers: Sequence[Piece],
    payloads: Sequence[Piece],
) -> bytes:
    """The body of columns, each in pieces that are padded, or of none; `first` are topics, index and times."""
    columns = EXPIRIES if expiries else 0
    if retain:
        columns |= RETAIN
    if keys:
        columns |= KEYS
    if headers:
        columns |= HEADERS
    fixed = FIXED.pack(count, topic_count, columns, 0)
    return b"".join((fixed, *first, *expiries, *retain, *keys, *headers, *payloads))


def joined_bodies(bodies: Sequence[Body]) -> bytes:
    """The messages of several bodies, one behind the other, as one body."""

    def column(values: Callable[[Body], Sequence[Any] | None], missing: object) -> list[Any] | None:
        if all(values(body) is None for body in bodies):
            return None
        return [value for body in bodies for value in (values(body) or [missing] * body.count)]

    return encode_body(
        [topic for body in bodies for topic in body.topics],
        [body.payload(place) for body in bodies for place in range(body.count)],
        [time_us for body in bodies for time_us in body._times],
        expiries=column(lambda body: body.expiries, 0),
        retain=column(lambda body: body.retain, False),
        keys=column(lambda body: body.keys, None),
        headers=column(lambda body: body.headers() if body.columns & HEADERS else None, ()),
    )


def _topic_columns(topics: Sequence[str]) -> tuple[bytes, int, bytes]:
    """The dictionary of topics with the index into it, how many there are, and how a body starts that has these and
    no optional columns; they are remembered."""
    names = dict.fromkeys(topics)
    if len(names) == 1:
        index = bytes((4 * len(topics) + 7) & ~7)
    elif len(names) == len(topics):
        index = _int32(range(len(topics)))
    else:
        places = dict(zip(names, range(len(names)), strict=True))
        index = _int32(list(map(places.__getitem__, topics)))
    columns = b"".join((*_binary([name.encode() for name in names]), index))
    made = columns, len(names), FIXED.pack(len(topics), len(names), 0, 0) + columns
    return _columns_cache.keep(tuple(topics), made, len(topics))


def _binary(values: Sequence[bytes]) -> tuple[bytes, ...]:
    """int32 offsets, then the bytes; both padded."""
    offsets = list(accumulate(map(len, values), initial=0))
    return (_int32(offsets), *values, ZEROS[: -offsets[-1] & 7])


def _int32(numbers: Sequence[int]) -> bytes:
    """Numbers, padded to a multiple of 8 bytes."""
    count = len(numbers)
    packer = _packers.known.get(count)
    if packer is None:
        packer = _packers.keep(count, struct.Struct(f"<{count}i{count % 2 * 4}x"))
    return packer.pack(*numbers)


def _key_columns(keys: Sequence[bytes | None]) -> tuple[bytes, ...]:
    """A bit for each key that there is, the lowest first; then all of them."""
    length = (len(keys) + 7) // 8
    digits = "".join(["0" if key is None else "1" for key in reversed(keys)])
    bits = int(digits, 2).to_bytes(length, "little")
    return (bits, ZEROS[: -length & 7], *_binary([key or b"" for key in keys]))


def _header_columns(headers: Sequence[Headers]) -> tuple[bytes, ...]:
    """Where each message's pairs begin, their names and their values."""
    if len(headers) == 1:
        names = tuple([name for name, _ in headers[0]])
        return (_header_names(names), *_binary([value.encode() for _, value in headers[0]]))
    return (
        _int32(list(accumulate(map(len, headers), initial=0))),
        *_binary([name.encode() for pairs in headers for name, _ in pairs]),
        *_binary([value.encode() for pairs in headers for _, value in pairs]),
    )


def _header_names(names: tuple[str, ...]) -> bytes:
    """Where the pairs of a single message begin and end, and their names."""
    known = _header_columns_cache.known.get(names)
    if known is None:
        known = b"".join((_int32((0, len(names))), *_binary([name.encode() for name in names])))
        if len(known) <= REMEMBERED_BYTES_MAX:
            _header_columns_cache.keep(names, known)
    return known


def one_of(data: bytes) -> tuple[str, bytes, int] | None:
    """Topic, payload and time of a body of a single message without optional columns; None if it is another, or none
    at all."""
    if not data.startswith(ONE_FIXED):
        return None
    try:
        raw, time_us, start, length = _lay_out_one(data)
        topic = raw[8:].decode()
    except (ValueError, struct.error):
        return None
    return (topic, data[start : start + length], time_us) if (start + length + 7) & ~7 == len(data) else None


def _lay_out_one(data: bytes) -> tuple[bytes, int, int, int]:
    """The topic's column, the time, and where the payload begins and how long it is, of a single message without
    optional columns."""
    _, _, _, _, zero, name_end = ONE_HEAD.unpack_from(data)
    at = (ONE_HEAD.size + name_end + 7) & ~7
    if zero or name_end < 0 or at + ONE_TAIL.size > len(data):
        raise ValueError("a column ends outside the body")
    index, _, time_us, begin, length = ONE_TAIL.unpack_from(data, at)
    start = at + ONE_TAIL.size
    if index:
        raise ValueError("a topic's index is outside the dictionary")
    if begin or not 0 <= length <= len(data) - start:
        raise ValueError("a column's values end outside the body")
    return data[FIXED.size : ONE_HEAD.size + name_end], time_us, start, length


def held_bytes(data: bytes) -> int:
    """How much memory a batch of this body takes at most, with what is remembered of it once it was decoded."""
    count: int
    topics: int
    columns: int
    count, topics, columns, _ = FIXED.unpack_from(data)
    size = len(data) + HELD_BYTES + HELD_TOPIC_BYTES * topics + HELD_MESSAGE_BYTES * count
    return size + _held_extras(data, count, topics, columns) if columns & (KEYS | HEADERS) else size


def _held_extras(data: bytes, count: int, topics: int, columns: int) -> int:
    """How much the keys and headers of a body take once they are decoded, each of them an object of its own."""
    at = ((_values_end(data, NAMES_AT, topics) + 7 & ~7) + 4 * count + 7 & ~7) + 8 * count
    if columns & EXPIRIES:
        at += 8 * count
    if columns & RETAIN:
        at = at + count + 7 & ~7
    size = 0
    if columns & KEYS:
        begin = at + (count + 7) // 8 + 7 & ~7
        at = _values_end(data, begin, count) + 7 & ~7
        size += at - begin + HELD_KEY_BYTES * count
    if columns & HEADERS:
        pairs = int.from_bytes(data[at + 4 * count : at + 4 * count + 4], "little")
        size += HELD_HEADERS_BYTES * count + HELD_PAIR_BYTES * pairs
    return size


def front_bytes(data: bytes) -> int:
    """How long the front of a body is, which topic each of its messages has, as far as its first bytes tell: if it is
    more than there are, it is to be asked again with as many. ValueError if it is none."""
    if len(data) < NAMES_AT:
        return NAMES_AT
    count, topics, columns, _ = FIXED.unpack_from(data)
    if not 0 < topics <= count or columns & ~COLUMNS_KNOWN:
        raise ValueError("its counts are impossible")
    names_at: int = NAMES_AT + 4 * topics + 4
    return names_at if len(data) < names_at else (_values_end(data, NAMES_AT, topics) + 7 & ~7) + 4 * count


def front_of(data: bytes) -> tuple[tuple[str, ...], Sequence[int]]:
    """The topics of a body and which of them each message has, of no more of it than its front."""
    count, topics, _, _ = FIXED.unpack_from(data)
    names_end = _values_end(data, NAMES_AT, topics)
    at = names_end + 7 & ~7
    return _names(data, names_end, topics), memoryview(data)[at : at + 4 * count].cast("i").tolist()


class Layout:
    """Where the columns of a body begin, by its own account; one that it has not begins where the next one does.

    What it says may be wrong: `reach`, where the last payload ends, is beyond the body then.
    """

    def __init__(self, data: bytes, count: int, topics: int, columns: int) -> None:
        self.names_end = at = _values_end(data, NAMES_AT, topics)
        self.index_at = at = at + 7 & ~7
        self.times_at = at = at + 4 * count + 7 & ~7
        self.expiries_at = at = at + 8 * count
        if columns & EXPIRIES:
            at += 8 * count
        self.retain_at = at
        if columns & RETAIN:
            at = at + count + 7 & ~7
        self.bits_at = self.keys_at = at
        if columns & KEYS:
            self.keys_at = at + (count + 7) // 8 + 7 & ~7
            at = _values_end(data, self.keys_at, count) + 7 & ~7
        self.pairs_at = self.header_names_at = self.header_values_at = at
        self.pairs = 0
        if columns & HEADERS:
            self.pairs = int.from_bytes(data[at + 4 * count : at + 4 * count + 4], "little")
            self.header_names_at = values_at(at, count)
            self.header_values_at = _values_end(data, self.header_names_at, self.pairs) + 7 & ~7
            at = _values_end(data, self.header_values_at, self.pairs) + 7 & ~7
        self.lengths_at = at
        last = at + 4 * count
        self.payloads_at = at = last + 11 & ~7
        self.reach = at = at + int.from_bytes(data[last : last + 4], "little")
        self.end = at + 7 & ~7
        """How long the body is."""


def values_at(at: int, count: int) -> int:
    """Where values begin whose offsets begin at a place."""
    return at + 4 * count + 11 & ~7


def _values_end(data: bytes, at: int, count: int) -> int:
    """Where values end whose offsets begin at a place."""
    last = at + 4 * count
    return (last + 11 & ~7) + int.from_bytes(data[last : last + 4], "little")


class Body:
    """A decoded body. Columns are views on its bytes; messages are made when they are asked for."""

    __slots__ = (
        "_headers",
        "_index",
        "_is_each_once",
        "_keys",
        "_payloads",
        "_span",
        "_times",
        "_where",
        "columns",
        "count",
        "data",
        "end",
        "expiries",
        "names",
        "retain",
    )

    def __init__(self, data: bytes) -> None:
        count, topics, columns, _ = FIXED.unpack_from(data)
        if not 0 < topics <= count or count * 8 > len(data) or columns & ~COLUMNS_KNOWN:
            raise ValueError("its counts are impossible")
        self.data = data
        self.count: int = count
        self.columns: int = columns
        self._span: tuple[int, int] | None = None
        self._where: list[list[int]] | None = None
        if count == 1 and columns == HEADERS and self._read_one_with_headers():
            return
        if not columns:
            if count == 1:
                self._read_one()
                return
            shape = shape_of(data)
            if shape is not None:
                self._read_alike(shape)
                return
        self._read(topics)

    def _read(self, topics: int) -> None:
        data, count, columns = self.data, self.count, self.columns
        layout = Layout(data, count, topics, columns)
        if layout.reach > len(data):
            raise ValueError("a column ends outside the body")
        view = memoryview(data)
        self.names: tuple[str, ...] = _names(data, layout.names_end, topics)
        self._index: Sequence[int] = (index := view[layout.index_at : layout.index_at + 4 * count].cast("i"))
        raw = index.tobytes()
        self._is_each_once = topics == count <= ORDERS_TOPICS_MAX and raw == _in_order(count)
        # One topic, or each topic once: the usual cases are seen at a glance.
        if not self._is_each_once and raw != bytes(len(raw)):
            numbers = index.tolist()
            if not 0 <= min(numbers) <= max(numbers) < topics:
                raise ValueError("a topic's index is outside the dictionary")
        self._times: Sequence[int] = view[layout.times_at : layout.expiries_at].cast("q")
        self.expiries = view[layout.expiries_at : layout.retain_at].cast("q") if columns & EXPIRIES else None
        self.retain = view[layout.retain_at : layout.retain_at + count] if columns & RETAIN else None
        self._keys = _read_keys(data, layout, count) if columns & KEYS else None
        self._headers = _read_headers(data, layout, count) if columns & HEADERS else None
        self._payloads = _offsets(view, layout.lengths_at, count), layout.payloads_at
        self.end = layout.end
        """How long it is, by its own account."""
        if not columns and is_worth_a_shape(data, count):
            self._remember_shape(layout)

    def _read_alike(self, shape: Shape) -> None:
        """As it was read before; its times and payloads are its own."""
        self.names, self._index, self._is_each_once = shape.names, shape.indexes, shape.is_each_once
        times_at = len(shape.head)
        self._times = memoryview(self.data)[times_at : shape.lengths_at].cast("q")
        self.expiries = self.retain = self._keys = self._headers = None
        self._payloads = shape.payloads
        self.end = shape.end

    def _remember_shape(self, layout: Layout) -> None:
        data, count = self.data, self.count
        head, lengths_at = data[: layout.times_at], layout.lengths_at
        index = memoryview(head)[layout.index_at : layout.index_at + 4 * count].cast("i")
        lengths = data[lengths_at : lengths_at + 4 * (count + 1)]
        remember(
            data, Shape(head, lengths_at, lengths, self.names, index, self._is_each_once, self._payloads, self.end)
        )

    def _read_one(self) -> None:
        """A single message, as many publishers send: the same columns, read without a view for each."""
        raw, time_us, start, length = _lay_out_one(self.data)
        names = _names_cache.known.get(raw)
        self.names = names if names is not None else _names_cache.keep(raw, (raw[8:].decode(),))
        self._index = FIRST
        self._is_each_once = True
        self._times = (time_us,)
        self.expiries = self.retain = self._keys = self._headers = None
        self._payloads = [0, length], start
        self.end = (start + length + 7) & ~7

    def _read_one_with_headers(self) -> bool:
        """A single message with headers, as questions and their answers are; False if it is laid out otherwise than
        usual, to be read with all care."""
        data = self.data
        end = len(data)
        names_end = _values_end(data, NAMES_AT, 1)
        at = names_end + 7 & ~7
        if end < at + LED.size:
            return False
        index, time_us, first, pairs = LED.unpack_from(data, at)
        names_at = at + LED.size
        if index or first or not 0 < pairs <= ONE_PAIRS_MAX or end < names_at + 8 * pairs:
            return False
        values_at = _values_end(data, names_at, pairs) + 7 & ~7
        if values_at > names_at + REMEMBERED_BYTES_MAX or end < values_at + 4 * pairs + 4:
            return False
        lengths_at = _values_end(data, values_at, pairs) + 7 & ~7
        start = lengths_at + 8
        if end < start:
            return False
        raw = data[names_at:values_at]
        header_names = _header_names_cache.known.get(raw)
        if header_names is None:
            header_names = _header_names_cache.keep(raw, tuple(_strings(data, names_at, pairs)))
        begin, length = PAYLOAD.unpack_from(data, lengths_at)
        if begin or not 0 <= length <= end - start:
            return False
        self._headers = [tuple(zip(header_names, _strings(data, values_at, pairs), strict=True))]
        raw = data[NAMES_AT:names_end]
        names = _names_cache.known.get(raw)
        self.names = names if names is not None else _names(data, names_end, 1)
        self._index, self._is_each_once, self._times = FIRST, True, (time_us,)
        self.expiries = self.retain = self._keys = None
        self._payloads = [0, length], start
        self.end = start + length + 7 & ~7
        return True

    def time_span(self) -> tuple[int, int]:
        """The earliest and the latest time at which its messages were published."""
        span = self._span
        if span is None:
            times = self._times
            first = times[0]
            if (
                not isinstance(times, memoryview)
                or times.tobytes() == first.to_bytes(8, "little", signed=True) * self.count
            ):
                span = (first, first)
            else:
                span = (min(times), max(times))
            self._span = span
        return span

    @property
    def topics(self) -> Sequence[str]:
        """The topic of each message."""
        if self._is_each_once:
            return self.names
        if len(self.names) == 1:
            return self.names * self.count
        return list(map(self.names.__getitem__, self._index))

    def topics_at(self, places: Sequence[int]) -> list[str]:
        """The topics of the messages at these places."""
        names, index = self.names, self._index
        return [names[index[place]] for place in places]

    @property
    def keys(self) -> Sequence[bytes | None] | None:
        """The key of each message; None if none has one."""
        return self._keys

    @property
    def payload_places(self) -> tuple[Sequence[int], int]:
        """Where in what stands behind a place of `data` each payload begins, and the last ends; and that place."""
        return self._payloads

    def payload(self, place: int) -> bytes:
        """One message's payload."""
        offsets, start = self._payloads
        return self.data[start + offsets[place] : start + offsets[place + 1]]

    def payloads_at(self, places: Sequence[int]) -> list[bytes]:
        """The payloads of the messages at these places."""
        (offsets, start), data = self._payloads, self.data
        return [data[start + offsets[place] : start + offsets[place + 1]] for place in places]

    def longest(self) -> int:
        """The length of the longest payload."""
        offsets = self._payloads[0]
        return max(map(int.__sub__, offsets[1:], offsets))

    def fitting(self, places: Sequence[int], bytes_max: int) -> int:
        """How many of these messages, from the first on, have payloads of so many bytes together; at least one."""
        if len(self.data) <= bytes_max:
            return len(places)
        offsets = self._payloads[0]
        for count, place in enumerate(places):
            bytes_max -= offsets[place + 1] - offsets[place]
            if bytes_max < 0:
                return max(1, count)
        return len(places)

    def headers(self) -> Sequence[Headers]:
        """The headers of each message; empty if none has any."""
        return self._headers or ()

    def slice(self, places: Sequence[int]) -> bytes:
        """A body of the messages at these places alone."""
        offsets, start = self._payloads
        data, names, index, times = self.data, self.names, self._index, self._times
        return encode_body(
            [names[index[place]] for place in places],
            [data[start + offsets[place] : start + offsets[place + 1]] for place in places],
            [times[place] for place in places],
            expiries=None if self.expiries is None else [self.expiries[place] for place in places],
            retain=None if self.retain is None else [bool(self.retain[place]) for place in places],
            keys=None if self._keys is None else [self._keys[place] for place in places],
            headers=None if self._headers is None else [self._headers[place] for place in places],
        )

    def places_of(self, names: Sequence[int]) -> list[int]:
        """The places of the messages whose topics have these numbers in the dictionary."""
        if not names or self._is_each_once:
            return list(names)
        if len(names) < len(self.names) >> WHERE_SHIFT:
            return self._places_of_few(names)
        here = bytearray(len(self.names))
        for number in names:
            here[number] = 1
        return list(compress(range(self.count), map(here.__getitem__, self._index)))

    def _places_of_few(self, names: Sequence[int]) -> list[int]:
        """The same where they are few of many, as of one of many subscribers: each place is looked at once for all."""
        where = self._where
        if where is None:
            where = [[] for _ in self.names]
            for place, number in enumerate(self._index):
                where[number].append(place)
            self._where = where  # now that it is whole, as others may ask at the same time
        if len(names) == 1:
            return where[names[0]]
        return sorted([place for number in names for place in where[number]])

    def messages(
        self,
        first_offset: int,
        places: Sequence[int] | None = None,
        origin: Any = None,
        retained: bool = False,
    ) -> list[Message]:
        """Messages at the given places, or all of them."""
        if self.count == 1 and places is None:
            return [self._message(first_offset, origin, retained)]
        offsets, start = self._payloads
        if places is None:
            data = self.data[start : start + offsets[-1]]
            payloads = [data[a:b] for a, b in pairwise(offsets)]
            topics: Iterable[str] = repeat(self.names[0]) if len(self.names) == 1 else self.topics
            numbers: Iterable[int] = range(first_offset, first_offset + self.count)
            times: Iterable[int] = self._times
            keys: Iterable[bytes | None] = self._keys or repeat(None)
            headers: Iterable[Headers] = self._headers or repeat(())
        else:
            data = self.data
            payloads = [data[start + offsets[place] : start + offsets[place + 1]] for place in places]
            topics = self.topics_at(places)
            numbers = [first_offset + place for place in places]
            times = [self._times[place] for place in places]
            keys = [self._keys[place] for place in places] if self._keys else repeat(None)
            headers = [self._headers[place] for place in places] if self._headers else repeat(())
        columns = (topics, numbers, payloads, times, keys, headers, repeat(retained), repeat(1), repeat(origin))
        if self.retain is None:
            return list(map(Message, *columns))
        retain = self.retain if places is None else [self.retain[place] for place in places]
        return list(map(Message, *columns, map(bool, retain)))

    def _message(self, offset: int, origin: Any, retained: bool) -> Message:
        """The only one."""
        return Message(
            self.names[0],
            offset,
            self.payload(0),
            self._times[0],
            self._keys[0] if self._keys else None,
            self._headers[0] if self._headers else (),
            retained,
            1,
            origin,
            self.retain is not None and bool(self.retain[0]),
        )


def _names(data: bytes, end: int, count: int) -> tuple[str, ...]:
    raw = data[NAMES_AT:end]
    known = _names_cache.known.get(raw)
    if known is not None and len(known) == count:
        return known
    names = tuple(_strings(data, NAMES_AT, count))
    if len(set(names)) != count:
        raise ValueError("a topic is twice in the dictionary")
    return _names_cache.keep(raw, names)


def _in_order(count: int) -> bytes:
    found = _orders.known.get(count)
    if found is None:
        found = _orders.keep(count, array("i", range(count)).tobytes())
    return found


def _read_keys(data: bytes, layout: Layout, count: int) -> list[bytes | None]:
    bits = int.from_bytes(data[layout.bits_at : layout.bits_at + (count + 7) // 8], "little")
    there = f"{bits:0{count}b}"[: -count - 1 : -1]
    offsets, start = _offsets(memoryview(data), layout.keys_at, count), values_at(layout.keys_at, count)
    return [
        data[start + a : start + b] if bit == "1" else None
        for bit, (a, b) in zip(there, pairwise(offsets), strict=True)
    ]


def _read_headers(data: bytes, layout: Layout, count: int) -> list[Headers]:
    pairs = _offsets(memoryview(data), layout.pairs_at, count)
    names = _strings(data, layout.header_names_at, layout.pairs)
    values = _strings(data, layout.header_values_at, layout.pairs)
    every = list(zip(names, values, strict=True))
    return [tuple(every[a:b]) for a, b in pairwise(pairs)]


def _strings(data: bytes, at: int, count: int) -> list[str]:
    offsets, start = _offsets(memoryview(data), at, count), values_at(at, count)
    return [data[start + a : start + b].decode() for a, b in pairwise(offsets)]


def _offsets(view: memoryview, at: int, count: int) -> list[int]:
    """Where each value begins and the last ends, which the layout has found to be within the body."""
    offsets: list[int] = view[at : at + 4 * (count + 1)].cast("i").tolist()
    if offsets[0] != 0:
        raise ValueError("a column's values do not begin at 0")
    if count > 1 and offsets != sorted(offsets):  # what is sorted is sorted again in one pass
        raise ValueError("a column's offsets decrease")
    return offsets
