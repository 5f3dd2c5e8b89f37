"""The rollup: what each topic did in each window of time, as an Iceberg table beside the archive's.

Windows are of event time: of when messages were sent. A window is rolled up once it is complete, that is once a
message was seen that is later than its end by the watermark's delay. What comes for it after that is late, and is
counted as such. One run reads lake and log as one table, from where the last one ended, and commits its rows together
with how far it got: so a run that was killed, or lost against another, has rolled up nothing, and no window is rolled
up twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, MapType, NestedField, StringType, StructType, TimestamptzType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from headwater.clock import SECOND_US, SystemClock, to_datetime
from headwater.errors import Conflict, Malformed
from headwater.lake import files as lake_files
from headwater.lake.lake import NAMESPACE, PROPERTIES, Lake, LakeFile, append_files, existing_lake, table_name
from headwater.lake.stores import store_of
from headwater.spark.history import table_of
from headwater.spark.pipelines.archive import own_session
from headwater.spark.pipelines.attempts import attempt_of, teaching, write

ROLLUPS, FORMER_ROLLUPS = "_rollup_", "=rollup="
"""What names of such tables begin with, and did in lakes of earlier versions; no root's table does."""
UPTO = "headwater.rolled-up-to"
SEEN = "headwater.rolled-offsets"
SETTINGS = "headwater.rollup"
TOPICS_DRAWN_MAX = 8

NUMBER = "^(TINYINT|SMALLINT|INT|BIGINT|DECIMAL|FLOAT|DOUBLE)"
FIELD = StructType(
    NestedField(31, "count", LongType(), required=False),
    NestedField(32, "min", DoubleType(), required=False),
    NestedField(33, "mean", DoubleType(), required=False),
    NestedField(34, "max", DoubleType(), required=False),
    NestedField(35, "p50", DoubleType(), required=False),
    NestedField(36, "p99", DoubleType(), required=False),
)
SCHEMA = Schema(
    NestedField(1, "window_start", TimestamptzType(), required=False),
    NestedField(2, "window_end", TimestamptzType(), required=False),
    NestedField(3, "root", StringType(), required=False),
    NestedField(4, "topic", StringType(), required=False),
    NestedField(5, "messages", LongType(), required=False),
    NestedField(6, "bytes", LongType(), required=False),
    NestedField(7, "messages_per_s", DoubleType(), required=False),
    NestedField(8, "payload_bytes_min", LongType(), required=False),
    NestedField(9, "payload_bytes_mean", DoubleType(), required=False),
    NestedField(10, "payload_bytes_max", LongType(), required=False),
    NestedField(11, "gap_s_mean", DoubleType(), required=False),
    NestedField(12, "gap_s_max", DoubleType(), required=False),
    NestedField(13, "first_offset", LongType(), required=False),
    NestedField(14, "last_offset", LongType(), required=False),
    NestedField(15, "fields", MapType(21, StringType(), 22, FIELD, value_required=False), required=False),
)
COLUMNS = tuple(field.name for field in SCHEMA.fields)
SPEC = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
ORDER = SortOrder(SortField(1, transform=IdentityTransform()))


class Settings(msgspec.Struct, frozen=True):
    """What is rolled up, and how; a rollup keeps the settings that it was made with."""

    topics: str = "#"
    window_s: float = 60.0
    delay_s: float = 60.0
    """The watermark: how much later than a window's end a message must be for the window to be complete."""

    @property
    def window_us(self) -> int:
        return round(self.window_s * SECOND_US)


class Rolled(msgspec.Struct, frozen=True):
    """What a run did."""

    rows: int
    late: int
    """Messages that came for windows that were rolled up before."""
    since_us: int | None
    upto_us: int | None
    """Windows that end by now are rolled up; None if no window is complete yet."""
    seconds: float


