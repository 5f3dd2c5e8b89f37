"""Planning: from options to partitions. What would fail later fails here, before any row is read."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headwater.arrow.conditions import Conditions
from headwater.errors import Conflict, Gap, Malformed
from headwater.spark.options import ReadOptions, resolve
from headwater.spark.spans import Extent, Log, Span, pack, partition_bytes
from headwater.store.log import Hole
from headwater.store.stream import RETENTION

ADVICE = 'set option("failOnDataLoss", "false") to read what is left'

Range = tuple[int, int]
"""The first offset to read, and the first not to read any more."""


def ranges_of_batch(log: Log, options: ReadOptions, conditions: Conditions) -> dict[str, Range]:
    """What a batch read asks for, by root; errors say what is wrong with it."""
    found: dict[str, Range] = {}
    low, high = conditions.offsets()
    extents = log.extents(options.topics)
    check_named(options, extents)
    for extent in extents:
        start, end = starting(log, options, extent), ending(log, options, extent)
        if end > extent.end:
            raise _beyond("endingOffsets", extent, end, "one past it to read all of it")
        if start > end:
            raise Malformed(
                f'"{extent.root}": startingOffsets ({start}) come after endingOffsets ({end}); exchange them'
            )
        start, end = max(start, low), min(end, high)
        if start < end and conditions.wants_root(extent.root):
            found[extent.root] = (start, end)
    return found


def starting(log: Log, options: ReadOptions, extent: Extent) -> int:
    """The first offset of a root that a new query is to read."""
    start = resolve(
        options.start, extent.root, extent.first, extent.end, lambda time_us: log.offset_at(extent.root, time_us)
    )
    if start > extent.end:
        raise _beyond("startingOffsets", extent, start, "one past it to wait for what comes next")
    return start


def ending(log: Log, options: ReadOptions, extent: Extent) -> int:
    """The first offset of a root that a batch read leaves out."""
    return resolve(
        options.end, extent.root, extent.first, extent.end, lambda time_us: log.offset_at(extent.root, time_us)
    )


def check_named(options: ReadOptions, extents: list[Extent]) -> None:
    """That the roots whose offsets are stated are there."""
    known = {extent.root for extent in extents}
    for name, place in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        for root in (place.roots or {}).keys() - known:
            raise Malformed(
                f'option "{name}" names root "{root}", which has no messages; '
                f"there are {', '.join(sorted(known)) or 'none that the topics match'}"
            )


def _beyond(name: str, extent: Extent, offset: int, otherwise: str) -> Malformed:
    return Malformed(
        f'option "{name}": offset {offset} of "{extent.root}" is beyond its end; the newest is {extent.end - 1}, '
        f"and {extent.end} is {otherwise}"
    )


def checked(extent: Extent, wanted: Range, fail_on_data_loss: bool) -> Range:
    """What of a range is there; `Gap` names what is not, if that is to be an error."""
    start, end = wanted
    check_end(extent, start, fail_on_data_loss)
    if start > extent.end:
        return extent.end, extent.end
    lost = [Hole(start, min(end, extent.first) - 1, RETENTION)] if start < min(end, extent.first) else []
    lost += [hole for hole in extent.holes if hole.first < end and hole.last >= start and hole.last >= extent.first]
    for hole in lost:
        report(extent.root, hole, extent.purged_upto, fail_on_data_loss)
    return min(max(start, extent.first), end), end


def check_end(extent: Extent, place: int, fail_on_data_loss: bool) -> None:
    """That a query has not read more of a root than there is."""
    if place > extent.end and fail_on_data_loss:
        raise Conflict(
            f'this query has read "{extent.root}" up to {place - 1}, and the log ends at {extent.end - 1}: it is '
            "another bus, or one restored from an older backup; start the query with a new checkpoint location"
        )


def report(root: str, hole: Hole, purged_upto: int, fail_on_data_loss: bool) -> None:
    """Raise `Gap` for messages that are gone, if that is to be an error and nobody purged them on purpose."""
    if fail_on_data_loss and hole.last > purged_upto:
        raise Gap(root, hole.first, hole.last, hole.reason, ADVICE)


def partitions(log: Log, ranges: Mapping[str, Range], options: ReadOptions) -> list[tuple[Span, ...]]:
    """Partitions that together have each offset of the ranges once."""
    extents = {extent.root: extent for extent in log.extents(options.topics)}
    there = {
        root: checked(extents[root], wanted, options.fail_on_data_loss)
        for root, wanted in sorted(ranges.items())
        if root in extents
    }
    total = sum(log.bytes_between(root, start, end - 1) for root, (start, end) in there.items() if start < end)
    bytes_max = partition_bytes(total, options.cores or os.cpu_count() or 1)
    messages_max = options.messages_per_partition

    def cut(messages_max: int | None) -> list[tuple[Span, ...]]:
        spans = (
            span
            for root, (start, end) in there.items()
            if start < end
            for span in log.spans(root, start, end - 1, bytes_max, messages_max)
        )
        return pack(spans, bytes_max, messages_max)

    found = cut(messages_max)
    if options.partitions_min is None or not found or len(found) >= options.partitions_min:
        return found
    count = sum(max(0, end - start) for start, end in there.values())
    return cut(max(1, count // options.partitions_min))
