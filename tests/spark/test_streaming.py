"""Streaming reads in a real Spark session: every message once, in order, across stops, limits and new roots."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import headwater
from headwater.clock import ManualClock
from headwater.errors import Conflict, Gap, Malformed
from headwater.spark import streaming
from headwater.spark.options import check_streaming, read_options
from headwater.spark.reading import SpansPartition, open_log
from headwater.spark.streaming import StreamReader
from spark.beside import Owner
from spark.rows import SCHEMA
from spark.test_reading import SMALL, fill, retained_from

pytestmark = pytest.mark.xdist_group("spark")


def reader(folder: Path, **options: object) -> StreamReader:
    asked = read_options({"data": str(folder), **{name: str(value) for name, value in options.items()}})
    check_streaming(asked)
    return StreamReader(asked, SCHEMA)


def read(stream: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[str, int]]:
    return [
        (row["root"], row["offset"])
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


# Without Spark: what the planner is asked


def test_a_stream_begins_where_it_is_told(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 30)
        fill(bus, "office", 20)
        for place, expected in {
            "earliest": {"home": 1, "office": 1},
            "latest": {"home": 31, "office": 21},
            '{"home": 7}': {"home": 7, "office": 1},
            '{"home": "latest", "office": 21}': {"home": 31, "office": 21},
        }.items():
            stream = reader(tmp_path / "data", startingOffsets=place)
            assert stream.initialOffset() == expected
            stream.stop()
        with pytest.raises(Malformed, match="beyond its end"):
            reader(tmp_path / "data", startingOffsets='{"home": 32}').initialOffset()


def test_a_stream_sees_what_is_published_and_roots_that_appear(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        stream = reader(tmp_path / "data")
        start = stream.initialOffset()
        assert start == {}
        assert stream.reportLatestOffset() is None
        fill(bus, "home", 3)
        first = stream.latestOffset(start, ReadAllAvailable())
        assert first == {"home": 4}
        assert read(stream, start, first) == [("home", 1), ("home", 2), ("home", 3)]
        assert stream.latestOffset(first, ReadAllAvailable()) == first
        fill(bus, "home", 1)
        fill(bus, "office", 2)
        second = stream.latestOffset(first, ReadAllAvailable())
        assert second == {"home": 5, "office": 3} == stream.reportLatestOffset()
        assert read(stream, first, second) == [("home", 4), ("office", 1), ("office", 2)]
        assert stream.partitions(second, second) == []
        stream.stop()


def test_a_limit_is_shared_and_reaches_the_end(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 100)
        fill(bus, "office", 10)
    stream = reader(tmp_path / "data", maxMessagesPerTrigger=30)
    assert stream.getDefaultReadLimit() == ReadMaxRows(30)
    place, found = stream.initialOffset(), []
    for _ in range(4):
        following = stream.latestOffset(place, ReadMaxRows(30))
        assert sum(following.values()) - sum(place.values()) <= 30
        found += read(stream, place, following)
        place = following
    assert place == {"home": 101, "office": 11}
    assert len(found) == len(set(found)) == 110
    stream.stop()


def test_a_micro_batch_waits_for_its_least_size_but_not_for_ever(tmp_path):
    asked = read_options({"data": str(tmp_path / "data"), "minMessagesPerTrigger": "10", "maxTriggerDelay": "60s"})
    clock = ManualClock()
    stream = StreamReader(asked, SCHEMA, clock)
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 3)
        place = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert place == {"home": 4}, "the first one of a run does not wait"
        fill(bus, "home", 9)
        assert stream.latestOffset(place, ReadAllAvailable()) == place
        fill(bus, "office", 1)
        larger = stream.latestOffset(place, ReadAllAvailable())
        assert larger == {"home": 13, "office": 2}
        fill(bus, "home", 1)
        assert stream.latestOffset(larger, ReadAllAvailable()) == larger
        clock.advance(59)
        assert stream.latestOffset(larger, ReadAllAvailable()) == larger
        clock.advance(1)
        assert stream.latestOffset(larger, ReadAllAvailable()) == {"home": 14, "office": 2}
        stream.stop()


def test_what_is_to_end_does_not_wait_for_more(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 3)
        stream = reader(tmp_path / "data", minMessagesPerTrigger=10, startingOffsets="latest")
        place = stream.initialOffset()
        fill(bus, "home", 4)
        place = stream.latestOffset(place, ReadAllAvailable())
        fill(bus, "home", 1)
        stream.prepareForTriggerAvailableNow()
        assert stream.latestOffset(place, ReadAllAvailable()) == {"home": 9}
        stream.stop()


def test_a_read_has_at_least_the_partitions_that_are_asked_for(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 50)
        fill(bus, "office", 7)
    for least, most in ((1, None), (5, None), (57, None), (1000, None), (5, 3), (40, 3)):
        options = {} if most is None else {"messagesPerPartition": most}
        stream = reader(tmp_path / "data", minPartitions=least, **options)
        found = stream.partitions({"home": 1, "office": 1}, {"home": 51, "office": 8})
        assert len(found) >= min(least, 57)
        counts = [sum(span.count for span in one.spans) for one in found if isinstance(one, SpansPartition)]
        assert sum(counts) == 57
        assert most is None or max(counts) <= most
        offsets = [("home", n) for n in range(1, 51)] + [("office", n) for n in range(1, 8)]
        assert read(stream, {"home": 1, "office": 1}, {"home": 51, "office": 8}) == offsets
        stream.stop()


def test_a_query_that_waits_does_not_open_the_folder_again_and_again(tmp_path, monkeypatch):
    opened: list[object] = []

    def counted(*args: Any) -> Any:
        opened.append(args)
        return open_log(*args)

    monkeypatch.setattr(streaming, "open_log", counted)
    monkeypatch.setattr(streaming, "LOOK_S", 3600.0)
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 3)
        stream = reader(tmp_path / "data")
        start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        before = len(opened)
        assert all(stream.latestOffset(start, ReadAllAvailable()) == start for _ in range(20))
        assert stream.reportLatestOffset() == start
        assert len(opened) == before
        fill(bus, "home", 1)
        assert stream.latestOffset(start, ReadAllAvailable()) == {"home": 5}
        monkeypatch.setattr(streaming, "LOOK_S", 0.0)
        before = len(opened)
        assert stream.reportLatestOffset() == {"home": 5}
        assert len(opened) == before + 1


def test_a_new_query_that_waits_for_its_first_message_does_not_open_the_folder_either(tmp_path, monkeypatch):
    opened: list[object] = []

    def counted(*args: Any) -> Any:
        opened.append(args)
        return open_log(*args)

    monkeypatch.setattr(streaming, "open_log", counted)
    monkeypatch.setattr(streaming, "LOOK_S", 3600.0)
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 3)
        stream = reader(tmp_path / "data", startingOffsets="latest")
        place = stream.initialOffset()
        before = len(opened)
        assert all(stream.latestOffset(place, ReadAllAvailable()) == place for _ in range(20))
        assert len(opened) == before + 1
        stream.stop()


def test_a_query_goes_on_with_fewer_topics_and_with_more(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 3)
        fill(bus, "office", 2)
        start = {"home": 4, "office": 3}
        stream = reader(tmp_path / "data", topics="home/#", subscription="fewer")
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        fill(bus, "home", 1)
        fill(bus, "office", 1)
        fewer = stream.latestOffset(start, ReadAllAvailable())
        assert fewer == {"home": 5, "office": 3}
        assert read(stream, start, fewer) == [("home", 4)]
        again = reader(tmp_path / "data")
        assert again.latestOffset(fewer, ReadAllAvailable()) == {"home": 5, "office": 4}


def test_available_now_ends_where_the_log_ended(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 5)
        stream = reader(tmp_path / "data")
        stream.prepareForTriggerAvailableNow()
        fill(bus, "home", 5)
        fill(bus, "office", 5)
        assert stream.latestOffset({"home": 1}, ReadAllAvailable()) == {"home": 6}
        assert stream.latestOffset({"home": 6}, ReadAllAvailable()) == {"home": 6}
        stream.stop()


def test_loss_between_two_micro_batches_is_named(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    first = retained_from(tmp_path / "data")
    stream = reader(tmp_path / "data")
    with pytest.raises(Gap) as caught:
        stream.partitions({"home": 5}, {"home": 301})
    assert (caught.value.first, caught.value.last) == (5, first - 1)
    assert read(reader(tmp_path / "data", failOnDataLoss="false"), {"home": 5}, {"home": 301})[0] == ("home", first)
    assert read(stream, {}, {"home": 301})[0] == ("home", first), (
        "a root that is new to the query begins with its oldest"
    )
    stream.stop()


def test_a_checkpoint_of_another_bus_is_refused(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, "home", 5)
    stream = reader(tmp_path / "data")
    with pytest.raises(Conflict, match="another bus"):
        stream.latestOffset({"home": 100}, ReadAllAvailable())
    with pytest.raises(Conflict, match="another bus"):
        stream.latestOffset({"elsewhere": 100}, ReadAllAvailable())
    stream.stop()


# With Spark


def collect(frame: Any, into: list[Any]) -> Callable[[Any, int], None]:
    def take(batch: Any, _: int) -> None:
        into.extend((row.root, row.offset, bytes(row.payload)) for row in batch.collect())

    return take


def stream_of(spark, folder: Path, **options: object):
    return spark.readStream.format("headwater").option("data", str(folder)).options(**options).load()


def run_once(spark, folder: Path, checkpoint: Path, **options: object) -> list[Any]:
    """Everything up to now, in one go."""
    seen: list[Any] = []
    frame = stream_of(spark, folder, **options)
    query = (
        frame.writeStream.foreachBatch(collect(frame, seen))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(250)
    return seen


def test_a_query_goes_on_where_it_was(spark, tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus, "home", 100, 10)
        assert len(run_once(spark, tmp_path / "data", tmp_path / "place", maxMessagesPerTrigger=40)) == 100
        fill(bus, "home", 5, 10)
        fill(bus, "office", 3, 10)
        seen = run_once(spark, tmp_path / "data", tmp_path / "place")
        assert sorted(row[:2] for row in seen) == [
            *(("home", n) for n in range(101, 106)),
            *(("office", n) for n in range(1, 4)),
        ]
        assert run_once(spark, tmp_path / "data", tmp_path / "place") == []


def test_a_running_query_follows_an_owner_and_misses_nothing(spark, tmp_path):
    seen: list[Any] = []
    with Owner(tmp_path / "data") as owner:
        frame = stream_of(spark, tmp_path / "data", maxMessagesPerTrigger=5000)
        query = (
            frame.writeStream.foreachBatch(collect(frame, seen))
            .option("checkpointLocation", str(tmp_path / "place"))
            .start()
        )
        until = time.monotonic() + 60
        while len({row[0] for row in seen}) < 3 and time.monotonic() < until:
            time.sleep(0.1)
    acked = dict(owner.acked)
    until = time.monotonic() + 120
    while len(seen) < sum(acked.values()) and time.monotonic() < until:
        time.sleep(0.1)
    progress = query.lastProgress
    query.stop()
    assert progress is not None
    assert "latestOffset" in progress["sources"][0]
    for root, number in acked.items():
        mine = [row for row in seen if row[0] == root]
        assert [row[1] for row in mine] == list(range(1, len(mine) + 1)), "in order, each once"
        assert [int(row[2].rstrip(b".")) for row in mine] == list(range(1, len(mine) + 1))
        assert len(mine) >= number


def test_loss_ends_the_query_with_a_typed_error(spark, tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus, "home", 10)
        run_once(spark, tmp_path / "data", tmp_path / "place")
        fill(bus, "home", 300)
    retained_from(tmp_path / "data")
    with pytest.raises(StreamingQueryException, match=r'messages 11 to .* of "home" are gone'):
        run_once(spark, tmp_path / "data", tmp_path / "place")
