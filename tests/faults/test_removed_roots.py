"""A root that is being removed when the power goes, or the process is killed: it is there as it was, or gone."""

from __future__ import annotations

import errno

import pytest

from faults.faulty_files import Keep
from faults.machine import FOLDER, Machine
from headwater.bus import Bus
from headwater.errors import DiskFull, Failed, ReadOnly
from headwater.message import Outgoing
from headwater.store import state as rows

KEEPS: tuple[Keep, ...] = ("none", "all", "random", "prefix")
MESSAGES = 12


def fill(bus: Bus) -> None:
    with bus.subscribe("#", id="s", start="earliest") as consumer:
        for count in range(MESSAGES // 2):
            bus.publish_many([Outgoing(topic=topic, payload=b"%d" % count, retain=True) for topic in ("a/x", "b/x")])
            bus.publish("a/y", b"y" * 3000, producer="p", sequence=count)
        bus.publish("c/x", b"")
        for message in consumer.batch(3, timeout_s=5)[1:]:
            message.ack()


def left_of(bus: Bus, number: int) -> list[bytes]:
    found = [
        key
        for kind in (rows.STREAM, rows.TOPIC, rows.RETAINED, rows.PRODUCER)
        for key, _ in bus.core.state.scan(rows.key_u32(kind, number))
    ]
    for kind in (rows.FLOOR, rows.ACKED, rows.FAILURE, rows.COPY, rows.DEAD):
        found += [key for key, _ in bus.core.state.scan(kind) if rows.pair_in(key)[1] == number]
    return found


def number_of(bus: Bus) -> int:
    root = bus.core.roots.get("a")
    assert root is not None
    return root.stream.number


def check(after: Machine, number: int, *, removed: bool | None) -> bool:
    """Either all of the root is there, or nothing; answers which."""
    bus = after.open()
    assert {event.kind for event in bus.events()} <= {"torn", "mended"}
    assert len(list(bus.replay("b/#"))) == MESSAGES // 2
    there = list(bus.replay("a/#"))
    if there:
        assert removed is not True
        assert [message.offset for message in there] == list(range(1, MESSAGES + 1))
        assert [message.topic for message in bus.retained("a/#").values()] == ["a/x"]
        assert [info.topic for info in bus.topics("a/#")] == ["a/x", "a/y"]
        assert bus.subscriptions()[0].lag > 0
        assert bus.publish("a/y", b"", producer="p", sequence=MESSAGES // 2).offset == MESSAGES + 1
    else:
        assert removed is not False
        assert not bus.retained("a/#")
        assert not bus.topics("a/#")
        assert left_of(bus, number) == []
        assert not [name for name in after.files.list(f"{FOLDER}/streams") if name.startswith(f"{number}-")]
        assert bus.publish("a/y", b"", producer="p", sequence=0).offset == MESSAGES + 1
        with bus.subscribe("#", id="s") as consumer:
            seen = consumer.batch(100, timeout_s=5)
            assert (seen[-1].topic, seen[-1].offset) == ("a/y", MESSAGES + 1) or len(seen) > 1
    after.stop()
    return not there


def test_a_root_is_there_or_gone_whatever_survives_a_crash_at_any_sync_of_its_removal() -> None:
    machine = Machine()
    bus = machine.open()
    fill(bus)
    first = len(machine.syncs) + 1
    bus.remove_root("a", force=True)
    last = len(machine.syncs)
    machine.stop()
    assert last > first + 2
    outcomes = set()
    for point in range(first, last + 2):
        machine = Machine()
        with machine.power_loss():
            bus = machine.open()
            fill(bus)
            number = number_of(bus)
            machine.crash_at(point)
            bus.remove_root("a", force=True)
            machine.is_out = True
        for disk in KEEPS:
            for state in KEEPS:
                if (disk, state) == ("prefix", "prefix"):
                    continue
                outcomes.add(
                    check(machine.after_crash(point, disk, state), number, removed=True if point > last else None)
                )
        outcomes.add(check(machine.after_kill(), number, removed=None))
        # The next life crashes, too, wherever it has got to.
        again = machine.after_crash(point, "random", "random")
        again.crash_at(3 + point % 5)
        with again.power_loss():
            again.open()
            again.is_out = True
        check(again.after_crash(point, "random", "random"), number, removed=None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("room", [0, 20, 200, 4000])
def test_a_full_disk_leaves_the_root_as_it_was_or_removes_it(room: int) -> None:
    machine = Machine()
    bus = machine.open()
    fill(bus)
    number = number_of(bus)
    machine.files.capacity_bytes = 1 << 30
    machine.files.capacity_bytes += room - machine.files.free_bytes(FOLDER)
    try:
        bus.remove_root("a", force=True)
        removed = True
    except DiskFull:
        removed = False
    machine.files.capacity_bytes = None
    if not removed:
        bus.publish("a/z", b"")
        machine.stop()
        again = machine.after_crash(1, "all", "all").open()
        assert len(list(again.replay("a/#"))) == MESSAGES + 1
        again.remove_root("a", force=True)
        assert again.publish("a/y", b"").offset == MESSAGES + 2
        return
    machine.stop()
    check(machine.after_kill(), number, removed=True)


def test_what_is_acked_after_a_removal_that_failed_is_kept() -> None:
    for point in range(1, 8):
        machine = Machine()
        bus = machine.open()
        fill(bus)
        machine.files.fail_sync_at = machine.files.syncs + point
        acked = 0
        try:
            bus.remove_root("a", force=True)
        except Failed:
            bus.publish("a/z", b"")
            acked = 1
        for after in (machine.after_kill(), *(machine.after_crash(1, keep, "all") for keep in KEEPS)):
            there = list(after.open().replay("a/#"))
            assert len(there) == MESSAGES + 1 if acked else not there
            after.stop()


def test_a_root_of_which_nobody_can_tell_whether_it_was_removed_takes_no_messages() -> None:
    machine = Machine()
    bus = machine.open()
    fill(bus)
    number = number_of(bus)

    def fail(path: str, _: int) -> None:
        if "manifest" in path:
            raise OSError(errno.EIO, "the sync fails", path)

    machine.files.on_sync = fail
    with pytest.raises(Failed, match="cannot be told"):
        bus.remove_root("a", force=True)
    with pytest.raises(ReadOnly):
        bus.publish("a/z", b"")
    assert len(list(bus.replay("a/#"))) == MESSAGES
    machine.files.on_sync = None
    assert check(machine.after_kill(), number, removed=None)
    assert not check(machine.after_crash(1, "none", "all"), number, removed=None)
