"""A commit of staged messages with a crash at each of its syncs: all or nothing per epoch, and never twice."""

from __future__ import annotations

import msgspec
import pytest

from faults.faulty_files import Keep
from faults.machine import FOLDER, SMALL, Machine
from headwater.bus import Bus

PARTS = [str(part) for part in range(10)]
KEEPS: tuple[tuple[Keep, Keep], ...] = (
    ("none", "none"),
    ("all", "none"),
    ("none", "all"),
    ("all", "all"),
    ("random", "random"),
    ("prefix", "random"),
)


def seen(bus: Bus, root: str) -> list[bytes]:
    return [one.payload for one in bus.replay(f"{root}/#")]


def work(bus: Bus) -> None:
    bus.publish("a/x", b"before")
    for part in PARTS:
        bus.stage("p", 1, [("a/x", part.encode()), ("b/y", part.encode())], part=part)
    bus.commit_stage("p", 1, PARTS)
    bus.publish("a/x", b"after")


def syncs_of_work(config: object) -> int:
    machine = Machine(config)  # type: ignore[arg-type]
    work(machine.open())
    count = len(machine.syncs)
    machine.stop()
    return count


@pytest.mark.parametrize("window", [2, 64])
def test_a_commit_that_a_crash_interrupts_at_any_sync_is_finished_or_can_be_asked_for_again_and_is_never_doubled(
    window: int,
):
    config = msgspec.structs.replace(SMALL, producer_window=window)
    for sync in range(1, syncs_of_work(config) + 1):
        machine = Machine(config)
        machine.crash_at(sync)
        with machine.power_loss():
            work(machine.open())
        for seed, (disk, state) in enumerate(KEEPS):
            after = machine.after_crash(seed, disk, state)
            bus = after.open()
            expected = [part.encode() for part in PARTS]
            a = [payload for payload in seen(bus, "a") if payload not in (b"before", b"after")]
            b = seen(bus, "b")
            assert a in ([], expected), (sync, disk, state)
            assert b == a, (sync, disk, state)
            if not a:  # nothing was decided, or nothing was promised: the producer does it again
                for part in PARTS:
                    bus.stage("p", 1, [("a/x", part.encode()), ("b/y", part.encode())], part=part)
            gave = bus.commit_stage("p", 1, PARTS)
            assert [payload for payload in seen(bus, "a") if payload not in (b"before", b"after")] == expected
            assert seen(bus, "b") == expected
            assert gave["b"] == (1, 10)
            assert gave["a"][1] - gave["a"][0] == 9
            assert not [event for event in bus.events() if event.kind == "trouble"]
            after.stop()


def test_a_crash_during_the_recovery_of_a_commit_is_recovered_from_too():
    machine = Machine()
    machine.crash_at(syncs_of_work(SMALL) - 2)
    with machine.power_loss():
        work(machine.open())
    for sync in range(1, 12):
        half = machine.after_crash(sync, "all", "all")
        half.crash_at(sync)
        with half.power_loss():
            half.open()
        again = half.after_crash(sync, "random", "random")
        bus = again.open()
        a = [payload for payload in seen(bus, "a") if payload not in (b"before", b"after")]
        assert a in ([], [part.encode() for part in PARTS])
        assert seen(bus, "b") == a
        again.stop()


def test_a_commit_whose_bodies_are_damaged_does_not_keep_the_folder_from_opening():
    machine = Machine()
    bus = machine.open()
    bus.stage("p", 1, [("a/x", b"1")])
    folder = next(name for name in machine.files.list(f"{FOLDER}/streams") if "staged" in name)
    path = next(name for name in machine.files.list(f"{FOLDER}/streams/{folder}") if name.endswith(".log"))
    machine.crash_when(lambda what: "-a" in what)
    with machine.power_loss():
        bus.commit_stage("p", 1)
    after = machine.after_crash(0, "all", "all")
    after.files.remove(f"{FOLDER}/streams/{folder}/{path}")
    bus = after.open()
    assert seen(bus, "a") == []
    bus.publish("a/x", b"works")
    assert seen(bus, "a") == [b"works"]
    after.stop()
