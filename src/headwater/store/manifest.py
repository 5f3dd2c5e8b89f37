"""The manifest: what a folder should hold, so that what is missing is told from what never was and what was deleted.

    0c2f9a41 {"stream":7,"root":"home","first":1}
    8e10d3b7 {"stream":7,"root":"home","first":1,"segment":48211}
    f3a57c09 {"stream":7,"root":"home","first":48211}
    17e6b2d4 {"stream":7,"root":"home","first":50007,"removed":true}

A file of lines, each with the CRC32C of what follows it: a stream was made; a segment of it was made; its segments
before this offset are being deleted; its root was removed, and all that is left of it is garbage. Lines are only added,
and each holds by itself: of two, the higher `first` counts, and what was removed stays so, so their order does not
matter, nor does a line that stands there twice. When most of them say nothing any more, the file is written anew.

What is promised: a stream's line is durable before a message of it is, and after its folder; a segment's line comes
after its file, and may be lost with the power; a `first` is durable before anything is deleted. So whatever a line
names was there, and is missing if it is not; and what no line names is there for all to see. It costs nothing per
message. Of the roots that were removed, the last `REMOVED_MAX` streams are remembered: no number is used twice, and a
root that comes again goes on where it ended, so that nobody who kept a place in it takes new messages for old ones.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

import msgspec

from headwater import threads
from headwater.errors import TooManyFiles
from headwater.store.batch import Seed, checksum
from headwater.store.files import File, Files
from headwater.store.segment import Segment, bases, header_at

MANIFEST = "manifest"
LINES_SPARE = 256
"""Lines that may say nothing any more, besides as many as say something."""
REMOVED_MAX = 10_000
"""Streams of removed roots that are remembered; beyond it those that were made first are forgotten."""

SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-.")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one line says."""

    stream: int
    root: str
    first: int
    segment: int = 0
    """The first offset of a segment that was made; 0 if it is about none."""
    removed: bool = False
    """Whether its root was removed; a root of this name that is made anew begins with `first`."""


class Listed(msgspec.Struct):
    """A stream as it should be, or as it is found."""

    number: int
    root: str
    first: int = 1
    """Where it begins: what is before was deleted on purpose."""
    segments: set[int] = msgspec.field(default_factory=set)
    """First offsets of its segments."""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.number}-{quote(self.root)}"

    @property
    def rolled_upto(self) -> int:
        """An offset that was durable: a segment is made when the one before is complete."""
        return max(self.segments, default=self.first) - 1

    def missing(self, there: Sequence[int], end: int) -> list[tuple[int, int]]:
        """First and last offsets of what is missing up to an end, if these segments are there."""
        starts = sorted({self.first, *self.segments, *(base for base in there if base >= self.first)})
        parts: list[tuple[int, int]] = []
        for start, following in zip(starts, [*starts[1:], end + 1], strict=True):
            if start in there or start >= following:
                continue
            if parts and parts[-1][1] == start - 1:
                start = parts.pop()[0]
            parts.append((start, following - 1))
        return parts


Streams = dict[int, Listed]
"""By number."""


def quote(root: str) -> str:
    """A root as part of a folder's name."""
    return "".join(chr(byte) if chr(byte) in SAFE else f"={byte:02X}" for byte in root.encode())


def unquote(name: str) -> str:
    """The root that `quote` was given."""
    first, *rest = name.split("=")
    return (first.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest)).decode()


def found(files: Files, folder: str) -> tuple[list[Listed], list[str]]:
    """What a folder holds, as it lies there; and the names among the streams that are none."""
    streams, strangers = [], []
    for name in files.list(f"{folder}/streams"):
        number, _, quoted = name.partition("-")
        try:
            stream = Listed(int(number), unquote(quoted))
        except ValueError:
            strangers.append(name)
            continue
        if stream.folder != name or stream.number < 1:
            strangers.append(name)
            continue
        stream.segments.update(bases(files, f"{folder}/streams/{name}"))
        stream.first = min(stream.segments, default=1)
        streams.append(stream)
    return sorted(streams, key=lambda stream: stream.number), strangers


