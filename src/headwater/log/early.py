"""A message that live subscriptions have before it is on disk."""

from __future__ import annotations

import msgspec


class Early(msgspec.Struct, eq=False, gc=False):
    """One message without options that nobody waits for."""

    root: str
    topic: str
    payload: bytes
    time_us: int
    data: bytes = b""
    """Its body, if its publisher has made one."""
