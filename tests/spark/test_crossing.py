"""Lake and log as one: over a server, in the order of offsets, and while the log forgets what is archived."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import headwater
import headwater.bus
from client.served import Served
from headwater.errors import Conflict, Gap
from headwater.spark.options import read_options
from headwater.spark.pipelines.archive import Archive, Options
from headwater.spark.reading import BatchReader, SpansPartition
from headwater.spark.streaming import StreamReader
from spark.rows import SCHEMA, by_place, partitions, replayed, row_of, rows, trim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

FORGETTING = headwater.Config(
    segment_bytes=64 * 1024, retention=headwater.Retention(bytes=64 * 1024), retention_interval_s=1.0
)
"""Keeps little, of what is archived."""
WAIT_S = 90


def publish(bus: headwater.bus.Bus, count: int, roots: tuple[str, ...] = ("home", "yard")) -> None:
    bus.publish_many(
        [
            headwater.Outgoing(f"{root}/{n % 5}/temp", b"%d" % n, headers={"n": str(n)} if n % 3 else (), key=b"%d" % n)
            for root in roots
            for n in range(count)
        ]
    )


def archive(spark: SparkSession, tmp: Path, **options: Any) -> Archive:
    return Archive(spark, str(tmp / "lake"), {"data": str(tmp / "data")}, Options(**options))


def collected(frame: DataFrame) -> list[Any]:
    return by_place(row_of(row) for row in frame.toArrow().to_pylist())


def merged(*parts: list[Any]) -> list[Any]:
    """Each row once."""
    return by_place({(row[0], row[2]): row for part in parts for row in part}.values())


@contextmanager
def forgetful(spark: SparkSession, tmp: Path) -> Iterator[tuple[Served, list[Any]]]:
    """A server whose log has lost what is archived, with more after it; and all that was ever published."""
    with Served(tmp / "data", headwater.Config(segment_bytes=64 * 1024)) as server:
        publish(server.bus, 200)
        whole = replayed(tmp / "data")
        list(archive(spark, tmp).round())
        trim(server.bus)
        publish(server.bus, 60)
        newer = replayed(tmp / "data")
        assert len(newer) < len(whole)
        archive(spark, tmp).step("yard", 201, 230)
        yield server, merged(whole, newer)


def test_a_limit_counts_all_that_is_archived_and_what_matches_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    with forgetful(spark, tmp_path) as (server, wanted):
        options = {"url": server.url, "lake": str(tmp_path / "lake"), "topics": "home/1/temp"}
        stream = StreamReader(read_options(options), SCHEMA)
        place, counts, found = {"home": 1}, [], []
        while (end := stream.latestOffset(place, ReadMaxRows(10))) != place:
            some = [
                row["offset"]
                for partition in stream.partitions(place, end)
                for batch in stream.read(partition)
                for row in batch.to_pylist()
            ]
            counts.append(len(some))
            found += some
            place = end
        stream.stop()
        assert counts == [2] * 20 + [10, 2]
        assert found == [row[2] for row in wanted if row[1] == "home/1/temp"]


# From a server


def test_reads_from_a_server_reach_back_into_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    with forgetful(spark, tmp_path) as (server, wanted):
        lake = tmp_path / "lake"
        assert rows(server.url, lake=lake) == wanted
        assert rows(server.url, lake=lake, messagesPerPartition=17) == wanted
        assert rows(server.url, lake=lake, topics="+/1/temp") == [row for row in wanted if "/1/" in row[1]]
        since = wanted[40][3].isoformat()
        assert rows(server.url, lake=lake, topics="home/#", startingOffsets=since) == [
            row for row in wanted if row[0] == "home" and row[3] >= wanted[40][3]
        ]
        for topics in ("#", "home/#"):
            frame = headwater.spark.table(spark, topics, url=server.url, lake=str(lake))
            assert collected(frame) == [row for row in wanted if topics == "#" or row[0] == "home"]


def test_a_stream_from_a_server_crosses_from_the_lake_into_the_log(spark: SparkSession, tmp_path: Path) -> None:
    with forgetful(spark, tmp_path) as (server, wanted):
        seen: list[Any] = []
        query = (
            spark.readStream.format("headwater")
            .options(url=server.url, lake=str(tmp_path / "lake"), maxMessagesPerTrigger="200", subscription="job")
            .load()
            .writeStream.foreachBatch(lambda frame, _: seen.extend(row_of(row) for row in frame.toArrow().to_pylist()))
            .option("checkpointLocation", str(tmp_path / "place"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        assert by_place(seen) == wanted
        assert [[row[2] for row in seen if row[0] == root] for root in ("home", "yard")] == [list(range(1, 261))] * 2
        assert [info.id for info in server.bus.subscriptions()] == ["job"]


def test_a_stream_misses_nothing_while_the_log_forgets_what_is_archived(spark: SparkSession, tmp_path: Path) -> None:
    """Publishing, archiving, compaction and retention go on; the stream begins at the first message of all."""
    with Served(tmp_path / "data", FORGETTING) as server:
        publish(server.bus, 300)
        job = Archive(spark, str(tmp_path / "lake"), {"url": server.url}, Options(small_files_max=3))
        list(job.round())
        ending, failures = threading.Event(), list[BaseException]()
        published = {"home": 300, "yard": 300}
        seen: list[tuple[str, int, int]] = []

        def keep(work: Any) -> threading.Thread:
            def loop() -> None:
                try:
                    while not ending.is_set():
                        work()
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=loop)
            thread.start()
            return thread

        def more() -> None:
            if sum(published.values()) - len(seen) > 5000:  # no more than the stream can read in the end
                ending.wait(0.05)
                return
            for root, number in published.items():
                server.bus.publish_many([(f"{root}/x", b"%d" % n + b"." * 200) for n in range(number, number + 40)])
                published[root] = number + 40
            ending.wait(0.05)

        def keep_lake() -> None:
            list(job.round())
            list(job.compact())

        def take(frame: Any, _: int) -> None:
            seen.extend((row.root, row.offset, int(bytes(row.payload).rstrip(b"."))) for row in frame.collect())

        threads = [keep(more), keep(keep_lake)]
        try:
            query = (
                spark.readStream.format("headwater")
                .options(url=server.url, lake=str(tmp_path / "lake"), maxMessagesPerTrigger="1500")
                .load()
                .writeStream.foreachBatch(take)
                .option("checkpointLocation", str(tmp_path / "place"))
                .start()
            )
            until_s = monotonic() + WAIT_S
            while (
                monotonic() < until_s
                and query.isActive
                and not (_first_of(server) > 300 and len(seen) > 2500 and query.lastProgress)
            ):
                sleep(0.1)
        finally:
            ending.set()
            for thread in threads:
                thread.join(WAIT_S)
        assert not failures
        total = sum(published.values())
        until_s = monotonic() + WAIT_S
        while len(seen) < total and query.isActive and monotonic() < until_s:
            sleep(0.1)
        query.stop()
        assert query.exception() is None
        assert _first_of(server) > 300, "the log has forgotten nothing: this shows nothing"
        for root, number in published.items():
            assert [row[1:] for row in seen if row[0] == root] == [(n + 1, n) for n in range(number)]


def _first_of(server: Served) -> int:
    return min(extent.first for extent in server.bus.extents("#"))


# Whose lake


def test_a_lake_of_another_bus_is_refused_before_any_row(spark: SparkSession, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        publish(bus, 10)
    list(archive(spark, tmp_path).round())
    with Served(tmp_path / "other") as server:
        publish(server.bus, 10)
        options = {"url": server.url, "lake": str(tmp_path / "lake")}
        with pytest.raises(Conflict, match="belongs to another bus"):
            rows(server.url, lake=tmp_path / "lake")
        with pytest.raises(Conflict, match="belongs to another bus"):
            headwater.spark.table(spark, "#", url=server.url, lake=str(tmp_path / "lake"))
        with pytest.raises(PySparkException, match=r"Conflict\(409\).*belongs to another bus"):
            spark.read.format("headwater").options(**options).load().collect()
        query = spark.readStream.format("headwater").options(**options).load().writeStream.format("noop").start()
        with pytest.raises(StreamingQueryException, match=r"Conflict\(409\).*belongs to another bus"):
            query.awaitTermination(WAIT_S)


def test_an_address_that_serves_another_bus_by_now_is_noticed(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        publish(server.bus, 10)
        stream = StreamReader(read_options({"url": server.url}), SCHEMA)
        place = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        server.stop()
        server._folder = tmp_path / "other"
        server.start()
        publish(server.bus, 20)
        with pytest.raises(Conflict, match="serves another bus"):
            stream.latestOffset(place, ReadAllAvailable())
        stream.stop()


# In order, and what is forgotten after a read was planned


def test_rows_are_in_order_where_clocks_were_not(spark: SparkSession, tmp_path: Path) -> None:
    clock = headwater.ManualClock()
    with headwater.bus.Bus(tmp_path / "data", clock=clock) as bus:
        for days in (1, -1, 1, -1, 1):
            publish(bus, 30, ("home",))
            clock.advance(86_400 * days)
    job = archive(spark, tmp_path)
    job.step("home", 1, 140)
    files = job.lake.archived()["home"].files
    assert any(one.last >= other.first for one, other in pairwise(files)), "no two files overlap"
    for count in (1000, 20):
        found = partitions(tmp_path / "data", lake=tmp_path / "lake", messagesPerPartition=count)
        assert [row[2] for part in found for row in part] == list(range(1, 151))
    whole = replayed(tmp_path / "data")
    assert rows(tmp_path / "data", lake=tmp_path / "lake") == whole
    assert rows(tmp_path / "data", lake=tmp_path / "lake", topics="home/3/+") == [r for r in whole if "/3/" in r[1]]


@pytest.mark.parametrize("source", ["data", "url"])
def test_what_the_log_forgets_after_a_read_was_planned_is_read_from_the_lake(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    with Served(tmp_path / "data", headwater.Config(segment_bytes=64 * 1024)) as server:
        publish(server.bus, 200)
        job = archive(spark, tmp_path)
        job.step("home", 1, 50)
        place: dict[str, Any] = {source: {"data": str(tmp_path / "data"), "url": server.url}[source]}
        reader = BatchReader(read_options({**place, "lake": str(tmp_path / "lake")}), SCHEMA)
        whole = replayed(tmp_path / "data", "home/#")
        planned: Any = reader.partitions()
        table = headwater.spark.table(spark, "home/#", lake=str(tmp_path / "lake"), **place)
        job.step("home", 51, 200)
        trim(server.bus)

        def read(root: str) -> list[Any]:
            spans = [span for part in planned for span in part.spans if span.root == root]
            part = SpansPartition(tuple(spans), 0)
            return [row_of(row) for batch in reader.read(part) for row in batch.to_pylist()]

        assert read("home") == whole == collected(table)
        with pytest.raises(Gap, match=r'messages 1 to 200 of "yard" are gone'):
            read("yard")
