"""The state store: what consumers change, and what is remembered about streams between checkpoints.

Promises: `write` and `commit` are atomic; what was written before a `commit` or `sync` that returned survives a crash;
`scan` comes in the order of keys. Nothing above this module knows that it is RocksDB (`store.rocks`).
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from headwater import threads
from headwater.errors import Malformed

# What the first byte of a key says.
STREAM = b"S"
TOPIC = b"T"
RETAINED = b"R"
PRODUCER = b"P"
DELAYED = b"Y"
SUBSCRIPTION = b"U"
FLOOR = b"C"
ACKED = b"A"
FAILURE = b"F"
COPY = b"Q"
DEAD = b"L"
MENDED = b"M"
REDRIVEN = b"D"
PURGE = b"X"
GAP = b"G"
SESSION = b"E"
HELD = b"e"
"""What sessions take from, a row for each subscription: session and id, with a NUL between."""
SENT = b"o"
"""Messages that went to an MQTT client with a number, by session and number."""
RECEIVED = b"j"
"""Numbers of an MQTT client's messages of QoS 2 that it has not released, by session."""
WILL = b"w"
"""Wills of MQTT clients that are to be published if those are gone, by an id of each."""
SCHEDULE = b"c"
"""What is published again and again, by its id."""
SCHEMA = b"s"
"""What payloads have to be, by the filter of their topics."""
POSTED = b"b"
"""Dead letters that are to be published, by a number of each."""
KEPT = b"k"
"""Subscriptions that went with their sessions, and whose dead letters are kept, by id and number."""
STAGED = b"H"
COMMITTED = b"K"
COUNTERS = b"N"
"""Numbers that are given once: here, the last subscription's; behind the kind of another, what that counts."""
CLIENT = b"I"
"""Who may log in, by name."""
RULE = b"W"
"""What they may do: user, action and filter, with a NUL between."""
TOKEN = b"O"
"""What opens the HTTP API: client and id, with a NUL between."""
DECOY = b"Z"
"""The folder's own secret, from which unknown users are given a salt."""
CHANNEL = b"V"
"""Where to push to, by id."""
HISTORY = b"h"
"""Ten minutes of what a server sampled, by their number since 1970."""
IDENTITY = b"B"
"""The id of the bus, which is no secret."""
CHAIN = b"J"
"""Which write to the state was the last, and what it says about those before it (`store.chain`)."""
NODE = b"n"
"""Up to which record of its cluster a node's folder is on disk (`cluster.checkpoint`): in each node's alone."""
LOSS = b"l"
"""Rows that are known to be lost, by the number of the first write that is."""

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_U32_U32 = struct.Struct(">II")
_U32_U64 = struct.Struct(">IQ")
_U32_U32_U64 = struct.Struct(">IIQ")

Rows = dict[bytes, bytes | None]
"""Rows to write together; None deletes."""

pack = msgspec.msgpack.encode


class State(Protocol):
    """An ordered key-value store with atomic batches."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys have the prefix, from `start` on (inclusive), in order."""

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """All of these rows or none; durable with the next `commit` or `sync`."""

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        """All of these rows or none, durable when it returns, and all that was written before them; if it raises, they
        are not seen once writing works again."""

    def sync(self) -> None:
        """Make everything written so far durable."""

    @property
    def failed(self) -> str | None:
        """Why it takes nothing at the moment; None while it does."""

    def mend(self) -> bool:
        """Try to take writes again after one failed; False while that cannot be."""

    def snapshot(self, path: str) -> None:
        """A copy of the store, as of now, in a new folder."""

    def close(self) -> None:
        """Let go of it."""


def key_u32(kind: bytes, number: int) -> bytes:
    """`kind` number."""
    return kind + _U32.pack(number)


def key_name(kind: bytes, number: int, name: str) -> bytes:
    """`kind` number name."""
    return kind + _U32.pack(number) + name.encode()


