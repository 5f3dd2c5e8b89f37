"""The bell: how other threads get the loop's attention, with one call however often it is rung."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headwater import threads
from headwater.clock import Clock
from headwater.delivery.fan_out import FanOuts
from headwater.server.outbox import Outbox

WAKES_IN_TURN = 16
"""Sleepers that one turn of the loop wakes;"""
CROWD_MIN = 128
"""of a crowd so large,"""
CROWD_US = 100
"""no more than can be woken in this time, about: everybody else who wants something of the loop waits for it."""
READS_IN_TURN = 64
"""Reads after which what waits for the next turn of the loop is done: where thousands of clients have sent something,
all of it is read in one turn."""
TOLD_IN_TURN = 16
"""Subscribers whom one turn of the loop tells of a batch that very many are to hear of."""


class Bell:
    """Has something done on the loop, once after any number of rings."""

    __slots__ = ("_answer", "_home", "_loop", "is_rung")

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
        """Made on the loop's own thread. `answer` looks for everything that there is to do."""
        self._loop = loop
        self._home = threads.get_ident()
        self._answer = answer
        self.is_rung = False
        """Whether it is to be answered in a turn that is to come."""

    def ring(self) -> None:
        """From any thread, after what is to be done was put where `answer` looks."""
        if self.is_rung:
            return
        self.is_rung = True
        if threads.get_ident() == self._home:
            self._loop.call_soon(self._run)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self.is_rung = False  # before looking: who comes after the look rings again
        self._answer()


class Sleeper(Protocol):
    """Whoever is to look for something to do, on the loop."""

    is_rung: bool

    def on_wake(self) -> None:
        """Something may have happened."""


class Wakes:
    """Sleepers that are to be woken on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fan_outs: FanOuts, outbox: Outbox, clock: Clock) -> None:
        self._clock = clock
        self._bell = Bell(loop, self._turn)
        self._fan_outs = fan_outs
        self._outbox = outbox
        fan_outs.serve(self._bell.ring)
        self.reads = 0
        """Since the last turn; whoever reads adds to it."""
        self.on_many_reads: Callable[[], None] = lambda: None
        """Does what else waits for the next turn, as it may not come soon."""
        self.rung: deque[Sleeper] = deque()
        """Those that are to be woken."""
        self.is_looking = False
        """Whether the loop's own thread is at something after which it wakes them: it need not be told."""

    def ring(self, sleeper: Sleeper) -> None:
        """Wake it soon; from any thread, as often as one likes."""
        if not sleeper.is_rung:
            sleeper.is_rung = True
            self.rung.append(sleeper)
            if not self.is_looking:
                self._bell.ring()

    def wake(self) -> None:
        """Wake some of those that were rung, in this turn of the loop; the others in the next."""
        if len(self.rung) >= CROWD_MIN or self._fan_outs.by_root:
            self._wake_crowd()
            return
        for _ in range(min(len(self.rung), WAKES_IN_TURN)):
            sleeper = self.rung.popleft()
            sleeper.is_rung = False
            sleeper.on_wake()
        if self.rung:
            self._bell.ring()  # whoever else the loop has to do with has its turn before the others

    def _wake_crowd(self) -> None:
        """The same where there are very many, for so long; what they send over one connection leaves together."""
        if self._bell.is_rung:
            return  # it is their turn soon, and here it is another's
        outbox, until_us = self._outbox, self._clock.monotonic_us() + CROWD_US
        is_gathered = outbox.is_open
        outbox.is_open = True
        try:
            for _ in range(min(len(self.rung), WAKES_IN_TURN)):
                sleeper = self.rung.popleft()
                sleeper.is_rung = False
                sleeper.on_wake()
                if self._clock.monotonic_us() >= until_us:
                    break
        finally:
            if not is_gathered:
                outbox.post()
            if self.rung or self._fan_outs.by_root:
                self._bell.ring()

    def interrupt(self) -> None:
        """Very much was read in one turn of the loop: do what waits for the next."""
        self.reads = 0
        self.on_many_reads()
        if self._bell.is_rung:
            self._turn()

    def _turn(self) -> None:
        """A turn of the loop: tell some of what very many are to hear of, and wake some of those that were rung."""
        self.reads = 0
        if self._fan_outs.by_root and len(self.rung) < TOLD_IN_TURN:
            self.is_looking = True
            try:
                self._fan_outs.carry_on(TOLD_IN_TURN)
            finally:
                self.is_looking = False
                self.wake()  # also after an error, which the loop reports: the others are still to be told
        else:
            self.wake()
