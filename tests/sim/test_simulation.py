"""The whole bus, played at random from a seed: everything that may be done to it, and everything that may befall it.

Power losses at any sync (in the midst of recovery too), kills, restarts, disks that fill up or fail, bits that flip;
after each opening the oracle checks what was promised. A failure names its seed; `play(seed)` plays it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest

from faults.faulty_files import Crash, Keep
from faults.machine import SMALL, Machine
from faults.oracle import Oracle
from headwater.bus import Bus
from headwater.clock import SECOND_US
from headwater.config import Config
from headwater.delivery.consumer import Consumer
from headwater.errors import Conflict, HeadwaterError
from headwater.message import Message
from headwater.store.segment import whole_batches

KEEPS: tuple[Keep, ...] = ("none", "all", "random", "prefix")
ROOTS = ("a", "b", "c")
TOPICS = tuple(f"{root}/{name}" for root in ROOTS for name in ("x", "y", "kept"))
ORDERS = {"strict": ("#", "strict"), "keyed": ("+/x", "key"), "free": ("b/#", "none")}
SIZES = (0, 10, 200, 900, 6000, 20_000)


class Simulation:
    """One story of a bus."""

    def __init__(self, seed: int, config: Config) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine(config)
        self.oracle = Oracle()
        self.bus: Bus | None = None
        self.consumers: dict[str, Consumer] = {}
        self.held: dict[str, list[Message]] = {}
        self.sequence = 0
        self.due_us = 0
        self.damaged = False
        self.is_troubled = False
        """Disk or state may refuse what they are asked, in this life."""
        self.story: list[str] = []
        rare = [self.damage, self.fail_disk, self.fail_state, self.fill_disk]
        self.moves: list[tuple[int, Callable[[], None]]] = [
            (12, self.publish),
            (8, self.publish_many),
            (6, self.publish_idempotent),
            (2, self.clear),
            (3, self.delay),
            (12, self.take),
            (10, self.ack),
            (4, self.nack),
            (2, self.reject),
            (3, self.leave),
            (5, self.pass_time),
            (1, self.checkpoint),
            (4, self.lose_power_soon),
            (1, self.kill),
            (1, self.restart),
            *((1, move) for move in rare),
        ]

    def play(self, steps: int) -> None:
        """Do this and that, whatever comes; then look at everything that was promised."""
        self.reopen()
        weights = [weight for weight, _ in self.moves]
        for _ in range(steps):
            [(_, move)] = self.rng.choices(self.moves, weights)
            self.story.append(move.__name__)
            self._do(move)
        self.machine = self._survivor()
        self.reopen()
        self._check_to_the_end()
        self.machine.stop()

    def _do(self, move: Callable[[], None]) -> None:
        """A move; one that meets the end of the power is the last of this life."""
        try:
            move()
        except Crash:
            self.machine.is_out = True
        except HeadwaterError:
            if not (self.machine.is_out or self.is_troubled):
                raise
        if self.machine.is_out:
            self.machine = self._survivor()
            self.reopen()

    def _bus(self) -> Bus:
        assert self.bus is not None
        return self.bus

    # Lives

    def reopen(self) -> None:
        """A new life: perhaps cut short in the midst of recovery, but at last there is one, and it is looked at."""
        self.consumers.clear()
        self.held.clear()
        self.is_troubled = False
        while True:
            files = self.machine.files
            files.capacity_bytes = files.fail_sync_at = files.fail_write_at = self.machine.state.fail_sync_at = None
            if self.rng.random() < 0.2:
                self.machine.crash_at(len(self.machine.syncs) + self.rng.randint(1, 25))
            try:
                self.bus = self.machine.open()
                self.machine.settle(self.bus)
                break
            except (Crash, OSError, HeadwaterError):
                self.story.append("and again")
                self.machine.is_out = True
                self.machine = self._survivor()
        self._check()

    def _survivor(self) -> Machine:
        return self.machine.after_crash(self.rng.getrandbits(32), self.rng.choice(KEEPS), self.rng.choice(KEEPS))

    def _check(self) -> None:
        with suppress(Crash):
            self.oracle.check(self._bus(), damaged=self.damaged)

    def _check_to_the_end(self) -> None:
        bus, oracle = self._bus(), self.oracle
        self.machine.crash_when(lambda _: False)
        oracle.release(self.machine, bus, self.due_us, damaged=self.damaged)
        oracle.resend(bus, last=20)
        oracle.drain(self.machine, bus)
        oracle.publish_many(bus, ROOTS)
        oracle.check(bus, damaged=self.damaged)

    # What publishers do

    def publish(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.oracle.publish(self._bus(), topic, self.rng.choice(SIZES), retain=topic.endswith("kept"))

    def publish_many(self) -> None:
        roots = self.rng.sample(ROOTS, self.rng.randint(1, 3))
        topics = [f"{self.rng.choice(roots)}/{self.rng.choice('xy')}" for _ in range(self.rng.randint(1, 6))]
        self.oracle.publish_many(self._bus(), topics, self.rng.choice(SIZES[:4]))

    def publish_idempotent(self) -> None:
        unsure = [call for call in self.oracle.calls if call.producer and call.outcome != "acked"]
        with suppress(Conflict):  # it was not sent again in time
            if unsure and self.rng.random() < 0.8:
                self.oracle.resend(self._bus(), last=3)
                return
            self.sequence += 1
            topics = [f"{root}/x" for root in self.rng.sample(ROOTS, self.rng.randint(1, 2))]
            self.oracle.publish_many(self._bus(), topics, producer="p", sequence=self.sequence)

    def clear(self) -> None:
        self.oracle.clear(self._bus(), self.rng.choice(TOPICS))

    def delay(self) -> None:
        due_us = self.machine.clock.now_us() + self.rng.randint(1, 100) * SECOND_US
        self.due_us = max(self.due_us, due_us)
        self.oracle.publish(self._bus(), self.rng.choice(TOPICS[:2]), due_us=due_us)

    # What consumers do

    def take(self) -> None:
        id = self.rng.choice(list(ORDERS))
        filter, order = ORDERS[id]
        if id not in self.consumers:
            self.consumers[id] = self.oracle.subscribe(self._bus(), id, filter, order=order, max_attempts=0)
        self.held.setdefault(id, []).extend(self.oracle.take(self.consumers[id], self.rng.randint(1, 10)))

    def _some_held(self) -> tuple[Consumer, list[Message]] | None:
        ids = [id for id, held in self.held.items() if held]
        if not ids:
            return None
        id = self.rng.choice(ids)
        count = self.rng.randint(1, len(self.held[id]))
        first = self.rng.randint(0, len(self.held[id]) - count)
        chosen = self.held[id][first : first + count]
        del self.held[id][first : first + count]
        return self.consumers[id], chosen

    def ack(self) -> None:
        chosen = self._some_held()
        if chosen is not None:
            with suppress(Conflict):  # it timed out, or one before it failed
                self.oracle.ack(*chosen, wait=self.rng.random() < 0.8)

    def nack(self) -> None:
        chosen = self._some_held()
        if chosen is not None:
            consumer, messages = chosen
            with suppress(Conflict):
                self.oracle.nack(consumer, messages[0], self.rng.choice([None, 0.0, 20.0]))

    def reject(self) -> None:
        chosen = self._some_held()
        if chosen is not None:
            consumer, messages = chosen
            with suppress(Conflict):
                self.oracle.reject(consumer, messages[0])

    def leave(self) -> None:
        if self.consumers:
            id = self.rng.choice(list(self.consumers))
            self.held.pop(id, None)
            self.consumers.pop(id).close()

    # What happens

    def pass_time(self) -> None:
        self.machine.clock.advance(self.rng.choice([0.5, 5, 31, 70]))
        self.machine.settle(self._bus())

    def checkpoint(self) -> None:
        bus = self._bus()
        bus.core.roots.commit.run(bus.core.roots.checkpoints.make)

    def lose_power_soon(self) -> None:
        self.machine.crash_at(len(self.machine.syncs) + self.rng.randint(1, 30))

    def kill(self) -> None:
        self.machine = self.machine.after_kill()
        self.reopen()

    def restart(self) -> None:
        try:
            self.machine.close(self._bus())
        except HeadwaterError:
            self.machine = self.machine.after_kill()
        self.reopen()

    def damage(self) -> None:
        """A bit of a batch of some root turns over, once everything is on disk and the state knows it."""
        self.restart()
        bus = self._bus()
        self.checkpoint()
        ends = {root.name: root.stream.durable for root in bus.core.roots.all()}
        self.machine.close(bus)
        self.machine = self.machine.after_crash(0, "all", "all")
        root = self.rng.choice([name for name in ends if name in ROOTS and ends[name]] or [""])
        if root:
            path = self.rng.choice(self.machine.segments(root))
            file = self.machine.files.open(path, write=False)
            places = list(whole_batches(self.machine.seed(), file, 0, root))
            if places:
                position, header, _ = self.rng.choice(places)
                length = header.header_bytes + header.body_bytes
                self.machine.files.flip(path, position + self.rng.randrange(length), self.rng.randrange(8))
                self.damaged = True
        self.reopen()

    def fail_disk(self) -> None:
        self.is_troubled = True
        files = self.machine.files
        if self.rng.random() < 0.5:
            files.fail_sync_at = files.syncs + self.rng.randint(1, 10)
        else:
            files.fail_write_at = files.writes + self.rng.randint(1, 10)

    def fail_state(self) -> None:
        self.is_troubled = True
        self.machine.state.fail_sync_at = self.machine.state.syncs + self.rng.randint(1, 5)

    def fill_disk(self) -> None:
        self.is_troubled = True
        files = self.machine.files
        if files.capacity_bytes is None:
            files.capacity_bytes = 1 << 40
            files.capacity_bytes -= files.free_bytes("") - self.rng.randint(0, 50_000)
        else:
            files.capacity_bytes = None


def play(seed: int, steps: int = 250, config: Config = SMALL) -> None:
    simulation = Simulation(seed, config)
    try:
        simulation.play(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}, damaged: {simulation.damaged}; {' '.join(simulation.story)}")
        raise
    finally:
        simulation.machine.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a crash ends threads, too
@pytest.mark.parametrize("seed", range(20))
def test_promises_are_kept_whatever_happens(seed: int) -> None:
    play(seed)


CONFIGS = [
    SMALL,
    msgspec.structs.replace(SMALL, journal_bytes=1 << 20, checkpoint_batches=3),
    msgspec.structs.replace(SMALL, checkpoint_batches=1 << 20, checkpoint_bytes=1 << 30),
    msgspec.structs.replace(SMALL, compression="zstd", compression_bytes_min=64),
    msgspec.structs.replace(SMALL, tail_bytes=1 << 20, read_bytes=1 << 20, open_files_max=100),
]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("part", range(50))
def test_promises_are_kept_whatever_happens_for_long(part: int) -> None:
    for seed in range(1000 + part * 40, 1040 + part * 40):
        play(seed, steps=500, config=CONFIGS[seed % len(CONFIGS)])
