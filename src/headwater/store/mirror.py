"""A mirror: the streams of a folder that takes what was decided elsewhere, as a node of a cluster does.

Nothing here chooses a number, an offset or a place: streams, segments and batches are given, byte for byte as they will
be on disk. Nothing is synced batch by batch either: a mirror is brought to disk from time to time, with the places at
which its streams stood by then, and after a crash it is cut back to these, whatever else is found.
Promises: of two mirrors that were given the same, the segments are equal to the byte; one that is opened at the places
it was last synced at is what it was by then, whatever was lost of what came later, and what came later may be given
again, wholly or in part; if it cannot be, as synced bytes are gone, it says so (`Damaged`) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import msgspec

from headwater.config import Config
from headwater.errors import Damaged, Failed
from headwater.store import folder as folders
from headwater.store.batch import BadBatch, Header, Seed, read_header
from headwater.store.files import File, Files
from headwater.store.manifest import Listed, found
from headwater.store.new_streams import NewStreams
from headwater.store.segment import UNBOUNDED, Segment, bases, header_at, load_index
from headwater.store.stream import DiskStream
from headwater.store.streams import DOUBT, RENAMED, Streams

ELSEWHERE = "remove its folder, so that it takes a copy from another node"


class StreamPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a stream stood."""

    stream: int
    root: str
    end: int
    """Its newest offset."""
    base: int
    """Of the segment that was written to; 0 if there was none."""
    position: int
    """Where that ended."""


def places_of(streams: Sequence[DiskStream]) -> list[StreamPlace]:
    """Where these stand."""
    return [_place_of(stream) for stream in streams]


def _place_of(stream: DiskStream) -> StreamPlace:
    base, position = (stream.segments[-1].base, stream.segments[-1].end) if stream.segments else (0, 0)
    return StreamPlace(stream.number, stream.root, stream.end, base, position)


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """A stream whose root was removed, and with which offset a new one of its root goes on."""

    stream: int
    root: str
    first: int