class Rollup:
    """A rollup in a lake, by its name."""

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        source: dict[str, str],
        name: str = "topics",
        settings: Settings | None = None,
    ) -> None:
        self.spark = own_session(spark)
        self.lake: Lake = existing_lake(lake)
        self.name = name
        if not name.isidentifier() or not name.isascii():
            raise Malformed(f'"{name}" is no name for a rollup; use letters, digits and _')
        settings = settings or Settings()
        if settings.window_us <= 0:
            raise Malformed("a window takes some time; say --window 1m")
        self.settings = settings
        self.source = {**source, "topics": settings.topics}
        table_of(self.spark, self.source, lake)  # refused now, if it is not to be read
        self.table = self._table()

    def _table(self) -> Table:
        former, identifier = (NAMESPACE, FORMER_ROLLUPS + self.name), (NAMESPACE, ROLLUPS + table_name(self.name))
        if self.lake.catalog.table_exists(former):
            identifier = former
        stated = msgspec.json.encode(self.settings).decode()
        try:
            found = self.lake.catalog.load_table(identifier)
        except NoSuchTableError:
            try:
                found = self.lake.catalog.create_table(
                    identifier,
                    SCHEMA,
                    partition_spec=SPEC,
                    sort_order=ORDER,
                    properties={**PROPERTIES, SETTINGS: stated},
                )
            except TableAlreadyExistsError:
                found = self.lake.catalog.load_table(identifier)
        if found.properties.get(SETTINGS) != stated:
            raise Conflict(
                f'the rollup "{self.name}" was made with {found.properties.get(SETTINGS)}, not {stated}; '
                "use the same, or another --name"
            )
        return found

    # A run

    def run(self) -> Rolled:
        """Roll up the windows that are complete by now."""
        started_us = SystemClock().monotonic_us()
        self.table.refresh()
        properties = self.table.properties
        since_us = int(properties[UPTO]) if UPTO in properties else None
        seen: dict[str, int] = msgspec.json.decode(properties.get(SEEN, "{}"))
        with teaching():
            frame = self._unseen(since_us, seen)
            newest_us, offsets, late = self._look(frame, since_us, seen)
            upto_us = self._complete(newest_us)
            if upto_us is None or (since_us is not None and upto_us <= since_us):
                return Rolled(0, 0, since_us, since_us, _since(started_us))
            rolled = self._rolled(frame, since_us, upto_us)
            rows = self._commit(rolled, {UPTO: str(upto_us), SEEN: msgspec.json.encode({**seen, **offsets}).decode()})
        return Rolled(rows, late, since_us, upto_us, _since(started_us))

    def _unseen(self, since_us: int | None, seen: dict[str, int]) -> DataFrame:
        """Lake and log, without the files that were rolled up as a whole."""

        def is_wanted(root: str, file: LakeFile) -> bool:
            return since_us is None or file.newest_us >= since_us or file.last > seen.get(root, 0)

        return table_of(self.spark, self.source, self.lake.where, is_wanted)

    def _look(
        self, frame: DataFrame, since_us: int | None, seen: dict[str, int]
    ) -> tuple[int | None, dict[str, int], int]:
        """The newest time, how far each root goes, and how many messages are late: one pass over three columns."""
        late = f.lit(False)
        if since_us is not None:
            for root, offset in seen.items():
                late |= (f.col("root") == root) & (f.col("offset") > offset)
            late &= f.unix_micros("timestamp") < since_us
        # Nothing is newer than now: a wrong clock must not close the windows of all others.
        times = f.least(f.unix_micros("timestamp"), f.lit(SystemClock().now_us()))
        found = frame.groupBy("root").agg(f.max(times), f.max("offset"), f.count_if(late)).collect()
        newest_us = max((row[1] for row in found), default=None)
        return newest_us, {row[0]: row[2] for row in found}, sum(row[3] for row in found)

    def _complete(self, newest_us: int | None) -> int | None:
        """Windows that end by then are complete."""
        if newest_us is None:
            return None
        edge_us = newest_us - round(self.settings.delay_s * SECOND_US)
        return edge_us - edge_us % self.settings.window_us

    def _rolled(self, frame: DataFrame, since_us: int | None, upto_us: int) -> DataFrame:
        width_us = self.settings.window_us
        at = f.unix_micros("timestamp")
        inside = frame.where(at < upto_us) if since_us is None else frame.where((at >= since_us) & (at < upto_us))
        inside = inside.withColumn("start_us", at - f.pmod(at, f.lit(width_us)))
        rolled = _counted(inside, width_us).join(_fields(inside), ["root", "topic", "start_us"], "left")
        starts = f.timestamp_micros("start_us")
        return (
            rolled.withColumn("window_start", starts)
            .withColumn("window_end", f.timestamp_micros(f.col("start_us") + width_us))
            .withColumn("day", f.floor(f.col("start_us") / (86_400 * SECOND_US)).cast("int"))
            .select(*COLUMNS, "day")
        )

    def _commit(self, rolled: DataFrame, reached: dict[str, str]) -> int:
        with attempt_of(self.table, "rollup") as attempt:
            ordered = rolled.repartition(1, "day").sortWithinPartitions("day", "window_start", "topic")
            written = write(ordered, attempt, store_of(self.table.io.properties))
            paths = lake_files.written(attempt)
            rows = append_files(self.table, paths, reached, f'the rollup "{self.name}"', written=written)
        lake_files.make_commit_durable(self.table)
        return rows

    def sweep(self, grace_s: float) -> int:
        """Delete what nobody needs any more; how many files."""
        return lake_files.sweep(self.table, grace_s)

    # Reading it

    def frame(self) -> DataFrame:
        """All windows that are rolled up by now."""
        self.table.refresh()
        paths = [task.file.file_path for task in self.table.scan().plan_files()]
        if not paths:
            raise Malformed(f'the rollup "{self.name}" has no complete window yet; wait, or use a shorter --window')
        return self.spark.read.parquet(*paths).select(*COLUMNS)


