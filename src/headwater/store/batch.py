"""The batch: a header that the broker writes, and a body that is laid out as Arrow lays out columns.

    0               4               8               12              16
    ├───────────────┼───────────────┼───────────────┼───────────────┤
 0  │ magic "HWB1"  │ header crc    │ header bytes  │ body bytes    │
    ├───────────────┴───────────────┼───────────────┴───────────────┤
16  │ first offset (u64)            │ append time, µs (i64)         │
    ├───────────────────────────────┼───────────────────────────────┤
32  │ durable watermark (u64)       │ sequence (u64)                │
    ├───────────────┬───────────────┼───────┬───────┬───────┬───────┤
48  │ count         │ body crc      │ flags │ root  │ prod. │ 0     │
    ├───────────────┴───────────────┴───────┴───────┴───────┴───────┤
64  │ root (UTF-8), producer (UTF-8), zeros to a multiple of 8       │
    └───────────────────────────────────────────────────────────────┘

The header's CRC is that of the folder's seed followed by the header from byte 8 on, the body's CRC included. The seed
is a secret of the folder: a publisher chooses a body's bytes, and could write a whole batch into a payload, but no
header that the folder believes.

Promises: decoding bytes that were not written by this module, with this seed, raises `BadBatch` and nothing else; a
decoded batch is equal to what was encoded, to the byte.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import NewType

import google_crc32c
import msgspec

from headwater.store.body import COLUMNS_AT, RETAIN, Body, encode_body
from headwater.store.compression import compress, decompress

if sys.byteorder != "little":
    raise ImportError("Headwater's files are little-endian, and so far it runs on little-endian machines only")

MAGIC = b"HWB1"
ALIGN = 8
HEADER = struct.Struct("<4sIIIQqQQIIHHHH")
SEAL = struct.Struct("<4sI")
COVERED = struct.Struct("<IIQqQQIIHHHH")
"""What the header's CRC covers, but for the names."""
COVERED_FROM = SEAL.size
ZSTD = 1
PRODUCER = 2
QUIET = 4
"""Nobody waited for it: MQTT's QoS 0."""
ONCE = 8
"""Its publisher sees to it that it is delivered once: MQTT's QoS 2."""
NAMES_BYTES_MAX = 2 * 65_535
HEADER_BYTES_MAX = HEADER.size + NAMES_BYTES_MAX + ALIGN


Seed = NewType("Seed", int)
"""Where the CRC of a header begins: the CRC32C of the secret bytes that a folder was made with."""

checksum: Callable[[bytes], int] = google_crc32c.value
"""The CRC32C that a publisher puts on a body."""


class BadBatch(Exception):
    """These bytes are no batch, or a damaged one."""


class Header(msgspec.Struct, frozen=True, gc=False):
    """What the broker says about a batch."""

    root: str
    first_offset: int
    count: int
    time_us: int
    durable: int
    producer: str | None
    sequence: int
    flags: int
    header_bytes: int
    body_bytes: int
    """This and the next are 0 of a single message on its way to disk, which nobody has encoded yet."""
    body_crc: int

    @property
    def last_offset(self) -> int:
        return self.first_offset + self.count - 1

    @property
    def bytes(self) -> int:
        """How much room the batch takes, up to the start of the next."""
        return (self.header_bytes + self.body_bytes + ALIGN - 1) & -ALIGN


class Batch(msgspec.Struct, eq=False, gc=False):
    """A whole batch whose checksums were right; its columns are decoded when they are first asked for, and one that is
    a single message on its way to disk is encoded when it is.

    Nothing in it leads back to it, and thousands may be in memory: the garbage collector need not walk them.
    """

    header: Header
    _data: bytes = b""
    decoded: Body | None = None
    """Its columns, if somebody has asked for them."""
    is_shown: bool = False
    """Whether live subscriptions have it already."""
    is_early: bool = False
    """Whether it is not on disk yet."""
    root: str = ""
    first_offset: int = 0
    last_offset: int = 0
    count: int = 1
    topic: str | None = None
    """Of a single message without options, on its way to disk; None for all others."""
    payload: bytes = b""
    has_retained: bool = False
    """Whether any message in it has the retain flag."""

    @staticmethod
    def of(header: Header, data: bytes, decoded: Body | None = None, *, is_early: bool = False) -> Batch:
        """That of a header, and of the body as it was before it was stored."""
        first, last = header.first_offset, header.last_offset
        is_retained = retains(data)
        return Batch(
            header, data, decoded, False, is_early, header.root, first, last, header.count, None, b"", is_retained
        )

    @staticmethod
    def of_one(root: str, offset: int, topic: str, payload: bytes, time_us: int, data: bytes = b"") -> Batch:
        """A single message without options on its way to disk, with its body if there is one."""
        header = Header(root, offset, 1, time_us, 0, None, 0, QUIET, 0, 0, 0)
        return Batch(header, data, None, False, True, root, offset, offset, 1, topic, payload)

    @property
    def data(self) -> bytes:
        """The body, as it is stored and sent."""
        if not self._data and self.topic is not None:
            self._data = encode_body((self.topic,), (self.payload,), self.header.time_us)
        return self._data

    @property
    def crc(self) -> int:
        """The body's checksum."""
        return self.header.body_crc if self.topic is None else checksum(self.data)

    @property
    def body(self) -> Body:
        if self.decoded is None:
            self.decoded = open_columns(self.header, self.data)
        return self.decoded


