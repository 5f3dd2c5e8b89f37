"""A day of a bus in a hundred syncs: every way of publishing and of consuming, rolls, wraps, checkpoints and a close.

The same from run to run, so that a crash can be put at each of its syncs in turn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

from faults.machine import Machine
from faults.oracle import Oracle
from headwater.bus import Bus
from headwater.clock import SECOND_US

ROOTS = ("a", "b", "c")


class Workload:
    """What is done on one bus, life after life."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.round = 0
        self.sequence = 0
        self.due_us = 0
        """When the last delayed message is due."""

    def fork(self) -> Workload:
        """One of its own for each way in which the story goes on."""
        other = copy.copy(self)
        other.oracle = self.oracle.fork()
        return other

    def run(self, machine: Machine) -> None:
        """Open a bus, use it, and close it."""
        bus = machine.open()
        for step in self.steps(machine, bus):
            step()
        machine.close(bus)

    def steps(self, machine: Machine, bus: Bus) -> Iterator[Callable[[], object]]:
        """What is done, one thing after the other; a step that fails leaves the next ones possible."""
        self.round += 1
        yield from self._publish(bus)
        yield from self._consume(bus)
        yield from self._delay(machine, bus)
        yield from self._fill_journal(bus)
        yield from self._roll(bus)
        yield from self._consume(bus)
        yield lambda: self._release(machine, bus)
        yield from self._fill_journal(bus)
        yield from self._retain(bus)

    def check(self, machine: Machine, bus: Bus) -> None:
        """What the oracle can see at once, then what shows when publishers and consumers go on."""
        oracle = self.oracle
        oracle.release(machine, bus, machine.clock.now_us())
        oracle.check(bus)
        oracle.release(machine, bus, self.due_us)
        oracle.resend(bus)
        oracle.drain(machine, bus)
        oracle.publish_many(bus, ROOTS)
        oracle.publish(bus, "a/again")
        oracle.check(bus)

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence

    def _publish(self, bus: Bus) -> Iterator[Callable[[], object]]:
        publish, many = self.oracle.publish, self.oracle.publish_many
        yield lambda: publish(bus, "a/one")
        yield lambda: publish(bus, "a/kept", 100, retain=True)
        yield lambda: many(bus, ["a/one", "a/two", "a/one"], 200)
        yield lambda: many(bus, ["a/one", "b/one", "c/one", "b/two"], 50)
        yield lambda: publish(bus, "b/kept", 600, retain=True)
        yield lambda: publish(bus, "a/idempotent", producer="p", sequence=self._next())
        yield lambda: many(bus, ["a/idempotent", "b/idempotent"], producer="p", sequence=self._next())
        yield lambda: many(bus, ["c/kept", "a/kept"], retain=True, producer="p", sequence=self._next())

    def _consume(self, bus: Bus) -> Iterator[Callable[[], object]]:
        yield lambda: self._consume_strictly(bus)
        yield lambda: self._consume_by_key(bus)
        yield lambda: self._consume_freely(bus)

    def _consume_strictly(self, bus: Bus) -> None:
        oracle = self.oracle
        with oracle.subscribe(bus, "strict", "#", max_attempts=0) as strict:
            taken = oracle.take(strict, 5)
            oracle.ack(strict, taken[:1])
            if len(taken) > 2:  # else one that failed is in the way
                oracle.reject(strict, taken[1])
                oracle.nack(strict, taken[2], 5.0)

    def _consume_by_key(self, bus: Bus) -> None:
        oracle = self.oracle
        with oracle.subscribe(bus, "keyed", "a/#", order="key", max_attempts=0) as keyed:
            taken = oracle.take(keyed, 6)
            oracle.ack(keyed, taken[1::2])
            for message in taken[:1]:
                oracle.nack(keyed, message)

    def _consume_freely(self, bus: Bus) -> None:
        oracle = self.oracle
        with oracle.subscribe(bus, "free", "b/#", order="none") as free:
            taken = oracle.take(free, 4)
            oracle.ack(free, taken[2:])
            oracle.ack(free, taken[:1])

    def _delay(self, machine: Machine, bus: Bus) -> Iterator[Callable[[], object]]:
        for seconds in (30, 60, 40):
            due_us = machine.clock.now_us() + seconds * SECOND_US
            self.due_us = max(self.due_us, due_us)
            yield lambda due_us=due_us: self.oracle.publish(bus, "b/late", 20, due_us=due_us)  # type: ignore[misc]
        yield lambda: self.oracle.publish_many(bus, ["a/one", "c/one"], 20)

    def _release(self, machine: Machine, bus: Bus) -> None:
        self.oracle.release(machine, bus, machine.clock.now_us() + 45 * SECOND_US)

    def _fill_journal(self, bus: Bus) -> Iterator[Callable[[], object]]:
        for count in (2, 3, 4, 2, 3):
            topics = ["a/wide", "b/wide", "c/wide", "a/wide"][:count]
            yield lambda topics=topics: self.oracle.publish_many(bus, topics, 700)  # type: ignore[misc]

    def _roll(self, bus: Bus) -> Iterator[Callable[[], object]]:
        for count in range(4):
            yield lambda topic=f"a/large/{count}": self.oracle.publish(bus, topic, 17_000)  # type: ignore[misc]
        yield lambda: self.oracle.publish_many(bus, ["b/large", "c/large"] * 3, 15_000)

    def _retain(self, bus: Bus) -> Iterator[Callable[[], object]]:
        yield lambda: self._consume_from_now_on(bus)
        yield lambda: self.oracle.clear(bus, "a/kept")
        yield lambda: self.oracle.publish(bus, "c/kept", retain=True)

    def _consume_from_now_on(self, bus: Bus) -> None:
        oracle = self.oracle
        with oracle.subscribe(bus, f"late-{self.round}", "b/#", start="latest") as late:
            oracle.ack(late, oracle.take(late, 1))
