"""Delayed messages: how they are wrapped, and that each comes once, whatever is lost in between."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater import Config, ManualClock, Message, QuotaExceeded
from headwater.bus import Bus
from headwater.log import delays
from headwater.store.state import DELAYED, MemoryState, key_due

WAIT_S = 60.0
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def settle(bus: Bus) -> None:
    """Return when every timer that is due by now has rung."""
    for _ in range(2):
        done = threading.Event()
        bus.core.timers.set(done, bus.core.clock.monotonic_us(), done.set)
        assert done.wait(WAIT_S)
    bus.core.rows.run(lambda: None)  # what they stored is there


def payloads(messages: Any) -> list[bytes]:
    return [message.payload for message in messages]


# Wrapping


@given(
    TEXT.filter(bool),
    st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    st.integers(0, 2**62),
    st.none() | st.floats(0.001, 1e9),
    st.booleans(),
)
def test_what_is_wrapped_comes_back(
    topic: str, headers: tuple[tuple[str, str], ...], due_us: int, ttl_s: float | None, retain: bool
) -> None:
    waiting, notes = delays.wrap(topic, headers, due_us, ttl_s, retain)
    message = Message(waiting, 7, b"x", 0, None, notes)
    assert delays.unwrap(message) == (topic, headers, due_us, ttl_s, retain)
    assert message.root == delays.ROOT
    assert delays.due_key(message) == key_due(due_us, 7)


def test_the_earliest_is_found_and_those_that_are_due_in_their_order() -> None:
    state = MemoryState()
    assert delays.earliest(state) is None
    state.write({key_due(due, offset): b"" for due, offset in [(50, 1), (20, 4), (20, 2), (90, 3)]})
    assert delays.earliest(state) == 20
    assert delays.due(state, 19, DELAYED) == []
    assert [offset for _, offset in delays.due(state, 50, DELAYED)] == [2, 4, 1]
    assert [offset for _, offset in delays.due(state, 50, key_due(20, 2))] == [4, 1]
    assert list(delays.waiting(state)) == [2, 4, 1, 3]


def test_those_that_are_due_are_released_in_several_goes() -> None:
    state = MemoryState()
    total = 2 * delays.RELEASED_MAX + 10
    state.write({key_due(5, offset): b"" for offset in range(total)})
    found: list[int] = []
    after = DELAYED
    while part := delays.due(state, 5, after):
        assert len(part) <= delays.RELEASED_MAX
        found += [offset for _, offset in part]
        after = part[-1][0]
    assert found == list(range(total))


# Released once


class Machine:
    """A bus on doubles, which can be killed at any time."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.clock = ManualClock()
        self.files, self.state = FaultyFiles(), FaultyState()
        self.bus = self.open()

    def open(self) -> Bus:
        return Bus("data", self.config, files=self.files, state=self.state, clock=self.clock)

    def kill(self) -> None:
        """kill -9, and start again."""
        self.bus.core.timers.close()
        self.files, self.state = self.files.process_kill(), self.state.process_kill()
        self.bus = self.open()

    def delay(self, payload: bytes, seconds: float) -> None:
        self.bus.publish("jobs/x", payload, deliver_at=self.bus.now + timedelta(seconds=seconds))

    def pass_time(self, seconds: float) -> list[bytes]:
        self.clock.advance(seconds)
        settle(self.bus)
        return payloads(self.bus.replay("jobs/#"))


def test_a_kill_before_during_and_after_the_release_brings_each_message_once() -> None:
    machine = Machine()
    for number in range(4):
        machine.delay(b"%d" % number, 10 * (number + 1))
    machine.kill()
    assert machine.pass_time(10) == [b"0"]
    machine.kill()
    assert machine.pass_time(0) == [b"0"]
    assert machine.pass_time(15) == [b"0", b"1"]
    machine.kill()
    machine.kill()
    assert machine.pass_time(100) == [b"0", b"1", b"2", b"3"]
    machine.bus.close()


def test_the_number_that_wait_is_right_after_a_kill() -> None:
    machine = Machine(Config(delayed_max=3))
    machine.delay(b"0", 10)
    machine.delay(b"1", 10)
    for _ in range(3):
        machine.kill()
    machine.delay(b"2", 10)
    with pytest.raises(QuotaExceeded):
        machine.delay(b"3", 10)
    assert machine.pass_time(10) == [b"0", b"1", b"2"]
    for number in range(3):
        machine.delay(b"%d" % number, 10)
    with pytest.raises(QuotaExceeded):
        machine.delay(b"one too many", 10)
    machine.bus.close()


def test_rows_that_the_state_lost_are_made_again_from_the_streams() -> None:
    for keep in ("none", "random", "all"):
        machine = Machine()
        machine.delay(b"0", 10)
        machine.pass_time(10)
        machine.delay(b"1", 10)
        machine.bus.core.timers.close()
        machine.files = machine.files.crash(random.Random(1), "all")
        machine.state = machine.state.crash(random.Random(1), keep)
        machine.bus = machine.open()
        assert machine.pass_time(0) == [b"0"]
        assert machine.pass_time(10) == [b"0", b"1"]
        machine.bus.close()


def test_more_than_one_go_are_released_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "RELEASED_MAX", 3)
    machine = Machine()
    live = machine.bus.subscribe("jobs/#")
    for number in range(10):
        machine.delay(b"%d" % number, 5)
    machine.clock.advance(5)
    found: list[bytes] = []
    while len(found) < 10:
        found += payloads(live.batch(10, timeout_s=WAIT_S))
    assert found == [b"%d" % number for number in range(10)]
    machine.bus.close()


def test_the_wall_clock_decides_when_one_is_due_once_its_step_has_lasted() -> None:
    machine = Machine()
    machine.delay(b"0", 3600)
    machine.clock.jump(7200)
    assert machine.pass_time(60) == []
    for _ in range(14):
        found = machine.pass_time(60)
    assert found == []
    for _ in range(3):
        found = machine.pass_time(60)
    assert found == [b"0"]
    machine.bus.close()


def test_what_was_released_is_deleted_with_its_segment() -> None:
    machine = Machine(Config(segment_bytes=64 * 1024, retention_interval_s=10))
    for _ in range(5):
        for _ in range(10):
            machine.delay(bytes(5000), 1)
        machine.pass_time(20)
    waiting = machine.bus.core.roots.get(delays.ROOT)
    assert waiting is not None
    assert waiting.stream.first_offset > 20
    assert len(list(machine.bus.replay("jobs/#"))) == 50
    machine.bus.close()


def test_a_waiting_message_keeps_its_segment(tmp_path: Path) -> None:
    machine = Machine(Config(segment_bytes=64 * 1024, retention_interval_s=10))
    machine.delay(b"long", 10_000)
    for _ in range(5):
        for _ in range(10):
            machine.delay(bytes(5000), 1)
        machine.pass_time(20)
    machine.kill()
    assert machine.pass_time(10_000)[-1] == b"long"
    machine.bus.close()
