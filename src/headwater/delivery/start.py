"""Where reading starts: "earliest", "latest", an offset, or a moment."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from headwater.clock import from_datetime
from headwater.errors import Malformed
from headwater.log.root import Root
from headwater.topics.name import root_of_filter

Start = Literal["earliest", "latest"] | int | datetime


class Ends(msgspec.Struct):
    """Where each root ended when somebody asked to start with the latest: what came later is read, however long the
    making of a subscription takes."""

    by_root: dict[str, int] = {}
    """Roots that are not there have begun since."""
    is_known: bool = False
    """Whether it was looked yet."""

    def is_before(self, root: str, offset: int) -> bool:
        """Whether a message is one of those that are read, as far as is known by now."""
        return self.is_known and offset > self.by_root.get(root, 0)


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


def floor_for(root: Root, filter: str, start: Start | Ends) -> int:
    """The offset before the first one to be read."""
    if isinstance(start, Ends):
        return min(start.by_root.get(root.name, 0), root.stream.durable)
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
