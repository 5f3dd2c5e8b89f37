"""Free room: who is refused while the disk has too little."""

from __future__ import annotations

import pytest

from faults.faulty_files import FaultyFiles
from headwater.config import Config
from headwater.errors import (
    DiskFull,
)
from headwater.log.free_room import LOOK_AFTER_BYTES
from log.place import Place


def test_with_too_little_room_publishes_are_refused_until_there_is_some() -> None:
    files = FaultyFiles(capacity_bytes=24 << 20)
    place = Place("data", Config(disk_free_bytes_min=10 << 20, preallocate_bytes=0), files)
    with pytest.raises(DiskFull, match="disk_free_bytes_min"):
        for _ in range(100):
            place.publish(place.one("a/1", bytes(1 << 20)))
    assert files.free_bytes("data") > (10 << 20) - LOOK_AFTER_BYTES - (2 << 20), "acks and recovery use the rest"
    with pytest.raises(DiskFull):
        place.publish(place.many("a/1", "b/1"))
    assert place.roots.get("b") is None
    files.capacity_bytes = 100 << 20
    place.publish(place.one("a/1", b"again"))
    assert place.payloads("a")[-1] == b"again"
    place.close()


def test_a_write_that_finds_the_disk_full_is_503_and_so_is_the_next_until_there_is_room() -> None:
    files = FaultyFiles()
    place = Place("data", Config(disk_free_bytes_min=0), files)
    place.publish(place.one("a/1"))
    files.short_write_at = files.writes + 1
    with pytest.raises(DiskFull):
        place.publish(place.one("a/1", bytes(100)))
    assert place.publish(place.one("a/1", b"fits")).offset == 2
    assert place.payloads("a") == [b"x", b"fits"]
    place.close()
