"""The rollup: each complete window once, against a plain computation of the same; and its picture."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest

import headwater
import headwater.bus
from headwater.clock import ManualClock, from_datetime
from headwater.errors import Conflict, Malformed, NotFound
from headwater.lake.lake import LostRace
from headwater.spark.pipelines.archive import Archive
from headwater.spark.pipelines.rollup import Rollup, Settings, plot
from spark.rows import replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = Settings(topics="home/#", window_s=10, delay_s=5)
WIDTH_US = 10_000_000


def publish(folder: Path, clock: ManualClock, count: int) -> None:
    with headwater.bus.Bus(folder, clock=clock) as bus:
        for n in range(count):
            payload = [b"%d.5" % n, json.dumps({"t": n, "name": "12", "x": {"y": 1}}).encode(), b"\xff\0"][n % 3]
            bus.publish(f"home/{n % 4}", payload)
            clock.advance(0.7 + n % 3)
        bus.publish("yard/1", b"1")


def expected(folder: Path, since_us: int | None, upto_us: int) -> dict[tuple[str, int], dict[str, Any]]:
    """The same, one message after another."""
    windows = defaultdict(list)
    for _, topic, offset, timestamp, _, _, payload in replayed(folder, "home/#"):
        at_us = from_datetime(timestamp)
        if at_us < upto_us and (since_us is None or at_us >= since_us):
            windows[topic, at_us // WIDTH_US * WIDTH_US].append((at_us, offset, payload))
    found = {}
    for key, messages in windows.items():
        gaps = [(b[0] - a[0]) / 1e6 for a, b in pairwise(messages)]
        numbers = defaultdict(list)
        for _, _, payload in messages:
            if payload.startswith(b"{"):
                numbers["t"].append(float(json.loads(payload)["t"]))
            elif payload != b"\xff\0":
                numbers[""].append(float(payload))
        found[key] = {
            "messages": len(messages),
            "bytes": sum(len(payload) for _, _, payload in messages),
            "messages_per_s": len(messages) / 10,
            "payload_bytes_max": max(len(payload) for _, _, payload in messages),
            "gap_s_mean": pytest.approx(mean(gaps)) if gaps else None,
            "gap_s_max": pytest.approx(max(gaps)) if gaps else None,
            "last_offset": max(offset for _, offset, _ in messages),
            "fields": {
                name: (len(values), min(values), pytest.approx(mean(values)), max(values))
                for name, values in numbers.items()
            },
        }
    return found


def rolled(job: Rollup) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for row in job.table.scan().to_arrow().to_pylist():
        key = (row["topic"], from_datetime(row["window_start"]))
        assert key not in found, "a window was rolled up twice"
        assert from_datetime(row["window_end"]) - key[1] == WIDTH_US
        fields = {
            name: (value["count"], value["min"], value["mean"], value["max"]) for name, value in (row["fields"] or [])
        }
        for _, value in row["fields"] or []:
            assert value["min"] <= value["p50"] <= value["p99"] <= value["max"]
        found[key] = {**row, "fields": fields}
    return found


def job_of(spark: SparkSession, tmp: Path, settings: Settings = TEN) -> Rollup:
    return Rollup(spark, str(tmp / "lake"), {"data": str(tmp / "data")}, settings=settings)


def check(job: Rollup, tmp: Path, upto_us: int) -> None:
    found = rolled(job)
    wanted = expected(tmp / "data", None, upto_us)
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert {name: found[key][name] for name in values} == values


def test_each_complete_window_is_rolled_up_once(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    publish(tmp_path / "data", clock, 40)
    archive = Archive(spark, str(tmp_path / "lake"), {"data": str(tmp_path / "data")})
    archive.step("home", 1, 25)
    job = job_of(spark, tmp_path)
    first = job.run()
    assert first.upto_us is not None
    newest_us = from_datetime(replayed(tmp_path / "data", "home/#")[-1][3])
    assert newest_us - 5_000_000 - WIDTH_US < first.upto_us <= newest_us - 5_000_000
    check(job, tmp_path, first.upto_us)
    again = job.run()
    assert (again.rows, again.upto_us) == (0, first.upto_us)
    publish(tmp_path / "data", clock, 30)
    list(archive.round())
    second = job_of(spark, tmp_path).run()
    assert second.upto_us is not None
    assert second.since_us == first.upto_us
    job.table.refresh()
    check(job, tmp_path, second.upto_us)


def test_messages_that_come_too_late_are_counted_and_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    publish(tmp_path / "data", clock, 30)
    list(Archive(spark, str(tmp_path / "lake"), {"data": str(tmp_path / "data")}).round())
    job = job_of(spark, tmp_path)
    job.run()
    before = rolled(job)
    with headwater.bus.Bus(tmp_path / "data", clock=ManualClock(clock.now_us() - 30_000_000)) as bus:
        bus.publish("home/0", b"late")
    clock.advance(60)
    publish(tmp_path / "data", clock, 3)
    done = job.run()
    assert done.late == 1
    after = rolled(job)
    assert {key: after[key] for key in before} == before


def test_of_two_runs_at_once_one_loses(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "data", ManualClock(), 30)
    list(Archive(spark, str(tmp_path / "lake"), {"data": str(tmp_path / "data")}).round())
    job, other = job_of(spark, tmp_path), job_of(spark, tmp_path)
    commit = Rollup._commit

    def commit_late(self: Rollup, *given: Any) -> int:
        monkeypatch.setattr(Rollup, "_commit", commit)
        other.run()
        return commit(self, *given)

    monkeypatch.setattr(Rollup, "_commit", commit_late)
    with pytest.raises(LostRace):
        job.run()
    job.table.refresh()
    rolled(job)


def test_what_cannot_be_rolled_up_is_told_first(spark: SparkSession, tmp_path: Path) -> None:
    publish(tmp_path / "data", ManualClock(), 3)
    with pytest.raises(NotFound, match="pipeline archive"):
        job_of(spark, tmp_path)
    Archive(spark, str(tmp_path / "lake"), {"data": str(tmp_path / "data")})
    with pytest.raises(Malformed, match="window"):
        job_of(spark, tmp_path, Settings(window_s=0))
    with pytest.raises(Malformed, match="no name"):
        Rollup(spark, str(tmp_path / "lake"), {"data": str(tmp_path / "data")}, name="a/b")
    job_of(spark, tmp_path)
    with pytest.raises(Conflict, match="another --name"):
        job_of(spark, tmp_path, Settings(window_s=20))


def test_a_picture_shows_the_busiest_topics(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    publish(tmp_path / "data", ManualClock(), 60)
    Archive(spark, str(tmp_path / "lake"), {"data": str(tmp_path / "data")})
    job = job_of(spark, tmp_path)
    job.run()
    assert plot(job.frame(), str(tmp_path / "x.png"), "home/#") == [f"home/{n}" for n in range(4)]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_one_window_shows_that_and_not_years() -> None:
    pytest.importorskip("matplotlib")
    from headwater.spark.pipelines.rollup import _drawn

    start = datetime(2026, 1, 31, 8, tzinfo=UTC)
    row = {"topic": "home/a", "window_start": start, "window_end": start + timedelta(minutes=1)}
    figure = _drawn([{**row, "messages_per_s": 2.0, "payload_bytes_mean": 4.0, "gap_s_max": None}], ["home/a"], "home")
    low, high = figure.axes[0].get_xlim()
    assert high - low == pytest.approx(2 / (24 * 60))
