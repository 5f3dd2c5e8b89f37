"""The world of a simulation: one virtual clock, and threads that take turns in an order that comes from a seed.

A thread is a greenlet. It runs until it waits for something (a lock, a sync, bytes, a moment); then the world picks
another that can go on. When nobody can, the clock jumps to the next moment for which somebody waits. So the whole
system runs in one thread of the real machine, sleeps nowhere, and does the same again for the same seed.

Threads belong to processes, and processes die: by a kill, or because their machine loses its power. Whatever of them
waits is ended where it waits; nothing of them reaches disk or network any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import traceback
from asyncio import _set_running_loop as set_running_loop
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # it has no types

SECOND_US = 1_000_000
SWITCH_US = 2
"""What a turn of a thread costs, at least."""
TURNS_MAX = 2_000_000
"""A story that takes more turns than this goes round in circles."""
NOBODY = "nobody"
NEVER = 1 << 62


class Killed(SystemExit):
    """What ends the threads of a process that dies. As `SystemExit`, so that no loop and no task swallows it."""


class Violation(AssertionError):
    """Something did not happen as it was promised."""


class Thread:
    """A thread of a simulated process."""

    __slots__ = ("greenlet", "ident", "is_done", "is_ready", "joining", "locals", "loop", "name", "process", "turn")

    def __init__(self, process: Process, name: str, ident: int) -> None:
        self.process = process
        self.name = name
        self.ident = ident
        self.is_done = False
        self.is_ready = False
        self.turn = 0
        """Counts its waits, so that what was to end one does not end a later one."""
        self.joining: list[Thread] = []
        self.locals: dict[int, dict[str, Any]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.greenlet: greenlet


class Process:
    """What lives and dies together: threads, a loop and connections."""

    def __init__(self, world: World, name: str, wall_us: int = 0) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.is_powered = True
        """Whether its machine has power; where it has not, not even a reset is answered."""
        self.wall_us = wall_us
        """How far its machine's wall clock is from the world's."""
        self.threads: dict[Thread, None] = {}
        self.ends: dict[Any, None] = {}
        """Its ends of connections."""
        self.on_death: list[Callable[[], None]] = []
        world.processes[self] = None

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        """A thread that begins when its turn comes."""
        return self.world.spawn(self, target, name)

    def kill(self, *, power: bool = False) -> None:
        """End it between two turns; with its machine, if that loses its power."""
        self.world.kill(self, power=power)


class Clock:
    """The clocks of a simulated machine; the door `headwater.clock.Clock`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def now_us(self) -> int:
        return self._world.tick() + self._process.wall_us

    def monotonic_us(self) -> int:
        return self._world.tick()

    def read(self) -> tuple[int, int]:
        now_us = self._world.tick()
        return now_us + self._process.wall_us, now_us

    def wait(self, condition: Any, timeout_us: int | None) -> bool:
        return bool(condition.wait(None if timeout_us is None else max(0, timeout_us) / SECOND_US))


