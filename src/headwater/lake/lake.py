"""The lake: one Iceberg table a root, which the archive pipeline keeps.

What holds:

- A table has every message of its root up to `headwater.archived-offset` that was alive when it was archived, each
  once, and none after it. Files and that property change in one commit, which succeeds only on the snapshot that it
  began with.
- A lake belongs to one bus; its namespace says which. Another bus is refused before anything is read or written.
- Nothing that a reader may have planned with is deleted before `grace_s` has passed since it was replaced.

The catalog is a SQLite file in the lake's folder, or any that pyiceberg is configured for (`catalog:NAME`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update.snapshot import UpdateSnapshot
from pyiceberg.types import BinaryType, LongType, MapType, NestedField, PrimitiveType, StringType, TimestamptzType
from pyiceberg.utils.config import Config

from headwater.clock import SECOND_US
from headwater.errors import Conflict, Failed, HeadwaterError, Malformed, NotFound
from headwater.lake.columns import FilePlace, Store
from headwater.lake.layout import OFFSET_ID, TIMESTAMP_ID, Layout, described
from headwater.lake.stores import know, store_of
from headwater.store.files import DiskFiles
from headwater.store.manifest import quote
from headwater.topics.name import filter_covers_root

NAMESPACE = "headwater"
CONFIGURED = "catalog:"
CATALOG_FILE = "catalog.sqlite"
NAME_CHARS_MAX = 120
PLAIN = re.compile("[a-z0-9](?!.*__[0-9a-f]{16}$)[a-z0-9_]*")
"""Roots whose tables have their names: none of them looks like one with a digest."""

BUS = "headwater.bus"
LAKE = "headwater.lake"
ROOT = "headwater.root"
ARCHIVED = "headwater.archived-offset"
FIRST = "headwater.first-offset"
"""Where the archive of a root begins: it has nothing before, or no more."""
PURGED = "headwater.purged"
"""Which purges of the log were carried out: up to which offset, and the digest of all of them."""

DAY_US = 86_400 * SECOND_US
SCHEMA = Schema(
    NestedField(1, "root", StringType(), required=False),
    NestedField(2, "topic", StringType(), required=False),
    NestedField(OFFSET_ID, "offset", LongType(), required=False),
    NestedField(TIMESTAMP_ID, "timestamp", TimestamptzType(), required=False),
    NestedField(5, "key", BinaryType(), required=False),
    NestedField(6, "headers", MapType(8, StringType(), 9, StringType(), value_required=False), required=False),
    NestedField(7, "payload", BinaryType(), required=False),
)
PROPERTIES = {
    # pyiceberg would put an append that lost a race on top of the winner's: the same messages twice.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # Bounds of these would fill the manifests, and prune nothing.
    "write.metadata.metrics.column.key": "none",
    "write.metadata.metrics.column.headers": "none",
    "write.metadata.metrics.column.payload": "none",
}


class LakeFile(msgspec.Struct, frozen=True):
    """A data file of a table, and which offsets and times it has."""

    path: str
    rows: int
    bytes: int
    first: int
    last: int
    day: int
    """Of the oldest: days since 1970, in UTC."""
    newest_us: int
    partition: tuple[Any, ...] = ()
    """What all its rows have in common, by the table's spec."""
    deletes: tuple[str, ...] = ()
    """Files that say which of its rows are deleted."""

    @property
    def place(self) -> FilePlace:
        """What is needed to read it."""
        return self.path, self.deletes


class Archived(msgspec.Struct, frozen=True):
    """A root as the lake has it at one moment: files and offset are of the same commit."""

    root: str
    first: int
    """Where the archive begins: the oldest offset that was in the log by then, or that the lake's retention left."""
    upto: int
    """The last offset that is archived."""
    files: tuple[LakeFile, ...] = ()
    purged: str = ""
    """Which purges were carried out in it."""
    store: Store = Store()
    """What opens its files."""

    @property
    def rows(self) -> int:
        """How many messages there are; fewer than offsets, where some were purged or had expired."""
        return sum(file.rows for file in self.files)

    def between(self, first: int, last: int) -> tuple[LakeFile, ...]:
        """The files that may have messages of a range."""
        return tuple(file for file in self.files if file.first <= last and file.last >= first)


