"""Mended dead letters with a crash at each sync: each letter in one place, as it was or mended, and redriven once."""

from __future__ import annotations

import msgspec

from faults import machine as machines
from faults.faulty_files import Keep
from faults.machine import SMALL
from headwater.bus import Bus
from headwater.message import DeadLetter

COUNT = 6
KEEPS: tuple[tuple[Keep, Keep], ...] = (("none", "none"), ("all", "none"), ("none", "all"), ("random", "random"))


class Machine(machines.Machine):
    """One whose syncs are those of its callers: letters are published by a thread, whenever it gets to it."""

    def __init__(self) -> None:
        super().__init__(msgspec.structs.replace(SMALL, dead_topics=False))


def mended(bus: Bus) -> list[DeadLetter]:
    return [letter.mend(payload=b"m" + letter.payload) for letter in bus.dead_letters("s")]


def dead(machine: Machine) -> Bus:
    """A bus with a subscription that gave up on some messages."""
    bus = machine.open()
    bus.publish_many([("a/x", b"%d" % number) for number in range(COUNT)])
    with bus.subscribe("a/#", id="s", start="earliest", order="none") as sub:
        for message in sub.batch(COUNT, 1):
            message.reject("no")
    return bus


def work(bus: Bus) -> None:
    letters = mended(bus)
    bus.mend("s", "w", letters[:3], part="0")
    bus.mend("s", "w", letters, part="lost")
    bus.mend("s", "w", letters[3:], part="1")
    bus.redrive_mended("s", "w", ["0", "1"])


def count_syncs() -> tuple[int, int]:
    machine = Machine()
    bus = dead(machine)
    before = len(machine.syncs)
    work(bus)
    count = len(machine.syncs)
    machine.stop()
    return before, count


def test_a_redrive_that_a_crash_interrupts_can_be_asked_for_again_and_is_never_doubled():
    before, count = count_syncs()
    assert count > before
    for sync in range(before + 1, count + 1):
        machine = Machine()
        machine.crash_at(sync)
        with machine.power_loss():
            work(dead(machine))
        for seed, (disk, state) in enumerate(KEEPS):
            after = machine.after_crash(seed, disk, state)
            bus = after.open()
            letters = bus.dead_letters("s")
            assert len(letters) in (0, COUNT), (sync, disk, state)
            if letters:
                assert [letter.payload for letter in letters] == [b"%d" % number for number in range(COUNT)]
            assert bus.redrive("s", mended=mended(bus), write="w") == COUNT
            with bus.subscribe("a/#", id="s", order="none") as sub:
                found = sub.batch(2 * COUNT, 0)
                assert [message.payload for message in found] == [b"m%d" % number for number in range(COUNT)]
                sub.ack(found)
                assert bus.redrive("s", mended=[], write="w") == COUNT
                assert sub.batch(1, 0) == []
            after.stop()
