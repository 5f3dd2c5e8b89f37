from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import headwater
from cli.command import ENVIRONMENT, command, here, objects, objects_here, one_sentence, run, start


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/a" if number % 2 else "home/b", b"%d" % number) for number in range(1, 11)])
        bus.publish("mill/a", b"x")
    return tmp_path / "data"


def test_history_comes_in_order_from_where_it_is_asked_for(data: Path):
    assert [found["offset"] for found in objects("replay", "home/a", data=data)] == [1, 3, 5, 7, 9]
    assert [found["offset"] for found in objects_here("replay", "home/#", "--after", 8, data=data)] == [9, 10]
    assert [found["offset"] for found in objects_here("replay", "home/#", "--count", 2, data=data)] == [1, 2]
    some = objects_here("replay", "#", "--after", "home=9", "--after", "mill=0", data=data)
    assert [(found["topic"], found["offset"]) for found in some] == [("home/b", 10), ("mill/a", 1)]


def test_history_since_a_moment(data: Path):
    assert len(objects("replay", "#", "--since", "1h", data=data)) == 11
    assert objects_here("replay", "#", "--since", "+1h", data=data) == []
    assert len(objects_here("replay", "#", "--since", "2020-01-01T00:00+01:00", data=data)) == 11


def test_payloads_come_out_raw(data: Path):
    assert run("replay", "home/a", "--raw", data=data).stdout == "1\n3\n5\n7\n9\n"


def test_follow_goes_on_beside_the_owner_with_no_gap_and_no_repeat(data: Path):
    with headwater.open(data) as bus, start("replay", "home/#", "--follow", "--count", 310, "--json", data=data) as it:
        assert it.stdout is not None
        seen = [json.loads(it.stdout.readline())["offset"]]
        for number in range(100):
            bus.publish_many([("home/c", b"x"), ("mill/c", b"x"), ("home/d", b"y"), ("home/c", b"z")])
            if number % 10 == 0:
                seen.append(json.loads(it.stdout.readline())["offset"])
        seen += [json.loads(line)["offset"] for line in it.stdout]
        assert it.wait(60) == 0
    assert seen == list(range(1, 311))


def test_a_reader_that_has_enough_ends_it_quietly(data: Path):
    with headwater.open(data) as bus:
        bus.publish_many([("home/a", b"x" * 100)] * 20_000)
    with subprocess.Popen(
        command("replay", "home/#", "--data", data),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == b"home/a\t1\t1\n"
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(60) == 0


@pytest.mark.parametrize(
    "wrong", [("#", "--after", "3"), ("home/#", "--after", "x"), ("home/#", "--since", "x"), ("home/#/x",)]
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(here("replay", *wrong, "--data", data, code=2).stderr)


def test_no_folder_is_said_in_one_sentence(tmp_path: Path):
    result = run("replay", "#", data=tmp_path / "nowhere", code=2)
    assert result.stderr.startswith("NotFound(404)")
    assert not (tmp_path / "nowhere").exists()
