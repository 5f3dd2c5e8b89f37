"""Lakes in an object store: archived, read, erased, swept through a real S3 API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector

import headwater
from headwater import Config, Outgoing
from headwater.lake.lake import open_lake
from headwater.lake.layout import layout_of
from headwater.lake.scan import scanned
from headwater.lake.stores import located
from headwater.spark.pipelines.archive import Archive, Options
from headwater.spark.stores import _by_folder, reaches
from lake import catalogs, clouds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize(("scheme", "kind"), [("s3", "rest"), ("s3a", "postgresql")])
def test_a_lake_in_s3_is_archived_read_compacted_erased_and_swept(
    spark: SparkSession, tmp_path: Path, scheme: str, kind: str
) -> None:
    data = str(tmp_path / "data")
    with clouds.s3() as url, catalogs.catalog(kind, tmp_path, clouds.of_s3(url, scheme)) as described:
        where = clouds.configure(scheme, described)
        for _ in range(2):
            with headwater.open(data, Config(segment_bytes=64 * 1024)) as bus:
                bus.publish_many([Outgoing(f"home/{n % 3}", b"%d" % n, key=b"%d" % (n % 4)) for n in range(60)])
            job = Archive(spark, where, {"data": data}, Options(grace_s=0))
            assert [step.rows for step in job.round()] == [60]
        location = job.lake.table("home").location()
        assert location.startswith(f"{scheme}://")
        with headwater.open(data, Config(segment_bytes=64 * 1024)) as bus:
            bus.publish("home/0", b"new")
            wanted = [message.offset for message in bus.replay("home/#")]
        assert offsets(spark, where, data) == wanted
        assert [done.files_after for done in job.compact(1)] == [1]
        assert offsets(spark, where, data) == wanted
        with headwater.open(data, Config(segment_bytes=64 * 1024)) as bus:
            bus.erase(b"1")
            wanted = [message.offset for message in bus.replay("home/#")]
        assert offsets(spark, where, data) == wanted
        (done,) = job.erase()
        assert (done.rows, done.files_after) == (30, 1)
        assert offsets(spark, where, data) == wanted
        assert job.sweep() > 0
        (file,) = job.lake.archived()["home"].files
        filesystem, path = located(location)
        there = filesystem.get_file_info(FileSelector(f"{path}/data", recursive=True))
        assert [found.path for found in there if found.path.endswith(".parquet")] == [located(file.path)[1]]
        assert sum(batch.num_rows for batch in scanned(file.place, ("offset",), 1, 999)) == 90
        assert not reaches(spark, location), "hadoop-aws is here: this goes another way then"
        assert open_lake(where).archived()["home"].purged


def test_a_lake_in_s3_has_what_payloads_say_as_columns(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with headwater.open(data) as bus:
        bus.publish_many([("home/a", b"hello"), ("home/b", b"world")])
    with clouds.s3() as url, catalogs.catalog("sqlite", tmp_path, clouds.of_s3(url)) as described:
        where = clouds.configure("typed", described)
        job = Archive(spark, where, {"data": data}, Options(grace_s=0, layout=layout_of("day,topic", "offset")))
        assert [step.rows for step in job.round()] == [2]
        told: list[dict[str, float | str]] = [{"celsius": 21.5}, {"celsius": 22.5, "at": "attic"}]
        for n, said in enumerate(told):
            with headwater.open(data) as bus:
                properties = {name: {"type": "string" if name == "at" else "number"} for name in said}
                bus.schema("home/+", {"type": "object", "properties": properties}, check="none")
                bus.publish("home/a", said)
            assert [step.rows for step in job.round()] == [1], n
        assert [done.files_before for done in job.compact(1)] == [3]
        found = job.lake.table("home").scan().to_arrow().sort_by("offset").to_pylist()
        values = [None, None, {"celsius": 21.5, "at": None}, {"celsius": 22.5, "at": "attic"}]
        assert [row["value"] for row in found] == values
        read = spark.read.format("headwater").options(data=data, lake=where, typed="true").load()
        assert sorted(row.offset for row in read.where("value.celsius > 20").collect()) == [3, 4]


def offsets(spark: SparkSession, where: str, data: str) -> list[int]:
    """What there is in lake and log, read in both ways."""
    table = headwater.spark.table(spark, "home/#", lake=where, data=data)
    read = spark.read.format("headwater").options(data=data, lake=where).load()
    first, second = (sorted(row.offset for row in frame.select("offset").collect()) for frame in (table, read))
    assert first == second
    return first


def test_rows_that_follow_one_another_are_cut_where_a_folder_ends() -> None:
    days, topics, buckets = [1, 1, 1, 2, 2], ["a/b", "a/b", "a/c", "a/b", "a/b"], [3, None, None, None, None]
    columns = {"day": days, "partition_topic": topics, "key_bucket": buckets, "offset": [1, 2, 3, 4, 5]}
    found = list(_by_folder(pa.RecordBatch.from_pydict(columns), ("day", "partition_topic", "key_bucket")))
    assert [(folder, rows.to_pydict()) for folder, rows in found] == [
        ("day=1/partition_topic=a%2Fb/key_bucket=3", {"offset": [1]}),
        ("day=1/partition_topic=a%2Fb/key_bucket=__HIVE_DEFAULT_PARTITION__", {"offset": [2]}),
        ("day=1/partition_topic=a%2Fc/key_bucket=__HIVE_DEFAULT_PARTITION__", {"offset": [3]}),
        ("day=2/partition_topic=a%2Fb/key_bucket=__HIVE_DEFAULT_PARTITION__", {"offset": [4, 5]}),
    ]
    assert list(_by_folder(pa.RecordBatch.from_pydict({"day": [], "offset": []}), ("day",))) == []
