"""A disk that refuses: syncs and writes that fail, a disk that is full, and a state store that cannot note anything.

Whatever is refused was not stored, whatever is acked is; what can go on goes on, and says so where it cannot.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress

import msgspec
import pytest

from faults.faulty_files import Keep
from faults.machine import FOLDER, SMALL, Machine
from faults.oracle import Oracle, has_failed, has_told
from faults.workload import Workload
from headwater.bus import Bus
from headwater.errors import Conflict, DiskFull, Failed, HeadwaterError, PartlyStored, ReadOnly
from headwater.message import Receipt

KEEPS: tuple[Keep, ...] = ("none", "all", "random", "prefix")
PARTS = 3


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.stop()


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


def run(machine: Machine, workload: Workload) -> tuple[Bus, list[HeadwaterError]]:
    """Do what can be done; every refusal is an error of ours."""
    errors: list[HeadwaterError] = []
    bus = machine.open()
    for step in workload.steps(machine, bus):
        try:
            step()
        except Conflict:
            assert errors  # a producer does not send again what failed, so what comes after it is refused
        except PartlyStored as error:
            errors += [refusal for refusal in error.refused.values() if not isinstance(refusal, Conflict)]
            assert errors  # so are those of its roots alone that failed before
        except HeadwaterError as error:
            errors.append(error)
    return bus, errors


def opens(count: Callable[[Machine], int]) -> int:
    """How many there are until a bus is open: a failure in there is an OSError of whoever opens."""
    machine = Machine()
    machine.open()
    machine.stop()
    return count(machine)


def in_all(count: Callable[[Machine], int]) -> int:
    machine = Machine()
    _, errors = run(machine, Workload(Oracle()))
    assert not errors
    machine.stop()
    return count(machine)


def points(part: int, count: Callable[[Machine], int]) -> range:
    return range(opens(count) + 1 + part, in_all(count) + 1, PARTS)


SURVIVALS: tuple[tuple[Keep, Keep], ...] = (("none", "none"), ("random", "random"), ("random", "none"), ("all", "all"))


def check_after(machine: Machine, workload: Workload, told: str, survivals: int = 3) -> None:
    """Whatever survives of what was in doubt."""
    for seed, (disk, state) in enumerate(SURVIVALS[:survivals]):
        after = machine.after_crash(seed, disk, state)
        try:
            with after.power_loss():
                workload.fork().check(after, after.open())
        except Exception as error:
            error.add_note(f"after {told}; {seed=} {disk=} {state=}")
            raise


# Syncs that fail


def syncs(machine: Machine) -> int:
    return machine.files.syncs


@pytest.mark.parametrize("part", range(PARTS))
def test_a_failed_sync_loses_nothing_that_was_acked(part: int) -> None:
    for point in points(part, syncs):
        machine = Machine()
        machine.files.fail_sync_at = point
        workload = Workload(Oracle())
        bus, errors = run(machine, workload)
        told = f"a failure of sync {point}"
        assert all(isinstance(error, Failed | ReadOnly) for error in errors), told
        assert has_failed(bus) or not errors, told
        assert errors or not has_failed(bus) or has_told(bus), told  # an index that is not synced is not missed
        workload.oracle.check(bus)
        check_after(machine, workload, told)


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_found_after_a_failed_sync_is_durable_before_anybody_relies_on_it(part: int, end: str) -> None:
    """The kernel believes that it is on disk: the next process sees it, a sync does nothing, and a crash takes it."""
    for point in points(part, syncs):
        machine = Machine()
        machine.files.fail_sync_at = point
        workload = Workload(Oracle())
        bus, _ = run(machine, workload)
        if end == "close":
            is_to_come = machine.files.syncs < point  # some of the last are the timers', before closing or in it
            with suppress(Failed) if is_to_come else nullcontext():
                machine.close(bus)
        else:
            machine = machine.after_kill()
        machine.files.fail_sync_at = None  # how many there were depends on when dead letters were published
        bus = machine.open()
        machine.settle(bus)
        workload.oracle.check(bus)
        workload.oracle.publish(bus, "a/again")
        workload.oracle.publish_many(bus, ["a/again", "b/again", "c/again"])
        check_after(machine, workload, f"a failure of sync {point}", survivals=2)


def test_a_failed_sync_is_told_to_the_publisher_the_events_and_those_who_come_later(
    machine: Machine, oracle: Oracle
) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    oracle.publish(bus, "b/x")
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed, match="read-only now"):
        oracle.publish(bus, "a/x")
    with pytest.raises(ReadOnly, match="close the bus and open it again"):
        oracle.publish(bus, "a/x")
    assert any("read-only" in event.text for event in bus.events() if event.kind == "trouble")
    assert oracle.publish(bus, "b/x").offset == 2
    consumer = oracle.subscribe(bus, "s", "#")
    oracle.ack(consumer, oracle.take(consumer, 100))
    oracle.check(bus)


def test_a_failed_sync_of_the_journal_stops_every_root(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "b/x"])
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed, match="all streams are read-only now"):
        oracle.publish_many(bus, ["a/x", "b/x"])
    for topic in ("a/x", "b/x", "new/x"):
        with pytest.raises(ReadOnly):
            oracle.publish(bus, topic)
    oracle.check(bus)


def test_what_the_journal_alone_holds_outlives_a_failed_sync_of_its_segment(machine: Machine, oracle: Oracle) -> None:
    """The journal must not start again while a stream may need it, though the kernel calls the next sync a success."""
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "b/x"], 100)
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed):
        oracle.publish(bus, "a/x")
    for _ in range(20):
        oracle.publish_many(bus, ["b/x", "c/x"], 600)
    oracle.check(bus)
    for disk in KEEPS:
        after = machine.after_crash(3, disk, "none")
        oracle.check(after.open())
        after.stop()


def test_a_checkpoint_of_a_stream_whose_sync_failed_stands_before_what_is_in_doubt(
    machine: Machine, oracle: Oracle
) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed):
        oracle.publish(bus, "a/x", 200)
    for _ in range(20):
        oracle.publish(bus, "b/x", 200)  # until a checkpoint comes
    for disk in KEEPS:
        after = machine.after_crash(3, disk, "all")
        bus = after.open()
        again = oracle.fork()
        again.check(bus)
        again.publish(bus, "a/x", 200)
        again.check(bus)
        after.close(bus)
        again.check(after.open())
        after.stop()


def test_a_new_root_whose_folder_is_not_durable_takes_nothing(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed):
        oracle.publish(bus, "b/x")
    with pytest.raises(ReadOnly):
        oracle.publish(bus, "b/x")
    oracle.publish(bus, "a/x")
    oracle.check(bus)
    for disk in KEEPS:
        after = machine.after_crash(1, disk, "none")
        bus = after.open()
        again = oracle.fork()
        again.publish(bus, "b/x")
        again.check(bus)
        after.stop()


# Writes that fail


def writes(machine: Machine) -> int:
    return machine.files.writes


@pytest.mark.parametrize("fault", ["fail_write_at", "short_write_at"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_failed_write_is_refused_and_changes_nothing(fault: str, part: int) -> None:
    expected = Failed if fault == "fail_write_at" else DiskFull
    for point in points(part, writes):
        machine = Machine()
        setattr(machine.files, fault, point)
        workload = Workload(Oracle())
        bus, errors = run(machine, workload)
        told = f"{fault} {point}"
        assert len(errors) <= 1, told
        assert all(isinstance(error, expected) for error in errors), told
        assert not has_failed(bus), told
        for sent in workload.oracle.sent.values():
            if sent.outcome == "unknown":
                sent.outcome = "refused"  # a write that failed is not in doubt, unlike a sync
        workload.oracle.check(bus)
        check_after(machine, workload, told, survivals=2)
        machine.stop()


def test_a_full_disk_can_be_tried_again(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    machine.files.short_write_at = machine.files.writes + 1
    with pytest.raises(DiskFull) as refused:
        oracle.publish(bus, "a/x")
    assert refused.value.code == 503
    assert refused.value.retryable
    assert oracle.publish(bus, "a/x").offset == 2
    oracle.check(bus)


def test_the_sequence_of_a_refused_publish_is_stored_once_when_it_comes_again(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "b/x"], producer="p", sequence=1)
    machine.files.short_write_at = machine.files.writes + 3  # both segments have it, the journal does not
    with pytest.raises(DiskFull):
        oracle.publish_many(bus, ["a/x", "b/x"], producer="p", sequence=2)
    oracle.check(bus)
    for seed in range(30):
        after = machine.after_crash(seed, "random", "random")
        again = oracle.fork()
        bus = after.open()
        again.check(bus)
        again.resend(bus)
        again.check(bus)
        after.stop()


def test_a_refused_group_does_not_come_back_from_the_journal_in_place_of_a_later_one(oracle: Oracle) -> None:
    """What a short write left in the journal has the offsets that the next group is given."""
    machine = Machine(msgspec.structs.replace(SMALL, journal_bytes=1 << 20))
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "b/x"])
    machine.files.short_write_at = machine.files.writes + 4
    with pytest.raises(DiskFull):
        oracle.publish_many(bus, ["c/x", "b/x", "a/x"], 100)
    oracle.publish_many(bus, ["d/x", "b/x"])
    for disk in KEEPS:
        for seed in range(5):
            after = machine.after_crash(seed, disk, "none")
            oracle.check(after.open())
            after.stop()


# No room


def used_bytes(machine: Machine) -> int:
    machine.files.capacity_bytes = 1 << 40
    used = machine.files.capacity_bytes - machine.files.free_bytes("")
    machine.files.capacity_bytes = None
    return used


@pytest.mark.parametrize("part", range(PARTS))
def test_a_disk_that_fills_up_anywhere_refuses_publishes_and_lets_consumers_go_on(part: int) -> None:
    machine = Machine()
    run(machine, Workload(Oracle()))
    full = used_bytes(machine) - machine.config.preallocate_bytes  # what is reserved ahead may be missing
    machine.stop()
    for capacity in range(6000 + part * 5001, full, 15_003):
        machine = Machine()
        machine.files.capacity_bytes = capacity
        workload = Workload(Oracle())
        bus, errors = run(machine, workload)
        told = f"with room for {capacity} bytes"
        assert errors or has_told(bus), told
        assert all(isinstance(error, DiskFull) for error in errors), (told, errors)
        assert not has_failed(bus), told
        workload.oracle.check(bus)
        machine.files.capacity_bytes = None
        check_after(machine, workload, told, survivals=2)


def test_consumers_go_on_while_the_disk_is_full_and_publishers_when_there_is_room(oracle: Oracle) -> None:
    machine = Machine()
    bus = machine.open()
    for _ in range(10):
        oracle.publish(bus, "a/x", 100)
    machine.files.capacity_bytes = used_bytes(machine)
    refused = 0
    while refused < 3:
        try:
            oracle.publish(bus, "a/x", 10_000)
        except DiskFull:
            refused += 1
    consumer = oracle.subscribe(bus, "s", "#")
    taken = oracle.take(consumer, 100)
    oracle.ack(consumer, taken[:5])
    oracle.nack(consumer, taken[5], 1.0)
    machine.clock.advance(2)
    oracle.ack(consumer, oracle.take(consumer, 1))
    machine.files.capacity_bytes = None
    oracle.publish(bus, "a/x", 10_000)
    oracle.check(bus)
    consumer.close()
    oracle.drain(machine, bus)
    machine.stop()


def test_publishes_are_refused_while_the_reserve_is_still_there(oracle: Oracle) -> None:
    reserve = 50_000
    machine = Machine(msgspec.structs.replace(SMALL, disk_free_bytes_min=reserve))
    bus = machine.open()
    oracle.publish(bus, "a/x")
    machine.close(bus)
    machine.files.capacity_bytes = used_bytes(machine) + reserve - 1
    bus = machine.open()
    with pytest.raises(DiskFull, match="disk_free_bytes_min"):
        oracle.publish(bus, "a/x")
    with pytest.raises(DiskFull):
        oracle.publish_many(bus, ["a/x", "b/x"])
    consumer = oracle.subscribe(bus, "s", "#")
    oracle.ack(consumer, oracle.take(consumer, 1))
    machine.files.capacity_bytes = used_bytes(machine) + reserve
    oracle.publish(bus, "a/x")
    oracle.check(bus)
    machine.stop()


def test_a_full_disk_is_opened_and_closed_and_loses_nothing(oracle: Oracle) -> None:
    machine = Machine()
    bus = machine.open()
    for _ in range(6):
        oracle.publish_many(bus, ["a/x", "b/x", "a/y"], 300)
    for seed in range(10):
        after = machine.after_crash(seed, "random", "none")
        after.files.capacity_bytes = used_bytes(after) + 20_000  # what recovery may use: docs say, a reserve
        bus = after.open()
        oracle.check(bus)
        after.files.capacity_bytes = used_bytes(after)
        after.close(bus)
        oracle.check(after.open())
        after.stop()


def test_a_delayed_message_waits_for_room_without_turning_in_circles(oracle: Oracle) -> None:
    machine = Machine()
    bus = machine.open()
    due_us = machine.clock.now_us() + 10_000_000
    for _ in range(3):
        oracle.publish(bus, "a/late", 20_000, due_us=due_us)
    machine.files.capacity_bytes = used_bytes(machine)
    machine.clock.advance(11)
    machine.wait_until(lambda: any(event.kind == "trouble" for event in bus.events()))
    time.sleep(0.1)
    assert len(bus.events()) <= 10
    machine.files.capacity_bytes = None
    oracle.release(machine, bus, machine.clock.now_us())
    oracle.check(bus)
    machine.stop()


# A state store that fails


def test_an_ack_that_could_not_be_noted_raises_and_is_never_an_ack(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    for _ in range(5):
        oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#")
    taken = oracle.take(consumer, 5)
    oracle.ack(consumer, taken[:1])
    machine.state.fail_sync_at = machine.state.syncs + 1
    with pytest.raises(Failed):
        oracle.ack(consumer, taken[1:2])
    for message in taken[2:]:
        with pytest.raises(HeadwaterError) as refused:
            oracle.ack(consumer, [message])
        assert isinstance(refused.value, ReadOnly | Failed)
    assert any("state" in event.text for event in bus.events() if event.kind == "trouble")
    oracle.publish(bus, "a/x")
    oracle.check(bus)
    for state in KEEPS:
        after = machine.after_crash(0, "none", state)
        again = oracle.fork()
        bus = after.open()
        again.check(bus)
        again.drain(after, bus)
        after.stop()


@pytest.mark.parametrize("verb", ["nack", "reject", "seek", "pause", "subscribe", "unsubscribe", "redrive", "purge"])
def test_nothing_is_noted_silently_in_a_state_that_failed(machine: Machine, oracle: Oracle, verb: str) -> None:
    bus = machine.open()
    for _ in range(5):
        oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#")
    first, second, *_ = oracle.take(consumer, 5)
    oracle.reject(consumer, first)
    machine.state.fail_sync_at = machine.state.syncs + 1
    calls: dict[str, Callable[[], object]] = {
        "nack": second.nack,
        "reject": second.reject,
        "seek": lambda: consumer.seek("latest"),
        "pause": consumer.pause,
        "subscribe": lambda: bus.subscribe("#", id="other"),
        "unsubscribe": lambda: bus.unsubscribe("s"),
        "redrive": lambda: bus.redrive("s"),
        "purge": lambda: bus.purge("a/#"),
    }
    with pytest.raises(HeadwaterError):
        calls[verb]()


@pytest.mark.parametrize("point", range(1, 24))
def test_whatever_could_not_be_noted_is_as_it_was_after_the_next_opening(point: int) -> None:
    machine = Machine()
    machine.state.fail_sync_at = point
    workload = Workload(Oracle())
    bus = machine.open()
    for step in workload.steps(machine, bus):
        with suppress(HeadwaterError, OSError):
            step()
    check_after(machine, workload, f"a failure of the state's sync {point}")


def test_a_subscription_that_could_not_be_noted_is_not_there_when_it_is_asked_for_again(machine: Machine) -> None:
    bus = machine.open()
    machine.state.fail_sync_at = machine.state.syncs + 1
    with pytest.raises(Failed):
        bus.subscribe("#", id="s", start="earliest")
    with pytest.raises(ReadOnly):  # the row can be seen, and is on no disk
        bus.subscribe("#", id="s", start="earliest")


def test_an_ack_that_was_not_waited_for_and_failed_is_no_ack_when_it_is_asked_for_again(
    machine: Machine, oracle: Oracle
) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#")
    taken = oracle.take(consumer, 1)
    machine.state.fail_sync_at = machine.state.syncs + 1
    oracle.ack(consumer, taken, wait=False)
    with pytest.raises(HeadwaterError):
        consumer.ack(taken)


def test_a_consumer_of_a_state_that_failed_can_be_closed(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "a/y"])
    consumer = oracle.subscribe(bus, "s", "a/x")
    machine.state.fail_sync_at = machine.state.syncs + 1
    with pytest.raises(Failed):
        oracle.ack(consumer, oracle.take(consumer, 1))
    consumer.close()


def test_counts_are_right_after_a_checkpoint_that_failed(machine: Machine, oracle: Oracle) -> None:
    bus = machine.open()
    machine.state.fail_sync_at = machine.state.syncs + 1
    for _ in range(10):
        oracle.publish(bus, "a/x")
    assert any(event.kind == "trouble" for event in bus.events())
    oracle.check(bus)


def test_publishers_of_other_roots_are_not_refused_with_those_of_a_root_that_failed(
    machine: Machine, oracle: Oracle
) -> None:
    bus = machine.open()
    oracle.publish_many(bus, ["a/x", "b/x"])
    machine.files.fail_sync_at = machine.files.syncs + 1
    with pytest.raises(Failed):
        oracle.publish(bus, "a/x")
    futures: list[Future[Receipt]] = []
    bus.core.roots.commit.run(  # so that both are in one group
        lambda: futures.extend(bus.publish_soon(topic, oracle.message(topic).payload) for topic in ("a/x", "b/x"))
    )
    with pytest.raises(ReadOnly):
        futures[0].result(60)
    assert futures[1].result(60).offset == 2


def test_the_errors_of_the_disk_are_of_the_kind_that_the_double_says() -> None:
    machine = Machine()
    machine.files.fail_sync_at = 1
    with pytest.raises(OSError) as refused:
        machine.files.make_folder(FOLDER)
    assert refused.value.errno == errno.EIO