class LostRace(Conflict):
    """Somebody else committed to the table meanwhile; nothing of this commit is in it."""

    retryable = True


class Lake:
    """A lake, opened: its catalog, and what is in its tables."""

    def __init__(self, where: str, catalog: Catalog) -> None:
        self.where = where
        self.catalog = catalog

    # Whose it is

    @property
    def properties(self) -> dict[str, str]:
        """What is written about the whole lake; nothing if it was never used."""
        try:
            return dict(self.catalog.load_namespace_properties(NAMESPACE))
        except NoSuchNamespaceError:
            return {}

    @property
    def id(self) -> str:
        return self.properties.get(LAKE, "")

    def check(self, bus_id: str) -> None:
        """That it is a lake, and of this bus."""
        stated = self.properties
        if LAKE not in stated:
            raise NotFound(f'"{self.where}" is no lake yet; `headwater pipeline archive --lake {self.where}` makes one')
        if stated.get(BUS) != bus_id:
            raise Conflict(
                f'the lake "{self.where}" belongs to another bus (id {stated.get(BUS)}; this one is {bus_id}); '
                "use the lake of this bus, or a new folder"
            )

    def claim(self, bus_id: str) -> None:
        """Make it the lake of this bus, if it is new; else check that it is."""
        if LAKE not in self.properties:
            mine = {BUS: bus_id, LAKE: secrets.token_hex(8)}
            try:
                self.catalog.create_namespace(NAMESPACE, mine)
            except NamespaceAlreadyExistsError:  # by another archive, at this moment, or by who looks after the catalog
                if LAKE not in self.properties:
                    self.catalog.update_namespace_properties(NAMESPACE, updates=mine)
            if LAKE not in self.properties:
                raise Malformed(
                    f'the catalog of the lake "{self.where}" keeps no properties of its namespace "{NAMESPACE}", which '
                    "say whose the lake is; use another catalog"
                )
        self.check(bus_id)

    # What is in it

    def roots(self) -> list[str]:
        """The roots that have a table."""
        return sorted(self._tables())

    def _tables(self) -> dict[str, Table]:
        """By root, each as it is now."""
        try:
            names = self.catalog.list_tables(NAMESPACE)
        except NoSuchNamespaceError:
            return {}
        tables = [_known(self.catalog.load_table(name)) for name in names]
        return {table.properties[ROOT]: table for table in tables if ROOT in table.properties}

    def archived(self, topics: str = "#") -> dict[str, Archived]:
        """What there is of the roots that a filter may match."""
        tables = sorted(self._tables().items())
        return {root: archived_in(table, root) for root, table in tables if filter_covers_root(topics, root)}

    def marks(self) -> dict[str, int]:
        """How far each root is archived."""
        return {root: offset_of(table) for root, table in sorted(self._tables().items())}

    def table(self, root: str) -> Table:
        """The table of a root, as it is now."""
        found = self._table_of(root)
        if found is None:
            raise NotFound(f'the lake "{self.where}" has no table of root "{root}"')
        return found

    def _table_of(self, root: str) -> Table | None:
        """The table of a root, under its name or the one that it had in earlier versions; None if there is none."""
        own = table_name(root)
        for name in dict.fromkeys((own, former_name(root))):
            try:
                table = _known(self.catalog.load_table((NAMESPACE, name)))
            except NoSuchTableError:
                continue
            if table.properties.get(ROOT) == root:
                return table
            if name == own:
                raise Conflict(
                    f'table "{name}" of the lake "{self.where}" is not of root "{root}"; '
                    "somebody else made it: use another lake"
                )
        return None

    def make_table(self, root: str, layout: Layout | None = None) -> Table:
        """The table of a root, made with this layout if there is none."""
        layout = layout or Layout()
        if self._table_of(root) is None:
            try:
                self.catalog.create_table(
                    (NAMESPACE, table_name(root)),
                    schema=SCHEMA,
                    partition_spec=layout.spec,
                    sort_order=layout.order,
                    properties={**PROPERTIES, ROOT: root, ARCHIVED: "0"},
                )
            except TableAlreadyExistsError:
                pass
        table = self.table(root)
        if table.properties.get("commit.retry.num-retries") != "0":
            with table.transaction() as change:
                change.set_properties({"commit.retry.num-retries": "0"})
        return table


