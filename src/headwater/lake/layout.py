"""How the files of a table are laid out: by what rows are kept apart, and how those of a file are sorted.

A table's own Iceberg spec and sort order say it; both are chosen when the table is made, and stay.

    day, hour          of the time at which messages were sent (UTC)
    topic              files of a topic each
    bucket(16)         of the key: messages of one key are in one of so many parts
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform
from pyiceberg.typedef import Record

from headwater.errors import Failed, Malformed

TOPIC_ID, OFFSET_ID, TIMESTAMP_ID, KEY_ID = 2, 3, 4, 5
FIELD_ID = 1000
"""Of the first field of a spec."""
BUCKETS_MAX = 1024
BUCKET = re.compile(r"bucket\((\d{1,4})\)")
SORTED_BY = {"topic": TOPIC_ID, "offset": OFFSET_ID, "timestamp": TIMESTAMP_ID, "key": KEY_ID}
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""How Spark names a folder whose rows have no value."""


@dataclass(frozen=True)
class Layout:
    """By what rows are kept apart, and in which order those of a file are."""

    partition: tuple[str, ...] = ("day",)
    sort: tuple[str, ...] = ("offset",)

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec(*(_field(FIELD_ID + place, name) for place, name in enumerate(self.partition)))

    @property
    def order(self) -> SortOrder:
        return SortOrder(*(SortField(SORTED_BY[name], transform=IdentityTransform()) for name in self.sort))


def layout_of(partition: str, sort: str) -> Layout:
    """A layout as it is written: names with commas between them; Malformed says what there is."""
    names = tuple(dict.fromkeys(one.strip() for one in partition.split(",")))
    for name in names:
        if name not in {"day", "hour", "topic"} and not _buckets(name):
            raise Malformed(
                f'"{name}" is no partition of a table; use day, hour, topic or bucket(N) of the key, N up to '
                f"{BUCKETS_MAX}; several have commas between them"
            )
    if len(names) > len({_column(name) for name in names}):
        raise Malformed(f'"{partition}" has buckets twice; use one number')
    order = tuple(dict.fromkeys(one.strip() for one in sort.split(",")))
    for name in order:
        if name not in SORTED_BY:
            raise Malformed(f'"{name}" is no column to sort by; use {", ".join(SORTED_BY)}')
    # Rows that are equal by these stay in the order of the log.
    return Layout(names, order if "offset" in order else (*order, "offset"))


def layout_in(table: Table) -> Layout:
    """The layout that a table was made with."""
    schema = table.schema()
    sort = tuple(schema.find_column_name(field.source_id) or "" for field in table.sort_order().fields)
    return Layout(tuple(_name(field) for field in table.spec().fields), sort or ("offset",))


def _buckets(name: str) -> int:
    found = BUCKET.fullmatch(name)
    return int(found[1]) if found and 0 < int(found[1]) <= BUCKETS_MAX else 0


def _column(name: str) -> str:
    """What a field of a spec is called."""
    return "key_bucket" if _buckets(name) else name


def _field(number: int, name: str) -> PartitionField:
    match name:
        case "day":
            return PartitionField(TIMESTAMP_ID, number, DayTransform(), name)
        case "hour":
            return PartitionField(TIMESTAMP_ID, number, HourTransform(), name)
        case "topic":
            return PartitionField(TOPIC_ID, number, IdentityTransform(), name)
    return PartitionField(KEY_ID, number, BucketTransform(num_buckets=_buckets(name)), _column(name))


def _name(field: PartitionField) -> str:
    if isinstance(field.transform, BucketTransform):
        return f"bucket({field.transform.num_buckets})"
    for name in ("day", "hour", "topic"):
        known = _field(field.field_id, name)
        if (known.source_id, known.transform) == (field.source_id, field.transform):
            return name
    raise Failed(f'a table has the partition field "{field}", which the archive does not write; use another lake')


def described(table: Table, paths: Sequence[str]) -> list[DataFile]:
    """Files that Spark wrote, as a commit names them."""
    spec = table.spec()
    ordered = [field for field in spec.fields if not isinstance(field.transform, BucketTransform)]
    if len(ordered) == len(spec.fields):
        return list(parquet_files_to_data_files(table.io, table.metadata, iter(paths)))
    # What a bucket is cannot be told from the least and the greatest key: Spark named the folder by it.
    specs = [PartitionSpec(*ordered, spec_id=spec.spec_id)]
    metadata = table.metadata.model_copy(update={"partition_specs": specs})
    files = list(parquet_files_to_data_files(table.io, metadata, iter(paths)))
    for file in files:
        known = iter(file.partition[place] for place in range(len(ordered)))
        values: list[Any] = [next(known) if field in ordered else _bucket_in(file.file_path) for field in spec.fields]
        file[PARTITION] = Record(*values)
    return files


def folder_of(path: str, spec: PartitionSpec) -> list[str]:
    """The folders of a data file that say its partition."""
    names = {field.name for field in spec.fields}
    return [one for one in path.split("/")[-1 - len(names) : -1] if one.partition("=")[0] in names]


PARTITION = 3
"""Where a data file has the values of its partition."""


def _bucket_in(path: str) -> int | None:
    found = re.search(r"/key_bucket=([^/]+)/", path)
    if found is None:
        raise Failed(f"{path} does not say which bucket of keys it has")
    return None if found[1] == NULL_FOLDER else int(found[1])
