"""The examples do what they say: run by `headwater pipeline run`, or by Spark Declarative Pipelines."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner

import headwater
import headwater.bus
from headwater.cli import pipeline as pipelines
from headwater.cli.app import app_for
from headwater.cli.pipeline import run as command
from headwater.clock import ManualClock
from spark.served import Server

SLOW_S = 300
"""On a busy machine each query takes long to start."""
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(SLOW_S)]
EXAMPLES = Path(__file__).parents[2] / "examples"
HIVE = "spark.sql.catalogImplementation=hive"
Invoke = Callable[..., None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("examples") / "data") as made:
        yield made


@pytest.fixture
def run(spark, monkeypatch, tmp_path: Path) -> Invoke:
    """An example, with the session of these tests."""

    @contextmanager
    def running(*_):
        yield spark

    monkeypatch.setattr(command, "running", running)

    def invoke(name: str, *words: object) -> None:
        places = ["--checkpoints", str(tmp_path / "places")]
        done = CliRunner().invoke(
            app_for(()), ["pipeline", "run", str(EXAMPLES / name), "--once", *places, *map(str, words)]
        )
        assert done.exit_code == 0, done.output

    return invoke


def test_alerts_are_published_once(run, server):
    readings = [b'{"celsius": %d}' % n for n in (20, 31, 40)]
    with headwater.connect(server.url) as bus:
        bus.publish_many([("home/hall/temp", payload) for payload in (*readings, b"no JSON", b'{"celsius": "hot"}')])
        run("alerts.py", "--url", server.url, "--set", "limit=30")
        bus.publish("home/kitchen/temp", b'{"celsius": 50}', key=b"k")
        run("alerts.py", "--url", server.url, "--set", "limit=30")
        found = [
            (message.topic, json.loads(message.payload)["celsius"], message.key) for message in bus.replay("alerts/#")
        ]
    assert found == [
        ("alerts/home/hall/temp", 31, None),
        ("alerts/home/hall/temp", 40, None),
        ("alerts/home/kitchen/temp", 50, b"k"),
    ]


def test_sessions_end_with_a_pause(run, tmp_path):
    clock = ManualClock()
    with headwater.bus.Bus(tmp_path / "data", clock=clock) as bus:
        for who, topic, wait_s in (
            ("ann", "home", 1),
            ("bob", "home", 2),
            ("ann", "shop", 3),
            ("ann", "home", 60),
            ("ann", "home", 1),
            ("bob", "shop", 100),
            ("eve", "home", 100),
        ):
            bus.publish(f"clicks/{topic}", b"{}", key=who.encode())
            clock.advance(wait_s)
    with Server(tmp_path / "data") as server:
        run("sessions.py", "--url", server.url, "--set", "pause=30")
        with headwater.connect(server.url) as bus:
            found = [(message.topic, json.loads(message.payload)) for message in bus.replay("sessions/#")]
    by_who = {who: [summary for topic, summary in found if topic == f"sessions/{who}"] for who in ("ann", "bob", "eve")}
    assert by_who["ann"] == [
        {"clicks": 3, "seconds": 6.0, "topics": ["clicks/home", "clicks/shop"]},
        {"clicks": 1, "seconds": 0.0, "topics": ["clicks/home"]},
    ]
    assert [one["clicks"] for one in by_who["bob"]] == [1, 1]
    assert by_who["eve"] == [], "it may go on"


def test_pumps_that_wear_out_become_tickets_from_mqtt_to_the_notebook(spark, tmp_path, monkeypatch):
    pytest.importorskip("paho.mqtt.client")

    @contextmanager
    def running(*_, **__):
        yield spark

    def pipeline(*words: str) -> None:
        done = CliRunner().invoke(app_for(()), ["pipeline", *words])
        assert done.exit_code == 0, done.output

    for module in (command, pipelines):
        monkeypatch.setattr(module, "running", running)
    monkeypatch.syspath_prepend(str(EXAMPLES / "pumps"))
    monkeypatch.setenv("HEADWATER_URL", "")  # which the story sets
    monkeypatch.setenv("HEADWATER_MQTT", "true")
    tell = runpy.run_path(str(EXAMPLES / "pumps" / "story.py"))["tell"]
    assert tell(str(tmp_path), pipeline, minutes=30) > 10


def test_readings_are_joined_with_a_table(run, spark, tmp_path):
    rooms = [("kitchen", 0, 21.0), ("hall", 1, 18.0)]
    spark.createDataFrame(rooms, "room string, floor int, target double").write.parquet(str(tmp_path / "rooms"))
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/kitchen/temp", b"23.5"), ("home/attic/temp", b"30"), ("home/hall/temp", b"17")])
    out = tmp_path / "out"
    run("rooms.py", "--data", tmp_path / "data", "--set", f"rooms={tmp_path / 'rooms'}", "--set", f"out={out}")
    found = spark.read.parquet(str(out)).select("room", "floor", "off_by").orderBy("room").collect()
    assert [tuple(row) for row in found] == [("hall", 1, -1.0), ("kitchen", 0, 2.5)]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_declarative_pipelines_read_and_write_topics_once(server, tmp_path):
    project = copytree(EXAMPLES / "declarative", tmp_path / "project")
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/headwater-declarative", (tmp_path / "storage").as_uri()))
    environment = {**os.environ, "HEADWATER_URL": server.url, "PYSPARK_PYTHON": sys.executable}
    with headwater.connect(server.url) as bus:
        for celsius in (b"20", b"31"), (b"40",):
            bus.publish_many([("home/attic/temp", one) for one in celsius])
            pipelines = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--conf", HIVE]
            done = subprocess.run(
                pipelines, cwd=project, env=environment, capture_output=True, text=True, timeout=400, check=False
            )
            assert done.returncode == 0, done.stderr
        found = [json.loads(message.payload)["celsius"] for message in bus.replay("alerts/home/attic/temp")]
    assert found == [31, 40]
