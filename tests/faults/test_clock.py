"""The machine's clock is set by a day, forward or back: nothing expires, is deleted, retried or released for that."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from faults.machine import SMALL, Machine, stream_of
from faults.oracle import Oracle, read, read_all
from headwater.bus import Bus
from headwater.clock import SECOND_US
from headwater.config import Retention
from headwater.message import Message

DAY_S = 86_400.0
HOUR_S = 3600.0
JUMPS = pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S], ids=["forward", "back"])
CONFIG = msgspec.structs.replace(
    SMALL, retention=Retention(age_s=HOUR_S, hard_age_s=2 * HOUR_S), retention_interval_s=10.0, retry_jitter=0.0
)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine(CONFIG)
    yield made
    made.stop()


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


def pass_time(machine: Machine, bus: Bus, seconds: int) -> None:
    """Second by second, so that every timer rings that has something to do."""
    for _ in range(seconds):
        machine.clock.advance(1)
        machine.settle(bus)


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def at(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / SECOND_US, UTC)


@JUMPS
def test_messages_with_a_ttl_do_not_expire(machine: Machine, jump_s: float) -> None:
    bus = machine.open()
    bus.publish("a/x", b"short", ttl_s=HOUR_S)
    bus.publish("a/kept", b"kept", ttl_s=HOUR_S, retain=True)
    consumer = bus.subscribe("a/x", id="s", start="earliest")
    machine.clock.jump(jump_s)
    pass_time(machine, bus, 30)
    assert payloads(read(bus.replay("a/#"))[0]) == [b"short", b"kept"]
    assert payloads([*bus.retained("a/#").values()]) == [b"kept"]
    assert payloads(consumer.batch(10, timeout_s=0)) == [b"short"]
    with bus.subscribe("a/kept") as live:
        assert live.next(timeout_s=0).payload == b"kept"  # type: ignore[union-attr]
    assert [event.kind for event in bus.events()] == ["clock"]


@JUMPS
def test_a_ttl_that_was_set_after_the_jump_is_as_long_as_it_says(machine: Machine, jump_s: float) -> None:
    bus = machine.open()
    bus.publish("a/x", b"before", ttl_s=100)
    machine.clock.jump(jump_s)
    bus.publish("a/x", b"after", ttl_s=100)
    pass_time(machine, bus, 98)
    assert payloads(read(bus.replay("a/#"))[0]) == [b"before", b"after"]
    pass_time(machine, bus, 3)
    assert read(bus.replay("a/#"))[0] == []


@JUMPS
def test_retention_deletes_nothing(machine: Machine, oracle: Oracle, jump_s: float) -> None:
    bus = machine.open()
    for _ in range(12):
        oracle.publish(bus, "a/x", 20_000)
    assert len(machine.segments("a")) > 3
    machine.clock.jump(jump_s)
    pass_time(machine, bus, 30)
    for _ in range(6):
        oracle.publish(bus, "a/x", 20_000)
    pass_time(machine, bus, 30)
    oracle.check(bus)


@JUMPS
def test_a_failed_message_waits_its_delay_and_no_longer(machine: Machine, oracle: Oracle, jump_s: float) -> None:
    bus = machine.open()
    for _ in range(50):
        oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#", order="none")
    for message in oracle.take(consumer, 50):
        oracle.nack(consumer, message, 10.0)
    machine.clock.jump(jump_s)
    pass_time(machine, bus, 9)
    assert oracle.take(consumer, 100) == []
    pass_time(machine, bus, 1)
    again = oracle.take(consumer, 100)
    assert len(again) == 50
    assert {message.attempt for message in again} == {2}


@JUMPS
def test_nothing_that_is_in_flight_times_out(machine: Machine, oracle: Oracle, jump_s: float) -> None:
    bus = machine.open()
    for _ in range(5):
        oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#", ack_timeout_s=30)
    taken = oracle.take(consumer, 5)
    machine.clock.jump(jump_s)
    pass_time(machine, bus, 29)
    oracle.ack(consumer, taken)
    assert not bus.dead_letters("s")
    assert bus.states("s") == []


@JUMPS
def test_a_delayed_message_does_not_come_early(machine: Machine, oracle: Oracle, jump_s: float) -> None:
    bus = machine.open()
    due_us = machine.clock.now_us() + 120 * SECOND_US
    oracle.publish(bus, "a/late", due_us=due_us)
    machine.clock.jump(jump_s)
    pass_time(machine, bus, 118)
    assert read_all(bus).messages.get("a", []) == []
    pass_time(machine, bus, 3)
    assert len(read_all(bus).messages["a"]) == 1
    pass_time(machine, bus, 200)
    assert len(read_all(bus).messages["a"]) == 1


@JUMPS
def test_an_unused_subscription_is_not_taken_for_abandoned(machine: Machine, oracle: Oracle, jump_s: float) -> None:
    bus = machine.open()
    oracle.publish(bus, "a/x")
    bus.subscribe("#", id="s", start="earliest", expire_after_s=HOUR_S).close()
    machine.clock.jump(jump_s)
    pass_time(machine, bus, 60)
    assert [info.id for info in bus.subscriptions()] == ["s"]


@JUMPS
@pytest.mark.parametrize("settle_s", [0, 1000], ids=["for a moment", "for good"])
def test_append_times_never_decrease(machine: Machine, oracle: Oracle, jump_s: float, settle_s: int) -> None:
    bus = machine.open()
    times = [oracle.publish(bus, "a/x").time_us]
    for jump in (jump_s, -jump_s, jump_s):
        machine.clock.jump(jump)
        for _ in range(3):
            machine.clock.advance(settle_s / 3 + 1)
            times.append(oracle.publish(bus, "a/x").time_us)
            times += [receipt.time_us for receipt in oracle.publish_many(bus, ["a/x", "b/x"])[:1]]
    assert times == sorted(times)
    oracle.check(bus)


@pytest.mark.parametrize("end", ["close", "crash", "roll and close", "roll, close and lose the index"])
def test_append_times_never_decrease_over_a_restart(machine: Machine, oracle: Oracle, end: str) -> None:
    bus = machine.open()
    before = max(oracle.publish(bus, "a/x").time_us for _ in range(3))
    if "roll" in end:
        bus.core.roots.commit.run(stream_of(bus, "a").roll)
    if end == "crash":
        machine = machine.after_crash(0, "none", "none")
    else:
        machine.close(bus)
    if "index" in end:
        for path in machine.segments("a"):
            machine.files.remove(path.replace(".log", ".idx"))
    machine.clock.jump(-DAY_S)
    bus = machine.open()
    assert oracle.publish(bus, "a/x").time_us >= before
    oracle.check(bus)
    assert [message.offset for message in read(bus.replay("a/#", since=at(before)))[0]] == [1, 2, 3, 4]
    machine.stop()


def test_time_is_found_where_the_clock_went_back(oracle: Oracle) -> None:
    machine = Machine()
    bus = machine.open()
    times = []
    for step in range(12):
        times.append(oracle.publish(bus, "a/x", 15_000).time_us)
        machine.clock.advance(1000)
        if step in (4, 8):
            machine.clock.jump(-DAY_S if step == 4 else DAY_S)
            pass_time(machine, bus, 1)
    assert times == sorted(times)
    for offset, time_us in enumerate(times, 1):
        first = times.index(time_us) + 1
        found = read(bus.replay("a/#", since=at(time_us)))[0]
        assert found[0].offset == first <= offset
    machine.stop()


@JUMPS
def test_a_restart_after_a_jump_keeps_retries_within_their_longest_delay(oracle: Oracle, jump_s: float) -> None:
    machine = Machine()
    bus = machine.open()
    for _ in range(5):
        oracle.publish(bus, "a/x")
    consumer = oracle.subscribe(bus, "s", "#", order="none", retry_delay_s=10, retry_delay_s_max=60)
    for message in oracle.take(consumer, 5):
        oracle.nack(consumer, message)
    machine = machine.after_crash(0, "none", "none")
    machine.clock.jump(jump_s)
    bus = machine.open()
    consumer = oracle.subscribe(bus, "s", "#")
    pass_time(machine, bus, 61)
    again = oracle.take(consumer, 10) or oracle.take(consumer, 10)  # the first look may merely find them
    assert sorted(message.offset for message in again) == [1, 2, 3, 4, 5]
    assert {message.attempt for message in again} == {2}
    machine.stop()


def test_a_day_that_really_passes_counts(machine: Machine, oracle: Oracle) -> None:
    """The other way round: what is not done for a jump is done for time."""
    bus = machine.open()
    bus.publish("a/x", b"short", ttl_s=HOUR_S)
    bus.publish("b/late", b"late", deliver_at=at(machine.clock.now_us() + round(2 * HOUR_S) * SECOND_US))
    for _ in range(12):
        bus.publish("c/x", bytes(20_000))
    machine.clock.advance(DAY_S)
    machine.settle(bus)
    machine.clock.advance(61)
    machine.settle(bus)
    assert read(bus.replay("a/#"))[0] == []
    assert payloads(read(bus.replay("b/#"))[0]) == [b"late"]
    bus.core.upkeep.join()  # retention has a thread of its own
    assert stream_of(bus, "c").first_offset > 1
    assert [event for event in bus.events() if event.kind == "clock"] == []
