"""Frames: everything on a connection is one of these.

    0               4       5       6       8               12
    ├───────────────┼───────┼───────┼───────┼───────────────┼──────────────┄
    │ length (u32)  │ kind  │ flags │ 0     │ id (u32)      │ payload
    └───────────────┴───────┴───────┴───────┴───────────────┴──────────────┄

Little-endian. The length counts what follows it: 8 and the payload's bytes. The id is a request's number, which its
answer repeats, or a subscription's.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

HEADER = struct.Struct("<IBBHI")
LENGTH_BYTES = 4
HEADER_BYTES = HEADER.size
FIXED_BYTES = HEADER_BYTES - LENGTH_BYTES
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
    pieces: tuple[bytes, ...] = ()
    """What follows the payload's start, of a PUBLISH that is so long that its reader has not put it together."""


def pack(kind: int, id: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """A frame's bytes."""
    return HEADER.pack(FIXED_BYTES + len(payload), kind, flags, 0, id) + payload


def pack_head(kind: int, id: int, payload_bytes: int, flags: int = 0) -> bytes:
    """The bytes before a payload that is sent on its own, so that it need not be copied."""
    return HEADER.pack(FIXED_BYTES + payload_bytes, kind, flags, 0, id)
