"""Rechecks: after rules or clients have changed, whoever has lost a right loses what it was for.

A right counts no longer from the moment of the change: publishes and requests are checked when they come, and a pump
asks once after each change whether it may still send. What is done here is the rest: the client is told, and rows and
subscriptions that are of no use any more go. That may take a while, so it is done for the users alone whom a change
concerns, once for all changes of a moment, and a little in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING

from headwater import threads
from headwater.access.name import EVERYONE
from headwater.server.log import Log

if TYPE_CHECKING:
    from headwater.server.broker import Broker
    from headwater.server.session import Session

CHECKS_IN_TURN = 256
"""Subscriptions that one turn of the loop looks at."""
GATHER_S = 0.1
"""Changes within so long after a recheck has begun share the next one."""

log = Log("headwater.server")


class Rechecks:
    """What is to be looked at again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self.version = 0
        """Another one after each change: what was allowed by an earlier one is to be asked for again."""
        self.clients: set[str] = set()
        """Those who were removed or have another secret, as long as sessions of theirs may not have been told."""
        self._loop = loop
        self._broker = broker
        self._lock = threads.Lock()
        self._versions = count(1)
        self._asked: set[str] = set()
        """Users whom changes concern that the loop has not heard of."""
        self._users: set[str] = set()
        """Those whose sessions are looked at next,"""
        self._sessions: dict[str, None] = {}
        """and sessions besides."""
        self._under_way: set[str] = set()
        """Users whose sessions are being looked at."""
        self._steps: Iterator[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun_s = float("-inf")
        self.is_closed = False

    # Changes, by whatever thread

    def on_rules(self, users: Collection[str]) -> None:
        """Rules about these users have changed, or, with EVERYONE, about all."""
        with self._lock:
            self.version = next(self._versions)
            is_told = bool(self._asked)
            self._asked.update(users)
        if not is_told and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hear)

    def on_clients(self, names: Collection[str]) -> None:
        """These clients were removed, or have another secret."""
        with self._lock:
            self.clients.update(names)
        self.on_rules(names)

    def on_grant(self, session: Session) -> None:
        """What a token allows this session is something else now; on the loop."""
        session.doubt()
        self._sessions[session.row.id] = None
        self._go_on()

    # On the loop

    def _hear(self) -> None:
        with self._lock:
            users, self._asked = self._asked, set()
        self._users |= users
        for extension in self._broker.extensions:
            extension.recheck(users)
        self._go_on()

    def _go_on(self) -> None:
        """Begin, unless something is under way, or was begun a moment ago."""
        if self._steps is not None or self._timer is not None or self.is_closed:
            return
        left_s = self._begun_s + GATHER_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._timer = None
        self._begun_s = self._loop.time()
        users, self._users = self._users, set()
        those, self._sessions = self._sessions, {}
        sessions = self._broker.sessions
        if EVERYONE in users:
            those = sessions.ids()
        else:
            for user in users:
                those.update(sessions.ids_of(user))
        self._under_way = users
        self._steps = self._each(those)
        self._turn()

    def _each(self, those: Iterable[str]) -> Iterator[None]:
        for one in those:
            session = self._broker.sessions.get(one)
            if session is None:
                continue
            yield
            try:
                yield from session.recheck()
            except Exception as error:
                log.error("recheck-failed", session=one, error=repr(error))

    def _turn(self) -> None:
        """Look at some."""
        assert self._steps is not None
        if self.is_closed:
            return
        if sum(1 for _ in islice(self._steps, CHECKS_IN_TURN)) == CHECKS_IN_TURN:
            self._loop.call_soon(self._turn)
            return
        self._steps = None
        with self._lock:
            again = self._users | self._asked
            self.clients -= self.clients & self._under_way - again
        self._under_way = set()
        if self._users or self._sessions:
            self._go_on()

    def close(self) -> None:
        """Look at nothing any more: sessions stay as they are."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
