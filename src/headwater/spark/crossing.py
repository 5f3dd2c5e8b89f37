"""A log with its lake before it, as a planner sees both: one run of offsets from the first archived message on.

What the lake has is read there, the rest from the log, so that the two meet at the archived offset: no gap and no
repeat. Retention deletes from the log only what is archived; where it did so since the lake was last looked at, the
lake is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import msgspec

from headwater.clock import SECOND_US, SystemClock
from headwater.errors import Conflict
from headwater.lake.carried_purges import left_of
from headwater.lake.lake import Archived, LakeFile, existing_lake
from headwater.lake.scan import first_since
from headwater.log.purges import Purge
from headwater.message import SchemaInfo
from headwater.spark.spans import Extent, Log, Span, cuts_by_count
from headwater.spark.topics import EVERYTHING, Topics
from headwater.store.log import Counted, Hole
from headwater.store.stream import RETENTION

LOOK_AGAIN_S = 60
"""Files that the lake replaced stay for hours; a plan made of a list of them that is this old is good."""


TOGETHER = 10_000
"""Offsets that are read at once though more files begin among them."""


class Crossing:
    """A log, and the lake of the same bus."""

    def __init__(self, log: Log, lake: str) -> None:
        self._log = log
        self._lake = existing_lake(lake)
        self._lake.check(log.bus_id)
        self._look()
        self._log.refresh()

    def _look(self) -> None:
        """See what the lake has. The log is looked at after it: it then reaches at least as far."""
        self._archived: dict[str, Archived] = self._lake.archived()
        self._looked_us = SystemClock().monotonic_us()

    @property
    def bus_id(self) -> str:
        return self._log.bus_id

    def refresh(self) -> None:
        if SystemClock().monotonic_us() - self._looked_us > LOOK_AGAIN_S * SECOND_US:
            self._look()
        self._log.refresh()
        if any(self._is_behind(extent) for extent in self._log.extents(EVERYTHING)):
            self._look()
            self._log.refresh()

    def _is_behind(self, extent: Extent) -> bool:
        known = self._archived.get(extent.root)
        return extent.first > (known.upto + 1 if known else 1)

    def close(self) -> None:
        self._log.close()

    # What there is

    def extents(self, topics: Topics) -> list[Extent]:
        """The roots that topics may be in, each from its first archived message on."""
        return [self._extent(extent) for extent in self._log.extents(topics)]

    def _extent(self, extent: Extent) -> Extent:
        archived = self._archived.get(extent.root)
        if archived is None or not archived.upto:
            return extent
        check_restored(extent, archived)
        holes = [hole for hole in extent.holes if hole.last > archived.upto]
        if extent.first > archived.upto + 1:
            holes.insert(0, Hole(archived.upto + 1, extent.first - 1, RETENTION))
        return msgspec.structs.replace(extent, first=min(extent.first, archived.first), holes=tuple(holes))

    def schemas(self) -> list[SchemaInfo]:
        return self._log.schemas()

    def purges(self, root: str) -> tuple[Purge, ...]:
        return self._log.purges(root)

    def offset_at(self, root: str, time_us: int) -> int:
        found = self._log.offset_at(root, time_us)
        kept = {extent.root: extent.first for extent in self._log.extents(Topics((root,)))}
        archived = self._archived.get(root)
        if archived is None or found > kept.get(root, 1):
            return found
        return first_since(archived, time_us, found)

    # Where it stands

    def bytes_between(self, root: str, first: int, last: int) -> int:
        lake = sum(span.bytes for span in self._lake_spans(root, first, last, None))
        start = max(first, self._live_from(root))
        return lake + (self._log.bytes_between(root, start, last) if start <= last else 0)

    def count(self, root: str, first: int, last: int, topics: Topics, messages_max: int, bytes_max: int) -> Counted:
        """How many messages of a stretch match. What is archived is not looked at: all of it counts."""
        start = max(first, self._live_from(root))
        archived = min(last + 1, start) - first
        if archived >= messages_max or start > last:
            return Counted(first + min(archived, messages_max), min(archived, messages_max))
        found = self._log.count(root, start, last, topics, messages_max - archived, bytes_max)
        return Counted(found.end, archived + found.messages, found.bytes)

    def spans(self, root: str, first: int, last: int, bytes_max: int, messages_max: int | None) -> Iterator[Span]:
        """A stretch of a root: files of the lake, then pieces of the log."""
        yield from self._lake_spans(root, first, last, messages_max)
        start = max(first, self._live_from(root))
        if start <= last:
            purges = self._log.purges(root)  # for what is archived, and deleted, before it is read
            for span in self._log.spans(root, start, last, bytes_max, messages_max):
                yield msgspec.structs.replace(span, purges=purges)

    def _live_from(self, root: str) -> int:
        archived = self._archived.get(root)
        return 1 if archived is None else archived.upto + 1

    def _lake_spans(self, root: str, first: int, last: int, messages_max: int | None) -> Iterator[Span]:
        archived = self._archived.get(root)
        if archived is not None:
            purges = left_of(self._log.purges(root), archived.purged)
            yield from lake_spans(archived, first, last, messages_max, purges)


def lake_spans(
    archived: Archived, first: int, last: int, messages_max: int | None = None, purges: tuple[Purge, ...] = ()
) -> Iterator[Span]:
    """What the lake has of a stretch of a root, in order: cut wherever another file begins, but not into small pieces
    where many files share a stretch, as those of a table do that keeps topics apart."""
    first = max(first, archived.first)
    files = archived.between(first, last)  # by their first offset
    reading: list[LakeFile] = []
    start: int | None = None
    for file, following in zip_longest(files, files[1:]):
        start = max(first, file.first) if start is None else start
        reading = [one for one in (*reading, file) if one.last >= start]
        upto = max(one.last for one in reading)
        if following and following.first <= upto and following.first - start < TOGETHER:
            continue
        end = min(following.first - 1 if following else last, upto)
        for low, high in cuts_by_count(start, end, messages_max or last):
            size = sum(_share(one, low, min(high, one.last)) for one in reading)
            places = tuple(one.place for one in reading)
            yield Span(archived.root, low, high, bytes=size, purges=purges, store=archived.store, files=places)
        start = None


def lost_spans(
    lake: str, root: str, first: int, last: int, purges: tuple[Purge, ...]
) -> tuple[list[Span], list[tuple[int, int]]]:
    """Where the lake has messages that the log has no more, and what it does not have either."""
    archived = existing_lake(lake).archived(root).get(root)
    if archived is None:
        return [], [(first, last)]
    low, high = max(first, archived.first), min(last, archived.upto)
    lacking = [(first, min(last, low - 1)), (max(first, high + 1), last)]
    spans = lake_spans(archived, low, high, None, purges) if low <= high else ()
    return list(spans), [one for one in lacking if one[0] <= one[1]]


def check_restored(extent: Extent, archived: Archived) -> None:
    """That the log has not lost what the lake has; else offsets would mean other messages."""
    if extent.end <= archived.upto:
        raise Conflict(
            f'the lake has "{extent.root}" up to {archived.upto}, and the log ends at {extent.end - 1}: it was '
            "restored from an older backup, and new messages repeat offsets; use a new lake for it"
        )


def _share(file: LakeFile, first: int, last: int) -> int:
    return file.bytes * (last - first + 1) // max(1, file.last - file.first + 1)
