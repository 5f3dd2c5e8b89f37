"""The archive: every message once, in order, whatever is killed; files that are joined and swept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.expressions import EqualTo
from typer.testing import CliRunner

import headwater
import headwater.bus
from client.served import Served
from headwater import Outgoing
from headwater.cli import pipeline
from headwater.cli.app import app_for
from headwater.clock import ManualClock
from headwater.errors import Failed, Gap, Malformed, NotAllowed
from headwater.lake import files as lake_files
from headwater.lake.lake import Lake, LostRace, open_lake
from headwater.lake.layout import Layout, layout_of
from headwater.spark.pipelines.archive import Archive, Options
from headwater.store import marks
from headwater.store.files import DiskFiles
from spark.beside import Owner
from spark.rows import by_place, partitions, replayed, row_of, rows, trim
from spark.served import Server, workers
from store.test_marks import retain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_S = 86_400


def publish(folder: Path, count: int, **options: object) -> None:
    with headwater.open(folder, headwater.Config(segment_bytes=64 * 1024)) as bus:
        bus.publish_many([(f"home/{n % 3}", b"%d" % n) for n in range(count)])


def job_of(spark: SparkSession, tmp: Path, **options: object) -> Archive:
    return Archive(spark, str(tmp / "lake"), {"data": str(tmp / "data")}, Options(**options))  # type: ignore[arg-type]


def lake_rows(tmp: Path, root: str = "home") -> list[tuple[object, ...]]:
    table = open_lake(str(tmp / "lake")).table(root)
    return [row_of(row) for row in table.scan().to_arrow().to_pylist()]


def parquet_files(tmp: Path) -> set[Path]:
    return set((tmp / "lake").rglob("*.parquet"))


def test_rounds_archive_what_is_new_and_only_that(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 100)
    job = job_of(spark, tmp_path, messages_per_commit=40)
    assert [(step.first, step.last, step.rows) for step in job.round()] == [(1, 40, 40), (41, 80, 40), (81, 100, 20)]
    assert list(job.round()) == []
    publish(tmp_path / "data", 5)
    assert [(step.first, step.last) for step in job.round()] == [(101, 105)]
    assert by_place(lake_rows(tmp_path)) == replayed(tmp_path / "data")
    snapshot = job.lake.table("home").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["headwater.archived-offset"] == "105"


def test_days_are_partitions_and_files_are_sorted_by_offset(spark: SparkSession, tmp_path: Path) -> None:
    from headwater.clock import ManualClock

    clock = ManualClock()
    with headwater.bus.Bus(tmp_path / "data", clock=clock) as bus:
        for day in range(3):
            bus.publish_many([("home/a", b"%d" % n) for n in range(50)])
            clock.advance(DAY_S * (1 if day else -1) if day != 0 else DAY_S)
    job = job_of(spark, tmp_path)
    list(job.round())
    archived = job.lake.archived()["home"]
    assert len({file.day for file in archived.files}) == 3
    import pyarrow.parquet as pq

    for file in archived.files:
        offsets = pq.read_table(file.path.removeprefix("file://"), columns=["offset"])["offset"].to_pylist()
        assert offsets == sorted(offsets)
    found = job.lake.table("home").scan(row_filter=f"timestamp < '{replayed(tmp_path / 'data')[50][3].isoformat()}'")
    assert found.to_arrow().num_rows == 50


def test_a_killed_attempt_leaves_nothing_that_counts_and_is_swept(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 60)
    job = job_of(spark, tmp_path, grace_s=0)
    list(job.round())
    kept = parquet_files(tmp_path)
    table = job.lake.table("home")
    attempt = lake_files.new_attempt(table, "killed")
    job._write(job._range("home", 1, 60), attempt, Layout())
    assert len(parquet_files(tmp_path)) > len(kept)
    assert len(lake_rows(tmp_path)) == 60
    time.sleep(0.05)
    assert job_of(spark, tmp_path).sweep() == 0
    assert job.sweep() > 0
    assert parquet_files(tmp_path) == kept
    assert len(lake_rows(tmp_path)) == 60
    job.sweep()
    assert not list((tmp_path / "lake").rglob("killed-*"))


def test_files_that_the_driver_does_not_find_are_an_error_before_the_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where executors wrote them to disks of their own."""
    publish(tmp_path / "data", 60)
    job = job_of(spark, tmp_path)
    written = lake_files.written
    monkeypatch.setattr(lake_files, "written", lambda attempt: written(attempt)[1:])
    with pytest.raises(Failed, match=r"Spark wrote 60 rows .* 0 of them .* storage that they share"):
        list(job.round())
    assert job.lake.marks() == {"home": 0}
    monkeypatch.setattr(lake_files, "written", written)
    assert [step.rows for step in job.round()] == [60]


