"""Copies: what a node hands out of its folder to a node that joins, or is too far behind.

A copy is a snapshot under an id, in a folder of its own within the node's. Whoever takes it asks for pieces of files,
each by offset, in whatever order and as often as it likes; so what was cut off goes on where it was. Between nodes:

    verb     asked                                 answered
    copy     -                                     an array of MessagePack: id, [position, [[name, bytes], ...]]
    piece    [id, place of the file, offset, n]    CRC32C of the piece (u32, little-endian), the piece
    digest   [id, place of the file]               16 bytes: of the SHA-256 of what counts of the file
    copied   [id]                                  -; the copy is needed no more

A piece or digest of a copy that is no more is answered with nothing.
Promises: a copy costs links, and the disk room of what the node deletes meanwhile; there are `COPIES_MAX` at most, none
that nobody has asked for in `UNUSED_S`, and none of an earlier process.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import google_crc32c
import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.cluster.engine import Handler
from headwater.cluster.record import DIGEST_BYTES
from headwater.cluster.snapshot import Snapshot
from headwater.errors import HeadwaterError, Malformed, Unavailable
from headwater.store.files import File, Files

FOLDER = "copies"
COPIES_MAX = 2
UNUSED_S = 120.0
PIECE_BYTES = 512 << 10
"""What is asked for at once: half of what the engine takes by default."""
ID_BYTES = 8
CRC = struct.Struct("<I")
COPY, PIECE, DIGEST, COPIED = "copy", "piece", "digest", "copied"


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A copy that may be fetched."""

    copy: str
    snapshot: Snapshot


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """What is asked for of a copy."""

    copy: str
    place: int = 0
    offset: int = 0
    length: int = 0


class _Copy:
    """One that is handed out."""

    def __init__(self, path: str, snapshot: Snapshot, asked_us: int) -> None:
        self.path = path
        self.snapshot = snapshot
        self.asked_us = asked_us
        self.digests: dict[int, bytes] = {}
        self.open: tuple[int, File] | None = None
        """The file that was asked for last, by its place."""
        self.lock = threads.Lock()


class Copies:
    """Those of one node."""

    def __init__(self, path: str, files: Files, clock: Clock) -> None:
        """`path` is the node's folder; whoever makes this owns it, or is about to."""
        self.take: Callable[[str], Snapshot] | None = None
        """How a snapshot is taken: as whoever has the folder open says, and None while nobody has."""
        self._folder = f"{path}/{FOLDER}"
        self._files = files
        self._clock = clock
        self._lock = threads.Lock()
        self._copies: dict[str, _Copy] = {}
        self._taking = 0
        files.remove_tree(self._folder)

    def handlers(self) -> dict[str, Handler]:
        """Answers to what other nodes ask, by verb."""
        return {COPY: self.offer, PIECE: self.piece, DIGEST: self.digest, COPIED: self.forget}

    # What is asked

    def offer(self, _: bytes) -> bytes:
        """Take a snapshot, and say what there is to fetch; Unavailable (503) if that cannot be now."""
        take = self.take
        if take is None:
            raise Unavailable("this node has no folder to copy at the moment")
        self.sweep()
        with self._lock:
            if len(self._copies) + self._taking >= COPIES_MAX:
                raise Unavailable(f"{COPIES_MAX} copies of this node are being fetched already; try again in a while")
            self._taking += 1
        copy = self._files.secret(ID_BYTES).hex()
        path = f"{self._folder}/{copy}"
        try:
            made = _Copy(path, take(path), self._clock.monotonic_us())
        except OSError as error:
            self._files.remove_tree(path)
            raise Unavailable(f"no copy of this node can be made: {error}") from error
        except HeadwaterError:
            self._files.remove_tree(path)
            raise
        finally:
            with self._lock:
                self._taking -= 1
        with self._lock:
            self._copies[copy] = made
        return msgspec.msgpack.encode(Offer(copy, made.snapshot))

    def piece(self, data: bytes) -> bytes:
        """A piece of a file, with its checksum."""
        asked = _asked(data)
        copy = self._find(asked)
        if copy is None:
            return b""
        wanted = copy.snapshot.files[asked.place]
        length = min(asked.length, PIECE_BYTES, wanted.bytes - asked.offset)
        if asked.offset < 0 or length < 0:
            raise Malformed(f"{wanted.name} has {wanted.bytes} bytes in this copy")
        with copy.lock:
            piece = self._file(copy, asked.place).pread(length, asked.offset)
        if len(piece) < length:
            raise Unavailable(f"{wanted.name} is shorter here than it was; take another copy")
        return CRC.pack(google_crc32c.value(piece)) + piece

    def digest(self, data: bytes) -> bytes:
        """The digest of a whole file."""
        asked = _asked(data)
        copy = self._find(asked)
        if copy is None:
            return b""
        known = copy.digests.get(asked.place)
        if known is None:
            wanted = copy.snapshot.files[asked.place]
            known = copy.digests[asked.place] = digest_of(self._files, f"{copy.path}/{wanted.name}", wanted.bytes)
            copy.asked_us = self._clock.monotonic_us()
        return known

    def forget(self, data: bytes) -> bytes:
        """Remove a copy."""
        with self._lock:
            copy = self._copies.pop(_asked(data).copy, None)
        if copy is not None:
            self._remove(copy)
        return b""

    def _find(self, asked: Asked) -> _Copy | None:
        copy = self._copies.get(asked.copy)
        if copy is None:
            return None
        if not 0 <= asked.place < len(copy.snapshot.files):
            raise Malformed(f"a copy has {len(copy.snapshot.files)} files")
        copy.asked_us = self._clock.monotonic_us()
        return copy

    def _file(self, copy: _Copy, place: int) -> File:
        """A file of a copy, open; for whoever has its lock."""
        if copy.open is not None and copy.open[0] == place:
            return copy.open[1]
        self._shut(copy)
        file = self._files.open(f"{copy.path}/{copy.snapshot.files[place].name}", write=False)
        copy.open = (place, file)
        return file

    def _shut(self, copy: _Copy) -> None:
        if copy.open is not None:
            copy.open[1].close()
            copy.open = None

    # Removing

    def sweep(self) -> None:
        """Remove copies that nobody has asked for in a while."""
        since_us = self._clock.monotonic_us() - round(UNUSED_S * SECOND_US)
        with self._lock:
            unused = [name for name, copy in self._copies.items() if copy.asked_us < since_us]
            gone = [self._copies.pop(name) for name in unused]
        for copy in gone:
            self._remove(copy)

    def _remove(self, copy: _Copy) -> None:
        with copy.lock:
            self._shut(copy)
        self._files.remove_tree(copy.path)

    def close(self) -> None:
        """Hand out nothing more, and leave nothing of it."""
        self.take = None
        with self._lock:
            gone, self._copies = self._copies, {}
        for copy in gone.values():
            self._remove(copy)


def digest_of(files: Files, path: str, length: int) -> bytes:
    """Of the first bytes of a file; OSError if they cannot be read."""
    digest = hashlib.sha256()
    file = files.open(path, write=False)
    try:
        for offset in range(0, length, PIECE_BYTES):
            digest.update(file.pread(min(PIECE_BYTES, length - offset), offset))
    finally:
        file.close()
    return digest.digest()[:DIGEST_BYTES]


def _asked(data: bytes) -> Asked:
    try:
        return msgspec.msgpack.decode(data, type=Asked)
    except msgspec.MsgspecError as error:
        raise Malformed(f"what is asked of a copy cannot be read: {error}") from None
