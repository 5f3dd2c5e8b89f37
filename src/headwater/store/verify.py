"""Verify: walks every byte of a folder's streams and says what is wrong, where, and which messages it costs.

It only reads, and may run beside the folder's owner: what the owner has not called durable yet is not judged. Promises:
every byte of every segment is a batch whose checksums, root and offsets are right, or zeros ahead of the end, or is
in the report; offsets of a stream that no batch holds are in the report. As in recovery, bad bytes that nothing calls
durable are torn, not damage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from headwater.errors import Malformed
from headwater.store import folder as folders
from headwater.store import marks
from headwater.store import state as rows
from headwater.store.batch import BadBatch, Header, Seed, open_body, open_columns
from headwater.store.files import File, Files
from headwater.store.log import Hole, untold
from headwater.store.manifest import Listed, Manifest, found, intruders
from headwater.store.seed import seed_within
from headwater.store.segment import LOG, UNBOUNDED, Index, Segment, bases, whole_batches
from headwater.store.state import Rows
from headwater.store.streams import offset_of

PIECE_BYTES = 1 << 20
WRONG = "checksums are wrong, or no batch where one should be"


class Damage(msgspec.Struct, frozen=True):
    """A range of bytes that is not what it should be, and the messages that are gone with it."""

    file: str
    """Within the data folder."""
    start: int
    end: int
    first: int
    """The first offset that is gone; 0 if none is."""
    last: int
    reason: str
    is_known: bool = False
    """It was met before, and is recorded as a gap."""


class StreamReport(msgspec.Struct):
    """What was found in one stream."""

    root: str
    number: int
    segments: int = 0
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    first_offset: int = 0
    last_offset: int = 0
    torn_bytes: int = 0
    """Bytes that were never acknowledged, or are being written; the next open cuts them."""
    damages: list[Damage] = []
    notes: list[str] = []
    indexes: list[str] = []
    """Index files that do not match their segments: hints, and no damage; they are made again when they are used."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong that was not known before."""
        return all(damage.is_known for damage in self.damages)


class Report(msgspec.Struct):
    """What was found in a folder."""

    streams: list[StreamReport] = []
    journal_batches: int = 0
    journal_pending: int = 0
    """Batches in the journal that their streams lack; the next open appends them."""
    troubles: list[str] = []
    """What is wrong besides the streams."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong that was not known before."""
        return not self.troubles and all(stream.is_whole for stream in self.streams)


class KnownStream(NamedTuple):
    """What the state knows about a stream."""

    durable: int = 0
    """An offset that was durable, as far as the state goes."""
    holes: Sequence[Hole] = ()


Journaled = dict[str, dict[int, int]]
"""Per root, the first and the last offsets of the batches in the journal."""


def segment_bytes(files: Files, folder: str) -> int:
    """How many bytes there are to walk."""
    total = 0
    for name in files.list(f"{folder}/streams"):
        path = f"{folder}/streams/{name}"
        for base in bases(files, path):
            try:
                file = files.open(Segment(path, base).log_path, write=False)
            except FileNotFoundError:
                continue  # its owner deletes what got old
            total += file.size()
            file.close()
    return total


def verify(files: Files, folder: str, known: Callable[[int], KnownStream], on_bytes: Callable[[int], None]) -> Report:
    """Walk a folder; `known` answers what the state says about a stream, `on_bytes` is called with each step."""
    report = Report()
    report.troubles += marks.troubles(files, folder)
    seed: Seed | None
    try:
        seed = folders.check(files, folder, is_older_fine=True)
    except Malformed as error:
        report.troubles.append(error.args[0])
        seed = seed_within(files, folder)
    if seed is None:
        return report  # without it every header would seem damaged
    streams = _streams(files, folder, seed, report)
    numbers = [stream.number for stream, _ in streams]
    # Before the segments are read, so that a running owner has by then written what is called durable here.
    durable = _watermarks(files, folder, numbers)
    journaled = _journaled(files, folder, seed, report)
    for listed, there in streams:
        knows = known(listed.number)
        evidence = max(knows.durable, durable[listed.number], listed.rolled_upto)
        walk = _StreamWalk(
            files, folder, seed, listed, there, knows._replace(durable=evidence), journaled.get(listed.root, {})
        )
        report.streams.append(walk.run(on_bytes))
    ends = {stream.root: stream.last_offset for stream in report.streams}
    report.journal_pending = sum(first > ends.get(root, 0) for root in journaled for first in journaled[root])
    report.streams.sort(key=lambda stream: stream.root)
    return report


