"""Readers of a folder beside its owner: subscriptions stand where they are, and retention waits for them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import headwater
import headwater.bus
from headwater.clock import ManualClock
from headwater.config import Retention
from headwater.store import readers
from headwater.store.files import DiskFiles
from headwater.store.readers import Reader

FILES = DiskFiles()
SMALL = headwater.Config(segment_bytes=64 * 1024, retention=Retention(bytes=64 * 1024))


def leave(folder: Path, place: int, id: str = "job", filter: str = "home/#", is_stated: bool = False) -> None:
    reader = Reader(id=id, filter=filter, places={"home": place}, expire_after_s=3600.0, is_stated=is_stated)
    readers.leave(FILES, str(folder), reader)


def fill(bus: headwater.bus.Bus, batches: int = 40) -> None:
    for _ in range(batches):
        bus.publish_many([("home/a", bytes(1000))] * 20)


def retain(bus: headwater.bus.Bus) -> int:
    """Have retention do what it may; the oldest message after it."""
    root = bus.core.roots.get("home")
    assert root is not None
    bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(root))
    return root.stream.first_offset


def test_retention_waits_for_a_reader_and_goes_on_with_it(tmp_path: Path) -> None:
    with headwater.open(tmp_path, SMALL) as bus:
        leave(tmp_path, 1)
        fill(bus)
        assert retain(bus) == 1
        leave(tmp_path, 500)
        assert 1 < retain(bus) <= 500
        assert bus.events() == []
    with headwater.open(tmp_path, SMALL) as bus:
        fill(bus, 1)
        assert retain(bus) <= 500, "what was taken in outlives the owner"


def test_a_reader_is_listed_as_a_subscription_where_it_is_by_now(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        fill(bus, 1)
        for place, lag in ((1, 20), (11, 10), (21, 0), (5, 16)):
            leave(tmp_path, place)
            with headwater.open(tmp_path, read_only=True) as beside:
                before = beside.subscriptions()
                assert [one.id for one in beside.subscriptions(limit=1)] == ["job"]
                assert beside.subscriptions(after="job") == []
            (info,) = bus.subscriptions()
            assert (info.id, info.filter, info.lag, info.floors) == ("job", "home/#", lag, {"home": place - 1})
            assert before == [msgspec.structs.replace(info, in_flight=None, consumers=None)], (
                "also to those who look beside the owner, before it was taken in"
            )
        assert bus.durables.options("job")["expire_after_s"] == 3600.0
        assert not [one for one in bus.replay("$sys/audit") if b"sought" in one.payload]


def test_a_page_of_no_subscriptions_is_refused_beside_the_owner_too(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus, headwater.open(tmp_path, read_only=True) as beside:
        for one in (bus, beside):
            with pytest.raises(headwater.Malformed, match="limit is 0"):
                one.subscriptions(limit=0)


def test_a_reader_that_comes_no_more_is_given_up(tmp_path: Path) -> None:
    clock = ManualClock()
    with headwater.open(tmp_path, SMALL, clock=clock) as bus:
        leave(tmp_path, 1)
        fill(bus)
        assert retain(bus) == 1
        for _ in range(3):
            clock.advance(1800)
            leave(tmp_path, 1)
            bus.core.roots.commit.run(bus.core.upkeep.go_round)
        assert retain(bus) == 1, "it came again and again"
        clock.advance(3700)
        bus.core.roots.commit.run(bus.core.upkeep.go_round)
        assert bus.subscriptions() == []
        assert [event.kind for event in bus.events()] == ["expired"]
        assert retain(bus) > 1


def test_a_subscription_that_was_there_keeps_its_options_unless_they_are_stated(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        bus.durables.create("job", "home/#", expire_after_s=7.0)
        fill(bus, 1)
        leave(tmp_path, 3)
        assert bus.subscriptions()[0].lag == 18
        assert bus.durables.options("job")["expire_after_s"] == 7.0
        leave(tmp_path, 3, is_stated=True)
        bus.subscriptions()
        assert bus.durables.options("job")["expire_after_s"] == 3600.0


def test_a_reader_that_cannot_be_kept_is_told_in_an_event(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        bus.durables.create("job", "home/#")
        for id, filter in (("job", "office/#"), ("a", "home/#/b"), ("channel:x", "home/#")):
            leave(tmp_path, 1, id, filter)
            with headwater.open(tmp_path, read_only=True) as beside:
                assert [(one.id, one.filter) for one in beside.subscriptions()] == [("job", "home/#")]
            assert [one.id for one in bus.subscriptions()] == ["job"]
            (*_, event) = bus.events()
            assert event.kind == "trouble"
            assert f'"{id}" is not kept' in event.text
        assert len(bus.events()) == 3
        assert FILES.list(str(tmp_path / "readers")) == []


def test_a_damaged_place_holds_retention_back_but_for_its_hard_limit(tmp_path: Path) -> None:
    rule = Retention(bytes=64 * 1024, hard_bytes=512 * 1024)
    with headwater.open(tmp_path, headwater.Config(segment_bytes=64 * 1024, retention=rule)) as bus:
        leave(tmp_path, 1)
        (path,) = (tmp_path / "readers").iterdir()
        path.write_bytes(path.read_bytes().replace(b":1}", b":9}"))
        fill(bus, 20)
        assert retain(bus) == retain(bus) == 1
        assert [event.kind for event in bus.events()] == ["damage"]
        fill(bus)
        assert retain(bus) > 1
        assert {event.kind for event in bus.events()} == {"damage", "retention"}
        leave(tmp_path, 801)
        before = retain(bus)
        assert before > 700, "its reader came again"


def test_what_cannot_be_taken_in_holds_retention_back_but_for_its_hard_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Retention(bytes=64 * 1024, hard_bytes=512 * 1024)
    with headwater.open(tmp_path, headwater.Config(segment_bytes=64 * 1024, retention=rule)) as bus:
        leave(tmp_path, 1)
        monkeypatch.setattr(type(bus.core.data.files), "rename", _die)
        fill(bus, 20)
        assert retain(bus) == retain(bus) == 1
        assert [event.kind for event in bus.events()] == ["trouble"]
        assert "the machine is gone" in bus.events()[0].text
        fill(bus)
        assert retain(bus) > 1


def test_a_backup_has_the_places_of_readers(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, 1)
        leave(tmp_path / "data", 11)
        bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "again")
    with headwater.open(tmp_path / "again") as bus:
        assert [(one.id, one.lag) for one in bus.subscriptions()] == [("job", 10)]


@pytest.mark.parametrize("step", ["rows", "file"])
def test_an_owner_that_dies_while_it_takes_a_reader_in_does_so_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with headwater.open(tmp_path) as bus:
        fill(bus, 1)
        leave(tmp_path, 11)
        with monkeypatch.context() as patched:
            if step == "rows":
                patched.setattr(bus.core.durables, "move", _die)
            else:
                patched.setattr(type(bus.core.data.files), "remove", _die)
            bus.core.readers.look()
        assert [event.kind for event in bus.events()] == ["trouble"]
    with headwater.open(tmp_path) as bus:
        assert [(one.id, one.lag) for one in bus.subscriptions()] == [("job", 10)]
        assert FILES.list(str(tmp_path / "readers")) == []


def _die(*_: object) -> None:
    raise OSError("the machine is gone")
