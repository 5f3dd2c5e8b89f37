"""Spans: stretches of the log that tasks read, and how a read is cut into partitions of them.

A partition is a small value that travels to a task: a few spans, each with the place of its first batch, so that the
task need not search. Cutting is arithmetic on what the planner found; no file is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from headwater.lake.columns import FilePlace, Store
from headwater.log.purges import Purge
from headwater.message import SchemaInfo
from headwater.spark.topics import Topics
from headwater.store.log import Counted, Hole

MIB = 1 << 20
PARTITION_BYTES_MAX = 64 * MIB
PARTITION_BYTES_MIN = 4 * MIB
"""Less is not worth a task of its own."""


class Extent(msgspec.Struct, frozen=True):
    """What a root has at this moment."""

    root: str
    first: int
    """The oldest offset that is kept."""
    end: int
    """One past the newest that is durable."""
    purged_upto: int = 0
    holes: tuple[Hole, ...] = ()


class Log(Protocol):
    """What a planner asks of a log, be it a folder's or a server's."""

    @property
    def bus_id(self) -> str:
        """The id of the bus, by which a lake knows whose it is."""

    def refresh(self) -> None:
        """See what happened meanwhile."""

    def extents(self, topics: Topics) -> list[Extent]:
        """The roots that topics may be, by name."""

    def schemas(self) -> list[SchemaInfo]:
        """What payloads have to be."""

    def purges(self, root: str) -> tuple[Purge, ...]:
        """What is purged of a root: a lake may have it still."""

    def offset_at(self, root: str, time_us: int) -> int:
        """The first offset appended at or after a time."""

    def bytes_between(self, root: str, first: int, last: int) -> int:
        """About how many bytes a stretch takes."""

    def count(self, root: str, first: int, last: int, topics: Topics, messages_max: int, bytes_max: int) -> Counted:
        """How many messages of a stretch match, until there are so many, or about so much was read; as far as it can be
        told."""

    def spans(self, root: str, first: int, last: int, bytes_max: int, messages_max: int | None) -> Iterator[Span]:
        """A stretch of a root, cut into pieces of about so many bytes, or exactly by count."""

    def close(self) -> None:
        """Let go of it."""


class AsOf:
    """A log as it was when a frame was first read: of each root up to an offset, and no roots that came later."""

    def __init__(self, log: Log, ends: Mapping[str, int] | None) -> None:
        """Without `ends`, as it is now."""
        self._log = log
        self._ends = ends

    @property
    def bus_id(self) -> str:
        return self._log.bus_id

    def refresh(self) -> None:
        self._log.refresh()

    def extents(self, topics: Topics) -> list[Extent]:
        found = self._log.extents(topics)
        ends = self._ends
        if ends is None:
            return found
        return [
            msgspec.structs.replace(extent, end=max(extent.first, min(extent.end, ends[extent.root])))
            for extent in found
            if extent.root in ends
        ]

    def schemas(self) -> list[SchemaInfo]:
        return self._log.schemas()

    def purges(self, root: str) -> tuple[Purge, ...]:
        return self._log.purges(root)

    def offset_at(self, root: str, time_us: int) -> int:
        found = self._log.offset_at(root, time_us)
        return found if self._ends is None else min(found, self._ends.get(root, found))

    def bytes_between(self, root: str, first: int, last: int) -> int:
        return self._log.bytes_between(root, first, last)

    def count(self, root: str, first: int, last: int, topics: Topics, messages_max: int, bytes_max: int) -> Counted:
        return self._log.count(root, first, last, topics, messages_max, bytes_max)

    def spans(self, root: str, first: int, last: int, bytes_max: int, messages_max: int | None) -> Iterator[Span]:
        return self._log.spans(root, first, last, bytes_max, messages_max)

    def close(self) -> None:
        self._log.close()


class Span(msgspec.Struct, frozen=True):
    """Consecutive offsets of one root, and where the batch with the first of them stands."""

    root: str
    first: int
    last: int
    stream: str = ""
    """Name of the stream's folder."""
    base: int = 0
    position: int = 0
    bytes: int = 0
    """About how much is to be read."""
    durable: int = 0
    """How far the stream was durable when the read was planned."""
    purged_upto: int = 0
    """Everything up to here was purged as a whole: nobody is to miss it."""
    purges: tuple[Purge, ...] = ()
    store: Store | None = None
    """Of the lake: what opens its files."""
    files: tuple[FilePlace, ...] = ()
    """Of the lake: the data files that have these messages. Each has those of one day, so some offsets may be missing
    in it, and clocks that were not right make several overlap."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def partition_bytes(total: int, cores: int) -> int:
    """How much each partition reads if nobody says: every core has work, and no task is tiny or huge."""
    return min(PARTITION_BYTES_MAX, max(PARTITION_BYTES_MIN, -(-total // max(1, cores))))


def pack(spans: Iterable[Span], bytes_max: int, messages_max: int | None) -> list[tuple[Span, ...]]:
    """Spans in partitions, in order; neighbours that follow each other become one."""
    packed: list[tuple[Span, ...]] = []
    held: list[Span] = []
    size = count = 0
    for span in spans:
        if held and (count + span.count > messages_max if messages_max else size + span.bytes > bytes_max):
            packed.append(tuple(held))
            held, size, count = [], 0, 0
        is_next = bool(held) and held[-1].root == span.root and held[-1].last + 1 == span.first
        if is_next and held[-1].files == span.files:
            held[-1] = msgspec.structs.replace(held[-1], last=span.last, bytes=held[-1].bytes + span.bytes)
        else:
            held.append(span)
        size, count = size + span.bytes, count + span.count
    if held:
        packed.append(tuple(held))
    return packed


def cuts_by_count(first: int, last: int, messages_max: int) -> Iterator[tuple[int, int]]:
    """First and last offsets of runs of so many messages."""
    for start in range(first, last + 1, messages_max):
        yield start, min(last, start + messages_max - 1)


def share(backlog: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many messages each root may give: in proportion to what waits in it, `limit` in all."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    shares = {root: waiting * limit // total for root, waiting in backlog.items()}
    left = limit - sum(shares.values())
    # What rounding left over goes to those who got least of what waits in them.
    by_need: Sequence[str] = sorted(backlog, key=lambda root: (shares[root] / max(1, backlog[root]), root))
    for root in by_need:
        more = min(1, left, backlog[root] - shares[root])
        shares[root] += more
        left -= more
    return shares
