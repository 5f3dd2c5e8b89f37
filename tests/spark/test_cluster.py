"""On a real cluster, a standalone master and two workers: archive and sink, beside a server's folder and from it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headwater
from client.served import Served
from headwater.cli import pipeline
from headwater.lake.lake import open_lake
from spark import clustered
from spark.cluster import Cluster
from spark.rows import by_place, replayed, row_of

pytestmark = pytest.mark.xdist_group("spark")

FIRST = 1500


def test_archive_and_sink_run_on_a_cluster(tmp_path: Path) -> None:
    config = headwater.Config(segment_bytes=64 * 1024)
    with Served(tmp_path / "data", config) as server, Cluster(tmp_path) as cluster:
        server.bus.publish_many([(f"home/{n % 7}", b"%d" % n + b"." * 100) for n in range(FIRST)])
        server.bus.publish_many([("yard/x", b"%d" % n) for n in range(10)])
        lake = tmp_path / "lake"
        done = subprocess.run(
            [sys.executable, clustered.__file__, cluster.master, server.url, str(tmp_path / "data"), str(lake)],
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == 0, done.stderr
        archived = FIRST + clustered.MORE
        assert done.stdout.splitlines() == [
            f"home 1 {FIRST} {FIRST}",
            "yard 1 10 10",
            f"home {FIRST + 1} {archived} {clustered.MORE}",
        ]
        tables = [open_lake(str(lake)).table(root).scan().to_arrow().to_pylist() for root in ("home", "yard")]
        published = [row for row in replayed(tmp_path / "data") if row[0] in ("home", "yard")]
        found = by_place(row_of(row) for table in tables for row in table)
        assert found == [row for row in published if row[2] <= archived]
        told = [b"%d %s" % (row[2], row[6]) for row in published if row[0] == "home"]
        assert len(told) == FIRST + 2 * clustered.MORE
        for copy in ("served", "beside"):
            assert [message.payload for message in server.bus.replay(f"{copy}/#")] == told


WITHOUT_SPARK = {"erase", "infer", "status"}
"""Commands that start none."""


def test_every_pipeline_takes_a_master() -> None:
    for command in pipeline.app.registered_commands:
        assert command.callback is not None
        if command.callback.__name__ in WITHOUT_SPARK:
            continue
        assert "master" in inspect.signature(command.callback).parameters, command.callback.__name__
