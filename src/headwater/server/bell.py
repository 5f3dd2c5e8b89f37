"""The bell: how other threads get the loop's attention, with one call however often it is rung."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headwater import threads

WAKES_IN_TURN = 16
"""Sleepers that one turn of the loop wakes."""


class Bell:
    """Has something done on the loop, once after any number of rings."""

    __slots__ = ("_answer", "_home", "_is_rung", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
        """Made on the loop's own thread. `answer` looks for everything that there is to do."""
        self._loop = loop
        self._home = threads.get_ident()
        self._answer = answer
        self._is_rung = False

    def ring(self) -> None:
        """From any thread, after what is to be done was put where `answer` looks."""
        if self._is_rung:
            return
        self._is_rung = True
        if threads.get_ident() == self._home:
            self._loop.call_soon(self._run)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_rung = False  # before looking: who comes after the look rings again
        self._answer()


class Sleeper(Protocol):
    """Whoever is to look for something to do, on the loop."""

    is_rung: bool

    def on_wake(self) -> None:
        """Something may have happened."""


class Wakes:
    """Sleepers that are to be woken on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._bell = Bell(loop, self.wake)
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
        for _ in range(min(len(self.rung), WAKES_IN_TURN)):
            sleeper = self.rung.popleft()
            sleeper.is_rung = False
            sleeper.on_wake()
        if self.rung:
            self._bell.ring()  # whoever else the loop has to do with has its turn before the others
