from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here, one_sentence, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/old/a", b"1", retain=True)
        bus.publish("home/new", b"2")
    return tmp_path / "data"


def test_a_root_is_removed_with_its_folder(data: Path):
    assert one_sentence(run("remove-root", "home", data=data, code=2).stderr)
    with headwater.open(data) as bus:
        bus.publish("gone/a", b"1")
        bus.subscribe("gone/#", id="s").close()
    assert one_sentence(here("remove-root", "gone", "--yes", data=data, code=2).stderr)
    assert objects_here("remove-root", "gone", "--force", "--yes", data=data) == [{"root": "gone", "removed": True}]
    assert not [path for path in (data / "streams").iterdir() if path.name.endswith("-gone")]


def test_purge_removes_what_it_was_told_and_asks_where_it_can(data: Path):
    assert one_sentence(run("purge", "home/old/#", data=data, code=2).stderr)
    assert len(objects_here("topics", data=data)) == 2
    assert objects_here("purge", "home/old/#", "--yes", data=data) == [{"filter": "home/old/#", "topics": 1}]
    assert [found["topic"] for found in objects_here("replay", "#", data=data)] == ["home/new"]


def test_a_backup_is_restored_into_a_new_folder(data: Path, tmp_path: Path):
    run("backup", tmp_path / "copy", data=data)
    (done,) = objects_here("restore", tmp_path / "copy", data=tmp_path / "again")
    assert done["to"] == str(tmp_path / "again")
    here("pub", "home/new", "3", data=tmp_path / "again")
    assert [found["payload"] for found in objects_here("replay", "#", data=tmp_path / "again")] == ["1", "2", "3"]
    assert [found["payload"] for found in objects_here("replay", "#", data=data)] == ["1", "2"]


def test_folders_that_hold_something_are_left_alone(data: Path, tmp_path: Path):
    run("backup", tmp_path / "copy", data=data)
    assert one_sentence(here("backup", tmp_path / "copy", data=data, code=2).stderr)
    assert one_sentence(here("restore", tmp_path / "copy", data=data, code=2).stderr)
    assert one_sentence(here("restore", tmp_path / "none", data=tmp_path / "again", code=2).stderr)
    with headwater.open(data):
        assert run("backup", tmp_path / "other", data=data, code=2).stderr.startswith("Owned(409)")


def test_what_there_is_of_a_key_is_said_and_then_removed_from_log_and_lake(tmp_path: Path):
    from spark import lakes

    data, lake = tmp_path / "data", tmp_path / "lake"
    with headwater.open(data) as bus:
        for key in (b"ann", b"ben", b"ann"):
            bus.publish("home/door", b"opened", key=key, retain=True)
        lakes.archive(lake, bus, "home", 2)
    asked = ("pipeline", "erase", "--key", "ann", "--lake", lake)
    found = {"messages": {"home": 2}, "retained": 1, "dead_letters": 0, "delayed": 0, "states": 0, "lake": {"home": 1}}
    for _ in range(2):
        assert objects_here(*asked, data=data) == [{**found, "carried_out": {}, "done": False}]
    assert objects_here(*asked, "--yes", data=data) == [{**found, "carried_out": {"home": 1}, "done": True}]
    (left,) = objects_here(*asked, data=data)
    assert not any(left[name] for name in found)
    with headwater.open(data, headwater.Config(lake=str(lake))) as bus:
        assert [message.key for message in bus.replay("#")] == [b"ben"]
    assert one_sentence(
        here("pipeline", "erase", "--key", "ann", "--lake", tmp_path / "none", data=data, code=2).stderr
    )
