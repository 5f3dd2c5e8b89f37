"""The act of the demo with Spark: topics become tables, archived and live, while the house goes on publishing."""

from __future__ import annotations

import time
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from headwater.bus import Bus
from headwater.cli.demo.house import House
from headwater.cli.demo.stage import Stage, sparkline
from headwater.cli.following import pause
from headwater.units import size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW_S = 1.0
MISSING = (
    "Spark is not here: with `pip install 'headwater[spark]'` and Java 17 (Debian: apt install "
    "openjdk-17-jre-headless) this demo goes on with an archive, a rollup and a query over lake and live."
)


def is_possible() -> bool:
    """Whether there is a Spark to run."""
    return all(map(find_spec, ("pyspark", "pyarrow", "pyiceberg"))) and which("java") is not None


def archive_and_ask(stage: Stage, bus: Bus, folder: str, picture: str | None, seconds: float) -> None:
    """Archive, roll up, and ask over lake and live, while the house goes on publishing."""
    stage.act(
        "Every topic is a table",
        "Spark archives the log into Iceberg tables, beside the process that owns it and goes on publishing; rolls it "
        "up by windows of time; and reads lake and live log as one table, with no gap between.",
    )
    if not is_possible():
        stage.show(Text(MISSING))
        return
    from headwater.cli.pipeline import running

    lake = f"{folder}-lake"
    with House(bus, 0.02), running(None, logs=False, name="headwater demo") as spark:
        _archive(stage, spark, folder, lake)
        pause(seconds)
        _roll_up(stage, spark, folder, lake, picture)
        _ask(stage, spark, bus, folder, lake)


def _archive(stage: Stage, spark: SparkSession, folder: str, lake: str) -> None:
    from headwater.spark.pipelines.archive import Archive

    job = Archive(spark, lake, {"data": folder})
    start = time.perf_counter()
    steps = list(job.round())
    elapsed = time.perf_counter() - start
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column, where in (("table", "left"), ("messages", "right"), ("files", "right"), ("bytes", "right")):
        table.add_column(column, justify=where)  # type: ignore[arg-type]  # left or right
    for step in steps:
        table.add_row(step.root, f"{step.rows:,}", f"{step.files}", size(step.bytes))
    stage.show(table)
    rows = sum(step.rows for step in steps)
    stage.check(f"{rows:,} messages are archived, each root in a table that any engine opens", rows > 0)
    stage.figure("archived", f"{rows:,} in {elapsed:.1f} s, Spark's first")


def _roll_up(stage: Stage, spark: SparkSession, folder: str, lake: str, picture: str | None) -> None:
    from headwater.spark.pipelines.rollup import Rollup, Settings, plot

    job = Rollup(spark, lake, {"data": folder}, "demo", Settings("home/#", WINDOW_S, WINDOW_S))
    done = job.run()
    frame = job.frame()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan")
    table.add_column()
    table.add_column(style="dim")
    for topic, rates in _rates(frame).items():
        table.add_row(topic, sparkline(rates, 32), f"{sum(rates) / len(rates):.0f}/s")
    stage.show(table)
    stage.check(f"{done.rows:,} windows of {WINDOW_S:g} s are rolled up, from lake and log", done.rows > 0)
    if picture is not None and find_spec("matplotlib") is not None:
        plot(frame, picture, f"the demo's house, windows of {WINDOW_S:g} s")
        stage.show(Text.assemble("The picture of it: ", (picture, "cyan")))


def _rates(frame: DataFrame) -> dict[str, list[float]]:
    """Messages a second of the first thermometers, window by window."""
    found: dict[str, list[float]] = {}
    wanted = frame.where("topic like '%/temp'").orderBy("topic", "window_start")
    for row in wanted.select("topic", "messages_per_s").collect():
        found.setdefault(row.topic, []).append(row.messages_per_s)
    return found


def _ask(stage: Stage, spark: SparkSession, bus: Bus, folder: str, lake: str) -> None:
    from headwater.spark import table as table_of_topics

    published = bus.ends()["home"]
    frame = table_of_topics(spark, "home/#", data=folder, lake=lake)
    offsets = ("count(*) n", "count(distinct offset) each", "min(offset) low", "max(offset) high")
    (row,) = frame.selectExpr(*offsets).collect()
    stage.show(_means(frame))
    stage.check(
        f"one query sees all {row.n:,} messages of the house, archived and live: no gap, none twice",
        row.n == row.each == row.high - row.low + 1 and row.high >= published,
    )
    stage.figure("read as one table, lake and live", f"{row.n:,}")


def _means(frame: DataFrame) -> Table:
    """What was measured in each room, on the whole."""
    values = frame.selectExpr("topic", "try_cast(cast(payload as string) as double) value")
    rooms = values.where("topic like '%/temp' and value is not null").groupBy("topic")
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("select topic, avg(payload)", style="cyan")
    table.add_column("°C", justify="right")
    for row in rooms.avg("value").orderBy("topic").collect():
        table.add_row(row[0], f"{row[1]:.2f}")
    return table
