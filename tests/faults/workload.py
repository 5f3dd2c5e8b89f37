"""A day of a bus in a hundred syncs: every way of publishing and of consuming, rolls, wraps, checkpoints and a close.

The same from run to run, so that a crash can be put at each of its syncs in turn.
"""

from __future__ import annotations

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

    def run(self, machine: Machine) -> None:
        """Open a bus, use it, and close it."""
        self.round += 1
        bus = machine.open()
        self._publish(bus)
        self._consume(bus)
        self._delay(machine, bus)
        self._fill_journal(bus)
        self._roll(bus)
        self._consume(bus)
        self._release(machine, bus)
        self._fill_journal(bus)
        self._retain(bus)
        machine.close(bus)

    def check(self, machine: Machine, bus: Bus) -> None:
        """What the oracle can see at once, then what shows when publishers and consumers go on."""
        oracle = self.oracle
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

    def _publish(self, bus: Bus) -> None:
        oracle = self.oracle
        oracle.publish(bus, "a/one")
        oracle.publish(bus, "a/kept", 100, retain=True)
        oracle.publish_many(bus, ["a/one", "a/two", "a/one"], 200)
        oracle.publish_many(bus, ["a/one", "b/one", "c/one", "b/two"], 50)
        oracle.publish(bus, "b/kept", 600, retain=True)
        oracle.publish(bus, "a/idempotent", producer="p", sequence=self._next())
        oracle.publish_many(bus, ["a/idempotent", "b/idempotent"], producer="p", sequence=self._next())
        oracle.publish_many(bus, ["c/kept", "a/kept"], retain=True, producer="p", sequence=self._next())

    def _consume(self, bus: Bus) -> None:
        oracle = self.oracle
        strict = oracle.subscribe(bus, "strict", "#", max_attempts=0)
        taken = oracle.take(strict, 5)
        oracle.ack(strict, taken[:1])
        if len(taken) > 2:  # else one that failed is in the way
            oracle.reject(strict, taken[1])
            oracle.nack(strict, taken[2], 5.0)
        keyed = oracle.subscribe(bus, "keyed", "a/#", order="key", max_attempts=0)
        many = oracle.take(keyed, 6)
        oracle.ack(keyed, many[1::2])
        oracle.nack(keyed, many[0])
        free = oracle.subscribe(bus, "free", "b/#", order="none")
        many = oracle.take(free, 4)
        oracle.ack(free, many[2:])
        oracle.ack(free, many[:1])
        for consumer in (strict, keyed, free):
            consumer.close()

    def _delay(self, machine: Machine, bus: Bus) -> None:
        now_us = machine.clock.now_us()
        for seconds in (30, 60, 40):
            self.due_us = max(self.due_us, now_us + seconds * SECOND_US)
            self.oracle.publish(bus, "b/late", 20, due_us=now_us + seconds * SECOND_US)
        self.oracle.publish_many(bus, ["a/one", "c/one"], 20)

    def _fill_journal(self, bus: Bus) -> None:
        for count in range(5):
            self.oracle.publish_many(bus, ["a/wide", "b/wide", "c/wide", "a/wide"][: 2 + count % 3], 700)

    def _roll(self, bus: Bus) -> None:
        for count in range(4):
            self.oracle.publish(bus, f"a/large/{count}", 17_000)
        self.oracle.publish_many(bus, ["b/large", "c/large"] * 3, 15_000)

    def _release(self, machine: Machine, bus: Bus) -> None:
        self.oracle.release(machine, bus, machine.clock.now_us() + 45 * SECOND_US)

    def _retain(self, bus: Bus) -> None:
        oracle = self.oracle
        late = oracle.subscribe(bus, f"late-{self.round}", "b/#", start="latest")
        oracle.ack(late, oracle.take(late, 1))
        late.close()
        oracle.clear(bus, "a/kept")
        oracle.publish(bus, "c/kept", retain=True)
