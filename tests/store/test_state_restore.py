"""Snapshots of the state, and a state made anew of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater import Damaged, Failed, NotFound
from headwater.bus import Bus
from headwater.store import chain, snapshots
from headwater.store import state as rows
from headwater.store.files import DiskFiles
from headwater.store.rocks import RocksState
from headwater.store.snapshots import Snapshot
from headwater.store.state_restore import Restored, restore_state
from store.test_rocks import flip

FILES = DiskFiles()


def snap(bus: Bus) -> Snapshot | None:
    state = bus.core.state
    assert isinstance(state, RocksState)
    return snapshots.take(FILES, bus.folder, state, 1, bus.config.state_snapshots_max)


def restored(folder: Path, **options: bool) -> Restored:
    return restore_state(FILES, str(folder), **options)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with headwater.open(tmp_path / "data") as made:
        made.clients.add("ann")
        made.acl.allow("ann", "publish", "#")
        made.publish_many([("jobs/x", b"%d" % number) for number in range(10)])
        made.publish("jobs/kept", b"value", retain=True)
        sub = made.subscribe("jobs/#", id="s", start="earliest")
        sub.ack(sub.batch(5, 0))
        assert snap(made) is not None
        sub.ack(sub.batch(2, 0))
        sub.close()
        made.publish("later/kept", b"value", retain=True)
        yield made


@pytest.fixture
def left(bus: Bus, tmp_path: Path) -> Path:
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    return tmp_path / "left"


def table_of(folder: Path) -> Path:
    return max((folder / "state").glob("*.sst"), key=lambda path: path.stat().st_size)


# Snapshots


def test_a_snapshot_is_taken_only_when_something_was_written_and_few_are_kept(bus: Bus, tmp_path: Path) -> None:
    for number in range(4):
        assert snap(bus) is not None
        assert snap(bus) is None
        bus.acl.allow("ann", "publish", f"a/{number}")
    assert len(snapshots.taken(FILES, bus.folder)) == bus.config.state_snapshots_max
    assert sorted(path.name for path in (tmp_path / "data" / "snapshots").iterdir()) == sorted(
        snapshots.taken(FILES, bus.folder)
    )


def test_a_snapshot_shares_tables_with_the_one_before_and_with_the_state_none(bus: Bus, tmp_path: Path) -> None:
    bus.acl.allow("ann", "publish", "b")
    assert snap(bus) is not None
    newer, older = (tmp_path / "data" / "snapshots" / name for name in snapshots.taken(FILES, bus.folder))
    shared = {path.name for path in newer.glob("*.sst")} & {path.name for path in older.glob("*.sst")}
    assert shared
    for name in shared:
        assert (newer / name).samefile(older / name)
        assert not (newer / name).samefile(tmp_path / "data" / "state" / name)


def test_a_damaged_snapshot_is_passed_over(bus: Bus, tmp_path: Path) -> None:
    bus.acl.allow("ann", "publish", "b")
    assert snap(bus) is not None
    newer, older = snapshots.taken(FILES, bus.folder)
    place = tmp_path / "data" / "snapshots" / newer
    for name in ("SNAPSHOT", next(place.glob("MANIFEST*")).name):
        path = place / name
        before = path.read_bytes()
        flip(path, len(before) // 2)
        found = snapshots.newest_whole(FILES, bus.folder)
        assert found is not None
        assert found[0] == older
        path.write_bytes(before)
    found = snapshots.newest_whole(FILES, bus.folder)
    assert found is not None
    assert found[0] == newer


def test_what_a_snapshot_left_that_was_cut_short_is_in_the_way_of_none(bus: Bus, tmp_path: Path) -> None:
    place = tmp_path / "data" / "snapshots"
    for name in (snapshots.TAKING, snapshots.MAKING):
        (place / name).mkdir()
        (place / name / "000001.log").write_bytes(b"cut short")
    bus.acl.allow("ann", "publish", "b")
    assert snap(bus) is not None
    newest = snapshots.taken(FILES, bus.folder)[0]
    found = snapshots.newest_whole(FILES, bus.folder)
    assert found is not None
    assert found[0] == newest
    assert {path.name for path in (place / newest).iterdir()} == {"SNAPSHOT", *(entry.name for entry in found[1].files)}
    assert sorted(path.name for path in place.iterdir()) == sorted(snapshots.taken(FILES, bus.folder))


def test_a_snapshot_that_fails_leaves_nothing(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "no room")

    bus.acl.allow("ann", "publish", "b")
    monkeypatch.setattr(DiskFiles, "rename", full)
    with pytest.raises(Failed, match="no room"):
        snap(bus)
    assert [path.name for path in (tmp_path / "data" / "snapshots").iterdir()] == snapshots.taken(FILES, bus.folder)


# Restore


def check_restored(folder: Path, acked: int) -> None:
    """Subscriptions and messages are there, and what the streams tell."""
    with headwater.open(folder) as bus:
        assert [info.id for info in bus.subscriptions()] == ["s"]
        assert bus.subscriptions()[0].floors["jobs"] == acked
        assert {message.topic for message in bus.retained("#").values()} == {"jobs/kept", "later/kept"}
        assert [info.name for info in bus.clients.list()] == ["ann"]
        sub = bus.subscribe("jobs/#", id="s")
        assert [message.offset for message in sub.batch(20, 0)] == list(range(acked + 1, 12))


def test_a_whole_state_is_left_as_it_is(left: Path) -> None:
    assert restored(left).is_whole
    check_restored(left, 7)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_a_state_that_does_not_open_is_made_of_the_snapshot_and_its_log(left: Path, name: str) -> None:
    next((left / "state").glob(name)).unlink()
    with pytest.raises(Damaged, match="restore --state"):
        headwater.open(left)
    done = restored(left)
    assert done.losses == []  # as the log has all that came after the snapshot
    assert done.snapshot is not None
    check_restored(left, 7)
    assert (left / "quarantine" / "state-1").is_dir()


def test_what_came_after_the_snapshot_is_lost_with_the_log_and_told(left: Path) -> None:
    shutil.rmtree(left / "state")
    done = restored(left)
    (loss,) = done.losses
    assert loss.groups & 1 << chain.SUBSCRIPTIONS
    assert not loss.closes_access
    check_restored(left, 5)
    with headwater.open(left) as bus:
        assert [str(one) for one in bus.core.losses] == [str(loss)]


def test_rules_that_may_be_older_than_they_were_are_closed(bus: Bus, left: Path, tmp_path: Path) -> None:
    bus.acl.deny("ann", "publish", "secret/#")
    bus.close()
    shutil.rmtree(tmp_path / "data" / "state")
    (loss,) = restored(tmp_path / "data").losses
    assert loss.closes_access
    with headwater.open(tmp_path / "data") as again:
        assert again.acl.closed is not None
        assert not again.acl.may_publish("ann", "secret/x")


def test_rows_that_cannot_be_read_are_as_the_snapshot_has_them_and_the_others_as_they_were(left: Path) -> None:
    with headwater.open(left) as bus:
        bus.subscribe("more/#", id="t").close()
    table = table_of(left)
    flip(table, 100)
    done = restored(left)
    assert not done.is_whole
    assert done.losses
    with headwater.open(left) as bus:
        assert {info.id for info in bus.subscriptions()} >= {"s"}
        assert {message.topic for message in bus.retained("#").values()} == {"jobs/kept", "later/kept"}


def test_without_a_snapshot_it_takes_a_word_to_go_on_with_what_the_streams_tell(left: Path) -> None:
    shutil.rmtree(left / "state")
    shutil.rmtree(left / "snapshots")
    with pytest.raises(NotFound, match="--without-snapshot"):
        restored(left)
    (loss,) = restored(left, without_snapshot=True).losses
    assert loss.closes_access
    with headwater.open(left) as bus:
        assert bus.subscriptions() == []
        assert {message.topic for message in bus.retained("#").values()} == {"jobs/kept", "later/kept"}
        assert [message.payload for message in bus.replay("later/#")] == [b"value"]


def test_a_restore_that_was_interrupted_is_begun_again(left: Path) -> None:
    (left / "state" / "CURRENT").unlink()
    shutil.copytree(left / "state", left / "state.new")
    (left / "state").rename(left / "state.old")
    assert restored(left).losses == []
    check_restored(left, 7)
    assert not (left / "state.old").exists()
    assert not (left / "state.new").exists()


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_a_restore_that_was_killed_while_it_put_the_new_state_in_place_is_begun_again(left: Path, renames: int) -> None:
    class Killed(DiskFiles):
        left = renames

        def rename(self, old: str, new: str) -> None:
            if "state" in old.rpartition("/")[2]:
                if not self.left:
                    raise KeyboardInterrupt
                self.left -= 1
            super().rename(old, new)

    (left / "state" / "CURRENT").unlink()
    with pytest.raises(KeyboardInterrupt):
        restore_state(Killed(), str(left))
    assert restored(left).losses == []
    check_restored(left, 7)


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_restore_renamed_is_durable_when_it_is_done(left: Path, is_there: bool) -> None:
    done: list[tuple[str, str]] = []

    class Noting(DiskFiles):
        def rename(self, old: str, new: str) -> None:
            done.append(("rename", new))
            super().rename(old, new)

        def sync_folder(self, path: str) -> None:
            done.append(("sync", path))
            super().sync_folder(path)

    if is_there:
        (left / "state" / "CURRENT").unlink()
    else:
        shutil.rmtree(left / "state")
    restore_state(Noting(), str(left))
    renamed = [place for place, (kind, _) in enumerate(done) if kind == "rename"]
    synced = [place for place, one in enumerate(done) if one == ("sync", str(left))]
    marks = done.index(("rename", str(left / "state.synced")))
    assert any(place > marks for place in synced if not is_there or place < renamed[-1])
    assert synced[-1] > renamed[-1]


def test_the_rows_of_a_restored_state_are_numbered_after_the_lost_ones(left: Path) -> None:
    shutil.rmtree(left / "state")
    lost = restored(left).losses[0].last
    state = RocksState(str(left / "state"))
    assert state.number > lost
    assert state.met == []
    state.commit({rows.FLOOR + b"x": b""})
    state.close()
