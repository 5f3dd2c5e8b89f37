"""RocksDB's write-ahead log as bytes: which of its records are whole, and a log made of whole records; no I/O.

RocksDB reads a log up to the first bad record, or not at all. To tell what was torn from what was acknowledged and
went bad, and to keep what stands behind a bad record, the log is read here as well.

A log is blocks of 32 KiB; a record that does not fit into the rest of its block is split.

      0               4       6       7
      ├───────────────┼───────┼───────┼────────────
      │ masked crc    │ length│ type  │ payload …      type: 1 whole, 2 first, 3 middle, 4 last part
      └───────────────┴───────┴───────┴────────────

The CRC32C is that of the type and the payload. Whole, a record is one write: sequence u64, count u32, then what it
does, all little-endian. Promise: whatever the bytes are, walking them ends, and answers only records whose checksums
are right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headwater.store.batch import checksum

BLOCK_BYTES = 32 * 1024
HEAD = struct.Struct("<IHB")
WRITE = struct.Struct("<QI")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
DELETE, PUT = 0, 1


class Record(NamedTuple):
    """A whole record, and whether it follows the one before it without bad bytes between them."""

    payload: bytes
    is_next: bool


def records(data: bytes) -> Iterator[Record]:
    """Every whole record; bad bytes are passed over, and an empty one stands for those at the end."""
    parts: list[bytes] = []
    is_next = True
    for kind, payload in _parts(data):
        if kind == WHOLE and not parts:
            yield Record(payload, is_next)
            is_next = True
        elif (kind == FIRST and not parts) or (kind == MIDDLE and parts):
            parts.append(payload)
        elif kind == LAST and parts:
            yield Record(b"".join((*parts, payload)), is_next)
            parts, is_next = [], True
        else:  # bad bytes, or a part whose other parts are gone
            parts, is_next = ([payload] if kind == FIRST else []), False
            if kind == WHOLE:
                yield Record(payload, False)
                is_next = True
    if parts or not is_next:
        yield Record(b"", False)


def is_whole(data: bytes) -> bool:
    """Whether a log has no bad bytes and no part of a record."""
    return all(record.is_next for record in records(data))


def is_torn_at_most(data: bytes) -> bool:
    """Whether nothing is wrong with a log but that its last record may not be all there, as a crash leaves it."""
    place = 0
    while place < len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEAD.size:
            place += left
            continue
        part = _part(data, place, left)
        if part is None:
            return _is_torn(data[place:], left)
        place += HEAD.size + len(part[1])
    return True


def _is_torn(rest: bytes, left: int) -> bool:
    if len(rest) < HEAD.size or not rest.strip(b"\0"):
        return True
    _, length, kind = HEAD.unpack_from(rest)
    return bool(WHOLE <= kind <= LAST and len(rest) < HEAD.size + length <= left)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each part; kind 0 for bad bytes."""
    place, size = 0, len(data)
    while place < size:
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEAD.size:
            if data[place : place + left].strip(b"\0"):
                yield 0, b""
            place += left
            continue
        part = _part(data, place, left)
        if part is not None:
            yield part
            place += HEAD.size + len(part[1])
            continue
        yield 0, b""
        place = _after_bad(data, place, left)


def _part(data: bytes, place: int, left: int) -> tuple[int, bytes] | None:
    """The part at a place, with so much left of its block; None if there is none."""
    if place + HEAD.size > len(data):
        return None
    crc, length, kind = HEAD.unpack_from(data, place)
    if not WHOLE <= kind <= LAST or HEAD.size + length > left:
        return None
    body = data[place + HEAD.size - 1 : place + HEAD.size + length]
    if len(body) != length + 1 or _masked(checksum(body)) != crc:
        return None
    return kind, body[1:]


def _after_bad(data: bytes, place: int, left: int) -> int:
    """Where to go on: behind the bad part, if its length can be trusted as a good one follows, else the next block."""
    if place + HEAD.size <= len(data):
        length: int = HEAD.unpack_from(data, place)[1]
        behind = HEAD.size + length
        if behind + HEAD.size <= left and _part(data, place + behind, left - behind) is not None:
            return place + behind
    return place + left


def _masked(crc: int) -> int:
    """As RocksDB stores it, since the CRC of what holds CRCs is a poor one."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFF_FFFF


def encode(payloads: Iterable[bytes]) -> bytes:
    """A log of these records."""
    log = bytearray()
    for payload in payloads:
        _append(log, payload)
    return bytes(log)


def _append(log: bytearray, payload: bytes) -> None:
    rest, is_first = payload, True
    while True:
        left = BLOCK_BYTES - len(log) % BLOCK_BYTES
        if left < HEAD.size:
            log += bytes(left)
            continue
        piece, rest = rest[: left - HEAD.size], rest[left - HEAD.size :]
        kind = (FIRST if rest else WHOLE) if is_first else (MIDDLE if rest else LAST)
        log += HEAD.pack(_masked(checksum(bytes((kind,)) + piece)), len(piece), kind) + piece
        if not rest:
            return
        is_first = False


def rows_in(payload: bytes) -> list[tuple[bytes, bytes | None]] | None:
    """The puts and deletes of one write, in their order; None if it holds anything else."""
    found: list[tuple[bytes, bytes | None]] = []
    place = WRITE.size
    try:
        _, count = WRITE.unpack_from(payload)
        while place < len(payload):
            tag = payload[place]
            if tag not in (PUT, DELETE):
                return None
            key, place = _slice(payload, place + 1)
            value: bytes | None = None
            if tag == PUT:
                value, place = _slice(payload, place)
            found.append((key, value))
    except (struct.error, IndexError, ValueError):
        return None
    return found if len(found) == count else None


def _slice(data: bytes, place: int) -> tuple[bytes, int]:
    length, shift = 0, 0
    while True:
        byte = data[place]
        place += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            raise ValueError("no length")
    if place + length > len(data):
        raise ValueError("cut off")
    return data[place : place + length], place + length


def put(key: bytes, value: bytes) -> bytes:
    """One put of a write."""
    return bytes((PUT,)) + _length(key) + key + _length(value) + value


def _length(data: bytes) -> bytes:
    length, found = len(data), bytearray()
    while length >= 0x80:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    found.append(length)
    return bytes(found)
