from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from bench.peers import libraries
from bench.peers.brokers import Fleet
from bench.peers.generator import Generator
from bench.peers.measure import Measuring, Size
from bench.peers.results import Report
from bench.peers.rows import ROWS

REPO = Path(__file__).parents[2]
ALONE = ("-m", "bench.peers", "--quick", "--peers", "none", "--rounds", "1", "--seconds", "0.05", "--only", "publish")

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator is C, and there is no cc")


@needs_a_compiler
def test_headwater_alone_is_measured_and_leaves_nothing_behind(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    where = ("--data", str(data), "--json", str(tmp_path / "found.json"), "--page", str(tmp_path))
    done = subprocess.run([sys.executable, *ALONE, *where], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Acked publishes, messages/s" in done.stdout
    assert "not measured" in done.stdout, "goals speak of peers that are not there"
    report = msgspec.json.decode((tmp_path / "found.json").read_bytes(), type=Report)
    (result,) = report.results
    (point,) = result.points
    assert [cell.who for cell in point.cells] == ["headwater-batches", "headwater-mqtt"]
    assert all(cell.problem == "" and len(cell.values) == 1 and cell.values[0] > 0 for cell in point.cells)
    assert all(cell.generator_share is not None and cell.generator_share > 0 for cell in point.cells)
    assert "<!-- limits: publish -->" in (tmp_path / "benchmarks.md").read_text()
    assert list(data.iterdir()) == []


@needs_a_compiler
def test_what_is_stored_is_read_again_and_is_there_after_kill_9(tmp_path: Path):
    (tmp_path / "load").mkdir()
    generator = Generator.built(tmp_path / "load")
    with Fleet({"headwater": sys.executable}, str(tmp_path)) as fleet:
        measuring = Measuring(fleet, generator, Size(rounds=1, stored=(2000, 3000)), sys.executable, lambda said: None)
        replay, start = measuring.rows(["replay", "start"])
    assert [point.at for point in replay.points] == [{"stored": 2000}]
    assert [point.at for point in start.points] == [{"stored": 2000}, {"stored": 3000}]
    for point in (*replay.points, *start.points):
        (cell,) = point.cells
        assert (cell.who, cell.problem, len(cell.values)) == ("headwater", "", 1)


def test_a_broker_that_fails_to_start_says_why_and_is_ended(tmp_path: Path):
    fleet = Fleet({"redis": "false"}, str(tmp_path))
    with fleet, pytest.raises(RuntimeError, match="Redis did not listen"), fleet.alone("redis"):
        raise AssertionError("it does not run")
    assert list(tmp_path.iterdir()) == []


def test_brokers_end_when_the_run_is_interrupted(tmp_path: Path):
    fleet = Fleet({"headwater": sys.executable}, str(tmp_path))
    with pytest.raises(KeyboardInterrupt), fleet, fleet.alone("headwater") as broker:
        ids = broker.process.ids
        assert ids
        raise KeyboardInterrupt
    assert [id for id in ids if Path(f"/proc/{id}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_jobs_are_put_there_and_done_by_handlers_embedded_and_served(tmp_path: Path):
    nothing = Generator(tmp_path / "is not needed")
    with Fleet({"headwater": sys.executable}, str(tmp_path)) as fleet:
        measuring = Measuring(fleet, nothing, Size(rounds=1, seconds=0.003), sys.executable, lambda said: None)
        (result,) = measuring.rows(["workers"])
    (point,) = result.points
    found = [(cell.who, cell.problem, len(cell.values)) for cell in point.cells]
    assert found == [("embedded", "", 1), ("served", "", 1)]


def test_a_worker_that_fails_says_why(tmp_path: Path):
    row, nothing = ROWS["workers"], Generator(tmp_path / "is not needed")
    broken = replace(row.contenders[0], options={"library": "none", "jobs": 1})
    with Fleet({"headwater": sys.executable}, str(tmp_path)) as fleet:
        measuring = Measuring(fleet, nothing, Size(rounds=1, seconds=0.003), sys.executable, lambda said: None)
        with mock.patch.dict(ROWS, workers=replace(row, contenders=(broken,))):
            (result,) = measuring.rows(["workers"])
    assert "bench.peers.jobs.with_none" in result.points[0].cells[0].problem


def test_a_library_is_missing_only_where_its_broker_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(libraries, "is_there", lambda key: False)
    assert libraries.missing({"headwater"}) == {}
    assert libraries.missing({"nats"}) == {"faststream": 'pip install "faststream[nats]"'}
    assert libraries.versions({"nats", "redis"}) == {}
