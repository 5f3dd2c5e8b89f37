"""Reading from a server: the same rows as from its folder, over connections of the tasks' own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

import headwater
from client.served import Served
from headwater.errors import Gap, Malformed
from headwater.spark.options import read_options
from headwater.spark.served import Served as Log
from headwater.spark.streaming import StreamReader
from headwater.spark.topics import EVERYTHING
from server.site import until
from spark.rows import SCHEMA, replayed, rows
from spark.test_reading import SMALL, fill, retained_from

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("reader")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served") / "data", SMALL) as server:
        fill(server.bus, "home")
        fill(server.bus, "office", 120)
        server.bus.publish("home/late", b"x", ttl_s=0.001)
        server.bus.purge("home/3/#")
        yield server


@pytest.mark.parametrize("topics", ["#", "home/#", "+/4/temp", "home/2/temp", "nothing/#"])
def test_rows_are_what_a_replay_yields(served, topics):
    assert rows(served.url, topics=topics) == replayed(served.bus.folder, topics)


@pytest.mark.parametrize("count", [1000, 97, 40])
def test_partitions_of_any_size_give_the_same_rows(served, count):
    assert rows(served.url, messagesPerPartition=count) == replayed(served.bus.folder)


def test_offsets_and_times_choose_as_from_a_folder(served):
    found = rows(served.url, topics="home/#", startingOffsets='{"home": 290}', endingOffsets='{"home": 295}')
    assert found == [row for row in replayed(served.bus.folder, "home/#") if 290 <= row[2] < 295]
    early = datetime(2020, 1, 1, tzinfo=UTC).isoformat()
    assert rows(served.url, startingOffsets=early) == replayed(served.bus.folder)
    with pytest.raises(Malformed, match="beyond its end"):
        rows(served.url, endingOffsets='{"home": 1000}')


def test_loss_is_named(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    first = retained_from(tmp_path / "data")
    with Served(tmp_path / "data", SMALL) as server:
        with pytest.raises(Gap) as caught:
            rows(server.url, startingOffsets='{"home": 1}')
        assert (caught.value.first, caught.value.last) == (1, first - 1)
        found = rows(server.url, startingOffsets='{"home": 1}', failOnDataLoss="false")
        assert [row[2] for row in found] == list(range(first, 301))


def test_partitions_go_by_how_large_the_messages_of_a_root_are(tmp_path):
    with Served(tmp_path / "data") as server:
        server.bus.publish_many([("large/a", bytes(10_000))] * 100)
        server.bus.publish_many([("small/a", b"x")] * 100)
        with closing(Log(server.url, EVERYTHING)) as log:
            assert 1_000_000 <= log.bytes_between("large", 1, 100) <= 2_000_000
            assert next(span.count for span in log.spans("large", 1, 100, 500_000, None)) <= 50
            assert len(list(log.spans("small", 1, 100, 500_000, None))) == 1


def test_sessions_of_readers_do_not_pile_up(served):
    before = len(served.server.sessions)
    rows(served.url, messagesPerPartition=40)
    until(lambda: len(served.server.sessions) <= before, "the last reader's goodbye")


def test_a_stream_shows_its_progress_as_a_subscription(tmp_path):
    with Served(tmp_path / "data") as server:
        fill(server.bus, "home", 10)
        fill(server.bus, "office", 5)
        stream = StreamReader(read_options({"url": server.url, "subscription": "spark-job"}), SCHEMA)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end == {"home": 11, "office": 6}
        stream.commit({"home": 4, "office": 1})
        (info,) = server.bus.subscriptions()
        assert (info.id, info.filter, info.lag, info.floors) == ("spark-job", "#", 12, {"home": 3, "office": 0})
        stream.commit(end)
        (info,) = server.bus.subscriptions()
        assert (info.lag, info.in_flight) == (0, 0)
        stream.stop()


def test_a_frame_from_a_server(spark, served):
    frame = spark.read.format("headwater").option("url", served.url).option("messagesPerPartition", 100).load()
    assert frame.groupBy("root").count().orderBy("root").collect() == [("home", 240), ("office", 120)]


def test_tables_come_from_a_server_too(spark, tmp_path):
    with Served(tmp_path / "data") as server:
        server.bus.publish("home/a", b"x")
        server.bus.subscribe("home/#", id="thermostat", start="earliest").next(1).reject("no")  # type: ignore[union-attr]
        for name in ("dead_letters", "subscriptions"):
            frame = spark.read.format("headwater").option("url", server.url).option("table", name).load()
            assert frame.count() == 1


def test_a_server_that_is_not_there_is_a_typed_error(spark):
    with pytest.raises(PySparkException, match=r"headwater://127\.0\.0\.1:1"):
        spark.read.format("headwater").option("url", "headwater://127.0.0.1:1").load().count()
