"""The lake: its tables, whose they are, and one table without a gap over lake and log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater.errors import Conflict, Malformed, NotFound
from headwater.lake import lake as lake_module
from headwater.lake.lake import LostRace, append, open_lake, table_name
from headwater.spark.history import topic_matches
from headwater.spark.pipelines.archive import Archive, Options
from headwater.topics.name import matches
from spark.beside import Owner
from spark.rows import Row, by_place, replayed, row_of, rows, trim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOME = Options(messages_per_commit=150)


def publish(folder: Path, count: int, roots: tuple[str, ...] = ("home", "yard")) -> None:
    with headwater.open(folder, headwater.Config(segment_bytes=64 * 1024)) as bus:
        for start in range(0, count, 50):
            bus.publish_many(
                [(f"{root}/{n % 5}/temp", b"%d" % n) for root in roots for n in range(start, min(count, start + 50))]
            )
        bus.publish(f"{roots[0]}/odd", b"\xff\0", key=b"k", headers={"a": "ü", "b": ""})


def collected(frame: DataFrame) -> list[Row]:
    """Rows by root and offset, with times as the source's own tests have them."""
    return by_place(row_of(row) for row in frame.toArrow().to_pylist())


def archive(spark: SparkSession, tmp: Path, options: Options = SOME) -> Archive:
    return Archive(spark, str(tmp / "my lake"), {"data": str(tmp / "data")}, options)


def run(job: Archive) -> int:
    return sum(step.rows for step in job.round())


def table(spark: SparkSession, tmp: Path, topics: str = "#") -> DataFrame:
    return headwater.spark.table(spark, topics, data=str(tmp / "data"), lake=str(tmp / "my lake"))


# Names and filters


@given(st.lists(st.text(min_size=0, max_size=200), max_size=20, unique=True))
def test_each_root_has_a_table_name_of_its_own(roots: list[str]) -> None:
    roots = [root for root in roots if root.isprintable()]
    names = {table_name(root) for root in roots}
    assert len(names) == len(roots)
    assert all(re.fullmatch("[a-z0-9_]{1,120}", name) for name in names)


@pytest.mark.parametrize("root", ["home", "Home", "a-b", "a.b", "ä", "_rollup_x", "x" * 200, "a__0123456789abcdef", ""])
def test_a_name_is_one_that_glue_and_hive_take_and_no_root_can_have_that_of_another(root: str) -> None:
    name = table_name(root)
    assert re.fullmatch("[a-z0-9][a-z0-9_]{0,119}", name)
    assert (name == root) == (root == "home")
    assert table_name(name) != name or root == "home"


def test_a_table_that_an_earlier_version_named_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark import lakes

    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("Haus-1/a", b"%d" % n) for n in range(5)])
        with monkeypatch.context() as before:
            before.setattr(lake_module, "table_name", lake_module.former_name)
            lakes.archive(tmp_path / "lake", bus, "Haus-1", 3)
        lakes.archive(tmp_path / "lake", bus, "Haus-1", 5)
        bus.publish("Neu-1/a", b"")
        lakes.archive(tmp_path / "lake", bus, "Neu-1", 1)
    opened = open_lake(str(tmp_path / "lake"))
    named = sorted(name[-1] for name in opened.catalog.list_tables("headwater"))
    assert named == [lake_module.former_name("Haus-1"), table_name("Neu-1")]
    assert opened.marks() == {"Haus-1": 5, "Neu-1": 1}


def test_a_root_that_was_once_called_as_another_table_is_now_has_its_own(tmp_path: Path) -> None:
    """A rollup's table, and that of a root with a digest in its name."""
    from spark import lakes

    taken = table_name("Haus-1")
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("Haus-1/a", b""), (f"{taken}/a", b""), ("_rollup_topics/a", b"")])
        opened = open_lake(str(tmp_path / "lake"))
        opened.claim(bus.id)
        opened.catalog.create_table(("headwater", "_rollup_topics"), schema=lake_module.SCHEMA)
        for root in ("Haus-1", taken, "_rollup_topics"):
            lakes.archive(tmp_path / "lake", bus, root, 1)
    assert opened.marks() == {"Haus-1": 1, taken: 1, "_rollup_topics": 1}


