"""The reader of frames: bytes as they are received become frames.

Promises: bytes that are no frame raise `Malformed` or `TooLarge` and nothing else; the same frames come out, and the
same error after them, however the bytes were split; after an error nothing more is taken; what waits for the rest of a
frame is never more than was received, and never more than the limit; the work is linear in what was received, even
byte by byte.
"""

from __future__ import annotations

from typing import NoReturn

from headwater.errors import Malformed, TooLarge
from headwater.wire.frame import FIXED_BYTES, HEADER, HEADER_BYTES, KNOWN, LENGTH_BYTES, Frame, Kind

PIECED_BYTES_MIN = 512 * 1024
"""PUBLISH frames so long may be left in pieces;"""
PIECE_BYTES_MIN = 64 * 1024
"""none of which is shorter, but the last."""
PUBLISH = int(Kind.PUBLISH)
LARGE_BYTES = 8 * 1024
"""Frames so long are copied out of what was received one by one; shorter ones together, to be split then."""


class FrameReader:
    """Turns received bytes into frames."""

    __slots__ = ("_needed", "_pieces", "_pieces_bytes", "bytes_max", "error", "is_pieced", "partial")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """The longest frame that is taken; may be raised once a client is known."""
        self.is_pieced = False
        """Whether long PUBLISH frames are left in pieces: to put them together takes a while, and whoever reads them
        may do that elsewhere."""
        self._pieces: list[bytes] = []
        """What has come of such a frame before `partial`."""
        self._pieces_bytes = 0
        self.error: Malformed | TooLarge | None = None
        """What was wrong with the bytes after the last frame; every later call raises it. Look here after handling
        the frames of a call, so as not to wait for more bytes of a connection that is lost."""
        self.partial: bytearray | None = None
        """What has come of a frame that has not ended."""
        self._needed = 0  # how long the partial frame must be before it is worth another look

    @property
    def waits(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self.partial is not None

    @property
    def waiting_bytes(self) -> int:
        """How much of a frame has come that has not ended."""
        return 0 if self.partial is None else self._pieces_bytes + len(self.partial)

    def feed(self, received: bytes | memoryview) -> list[Frame]:
        """The frames that these bytes complete.

        Bytes that are no frame raise at once if no frame came before them in this call; else those frames are
        returned, and `error` says what came after them.
        """
        if self.error is not None:
            raise _alike(self.error)
        found: list[Frame] = []
        partial, begun = self.partial, b""
        if partial is not None:
            if self._pieces_bytes + len(partial) + len(received) < self._needed:
                if self.is_pieced and self._needed >= PIECED_BYTES_MIN:
                    self._take_piece(partial, received)
                else:
                    partial += received
                return []
            if self._needed >= LARGE_BYTES:
                received = self._complete(partial, memoryview(received), found)
            else:
                begun = bytes(partial)
            self.partial = None
        try:
            if begun:
                data = b"".join((begun, received))
            elif len(received) < LARGE_BYTES:
                data = bytes(received)
            else:
                rest_at = self._cut_large(memoryview(received), found)
                data = bytes(received[rest_at:])
            if data:
                self._split(data, found)
        except (Malformed, TooLarge) as error:
            self.error = _alike(error)
            if not found:
                raise
        return found

    def let_go(self) -> None:
        """Take nothing more, and hold nothing: the connection is gone."""
        self.partial = None
        self._pieces, self._pieces_bytes = [], 0
        self.error = Malformed("the connection is gone")

    def _complete(self, partial: bytearray, received: memoryview, found: list[Frame]) -> memoryview:
        """End a large frame, which was looked at when it began; answers what came behind it."""
        missing = self._needed - self._pieces_bytes - len(partial)
        if self._pieces:
            pieces = [*self._pieces, bytes(partial), bytes(received[:missing])]
            self._pieces, self._pieces_bytes = [], 0
            found.append(_pieced(pieces))
            return received[missing:]
        partial += received[:missing]
        _, kind, flags, _, number = HEADER.unpack_from(partial)
        found.append(Frame(kind, flags, number, bytes(memoryview(partial)[HEADER_BYTES:])))
        return received[missing:]

    def _take_piece(self, partial: bytearray, received: bytes | memoryview) -> None:
        """More of a long frame, which does not end it: pieces are copied once, and little ones gathered."""
        if len(partial) < PIECE_BYTES_MIN and len(received) < PIECE_BYTES_MIN:
            partial += received
            return
        if not self._pieces and HEADER.unpack_from(partial)[1] != PUBLISH:
            partial += received
            return
        if partial:
            self._pieces.append(bytes(partial))
            self._pieces_bytes += len(partial)
        if len(received) < PIECE_BYTES_MIN:
            self.partial = bytearray(received)
        else:
            self._pieces.append(bytes(received))
            self._pieces_bytes += len(received)
            self.partial = bytearray()

    def _cut_large(self, received: memoryview, found: list[Frame]) -> int:
        """Take the large frames that come first, each copied but once; answers where what is left begins."""
        at, end = 0, len(received)
        while end - at >= HEADER_BYTES:
            length, kind, flags, zero, number = HEADER.unpack_from(received, at)
            whole = LENGTH_BYTES + length
            if whole < LARGE_BYTES:
                break
            self._check(length, kind, zero)
            if end - at < whole:
                self.partial, self._needed = bytearray(received[at:]), whole
                return end
            found.append(Frame(kind, flags, number, bytes(received[at + HEADER_BYTES : at + whole])))
            at += whole
        return at

    def _check(self, length: int, kind: int, zero: int) -> None:
        """Refuse a frame for its header. It is looked at before the payload is here: nobody gets to fill memory with
        a frame that will be refused."""
        if not FIXED_BYTES <= length <= self.bytes_max - LENGTH_BYTES:
            self._refuse_length(length)
        if kind not in KNOWN:
            raise Malformed(f"a frame of kind {kind} is not known here; see docs/reference/protocol.md")
        if zero:
            raise Malformed(f"a frame has {zero} where 0 has to be; see docs/reference/protocol.md")

    def _split(self, data: bytes, found: list[Frame]) -> None:
        at, end, needed = 0, len(data), LENGTH_BYTES
        unpack, length_max = HEADER.unpack_from, self.bytes_max - LENGTH_BYTES
        # Said here, they are machine numbers where this is compiled.
        length: int
        kind: int
        zero: int
        while end - at >= HEADER_BYTES:
            length, kind, flags, zero, number = unpack(data, at)
            if zero or kind not in KNOWN or not FIXED_BYTES <= length <= length_max:
                self._check(length, kind, zero)
            whole = LENGTH_BYTES + length
            if end - at < whole:
                needed = whole
                break
            found.append(Frame(kind, flags, number, data[at + HEADER_BYTES : at + whole]))
            at += whole
        if at < end:
            self._wait(data[at:], needed)

    def _wait(self, begun: bytes, needed: int) -> None:
        """For the rest of a frame, unless the little that has come is wrong."""
        if LENGTH_BYTES <= len(begun) < HEADER_BYTES:
            needed = HEADER_BYTES
            length = int.from_bytes(begun[:LENGTH_BYTES], "little")
            if not FIXED_BYTES <= length <= self.bytes_max - LENGTH_BYTES:
                self._refuse_length(length)
        self.partial = bytearray(begun)
        self._needed = needed

    def _refuse_length(self, length: int) -> NoReturn:
        if length < FIXED_BYTES:
            raise Malformed(f"a frame of length {length} is too short to be one")
        raise TooLarge(f"a frame of {LENGTH_BYTES + length} bytes is over the limit of {self.bytes_max}")


def _pieced(pieces: list[bytes]) -> Frame:
    """A frame of pieces, of which the first has its header."""
    first = pieces[0]
    _, kind, flags, _, number = HEADER.unpack_from(first)
    return Frame(kind, flags, number, first[HEADER_BYTES:], tuple([piece for piece in pieces[1:] if piece]))


def _alike(error: Malformed | TooLarge) -> Malformed | TooLarge:
    """The same error without its traceback, which would keep alive what was received."""
    return type(error)(*error.args)
