from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import here, objects, objects_here, one_sentence, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        for number in range(3):
            bus.publish("jobs/x", b"job %d \x1b[31m" % number, key=b"k", headers={"who": "me"})
        with bus.subscribe("jobs/#", id="worker", start="earliest") as sub:
            for message in sub.batch(3, 1):
                message.reject("cannot: \x1b[0m")
    return tmp_path / "data"


def test_dead_letters_are_listed_and_shown_with_their_errors_beside_the_owner(data: Path):
    with headwater.open(data):
        found = objects("dead", "list", "worker", data=data)
        assert [(letter["offset"], letter["attempts"], letter["errors"]) for letter in found] == [
            (offset, 1, ["cannot: \x1b[0m"]) for offset in (1, 2, 3)
        ]
        assert objects("dead", "list", data=data) == found
        (one,) = objects("dead", "show", "worker", 2, data=data)
        assert one == found[1]
        for shown in (run("dead", "show", "worker", 2, data=data).stdout, run("dead", "list", data=data).stdout):
            assert "\x1b" not in shown
            assert "cannot: \\x1b[0m" in shown


def test_a_dead_letter_is_redriven_with_another_payload(data: Path):
    (done,) = objects("dead", "redrive", "worker", 2, "--payload", "mended", data=data)
    assert done == {"id": "worker", "redriven": 1}
    with headwater.open(data) as bus, bus.subscribe("jobs/#", id="worker") as sub:
        (message,) = sub.batch(10, 1)
        assert (message.offset, message.payload, message.key) == (2, b"mended", b"k")
        assert [letter.offset for letter in bus.dead_letters("worker")] == [1, 3]


def test_dead_letters_are_redriven_and_dropped(data: Path):
    assert objects("dead", "redrive", "worker", 1, data=data) == [{"id": "worker", "redriven": 1}]
    assert objects_here("dead", "drop", "worker", 2, data=data) == [{"id": "worker", "dropped": 1}]
    assert objects_here("dead", "redrive", "worker", "--all", data=data) == [{"id": "worker", "redriven": 1}]
    assert objects_here("dead", "list", data=data) == []
    again = objects_here("sub", "jobs/#", "--id", "worker", "--timeout-s", 0.2, data=data)
    assert [message["offset"] for message in again] == [1, 3]
    assert ["headwater-dead-from", "worker"] in again[0]["headers"]


@pytest.mark.parametrize(
    "wrong", [("list", "none"), ("show", "worker", "9"), ("redrive", "worker"), ("drop", "worker", "1", "--all")]
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(here("dead", *wrong, "--data", data, code=2).stderr)
    assert len(objects_here("dead", "list", "--data", data)) == 3


def test_an_offset_that_is_none_of_them_is_code_1(data: Path):
    run("dead", "drop", "worker", 1, 77, data=data, code=1)
    assert len(objects_here("dead", "list", data=data)) == 2
