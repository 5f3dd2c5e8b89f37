"""Backup and restore."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import headwater
from bus.flows import SMALL, in_threads, numbers, payloads, publish_numbers
from headwater import Gap, Malformed, NotFound


def test_a_backup_is_the_bus_as_it_was_and_stays_so(folder: Path, tmp_path: Path) -> None:
    with headwater.open(folder, SMALL) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        publish_numbers(bus, 5)
        bus.publish("home/a", b"on", retain=True)
        bus.publish("jobs/x", b"5", producer="p", sequence=1)
        messages = sub.batch(10, 0)
        sub.ack(messages[:2])
        messages[2].reject("no")
        bus.backup(tmp_path / "backup")
        for _ in range(40):
            bus.publish("jobs/x", bytes(5000))
        sub.ack(messages[3:])
        with pytest.raises(Malformed, match="not empty"):
            bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(Malformed, match="not empty"):
        headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored", SMALL) as bus:
        assert payloads(bus.replay("jobs/#")) == numbers(6)
        assert payloads(bus.retained("#").values()) == [b"on"]
        assert [letter.offset for letter in bus.dead_letters("s")] == [3]
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == numbers(3, 3)
        assert bus.publish("jobs/x", b"5", producer="p", sequence=1).duplicate
        assert bus.publish("jobs/x", b"new").offset == 7
    with headwater.open(folder, SMALL) as bus:
        assert len(list(bus.replay("jobs/#"))) == 46


def test_a_backup_can_be_opened_itself_and_does_not_touch_its_origin(folder: Path, tmp_path: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 3)
        bus.backup(tmp_path / "backup")
        with headwater.open(tmp_path / "backup") as copy:
            copy.publish("jobs/x", b"of the copy")
            publish_numbers(bus, 1, first=3)
            assert payloads(copy.replay("jobs/#")) == [*numbers(3), b"of the copy"]
        assert payloads(bus.replay("jobs/#")) == numbers(4)


def test_a_backup_has_the_seed_of_its_folder_and_brings_back_a_version_that_is_lost(
    folder: Path, tmp_path: Path
) -> None:
    with headwater.open(folder) as bus:
        bus.publish("a/b", b"1")
        bus.backup(tmp_path / "backup")
        bus.publish("a/b", b"2")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    for copy in ("backup", "restored"):
        assert (tmp_path / copy / "VERSION").read_bytes() == (folder / "VERSION").read_bytes()
    (folder / "VERSION").unlink()
    for read_only in (False, True):
        with pytest.raises(Malformed, match=r"VERSION.*is missing; copy it from a backup"):
            headwater.open(folder, read_only=read_only)
    (folder / "VERSION").write_bytes((tmp_path / "backup" / "VERSION").read_bytes())
    with headwater.open(folder) as bus, headwater.open(folder, read_only=True) as reader:
        for either in (bus, reader):
            assert [message.payload for message in either.replay("#")] == [b"1", b"2"]
            assert not either.events()


def test_segments_of_another_folder_are_not_believed(folder: Path, tmp_path: Path) -> None:
    for path in (folder, tmp_path / "other"):
        with headwater.open(path) as bus:
            bus.publish("a/b", b"here" if path == folder else b"elsewhere")
    (log,) = folder.glob("streams/*-a/*.log")
    log.write_bytes(next((tmp_path / "other").glob("streams/*-a/*.log")).read_bytes())
    with headwater.open(folder) as bus:
        assert [event.kind for event in bus.events()] == ["damage"]
        with pytest.raises(Gap):
            list(bus.replay("#"))


def test_a_backup_is_taken_while_others_publish(folder: Path, tmp_path: Path) -> None:
    acked: list[int] = []
    done = threading.Event()
    with headwater.open(folder, SMALL) as bus:

        def work(number: int) -> None:
            if number == 0:
                try:
                    while len(acked) < 50:
                        done.wait(0.001)
                    before = len(acked)
                    bus.backup(tmp_path / "backup")
                    acked.append(-before)
                finally:
                    done.set()
                return
            while not done.is_set():
                acked.append(bus.publish_many([("jobs/x", bytes(500)), (f"other{number}/x", b"")])[0].offset)

        in_threads(4, work)
    before = -min(acked)
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored", SMALL) as bus:
        offsets = [message.offset for message in bus.replay("jobs/#")]
        assert offsets == list(range(1, len(offsets) + 1))
        assert len(offsets) >= before
        assert not [event for event in bus.events() if event.kind == "damage"]


def test_restoring_what_is_no_backup_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        headwater.restore(tmp_path / "missing", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_reader_opens_a_folder_after_a_backup_and_a_purge(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/a", b"1", retain=True)
        bus.publish("home/b", b"2")
        with bus.subscribe("#", id="s", start="earliest") as consumer:
            consumer.ack(consumer.batch(2, 1))
        bus.backup(tmp_path / "copy")
        bus.purge("home/a")
    with headwater.open(tmp_path / "data", read_only=True) as reader:
        assert [info.topic for info in reader.topics()] == ["home/b"]
