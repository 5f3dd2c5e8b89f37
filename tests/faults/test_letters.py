"""Dead letters with a crash at each sync: what is stored is published, once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import headwater
from faults.faulty_files import Keep
from faults.machine import SMALL, Machine
from headwater.bus import Bus
from headwater.delivery.rows import DeadRow
from headwater.store import state as rows
from headwater.store.state import Rows

KEEPS: tuple[tuple[Keep, Keep], ...] = (
    ("none", "none"),
    ("all", "none"),
    ("none", "all"),
    ("all", "all"),
    ("random", "random"),
)
COUNT = 6


def published(bus: Bus) -> Counter[bytes]:
    return Counter(one.payload for one in bus.replay("$dead/s"))


def work(machine: Machine, bus: Bus) -> None:
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
    bus.publish_many([("a/x", b"%d" % n) for n in range(COUNT)])
    for message in sub.batch(COUNT, 0):
        message.reject("no")
        machine.settle(bus)


def syncs_of_work() -> int:
    machine = Machine()
    bus = machine.open()
    work(machine, bus)
    assert published(bus).total() == COUNT
    count = len(machine.syncs)
    machine.stop()
    return count


def check(machine: Machine) -> None:
    bus = machine.open()
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
    machine.settle(bus)
    assert published(bus) == Counter(letter.payload for letter in bus.dead_letters("s"))
    assert set(published(bus).values()) <= {1}
    assert not [event for event in bus.events() if event.kind == "trouble"]
    for message in sub.batch(COUNT, 0):  # those that did not die before: numbers are not given twice
        message.reject("no")
    machine.settle(bus)
    assert set(published(bus).values()) <= {1}
    assert published(bus) == Counter(letter.payload for letter in bus.dead_letters("s"))


def test_whenever_the_power_fails_each_letter_that_is_stored_is_published_once() -> None:
    for sync in range(1, syncs_of_work() + 1):
        machine = Machine()
        machine.crash_at(sync)
        with machine.power_loss():
            work(machine, machine.open())
        for seed, (disk, state) in enumerate(KEEPS):
            after = machine.after_crash(seed, disk, state)
            with after.power_loss():
                check(after)


@pytest.mark.parametrize("count", range(1, COUNT + 1))
def test_so_it_is_after_a_kill_and_another_before_anything_is_published(count: int) -> None:
    machine = Machine(SMALL)
    bus = machine.open()
    sub = bus.subscribe("a/#", id="s", start="earliest", order="none")
    bus.publish_many([("a/x", b"%d" % n) for n in range(COUNT)])
    bus.core.letterbox.wake = lambda: None  # type: ignore[method-assign]
    for message in sub.batch(count, 0):
        message.reject("no")
    for _ in range(2):
        machine = machine.after_kill()
        bus = machine.open()
        machine.settle(bus)
        assert published(bus).total() == count
        assert set(published(bus).values()) == {1}


def numbers(changed: Rows) -> set[int]:
    return {rows.offset_in(key) for key in changed if key.startswith(rows.POSTED)}


@pytest.mark.parametrize("written", [(0,), (1,), (0, 1), ()])
def test_no_number_is_given_twice_whichever_letters_were_written_before_a_kill(written: tuple[int, ...]) -> None:
    machine = Machine(SMALL)
    given: set[int] = set()
    for _ in range(3):
        bus = machine.open()
        box = bus.core.letterbox
        box.wake = lambda: None  # type: ignore[method-assign]
        letters = [DeadRow("a/x", b"", 0, None, (), 1, (name,), 0) for name in ("s", "t")]
        changed = [box.rows_of(one.errors[0], number, "", 1, one) for number, one in enumerate(letters, 1)]
        for place in written:  # two subscriptions write theirs in whichever order, and both may be too late
            bus.core.rows.write(changed[place])
        found = numbers({**changed[0], **changed[1]})
        assert len(found) == 2
        if written:
            assert not found & given
            given |= found
        machine = machine.after_kill()


def test_after_kill_9_in_the_middle_each_letter_that_is_stored_is_published_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for lines in (1, 7):
        command = [sys.executable, "-m", "faults.letters_child", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent) as child:
            assert child.stdout is not None
            for _ in range(lines):
                assert child.stdout.readline()
            child.kill()
        with headwater.open(folder) as bus:
            expected = Counter(letter.offset for letter in bus.dead_letters("s"))
            reader = bus.follow("$dead/s", after=0)
            told = [reader.next(60) for _ in range(expected.total())]
            assert Counter(int(one.headers["headwater-dead-offset"]) for one in told if one is not None) == expected
            assert reader.next(0) is None
            assert not [event for event in bus.events() if event.kind == "trouble"]