def test_what_another_archive_committed_first_is_not_archived_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "data", 60)
    first, second = job_of(spark, tmp_path), job_of(spark, tmp_path)
    write = Archive._write

    def write_late(self: Archive, *given: Any) -> None:
        write(self, *given)
        monkeypatch.setattr(Archive, "_write", write)
        list(second.round())

    monkeypatch.setattr(Archive, "_write", write_late)
    with pytest.raises(LostRace):
        list(first.round())
    assert by_place(lake_rows(tmp_path)) == replayed(tmp_path / "data")
    assert len(parquet_files(tmp_path)) == len(first.lake.archived()["home"].files)
    assert list(first.round()) == []


def test_small_files_are_joined_and_the_old_ones_stay_for_the_grace_period(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 100)
    job = job_of(spark, tmp_path, messages_per_commit=20, small_files_max=4)
    list(job.round())
    before = parquet_files(tmp_path)
    planned = job.lake.archived()["home"]
    (done,) = job.compact()
    assert (done.files_before, done.files_after, done.rows) == (len(planned.files), 1, 100)
    assert list(job.compact()) == []
    assert job.sweep() == 0
    assert before <= parquet_files(tmp_path)
    frame = spark.read.parquet(*(file.path for file in planned.files))
    assert frame.count() == 100
    impatient = job_of(spark, tmp_path, grace_s=0)
    time.sleep(0.05)
    assert impatient.sweep() >= len(before)
    assert len(parquet_files(tmp_path)) == 1
    assert lake_rows(tmp_path) == replayed(tmp_path / "data")
    publish(tmp_path / "data", 10)
    list(impatient.round())
    assert by_place(lake_rows(tmp_path)) == replayed(tmp_path / "data")


def test_purged_and_expired_messages_are_not_archived_and_the_offset_moves_past_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    publish(tmp_path / "data", 30)
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/x", b"brief", ttl_s=0.001)
        bus.purge("home/1")
    time.sleep(0.01)
    job = job_of(spark, tmp_path)
    assert [step.rows for step in job.round()] == [20]
    assert job.lake.marks() == {"home": 31}
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/1", b"to be purged")
        bus.purge("home/1")
    assert [(step.rows, step.files) for step in job.round()] == [(0, 0)]
    assert job.lake.marks() == {"home": 32}


def test_the_log_keeps_what_is_not_archived(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 30)
    job = job_of(spark, tmp_path)
    left = marks.found(DiskFiles(), str(tmp_path / "data"))
    assert left == {job.lake.id: {}}
    list(job.round())
    assert marks.found(DiskFiles(), str(tmp_path / "data")) == {job.lake.id: {"home": 30}}


def test_an_archive_from_a_server_tells_it_what_it_may_forget(spark: SparkSession, tmp_path: Path) -> None:
    config = headwater.Config(
        segment_bytes=64 * 1024, retention=headwater.Retention(bytes=64 * 1024), retention_interval_s=1.0
    )
    with Served(tmp_path / "data", config) as server:
        job = Archive(spark, str(tmp_path / "lake"), {"url": server.url}, Options(messages_per_commit=300))
        server.bus.publish_many([(f"home/{n % 3}", b"%d" % n + b"." * 1000) for n in range(500)])
        whole = replayed(tmp_path / "data")
        retain(server.bus)
        assert server.bus.extents("#")[0].first == 1, "what is not archived is kept"
        assert [(step.first, step.last, step.rows) for step in job.round()] == [(1, 300, 300), (301, 500, 200)]
        assert marks.found(DiskFiles(), server.bus.folder) == {job.lake.id: {"home": 500}}
        server.bus.publish("home/1", b"next")
        retain(server.bus)
        assert server.bus.extents("#")[0].first > 300
        assert by_place(lake_rows(tmp_path)) == whole
        assert [(step.first, step.last) for step in job.round()] == [(501, 501)]
        again = Archive(spark, str(tmp_path / "lake"), {"data": server.bus.folder})
        assert list(again.round()) == [], "beside it, the same archive goes on"


