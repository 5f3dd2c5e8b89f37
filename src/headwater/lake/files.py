"""The files of a lake: where attempts write, what is durable, and what may be deleted.

An attempt (to archive a range, to compact a day) writes into a folder of its own below the table's `data`, named by
what it does and a random token. Its files count from the moment a commit names them. What no snapshot names is waste:
of an attempt that was killed or lost a race, or replaced by a compaction. It is deleted once it is older than the
grace period.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from headwater.clock import SECOND_US, SystemClock
from headwater.lake.stores import local_path, located
from headwater.store.files import DiskFiles, parent

DATA, METADATA = "data", "metadata"
ERASED = "headwater.erased-ms"
"""Property of a table: when messages were last erased from it, whose bytes are to go soon."""


def new_attempt(table: Table, what: str) -> str:
    """A folder that nobody has used yet."""
    return f"{table.location()}/{DATA}/{what}-{secrets.token_hex(6)}"


def written(attempt: str) -> list[str]:
    """The data files that Spark left in the folder of an attempt; durable, if they are on this machine."""
    paths = [path for path, _ in files_below(attempt) if path.endswith(".parquet")]
    make_durable(paths)
    return sorted(paths)


def make_durable(paths: Iterable[str]) -> None:
    """Sync files on this machine, and the folders that name them: Spark and pyiceberg do not."""
    files, folders = DiskFiles(), set()
    for path in paths:
        place = local_path(path)
        if place is None:
            continue  # an object store has it durably, or not at all
        file = files.open(place, write=False)
        try:
            file.datasync()
        finally:
            file.close()
        folders |= {parent(place), parent(parent(place)), parent(parent(parent(place)))}
    for folder in sorted(folders):
        files.sync_folder(folder)


def make_commit_durable(table: Table) -> None:
    """Sync what the last commit wrote beside the data: before this, the log must keep what was archived."""
    snapshot = table.current_snapshot()
    if snapshot is None or local_path(table.location()) is None:
        return
    manifests = [
        one.manifest_path for one in snapshot.manifests(table.io) if one.added_snapshot_id == snapshot.snapshot_id
    ]
    make_durable([table.metadata_location, snapshot.manifest_list, *manifests])


def parquet_writer(path: str, schema: Any) -> pq.ParquetWriter:
    """Writes a new data file, which is there once this is closed."""
    filesystem, name = located(path)
    if local_path(path) is not None:
        filesystem.create_dir(parent(name))
    return pq.ParquetWriter(name, schema, compression="zstd", filesystem=filesystem)


def delete(path: str) -> None:
    """Delete a file."""
    filesystem, name = located(path)
    filesystem.delete_file(name)


def drop_attempt(attempt: str) -> None:
    """Delete what an attempt wrote, which is certain not to be committed."""
    filesystem, path = located(attempt)
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)


def sweep(table: Table, grace_s: float, erase_within_s: float = float("inf")) -> int:
    """Forget snapshots that were replaced longer ago than the grace period, and delete what none names; how many files.

    A snapshot counts from when it was replaced, not from when it was made: a reader may have planned with it until
    then. Where messages were erased, those who planned before it have half of the time for erasure at most, so that the
    archive has the other half for its rounds.
    """
    now_us = SystemClock().now_us()
    erased_us = int(table.properties.get(ERASED, "0")) * 1000
    if erased_us > now_us - grace_s * SECOND_US:
        grace_s = min(grace_s, erase_within_s / 2)
    horizon_us = now_us - round(grace_s * SECOND_US)
    _expire(table, horizon_us // 1000)
    table.refresh()
    named = _named(table)
    count = 0
    for folder, endings in ((DATA, (".parquet", ".crc", "_SUCCESS")), (METADATA, (".avro",))):
        for path, modified_us in files_below(f"{table.location()}/{folder}"):
            if path not in named and modified_us < horizon_us and path.endswith(endings):
                filesystem, place = located(path)
                filesystem.delete_file(place)
                count += 1
    _remove_empty(f"{table.location()}/{DATA}", horizon_us)
    return count


def _expire(table: Table, horizon_ms: int) -> None:
    made = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
    # Each is current until the next one is made.
    old = [one.snapshot_id for one, following in itertools.pairwise(made) if following.timestamp_ms < horizon_ms]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def _named(table: Table) -> set[str]:
    """Everything that some snapshot needs."""
    named: set[str] = set()
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        manifests |= {one.manifest_path: one for one in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        named.add(path)
        # Files that a manifest marks as deleted are needed by older snapshots, whose own manifests name them.
        named |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return named


def _remove_empty(data: str, horizon_us: int) -> None:
    """Folders of attempts in which nothing is left."""
    filesystem, path = located(data)
    for found in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if found.type == fs.FileType.Directory and (found.mtime_ns or 0) // 1000 < horizon_us:
            inside = filesystem.get_file_info(fs.FileSelector(found.path, recursive=True))
            if not any(one.type == fs.FileType.File for one in inside):
                filesystem.delete_dir(found.path)


def files_below(folder: str) -> list[tuple[str, int]]:
    """Files, spelled as the table spells them, and when they were last changed."""
    filesystem, path = located(folder)
    return [
        (folder + found.path.removeprefix(path), (found.mtime_ns or 0) // 1000)
        for found in filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        if found.type == fs.FileType.File
    ]
