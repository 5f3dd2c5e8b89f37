"""Frames: everything on a connection is one of these.

    0               4       5       6       8               12
    ├───────────────┼───────┼───────┼───────┼───────────────┼──────────────┄
    │ length (u32)  │ kind  │ flags │ 0     │ id (u32)      │ payload
    └───────────────┴───────┴───────┴───────┴───────────────┴──────────────┄

Little-endian. The length counts what follows it: 8 and the payload's bytes. The id is a request's number, which its
answer repeats, or a subscription's. Promises: bytes that are no frame raise `Malformed` or `TooLarge` and nothing
else; a frame comes out the same however its bytes were split; what waits for the rest of a frame is never more than
was received, and never more than the limit.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from headwater.errors import Malformed, TooLarge

HEADER = struct.Struct("<IBBHI")
LENGTH_BYTES = 4
FIXED_BYTES = HEADER.size - LENGTH_BYTES
"""What the length counts besides the payload."""


class Kind(IntEnum):
    """What a frame is; C from the client, S from the server, B from both."""

    # Handshake: MessagePack, in this order.
    HELLO = 1  # C
    CHALLENGE = 2  # S
    RESPONSE = 3  # C
    OK = 4  # S, then C
    # Requests and their answers: MessagePack.
    REQUEST = 8  # C
    REPLY = 9  # S
    ERROR = 10  # S; id 0: about the connection, which is closed after it
    # Batches: binary, since they must not be parsed.
    PUBLISH = 16  # C
    PUBLISHED = 17  # S
    DELIVER = 18  # S; id: subscription
    ACK = 19  # C
    TAKEN = 20  # C; id: subscription
    CREDIT = 21  # C; id: subscription
    RECALL = 22  # S; id: subscription
    NOTICE = 23  # S; id: subscription; MessagePack
    # The connection itself.
    PING = 32  # B
    PONG = 33  # B
    GOODBYE = 34  # B; MessagePack


KNOWN = frozenset(Kind)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, decoded."""

    kind: int
    flags: int
    id: int
    payload: bytes


def pack(kind: int, id: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """A frame's bytes."""
    return HEADER.pack(FIXED_BYTES + len(payload), kind, flags, 0, id) + payload


def pack_head(kind: int, id: int, payload_bytes: int, flags: int = 0) -> bytes:
    """The bytes before a payload that is sent on its own, so that it need not be copied."""
    return HEADER.pack(FIXED_BYTES + payload_bytes, kind, flags, 0, id)


class FrameReader:
    """Turns received bytes into frames."""

    __slots__ = ("_partial", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """The longest frame that is taken; may be raised once a client is known."""
        self._partial: bytearray | None = None

    @property
    def waits(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._partial is not None

    def feed(self, received: bytes | memoryview) -> list[Frame]:
        """The frames that these bytes complete."""
        partial = self._partial
        if partial is None:
            return self._split(memoryview(received))
        partial += received
        if len(partial) < LENGTH_BYTES or len(partial) < self._length(partial, 0):
            return []
        self._partial = None
        return self._split(memoryview(partial))

    def _split(self, data: memoryview) -> list[Frame]:
        found: list[Frame] = []
        at, end = 0, len(data)
        while at < end:
            if end - at < LENGTH_BYTES:
                break
            after = at + self._length(data, at)
            if after > end:
                break
            _, kind, flags, zero, number = HEADER.unpack_from(data, at)
            if kind not in KNOWN or zero:
                raise Malformed(f"a frame of kind {kind} is not known here; see docs/protocol.md")
            found.append(Frame(kind, flags, number, bytes(data[at + HEADER.size : after])))
            at = after
        if at < end:
            self._partial = bytearray(data[at:])
        return found

    def _length(self, data: bytearray | memoryview, at: int) -> int:
        """How long the frame at a place is, as a whole."""
        length = int.from_bytes(data[at : at + LENGTH_BYTES], "little")
        if length < FIXED_BYTES:
            raise Malformed(f"a frame of length {length} is too short to be one")
        if LENGTH_BYTES + length > self.bytes_max:
            raise TooLarge(f"a frame of {LENGTH_BYTES + length} bytes is over the limit of {self.bytes_max}")
        return LENGTH_BYTES + length