def test_only_an_admin_archives_from_a_server(spark: SparkSession, tmp_path: Path) -> None:
    with Served(tmp_path / "data", auth="scram") as server:
        server.bus.clients.add("reader", "s3cret")
        server.bus.acl.allow("reader", "subscribe", "#")
        server.bus.publish("home/1", b"x")
        url = server.url.replace("://", "://reader:s3cret@")
        with pytest.raises(NotAllowed, match=r'may not say what is archived .* acl allow reader admin "#"'):
            Archive(spark, str(tmp_path / "lake"), {"url": url})
        assert not parquet_files(tmp_path)
        server.bus.acl.allow("reader", "admin", "#")
        assert [step.rows for step in Archive(spark, str(tmp_path / "lake"), {"url": url}).round()] == [1]


def test_messages_that_were_lost_are_named_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", 30)
    job = job_of(spark, tmp_path)
    list(job.round())
    publish(tmp_path / "data", 30)
    with headwater.open(tmp_path / "data") as bus:
        trim(bus)
        bus.publish("home/1", b"next")
    before = parquet_files(tmp_path)
    with pytest.raises(Gap, match="--skip-lost"):
        list(job.round())
    assert parquet_files(tmp_path) == before
    job = job_of(spark, tmp_path, skip_lost=True)
    list(job.round())
    assert job.lake.marks() == {"home": 61}


# As users run it


def command(tmp: Path, *more: str, url: str | None = None) -> list[str]:
    place = ("--data", str(tmp / "data")) if url is None else ("--url", url)
    return [
        *(sys.executable, "-m", "headwater", "pipeline", "archive", *place),
        *("--lake", str(tmp / "lake"), "--master", "local[2,4]", *more),
    ]


def test_the_command_speaks_to_machines(tmp_path: Path) -> None:
    publish(tmp_path / "data", 30)
    done = subprocess.run(command(tmp_path, "--json"), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["root"], line["first"], line["last"], line["rows"]) == ("home", 1, 30, 30)
    assert done.stderr == ""