def _streams(files: Files, folder: str, seed: Seed, report: Report) -> list[tuple[Listed, list[int]]]:
    """Each stream as it should be, and the segments that are there."""
    # In this order, as a running owner lists what it deletes before it does.
    there, strangers = found(files, folder)
    manifest = Manifest(files, folder)
    listed = manifest.read()
    if manifest.damage and there and folders.is_listed(files, folder):
        report.troubles.append(f"manifest {manifest.damage}: what is missing, and it alone knew of, cannot be told")
    segments = {}
    for stream in [one for one in there if one.number not in manifest.removed]:
        for base in intruders(files, folder, seed, stream, listed.get(stream.number)):
            stream.segments.discard(base)
            strangers.append(f"{stream.folder}/{base:020d}{LOG}")
        if manifest.adopt(stream):
            segments[stream.number] = sorted(base for base in stream.segments if base >= listed[stream.number].first)
        else:
            strangers.append(stream.folder)
    report.troubles += [f"streams/{name} is no stream or segment of ours" for name in strangers]
    for number in listed.keys() - segments.keys():
        report.troubles.append(f"streams/{listed[number].folder} is missing")
    return [(listed[number], segments.get(number, [])) for number in sorted(listed)]


def _watermarks(files: Files, folder: str, numbers: Sequence[int]) -> dict[int, int]:
    path = f"{folder}/watermarks"
    if not files.exists(path):
        return dict.fromkeys(numbers, 0)
    cells = files.cells(path, write=False)
    try:
        return {number: offset_of(cells.get(number)) for number in numbers}
    finally:
        cells.close()


def _journaled(files: Files, folder: str, seed: Seed, report: Report) -> Journaled:
    found: Journaled = {}
    path = f"{folder}/journal"
    if files.exists(path):
        file = files.open(path, write=False)
        try:
            for _, header, _ in whole_batches(seed, file, 0, None):
                found.setdefault(header.root, {})[header.first_offset] = header.last_offset
                report.journal_batches += 1
        finally:
            file.close()
    return found


def quarantine(files: Files, folder: str, report: Report) -> Rows:
    """Copy what is bad into the folder's quarantine; the rows that make it known. The caller owns the folder.

    A wrong index is removed: it is made again from its segment when it is needed.
    """
    changed: Rows = {}
    for stream in report.streams:
        for index in stream.indexes:
            files.remove(f"{folder}/{index}")
        for damage in stream.damages:
            if damage.is_known:
                continue
            _copy(files, folder, stream.number, damage)
            if damage.first:
                key = rows.key_offset(rows.GAP, stream.number, damage.first)
                changed[key] = rows.pack((damage.last, damage.reason))
    return changed


def _copy(files: Files, folder: str, number: int, damage: Damage) -> None:
    if damage.end == damage.start:
        return
    files.make_folder(f"{folder}/quarantine")
    base = int(damage.file.rpartition("/")[2].partition(".")[0])
    file = files.open(f"{folder}/{damage.file}", write=False)
    try:
        bad = file.pread(damage.end - damage.start, damage.start)
    finally:
        file.close()
    name = f"{number}-{damage.first}-{damage.last}-at-{base}-{damage.start}"
    files.write(f"{folder}/quarantine/{name}", bad)