def key_pair(kind: bytes, first: int, second: int) -> bytes:
    """`kind` number number, as of a subscription and a stream."""
    return kind + _U32_U32.pack(first, second)


def key_offset(kind: bytes, number: int, offset: int) -> bytes:
    """`kind` number offset."""
    return kind + _U32_U64.pack(number, offset)


def key_message(kind: bytes, subscription: int, stream: int, offset: int) -> bytes:
    """`kind` subscription stream offset."""
    return kind + _U32_U32_U64.pack(subscription, stream, offset)


def key_due(due_us: int, offset: int) -> bytes:
    """A delayed message, ordered by when it is due."""
    return DELAYED + _U64.pack(due_us) + _U64.pack(offset)


def key_letter(number: int) -> bytes:
    """A dead letter that is to be published, in the order in which they died."""
    return POSTED + _U64.pack(number)


def key_number(kind: bytes, id: str, number: int) -> bytes:
    """`kind` id NUL number, as of a session and a packet."""
    return kind + id.encode() + b"\0" + _U32.pack(number)


def key_words(kind: bytes, *words: str) -> bytes:
    """`kind` word NUL word …; no word contains a NUL."""
    return kind + "\0".join(words).encode()


def name_in(key: bytes) -> str:
    """The name in a key that `key_name` made."""
    return key[5:].decode()


def pair_in(key: bytes) -> tuple[int, int]:
    """The numbers in a key that `key_pair` or `key_message` made."""
    first, second = _U32_U32.unpack_from(key, 1)
    return first, second


def number_in(key: bytes) -> int:
    """The number at the end of a key that `key_number` made."""
    (number,) = _U32.unpack_from(key, len(key) - 4)
    return int(number)


def offset_in(key: bytes) -> int:
    """The offset at the end of a key."""
    (offset,) = _U64.unpack_from(key, len(key) - 8)
    return int(offset)


def place_in(key: bytes) -> tuple[int, int]:
    """The stream and the offset at the end of a key."""
    stream, offset = _U32_U64.unpack_from(key, len(key) - 12)
    return int(stream), int(offset)


def scan_after(state: State, prefix: bytes, name: str, beginning: str = "") -> Iterator[tuple[str, bytes]]:
    """Names after one, of those that begin so, and their rows, in order; all of them after the empty one."""
    start = prefix + name.encode() + b"\0" if name > beginning or (name and name == beginning) else None
    return ((name_in(key), value) for key, value in state.scan(prefix + beginning.encode(), start))


def successor(prefix: bytes) -> bytes | None:
    """The smallest key that is larger than every key with this prefix."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


SCANNED_AT_ONCE = 1000
"""Rows of a state in memory that are looked up together."""


class MemoryState:
    """The state in memory, for `headwater.open(":memory:")`."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._lock = threads.Lock()

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        begin, last = prefix if start is None else start, successor(prefix)
        while True:  # as far as somebody takes them
            with self._lock:
                low = bisect.bisect_left(self._keys, begin)
                high = len(self._keys) if last is None else bisect.bisect_left(self._keys, last)
                found = [(key, self._values[key]) for key in self._keys[low : min(high, low + SCANNED_AT_ONCE)]]
            yield from found
            if len(found) < SCANNED_AT_ONCE:
                return
            begin = found[-1][0] + b"\0"

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._lock:
            for key, value in rows.items():
                if value is None:
                    if self._values.pop(key, None) is not None:
                        del self._keys[bisect.bisect_left(self._keys, key)]
                else:
                    if key not in self._values:
                        bisect.insort(self._keys, key)
                    self._values[key] = value

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        self.write(rows)
        self.sync()

    def sync(self) -> None:
        """Memory is as durable as it gets."""

    @property
    def failed(self) -> str | None:
        return None

    def mend(self) -> bool:
        return True

    def snapshot(self, path: str) -> None:
        raise Malformed(f"a state in memory has no files to put into {path}")

    def close(self) -> None:
        self._values.clear()
        self._keys.clear()