FILTERS = [
    "home/#",
    "home/+/temp",
    "home/1/+",
    "home",
    "home/odd",
    "home/+",
    "+/1/temp",
    "#",
    "home/a.c",
    "home/o'd\\d",
]


@pytest.mark.parametrize("topics", FILTERS)
def test_spark_matches_topics_as_the_bus_does(spark: SparkSession, topics: str) -> None:
    names = ["home", "home/1", "home/1/temp", "home/1/x", "home/1/temp/y", "home/odd", "home/", "home/abc", "home/a.c"]
    names += ["home/o'd\\d", "home/x\ny/temp", "home//temp", "homes/1/temp"]
    frame = spark.createDataFrame([(name,) for name in names], "topic string").where(topic_matches(topics))
    assert {row.topic for row in frame.collect()} == {name for name in names if matches(topics, name)}


# Whose it is


def test_a_lake_of_another_bus_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 10)
    publish(tmp_path / "other", 10)
    archive(spark, tmp_path)
    with pytest.raises(Conflict, match="belongs to another bus"):
        Archive(spark, str(tmp_path / "my lake"), {"data": str(tmp_path / "other")})
    with pytest.raises(Conflict, match="belongs to another bus"):
        headwater.spark.table(spark, "#", data=str(tmp_path / "other"), lake=str(tmp_path / "my lake"))
    with pytest.raises(Conflict, match="belongs to another bus"):
        rows(tmp_path / "other", lake=tmp_path / "my lake")


def test_a_folder_without_a_lake_is_not_made_one_by_reading(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 10)
    with pytest.raises(NotFound, match="pipeline archive"):
        table(spark, tmp_path)
    assert not (tmp_path / "my lake").exists()


@pytest.mark.parametrize("where", ["", "s3://bucket/lake", "lake*", "a{b"])
def test_what_cannot_be_a_lake_is_refused(where: str) -> None:
    with pytest.raises(Malformed):
        open_lake(where)


def test_a_catalog_that_is_not_configured_is_named() -> None:
    with pytest.raises(Malformed, match="nowhere"):
        open_lake("catalog:nowhere")


def test_a_log_restored_from_an_older_backup_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 50)
    with headwater.open(tmp_path / "data") as bus:
        bus.backup(tmp_path / "backup")
        bus.publish("home/1", b"later")
    run(archive(spark, tmp_path))
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(Conflict, match="older backup"):
        Archive(spark, str(tmp_path / "my lake"), {"data": str(tmp_path / "restored")})
    with pytest.raises(Conflict, match="older backup"):
        headwater.spark.table(spark, "#", data=str(tmp_path / "restored"), lake=str(tmp_path / "my lake"))


# One table


def ask_duckdb(query: str) -> tuple[int, ...]:
    """The only row of an answer; by a process of its own, as DuckDB's binding tells at the end of pytest's what it has
    not let go of."""
    script = "import duckdb, json, sys; print(json.dumps(duckdb.connect().execute(sys.argv[1]).fetchone()))"
    done = subprocess.run([sys.executable, "-c", script, query], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return tuple(json.loads(done.stdout))


def test_tables_open_in_other_engines(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 300)
    run(archive(spark, tmp_path))
    wanted = [row for row in replayed(tmp_path / "data") if row[0] == "home"]
    lake = open_lake(str(tmp_path / "my lake"))
    iceberg = lake.table("home")
    assert by_place(row_of(row) for row in iceberg.scan().to_arrow().to_pylist()) == wanted
    paths = [file.path.removeprefix("file://") for file in lake.archived()["home"].files]
    query = f'select max("offset"), count(*), sum(octet_length(payload)) from read_parquet({paths})'
    found = ask_duckdb(query)
    assert found == (len(wanted), len(wanted), sum(len(row[6]) for row in wanted))


@settings(max_examples=6, deadline=None)
@given(
    points=st.lists(st.integers(0, 400), min_size=1, max_size=4), topics=st.sampled_from(["#", "home/#", "+/1/temp"])
)
def test_lake_and_tail_are_the_log_for_every_archive_point(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, points: list[int], topics: str
) -> None:
    tmp = tmp_path_factory.mktemp("points")
    publish(tmp / "data", 120)
    job = archive(spark, tmp)
    last = replayed(tmp / "data", "home/#")[-1][2]
    at = 0
    for point in sorted({min(point, last) for point in points if point}):
        if point > at:
            job.step("home", at + 1, point)
            at = point
    wanted = replayed(tmp / "data", topics)
    assert collected(table(spark, tmp, topics)) == wanted
    assert rows(tmp / "data", topics=topics, lake=tmp / "my lake") == wanted
    assert rows(tmp / "data", topics=topics, lake=tmp / "my lake", messagesPerPartition=17) == wanted


def test_a_table_is_whole_while_publishing_and_archiving_go_on(spark: SparkSession, tmp_path: Path) -> None:
    with Owner(tmp_path / "data") as owner:
        job = archive(spark, tmp_path, Options(small_files_max=3))
        ending = threading.Event()
        failures: list[BaseException] = []

        def keep_archiving() -> None:
            try:
                while not ending.is_set():
                    run(job)
                    list(job.compact())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=keep_archiving)
        thread.start()
        try:
            for _ in range(4):
                acked = dict(owner.acked)
                counts = _counts(table(spark, tmp_path))
                for root, number in acked.items():
                    newest, count, distinct = counts[root]
                    assert newest == count == distinct >= number
        finally:
            ending.set()
            thread.join(100)
        assert not failures
    assert collected(table(spark, tmp_path)) == replayed(tmp_path / "data")


