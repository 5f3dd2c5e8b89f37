"""A bus whose state went bad on disk: messages keep flowing, what is lost is told, and nothing is silent."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here
from headwater import HeadwaterError, upkeep
from headwater.bus import Bus
from headwater.store import snapshots
from headwater.store.files import DiskFiles
from store.test_rocks import flip, log_of

ACKED = 1000


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed process left that had acked a thousand messages, a group of them at a time."""
    place = tmp_path_factory.mktemp("damaged")
    with headwater.open(place / "data") as bus:
        bus.publish_many([("jobs/x", b"%d" % number) for number in range(ACKED + 10)])
        bus.clients.add("ann")
        sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=100)
        for _ in range(ACKED // 10):
            sub.ack(sub.batch(10, 0))
        bus.subscribe("jobs/#", id="t").close()
        bus.clients.add("bob")
        shutil.copytree(place / "data", place / "left")
    return place / "left"


@pytest.fixture
def copy(left: Path, tmp_path: Path) -> Path:
    shutil.copytree(left, tmp_path / "left")
    return tmp_path / "left"


def told(bus: Bus) -> list[str]:
    return [event.text for event in bus.events() if event.kind == "damage"]


def test_one_flipped_bit_in_the_log_costs_one_write_and_is_told(copy: Path) -> None:
    log = log_of(copy / "state")
    flip(log, log.stat().st_size // 2)
    here("verify", "--data", copy, code=1)
    with headwater.open(copy) as bus:
        assert len(told(bus)) == 1
        assert "subscriptions, acks" in told(bus)[0]
        assert {info.id for info in bus.subscriptions()} == {"s", "t"}
        assert [info.name for info in bus.clients.list()] == ["ann", "bob"]
        sub = bus.subscribe("jobs/#", id="s")
        assert [message.offset for message in sub.batch(100, 0)] == list(range(ACKED + 1, ACKED + 11))
    assert objects_here("verify", "--data", copy)[-1]["is_whole"] is True
    with headwater.open(copy) as bus:
        assert told(bus) == []  # it was said, and stays known
        assert len(bus.core.losses) == 1


def test_whatever_is_done_to_a_file_of_the_state_is_told_or_harmless(left: Path, tmp_path: Path) -> None:
    """Bits flipped, files cut and removed: opening or reading fails with an error of ours, or a loss is told, or all is
    as it was."""
    rng = random.Random(14)
    names = sorted(path.name for path in (left / "state").iterdir() if path.name not in ("LOG", "LOCK"))
    for number in range(36):
        place = tmp_path / "again"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(left, place)
        path = place / "state" / names[number % len(names)]
        size = path.stat().st_size
        what = ("flipped", "cut", "removed")[number // len(names) % 3]
        if what == "removed" or not size:
            path.unlink()
        elif what == "cut":
            path.write_bytes(path.read_bytes()[: rng.randrange(size)])
        else:
            flip(path, rng.randrange(size))
        try:
            with headwater.open(place) as bus:
                is_whole = {info.id: info.floors.get("jobs") for info in bus.subscriptions()} == {
                    "s": ACKED,
                    "t": ACKED + 10,
                }
                assert is_whole or told(bus), (path.name, what)
                assert bus.publish("jobs/x", b"more").offset == ACKED + 11
        except HeadwaterError as error:
            assert "headwater verify" in str(error), (path.name, what)


def test_a_state_that_is_gone_is_no_fresh_start_and_is_restored_from_a_snapshot(copy: Path) -> None:
    with headwater.open(copy) as bus:
        bus.core.data.take_snapshot()
    shutil.rmtree(copy / "state")
    with pytest.raises(headwater.Damaged, match="restore --state"):
        headwater.open(copy)
    assert "missing" in here("verify", "--data", copy, code=1).output
    (done,) = objects_here("restore", "--state", "--data", copy)
    assert done["snapshot"] is not None
    with headwater.open(copy) as bus:
        assert {info.id for info in bus.subscriptions()} == {"s", "t"}
    assert objects_here("restore", "--state", "--data", copy)[0]["is_whole"] is True
    here("verify", "--data", copy)


def test_snapshots_are_taken_by_themselves(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SNAPSHOT_FIRST_S", 0.0)
    with headwater.open(copy) as bus:
        while bus.core.upkeep._taking is None:
            bus.publish("jobs/x", b"")
    assert len(snapshots.taken(DiskFiles(), str(copy))) == 1


def test_restore_says_what_it_needs(copy: Path, tmp_path: Path) -> None:
    assert "which backup" in here("restore", "--data", copy, code=2).output
    assert "takes no backup" in here("restore", tmp_path / "x", "--state", "--data", copy, code=2).output
    with headwater.open(copy):
        assert "owned" in here("restore", "--state", "--data", copy, code=2).output
