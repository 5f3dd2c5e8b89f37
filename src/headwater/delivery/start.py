"""Where reading starts: "earliest", "latest", an offset, or a moment."""

from __future__ import annotations

from datetime import datetime

from headwater.clock import from_datetime
from headwater.errors import Malformed
from headwater.topics.name import root_of_filter
from headwater.topics.root import Root

Start = str | int | datetime


def check_start(filter: str, start: Start) -> None:
    """Malformed unless it says where to start."""
    if isinstance(start, bool) or not isinstance(start, str | int | datetime):
        raise Malformed(f'start is {start!r}; use "earliest", "latest", an offset or a datetime')
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise Malformed(f'start is "{start}"; use "earliest", "latest", an offset or a datetime')
    if isinstance(start, int):
        if start < 0:
            raise Malformed(f"start is {start}; offsets count from 1")
        if root_of_filter(filter) is None:
            raise Malformed(
                f'"{filter}" reaches over several roots, and offsets count within one; '
                "start at a datetime, or name the first level"
            )


def floor_for(root: Root, filter: str, start: Start) -> int:
    """The offset before the first one to be read."""
    check_start(filter, start)
    stream = root.stream
    if start == "earliest":
        return stream.first_offset - 1
    if start == "latest":
        return stream.durable
    if isinstance(start, datetime):
        return stream.offset_at(from_datetime(start)) - 1
    assert isinstance(start, int)
    return max(0, min(start - 1, stream.durable))
