"""Frames that carry batches, decoded; `batches` reads them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Messages of one root, on their way in."""

    root: str
    count: int
    crc: int
    producer: str | None
    sequence: int
    body: bytes


class Published(msgspec.Struct, frozen=True, gc=False):
    """A publish is on disk."""

    id: int
    is_repeat: bool
    first_offset: int
    time_us: int


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Messages of one root, on their way out."""

    subscription: int
    lease: int
    root: str
    first_offset: int
    count: int
    attempt: int
    is_retained: bool
    deltas: Sequence[int] | None
    """Each offset less the first one; None if they are dense."""
    crc: int
    body: bytes
