"""Adoption: an ordinary folder becomes that of a cluster's first node, and a node's folder an ordinary one.

Promises: a folder that was adopted has all that it had, and is opened by the rules of a cluster from then on; one that
has left is an ordinary folder again, with all that the cluster had when the node was closed. If either is interrupted,
the folder is what it was before, and the same call does it.
"""

from __future__ import annotations

import os

from headwater.clock import Clock, SystemClock
from headwater.cluster import checkpoint
from headwater.cluster.checkpoint import Synced
from headwater.cluster.replica import Replica
from headwater.config import Config
from headwater.errors import Conflict, Malformed, NotFound
from headwater.events import Events
from headwater.log.roots import Roots
from headwater.store import folder as folders
from headwater.store.data_folder import DataFolder
from headwater.store.files import DiskFiles, Files
from headwater.store.mirror import Gone, places_of
from headwater.store.state import State

NAME_BYTES_MAX = 64


def bus_of(path: str | os.PathLike[str], files: Files | None = None) -> str:
    """The bus whose cluster a folder is a node's of; empty of an ordinary folder, or of none."""
    return folders.cluster_of(files or DiskFiles(), os.fspath(path))


def adopt(
    path: str | os.PathLike[str],
    bus: str,
    config: Config | None = None,
    *,
    clock: Clock | None = None,
    files: Files | None = None,
    state: State | None = None,
) -> None:
    """Have a folder be that of a cluster's first node: an ordinary one, with what it has, or an empty one. Nobody may
    have it open (Owned)."""
    check_name(bus)
    config, clock, folder = config or Config(), clock or SystemClock(), os.fspath(path)
    known = bus_of(folder, files)
    if known:
        raise Conflict(f'"{folder}" is the folder of a node of cluster "{known}" already')
    events = Events(clock, config.events_kept)
    data = DataFolder(folder, config, clock, events, files=files, state=state)
    try:
        roots = Roots(data.streams, data.state, config, clock, events.trouble)
        data.report(roots.recover())
        data.key.draw()
        places = places_of(data.streams.all())
        gone = [Gone(one.number, one.root, one.first) for one in data.streams.gone]
        checkpoint.write(data.state, Synced(places=places, gone=gone))
        folders.set_cluster(data.files, folder, bus)
    finally:
        data.close()


def leave(
    path: str | os.PathLike[str],
    config: Config | None = None,
    *,
    clock: Clock | None = None,
    files: Files | None = None,
    state: State | None = None,
) -> None:
    """Have a node's folder be an ordinary one, with all that it has. Conflict (409) if it did not stop in good order,
    and lacks what it had before."""
    folder = os.fspath(path)
    if not bus_of(folder, files):
        raise NotFound(f'"{folder}" is no folder of a cluster\'s node')
    replica = Replica(path, config, clock=clock, files=files, state=state)
    try:
        if replica.is_ahead:
            raise Conflict(
                f'the node of "{folder}" did not stop in good order, so its folder may be behind: serve it with '
                "--cluster until it has caught up, stop it, and let it leave then"
            )
        replica.leave()
    finally:
        replica.abandon()


def check_name(bus: str) -> None:
    """Malformed (422) if a cluster's bus cannot be called so: the engine's names are made of it."""
    if not (0 < len(bus) <= NAME_BYTES_MAX and bus.isascii() and bus.replace("-", "").replace("_", "").isalnum()):
        raise Malformed(f'"{bus[:80]}" is no name for a bus; use up to {NAME_BYTES_MAX} letters, digits, - and _')
