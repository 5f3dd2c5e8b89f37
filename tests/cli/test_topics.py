from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects, run, start
from headwater import TopicInfo
from headwater.cli.topics import levels_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/kitchen/temp", b"1", retain=True)
        bus.publish("home/kitchen/temp", b"2")
        bus.publish("home/hall/\x1b[31mtemp", b"3")
        bus.publish("mill", b"4")
    return tmp_path / "data"


def test_topics_are_a_tree_with_counts_last_offsets_and_retained_marks(data: Path):
    assert run("topics", data=data).stdout.splitlines() == [
        "home  3 in 2 topics",
        "├── hall",
        "│   └── \\x1b[31mtemp  1  last 3",
        "└── kitchen",
        "    └── temp  2  last 2  ●",
        "mill  1  last 1",
        "3 topics in 2 roots, 4 messages",
    ]
    assert here("topics", "home/#", "--depth", 1, data=data).stdout.startswith("home  3 in 2 topics\n2 topics")


def test_topics_for_machines(data: Path):
    assert objects("topics", "home/kitchen/#", data=data) == [
        {"topic": "home/kitchen/temp", "messages": 2, "last_offset": 2, "retained": True}
    ]


def test_rates_come_from_two_looks_beside_the_owner(data: Path):
    with headwater.open(data) as bus, start("topics", "mill", "--watch", "--interval", 0.1, "--json", data=data) as it:
        assert it.stdout is not None
        while True:
            bus.publish("mill", b"x")
            found = json.loads(it.stdout.readline())
            if found["rate"] > 0:
                break
        it.kill()
    (once,) = objects("topics", "mill", "--interval", 0.05, data=data)
    assert once["rate"] == 0


def test_levels_hold_sums_over_everything_below():
    top = levels_of([TopicInfo("a/b", 2, 5, False), TopicInfo("a", 1, 1, True), TopicInfo("a//c", 4, 7, False)], {})
    assert (top.messages, top.topics) == (7, 3)
    assert (top.below["a"].messages, top.below["a"].topics) == (7, 3)
    assert top.below["a"].below[""].below["c"].messages == 4
