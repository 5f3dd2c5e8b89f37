"""Actors: each owns its state, and nobody else touches it; what it is told, it handles one message after another.

All actors of a server live on one event loop. An actor that is idle handles a message at once, in the caller's turn,
so that a batch on its way through several of them costs no trip through the loop; one that is busy finds it in its
mailbox. A mailbox has a limit, a call has a deadline, and an actor that fails is handed to its supervisor.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol, TypeVar

from headwater.errors import QuotaExceeded, TimedOut

T = TypeVar("T")
Then = Callable[[Any, BaseException | None], None]
"""What is done with an answer: the answer, or the error instead of it."""


class Supervisor(Protocol):
    """Whoever started an actor and decides what becomes of it when it fails."""

    def on_failure(self, actor: Actor, error: Exception) -> None:
        """An actor raised what it should not have; what it was at is lost."""


class Actor(ABC):
    """One owner of some state."""

    __slots__ = ("_is_running", "_mail", "_mail_max", "_supervisor")

    def __init__(self, supervisor: Supervisor, mail_max: int) -> None:
        self._supervisor = supervisor
        self._mail_max = mail_max
        self._mail: deque[object] | None = None
        """Made for the first message that has to wait: of most actors, and there are many, none ever does."""
        self._is_running = False

    @abstractmethod
    def receive(self, message: Any) -> None:
        """Handle one message: a `match` over what this actor understands."""

    def tell(self, message: object) -> None:
        """Give it a message; QuotaExceeded (429) if its mailbox is full."""
        if self._is_running:
            if self._mail is None:
                self._mail = deque()
            if len(self._mail) >= self._mail_max:
                raise QuotaExceeded(f"{type(self).__name__} has {len(self._mail)} messages waiting (mailbox_max)")
            self._mail.append(message)
            return
        self._is_running = True
        refused: Exception | None = None
        try:
            self.receive(message)
        except Exception as error:
            try:
                self._supervisor.on_failure(self, error)
            except Exception as handed_back:  # to who told, once the mail is read
                refused = handed_back
        while self._mail:
            try:
                self._handle(self._mail.popleft())
            except Exception as error:
                refused = refused or error
        self._is_running = False
        if refused is not None:
            raise refused

    def _handle(self, message: object) -> None:
        try:
            self.receive(message)
        except Exception as error:
            self._supervisor.on_failure(self, error)


class Answer:
    """An answer that somebody waits for, until a deadline: the first that comes counts, and what is late is dropped."""

    __slots__ = ("_then", "_timer")

    def __init__(self, then: Then, loop: asyncio.AbstractEventLoop, deadline_s: float, what: str) -> None:
        self._then: Then | None = then
        self._timer = loop.call_later(deadline_s, self._late, what, deadline_s)

    def _late(self, what: str, deadline_s: float) -> None:
        self(None, TimedOut(f"{what} did not answer within {deadline_s:g} s; try again"))

    def __call__(self, value: Any, error: BaseException | None) -> None:
        """The answer, or why there is none."""
        then, self._then = self._then, None
        if then is not None:
            self._timer.cancel()
            then(value, error)


class Unfinished(NamedTuple):
    """What a piece of blocking work gives that is not done yet: others have their turn before it goes on."""

    go_on: Callable[[], Any]


class Offload:
    """Blocking work of one actor: done in threads, one piece after the other, in the order in which it was given."""

    __slots__ = ("_executor", "_is_busy", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor
        self._waiting: deque[tuple[Callable[[], Any], Then]] | None = None
        """Whoever gives work bounds it: clients are not read from while too much of theirs waits."""
        self._is_busy = False

    def do(self, work: Callable[[], Any], then: Then) -> None:
        """Have something done in a thread, then hear of it on the loop."""
        if self._is_busy:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((work, then))
            return
        self._is_busy = True
        self._start(work, then)

    def _start(self, work: Callable[[], Any], then: Then) -> None:
        try:
            started = self._loop.run_in_executor(self._executor, work)
        except RuntimeError:  # the threads are gone: the server has ended meanwhile
            self._is_busy, self._waiting = False, None
            return
        started.add_done_callback(lambda done: self._done(done, then))

    def _done(self, done: asyncio.Future[Any], then: Then) -> None:
        error = done.exception() if not done.cancelled() else asyncio.CancelledError()
        try:
            then(done.result() if error is None else None, error)
        finally:
            if self._waiting:
                self._start(*self._waiting.popleft())
            else:
                self._is_busy, self._waiting = False, None
