"""The archive: what the log has and the lake lacks, written by Spark and committed with the offset it reaches.

One attempt is one range of one root: Spark reads it through the source and writes Parquet into a folder of the
attempt's own; then pyiceberg commits these files and the root's archived offset together. Killed anywhere, the next
run goes on from the offset that was committed; of two archives at once, one commits and the other finds that it lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.clock import SECOND_US, SystemClock
from headwater.config import Config
from headwater.errors import Conflict, Gap, Malformed
from headwater.lake import files as lake_files
from headwater.lake.columns import Store
from headwater.lake.erasure import Carried, carry_out
from headwater.lake.evolution import add_columns, type_in
from headwater.lake.lake import (
    ROOT,
    Lake,
    LakeFile,
    LostRace,
    append,
    archived_in,
    data_files,
    offset_of,
    open_lake,
    replace,
)
from headwater.lake.layout import Layout, layout_in
from headwater.lake.retention import beyond, delete
from headwater.lake.stores import store_of
from headwater.lake.values import value_type
from headwater.message import SchemaInfo
from headwater.spark import plan
from headwater.spark.history import SCHEMA, offsets_json
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.pipelines.attempts import attempt_of, teaching, write
from headwater.spark.pipelines.row_layout import laid_out
from headwater.spark.reading import open_log
from headwater.spark.served import connect
from headwater.spark.spans import Extent, Log
from headwater.spark.stores import reaches, read_natively, read_whole
from headwater.spark.topics import EVERYTHING, Topics, topics_of
from headwater.spark.values import typed
from headwater.store import marks
from headwater.store.files import DiskFiles
from headwater.store.log import Hole
from headwater.store.stream import RETENTION
from headwater.topics.name import filter_covers_root

MIB = 1 << 20
MESSAGES_PER_COMMIT = 4_000_000
SMALL_BYTES = 32 * MIB
"""Files below this are worth joining."""
FILE_BYTES = 128 * MIB
"""About how large a compacted file is."""
SMALL_FILES_MAX = 16
"""Small files of one day at which they are joined without being asked."""
GRACE_S = 6 * 3600.0
NO_STORE = Store()
MARK_S = 5.0
"""While many roots are archived, the log is told so often how far it may forget."""

SKIP_LOST = "archive what is left with --skip-lost"
SESSION = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Iceberg knows no other
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside the caller's, whose settings stay as they are."""
    own = spark.newSession()
    for name, value in SESSION.items():
        own.conf.set(name, value)
    return own


class Options(msgspec.Struct, frozen=True):
    """What an archive does beside archiving."""

    topics: str = "#"
    """Which roots it is for."""
    skip_lost: bool = False
    messages_per_commit: int = MESSAGES_PER_COMMIT
    small_files_max: int = SMALL_FILES_MAX
    """Small files of a day at which they are joined; 1 joins whatever can be."""
    grace_s: float = GRACE_S
    layout: Layout = Layout()
    """Of tables that are made; those that are there keep their own."""
    config: Config = Config()
    """Of which the rules for what the lake keeps, and the time for erasure."""


def _whole_roots(text: str) -> Topics:
    """The roots of an archive: a table has all of its root, as retention and replays go by how far it is."""
    topics = topics_of(text)
    for one in topics.filters:
        first = one.partition("/")[0]
        if one not in {"#", f"{first}/#"}:
            raise Malformed(
                f'--topics "{one}" is part of a root, and a table of the lake has all of its root; archive "{first}/#"'
            )
    return topics


class Step(msgspec.Struct, frozen=True):
    """A commit: what it did."""

    root: str
    first: int
    last: int
    rows: int
    bytes: int
    files: int
    seconds: float


class Compacted(msgspec.Struct, frozen=True):
    """A day whose small files were joined."""

    root: str
    day: int
    files_before: int
    files_after: int
    rows: int


