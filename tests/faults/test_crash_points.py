"""The table of crash points in docs/reference/storage.md, row by row; then a workload, with a crash at each sync."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from faults.faulty_files import Crash, Keep
from faults.machine import FOLDER, SMALL, Machine, stream_of
from faults.oracle import Oracle
from faults.workload import Workload
from headwater.bus import Bus
from headwater.config import Retention
from headwater.errors import Failed, ReadOnly

SEEDS = range(12)
KEEPS: tuple[Keep, ...] = ("none", "all", "random", "prefix")


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.stop()


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


def crash_at_next(machine: Machine, what: str, work: Callable[[], object], *, skip: int = 0) -> None:
    """Lose power when something of this name is about to be synced."""
    met = 0

    def is_now(path: str) -> bool:
        nonlocal met
        met += what in path
        return met > skip

    machine.crash_when(is_now)
    with machine.power_loss():
        work()
    assert machine.is_out, f"nothing was synced that is called {what}"


def lives_after(machine: Machine, disk: Keep = "random", state: Keep = "random") -> Iterator[Machine]:
    """What may be found after the crash, in several ways."""
    for seed in SEEDS:
        after = machine.after_crash(seed, disk, state)
        yield after
        after.stop()


def kinds(bus: Bus) -> list[str]:
    return [event.kind for event in bus.events()]


# Row by row


@pytest.mark.parametrize("disk", KEEPS)
def test_a_batch_that_was_being_written_is_cut_unless_it_is_whole(machine: Machine, oracle: Oracle, disk: Keep) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x", 100)
    crash_at_next(machine, ".log", lambda: oracle.publish(bus, "a/x", 3000))
    ends = set()
    for after in lives_after(machine, disk):
        bus = after.open()
        again = oracle.fork()
        left = len(again.check(bus).messages["a"])
        assert again.publish(bus, "a/x").offset == left + 1
        again.check(bus)
        ends.add(left)
    assert ends == {"none": {1}, "all": {2}, "random": {1, 2}, "prefix": {1, 2}}[disk]


def test_a_torn_tail_is_reported_as_torn_and_not_as_damage(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x", 100)
    crash_at_next(machine, ".log", lambda: oracle.publish(bus, "a/x", 3000))
    told = []
    for after in lives_after(machine, "random"):
        bus = after.open()
        oracle.check(bus)
        told += kinds(bus)
        assert not after.files.list(f"{FOLDER}/quarantine")
    assert set(told) == {"torn"}


def test_a_batch_that_was_synced_is_kept_though_its_publisher_never_learned(
    machine: Machine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")

    def crash(*_: object) -> None:
        raise Crash

    listeners = bus.core.dispatcher.listeners
    monkeypatch.setattr(listeners, "is_any", True)
    monkeypatch.setattr(listeners, "on_durable", crash)
    with machine.power_loss():
        oracle.publish(bus, "a/x", producer="p", sequence=1)
    assert oracle.calls[-1].outcome == "unknown"
    for after in lives_after(machine):
        bus = after.open()
        assert len(oracle.check(bus).messages["a"]) == 2
        again = oracle.fork()
        again.resend(bus)
        assert len(again.check(bus).messages["a"]) == 2


@pytest.mark.parametrize("disk", KEEPS)
def test_a_group_that_was_on_its_way_into_the_journal_is_whole_or_gone_in_each_root(oracle: Oracle, disk: Keep) -> None:
    machine = Machine(msgspec.structs.replace(SMALL, open_files_max=8))  # so that no segment is synced before
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "b/x", "c/x"], 100)
    topics = ["a/x", "b/x", "c/x", "a/y", "b/y", "c/y"]
    crash_at_next(machine, "journal", lambda: oracle.publish_many(bus, topics, 300))
    counts: set[object] = set()
    for after in lives_after(machine, disk):
        found = oracle.check(after.open())
        counts.update(len(messages) for messages in found.messages.values())
    assert counts == {"none": {1}, "all": {3}, "random": {1, 3}, "prefix": {1, 3}}[disk]


@pytest.mark.parametrize("disk", KEEPS)
def test_what_is_synced_in_the_journal_alone_is_brought_to_the_segments(
    machine: Machine, oracle: Oracle, disk: Keep
) -> None:
    bus = machine.open()
    for _ in range(3):
        oracle.publish_many(bus, ["a/x", "b/x", "c/x", "b/y"], 300)
    machine.stop()
    for after in lives_after(machine, disk):
        bus = after.open()
        oracle.check(bus)
        assert "damage" not in kinds(bus)
        again = oracle.fork()
        again.publish(bus, "b/x")
        again.check(bus)
        # Once they are in the segments, the journal is not needed any more.
        assert not after.files.durable(f"{FOLDER}/journal")
        again.check(after.after_crash(1, "none", "none").open())


def test_segments_that_lost_what_the_state_reflects_get_it_back_from_the_journal(
    machine: Machine, oracle: Oracle
) -> None:
    """A checkpoint may pass over batches that are durable in the journal alone."""
    bus = machine.open()
    for _ in range(6):
        oracle.publish_many(bus, ["a/x", "b/x"], 150)
    bus.core.roots.checkpoints.make()
    machine.stop()
    for seed in range(60):
        after = machine.after_crash(seed, "random", "all")
        oracle.check(after.open())
        after.stop()


@pytest.mark.parametrize("skip", range(6))
@pytest.mark.parametrize("disk", KEEPS)
def test_the_journal_starts_again_when_the_segments_have_all_of_it(
    machine: Machine, oracle: Oracle, disk: Keep, skip: int
) -> None:
    bus = machine.open()

    def fill() -> None:
        for _ in range(20):
            oracle.publish_many(bus, ["a/x", "b/x"], 700)

    crash_at_next(machine, "a/0000", fill, skip=skip) if skip % 2 else crash_at_next(machine, "l", fill, skip=9 + skip)
    for after in lives_after(machine, disk):
        oracle.check(after.open())


@pytest.mark.parametrize("what", ["a/00000000000000000001.log", "a/00000000000000000001.idx", "1-a"])
def test_a_roll_that_was_under_way_is_finished_or_never_was(machine: Machine, oracle: Oracle, what: str) -> None:
    bus = machine.open()
    for _ in range(3):
        oracle.publish(bus, "a/x", 20_000)
    crash_at_next(machine, what, lambda: oracle.publish(bus, "a/x", 20_000))
    for keep in KEEPS:
        for after in lives_after(machine, keep):
            bus = after.open()
            oracle.check(bus)
            again = oracle.fork()
            again.publish(bus, "a/x", 20_000)
            again.publish(bus, "a/x", 20_000)
            again.check(bus)
            after.close(bus)
            again.check(after.open())


def test_an_empty_segment_after_a_roll_is_used(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    for _ in range(3):
        oracle.publish(bus, "a/x", 20_000)
    crash_at_next(machine, ".log", lambda: oracle.publish(bus, "a/x", 30_000), skip=1)
    after = machine.after_crash(0, "none", "none")
    assert after.files.read(after.segments("a")[-1]).strip(b"\0") == b""
    bus = after.open()
    oracle.check(bus)
    assert oracle.publish(bus, "a/x").offset == 4
    assert len(after.segments("a")) == 2
    oracle.check(bus)
    after.stop()


@pytest.mark.parametrize("left", ["nothing", "half", "garbage"])
def test_an_index_that_is_missing_or_short_is_rebuilt_from_the_log(machine: Machine, oracle: Oracle, left: str) -> None:
    bus = machine.open()
    for _ in range(9):
        oracle.publish_many(bus, ["a/x", "a/y"], 5000)
    machine.close(bus)
    machine = machine.after_crash(0, "all", "all")
    for path in machine.segments("a"):
        index = path.replace(".log", ".idx")
        length = len(machine.files.read(index))
        if left == "nothing":
            machine.files.remove(index)
        elif left == "half":
            machine.files.cut(index, length // 2 - 5)
        else:
            for position in range(0, length, 3):
                machine.files.flip(index, position, position % 8)
    bus = machine.open()
    oracle.check(bus)
    for offset in range(19):
        assert [message.offset for message in bus.replay("a/#", after=offset)] == list(range(offset + 1, 19))
    oracle.publish(bus, "a/x")
    oracle.check(bus)


@pytest.mark.parametrize("disk", KEEPS)
@pytest.mark.parametrize("state", ["none", "all", "random"])
def test_a_checkpoint_is_there_wholly_or_not_at_all(machine: Machine, oracle: Oracle, disk: Keep, state: Keep) -> None:
    bus = machine.open()
    for sequence in range(3):
        oracle.publish_many(bus, ["a/x", "b/x"], retain=True, producer="p", sequence=sequence)
        oracle.publish(bus, "a/y", retain=True, producer="q", sequence=sequence)
    crash_at_next(machine, "state", bus.core.roots.checkpoints.make)
    for after in lives_after(machine, disk, state):
        bus = after.open()
        again = oracle.fork()
        again.check(bus)
        again.resend(bus)
        again.check(bus)


def test_a_state_that_lost_more_than_the_streams_is_brought_up_to_them(machine: Machine, oracle: Oracle) -> None:
    machine = Machine(msgspec.structs.replace(SMALL, checkpoint_batches=1000, checkpoint_bytes=1 << 30))
    bus = machine.open()
    consumer = oracle.subscribe(bus, "s", "#")
    for sequence in range(5):
        oracle.publish_many(bus, ["a/x", "b/x"], retain=True, producer="p", sequence=sequence)
        oracle.publish(bus, "a/late", due_us=machine.clock.now_us() + 1_000_000)
    oracle.ack(consumer, oracle.take(consumer, 4), wait=False)
    after = machine.after_crash(0, "all", "none")
    bus = after.open()
    oracle.check(bus)
    oracle.release(after, bus, after.clock.now_us() + 2_000_000)
    oracle.resend(bus)
    oracle.drain(after, bus)
    after.stop()


def test_streams_that_lost_more_than_the_state_say_so_and_use_no_offset_twice(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    for _ in range(10):
        oracle.publish(bus, "a/x", 100)
    bus.core.roots.checkpoints.make()
    index = stream_of(bus, "a").segments[-1].index
    assert index is not None
    position = index.positions[6]
    after = machine.after_crash(0, "none", "none")
    after.files.cut(after.segments("a")[0], position)
    bus = after.open()
    found = oracle.check(bus, damaged=True)
    assert found.gaps == {"a": [(7, 10)]}
    assert next(event.text for event in bus.events() if event.kind == "damage").startswith('messages 7 to 10 of "a"')
    assert oracle.publish(bus, "a/x").offset == 11
    after.close(bus)
    bus = after.open()
    assert oracle.check(bus, damaged=True).gaps == {"a": [(7, 10)]}
    after.stop()


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
def test_what_a_consumer_said_and_was_not_synced_counts_or_not(machine: Machine, oracle: Oracle, verb: str) -> None:
    bus = machine.open()
    for _ in range(4):
        oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#")
    first, second, *_ = oracle.take(consumer, 4)
    oracle.ack(consumer, [first])
    say = {
        "ack": lambda: oracle.ack(consumer, [second]),
        "nack": lambda: oracle.nack(consumer, second),
        "reject": lambda: oracle.reject(consumer, second),
    }[verb]
    crash_at_next(machine, "state", say)
    for after in lives_after(machine):
        bus = after.open()
        again = oracle.fork()
        again.check(bus)
        again.drain(after, bus)


@pytest.mark.parametrize("disk", KEEPS)
def test_retention_deletes_the_oldest_or_not_and_deletes_it_again(oracle: Oracle, disk: Keep) -> None:
    config = msgspec.structs.replace(SMALL, retention=Retention(bytes=100_000), retention_interval_s=10.0)
    machine = Machine(config)
    bus = machine.open()
    for _ in range(20):
        oracle.publish(bus, "a/x", 20_000)
    root = next(root for root in bus.core.roots.all() if root.name == "a")
    bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(root))
    assert root.stream.first_offset > 1
    machine.stop()
    for after in lives_after(machine, disk):
        bus = after.open()
        if disk != "random":  # a disk that deletes the second file and keeps the first is not to be had
            oracle.check(bus, trimmed=True)
        root = next(root for root in bus.core.roots.all() if root.name == "a")
        bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(root))  # noqa: B023  # run at once
        assert oracle.check(bus, trimmed=True).messages["a"][0].offset == root.stream.first_offset > 1
        again = oracle.fork()
        assert again.publish(bus, "a/x").offset == 21


def test_a_stream_whose_sync_failed_is_read_only_until_it_is_opened_again(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    oracle.publish(bus, "b/x")
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed):
        oracle.publish(bus, "a/x")
    with pytest.raises(ReadOnly, match="open it again"):
        oracle.publish(bus, "a/x")
    oracle.publish(bus, "b/x")
    oracle.check(bus)
    machine.close(bus)
    bus = machine.open()
    oracle.publish(bus, "a/x")
    oracle.check(bus)


def test_the_state_reflects_no_batch_that_recovery_has_not_made_durable(machine: Machine, oracle: Oracle) -> None:
    """A delayed message on its way to its topic: it waits no more only when it is there for good."""
    bus = machine.open()
    due_us = machine.clock.now_us() + 1_000_000
    oracle.publish(bus, "a/x")
    oracle.publish(bus, "a/late", due_us=due_us)
    crash_at_next(machine, "-a/", lambda: oracle.release(machine, bus, due_us))
    for point in range(1, 40):
        after = machine.after_crash(0, "all", "all")
        after.crash_at(point)
        with after.power_loss():
            after.open()
            after.is_out = True
        later = after.after_crash(0, "none", "all")
        bus = later.open()
        again = oracle.fork()
        again.release(later, bus, due_us)
        assert len(again.check(bus).messages["a"]) == 2
        later.stop()


# All at once: a workload with everything in it, a crash at each of its syncs


def count_syncs(config: object = SMALL) -> int:
    machine = Machine(config)  # type: ignore[arg-type]
    Workload(Oracle()).run(machine)
    return len(machine.syncs)


def crashed_at(point: int, machine: Machine) -> Workload:
    workload = Workload(Oracle())
    machine.crash_at(point)
    with machine.power_loss():
        workload.run(machine)
    return workload


def check_after(crashed: Machine, workload: Workload, seed: int, disk: Keep, state: Keep) -> None:
    after = crashed.after_crash(seed, disk, state)
    try:
        with after.power_loss():
            workload.fork().check(after, after.open())
    except Exception as error:
        point = len(crashed.syncs)
        error.add_note(f"after a crash at sync {point}, of {crashed.syncs[-1]}; seed={seed} {disk=} {state=}")
        raise


def check_after_second_crash(crashed: Machine, workload: Workload, seed: int) -> None:
    """Go on after a crash, crash again, perhaps in the midst of recovery, and check then."""
    rng = random.Random(seed)
    workload = workload.fork()
    after = crashed.after_crash(seed, rng.choice(KEEPS), rng.choice(KEEPS))
    after.crash_at(rng.randint(1, 120))
    with after.power_loss():
        workload.run(after)
    check_after(after, workload, seed, rng.choice(KEEPS), rng.choice(KEEPS))


PARTS = 4
POINTS = 150
"""More than there are: a crash that never comes is a good close."""


def points(part: int) -> Iterator[int]:
    last = count_syncs()
    assert last < POINTS
    return iter(range(1 + part, last + 2, PARTS))


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_whatever_survives_a_crash_at_any_sync(part: int) -> None:
    for point in points(part):
        machine = Machine()
        workload = crashed_at(point, machine)
        for disk, state in (("none", "none"), ("none", "all"), ("all", "none"), ("prefix", "random")):
            check_after(machine, workload, point, disk, state)  # type: ignore[arg-type]
        for seed in range(4):
            check_after(machine, workload, seed * 1000 + point, "random", "random")


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_when_the_next_life_crashes_too(part: int) -> None:
    for point in points(part):
        machine = Machine()
        workload = crashed_at(point, machine)
        check_after_second_crash(machine, workload, point)


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_when_a_kill_is_followed_by_a_crash(part: int) -> None:
    """After a kill -9 everything is there and nothing is durable that was not: recovery must not rely on it."""
    for point in points(part):
        machine = Machine()
        workload = crashed_at(point, machine)
        killed = machine.after_kill()
        with killed.power_loss():
            bus = killed.open()
            workload.oracle.release(killed, bus, killed.clock.now_us())
            workload.oracle.check(bus)
            workload.oracle.publish(bus, "a/after-kill")
            workload.oracle.publish_many(bus, ["b/after-kill", "c/after-kill"])
        for disk in ("none", "random"):
            check_after(killed, workload, point, disk, "none")


BULKY = msgspec.structs.replace(SMALL, bulk_bytes_min=600)
"""Many groups are large enough to be written apart, in several pieces."""


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_whatever_survives_a_crash_at_any_sync_of_a_large_group(part: int) -> None:
    for point in range(1 + part, count_syncs(BULKY) + 2, PARTS):
        machine = Machine(BULKY)
        workload = crashed_at(point, machine)
        for disk, state in (("none", "all"), ("all", "none"), ("prefix", "random")):
            check_after(machine, workload, point, disk, state)  # type: ignore[arg-type]


CONFIGS = {
    "small": SMALL,
    "large groups apart": BULKY,
    "a large journal": msgspec.structs.replace(SMALL, journal_bytes=1 << 20, checkpoint_batches=3),
    "no checkpoints": msgspec.structs.replace(SMALL, checkpoint_batches=1 << 20, checkpoint_bytes=1 << 30),
    "compressed": msgspec.structs.replace(SMALL, compression="zstd", compression_bytes_min=64),
    "in memory": msgspec.structs.replace(SMALL, tail_bytes=1 << 20, read_bytes=1 << 20),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_lost_with_other_settings_and_many_seeds(name: str) -> None:
    config = CONFIGS[name]
    for point in range(1, count_syncs(config) + 2):
        machine = Machine(config)
        workload = crashed_at(point, machine)
        for seed in range(20):
            rng = random.Random(seed)
            check_after(machine, workload, seed * 1000 + point, rng.choice(KEEPS), rng.choice(KEEPS))
            check_after_second_crash(machine, workload, seed * 1000 + point)