def test_the_command_says_when_there_is_nothing_new(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SHARED", spark)
    publish(tmp_path / "data", 5)
    words = command(tmp_path)[3:]
    said = [CliRunner().invoke(app_for(()), words).output for _ in range(2)]
    assert "5 messages" in said[0]
    assert "nothing new" not in said[0]
    assert "nothing new: the lake has all that the log has" in said[1]


def test_a_folder_that_is_none_is_refused_before_spark_is_started(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "is no Headwater folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "lake").exists()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_killed_every_message_is_archived_once(tmp_path: Path, seed: int) -> None:
    kill_and_check(tmp_path, random.Random(seed), kills=8)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_killed_every_message_of_a_server_is_archived_once(tmp_path: Path, seed: int) -> None:
    with Server(tmp_path / "data") as server:
        kill_and_check(tmp_path, random.Random(seed), kills=5, server=server)


def kill_and_check(tmp: Path, chance: random.Random, kills: int, server: Server | None = None) -> None:
    """Kill the archiver at random points, beside an owner that publishes; then compare with what was acknowledged."""
    url = None if server is None else server.url
    with Owner(tmp / "data" if url is None else url) as owner:
        for _ in range(kills):
            archiver = subprocess.Popen(
                command(tmp, "--every", "100ms", "--json", "--grace", "1h", url=url),
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert archiver.stdout is not None
            if server is not None:
                harm(archiver, server, chance)
            for _ in range(chance.randrange(1, 5)):
                assert archiver.stdout.readline(), "the archiver ended by itself"
            time.sleep(chance.random() * 1.5)
            os.killpg(archiver.pid, signal.SIGKILL)
            archiver.wait()
            archiver.stdout.close()
    acked = owner.acked
    done = subprocess.run(command(tmp, "--once", url=url), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    check_archived(tmp, acked)


def harm(archiver: subprocess.Popen[str], server: Server, chance: random.Random) -> None:
    """Kill what an archiver stands on; it is to go on by itself."""
    assert archiver.stdout is not None
    for what in chance.sample(["workers", "broker"], 2):
        assert archiver.stdout.readline(), "the archiver ended by itself"
        time.sleep(chance.random())
        if what == "broker":
            server.kill()
            server.start()
        else:
            for worker in workers(archiver.pid):
                os.kill(worker, signal.SIGKILL)


def check_archived(tmp: Path, acked: dict[str, int]) -> None:
    lake = open_lake(str(tmp / "lake"))
    assert acked
    for root, number in acked.items():
        found = lake.table(root).scan().to_arrow().sort_by("offset")
        assert found["offset"].to_pylist() == list(range(1, found.num_rows + 1))
        assert found.num_rows >= number
        said = [int(payload.partition(b".")[0]) for payload in found["payload"].to_pylist()]
        assert said == list(range(1, found.num_rows + 1))
        assert lake.marks()[root] == found.num_rows


def test_of_roots_that_are_not_asked_for_nothing_is_archived_and_retention_waits_for_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([(f"{root}/a", b"x") for root in ("home", "office", "shop", "shop")])
    job = job_of(spark, tmp_path, topics="home/#,office/#")
    assert [step.root for step in job.round()] == ["home", "office"]
    left = marks.found(DiskFiles(), str(tmp_path / "data"))[job.lake.id]
    assert left == {"home": 1, "office": 1, "shop": 2}
    job = job_of(spark, tmp_path, topics="shop/#")
    assert [step.root for step in job.round()] == ["shop"]
    assert job.lake.marks() == {"home": 1, "office": 1, "shop": 2}
    with pytest.raises(Malformed, match=r'a table of the lake has all of its root; archive "home/#"'):
        job_of(spark, tmp_path, topics="home/+/temp")


def test_a_lake_of_many_roots_is_listed_no_more_often_than_one_of_few(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each root's step looked at all tables, so that time grew with the square of their number."""
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([(f"root{n}/a", b"x") for n in range(6)])
    job = job_of(spark, tmp_path)
    looks = []
    marks_of = Lake.marks

    def look(lake: Lake) -> dict[str, int]:
        looks.append(1)
        return marks_of(lake)

    monkeypatch.setattr(Lake, "marks", look)
    assert len(list(job.round())) == 6
    assert len(looks) == 1


LAYOUTS = [
    ("topic", "offset", 3),
    ("hour, bucket(2)", "offset", 5),
    ("day", "topic", 2),
    ("day,topic", "key, timestamp", 6),
]


@pytest.mark.parametrize(("partition", "sort", "files"), LAYOUTS)
def test_a_table_is_laid_out_as_was_asked_when_it_was_made(
    spark: SparkSession, tmp_path: Path, partition: str, sort: str, files: int
) -> None:
    clock = ManualClock()
    with headwater.bus.Bus(tmp_path / "data", clock=clock) as bus:
        for later_s in (0, DAY_S):
            clock.advance(later_s)
            keys = [b"k%d" % n if n % 2 else None for n in range(30)]
            bus.publish_many([Outgoing(f"home/{n % 3}", b"%d" % n, key=key) for n, key in enumerate(keys)])
    list(job_of(spark, tmp_path, layout=layout_of(partition, sort)).round())
    expected = replayed(tmp_path / "data")
    assert by_place(lake_rows(tmp_path)) == expected
    assert rows(tmp_path / "data", lake=tmp_path / "lake") == expected
    job = job_of(spark, tmp_path)  # which says nothing, and finds the table as it is
    assert len(job.lake.archived()["home"].files) >= files
    with headwater.bus.Bus(tmp_path / "data", headwater.Config(lake=str(tmp_path / "lake")), clock=clock) as bus:
        bus.publish_many([Outgoing("home/1", b"more", key=b"k3")] * 4)
    list(job.round())
    (joined, *_) = job.compact(1)
    assert joined.files_before > joined.files_after
    expected = replayed(tmp_path / "data")
    assert [row[2] for part in partitions(tmp_path / "data", lake=tmp_path / "lake") for row in part] == list(
        range(1, 65)
    )
    # An engine that knows the spec prunes by it, and finds what it has to.
    for column, value in (("topic", "home/1"), ("key", b"k3")):
        wanted = EqualTo(column, value)  # type: ignore[call-arg, arg-type]  # mypy takes it for a model of pydantic
        pruned = job.lake.table("home").scan(row_filter=wanted).to_arrow().to_pylist()
        place = 1 if column == "topic" else 4
        assert by_place(map(row_of, pruned)) == [row for row in expected if row[place] == value]
    # What is erased is written anew within its partition.
    with headwater.bus.Bus(tmp_path / "data", headwater.Config(lake=str(tmp_path / "lake")), clock=clock) as bus:
        bus.erase(b"k3")
    (done,) = job.erase()
    assert done.rows
    left = [row for row in expected if row[4] != b"k3"]
    assert by_place(lake_rows(tmp_path)) == left
    within = EqualTo("topic", "home/1")  # type: ignore[call-arg, arg-type]  # as above
    pruned = job.lake.table("home").scan(row_filter=within).to_arrow().to_pylist()
    assert by_place(map(row_of, pruned)) == [row for row in left if row[1] == "home/1"]


@pytest.mark.parametrize(
    ("partition", "sort"),
    [("week", "offset"), ("bucket(0)", "offset"), ("day", "payload"), ("bucket(2),bucket(3)", "offset")],
)
def test_a_layout_that_there_is_not_is_refused(partition: str, sort: str) -> None:
    with pytest.raises(Malformed, match="use"):
        layout_of(partition, sort)


READING = {"type": "object", "properties": {"celsius": {"type": "number"}}}
KILLED = """
import os, signal, sys
from headwater.spark import session
from headwater.spark.pipelines import archive

name, when, data, lake = sys.argv[1:]
done = getattr(archive, name)

def killed(*given, **named):
    if when == "after":
        done(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(archive, name, killed)
job = archive.Archive(session("killed", master="local[2]"), lake, {"data": data})
list(job.round())
list(job.compact(1))
"""


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["add_columns", "write", "append", "replace"])
def test_a_typed_archive_and_its_compaction_are_killed_at_each_of_their_steps(
    spark: SparkSession, tmp_path: Path, name: str, when: str
) -> None:
    """Columns are added, files written, committed, joined: each row is there once, with what it says."""
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/a", b"hello")] * 5)
        list(job_of(spark, tmp_path).round())
        bus.schema("home/+", READING, check="none")
        for n in range(3):
            bus.publish("home/a", {"celsius": n})
            if name == "replace":
                list(job_of(spark, tmp_path).round())
    place = [str(tmp_path / "data"), str(tmp_path / "lake")]
    child = subprocess.Popen([sys.executable, "-c", KILLED, name, when, *place], start_new_session=True)
    try:
        assert child.wait(timeout=280) == -signal.SIGKILL
    finally:
        os.killpg(child.pid, signal.SIGKILL)
    job = job_of(spark, tmp_path, grace_s=0)
    list(job.round())
    list(job.compact(1))
    found = job.lake.table("home").scan().to_arrow().sort_by("offset")
    assert found["offset"].to_pylist() == list(range(1, 9))
    assert [value and value["celsius"] for value in found["value"].to_pylist()] == [None] * 5 + [0, 1, 2]
    assert by_place(lake_rows(tmp_path)) == replayed(tmp_path / "data")
    job.sweep()
    assert len(parquet_files(tmp_path)) == len(job.lake.archived()["home"].files)
