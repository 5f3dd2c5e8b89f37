"""Reading a span off the segments of a folder, beside its owner.

Batches are walked one after another from the place that the planner found. Wherever that does not lead on (a stale
place, damage, a segment that is gone), the stream itself is asked, as every other reader does: it knows how to search
and how to name what is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from headwater.config import Config
from headwater.errors import Conflict
from headwater.spark.spans import Span
from headwater.store import folder as folders
from headwater.store.batch import BadBatch, Batch, Seed, open_body
from headwater.store.file_pool import FilePool
from headwater.store.files import DiskFiles, Files
from headwater.store.log import Hole
from headwater.store.segment import Segment, walk
from headwater.store.stream import DiskStream, open_segments

READ_BYTES = 1 << 20
"""Read at once: what fits in a core's cache is checked and joined sooner than it is read from memory again."""
OPEN_FILES_MAX = 16
LOOKS_MAX = 10
"""Tries to list segments while the owner deletes old ones."""

T = TypeVar("T")
Told = tuple[int, str | None]
"""What a batch's header says of all its messages: when they were appended, and their producer."""
Piece = tuple[int, int, bytes, Sequence[int] | None, Told | None] | Hole
"""First and last offset of a batch, its body, how far each offset is from the first unless they are dense, and what its
header says, which a server does not send; or offsets that are gone."""


class Pieces:
    """The batches of a span."""

    def __init__(self, folder: str, span: Span) -> None:
        self._files = DiskFiles()
        self._seed: Seed = folders.check(self._files, folder)
        self._pool = FilePool(self._files, OPEN_FILES_MAX, write=False)
        self._span = span
        path = f"{folder}/{folders.STREAMS}/{span.stream}"
        self._stream = DiskStream(self._files, self._pool, self._seed, Config(), path, 0, span.root)
        self._stream.durable = self._stream.end = span.durable
        self._stream.segments = segments_of(self._files, path)

    def __iter__(self) -> Iterator[Piece]:
        try:
            yield from self._read()
        finally:
            self._pool.close()

    def _read(self) -> Iterator[Piece]:
        offset, last = self._span.first, self._span.last
        place: tuple[int, int] | None = (self._span.base, self._span.position)
        while offset <= last:
            before = offset
            for batch in self._walk(place, offset) if place is not None else ():
                yield batch
                offset = batch[1] + 1
                if offset > last:
                    return
            if offset == before:
                for found in self._stream.read(offset, READ_BYTES):
                    if isinstance(found, Batch):
                        told = found.header.time_us, found.header.producer
                        yield found.first_offset, found.last_offset, found.data, None, told
                        offset = found.last_offset + 1
                    else:
                        yield found
                        offset = found.last + 1
                if offset == before:
                    raise Conflict(
                        f'"{self._span.root}" ends before {offset}, and this read was planned up to {last}: '
                        "the folder was replaced meanwhile; read again"
                    )
            place = self._find(offset)

    def _walk(self, place: tuple[int, int], offset: int) -> Iterator[tuple[int, int, bytes, None, Told]]:
        """Batches from a place on, while they are the ones that come next."""
        base, position = place
        try:
            file = self._pool.get(Segment(self._stream.folder, base).log_path)
        except FileNotFoundError:
            return
        for _, header, stored in walk(self._seed, file, position, READ_BYTES):
            if header.root != self._span.root or not header.first_offset <= offset <= header.last_offset:
                return
            try:
                body = open_body(header, stored)
            except BadBatch:
                return
            yield header.first_offset, header.last_offset, body, None, (header.time_us, header.producer)
            offset = header.last_offset + 1

    def _find(self, offset: int) -> tuple[int, int] | None:
        """Where an offset's batch should be; None if the stream has to search."""
        segments = self._stream.segments
        if not segments or segments[-1].base < offset:
            segments = self._stream.segments = segments_of(self._files, self._stream.folder)
        at = bisect_right([segment.base for segment in segments], offset) - 1
        if at < 0:
            return None
        segment = segments[at]
        if segment.base == offset:
            return segment.base, 0
        index = segment.index
        if index is None or not len(index) or index.locate(offset) < 0:
            return None
        return segment.base, index.positions[index.locate(offset)]


def segments_of(files: Files, path: str) -> list[Segment]:
    """The segments that a stream has now."""
    return looked(lambda: open_segments(files, path))


def looked(look: Callable[[], T]) -> T:
    """What a look at segments finds: again, if their owner deletes one between our look at its folder and at it."""
    for _ in range(LOOKS_MAX - 1):
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()
