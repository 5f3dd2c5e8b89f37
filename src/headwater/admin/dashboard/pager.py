"""The pager: pages of a root's messages, newest first, from any place, at a cost that is bounded.

History is read forwards; so a page is read as a window of offsets, and where that holds too few messages that match,
wider windows before it, up to a limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from headwater.errors import Gap, Malformed, NotFound
from headwater.message import Envelope, Extent

PAGE = 50
SAMPLE = 20
"""New messages that are shown at once while a page follows."""
SAMPLED_OFFSETS = 2_000
"""Offsets that are looked at for them."""
LOOKED_MAX = 200_000
"""Offsets that are looked at for one page."""
READ_S = 3.0
"""How long one read may take."""
TAKEN = 500


class Page(msgspec.Struct, frozen=True):
    """Messages, newest first, and the offsets that were looked at for them."""

    messages: tuple[Envelope, ...]
    first: int
    last: int
    is_first: bool
    """Whether nothing is before it."""
    left_out: int = 0
    """Messages among them that are not shown."""
    is_sampled: bool = False
    """Whether some were not even looked at."""


class Pager:
    """Reads messages that a filter within one root matches."""

    def __init__(self, bus: Any, filter: str, check_sight: Callable[[str], None] = lambda _: None) -> None:
        """`check_sight` raises why who looks may not see what a filter matches."""
        self._bus = bus
        self._check_sight = check_sight
        self.filter = filter
        self.root = filter.partition("/")[0]
        if self.root in {"+", "#", ""}:
            raise Malformed(f'"{filter}" spans roots; offsets count within one: name the first level')

    async def newest(self) -> Page:
        extent = await self.extent()
        last = extent.end - 1
        if not set("+#") & set(self.filter):
            found = await self._bus.topics(self.filter)
            last = min(last, found[0].last_offset) if found else last
        return await self.upto(last, extent)

    async def upto(self, last: int, extent: Extent | None = None) -> Page:
        """The page that ends with an offset."""
        extent = extent or await self.extent()
        last = min(last, extent.end - 1)
        first, window = last + 1, PAGE
        found: list[Envelope] = []
        while first > extent.first and len(found) < PAGE and last - first < LOOKED_MAX:
            low = max(extent.first, first - window)
            found = [*await self._read(low, first - 1, PAGE - len(found)), *found]
            first, window = low, window * 4
        if len(found) == PAGE:
            first = found[0].offset
        return Page(tuple(reversed(found)), first, last, first <= extent.first)

    async def since(self, seen: int) -> Page:
        """What came after an offset; where that is much, the newest of it."""
        extent = await self.extent()
        last = extent.end - 1
        first = max(seen + 1, extent.first, last - SAMPLED_OFFSETS + 1)
        found = await self._read(first, last, None) if first <= last else []
        kept = found[-SAMPLE:]
        return Page(
            tuple(reversed(kept)), first, last, False, left_out=len(found) - len(kept), is_sampled=first > seen + 1
        )

    async def at_time(self, moment: datetime) -> Page:
        """The page that ends with what was published up to a moment."""
        extent = await self.extent(moment)
        return await self.upto(extent.places[0] - 1 if extent.places else extent.end - 1, extent)

    async def last(self, most: int) -> list[Envelope]:
        """The newest so many, oldest first, of those that are found in the time there is."""
        extent = await self.extent()
        return await self._read(max(extent.first, extent.end - LOOKED_MAX), extent.end - 1, most)

    async def one(self, offset: int) -> Envelope:
        found = await self._read(offset, offset, 1)
        if not found:
            raise NotFound(f'message {offset} of "{self.root}" is gone, or "{self.filter}" does not match it')
        return found[0]

    async def extent(self, *moments: datetime) -> Extent:
        """What the root has."""
        found: list[Extent] = await self._bus.extents(f"{self.root}/#", moments)
        return found[0] if found else Extent(self.root, 1, 1)

    async def _read(self, first: int, last: int, limit: int | None) -> list[Envelope]:
        """The last so many of the messages between two offsets, oldest first."""
        self._check_sight(self.filter)
        kept: deque[Envelope] = deque(maxlen=limit)
        reading = self._bus.replay(self.filter, after=first - 1, upto={self.root: last})
        try:
            async with asyncio.timeout(READ_S):
                while True:
                    try:
                        taken = await reading.batch(TAKEN)
                    except Gap:
                        continue
                    if not taken:
                        break
                    kept.extend(taken)
        except TimeoutError:
            pass  # what was read by then is shown
        finally:
            await reading.close()
        return list(kept)
