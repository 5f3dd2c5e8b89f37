from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.peers.brokers import Fleet
from bench.peers.results import Report

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
    assert [cell.who for cell in point.cells] == ["headwater-batches", "headwater", "headwater-mqtt"]
    assert all(cell.problem == "" and len(cell.values) == 1 and cell.values[0] > 0 for cell in point.cells)
    assert all(cell.generator_share is not None and cell.generator_share > 0 for cell in point.cells)
    assert "<!-- limits: publish -->" in (tmp_path / "benchmarks.md").read_text()
    assert list(data.iterdir()) == []


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