def intruders(files: Files, folder: str, seed: Seed, stream: Listed, listed: Listed | None) -> set[int]:
    """Segments that are there, are not listed, and do not begin with the offset that they are named by: a segment that
    was made, and whose line was lost, does."""
    fresh = stream.segments - listed.segments if listed is not None else stream.segments
    return {base for base in fresh if not _begins_with(files, f"{folder}/streams/{stream.folder}", seed, base)}


def _begins_with(files: Files, path: str, seed: Seed, base: int) -> bool:
    try:
        file = files.open(Segment(path, base).log_path, write=False)
    except FileNotFoundError:  # its owner deleted it meanwhile
        return False
    try:
        header = header_at(seed, file, 0)
    finally:
        file.close()
    return header is None or header.first_offset == base


class Manifest:
    """The file; all but `read` is for the owner of the folder, in the thread that commits. Another one may note
    segments, of a stream that much is appended to, and streams that are new."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.path = f"{folder}/{MANIFEST}"
        self._file: File | None = None
        self._lock = threads.RLock()
        """Held by whoever changes it."""
        self._end = 0
        self._lines = 0
        self._lines_max = 0
        """When to look whether most of them say nothing."""
        self.streams: Streams = {}
        self.removed: Streams = {}
        """Those whose roots were removed."""
        self.damage = ""
        """What is wrong with the file; empty if nothing is."""
        self.is_behind = False
        """Whether something depends on a line that is not durable yet."""
        self._is_doubtful = False
        """Whether it is to be written anew: a write or a sync failed, which is not repeated, or it is too long."""

    def read(self) -> Streams:
        """What it says, from the start."""
        self.streams, self.removed, self._lines, self.damage = {}, {}, 0, ""
        try:
            data = self._files.read(self.path)
        except FileNotFoundError:
            self.damage = "is missing"
            return self.streams
        self._end = len(data)
        *lines, torn = data.split(b"\n")
        bad = 0
        good_upto = 0
        for place, text in enumerate(lines):
            line = _parse(text)
            if line is None:
                bad += 1
            else:
                good_upto = place + 1
                self._take(line)
        self._lines = len(lines)
        # A line that was being added when the power went is the last, and costs nothing.
        damaged = bad - (len(lines) - good_upto)
        if damaged:
            self.damage = f"has {damaged} damaged lines"
        self._is_doubtful = bad > 0 or bool(torn)
        return self.streams

    def _take(self, line: Record) -> None:
        if line.removed or line.stream in self.removed:
            self.streams.pop(line.stream, None)
            gone = self.removed.setdefault(line.stream, Listed(line.stream, line.root))
            gone.first = max(gone.first, line.first)
            return
        stream = self.streams.setdefault(line.stream, Listed(line.stream, line.root))
        if line.first > stream.first:
            stream.first = line.first
            stream.segments = {base for base in stream.segments if base >= line.first}
        if line.segment >= stream.first:
            stream.segments.add(line.segment)

    def adopt(self, stream: Listed) -> bool:
        """List a stream, or segments of it, that are there; whether it is the one of this number and root."""
        known = self.streams.get(stream.number)
        if stream.number in self.removed:
            return False
        if known is None and all(other.root != stream.root for other in self.streams.values()):
            known = self.streams[stream.number] = Listed(stream.number, stream.root, stream.first)
            self._is_doubtful = True
        if known is None or known.root != stream.root:
            return False
        fresh = {base for base in stream.segments if base >= known.first} - known.segments
        known.segments |= fresh
        self._is_doubtful |= bool(fresh)
        return True

    def settle(self, *, anew: bool) -> None:
        """Make it durable as it is known now, and be ready to add to it; `anew` if the file cannot be trusted."""
        if anew or self.damage or self._is_doubtful or self._is_long():
            self._write_anew()
        else:
            self._open().datasync()

    def list_only(self, streams: Sequence[Listed]) -> None:
        """Have these listed as they are, and no others, besides those that were removed; durable with `settle`."""
        self.streams = {stream.number: stream for stream in streams}
        self._is_doubtful = True

    @property
    def number(self) -> int:
        """The number of the next stream; none is used twice."""
        return 1 + max((*self.streams, *self.removed), default=0)

    def begins(self, root: str) -> int:
        """The first offset of a root that is made now: after those that it had before it was removed."""
        return max((gone.first for gone in self.removed.values() if gone.root == root), default=1)

    def add(self, number: int, root: str, segment: int = 0, first: int = 1) -> None:
        """Note a stream that was made, or a segment of it; durable with the next `sync`."""
        with self._lock:
            known = self.streams.get(number)
            self._add(Record(number, root, max(first, known.first if known is not None else 1), segment))
            self.is_behind |= known is None

    def add_new(self, streams: Sequence[Listed]) -> None:
        """Note streams that were made, durably; by any thread. If it raises, it has to be tried again before anything
        is appended to one of them (`is_behind`)."""
        with self._lock:
            for stream in streams:
                self._add(Record(stream.number, stream.root, stream.first))
        try:
            self.sync()
        except BaseException:
            self.is_behind = True
            raise

    def _add(self, line: Record) -> None:
        self._take(line)
        if not self._is_doubtful:
            data = _format(line)
            try:
                self._open().pwritev([data], self._end)
            except (OSError, TooManyFiles):
                self._is_doubtful = True
            self._end += len(data)
            self._lines += 1
            self._is_doubtful |= self._is_long()

    def sync(self) -> None:
        """Make all that was noted durable."""
        with self._lock:
            if not self._is_doubtful:
                try:
                    self._open().datasync()
                except (OSError, TooManyFiles):
                    self._is_doubtful = True
            if self._is_doubtful:
                self._write_anew()
            self.is_behind = False

    def move_first(self, number: int, first: int) -> None:
        """Durably, before a stream's segments up to here are deleted."""
        stream = self.streams[number]
        if first > stream.first:
            self.is_behind = True
            self.add(number, stream.root, first=first)
            self.sync()

    def remove(self, number: int, first: int) -> None:
        """Durably: the root of a stream is no more, nor is anything of it. If it raises because the disk is full, or
        no file can be opened, nothing has changed; otherwise only the next process can tell."""
        stream = self.streams[number]
        self.is_behind = True
        self._add(Record(number, stream.root, first, removed=True))
        is_written = not self._is_doubtful
        try:
            self.sync()
        except (OSError, TooManyFiles) as error:
            del self.removed[number]
            self.streams[number] = stream
            self._is_doubtful = True
            if is_written:
                raise OSError(errno.EIO, f"{self.path} could not be made durable ({error})") from error
            raise

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_long(self) -> bool:
        if self._lines > self._lines_max:
            needed = sum(1 + len(stream.segments) for stream in self.streams.values()) + len(self.removed)
            self._lines_max = 2 * needed + LINES_SPARE
        return self._lines > self._lines_max

    def _write_anew(self) -> None:
        self.close()
        for number in sorted(self.removed)[:-REMOVED_MAX]:
            del self.removed[number]
        lines = [_format(line) for stream in self.streams.values() for line in _lines_of(stream)]
        lines += [_format(Record(gone.number, gone.root, gone.first, removed=True)) for gone in self.removed.values()]
        self._files.write(self.path, b"".join(lines))
        self._is_doubtful, self.is_behind, self.damage = False, False, ""
        self._lines, self._end = len(lines), sum(map(len, lines))

    def _open(self) -> File:
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file


def list_found(files: Files, folder: str) -> None:
    """Give a folder that never had a manifest one that names what is there."""
    manifest = Manifest(files, folder)
    for stream in found(files, folder)[0]:
        manifest.adopt(stream)
    manifest.settle(anew=True)
    manifest.close()


def _lines_of(stream: Listed) -> Iterator[Record]:
    yield Record(stream.number, stream.root, stream.first)
    for base in sorted(stream.segments):
        yield Record(stream.number, stream.root, stream.first, base)


def _format(line: Record) -> bytes:
    text = msgspec.json.encode(line)
    return b"%08x %b\n" % (checksum(text), text)


def _parse(text: bytes) -> Record | None:
    crc, _, content = text.partition(b" ")
    if crc != b"%08x" % checksum(content):
        return None
    try:
        return msgspec.json.decode(content, type=Record)
    except ValueError:
        return None
