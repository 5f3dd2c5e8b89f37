"""A machine that a bus runs on and that loses its power: a disk, a state store and a clock that a test decides about.

    machine = Machine()
    machine.crash_at(17)                       # at the seventeenth sync, whoever asks for it
    with machine.power_loss():
        work(machine.open())
    after = machine.after_crash(seed=3, disk="random", state="none")
    check(after.open())

Disk and state lose what was not synced independently of each other. A bus that was left behind by a crash is stopped
without a last word to either.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from faults.faulty_files import Crash, FaultyFiles, Keep
from faults.faulty_state import FaultyState
from headwater.bus import Bus
from headwater.clock import SECOND_US, ManualClock
from headwater.config import KIB, Config
from headwater.errors import HeadwaterError
from headwater.store.batch import Seed
from headwater.store.folder import check
from headwater.store.stream import DiskStream

FOLDER = "data"
PATIENCE_S = 60.0
NUDGE_S = 0.2

SMALL = Config(
    segment_bytes=64 * KIB,
    journal_bytes=6 * KIB,
    checkpoint_bytes=24 * KIB,
    checkpoint_batches=7,
    preallocate_bytes=16 * KIB,
    tail_bytes=2 * KIB,
    read_bytes=4 * KIB,
    disk_free_bytes_min=0,
    open_files_max=3,
)
"""Everything that happens now and then in a large bus happens after a few messages in this one."""


class Machine:
    """Where a bus runs, and how it ends."""

    def __init__(
        self,
        config: Config = SMALL,
        files: FaultyFiles | None = None,
        state: FaultyState | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.config = config
        self.files = files or FaultyFiles()
        self.state = state or FaultyState()
        self.clock = clock or ManualClock()
        self.syncs: list[str] = []
        """What was synced, in order: paths, and "state"."""
        self.is_out = False
        """Whether the power is gone."""
        self._crash_when: Callable[[str], bool] = lambda _: False
        self._counting = threading.Lock()
        self._buses: list[Bus] = []
        self.files.on_sync = lambda path, _: self._count(path)
        self.state.on_sync = lambda _: self._count("state")

    def _count(self, what: str) -> None:
        with self._counting:
            self.syncs.append(what)
            self.is_out |= self._crash_when(what)
            if self.is_out:
                raise Crash

    def crash_at(self, sync: int) -> None:
        """Lose power when a sync of this number is asked for, before it has done anything; 1 is the first of all."""
        self._crash_when = lambda _: len(self.syncs) >= sync

    def crash_when(self, what: Callable[[str], bool]) -> None:
        """Lose power when something is asked to be synced whose name is the one."""
        self._crash_when = what

    @contextmanager
    def power_loss(self) -> Iterator[None]:
        """What runs in here ends when the power does, or by itself."""
        before = threading.excepthook
        threading.excepthook = lambda args: None if issubclass(args.exc_type, Crash) else before(args)
        try:
            yield
        except Crash:
            self.is_out = True
        except HeadwaterError:
            if not self.is_out:  # else another thread met the crash first
                raise
        finally:
            self.stop()
            threading.excepthook = before

    def open(self) -> Bus:
        """A bus on this machine."""
        bus = Bus(FOLDER, self.config, files=self.files, state=self.state, clock=self.clock)
        self._buses.append(bus)
        return bus

    def close(self, bus: Bus) -> None:
        """Close a bus in good order, so that the next finds state and disk as it left them."""
        self._buses.remove(bus)
        try:
            bus.close()
        finally:
            self.state = self.state.process_kill()
            self.state.on_sync = lambda _: self._count("state")

    def stop(self) -> None:
        """End the threads of the buses that were left behind; nothing reaches the disk from here on."""
        for bus in self._buses:
            stop_threads(bus)
        self._buses.clear()

    def after_crash(self, seed: int = 0, disk: Keep = "random", state: Keep = "random") -> Machine:
        """The machine with power again; from the same moment, as often as you like."""
        self.stop()
        rng = random.Random(seed)
        return Machine(self.config, self.files.crash(rng, disk), self.state.crash(rng, state), same_time(self.clock))

    def after_kill(self) -> Machine:
        """The machine after a kill -9 of the process: all that was written is there, as little durable as before."""
        self.stop()
        return Machine(self.config, self.files.process_kill(), self.state.process_kill(), same_time(self.clock))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Let the timers do what is due, until it is done or the power is gone."""
        started = last = time.monotonic()
        while not done():
            if self.is_out:
                raise Crash
            now = time.monotonic()
            assert now < started + PATIENCE_S, "the timers do not get on"
            # A timer that was about to sleep looks again; one that tries later what failed is due at some time, too.
            self.clock.advance(0 if now < last + NUDGE_S else NUDGE_S * 10)
            last = last if now < last + NUDGE_S else now
            time.sleep(0.001)

    def settle(self, bus: Bus) -> None:
        """Let the timers and the commit thread do what is due, and no more."""
        is_due = True
        while is_due:
            rung = threading.Event()
            # Once it rings, the one thread for all is done with the others.
            bus.core.timers.set(rung, self.clock.monotonic_us(), rung.set)
            self.wait_until(rung.is_set)
            with bus.core.timers._changed:
                is_due = any(due_us <= self.clock.monotonic_us() for due_us, _ in bus.core.timers._due.values())
        bus.core.roots.commit.run(lambda: None)
        if self.is_out:
            raise Crash

    def seed(self) -> Seed:
        """The seed of the folder."""
        return check(self.files, FOLDER)

    def segments(self, root: str) -> list[str]:
        """Paths of a root's segments, oldest first."""
        folder = next(name for name in self.files.list(f"{FOLDER}/streams") if name.endswith(f"-{root}"))
        path = f"{FOLDER}/streams/{folder}"
        return [f"{path}/{name}" for name in self.files.list(path) if name.endswith(".log")]


def stream_of(bus: Bus, root: str) -> DiskStream:
    """The stream of a root that the bus has."""
    stream = bus.core.data.streams.get(root)
    assert stream is not None
    return stream


def same_time(clock: ManualClock) -> ManualClock:
    """A clock of its own for each way in which the story goes on."""
    other = ManualClock(clock.now_us() - clock.monotonic_us())
    other.advance(clock.monotonic_us() / SECOND_US)
    return other


def stop_threads(bus: Bus) -> None:
    """What a crash does to the threads of a bus; nobody closes it any more."""
    bus.core._closed = True
    bus.core.timers.close()
    for group in (bus.core.roots.commit, bus.core.rows._group):
        with group.places:
            group._closed = True
            group._work.notify_all()
            group._room.notify_all()