class _StreamWalk:
    """The walk over one stream."""

    def __init__(
        self,
        files: Files,
        folder: str,
        seed: Seed,
        listed: Listed,
        there: Sequence[int],
        known: KnownStream,
        journaled: Mapping[int, int],
    ) -> None:
        self._files = files
        self._name = f"streams/{listed.folder}"
        self._path = f"{folder}/{self._name}"
        self._there = there
        self._seed = seed
        self._holes = known.holes
        self._journaled = journaled
        self._evidence = known.durable
        """The highest offset that something calls durable."""
        self._expected = listed.first
        """The offset that should come next."""
        self._suspects: list[Damage] = []
        self.report = StreamReport(listed.root, listed.number, first_offset=listed.first)

    def run(self, on_bytes: Callable[[int], None]) -> StreamReport:
        tail: Damage | None = Damage(self._name, 0, 0, 0, 0, "") if not self._there else None
        for place, base in enumerate(self._there):
            following = self._there[place + 1] if place + 1 < len(self._there) else None
            segment = Segment(self._path, base)
            self._begin(base)
            try:
                file = self._files.open(segment.log_path, write=False)
            except FileNotFoundError:
                self.report.notes.append(f"segment {base} was deleted meanwhile")
                self._expected = following or self._expected
                continue
            try:
                tail = self._walk_segment(segment, file, following, on_bytes)
            finally:
                file.close()
            self.report.segments += 1
        self._end(tail)
        return self.report

    def _begin(self, base: int) -> None:
        if base > self._expected:
            self._suspect(base, 0, 0, base - 1, "the segment before is missing")
            self._expected = base

    def _walk_segment(
        self, segment: Segment, file: File, next_base: int | None, on_bytes: Callable[[int], None]
    ) -> Damage | None:
        """Answers what follows the last good batch of the last segment."""
        index = Index()
        bad: list[tuple[int, int]] = []
        end = 0
        oddity = ""
        for place, header, stored in whole_batches(self._seed, file, 0, None):
            why_not = self._why_not(header, stored, next_base)
            if why_not:
                oddity = oddity or why_not
                continue
            if place > end or header.first_offset > self._expected:
                bad.append((end, place))
                self._suspect(segment.base, end, place, header.first_offset - 1, oddity or WRONG)
            self._accept(header, segment, file, place)
            index.add(header.first_offset, place, header.time_us)
            on_bytes(place + header.bytes - end)
            end, oddity = place + header.bytes, ""
        size = file.size()
        on_bytes(size - end)
        rest = _last_nonzero(file, end, size)
        if rest > end:
            bad.append((end, rest))
        if next_base is not None and (rest > end or self._expected < next_base):
            self._suspect(segment.base, end, rest, next_base - 1, oddity or WRONG)
            self._expected = next_base
        self._check_index(segment, index, bad, next_base is None)
        return Damage(self._log(segment.base), end, rest, 0, 0, oddity or WRONG) if next_base is None else None

    def _why_not(self, header: Header, stored: bytes, next_base: int | None) -> str:
        """What is wrong with a batch whose checksums are right; empty if nothing is."""
        if header.root != self.report.root:
            return f'a batch of root "{header.root}"'
        if header.first_offset < self._expected:
            return f"a batch from {header.first_offset} on, after one that ends with {self._expected - 1}"
        if next_base is not None and header.last_offset >= next_base:
            return f"a batch up to {header.last_offset}, while the next segment begins with {next_base}"
        try:
            open_columns(header, open_body(header, stored))
        except BadBatch as error:
            return str(error)
        return ""

    def _accept(self, header: Header, segment: Segment, file: File, place: int) -> None:
        report = self.report
        report.batches += 1
        report.messages += header.count
        report.bytes += header.bytes
        self._expected = header.last_offset + 1
        self._evidence = max(self._evidence, header.durable)
        start, end = place + header.header_bytes + header.body_bytes, place + header.bytes
        if end > start and file.pread(end - start, start).strip(b"\0"):
            self._add(Damage(self._log(segment.base), start, end, 0, 0, "stray bytes after a batch"))

    # The index

    def _check_index(self, segment: Segment, found: Index, bad: Sequence[tuple[int, int]], is_last: bool) -> None:
        """It is a hint that is checked at use and made again, so nothing that is wrong with it is damage."""
        if not self._files.exists(segment.index_path):
            if not is_last and len(found):
                self.report.notes.append(f"segment {segment.base} has no index; it is made when it is needed")
            return
        data = self._files.read(segment.index_path)
        stored = Index.unpack(data)
        if not stored.keep_possible(segment.base, UNBOUNDED, UNBOUNDED):
            self._note_index(segment, len(stored), "it cannot be right")
            return
        places = {offset: place for place, offset in enumerate(found.offsets)}
        right = 0
        entries = zip(stored.offsets, stored.positions, stored.times, strict=True)
        for entry, (offset, position, time_us) in enumerate(entries):
            place = places.get(offset)
            if place is None:
                if offset < self._expected and not any(start <= position < end for start, end in bad):
                    self._note_index(segment, entry, f"offset {offset} is not at {position}")
                    return
            elif (found.positions[place], found.times[place]) != (position, time_us):
                self._note_index(segment, entry, f"the place or time of offset {offset} is wrong")
                return
            else:
                right += 1
        if right < len(found) and not is_last:
            lacking = len(found) - right
            self.report.notes.append(f"the index of segment {segment.base} lacks {lacking} batches; found without it")

    def _note_index(self, segment: Segment, entry: int, reason: str) -> None:
        file = self._name + Segment("", segment.base).index_path
        self.report.indexes.append(file)
        self.report.notes.append(
            f"{file} does not match its segment (entry {entry}: {reason}); no message is lost, it is made again at use"
        )

    # Findings

    def _log(self, base: int) -> str:
        return self._name + Segment("", base).log_path

    def _suspect(self, base: int, start: int, end: int, last: int, reason: str) -> None:
        """Bytes that are no batch, and the offsets up to `last` that are missing with them."""
        first = self._expected if last >= self._expected else 0
        self._suspects.append(Damage(self._log(base), start, end, first, last if first else 0, reason))

    def _end(self, tail: Damage | None) -> None:
        """Tell what was acknowledged and went bad from what was torn, and from what the journal has."""
        report = self.report
        for damage in self._suspects:
            if damage.first and self._journaled_upto(damage.first) >= damage.last:
                report.notes.append(f"messages {damage.first} to {damage.last} are in the journal only, so far")
            elif damage.first > self._evidence:
                report.torn_bytes += damage.end - damage.start
            else:
                self._add(damage)
        report.last_offset = max(0, self._expected - 1)
        if tail is None:
            return
        upto = self._journaled_upto(self._expected)
        if upto >= self._expected:
            report.notes.append(f"messages {self._expected} to {upto} are in the journal only, so far")
        if self._evidence > upto:
            reason = tail.reason if tail.end > tail.start else "acknowledged, and missing at the end of the stream"
            self._add(msgspec.structs.replace(tail, first=upto + 1, last=self._evidence, reason=reason))
        else:
            report.torn_bytes += tail.end - tail.start

    def _journaled_upto(self, first: int) -> int:
        """The last offset that the journal has without a break from this one on."""
        while first in self._journaled:
            first = self._journaled[first] + 1
        return first - 1

    def _add(self, damage: Damage) -> None:
        is_known = damage.first > 0 and not untold(self._holes, damage.first, damage.last)
        self.report.damages.append(msgspec.structs.replace(damage, is_known=is_known))


def _last_nonzero(file: File, start: int, end: int) -> int:
    """Where the zeros begin that reach up to the end."""
    while end > start:
        piece_start = max(start, end - PIECE_BYTES)
        piece = file.pread(end - piece_start, piece_start).rstrip(b"\0")
        if piece:
            return piece_start + len(piece)
        end = piece_start
    return start