def retains(data: bytes) -> bool:
    """Whether any message of a body has the retain flag; told without decoding its columns."""
    return int.from_bytes(data[COLUMNS_AT], "little") & RETAIN != 0


def aligned(length: int) -> int:
    """The next multiple of 8."""
    return length + ALIGN - 1 & -ALIGN


def seed_of(secret: bytes) -> Seed:
    """Where the CRCs of headers begin in a folder with this secret."""
    return Seed(checksum(secret))


def seal_header(
    seed: Seed,
    root: bytes,
    first_offset: int,
    count: int,
    time_us: int,
    durable: int,
    body_bytes: int,
    body_crc: int,
    producer: bytes | None = None,
    sequence: int = 0,
    flags: int = 0,
) -> bytes:
    """The header's bytes, its CRC in place."""
    names = root
    producer_bytes = 0
    if producer is not None:
        names += producer
        producer_bytes = len(producer)
        flags |= PRODUCER
    header_bytes = HEADER.size + len(names) + ALIGN - 1 & -ALIGN
    packed = COVERED.pack(
        header_bytes,
        body_bytes,
        first_offset,
        time_us,
        durable,
        sequence,
        count,
        body_crc,
        flags,
        len(root),
        producer_bytes,
        0,
    )
    covered = (packed + names).ljust(header_bytes - COVERED_FROM, b"\0")
    crc: int = google_crc32c.extend(seed, covered)
    return SEAL.pack(MAGIC, crc) + covered


def stored_body(body: bytes, compression: str, bytes_min: int) -> tuple[bytes, int]:
    """The body as it goes to disk, and the flags that say how."""
    if compression == "zstd" and len(body) >= bytes_min:
        small = compress(body)
        if len(small) < len(body):
            return small, ZSTD
    return body, 0


def read_header(seed: Seed, data: bytes, at: int = 0) -> Header | None:
    """The header at a place; None if more bytes are needed; `BadBatch` if it cannot be one."""
    if len(data) - at < HEADER.size:
        if data[at : at + 4] != MAGIC[: len(data) - at]:
            raise BadBatch("no batch starts here")
        return None
    (
        magic,
        crc,
        header_bytes,
        body_bytes,
        first_offset,
        time_us,
        durable,
        sequence,
        count,
        body_crc,
        flags,
        root_bytes,
        producer_bytes,
        _,
    ) = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise BadBatch("no batch starts here")
    if header_bytes != aligned(HEADER.size + root_bytes + producer_bytes):
        raise BadBatch("the header's length contradicts its names")
    if len(data) - at < header_bytes:
        return None
    if google_crc32c.extend(seed, data[at + COVERED_FROM : at + header_bytes]) != crc:
        raise BadBatch("the header's checksum is wrong")
    names = at + HEADER.size
    root = data[names : names + root_bytes]
    producer = data[names + root_bytes : names + root_bytes + producer_bytes] if flags & PRODUCER else None
    try:
        return Header(
            root.decode(),
            first_offset,
            count,
            time_us,
            durable,
            producer.decode() if producer is not None else None,
            sequence,
            flags,
            header_bytes,
            body_bytes,
            body_crc,
        )
    except UnicodeDecodeError as error:
        raise BadBatch("a name in the header is not UTF-8") from error


def read_batch(seed: Seed, data: bytes, at: int = 0) -> Batch | None:
    """The batch at a place; None if more bytes are needed; `BadBatch` if it cannot be one."""
    header = read_header(seed, data, at)
    if header is None:
        return None
    start = at + header.header_bytes
    if len(data) - start < header.body_bytes:
        return None
    return Batch.of(header, open_body(header, data[start : start + header.body_bytes]))


def open_body(header: Header, stored: bytes) -> bytes:
    """The body as its publisher made it, checked against the header."""
    if header.flags & ZSTD:
        try:
            stored = decompress(stored)
        except ValueError as error:
            raise BadBatch(f"the body does not decompress: {error}") from error
    if checksum(stored) != header.body_crc:
        raise BadBatch("the body's checksum is wrong")
    return stored


def open_columns(header: Header, data: bytes) -> Body:
    """Decode a body's columns, and check that each lies within it."""
    try:
        body = Body(data)
    except (ValueError, struct.error) as error:
        raise BadBatch(f"the body's columns are wrong: {error}") from error
    if body.count != header.count:
        raise BadBatch("header and body disagree about the number of messages")
    return body