def _counts(frame: DataFrame) -> dict[str, Any]:
    frame.createOrReplaceTempView("crossing")
    found = frame.sparkSession.sql(
        "select root, max(offset), count(*), count(distinct offset) from crossing group by root"
    )
    return {row[0]: tuple(row[1:]) for row in found.collect()}


def test_conditions_reach_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 200)
    archive(spark, tmp_path).step("home", 1, 120)
    wanted = [row for row in replayed(tmp_path / "data", "home/#") if 100 < row[2] <= 140 and row[1] == "home/1/temp"]
    assert wanted
    found = table(spark, tmp_path, "home/#").where("offset > 100 and offset <= 140 and topic = 'home/1/temp'")
    assert collected(found) == wanted
    source = spark.read.format("headwater").options(data=str(tmp_path / "data"), lake=str(tmp_path / "my lake"))
    read = source.load().where("root = 'home' and offset > 100 and offset <= 140 and topic = 'home/1/temp'")
    assert collected(read) == wanted


def test_a_read_reaches_back_beyond_what_the_log_kept(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 200)
    whole = replayed(tmp_path / "data")
    run(archive(spark, tmp_path))
    _trim(tmp_path / "data")
    publish(tmp_path / "data", 30)
    newer = replayed(tmp_path / "data")
    assert len(newer) < len(whole)
    wanted = by_place({(row[0], row[2]): row for row in [*whole, *newer]}.values())
    assert collected(table(spark, tmp_path)) == wanted
    assert rows(tmp_path / "data", lake=tmp_path / "my lake") == wanted
    since = whole[40][3].isoformat()
    found = rows(tmp_path / "data", lake=tmp_path / "my lake", startingOffsets=since)
    assert found == [row for row in wanted if row[3] >= whole[40][3]]


def _trim(folder: Path) -> None:
    """Delete what retention would."""
    with headwater.open(folder, headwater.Config(segment_bytes=64 * 1024)) as bus:
        trim(bus)


def test_a_stream_crosses_from_the_lake_into_the_log(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 200)
    whole = replayed(tmp_path / "data")
    job = archive(spark, tmp_path)
    run(job)
    _trim(tmp_path / "data")
    publish(tmp_path / "data", 60)
    job.step("yard", 201, 230)
    reader = spark.readStream.format("headwater").options(
        data=str(tmp_path / "data"), lake=str(tmp_path / "my lake"), maxMessagesPerTrigger="70"
    )
    query = (
        reader.load()
        .writeStream.format("memory")
        .queryName("crossed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(250)
    wanted = by_place({(row[0], row[2]): row for row in [*whole, *replayed(tmp_path / "data")]}.values())
    assert collected(spark.table("crossed")) == wanted


def test_of_two_commits_from_the_same_place_one_loses(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 50)
    job = archive(spark, tmp_path)
    mine = job.lake.make_table("home")
    theirs = job.lake.table("home")
    append(theirs, [], 0, 1, 10)
    with pytest.raises(LostRace):
        append(mine, [], 0, 1, 20)
    assert job.lake.marks() == {"home": 10}