class Mirror(Streams):
    """The streams of one node's folder."""

    def __init__(self, files: Files, folder: str, seed: Seed, config: Config, *, read_only: bool = False) -> None:
        super().__init__(files, folder, seed, config, read_only=read_only)
        self._by_number: dict[int, DiskStream] = {}
        """Those that are given by number."""

    def made(self) -> list[DiskStream]:
        """Every stream, also of roots that have no message yet."""
        return sorted(chain(self._by_root.values(), self._unused.values()), key=lambda stream: stream.number)

    # Opening

    def open_at(self, places: Sequence[StreamPlace], gone: Sequence[Gone] = ()) -> None:
        """Open the streams as they were at these places, whatever a crash has left or lost of what came later."""
        manifest = self._manifest
        listed = manifest.read()
        for one in gone:
            manifest.removed.setdefault(one.stream, Listed(one.stream, one.root, one.first))
        kept = [place for place in places if place.stream not in manifest.removed]
        cuts = [self._plan(place, listed.get(place.stream)) for place in kept]
        self._files.make_folder(f"{self._folder}/streams")
        self._files.remove_tree(f"{self._folder}/{RENAMED}")
        self._remove_others({cut.number for cut in cuts})
        self._cells = self._files.cells(f"{self._folder}/{folders.WATERMARKS}")
        for place, cut in zip(kept, cuts, strict=True):
            self._by_root[place.root] = self._by_number[place.stream] = self._cut(place, cut)
        manifest.list_only(cuts)
        manifest.settle(anew=True)
        self._sync_segments()
        for stream in self.made():
            self._mark(stream)
        self._cells.set(DOUBT, 0)
        self._cells.sync()
        self._journal.clear()

    def _plan(self, place: StreamPlace, listed: Listed | None) -> Listed:
        """What a stream is to have; Damaged if something of it is missing that was synced."""
        listed = listed or Listed(place.stream, place.root)
        name = Listed(place.stream, place.root).folder
        there = set(bases(self._files, f"{self._folder}/streams/{name}"))
        first = min(listed.first, place.end + 1)
        segments = {base for base in there if first <= base <= place.base}
        missing = [base for base in listed.segments if base <= place.base and base not in there]
        if place.base and place.base >= listed.first:  # else it was trimmed, which is given again
            missing += [] if place.base in there else [place.base]
            if place.base in there and self._size(name, place.base) < place.position:
                missing.append(place.base)
        if missing:
            raise Damaged(f"streams/{name} lacks what it had on disk, from message {min(missing)} on; {ELSEWHERE}")
        return Listed(place.stream, place.root, min(segments, default=first), segments)

    def _size(self, name: str, base: int) -> int:
        file = self._files.open(Segment(f"{self._folder}/streams/{name}", base).log_path, write=False)
        try:
            return file.size()
        finally:
            file.close()

    def _remove_others(self, kept: set[int]) -> None:
        """Remove streams that were made later, or that are no more."""
        there, strangers = found(self._files, self._folder)
        for stream in there:
            if stream.number not in kept:
                self._files.remove_tree(f"{self._folder}/streams/{stream.folder}")
        for name in strangers:
            self.on_damage(f"streams/{name} is no stream of this folder and is left alone; move it away")

    def _cut(self, place: StreamPlace, listed: Listed) -> DiskStream:
        """A stream as it was at a place."""
        stream = self._stream(listed)
        self._files.make_folder(stream.folder)
        for base in bases(self._files, stream.folder):
            if base not in listed.segments:
                segment = Segment(stream.folder, base)
                self._files.remove(segment.index_path)
                self._files.remove(segment.log_path)
        self._files.sync_folder(stream.folder)
        for base in sorted(listed.segments):
            segment = Segment(stream.folder, base)
            segment.end = segment.allocated = self._size(listed.folder, base)
            stream.segments.append(segment)
        stream.end = stream.durable = place.end
        if place.base in listed.segments:
            active = stream.segments[-1]
            active.end = active.allocated = place.position
            self._pool.get(active.log_path).truncate(place.position)
            self._pool.written(active.log_path)
            self._index(stream, active)
        return stream

    def _index(self, stream: DiskStream, active: Segment) -> None:
        """Have the index of the active segment in memory, all of it."""
        index, _ = load_index(self._files, active, UNBOUNDED)
        index.cut(active.end)
        if len(index):
            header = header_at(self._seed, self._pool.get(active.log_path), index.positions[-1])
            is_whole = header is not None and index.positions[-1] + header.bytes == active.end
            if is_whole and header is not None and header.last_offset == stream.end:
                stream.time_us = header.time_us
                active.index = index
                return
        stream.indexes.rebuild(active, None)
        index = stream.indexes.take_mended(active)
        stream.time_us = index.times[-1] if len(index) else 0

    # Taking what is given

    def create_at(self, number: int, root: str, first: int) -> None:
        """Make the stream of a root, unless it is there, or was removed since."""
        if number in self._manifest.removed or number in self._by_number:
            return
        stream = self._stream(Listed(number, root))
        stream.end = stream.durable = first - 1
        making = NewStreams(self._files, self._pool, self._manifest, [stream], self._mark, self._take_new)
        making.write()
        for error in making.show().values():
            raise error
        self._by_root[root] = self._by_number[number] = self._unused.pop(root)

    def put(self, number: int, data: bytes) -> None:
        """Batches at the end of a stream, and let readers beside this process see them."""
        stream = self._numbered(number)
        if stream is not None:
            self.extend(stream, [data], list(self._headers(stream, data)))
            stream.durable = stream.end
            self._mark(stream)

    def _headers(self, stream: DiskStream, data: bytes) -> Sequence[Header]:
        headers: list[Header] = []
        at, expected = 0, stream.end + 1
        while at < len(data):
            try:
                header = read_header(self._seed, data, at)
            except BadBatch as error:
                raise Damaged(f'what is given for "{stream.root}" is no batch of this bus: {error}') from error
            if header is None or header.root != stream.root or header.first_offset != expected:
                raise Damaged(
                    f'what is given for "{stream.root}" does not continue it: this node has messages up to '
                    f"{stream.end}; {ELSEWHERE}"
                )
            headers.append(header)
            at, expected = at + header.bytes, header.last_offset + 1
        return headers

    def extend(self, stream: DiskStream, buffers: Sequence[bytes], headers: Sequence[Header]) -> None:
        """Write batches with these headers to the active segment, without a sync; nobody sees them yet."""
        active = stream.segments[-1] if stream.segments else stream.start_segment(stream.end + 1)
        self._pool.write(active.log_path, buffers, active.end)
        *positions, end = accumulate([header.bytes for header in headers], initial=active.end)
        newest = headers[-1]
        stream.indexes.to_extend(active).extend([header.first_offset for header in headers], positions, newest.time_us)
        stream.end, stream.time_us = newest.last_offset, newest.time_us
        active.end = end
        active.allocated = max(active.allocated, end)

    def roll_at(self, number: int, base: int) -> None:
        """Begin a segment at an offset, unless one does."""
        stream = self._numbered(number)
        if stream is None or (stream.segments and stream.segments[-1].base == base):
            return
        if base != stream.end + 1:
            raise Damaged(f'"{stream.root}" ends at {stream.end}, and a segment is to begin at {base}; {ELSEWHERE}')
        if stream.segments:
            stream.roll()
        else:  # it was cut back to where those before had been trimmed already
            stream.start_segment(base)

    def trim_at(self, number: int, first: int) -> None:
        """Delete the segments of a stream before an offset."""
        stream = self._numbered(number)
        if stream is not None:
            stream.trim(first - 1)

    def remove_at(self, number: int) -> None:
        """A stream is no more, nor is anything of it."""
        stream = self._numbered(number)
        if stream is not None:
            self.remove(stream)
            del self._by_number[number]
            while self.sweep():
                pass

    def _numbered(self, number: int) -> DiskStream | None:
        stream = self._by_number.get(number)
        if stream is not None or number in self._manifest.removed:
            return stream
        raise Damaged(f'there is no stream {number} in "{self._folder}", for which something is given; {ELSEWHERE}')

    # To disk

    def begin_sync(self) -> tuple[list[StreamPlace], list[Gone], Mapping[str, File]]:
        """Where the streams stand, which are no more, and what has to be synced for that to be on disk; while nothing
        is given."""
        streams = self.made()
        for stream in streams:
            stream.store_indexes()
        gone = [Gone(one.number, one.root, one.first) for one in self._manifest.removed.values()]
        return places_of(streams), gone, self._pool.take_dirty()

    def finish_sync(self, dirty: Mapping[str, File]) -> None:
        """Sync these files, while more is given; if it fails, nothing is synced any more."""
        errors = self._files.sync_files(list(dirty.values()))
        for path, error in zip(dirty, errors, strict=True):
            if error is not None:
                self._fail(f"a sync of {path} failed ({error})")
                raise Failed(f"a sync of {path} failed ({error})") from error
        self._manifest.sync()

    def sealed(self) -> dict[int, list[Segment]]:
        """The segments of each stream that are written to no more."""
        return {stream.number: list(stream.segments[:-1]) for stream in self.made()}

    def links(self) -> dict[str, int]:
        """The files of all streams, and how much of each counts; while nothing is given."""
        return {segment.log_path: segment.end for stream in self.made() for segment in stream.segments}
