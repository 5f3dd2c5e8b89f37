"""Digests of what a node has, so that nodes can be compared: of each segment that is written to no more, and of rows.

Two nodes that have a segment of the same stream and base have the same digest of it, or one of them is wrong; rows are
to be compared where both stand at the same position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from headwater import threads
from headwater.cluster.checkpoint import LOCAL
from headwater.cluster.record import DIGEST_BYTES, Position
from headwater.store.files import Files
from headwater.store.segment import Segment

PIECE_BYTES = 1 << 20


class Digests(msgspec.Struct, frozen=True, array_like=True):
    """What a node has, at a position."""

    position: Position
    segments: dict[int, dict[int, bytes]]
    """By stream and base; those that were deleted meanwhile are left out."""
    rows: bytes


class Digesting:
    """Digests of one folder; what was looked at once is remembered, as nobody writes to it any more."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, bytes] = {}
        self._lock = threads.Lock()

    def of(
        self,
        position: Position,
        sealed: Mapping[int, Sequence[Segment]],
        rows: Iterator[tuple[bytes, bytes]],
        *,
        anew: bool = False,
    ) -> Digests:
        """What a folder has; with `anew`, as it is on disk by now, whatever was there before."""
        of_rows = digest_of_rows(rows)
        with self._lock:
            paths = {segment.log_path for segments in sealed.values() for segment in segments}
            self._known = {path: digest for path, digest in self._known.items() if path in paths and not anew}
            found = {number: self._of_segments(segments) for number, segments in sealed.items()}
        return Digests(position, found, of_rows)

    def _of_segments(self, segments: Sequence[Segment]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for segment in segments:
            digest = self._known.get(segment.log_path) or self._of_file(segment)
            if digest:
                self._known[segment.log_path] = found[segment.base] = digest
        return found

    def _of_file(self, segment: Segment) -> bytes:
        try:
            file = self._files.open(segment.log_path, write=False)
        except FileNotFoundError:
            return b""
        digest = hashlib.sha256()
        try:
            for position in range(0, segment.end, PIECE_BYTES):
                digest.update(file.pread(min(PIECE_BYTES, segment.end - position), position))
        finally:
            file.close()
        return digest.digest()[:DIGEST_BYTES]


def first_read(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The same rows, once the first is read: from then on they are those of that moment, whatever is written."""
    first = next(rows, None)
    return chain([] if first is None else [first], rows)


def digest_of_rows(rows: Iterator[tuple[bytes, bytes]]) -> bytes:
    """Of all rows, in their order, but those that are each node's own."""
    digest = hashlib.sha256()
    for key, value in rows:
        if key[:1] not in LOCAL:
            digest.update(b"%d %d " % (len(key), len(value)))
            digest.update(key)
            digest.update(value)
    return digest.digest()[:DIGEST_BYTES]
