from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli.command import objects, run
from cluster.conftest import runs_nats
from headwater.cli.bench.cluster import measure as cluster
from headwater.cli.bench.fair import behind, many, rows, traffic
from headwater.cli.bench.fair.table import ROWS
from headwater.cli.bench.figure import Figure
from headwater.cli.bench.served import latency
from server.harness import Running


def figures(tmp_path: Path, *arguments: object) -> list[dict[str, Any]]:
    (result,) = objects("bench", *arguments)
    assert result["machine"]["cores"] == os.cpu_count()
    assert not list(tmp_path.iterdir()), "what was measured is gone"
    found: list[dict[str, Any]] = result["figures"]
    assert all(figure["value"] >= 0 for figure in found)
    return found


def test_publishing_is_measured_beside_raw_appends(tmp_path: Path):
    found = figures(tmp_path, "publish", "--seconds", 0.05, "--data", tmp_path)
    assert len(found) == 8
    assert {figure["variant"] for figure in found} == {"1 topic", "1,000 topics", "100 topics"}
    assert all(figure["raw"] > 0 and figure["ratio"] > 0 and figure["is_met"] is not None for figure in found)


@pytest.mark.parametrize(("what", "each"), [("deliver", 2), ("replay", 1)])
def test_reading_is_measured_with_one_topic_and_with_many(tmp_path: Path, what: str, each: int):
    found = figures(tmp_path, what, "--count", 2000, "--data", tmp_path)
    assert [figure["variant"] for figure in found] == each * ["1 topic"] + each * ["1,000 topics"]


def test_a_served_broker_is_measured_beside_an_echo_and_a_sync(tmp_path: Path):
    found = figures(tmp_path, "served", "--quick", "--only", "latency", "--data", tmp_path)
    assert [figure["raw_name"] for figure in found] == 2 * ["echo", "echo", "echo + fdatasync", "echo + fdatasync"]


@pytest.mark.parametrize(
    ("what", "options", "count"),
    [("publish", ("--seconds", 0.05), 6), ("deliver", ("--count", 2000), 4), ("replay", ("--count", 2000), 2)],
)
def test_a_broker_that_runs_is_measured_over_the_wire_and_left_as_it_was(
    tmp_path: Path, what: str, options: tuple[object, ...], count: int
):
    with Running() as running:
        found = figures(tmp_path, what, *options, "--url", running.server.url)
        assert running.bus.topics() == []
        assert running.bus.subscriptions() == []
    assert len(found) == count


def test_however_slow_a_machine_is_something_of_each_is_measured():
    """What was done before, so that all is warm, may take longer than the time there is."""
    taken: dict[str, list[float]] = {"one": [], "other": []}
    latency._turns(taken, 0.0, one=lambda: 1.0, other=lambda: 2.0)
    assert taken == {"one": [1.0] * latency.TURNS, "other": [2.0] * latency.TURNS}


@pytest.mark.parametrize(
    "row", ["strangers", "guesses", "reconnect", "retention", "listing", "tls-strangers", "bulk", "behind", "nothing"]
)
def test_a_neighbour_is_measured_alone_and_beside(tmp_path: Path, row: str, monkeypatch: pytest.MonkeyPatch):
    assert set(ROWS) >= {row}
    assert ROWS["strangers"] is rows.strangers
    monkeypatch.setattr(many, "MOST", 1000)
    monkeypatch.setattr(many, "MANY", 100)
    monkeypatch.setattr(behind, "QUICK_FAR", 2000)
    monkeypatch.setattr(rows, "GONE_S", 0.1)
    for figure in ROWS[row](str(tmp_path), 0.3):
        assert figure.raw_name == "alone"
        assert figure.ratio is not None
        assert figure.goal is not None
    assert not list(tmp_path.iterdir()), "what was measured is gone"


def test_one_who_wants_all_that_is_retained_is_measured_and_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traffic, "WAYS", traffic.WAYS[-1:])
    found = list(ROWS["retained"](str(tmp_path), 0.02))
    assert len(found) == 5
    came = [figure for figure in found if figure.name == "retained that came"]
    assert [(figure.variant, figure.value, figure.is_met) for figure in came] == [
        (way, 2000, True) for way in ("embedded", "MQTT QoS 1")
    ]
    assert all(figure.ratio is not None for figure in found if figure not in came)
    assert not list(tmp_path.iterdir()), "what was measured is gone"


@pytest.mark.xdist_group("nats")
def test_three_nodes_are_measured_by_turns_with_the_engine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs_nats()
    monkeypatch.setattr(cluster, "ROUNDS", 1)
    monkeypatch.setattr(cluster, "SINGLES", 5)
    monkeypatch.setattr(cluster, "STEADY_S", 0.1)
    parts = ("publish", "single", "step-down")
    found = {(one.name, one.variant): one for one in cluster.measure(str(tmp_path), 0.3, 1, parts, 1.0)}
    assert len(found) == 6
    assert all(one.value > 0 for one in found.values() if not one.name.startswith("follower"))
    assert [one.variant for one in found.values() if one.raw] == ["bytes", "messages", "400 bytes"]
    assert not list(tmp_path.iterdir()), "what was measured is gone"


def test_look_ups_are_measured(tmp_path: Path):
    found = figures(tmp_path, "match", "--seconds", 0.05, "--subscriptions", 1000)
    assert len(found) == 6


def test_opening_after_kill_9_is_measured(tmp_path: Path):
    found = figures(tmp_path, "open", "--stored", 10_000, "--data", tmp_path)
    assert [figure["variant"] for figure in found] == [
        "1,000 stored",
        "10,000 stored",
        "10,000 stored",
        "10,000 retained topics",
    ]


def test_figures_are_a_table_for_people():
    shown = run("bench", "import").stdout
    assert "import headwater" in shown
    assert "≤ 0.150 s" in shown


def test_a_goal_is_about_the_value_or_about_the_ratio():
    assert Figure("x", "", 10, "s", 20, "raw", ("ratio ≥", 0.5)).is_met
    assert not Figure("x", "", 9, "s", 20, "raw", ("ratio ≥", 0.5)).is_met
    assert Figure("x", "", 9, "s", goal=("value ≤", 9)).is_met
    assert not Figure("x", "", 9, "s", goal=("ratio ≤", 9)).is_met
    assert Figure("x", "", 9, "s").is_met is None