def _known(table: Table) -> Table:
    """A table, whose files are opened from now on with what its catalog says."""
    know(table.location(), store_of(table.io.properties))
    return table


def open_lake(where: str) -> Lake:
    """The lake in a folder, or `catalog:NAME` of pyiceberg's configuration. Nothing is made yet."""
    if where.startswith(CONFIGURED):
        name = where.removeprefix(CONFIGURED)
        try:
            # As it is by now: a process may be older than what is said about a catalog.
            return Lake(where, load_catalog(name, **cast(Any, Config().get_catalog_config(name) or {})))
        except Exception as error:
            raise Malformed(
                f'the catalog "{name}" does not open ({error}); describe it in ~/.pyiceberg.yaml, or with '
                f"PYICEBERG_CATALOG__{name.upper()}__URI and the like"
            ) from error
    if not where or re.match(r"[a-z0-9]+:", where):
        raise Malformed(f'"{where}" is no lake; name a folder, or "catalog:NAME" for a catalog that pyiceberg knows')
    if re.search(r"[*?\[\]{}\\,%#]", str(Path(where).absolute())):
        raise Malformed(f'Spark would take "{where}" for a pattern; name a folder without *?[]{{}}\\,%#')
    return Lake(where, _embedded(Path(where).absolute()))


def existing_lake(where: str) -> Lake:
    """A lake that is to be read: none is made where there is none."""
    if not where.startswith(CONFIGURED) and where and not (Path(where) / CATALOG_FILE).exists():
        raise NotFound(f'"{where}" is no lake; `headwater pipeline archive --lake {where}` makes one')
    return open_lake(where)


def _embedded(folder: Path) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog

    try:
        DiskFiles().make_folder(str(folder))
        return SqlCatalog(NAMESPACE, uri=f"sqlite:///{folder / CATALOG_FILE}", warehouse=f"file://{folder}")
    except Exception as error:
        raise Failed(
            f'the lake in "{folder}" does not open ({error}); name a folder that this user may write to'
        ) from error


def table_name(root: str) -> str:
    """The name of a root's table, as every catalog takes it: the root, if it has nothing but a-z, 0-9 and _; otherwise
    what of it is so, and a digest."""
    if PLAIN.fullmatch(root) and len(root) <= NAME_CHARS_MAX:
        return root
    words = re.sub("[^a-z0-9_]", "_", root.lower())[: NAME_CHARS_MAX - 20].strip("_") or "root"
    return f"{words}__{sha256(root.encode()).hexdigest()[:16]}"


def former_name(root: str) -> str:
    """The name that it had in lakes of earlier versions, which keep it."""
    name = quote(root).replace(".", "=2E") or "="
    if len(name) > NAME_CHARS_MAX:
        return f"{name[: NAME_CHARS_MAX - 20]}=={sha256(root.encode()).hexdigest()[:16]}"
    return name


# Reading a table


def offset_of(table: Table) -> int:
    """How far a table is archived."""
    return int(table.properties.get(ARCHIVED, "0"))


def archived_in(table: Table, root: str) -> Archived:
    """What a table has; all of it from the metadata that was loaded with it."""
    found = (_lake_file(task.file, task.delete_files) for task in _planned(table))
    files = tuple(sorted(found, key=lambda file: file.first))
    first, purged = int(table.properties.get(FIRST, "1")), table.properties.get(PURGED, "")
    return Archived(root, first, offset_of(table), files, purged, store_of(table.io.properties))


def data_files(table: Table) -> list[DataFile]:
    """The data files of the current snapshot."""
    return [task.file for task in _planned(table)]


def _planned(table: Table) -> list[FileScanTask]:
    try:
        return list(table.scan().plan_files())
    except (ValueError, NotImplementedError) as error:
        if "equality deletes" not in str(error):
            raise
        raise Failed(
            f'the table of "{table.properties.get(ROOT)}" cannot be read: {error}. Another engine has deleted rows '
            "of it by their values; have that engine rewrite its data files, and their deletes with them"
        ) from error


