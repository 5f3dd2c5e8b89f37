"""Snapshots of the state: a few copies of it, taken while it is in use, for `headwater restore --state`.

A snapshot is a folder with RocksDB's files and one of ours that lists them with their checksums. The files are copies
and no links to those in use, lest what spoils the one spoil the other. A table never changes, so the next snapshot
shares the copy of the one before it: what is copied is what is new. A snapshot gets its name when all of it is on disk.
"""

from __future__ import annotations

import google_crc32c
import msgspec

from headwater.errors import Failed
from headwater.store.batch import checksum
from headwater.store.files import Files
from headwater.store.rocks import RocksState

FOLDER = "snapshots"
LIST = "SNAPSHOT"
TABLE = ".sst"
TAKING = "taking"
MAKING = "making"
PIECE_BYTES = 1 << 20


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a snapshot."""

    name: str
    size: int
    crc: int


class Snapshot(msgspec.Struct, frozen=True):
    """What the list says."""

    number: int
    """The last write to the state that is in it for certain."""
    time_us: int
    of: str
    """Which RocksDB it was taken of: table names are used once in each."""
    files: list[SnapshotFile]


class Listed(msgspec.Struct, frozen=True):
    """A list as it is stored."""

    crc: int
    snapshot: msgspec.Raw


def taken(files: Files, folder: str) -> list[str]:
    """The names of the snapshots, newest first."""
    return sorted((name for name in files.list(f"{folder}/{FOLDER}") if name.isdigit()), reverse=True)


def read(files: Files, folder: str, name: str) -> Snapshot | None:
    """What a snapshot says of itself; None if that cannot be read."""
    try:
        listed = msgspec.json.decode(files.read(f"{folder}/{FOLDER}/{name}/{LIST}"), type=Listed)
        if checksum(bytes(listed.snapshot)) != listed.crc:
            return None
        return msgspec.json.decode(listed.snapshot, type=Snapshot)
    except (OSError, msgspec.DecodeError):
        return None


def is_whole(files: Files, folder: str, name: str, snapshot: Snapshot) -> bool:
    """Whether every file is as it was written."""
    for entry in snapshot.files:
        path = f"{folder}/{FOLDER}/{name}/{entry.name}"
        try:
            if _checksum(files, path) != (entry.size, entry.crc):
                return False
        except OSError:
            return False
    return True


def newest_whole(files: Files, folder: str) -> tuple[str, Snapshot] | None:
    """The newest snapshot of which every byte is right."""
    for name in taken(files, folder):
        snapshot = read(files, folder, name)
        if snapshot is not None and is_whole(files, folder, name, snapshot):
            return name, snapshot
    return None


def take(files: Files, folder: str, state: RocksState, now_us: int, kept: int) -> Snapshot | None:
    """Take one, and drop the oldest beyond `kept`; None if nothing was written since the last. In any thread but one
    that others wait for: it takes as long as copying what is new."""
    place = f"{folder}/{FOLDER}"
    names = taken(files, folder)
    before = read(files, folder, names[0]) if names else None
    number = state.number
    if before is not None and before.number >= number:
        return None
    files.make_folder(place)
    taking, making = f"{place}/{TAKING}", f"{place}/{MAKING}"
    files.remove_tree(taking)
    files.remove_tree(making)
    try:
        state.snapshot(taking)
        files.make_folder(making)
        snapshot = Snapshot(number, now_us, _identity(files, state.path), [])
        shared = before if before is not None and before.of == snapshot.of else None
        for name in files.list(taking):
            snapshot.files.append(_copy(files, taking, making, name, shared, f"{place}/{names[0]}" if names else ""))
        body = msgspec.json.encode(snapshot)
        # Which syncs the folder, with the names of all others in it.
        files.write(f"{making}/{LIST}", msgspec.json.encode(Listed(checksum(body), msgspec.Raw(body))))
        files.rename(making, f"{place}/{number:020d}")
        files.sync_folder(place)
    except OSError as error:
        raise Failed(f"no snapshot of the state could be made ({error})") from error
    finally:
        files.remove_tree(taking)
        files.remove_tree(making)
    for name in taken(files, folder)[max(1, kept) :]:
        files.remove_tree(f"{place}/{name}")
    return snapshot


def _identity(files: Files, path: str) -> str:
    try:
        return files.read(f"{path}/IDENTITY").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _copy(files: Files, source: str, target: str, name: str, before: Snapshot | None, place: str) -> SnapshotFile:
    """A file of a snapshot: the last one's copy of the same table, or a copy of its own."""
    if before is not None and before.of and name.endswith(TABLE):
        for entry in before.files:
            if entry.name == name:
                files.link(f"{place}/{name}", f"{target}/{name}")
                return entry
    read, write = files.open(f"{source}/{name}", write=False), files.open(f"{target}/{name}", create=True)
    try:
        position, crc = 0, 0
        while piece := read.pread(PIECE_BYTES, position):
            write.pwritev([piece], position)
            crc = google_crc32c.extend(crc, piece)
            position += len(piece)
        write.datasync()
    finally:
        read.close()
        write.close()
    return SnapshotFile(name, position, crc)


def _checksum(files: Files, path: str) -> tuple[int, int]:
    file = files.open(path, write=False)
    try:
        position, crc = 0, 0
        while piece := file.pread(PIECE_BYTES, position):
            crc = google_crc32c.extend(crc, piece)
            position += len(piece)
    finally:
        file.close()
    return position, crc
