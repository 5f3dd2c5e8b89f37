"""A folder that takes no writes is looked at all the same, also beside an owner who has it by another way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.store import rocks
from headwater.store.rocks import RocksReader, RocksState


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, which may be mounted anew."""
    place = tmp_path / "disk"
    place.mkdir()
    made = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", place], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("it takes the right to mount")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_folder_on_a_disk_that_takes_no_writes_is_read_and_not_written(mounted: Path) -> None:
    data = mounted / "data"
    with headwater.open(data) as bus:
        bus.publish("home/hall/temp", b"19.0", retain=True)
        with bus.subscribe("home/#", id="s", start="earliest") as subscription:
            message = subscription.next(timeout_s=0)
            assert message is not None
            message.ack()
        bus.publish("home/hall/temp", b"20.0")
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    with headwater.open(data, read_only=True) as bus:
        assert [one.payload for one in bus.replay("home/#")] == [b"19.0", b"20.0"]
        assert bus.retained("home/#")["home/hall/temp"].payload == b"19.0"
        assert [(one.id, one.lag) for one in bus.subscriptions()] == [("s", 1)]
    with pytest.raises(headwater.ReadOnly, match="can be looked at, not changed"):
        headwater.open(data)


def test_links_keep_up_with_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "state")
    owner = RocksState(path)
    owner.write({b"a": b"1"})
    owner.sync()
    monkeypatch.setattr(rocks, "is_writable", lambda _: False)
    reader = RocksReader(path)
    try:
        assert reader.get(b"a") == b"1"
        owner.write({b"b": b"2"})
        owner.sync()
        owner.snapshot(str(tmp_path / "snapshot"))  # which makes a table and another log of what was written
        owner.write({b"c": b"3"})
        owner.sync()
        reader.refresh()
        assert [reader.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"2", b"3"]
    finally:
        reader.close()
        owner.close()


def test_a_full_disk_is_told_as_one(mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", mounted], check=True)
    headwater.open(mounted / "data").close()
    (mounted / "fill").write_bytes(bytes((os.statvfs(mounted).f_bavail - 1) * os.statvfs(mounted).f_frsize))
    with pytest.raises(headwater.DiskFull, match="make room"):
        headwater.open(mounted / "data")
    with pytest.raises(headwater.DiskFull, match="make room"):
        headwater.open(mounted / "new")
    (mounted / "fill").unlink()
    headwater.open(mounted / "data").close()
    headwater.open(mounted / "new").close()
