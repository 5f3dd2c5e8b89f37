"""The log of a folder as a planner sees it, beside the process that owns it: which roots, from where to where, and
where each stretch of them stands.

What is durable is read from the shared watermarks, what was purged or lost from the state (a RocksDB secondary). Both
are only looked at: planning changes nothing in the folder.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from headwater.config import Config
from headwater.delivery.rows import SubscriptionRow, floors_of
from headwater.errors import Malformed
from headwater.log.purges import Purge, purges_in
from headwater.log.root import RootRow
from headwater.message import SchemaInfo
from headwater.spark.pieces import OPEN_FILES_MAX, looked
from headwater.spark.spans import Extent, Span, cuts_by_count
from headwater.spark.topics import Topics
from headwater.store import folder as folders
from headwater.store import state as rows
from headwater.store.files import DiskFiles
from headwater.store.log import Counted, Hole
from headwater.store.rocks import RocksReader
from headwater.store.segment import Segment
from headwater.store.stream import DiskStream
from headwater.store.streams import Streams


class Folder:
    """A folder of a bus, opened to plan reads of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        files = DiskFiles()
        seed = folders.check(files, path)
        self._state = RocksReader(f"{path}/{folders.STATE}")
        config = msgspec.structs.replace(Config(), open_files_max=OPEN_FILES_MAX)
        self._streams = Streams(files, path, seed, config, read_only=True)
        self._rows: dict[int, RootRow] = {}
        self.refresh()

    @property
    def bus_id(self) -> str:
        stored = self._state.get(rows.IDENTITY)
        if stored is None:
            raise Malformed(
                f'the bus in "{self.path}" has no id yet; open it once for writing, with this Headwater, to give it one'
            )
        return stored.decode()

    def refresh(self) -> None:
        """See what the owner did meanwhile."""
        self._state.refresh()
        self._rows = {
            int.from_bytes(key[1:5], "big"): msgspec.msgpack.decode(value, type=RootRow)
            for key, value in self._state.scan(rows.STREAM)
        }
        looked(lambda: self._streams.look(self._holes))

    def close(self) -> None:
        self._streams.close()
        self._state.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _holes(self, number: int) -> list[Hole]:
        return [
            Hole(rows.offset_in(key), *msgspec.msgpack.decode(value, type=tuple[int, str]))
            for key, value in self._state.scan(rows.key_u32(rows.GAP, number))
        ]

    def _purges(self, number: int) -> tuple[Purge, ...]:
        return tuple(purges_in(self._state.scan(rows.key_u32(rows.PURGE, number))))

    def purges(self, root: str) -> tuple[Purge, ...]:
        return self._purges(self._stream(root).number)

    def schemas(self) -> list[SchemaInfo]:
        """Those that stand, as their owner has stored them."""
        return [msgspec.msgpack.decode(value, type=SchemaInfo) for _, value in self._state.scan(rows.SCHEMA)]

    def subscription(self, id: str) -> SubscriptionRow | None:
        """A subscription, as its owner has stored it."""
        stored = self._state.get(rows.SUBSCRIPTION + id.encode())
        return None if stored is None else msgspec.msgpack.decode(stored, type=SubscriptionRow)

    def floors(self, subscription: SubscriptionRow) -> dict[str, int]:
        """The acked floor of each root that a subscription has a place in."""
        names = {stream.number: stream.root for stream in self._streams.all()}
        floors = floors_of(self._state, subscription.number)
        return {names[number]: floor for number, floor in floors.items() if number in names}

    # What there is

    def extents(self, topics: Topics) -> list[Extent]:
        found = []
        for stream in self._streams.all():
            if topics.covers_root(stream.root):
                row = self._rows.get(stream.number)
                upto = row.purged_upto if row is not None else 0
                found.append(Extent(stream.root, stream.first_offset, stream.durable + 1, upto, tuple(stream.holes)))
        return sorted(found, key=lambda extent: extent.root)

    def offset_at(self, root: str, time_us: int) -> int:
        return self._stream(root).offset_at(time_us)

    def _stream(self, root: str) -> DiskStream:
        stream = self._streams.get(root)
        assert stream is not None
        return stream

    # Where it stands

    def bytes_between(self, root: str, first: int, last: int) -> int:
        """About how many bytes a stretch takes on disk."""
        stream = self._stream(root)
        return sum(
            self._bytes(stream, at, max(first, segment.base), min(last, self._last_of(stream, at)))
            for at, segment in self._overlapping(stream, first, last)
        )

    def count(self, root: str, first: int, last: int, topics: Topics, messages_max: int, bytes_max: int) -> Counted:
        """How many messages of a stretch match, until there are so many, or about so much was read."""
        stream = self._streams.get(root)
        if stream is None:  # it was removed meanwhile
            return Counted(first, 0)
        return stream.count(topics.test(), first, min(last, stream.durable), messages_max, bytes_max)

    def spans(self, root: str, first: int, last: int, bytes_max: int, messages_max: int | None) -> Iterator[Span]:
        """A stretch of a root, cut at batches into pieces of about so many bytes, or exactly by count."""
        stream = self._stream(root)
        whole = Span(
            root,
            first,
            last,
            stream=stream.folder.rpartition("/")[2],
            durable=stream.durable,
            purged_upto=self._rows[stream.number].purged_upto if stream.number in self._rows else 0,
            purges=self._purges(stream.number),
        )
        if messages_max is not None:
            cuts: Iterator[tuple[int, int]] = cuts_by_count(first, last, messages_max)
        else:
            cuts = self._cuts_by_bytes(stream, first, last, bytes_max)
        for start, end in cuts:
            yield self._placed(stream, msgspec.structs.replace(whole, first=start, last=end))

    def _cuts_by_bytes(self, stream: DiskStream, first: int, last: int, bytes_max: int) -> Iterator[tuple[int, int]]:
        """Segments that are small enough stay whole; larger ones are cut where their index has a batch."""
        start = first
        for at, segment in self._overlapping(stream, first, last):
            end = min(last, self._last_of(stream, at))
            while start <= end and self._bytes(stream, at, start, end) > bytes_max:
                index = stream.indexes.of(segment)
                if not len(index):
                    break  # nothing in it is whole
                entry = max(0, index.locate(start))
                beyond = bisect_right(index.positions, index.positions[entry] + bytes_max)
                cut = max(beyond - 1, entry + 1)
                if cut >= len(index) or index.offsets[cut] > end:
                    break
                yield start, index.offsets[cut] - 1
                start = index.offsets[cut]
            if start <= end:
                yield start, end
                start = end + 1

    def _placed(self, stream: DiskStream, span: Span) -> Span:
        """The span, with where it begins and about how long it is."""
        if not stream.segments:
            return span
        at = max(0, bisect_right([segment.base for segment in stream.segments], span.first) - 1)
        segment = stream.segments[at]
        position = 0
        if span.first > segment.base:
            index = stream.indexes.of(segment)
            position = index.positions[max(0, index.locate(span.first))] if len(index) else 0
        size = self.bytes_between(span.root, span.first, span.last)
        return msgspec.structs.replace(span, base=segment.base, position=position, bytes=size)

    def _overlapping(self, stream: DiskStream, first: int, last: int) -> list[tuple[int, Segment]]:
        return [
            (at, segment)
            for at, segment in enumerate(stream.segments)
            if segment.base <= last and self._last_of(stream, at) >= first
        ]

    @staticmethod
    def _last_of(stream: DiskStream, at: int) -> int:
        following = stream.segments[at + 1 : at + 2]
        return following[0].base - 1 if following else stream.durable

    def _bytes(self, stream: DiskStream, at: int, first: int, last: int) -> int:
        """About the room of a stretch within one segment: in proportion to its messages if it is not all of it."""
        segment = stream.segments[at]
        size = segment.end
        if at == len(stream.segments) - 1 and segment.index is not None and len(segment.index):
            size = min(size, segment.index.positions[-1] + 1)  # what comes after is allocated ahead
        whole = self._last_of(stream, at) - segment.base + 1
        return size * (last - first + 1) // whole if whole > 0 else 0
