from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater
from cli.command import objects, objects_here, one_sentence, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        for start in range(0, 3000, 1000):
            bus.publish_many([("home/a", json.dumps({"n": n})) for n in range(start, start + 1000)])
        bus.publish("home/b", b"in words", key=b"k1", headers={"unit": "C"})
    return tmp_path / "data"


def test_messages_are_found_by_fields_texts_keys_and_headers(data: Path):
    assert len(objects("search", "home/#", "--where", "$.n >= 100", data=data)) == 2900
    assert [one["offset"] for one in objects_here("search", "#", "--where", "$.n > 9", "--count", 2, data=data)] == [
        11,
        12,
    ]
    for flag, value in (("--text", "words"), ("--key", "k"), ("--header", "unit=C")):
        assert [one["topic"] for one in objects_here("search", "#", flag, value, data=data)] == ["home/b"]
    assert len(objects_here("search", "#", "--until", "+1h", data=data)) == 3001


def test_nothing_found_and_a_condition_that_is_none_are_told(data: Path):
    nothing = run("search", "home/#", "--text", "elsewhere", data=data, code=1)
    assert (nothing.stdout, nothing.stderr) == ("", "nothing was found\n")
    wrong = run("search", "home/#", "--where", "n > 1", data=data, code=2).stderr
    assert one_sentence(wrong)
    assert "begins with $." in wrong
