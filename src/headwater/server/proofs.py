"""Proofs: whether clients are who they say they are, looked at without anybody else having to wait.

A guess is a proof until it was looked at. Those for one name from one network are looked at in turn: each waits for the
answer to the one before it, and then as long as the wrong ones before it cost, so that many at once are no faster than
one after another. What takes long to look at (a password: PBKDF2) is done in threads of its own, the networks one after
another. Promises: what others ask for waits for no proof; no more than `proofs_waiting_max` wait for a thread; whoever
has hung up costs no more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater import threads
from headwater.access.name import NAME_CHARS_MAX
from headwater.access.quota import Guesses
from headwater.config import Serving
from headwater.errors import HeadwaterError, QuotaExceeded, Unauthenticated

if TYPE_CHECKING:
    from headwater.server.connection import Connection

THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""For what takes long: a core, or half of them, is left to everybody else."""
NICENESS = 10
"""How much these threads step back where others want the same core."""

Then = Callable[[Any, HeadwaterError | None], None]
"""Gets what the look at a proof answered, or why it is wrong; not called if the client has gone."""


class Guess:
    """A proof that is not looked at yet, or not answered."""

    __slots__ = ("connection", "is_slow", "key", "look", "network", "place", "then", "timer")

    def __init__(
        self, connection: Connection, name: str, look: Callable[[], Any], then: Then, *, is_slow: bool
    ) -> None:
        self.connection: Connection | None = connection
        self.network = connection.network
        # Longer names are nobody's, and not worth remembering.
        self.key = f"{name[: NAME_CHARS_MAX + 1]}@{connection.network}"
        self.look: Callable[[], Any] | None = look
        self.then: Then | None = then
        self.is_slow = is_slow
        self.place: dict[Guess, None] | None = None
        """Where it waits for others."""
        self.timer: asyncio.TimerHandle | None = None
        """With which it is answered."""

    def cancel(self) -> None:
        """The client has gone: nothing is looked at for it, and nothing kept."""
        self.connection = self.look = self.then = None
        if self.place is not None:
            self.place.pop(self, None)
            self.place = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Proofs:
    """All proofs of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guesses: Guesses, serving: Serving) -> None:
        self._loop = loop
        self._guesses = guesses
        self._waiting_max = serving.proofs_waiting_max
        self._executor = threads.ThreadPoolExecutor(THREADS, "headwater-proof", initializer=step_back)
        self._lines: dict[str, dict[Guess, None]] = {}
        """By name and network, while one of its guesses is looked at or answered: those that wait behind it."""
        self._ready: dict[str, dict[Guess, None]] = {}
        """By network: those that wait for a thread."""
        self._busy = 0

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return sum(map(len, self._ready.values()))

    def prove(self, connection: Connection, name: str, look: Callable[[], Any], then: Then, *, is_slow: bool) -> None:
        """Look at a proof of a connection, which is held meanwhile; `then` hears of it, at once if it can be."""
        connection.claimed = name
        guess = Guess(connection, name, look, then, is_slow=is_slow)
        line = self._lines.get(guess.key)
        if line is None and not is_slow and not self._guesses.delay_s(guess.key):
            self._look(guess)
            return
        connection.hold()
        connection.waiter = guess
        if line is not None:
            connection.is_in_line = True
            guess.place = line
            line[guess] = None
        else:
            self._lines[guess.key] = {}
            self._begin(guess)

    def _begin(self, guess: Guess) -> None:
        """It is a guess's turn: it waits for what the wrong ones before it cost."""
        if guess.connection is not None:
            guess.connection.is_in_line = False
        delay_s = self._guesses.delay_s(guess.key)
        if delay_s:
            self._loop.call_later(delay_s, self._on_due, guess)
        else:
            self._on_due(guess)

    def _on_due(self, guess: Guess) -> None:
        if not _is_there(guess):
            self._next(guess.key)
        elif not guess.is_slow:
            self._look(guess)
        elif self.waiting >= self._waiting_max:
            busy = QuotaExceeded("too many passwords wait to be checked (proofs_waiting_max); try again in a while")
            self._tell(guess, None, busy)
            self._next(guess.key)
        else:
            guess.place = self._ready.setdefault(guess.network, {})
            guess.place[guess] = None
            self._start()

    # In threads

    def _start(self) -> None:
        """Keep the threads busy, with the networks in turn."""
        while self._busy < THREADS and self._ready:
            network = next(iter(self._ready))
            waiting = self._ready.pop(network)
            guess = next(iter(waiting), None)
            if guess is None:
                continue
            del waiting[guess]
            guess.place = None
            if waiting:
                self._ready[network] = waiting
            look = guess.look
            if look is None or not _is_there(guess):
                self._next(guess.key)
                continue
            self._count(guess)
            self._busy += 1
            self._loop.run_in_executor(self._executor, look).add_done_callback(
                lambda done, guess=guess: self._on_looked(guess, done)  # type: ignore[misc]  # it is a guess
            )

    def _on_looked(self, guess: Guess, done: asyncio.Future[Any]) -> None:
        self._busy -= 1
        error = done.exception() if not done.cancelled() else asyncio.CancelledError()
        self._settle(guess, done.result() if error is None else None, error)
        self._start()

    # On the loop

    def _look(self, guess: Guess) -> None:
        """Look at what takes no time."""
        look = guess.look
        assert look is not None
        self._count(guess)
        try:
            found = look()
        except HeadwaterError as error:
            self._settle(guess, None, error.with_traceback(None))
        else:
            self._settle(guess, found, None)

    def _count(self, guess: Guess) -> None:
        """A guess counts as a wrong one until it turns out to be right: hanging up meanwhile does not help."""
        self._guesses.failed(guess.key)

    def _settle(self, guess: Guess, found: Any, error: BaseException | None) -> None:
        if error is None:
            self._guesses.succeeded(guess.key)
            self._next(guess.key)
            self._tell(guess, found, None)
            return
        # One who guesses at many names from one place waits as long for each answer as one who guesses at one name.
        self._guesses.failed(guess.network)
        refusal = error if isinstance(error, HeadwaterError) else Unauthenticated("it could not be checked")
        connection, own_s = guess.connection, self._guesses.delay_s(guess.key)
        if connection is not None:
            if connection.waiter is None:  # it may not speak meanwhile
                connection.hold()
                connection.waiter = guess
            answer_s = max(own_s, self._guesses.delay_s(guess.network))
            guess.look = None
            guess.timer = self._loop.call_later(answer_s, self._tell, guess, None, refusal)
        self._lines.setdefault(guess.key, {})
        self._loop.call_later(own_s, self._next, guess.key)

    def _tell(self, guess: Guess, found: Any, error: HeadwaterError | None) -> None:
        connection, then = guess.connection, guess.then
        if connection is None or then is None or connection.is_closed:
            return
        is_held = connection.waiter is guess
        guess.connection = guess.look = guess.then = guess.timer = None
        if is_held:
            connection.waiter = None
            if error is None:
                connection.release()
        then(found, error)

    def _next(self, key: str) -> None:
        """The turn of whoever is next in a line."""
        line = self._lines.get(key)
        guess = next(iter(line), None) if line else None
        if line is None or guess is None:
            self._lines.pop(key, None)
            return
        del line[guess]
        guess.place = None
        self._loop.call_soon(self._begin, guess)

    def close(self) -> None:
        """Look at none any more."""
        self._ready.clear()
        self._executor.shutdown(wait=False)


def _is_there(guess: Guess) -> bool:
    connection = guess.connection
    if connection is None or connection.is_closed:
        return False
    if connection.is_hung_up:
        connection.abort()
        return False
    return True


def step_back() -> None:
    """Let others have the core first. Linux takes this for the thread, others for the whole process."""
    if sys.platform == "linux":
        os.nice(NICENESS)