class World:
    """Decides who goes on, and what time it is."""

    def __init__(self, seed: int, *, shows: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now_us = 1000 * SECOND_US
        self.processes: dict[Process, None] = {}
        self.current: Thread | None = None
        self.reached: Counter[str] = Counter()
        """What happened, by kind: faults and transitions."""
        self.troubles: list[str] = []
        """Errors that nobody handled."""
        self.logged: list[tuple[str, int, str]] = []
        """Who logged a warning or worse, how bad it is, and what it says."""
        self.excuses: Callable[[Process, BaseException | None], bool] = lambda _, __: False
        """Whether an error is nobody's fault."""
        self.turns = 0
        self._shows = shows
        self._digest = hashlib.blake2b(digest_size=16)
        self._hub = getcurrent()
        self._ready: list[Thread] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._dying: list[tuple[Process, bool]] = []
        self._until_switch = self.rng.randint(20, 200)

    # Telling what happens

    def note(self, what: str) -> None:
        """Something that has to be the same when a seed is played again."""
        line = f"{self.now_us} {what}"
        self._digest.update(line.encode())
        if self._shows:
            sys.stdout.write(f"{self.now_us / SECOND_US - 1000:12.6f}  {what}\n")

    def reach(self, what: str) -> None:
        """Count what happened."""
        self.reached[what] += 1

    @property
    def digest(self) -> str:
        """Of everything that was noted."""
        return self._digest.hexdigest()

    # Time

    def tick(self) -> int:
        """What time it is; to look takes a moment, so that nobody who looks again and again stops the world."""
        self.now_us += 1
        return self.now_us

    def at(self, when_us: int, do: Callable[[], None]) -> None:
        """Have something done by the world itself, at a moment."""
        self._number += 1
        heappush(self._timers, (max(when_us, self.now_us), self._number, do))

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """The same, after a while."""
        self.at(self.now_us + delay_us, do)

    # Threads

    def spawn(self, process: Process, target: Callable[[], None], name: str) -> Thread:
        """A new thread."""
        self._number += 1
        thread = Thread(process, name, self._number)

        def run() -> None:
            try:
                target()
            except Killed:
                pass
            except BaseException as error:
                self.trouble(process, f"thread {name} ended", error)
            finally:
                thread.is_done = True
                process.threads.pop(thread, None)
                for other in thread.joining:
                    self.wake(other)

        thread.greenlet = greenlet(run, self._hub)
        process.threads[thread] = None
        self._make_ready(thread)
        return thread

    def trouble(self, process: Process, what: str, error: BaseException | None) -> None:
        """An error that nobody handled; of the dead nothing is said."""
        if not process.is_dead and not isinstance(error, Killed) and not self.excuses(process, error):
            self.troubles.append(f"{process.name}: {what}: {error!r}")
            if error is not None and self._shows:
                traceback.print_exception(error)

    def _make_ready(self, thread: Thread) -> None:
        if not thread.is_ready:
            thread.is_ready = True
            self._ready.append(thread)

    def wake(self, thread: Thread) -> None:
        """Whoever waits goes on when its turn comes; it looks itself whether there is what it waits for."""
        if not thread.is_done and thread is not self.current:
            self._make_ready(thread)

    def park(self, deadline_us: int = NEVER) -> None:
        """The current thread waits until it is woken, or until a moment."""
        thread = self.current
        if thread is None or thread.process.is_dead:
            raise Killed
        if deadline_us < NEVER:
            thread.turn += 1
            turn = thread.turn

            def late() -> None:
                if thread.turn == turn:
                    self.wake(thread)

            self.at(deadline_us, late)
        self._hub.switch()
        thread.turn += 1

    def pause(self, delay_us: int) -> None:
        """The current thread does nothing for a while, as one that waits for a disk."""
        if self.current is None:
            return
        end_us = self.now_us + delay_us
        while self.now_us < end_us:
            self.park(end_us)

    def step_aside(self) -> None:
        """Now and then somebody else goes first: called where a real thread may be interrupted."""
        self._until_switch -= 1
        if self._until_switch <= 0:
            self._until_switch = self.rng.randint(20, 400)
            thread = self.current
            if thread is not None and not thread.process.is_dead:
                self._make_ready(thread)
                self._hub.switch()

    # Ends

    def kill(self, process: Process, *, power: bool = False) -> None:
        """End a process; if a thread of it asks for that, it does not return from here."""
        self._dying.append((process, power))
        if self.current is not None:
            if self.current.process is process:
                self._hub.switch()
            return
        self._bury()

    def _bury(self) -> None:
        while self._dying:
            process, power = self._dying.pop(0)
            if process.is_dead:
                continue
            process.is_dead = True
            process.is_powered = not power
            for do in process.on_death:
                do()
            for thread in tuple(process.threads):
                thread.is_ready = False
                if thread.greenlet:  # it has begun
                    self.current = thread
                    asyncio._set_running_loop(None)
                    thread.greenlet.throw(Killed)
                    self.current = None
            process.threads.clear()
            self._ready = [thread for thread in self._ready if thread.process is not process]
            self.processes.pop(process, None)

    # Turns

    def run(self, done: Callable[[], bool], until_us: int = NEVER) -> bool:
        """Let the world go on until something is so; False if it is not by then, or never will be."""
        timers, below = self._timers, self.rng._randbelow  # type: ignore[attr-defined]  # what `randrange` asks
        while not done():
            if self.now_us >= until_us:
                return False
            while timers and timers[0][0] <= self.now_us:
                heappop(timers)[2]()
                if self._dying:
                    self._bury()
            ready = self._ready
            if ready:
                thread = ready.pop()
                if ready and (place := below(len(ready) + 1)) < len(ready):
                    ready[place], thread = thread, ready[place]
                self._switch_to(thread)
            elif timers:
                self.now_us = min(timers[0][0], until_us)
            else:
                return False
        return True

    def _switch_to(self, thread: Thread) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Violation(f"{thread.process.name}'s {thread.name} and others go round in circles")
        self.now_us += SWITCH_US
        thread.is_ready = False
        self.current = thread
        if thread.loop is not None:
            set_running_loop(thread.loop)
        thread.greenlet.switch()
        set_running_loop(None)
        self.current = None
        if self._dying:
            self._bury()

    def end(self) -> None:
        """End everything that still lives."""
        for process in tuple(self.processes):
            self.kill(process)
        self._timers.clear()
        self._ready.clear()
