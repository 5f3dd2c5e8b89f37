"""Two readers, one format: bodies of any shape, whole and broken, are the same rows to both, or the same error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

import headwater
from headwater.errors import Gap
from headwater.store import folder as folders
from headwater.store.batch import checksum, seal_header
from headwater.store.body import FIXED
from headwater.store.files import DiskFiles
from headwater.store.segment import walk
from spark import jvm
from spark.rows import batches, by_place, checked, replayed, row_of
from spark.test_reading import SMALL, fill
from store.test_body import MESSAGES, PLAIN, Given

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module", autouse=True)
def session(spark):
    with jvm.reading(spark):
        yield spark


def rows_of_python(place: object, **options: Any):
    return by_place(
        row_of(row) for part in batches(place, **options) for some in part for row in checked(some).to_pylist()
    )


def rows_of_jvm(place: object, **options: Any):
    return by_place(row for part in jvm.partitions(place, **options) for row in part)


def resealed(folder: Path, change: Callable[[bytearray], None]) -> None:
    """Change the bodies of all batches, each with checksums that are right again."""
    files = DiskFiles()
    seed = folders.check(files, str(folder))
    for log in folder.glob("streams/*/*.log"):
        file = files.open(str(log))
        for place, header, stored in list(walk(seed, file, 0)):
            body = bytearray(stored)
            change(body)
            sealed = seal_header(
                seed,
                header.root.encode(),
                header.first_offset,
                header.count,
                header.time_us,
                header.durable,
                len(body),
                checksum(bytes(body)),
            )
            file.pwritev([sealed, bytes(body)], place)
        file.close()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGES | PLAIN, min_size=1, max_size=12))
def test_both_readers_say_what_a_replay_says(tmp_path_factory, given: list[list[Given]]):
    folder = tmp_path_factory.mktemp("given") / "data"
    with headwater.open(folder) as bus:
        for some in given:
            bus.publish_many(
                [
                    headwater.Outgoing(f"home/{len(m.topic)}", m.payload, key=m.key, headers=m.headers, retain=m.retain)
                    for m in some
                ]
            )
    assert rows_of_jvm(folder) == rows_of_python(folder) == replayed(folder)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_bodies_that_nobody_wrote_are_the_same_to_both(tmp_path_factory, seed: int):
    """Their checksums are right, so that nothing but the readers' own care stands between them and wrong columns."""
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("broken") / "data"
    with headwater.open(folder) as bus:
        fill(bus, count=400, size=20)

    def change(body: bytearray) -> None:
        if chance.random() < 0.1:
            return
        at = chance.randrange(0, min(len(body) // 4, 100)) * 4
        value = chance.choice([0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
        body[at : at + 4] = value.to_bytes(4, "little")

    def rows(reader: str):
        frame = jvm.frame(folder, failOnDataLoss=False, reader=reader)
        # Times that nobody published are no datetimes of Python's.
        found = frame.selectExpr("offset", "topic", "unix_micros(timestamp)", "key", "headers", "payload").collect()
        return sorted(map(tuple, found), key=lambda row: row[0])

    resealed(folder, change)
    assert rows("jvm") == rows("python")


def test_a_body_with_impossible_columns_is_an_error_that_names_it(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, count=6)

    def change(body: bytearray) -> None:
        body[: FIXED.size] = FIXED.pack(1 << 30, 1, 0, 0)

    resealed(tmp_path / "data", change)
    for rows in (rows_of_jvm, rows_of_python):
        with pytest.raises(Gap, match="damaged: its counts are impossible") as caught:
            rows(tmp_path / "data")
        assert (caught.value.first, caught.value.last) == (1, 1)
        assert rows(tmp_path / "data", failOnDataLoss=False) == []


# Which reader it is


def plan_of(frame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_explain_tells_which_reader_serves(session, tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, count=5)
    source = session.read.format("headwater").option("data", str(tmp_path / "data"))
    assert "in Spark's own process" in plan_of(source.load())
    assert "(Python)" in plan_of(source.option("reader", "python").load())
    assert "in Spark's own process" not in plan_of(source.option("reader", "python").load())


def test_columns_that_a_query_does_not_use_are_not_made(session, tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, count=5)
    plan = plan_of(jvm.frame(tmp_path / "data").groupBy("topic").count())
    assert "columns: [topic]" in plan
    assert "columns: []" in plan_of(jvm.frame(tmp_path / "data").selectExpr("count(*)"))


def test_filters_and_limits_prune_what_is_read_and_every_use_of_a_frame_is_right(session, tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus, "home")
        fill(bus, "office", 120)
    frame = jvm.frame(tmp_path / "data", messagesPerPartition=10)
    assert frame.where("offset > 290 and root = 'home'").rdd.getNumPartitions() == 1
    assert frame.where("topic = 'office/2/temp'").rdd.getNumPartitions() == 12
    assert frame.where("offset = 1").count() == 2
    assert frame.count() == 420
    both = frame.where("root = 'home' and offset = 1").union(frame.where("root = 'office' and offset = 2"))
    assert sorted((row.root, row.offset) for row in both.collect()) == [("home", 1), ("office", 2)]
    assert len(frame.limit(3).collect()) == 3
    assert frame.where("topic like 'home/3%' or offset < 3").limit(100).count() == 60 + 4


def test_a_wrong_reader_is_refused(session, tmp_path):
    with pytest.raises(PySparkException, match="use one of auto, jvm, python"):
        jvm.frame(tmp_path, reader="scala").count()


# Streams


def test_a_checkpoint_of_one_reader_is_continued_by_the_other(session, tmp_path):
    def run(reader: str) -> None:
        source = session.readStream.format("headwater").option("data", str(tmp_path / "data")).option("reader", reader)
        query = source.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "place"))
        running = query.trigger(availableNow=True).start(str(tmp_path / "out"))
        running.awaitTermination()
        if reader == "jvm":
            assert running.lastProgress is not None
            assert running.lastProgress.sources[0].metrics["messagesBehind"] == "0"

    with headwater.open(tmp_path / "data") as bus:
        for turn, reader in enumerate(["jvm", "python", "jvm"]):
            fill(bus, count=50)
            run(reader)
            assert session.read.parquet(str(tmp_path / "out")).count() == 50 * (turn + 1)
    places = [path.read_text().splitlines()[-1] for path in sorted((tmp_path / "place/offsets").glob("[0-9]"))]
    assert [json.loads(place) for place in places] == [{"home": 51}, {"home": 101}, {"home": 151}]
