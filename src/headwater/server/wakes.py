"""Wakes: what other threads have for the loop, told to it with one call however many there are."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Protocol


class Sleeper(Protocol):
    """Whoever is to look for something to do, on the loop."""

    is_rung: bool

    def on_wake(self) -> None:
        """Something may have happened."""


class Wakes:
    """Sleepers that were rung, until the loop has woken them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._rung: deque[Sleeper] = deque()
        self._is_called = False

    def ring(self, sleeper: Sleeper) -> None:
        """Wake it soon; from any thread, as often as one likes."""
        if sleeper.is_rung:
            return
        sleeper.is_rung = True
        self._rung.append(sleeper)
        if self._is_called:
            return
        self._is_called = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._wake)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        for _ in range(len(self._rung)):
            sleeper = self._rung.popleft()
            sleeper.is_rung = False
            sleeper.on_wake()