def _lake_file(file: DataFile, deletes: Iterable[DataFile] = ()) -> LakeFile:
    def bound(bounds: dict[int, bytes], kind: PrimitiveType, column: int) -> int:
        return cast("int", from_bytes(kind, bounds[column]))

    return LakeFile(
        file.file_path,
        file.record_count,
        file.file_size_in_bytes,
        bound(file.lower_bounds, LongType(), OFFSET_ID),
        bound(file.upper_bounds, LongType(), OFFSET_ID),
        bound(file.lower_bounds, TimestamptzType(), TIMESTAMP_ID) // DAY_US,
        bound(file.upper_bounds, TimestamptzType(), TIMESTAMP_ID),
        tuple(file.partition[place] for place in range(len(file.partition))),
        tuple(sorted(one.file_path for one in deletes)),
    )


# Changing a table


def append(table: Table, paths: Sequence[str], after: int, first: int, upto: int, *, written: int | None = None) -> int:
    """Commit files together with the offset up to which they archive the root; answers how many rows they have.

    The table must be at `after`, and at the snapshot that it was loaded with: else `LostRace`, and nothing has changed.
    The files must have all rows that were `written`, if that is known.
    """
    if offset_of(table) != after:
        raise LostRace(f'"{table.properties[ROOT]}" was archived up to {offset_of(table)} meanwhile, not {after}')
    files = described(table, paths)
    for file in map(_lake_file, files):
        if not after < first <= file.first <= file.last <= upto:
            raise Failed(f"{file.path} has offsets {file.first} to {file.last}; expected were {first} to {upto}")

    reached = {ARCHIVED: str(upto)} if after else {ARCHIVED: str(upto), FIRST: str(first)}
    return _append(table, files, reached, f'the table of "{table.properties[ROOT]}"', written)


def append_files(
    table: Table, paths: Sequence[str], reached: dict[str, str], what: str, *, written: int | None = None
) -> int:
    """Commit files together with properties that say how far they go; answers how many rows they have."""
    return _append(table, described(table, paths), reached, what, written)


def _append(table: Table, files: Sequence[DataFile], reached: dict[str, str], what: str, written: int | None) -> int:
    rows = sum(file.record_count for file in files)
    if written is not None and rows != written:
        raise Failed(
            f"Spark wrote {written} rows for {what}, and {rows} of them are to be found at {table.location()}; nothing "
            "was changed. Every executor must see the lake at this path: use storage that they share with the driver"
        )

    def change(transaction: Transaction, snapshot: UpdateSnapshot) -> None:
        transaction.set_properties(reached)
        with snapshot.merge_append() as producer:
            for file in files:
                producer.append_data_file(file)

    commit(table, reached, change, what)
    return rows


def replace(table: Table, old: Iterable[DataFile], paths: Sequence[str]) -> None:
    """Commit files in place of others that have the same messages."""
    gone, files = list(old), described(table, paths)
    before, after = sum(file.record_count for file in gone), sum(file.record_count for file in files)
    if before != after:
        raise Failed(
            f"{len(gone)} files have {before} messages, those that were to replace them {after}; nothing was changed"
        )

    def change(_: Transaction, snapshot: UpdateSnapshot) -> None:
        with snapshot.overwrite() as producer:
            for file in gone:
                producer.delete_data_file(file)
            for file in files:
                producer.append_data_file(file)

    commit(table, {ARCHIVED: str(offset_of(table)), "headwater.compacted": "true"}, change, "the table")


def commit(table: Table, properties: dict[str, str], change: Any, what: str) -> None:
    """Change a table in one commit, on the snapshot that it was loaded with: else `LostRace`, and nothing happened."""
    try:
        with table.transaction() as transaction:
            if table.metadata.name_mapping() is None:  # Spark's files have names, not ids
                transaction.set_properties(
                    {"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()}
                )
            change(transaction, transaction.update_snapshot(snapshot_properties=properties))
    except (CommitFailedException, ValidationException) as error:
        raise LostRace(f"somebody else changed {what} meanwhile; run again") from error
    except HeadwaterError:
        raise
    except Exception as error:
        raise Failed(f"the commit to {what} failed ({error}); run again: it goes on from what was committed") from error
