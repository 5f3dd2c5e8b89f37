"""The record: what one group commit makes durable, as it stands in the engine's stream.

A record is a message of the stream, or several if it is larger than the engine takes at once: its **parts**. A part:

    0               4               8               12              16
    ├───────────────┼───────────────┼───────┬───────┼───────────────┤
 0  │ magic "HWR1"  │ part's crc    │ part  │ parts │ 0             │
    ├───────────────┴───────────────┼───────┴───────┴───────────────┤
16  │ number (u64)                  │ epoch (u64)                   │
    ├───────────────────────────────┼───────────────────────────────┤
32  │ the leader's time, µs (i64)   │ bytes of the whole body (u64) │
    ├───────────────────────────────┴───────────────────────────────┤
48  │ digest of the record before                                   │
    ├───────────────────────────────────────────────────────────────┤
64  │ digest of this record                                         │
    ├───────────────────────────────────────────────────────────────┤
80  │ its piece of the body                                         │
    └───────────────────────────────────────────────────────────────┘

The CRC32C is that of the part from byte 8 on. The digest, the first 16 bytes of a SHA-256, is that of bytes 16 to 64
and the whole body: so each record vouches for all that came before it. The body is entries, one behind the other, which
take effect in this order:

    0               4               8
    ├───────────────┼───────────────┤
 0  │ kind          │ bytes         │
    ├───────────────┴───────────────┤
 8  │ an array of MessagePack; of an append: the stream's number (u32), and its batches, as they will be on disk
    └────────────────

Promises: bytes that were not written by this module raise `BadRecord` and nothing else; what is decoded is equal to
what was encoded.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c
import msgspec

from headwater.errors import TooLarge

MAGIC = b"HWR1"
PART = struct.Struct("<4sIHHIQQqQ16s16s")
SEALED = struct.Struct("<QQqQ16s")
"""What the digest covers before the body."""
CRC_FROM = 8
ENTRY = struct.Struct("<II")
STREAM = struct.Struct("<I")

DIGEST_BYTES = 16
BEGINNING = bytes(DIGEST_BYTES)
"""What stands for the digest of the record before the first."""

PARTS_MAX = 1000
"""Parts of one record: more are refused with `TooLarge`, and damaged headers are noticed before they cost memory."""


class BadRecord(Exception):
    """These bytes are no part of a record, or of a damaged one."""


class Append(msgspec.Struct, frozen=True, array_like=True):
    """Batches at the end of a stream, as they will be on disk."""

    stream: int
    data: bytes


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of the state that are written together; None deletes."""

    rows: dict[bytes, bytes | None]


class Create(msgspec.Struct, frozen=True, array_like=True):
    """A stream for a root, and its first offset."""

    stream: int
    root: str
    first: int


class Remove(msgspec.Struct, frozen=True, array_like=True):
    """A stream is no more; a new one of its root goes on with this offset."""

    stream: int
    first: int


class Roll(msgspec.Struct, frozen=True, array_like=True):
    """The next batch of a stream begins a new segment, at this offset."""

    stream: int
    base: int


class Trim(msgspec.Struct, frozen=True, array_like=True):
    """Segments of a stream that lie before this offset are deleted."""

    stream: int
    first: int


class Archived(msgspec.Struct, frozen=True, array_like=True):
    """How far a lake has each root."""

    lake: str
    offsets: dict[str, int]


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """A node leads from here on. It is the first entry of a record, and no other record begins an epoch."""

    epoch: int
    node: str
    bus: str
    address: str = ""
    """Where clients find it."""


Entry = Append | Rows | Create | Remove | Roll | Trim | Epoch | Archived

KINDS: dict[int, type[Entry]] = {1: Append, 2: Rows, 3: Create, 4: Remove, 5: Roll, 6: Trim, 7: Epoch, 8: Archived}
"""How entries are told apart on the wire: numbers are never given anew."""

_NUMBERS = {entry: kind for kind, entry in KINDS.items()}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(entry) for kind, entry in KINDS.items() if entry is not Append
}
_pack = msgspec.msgpack.encode


class Record(msgspec.Struct, frozen=True):
    """What takes effect together, and its place among all others."""

    number: int
    """Dense from 1 for a bus, for ever."""
    epoch: int
    """Grows with each leader."""
    time_us: int
    """The leader's clock."""
    previous: bytes
    """The digest of the record before."""
    entries: tuple[Entry, ...]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a node stands: the last record that counts, and where it ends in the engine's stream."""

    sequence: int = 0
    number: int = 0
    epoch: int = 0
    digest: bytes = BEGINNING
    time_us: int = 0


class RecordPart(msgspec.Struct, frozen=True):
    """A part whose checksum was right."""

    part: int
    parts: int
    number: int
    epoch: int
    time_us: int
    body_bytes: int
    previous: bytes
    digest: bytes
    piece: memoryview

    def continues(self, other: RecordPart) -> bool:
        """Whether it is the next part of the same record."""
        return self.digest == other.digest and self.part == other.part + 1 and self.parts == other.parts


