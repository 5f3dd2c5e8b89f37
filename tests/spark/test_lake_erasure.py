"""Who reads a lake through Spark sees what `bus.replay` does: at once after a purge, and when it was carried out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater
import headwater.bus
from client.served import Served
from headwater import Config, Outgoing
from headwater.lake.erasure import carry_out
from headwater.lake.lake import open_lake
from headwater.log.purges import Purge
from headwater.spark.pipelines.archive import Archive, Options
from lake.test_erasure import delete_rows, in_lake
from spark import lakes
from spark.rows import by_place, row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server that has 90 messages in its lake and 10 more in its log."""
    config = Config(segment_bytes=64 * 1024, lake=str(tmp_path / "lake"))
    with Served(tmp_path / "data", config) as made:
        keys = (b"ann", b"ben", None)
        for count in (45, 45, 10):
            messages = [Outgoing(f"home/{n % 5}", b"%d" % n, key=keys[n % 3]) for n in range(count)]
            made.bus.publish_many(messages)
            if count == 45:
                lakes.archive(tmp_path / "lake", made.bus, "home", made.bus.ends()["home"])
        yield made


def check(spark: SparkSession, served: Served, tmp: Path) -> None:
    wanted = [message.offset for message in served.bus.replay("home/#")]
    lake = str(tmp / "lake")
    for data, url in ((str(tmp / "data"), None), (None, served.url)):
        assert offsets(headwater.spark.table(spark, "home/#", lake=lake, data=data, url=url)) == wanted
        place = {"url": url} if data is None else {"data": data}
        reader = spark.read.format("headwater").options(**place, lake=lake)
        assert offsets(reader.option("startingOffsets", "earliest").load()) == wanted


def test_purges_hold_at_once_for_whoever_plans_and_after_they_were_carried_out(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    before = headwater.spark.table(spark, "home/#", lake=str(tmp_path / "lake"), data=str(tmp_path / "data"))
    assert len(offsets(before)) == 100
    served.bus.erase(b"ann")
    served.bus.purge("home/3")
    check(spark, served, tmp_path)
    frame = headwater.spark.table(spark, "home/#", lake=str(tmp_path / "lake"), data=str(tmp_path / "data"))
    rows = by_place(row_of(row) for row in frame.toArrow().to_pylist())
    assert [row[2] for row in rows] == [message.offset for message in served.bus.replay("home/#")]
    assert {row[4] for row in rows} == {b"ben", None}
    job = Archive(spark, str(tmp_path / "lake"), {"url": served.url}, Options(grace_s=0))
    list(job.round())
    (done,) = job.erase()
    assert done.rows > 0
    check(spark, served, tmp_path)
    assert [offset for offset, _ in in_lake(tmp_path)] == [one.offset for one in served.bus.replay("home/#")]
    assert list(job.erase()) == []
    assert sum(one.files_after for one in job.compact(1)) > 0
    check(spark, served, tmp_path)


def test_rows_that_other_engines_deleted_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with headwater.open(tmp_path / "data", Config(segment_bytes=64 * 1024)) as bus:
        bus.publish_many([("home/a", b"%d" % n) for n in range(20)])
        lakes.archive(lake, bus, "home", 20)
        delete_rows(tmp_path, [0, 9])
    frame = headwater.spark.table(spark, lake=str(lake), data=str(tmp_path / "data"))
    wanted = [offset for offset in range(1, 21) if offset not in (1, 10)]
    assert offsets(frame) == wanted
    read = spark.read.format("headwater").options(data=str(tmp_path / "data"), lake=str(lake))
    assert offsets(read.load()) == wanted
    carry_out(open_lake(str(lake)).table("home"), "home", tuple[Purge, ...]())
    assert offsets(headwater.spark.table(spark, lake=str(lake), data=str(tmp_path / "data"))) == wanted
