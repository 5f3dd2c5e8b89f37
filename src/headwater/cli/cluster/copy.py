"""A backup from a node: a copy of its folder, taken over the network as a node that joins takes one."""

from __future__ import annotations

from headwater.cluster import adoption
from headwater.cluster.engine import Engine
from headwater.cluster.overview import Overview
from headwater.cluster.record import Position
from headwater.cluster.transfer import FOLDER, Transfer
from headwater.errors import Malformed, Unavailable
from headwater.store import keys
from headwater.store.files import DiskFiles
from headwater.store.folder import LOCK


def take_copy(
    engine: Engine, bus: str, found: Overview, node: str, target: str, with_keys: bool
) -> tuple[str, Position, int]:
    """An ordinary folder at `target`; whose it was, at which record, and how large."""
    files = DiskFiles()
    if set(files.list(target)) - {FOLDER, LOCK}:
        raise Malformed(f'"{target}" is not empty; name a new folder')
    following = [name for name, report in sorted(found.reports.items()) if report.role == "following"]
    leading = [name for name, report in found.reports.items() if report.role == "leading"]
    sources = [node] if node else following or leading
    if not sources:
        raise Unavailable("no node can be copied at the moment: none follows or leads; see: headwater cluster status")
    transfer = Transfer(target, engine, bus, files=files)
    position = transfer.run(sources, 0)
    if not with_keys:
        files.remove(f"{target}/{keys.KEY}")
    adoption.leave(target, files=files)
    return transfer.source, position, transfer.bytes
