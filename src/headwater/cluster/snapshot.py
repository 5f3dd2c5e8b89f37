"""The snapshot: a copy of a node's folder between two records, of links to files that others may fetch.

Promises: whoever fetches these files, and no more of each than counts, has the folder of a node at that position; what
the node writes meanwhile changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headwater.cluster.checkpoint import Checkpoints
from headwater.cluster.record import Position
from headwater.store import folder as folders
from headwater.store import keys, marks
from headwater.store.files import Files, parent
from headwater.store.manifest import MANIFEST
from headwater.store.mirror import Mirror
from headwater.store.state import State


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a snapshot, and how many bytes of it count: there may be more by now."""

    name: str
    bytes: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Where the folder stood, and what it had."""

    position: Position
    files: list[SnapshotFile]


def take(
    files: Files,
    path: str,
    target: str,
    streams: Mirror,
    state: State,
    checkpoints: Checkpoints,
) -> Snapshot:
    """Link a folder into a new one on the same disk; by any thread."""
    checkpoints.make(streams)  # so that little is left to sync while nothing is applied
    files.make_folder(target)
    with checkpoints.standing():
        position, counts = checkpoints.make(streams), streams.links()
        for found in counts:
            name = found.removeprefix(f"{path}/")
            files.make_folder(parent(f"{target}/{name}"))
            files.link(found, f"{target}/{name}")
        for name in _small(files, path):
            files.make_folder(parent(f"{target}/{name}"))
            files.write(f"{target}/{name}", files.read(f"{path}/{name}"))
        state.snapshot(f"{target}/{folders.STATE}")
    files.close_to_others(target, whole=True)
    listed = [SnapshotFile(found.removeprefix(f"{path}/"), size) for found, size in counts.items()]
    listed += [SnapshotFile(name, _size(files, f"{target}/{name}")) for name in _others(files, target)]
    return Snapshot(position, listed)


def _small(files: Files, path: str) -> Iterator[str]:
    """What is copied, as it is written anew each time."""
    for name in (folders.VERSION, MANIFEST, keys.KEY):
        if files.exists(f"{path}/{name}"):
            yield name
    for lake in marks.found(files, path):
        yield f"{marks.ARCHIVED}/{lake}"


def _others(files: Files, target: str) -> Iterator[str]:
    """Files of a snapshot besides the segments."""
    for name in files.list(target):
        if name in (folders.STATE, marks.ARCHIVED):
            yield from (f"{name}/{inner}" for inner in files.list(f"{target}/{name}"))
        elif name != folders.STREAMS:
            yield name


def _size(files: Files, path: str) -> int:
    file = files.open(path, write=False)
    try:
        return file.size()
    finally:
        file.close()
