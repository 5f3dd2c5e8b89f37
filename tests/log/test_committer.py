"""The committer: what a group leaves on disk and in memory, and who hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.faulty_files import FaultyFiles
from headwater.config import Config
from headwater.errors import (
    DiskFull,
    Failed,
    ReadOnly,
)
from headwater.message import Receipt
from log.place import Place


def test_a_publish_makes_a_batch_and_its_receipt(place: Place) -> None:
    receipt = place.publish(place.one("home/a"))
    assert receipt == Receipt("home/a", 1, place.clock.now_us())
    assert place.told == [("home", [(1, 1)])]


def test_a_call_over_several_roots_makes_a_batch_in_each(place: Place) -> None:
    receipts = place.publish(place.many("b/1", "a/1", "b/2"))
    assert [(receipt.topic, receipt.offset) for receipt in receipts] == [("b/1", 1), ("a/1", 1), ("b/2", 2)]
    assert sorted(place.told) == [("a", [(1, 1)]), ("b", [(1, 2)])]


def test_a_repeat_of_what_is_stored_is_answered_though_its_group_fails_or_the_disk_is_full() -> None:
    files = FaultyFiles(capacity_bytes=24 << 20)
    place = Place("data", Config(disk_free_bytes_min=1 << 20), files)
    place.publish(place.one("a/1", producer="p", sequence=1))
    fresh, again = place.one("a/1", producer="q", sequence=1), place.one("a/1", producer="p", sequence=1)
    files.fail_write_at = files.writes + 1
    place.roots.commit.submit_all([fresh, again])
    place.roots.commit.run(lambda: None)
    assert isinstance(fresh.error, Failed)
    assert (again.error, again.runs[0][1], again.runs[0][3]) == (None, 1, True)
    place.roots.room.is_left = False
    files.capacity_bytes = 1
    with pytest.raises(DiskFull):
        place.publish(place.one("a/1", producer="p", sequence=2))
    receipt = place.publish(place.one("a/1", producer="p", sequence=1))
    assert (receipt.offset, receipt.duplicate) == (1, True)
    files.capacity_bytes = None
    place.close()


def test_what_failed_to_be_written_is_not_counted(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Place("data", Config(topics_per_root_max=2), files)
    place.publish(place.one("a/1"))
    files.fail_write_at = files.writes + 1
    with pytest.raises(Failed):
        place.publish(place.one("a/2"))
    place.publish(place.one("a/3"))
    assert place.topics() == {"a/1": 1, "a/3": 1}
    assert place.payloads("a") == [b"x", b"x"]
    place.close()


def test_a_failed_sync_finishes_its_group_with_the_error_and_others_go_on() -> None:
    files = FaultyFiles()
    place = Place("data", files=files)
    place.publish(place.one("a/1"))
    place.publish(place.one("b/1"))
    files.fail_sync_at = files.syncs + 1
    lost = [place.one("a/1"), place.many("a/2")]
    place.group(*lost)
    assert all(isinstance(item.error, Failed) for item in lost)
    assert place.troubles
    assert sum(place.roots.counts.commits.counts) == 2
    with pytest.raises(ReadOnly):
        place.publish(place.one("a/1"))
    place.publish(place.one("b/1"))
    assert place.topics() == {"a/1": 1, "b/1": 2}


def test_after_a_commit_that_was_interrupted_its_stream_takes_nothing_more(tmp_path: Path) -> None:
    """Nobody can say how far it got: what came next could stand behind half a batch."""
    files = FaultyFiles()
    place = Place("data", files=files)
    place.publish(place.one("a/1"))
    place.publish(place.one("b/1"))

    def interrupt(*_: object) -> None:
        files.on_sync = None
        raise KeyboardInterrupt

    files.on_sync = interrupt
    with pytest.raises(KeyboardInterrupt):
        place.publish(place.one("a/1"))
    with pytest.raises(ReadOnly, match="interrupted"):
        place.publish(place.one("a/1"))
    assert place.publish(place.one("b/1")).offset == 2
    assert place.payloads("a") == [b"x"]