def _since(started_us: int) -> float:
    return (SystemClock().monotonic_us() - started_us) / SECOND_US


def _counted(frame: DataFrame, width_us: int) -> DataFrame:
    """What does not look into payloads; only their lengths travel."""
    each = Window.partitionBy("root", "topic", "start_us").orderBy("timestamp", "offset")
    slim = frame.select("root", "topic", "start_us", "timestamp", "offset", f.length("payload").alias("size"))
    gap_us = f.unix_micros("timestamp") - f.lag(f.unix_micros("timestamp")).over(each)
    return (
        slim.withColumn("gap_s", gap_us / SECOND_US)
        .groupBy("root", "topic", "start_us")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").cast("long").alias("bytes"),
            (f.count("*") / (width_us / SECOND_US)).alias("messages_per_s"),
            f.min("size").cast("long").alias("payload_bytes_min"),
            f.avg("size").alias("payload_bytes_mean"),
            f.max("size").cast("long").alias("payload_bytes_max"),
            f.avg("gap_s").alias("gap_s_mean"),
            f.max("gap_s").alias("gap_s_max"),
            f.min("offset").alias("first_offset"),
            f.max("offset").alias("last_offset"),
        )
    )


def _fields(frame: DataFrame) -> DataFrame:
    """Numbers in payloads that are JSON: those of an object by their names, and a bare number by the name ""."""
    keys = ["root", "topic", "start_us"]
    parsed = frame.select(*keys, f.try_parse_json(f.col("payload").cast("string")).alias("json")).where(
        "json is not null"
    )
    of_objects = (
        parsed.where("schema_of_variant(json) like 'OBJECT%'")
        .lateralJoin(parsed.sparkSession.tvf.variant_explode(f.col("json").outer()))
        .select(*keys, f.col("key").alias("name"), f.col("value"))
    )
    bare = parsed.select(*keys, f.lit("").alias("name"), f.col("json").alias("value"))
    numbers = (
        of_objects.union(bare)
        .where(f.schema_of_variant("value").rlike(NUMBER))
        .select(*keys, "name", f.try_variant_get("value", "$", "double").alias("number"))
        .where("number is not null")
    )
    halves = f.percentile_approx("number", [0.5, 0.99], 10_000)
    each = numbers.groupBy(*keys, "name").agg(
        f.count("*").alias("count"),
        f.min("number").alias("min"),
        f.avg("number").alias("mean"),
        f.max("number").alias("max"),
        halves.alias("parts"),
    )
    summary = f.struct("count", "min", "mean", "max", f.col("parts")[0].alias("p50"), f.col("parts")[1].alias("p99"))
    return each.groupBy(*keys).agg(f.map_from_entries(f.collect_list(f.struct("name", summary))).alias("fields"))


# As a picture


def plot(frame: DataFrame, path: str, title: str) -> list[str]:
    """Draw the rates and payload sizes of the busiest topics; answers which."""
    busiest = frame.groupBy("topic").agg(f.sum("messages").alias("all")).orderBy(f.desc("all"), "topic")
    topics = [row.topic for row in busiest.limit(TOPICS_DRAWN_MAX).collect()]
    shown = frame.where(f.col("topic").isin(topics)).select(
        "topic", "window_start", "window_end", "messages_per_s", "payload_bytes_mean", "gap_s_max"
    )
    figure = _drawn(shown.orderBy("window_start").toArrow().to_pylist(), topics, title)
    figure.savefig(path, dpi=120)
    return topics


def _drawn(rows: Sequence[dict[str, Any]], topics: Sequence[str], title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    figure.suptitle(title)
    charts = {"messages_per_s": "messages/s", "payload_bytes_mean": "payload, bytes", "gap_s_max": "longest gap, s"}
    axes = figure.subplots(len(charts), 1, sharex=True)
    for chart, (column, label) in zip(axes, charts.items(), strict=True):
        for topic in topics:
            points = [(row["window_start"], row[column]) for row in rows if row["topic"] == topic]
            chart.plot(*zip(*points, strict=True), marker=".", label=topic, linewidth=1)
        chart.set_ylabel(label)
        chart.set_ylim(0, 1.1 * max((row[column] or 0 for row in rows), default=0) or 1)
        chart.grid(alpha=0.3)
    axes[0].legend(fontsize="small", ncols=2)
    if len({row["window_start"] for row in rows}) == 1:
        start, end = rows[0]["window_start"], rows[0]["window_end"]
        axes[0].set_xlim(start - (end - start), end)  # a single point has years to both sides otherwise
    figure.autofmt_xdate()
    return figure


def moment(time_us: int | None) -> str:
    """A time for people."""
    return "the beginning" if time_us is None else f"{to_datetime(time_us):%Y-%m-%d %H:%M:%S} UTC"
