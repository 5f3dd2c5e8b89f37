"""Turns: of those whom nobody knows yet, and of those who leave, some have their turn in each of the loop's, and all
others are served in between.

A crowd that goes and comes back at once has something to say at once: a thousand logins are as many steps of a
handshake, and whoever is served already would wait for all of them. Promises: no more than `HEARD_AT_ONCE_MAX` are
heard in a turn, in the order in which they spoke; what the others said waits with them, and no more is read from them
meanwhile. No more than `LEAVING_AT_ONCE_MAX` sockets of those who ended their side are closed in one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.server.connection import Connection

HEARD_AT_ONCE_MAX = 8
"""In one turn of the loop: about a millisecond, as a step of a login takes a tenth of one."""

LEAVING_AT_ONCE_MAX = 16
"""The same for those who leave: to close a socket, and all that hangs on it, takes about as long as half a step."""


class Turns:
    """Those of all connections of a listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Connection, bytes] = {}
        self._left = HEARD_AT_ONCE_MAX
        """How many may be heard in this turn."""
        self._leaving: dict[Connection, None] = {}
        self._left_to_leave = LEAVING_AT_ONCE_MAX
        self._is_armed = False

    def __contains__(self, connection: Connection) -> bool:
        """Whether what it said waits."""
        return connection in self._waiting

    def is_heard(self, connection: Connection, data: memoryview) -> bool:
        """Whether a connection is heard now; if not, what it said is kept, and heard in its turn."""
        if self._left and not self._waiting:
            self._left -= 1
            self._arm()
            return True
        before = self._waiting.get(connection)
        if before is None:
            connection.hold()
            self._waiting[connection] = bytes(data)
            self._arm()
        else:  # TLS had more at hand than was asked for
            self._waiting[connection] = before + bytes(data)
        return False

    def is_leaving(self, connection: Connection) -> bool:
        """Whether a connection whose client sends no more is closed now; if not, it is in its turn. One with TLS is, as
        it could not be kept."""
        if connection.has_tls:
            return True
        self._arm()
        if self._left_to_leave and not self._leaving:
            self._left_to_leave -= 1
            return True
        self._leaving[connection] = None
        return False

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        self._waiting.pop(connection, None)
        self._leaving.pop(connection, None)

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """The next turn of the loop."""
        self._is_armed = False
        try:
            self._go_on()
        finally:
            if self._left < HEARD_AT_ONCE_MAX or self._left_to_leave < LEAVING_AT_ONCE_MAX or self._leaving:
                self._arm()

    def _go_on(self) -> None:
        self._left = HEARD_AT_ONCE_MAX
        while self._left and self._waiting:
            self._left -= 1
            connection = next(iter(self._waiting))
            data = self._waiting.pop(connection)
            connection.release()
            if not connection.is_closed:
                connection.hear(data)
        self._left_to_leave = LEAVING_AT_ONCE_MAX
        while self._left_to_leave and self._leaving:
            self._left_to_leave -= 1
            connection = next(iter(self._leaving))
            del self._leaving[connection]
            connection.leave()