class Archive:
    """Keeps a lake up with a log."""

    def __init__(self, spark: SparkSession, lake: str, source: dict[str, str], options: Options | None = None) -> None:
        """`source` has the options that say where the messages are: data or url."""
        self.spark = own_session(spark)
        self.options = options or Options()
        self.source = source
        self._topics = _whole_roots(self.options.topics)
        self._others: dict[str, int] = {}
        """Where roots end that nobody asked for, and that the lake has nothing of: retention waits for none of them."""
        self._read: ReadOptions = read_options(source)
        self._schemas: list[SchemaInfo] = []
        """As they stood when it was last looked what there is."""
        self._clock = SystemClock()
        self._reached: dict[str, int] = {}
        """How far the lake has each root."""
        self._is_marked = True
        """Whether the log was told so."""
        self._marked_us = 0
        self.lake: Lake = open_lake(lake)
        with closing(open_log(self._read)) as log:
            self.lake.claim(log.bus_id)
            self._check(log)
            self._look_at_others(log, self.lake.marks())
        self.leave_mark()

    def _check(self, log: Log) -> None:
        """What would fail fails before anything is written."""
        archived = self.lake.marks()
        log.refresh()  # after the lake was looked at, so that it reaches at least as far
        extents = {extent.root: extent for extent in log.extents(EVERYTHING)}
        for root, upto in archived.items():
            extent = extents.get(root)
            if extent is None or extent.end <= upto:
                end = 0 if extent is None else extent.end - 1
                raise Conflict(
                    f'the lake has "{root}" up to {upto}, and the log ends at {end}: it was restored from an older '
                    "backup, whose new messages would repeat offsets; archive it into a new lake"
                )

    # One round

    def pending(self) -> dict[str, tuple[int, int]]:
        """For each root that has something new: the first and last offset to archive."""
        marks = self.lake.marks()
        found = {}
        with closing(open_log(self._read)) as log:
            self._schemas = log.schemas()
            self._look_at_others(log, marks)
            for extent in log.extents(self._topics):
                after = marks.get(extent.root, 0)
                first = after + 1 if after else extent.first
                if first < extent.end:
                    self._check_there(extent, first)
                    found[extent.root] = (max(first, extent.first), extent.end - 1)
        return found

    def _look_at_others(self, log: Log, archived: dict[str, int]) -> None:
        others = {
            extent.root: extent.end - 1
            for extent in log.extents(EVERYTHING)
            if extent.root not in archived and not self._topics.covers_root(extent.root)
        }
        self._is_marked = self._is_marked and others == self._others
        self._others = others

    def _check_there(self, extent: Extent, first: int) -> None:
        if self.options.skip_lost:
            return
        try:
            if first < extent.first:
                plan.report(extent.root, Hole(first, extent.first - 1, RETENTION), extent.purged_upto, True)
            plan.checked(extent, (max(first, extent.first), extent.end), True)
        except Gap as gap:
            raise Gap(gap.root, gap.first, gap.last, gap.reason, SKIP_LOST) from None

    def round(self) -> Iterator[Step]:
        """Archive what there is now; each step is committed when it comes out of here."""
        for root, (first, last) in self.pending().items():
            for start in range(first, last + 1, self.options.messages_per_commit):
                step = self.step(root, start, min(last, start + self.options.messages_per_commit - 1))
                self._reached[root] = step.last
                self._is_marked = False
                yield step
                if self._clock.monotonic_us() - self._marked_us >= MARK_S * SECOND_US:
                    self._leave_reached()
        self._leave_reached()

    def step(self, root: str, first: int, last: int) -> Step:
        """One attempt: read, write, commit."""
        started_us = SystemClock().monotonic_us()
        table = self.lake.make_table(root, self.options.layout)
        columns = self._columns(table)
        after = offset_of(table)
        if after >= first:
            raise LostRace(f'"{root}" was archived up to {after} meanwhile, by another archive')
        with attempt_of(table, f"{first:020d}-{last:020d}") as attempt:
            frame, store = self._range(root, first, last, columns), store_of(table.io.properties)
            written = self._write(frame, attempt, layout_in(table), store)
            paths = lake_files.written(attempt)
            rows = append(table, paths, after, first, last, written=written)
        lake_files.make_commit_durable(table)
        size = sum(file.bytes for file in archived_in(table, root).files if file.path in set(paths))
        seconds = (SystemClock().monotonic_us() - started_us) / SECOND_US
        return Step(root, first, last, rows, size, len(paths), seconds)

    def _columns(self, table: Table) -> str | StructType:
        """What is written to a table: with what payloads say, as long as schemas say what that is."""
        root = table.properties[ROOT]
        value = value_type(one for one in self._schemas if filter_covers_root(one.filter, root))
        return SCHEMA if value is None else typed(add_columns(table, value))

    def _range(self, root: str, first: int, last: int, columns: str | StructType = SCHEMA) -> DataFrame:
        reader = self.spark.read.format("headwater").options(**self.source).schema(columns)
        return reader.options(
            topics=Topics((f"{root}/#",)).option,
            startingOffsets=offsets_json({root: first}),
            endingOffsets=offsets_json({root: last + 1}),
            failOnDataLoss=str(not self.options.skip_lost).lower(),
        ).load()

    def _write(self, frame: DataFrame, attempt: str, layout: Layout, store: Store = NO_STORE) -> int:
        with teaching(SKIP_LOST):
            rows, apart = laid_out(frame, layout)
            return write(rows, attempt, store, apart)

    def leave_mark(self) -> None:
        """Tell the log how far it may forget, as the lake's tables say."""
        self._reached = self.lake.marks()
        self._is_marked = False
        self._leave_reached()

    def _leave_reached(self) -> None:
        """The same, going by what was committed since: who archives a thousand roots does not look at all their tables
        after each."""
        if self._is_marked:
            return
        reached = {**self._others, **self._reached}
        self._is_marked, self._marked_us = True, self._clock.monotonic_us()
        if self._read.data is not None:
            marks.leave(DiskFiles(), self._read.data, self.lake.id, reached)
            return
        with connect(self._read.url or "") as bus:
            bus.mark_archived(self.lake.id, reached)

    # Upkeep

    def compact(self, small_files_max: int | None = None) -> Iterator[Compacted]:
        """Join small files, a partition of a root at a time."""
        most = self.options.small_files_max if small_files_max is None else small_files_max
        for root, archived in self.lake.archived().items():
            small: dict[tuple[Any, ...], list[LakeFile]] = {}
            for file in archived.files:
                if file.bytes < SMALL_BYTES and not file.deletes:
                    small.setdefault(file.partition, []).append(file)
            for files in small.values():
                if len(files) > most:
                    yield self._join(root, files[0].day, {file.path for file in files})

    def erase(self) -> Iterator[Carried]:
        """Carry out what was purged in the log: a commit for each root in which there is something to do."""
        purges = {}
        with closing(open_log(self._read)) as log:
            for extent in log.extents(EVERYTHING):
                purges[extent.root] = log.purges(extent.root)
        for root in self.lake.roots():
            if root in purges and (done := carry_out(self.lake.table(root), root, purges[root])) is not None:
                yield done

    def retain(self) -> Iterator[tuple[str, list[LakeFile]]]:
        """Delete the data files that the rules of their roots allow to delete."""
        now_us = self._clock.now_us()
        for root, archived in self.lake.archived().items():
            files = beyond(archived, self.options.config.retention_of(root), now_us)
            if files:
                delete(self.lake.table(root), root, files)
                yield root, files

    def _join(self, root: str, day: int, paths: set[str]) -> Compacted:
        table = self.lake.table(root)
        old = [file for file in data_files(table) if file.file_path in paths]
        count = max(1, round(sum(file.file_size_in_bytes for file in old) / FILE_BYTES))
        with attempt_of(table, f"compact-{day}") as attempt:
            value = type_in(table)
            columns = SCHEMA if value is None else typed(value)
            store, found = store_of(table.io.properties), [file.file_path for file in old]
            if reaches(self.spark, attempt):
                frame = read_natively(self.spark, found, columns, store)
            else:
                frame = read_whole(self.spark, [(path, ()) for path in found], columns, store)
            layout = layout_in(table)
            ranged = frame.coalesce(1) if count == 1 else frame.repartitionByRange(count, *layout.sort)
            self._write(ranged, attempt, layout, store)
            fresh = lake_files.written(attempt)
            replace(table, old, fresh)
        return Compacted(root, day, len(old), len(fresh), sum(file.record_count for file in old))

    def sweep(self) -> int:
        """Delete what nobody needs any more; how many files."""
        grace_s, within_s = self.options.grace_s, self.options.config.erase_within_s
        return sum(lake_files.sweep(self.lake.table(root), grace_s, within_s) for root in self.lake.roots())
