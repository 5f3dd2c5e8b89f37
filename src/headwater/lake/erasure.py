"""Carrying out in a lake what the log has hidden: data files are written anew without messages that were purged.

One commit a root: it replaces the files in which something was purged, or that others have deleted rows of, and notes
which purges were carried out. Killed before it, nothing has changed, and what was written is waste; after it, nobody
plans with the old files any more, and `files.sweep` deletes them within the time for erasure. Where an archive or a
compaction committed meanwhile, this one has lost, and begins again at the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import UpdateSnapshot

from headwater.clock import SystemClock
from headwater.errors import Failed
from headwater.lake import files as lake_files
from headwater.lake.carried_purges import carried, carried_upto, left_of
from headwater.lake.lake import (
    ARCHIVED,
    PURGED,
    Archived,
    LakeFile,
    LostRace,
    archived_in,
    commit,
    data_files,
    offset_of,
)
from headwater.lake.layout import described, folder_of
from headwater.lake.purged_rows import without
from headwater.lake.scan import deleted_rows, scanned
from headwater.lake.stores import located
from headwater.log.purges import Purge, Purges

ROW_GROUP_BYTES = 32 << 20
LOOKED_AT = ("topic", "offset", "key")
"""What tells whether a message was purged."""


class Carried(msgspec.Struct, frozen=True):
    """A root whose purges were carried out."""

    root: str
    rows: int
    """Messages that were erased."""
    files_before: int
    files_after: int


def affected(archived: Archived, purges: tuple[Purge, ...], after: int = 0) -> list[tuple[LakeFile, int]]:
    """Data files that have messages which were purged or deleted, each with how many. Those up to an offset are known
    to have none that was purged."""
    asked = Purges(purges)
    found = []
    for file in archived.files:
        gone = len(deleted_rows(*file.place)) + (purged_in(file, asked) if file.last > after else 0)
        if gone:
            found.append((file, gone))
    return found


def purged_in(file: LakeFile, purges: Purges) -> int:
    """How many messages that a data file has were purged; without those that were deleted."""
    if file.first > purges.highest:
        return 0
    batches = scanned(file.place, LOOKED_AT, file.first, min(file.last, purges.highest))
    return sum(batch.num_rows - without(batch, purges).num_rows for batch in batches)


def carry_out(table: Table, root: str, purges: tuple[Purge, ...]) -> Carried | None:
    """Write the data files of a root anew without what was purged; None if all of it was carried out before."""
    archived = archived_in(table, root)
    noted = carried(purges, archived.upto)
    if archived.purged == noted and not any(file.deletes for file in archived.files):
        return None
    files = affected(archived, left_of(purges, archived.purged), carried_upto(purges, archived.purged))
    erased = sum(gone for _, gone in files)
    properties = {PURGED: noted}
    if not files:
        _note(table, properties)
        return Carried(root, 0, 0, 0)
    attempt, spec = lake_files.new_attempt(table, "erase"), table.spec()
    try:
        paths = [path for file, gone in files if (path := _rewritten(attempt, spec, file, gone, Purges(purges)))]
        lake_files.make_durable(paths)
        properties[lake_files.ERASED] = str(SystemClock().now_us() // 1000)
        _replace(table, {file.path for file, _ in files}, paths, properties, erased)
    except LostRace:
        lake_files.drop_attempt(attempt)
        raise
    lake_files.make_commit_durable(table)
    return Carried(root, erased, len(files), len(paths))


def _rewritten(attempt: str, spec: PartitionSpec, file: LakeFile, gone: int, purges: Purges) -> str | None:
    """A data file without what was purged; None if nothing is left of it."""
    left = file.rows - gone
    if not left:
        return None
    path = "/".join((attempt, *folder_of(file.path, spec), f"{file.first:020d}.parquet"))
    names = _columns_of(file)
    writer: pq.ParquetWriter | None = None
    held: list[Any] = []
    written = size = 0

    def flush(output: pq.ParquetWriter) -> None:
        if held:
            output.write_table(pa.Table.from_batches(held))
            held.clear()

    try:
        for batch in scanned(file.place, names, file.first, file.last):
            kept = without(batch, purges)
            if writer is None:
                writer = lake_files.parquet_writer(path, kept.schema)
            held.append(kept)
            written, size = written + kept.num_rows, size + kept.nbytes
            if size >= ROW_GROUP_BYTES:
                flush(writer)
                size = 0
        if writer is not None:
            flush(writer)
    finally:
        if writer is not None:
            writer.close()
    if written != left:
        raise Failed(f"{file.path} has {file.rows} messages, {gone} of them purged, and {written} were written anew")
    return path


def _columns_of(file: LakeFile) -> Sequence[str]:
    filesystem, name = located(file.path)
    with filesystem.open_input_file(name) as opened:
        return tuple(pq.read_schema(opened).names)


def _replace(table: Table, old: set[str], paths: Sequence[str], properties: dict[str, str], erased: int) -> None:
    gone = [file for file in data_files(table) if file.file_path in old]
    files = described(table, paths)

    def change(transaction: Transaction, snapshot: UpdateSnapshot) -> None:
        transaction.set_properties(properties)
        with snapshot.overwrite() as producer:
            for file in gone:
                producer.delete_data_file(file)
            for file in files:
                producer.append_data_file(file)

    told = {ARCHIVED: str(offset_of(table)), "headwater.erased": str(erased)}
    commit(table, told, change, f'the table of "{archived_root(table)}"')


def archived_root(table: Table) -> str:
    """The root of a table, for who reads an error."""
    return str(table.properties.get("headwater.root", table.name()[-1]))


def _note(table: Table, properties: dict[str, str]) -> None:
    def change(transaction: Transaction, _: UpdateSnapshot) -> None:
        transaction.set_properties(properties)

    commit(table, {}, change, f'the table of "{archived_root(table)}"')
