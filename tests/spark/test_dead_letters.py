"""`headwater pipeline dead-letters`: groups by subscription, error and topic, made by Spark."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headwater
import headwater.bus
from headwater.cli.app import app_for
from headwater.cli.pipeline import dead_letters as module
from headwater.clock import ManualClock
from headwater.spark.pipelines.dead_letters import EXAMPLE_BYTES_MAX, grouped

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A bus that is open; two subscriptions gave up on 30 messages of 2 topics each, for reasons of their own."""
    path, clock = tmp_path_factory.mktemp("letters") / "data", ManualClock()
    with headwater.bus.Bus(path, clock=clock) as bus:
        bus.publish_many([(f"home/{n % 2}", b"%d" % n + b"x" * 2000 * (n == 1)) for n in range(30)])
        for name in ("heating", "alarm"):
            sub = bus.subscribe("home/#", id=name, start="earliest", order="none")
            for message in sub.batch(100, 1):
                clock.advance(1)
                message.reject("odd" if name == "alarm" and message.offset % 3 == 0 else "no \x1b[31mnumber")
        yield path


def test_groups_have_counts_times_and_the_first_letters_as_examples(spark, folder):
    found = grouped(spark, {"data": str(folder)}, examples=2)
    assert (found.groups_in_all, found.letters_in_all) == (6, 60)
    shape = [(one.subscription, one.error, one.topic, one.letters) for one in found.groups]
    assert shape == [
        ("heating", "no \x1b[31mnumber", "home/0", 15),
        ("heating", "no \x1b[31mnumber", "home/1", 15),
        ("alarm", "no \x1b[31mnumber", "home/0", 10),
        ("alarm", "no \x1b[31mnumber", "home/1", 10),
        ("alarm", "odd", "home/0", 5),
        ("alarm", "odd", "home/1", 5),
    ]
    first, second = found.groups[:2]
    assert [(one.offset, one.payload) for one in first.examples] == [(1, b"0"), (3, b"2")]
    assert [len(one.payload) for one in second.examples] == [EXAMPLE_BYTES_MAX, 1]
    assert (first.last - first.first).total_seconds() == 28
    assert first.attempts == 1


def test_one_subscription_and_the_largest_groups(spark, folder):
    found = grouped(spark, {"data": str(folder)}, subscription="alarm", groups_max=1, examples=0)
    assert [(one.topic, one.letters, one.examples) for one in found.groups] == [("home/0", 10, ())]
    assert (found.groups_in_all, found.letters_in_all) == (4, 30)


@pytest.fixture
def command(spark, monkeypatch):
    """The command, with the session of these tests."""

    @contextmanager
    def running(*_):
        yield spark

    monkeypatch.setattr(module, "running", running)
    return lambda *words: CliRunner().invoke(app_for(()), ["pipeline", "dead-letters", *map(str, words)])


def test_the_command_shows_a_table_and_objects(command, folder):
    shown = command("--data", folder).output
    assert "60 dead letters in 6 groups" in shown
    assert "\x1b" not in shown
    done = command("heating", "--data", folder, "--json", "--examples", 1, "--groups", 1)
    (one,) = map(json.loads, done.stdout.splitlines())
    assert (one["subscription"], one["topic"], one["letters"]) == ("heating", "home/0", 15)
    assert one["examples"] == [{"offset": 1, "payload": "0"}]
    assert one["first"] < one["last"]


def test_nothing_to_show_is_said_and_a_folder_that_is_none_is_refused_before_spark_starts(command, tmp_path: Path):
    headwater.open(tmp_path / "data").close()
    assert "there are no dead letters of x" in command("x", "--data", tmp_path / "data").output
    assert command("--data", tmp_path / "none").exit_code == 2
