"""What every request is made of: its kind of struct, and the numbers that its fields are within."""

from __future__ import annotations

from typing import Annotated

import msgspec

TIME_US_MAX = 253_402_300_799_000_000
"""The last second of the year 9999, where calendars end."""
SECONDS_MAX = 1e10

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack has none above 2**64 - 1."""
Micros = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
"""A moment: microseconds since 1970, UTC."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
"""A duration; neither negative, nor infinite, nor no number."""

Option = str | int | float | bool | None


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag=True, omit_defaults=True):
    """Something that a client asks for."""


class Change(Request, frozen=True, kw_only=True):
    """A request that changes what administrators look after; the audit tells of it."""

    by: str | None = None
    """Who wants it, where an administrator's connection speaks for others, as the HTTP API does; from anybody else
    it is NotAllowed (403)."""
