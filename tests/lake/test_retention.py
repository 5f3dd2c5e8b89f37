"""How long a lake keeps the messages of a root: by whole files, of which a device with a wrong clock spoils none."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
import headwater.bus
from headwater import Config, Gap, ManualClock, Retention
from headwater.lake.lake import Archived, LakeFile, archived_in, open_lake
from headwater.lake.retention import beyond, delete
from headwater.lake.scan import first_since
from spark import lakes

DAY_S = 86_400
DAY_US = DAY_S * 1_000_000
NOW_US = 20_000 * DAY_US


def file(first: int, last: int, days_old: float, size: int = 100) -> LakeFile:
    newest_us = round(NOW_US - days_old * DAY_US)
    return LakeFile(f"{first}", last - first + 1, size, first, last, newest_us // DAY_US, newest_us)


def left(files: list[LakeFile], **rule: float) -> list[str]:
    archived = Archived("home", 1, 1000, tuple(files))
    gone = beyond(archived, Retention(**rule), NOW_US)  # type: ignore[arg-type]
    return [one.path for one in files if one not in gone]


def test_files_go_by_age_and_by_size_from_the_oldest_on() -> None:
    files = [file(1, 100, 9), file(95, 200, 8), file(195, 300, 2), file(301, 400, 1)]
    assert left(files) == ["1", "95", "195", "301"]
    assert left(files, lake_age_s=20 * DAY_S) == ["1", "95", "195", "301"]
    assert left(files, lake_age_s=7 * DAY_S) == ["95", "195", "301"], (
        "of the second file some are as new as the third's"
    )
    assert left(files, lake_age_s=1.5 * DAY_S) == ["301"]
    assert left(files, lake_age_s=0.5 * DAY_S) == []
    assert left(files, lake_bytes=400) == ["1", "95", "195", "301"]
    assert left(files, lake_bytes=250) == ["195", "301"]
    assert left(files, lake_bytes=1) == []


def test_a_clock_that_is_wrong_neither_takes_what_is_new_nor_keeps_what_is_old() -> None:
    behind = [file(1, 100, 9), file(101, 200, 1), file(150, 150, 9000)]
    assert left(behind, lake_age_s=7 * DAY_S) == ["101", "150"]
    ahead = [file(1, 100, 9), file(50, 50, -9000), file(101, 200, 1)]
    assert left(ahead, lake_age_s=7 * DAY_S) == ["101"]


def test_what_retention_left_behind_is_gone_for_every_reader_and_says_so(tmp_path: Path) -> None:
    lake, clock = tmp_path / "lake", ManualClock()
    config = Config(segment_bytes=64 * 1024, lake=str(lake), retention=Retention(bytes=1))
    with headwater.bus.Bus(tmp_path / "data", config, clock=clock) as bus:
        bus.mark_archived("lake", {"home": 0})
        for day in range(3):
            for n in range(30):
                bus.publish("home/a", b"%d" % (day * 30 + n) + bytes(4000))
            lakes.archive(lake, bus, "home", bus.ends()["home"])
            clock.advance(DAY_S)
        table = open_lake(str(lake)).table("home")
        archived = archived_in(table, "home")
        rule = Retention(lake_age_s=1.5 * DAY_S)
        files = beyond(archived, rule, clock.now_us())
        delete(table, "home", files)
        archived = archived_in(open_lake(str(lake)).table("home"), "home")
        assert archived.first == max(one.last for one in files) + 1
        assert archived.upto == 90
        assert first_since(archived, 0, 91) == archived.first
        bus.mark_archived("lake", {"home": 90})
        root = bus.core.roots.get("home")
        assert root is not None
        bus.core.upkeep.retain(root)
        kept = [message.offset for message in bus.replay("home/#")]
        assert kept == list(range(archived.first, 91))
        with pytest.raises(Gap):
            list(bus.replay("home/#", after=1))
