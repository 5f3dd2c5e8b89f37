"""Marks that archives leave for the owner of a folder, and retention that waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
import headwater.bus
from headwater.config import Retention
from headwater.store import marks
from headwater.store.files import DiskFiles

FILES = DiskFiles()


def retain(bus: headwater.bus.Bus) -> None:
    root = bus.core.roots.get("home")
    assert root is not None
    bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(root))


def test_without_a_lake_nothing_waits(tmp_path: Path) -> None:
    assert marks.unarchived_from(FILES, str(tmp_path), "home", 17) == 17


def test_the_slowest_lake_counts_and_one_that_lacks_a_root_has_nothing_of_it(tmp_path: Path) -> None:
    marks.leave(FILES, str(tmp_path), "a", {"home": 10, "yard": 3})
    marks.leave(FILES, str(tmp_path), "b", {"home": 7})
    assert marks.unarchived_from(FILES, str(tmp_path), "home", 17) == 8
    assert marks.unarchived_from(FILES, str(tmp_path), "yard", 17) == 1
    marks.leave(FILES, str(tmp_path), "b", {"home": 12, "yard": 3})
    assert marks.unarchived_from(FILES, str(tmp_path), "home", 17) == 11


def test_a_damaged_mark_holds_everything_back(tmp_path: Path) -> None:
    marks.leave(FILES, str(tmp_path), "a", {"home": 10})
    (tmp_path / "archived" / "a").write_text("{")
    assert marks.unarchived_from(FILES, str(tmp_path), "home", 17) == 1


def test_retention_waits_for_the_archive(tmp_path: Path) -> None:
    config = headwater.Config(segment_bytes=64 * 1024, retention=Retention(bytes=64 * 1024))
    with headwater.open(tmp_path / "data", config) as bus:
        marks.leave(FILES, str(tmp_path / "data"), "lake", {})
        for _ in range(40):
            bus.publish_many([("home/a", bytes(1000))] * 20)
        retain(bus)
        assert next(iter(bus.replay("home/#"))).offset == 1
        marks.leave(FILES, str(tmp_path / "data"), "lake", {"home": 500})
        retain(bus)
        assert 1 < next(iter(bus.replay("home/#"))).offset <= 501


def test_a_mark_that_cannot_be_right_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/a", b"x")
        for lake in ("", "../lock", "a/b", "x.tmp", "x" * 65):
            with pytest.raises(headwater.Malformed, match="is no id of a lake"):
                bus.mark_archived(lake, {"home": 1})
        for archived in ({"home": 2}, {"yard": 1}):
            with pytest.raises(headwater.Malformed, match="older backup"):
                bus.mark_archived("lake", archived)
        assert marks.found(FILES, bus.folder) == {}
        monkeypatch.setattr(marks, "LAKES_MAX", 2)
        for lake in ("a", "b", "a"):
            bus.mark_archived(lake, {"home": 1})
        with pytest.raises(headwater.QuotaExceeded, match="delete those"):
            bus.mark_archived("c", {"home": 1})
        assert marks.found(FILES, bus.folder) == {"a": {"home": 1}, "b": {"home": 1}}


def test_a_bus_keeps_its_id(tmp_path: Path) -> None:
    ids = set()
    for folder in ("a", "b", "a"):
        with headwater.open(tmp_path / folder) as bus:
            ids.add(bus.id)
    assert len(ids) == 2
    assert all(ids)