class Encoded(msgspec.Struct, frozen=True):
    """A record as it is sent: its parts, and the digest that the next record carries."""

    parts: tuple[bytes, ...]
    digest: bytes


def encode(record: Record, part_bytes_max: int) -> Encoded:
    """A record's parts, none larger than the engine takes."""
    pieces: list[bytes] = []
    for entry in record.entries:
        pieces += _encode_entry(entry)
    body_bytes = sum(map(len, pieces))
    room = part_bytes_max - PART.size
    parts = max(1, -(-body_bytes // room))
    if parts > PARTS_MAX:
        raise TooLarge(
            f"{body_bytes} bytes are too much for one group commit of a cluster, which takes {PARTS_MAX * room}; "
            "publish less at once, or raise the engine's max_payload"
        )
    sealed = SEALED.pack(record.number, record.epoch, record.time_us, body_bytes, record.previous)
    digest = _digest(sealed, pieces)
    if parts == 1:
        return Encoded((_part(0, 1, sealed, digest, pieces),), digest)
    body = b"".join(pieces)
    cut = (body[at : at + room] for at in range(0, body_bytes, room))
    return Encoded(tuple(_part(part, parts, sealed, digest, [piece]) for part, piece in enumerate(cut)), digest)


def _encode_entry(entry: Entry) -> list[bytes]:
    kind = _NUMBERS[type(entry)]
    if isinstance(entry, Append):
        return [ENTRY.pack(kind, STREAM.size + len(entry.data)) + STREAM.pack(entry.stream), entry.data]
    packed = _pack(entry)
    return [ENTRY.pack(kind, len(packed)), packed]


def _digest(sealed: bytes, pieces: Sequence[bytes | memoryview]) -> bytes:
    found = hashlib.sha256(sealed)
    for piece in pieces:
        found.update(piece)
    return found.digest()[:DIGEST_BYTES]


def _part(part: int, parts: int, sealed: bytes, digest: bytes, pieces: Sequence[bytes]) -> bytes:
    checked = b"".join((struct.pack("<HHI", part, parts, 0), sealed, digest, *pieces))
    return struct.pack("<4sI", MAGIC, google_crc32c.value(checked)) + checked


def open_part(data: bytes) -> RecordPart:
    """What a message of the stream says, if it is a part of a record."""
    if len(data) < PART.size:
        raise BadRecord(f"{len(data)} bytes are too few for a part of a record")
    magic, crc, part, parts, zero, number, epoch, time_us, body_bytes, previous, digest = PART.unpack_from(data)
    if magic != MAGIC:
        raise BadRecord("it does not begin as a record does")
    view = memoryview(data)
    if google_crc32c.value(data[CRC_FROM:]) != crc:
        raise BadRecord("its checksum is wrong")
    if zero or not part < parts <= PARTS_MAX or not number or not epoch:
        raise BadRecord("its header contradicts itself")
    return RecordPart(part, parts, number, epoch, time_us, body_bytes, previous, digest, view[PART.size :])


def join(parts: Sequence[RecordPart]) -> Record:
    """The record of these parts, which are all of it, in order."""
    head = parts[0]
    pieces = [part.piece for part in parts]
    sealed = SEALED.pack(head.number, head.epoch, head.time_us, head.body_bytes, head.previous)
    if sum(map(len, pieces)) != head.body_bytes or _digest(sealed, pieces) != head.digest:
        raise BadRecord(f"record {head.number} is not what its digest says")
    body = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    return Record(head.number, head.epoch, head.time_us, head.previous, tuple(_entries(head.number, body)))


def decode(data: bytes) -> Record:
    """The record of a single part."""
    part = open_part(data)
    if part.parts != 1:
        raise BadRecord(f"it is part {part.part + 1} of {part.parts} of a record")
    return join([part])


def _entries(number: int, body: memoryview) -> list[Entry]:
    found: list[Entry] = []
    at = 0
    while at < len(body):
        if len(body) - at < ENTRY.size:
            raise BadRecord(f"record {number} ends within an entry")
        kind, length = ENTRY.unpack_from(body, at)
        at += ENTRY.size
        said = body[at : at + length]
        at += length
        if len(said) < length:
            raise BadRecord(f"record {number} ends within an entry")
        found.append(_entry(number, kind, said))
    return found


def _entry(number: int, kind: int, said: memoryview) -> Entry:
    if kind not in KINDS:
        raise BadRecord(
            f"record {number} has an entry of kind {kind}, which a newer Headwater knows: upgrade this node"
        )
    if KINDS[kind] is Append:
        if len(said) < STREAM.size:
            raise BadRecord(f"record {number} ends within an entry")
        [stream] = STREAM.unpack_from(said)
        return Append(stream, bytes(said[STREAM.size :]))
    try:
        entry: Entry = _DECODERS[kind].decode(said)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRecord(f"record {number} has an entry that cannot be read ({error})") from error
    return entry
