"""Holdings: how many bytes the connections of each client make the server hold.

Those are frames that have begun and not ended, requests that are not answered and publishes that are not on disk. A
client is a user; without authentication, an address and a client id. Promises: all connections of a client together
hold no more than `unanswered_bytes_per_client_max`, and a read beyond it. What is on its way to be answered goes by
itself, so that more of it waits unread; frames that have begun do not, and whoever passes the limit with them alone is
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import QuotaExceeded

if TYPE_CHECKING:
    from headwater.server.connection import Connection


class Holding:
    """What one client's connections hold."""

    __slots__ = ("_begun_bytes", "_connections", "_of", "_share", "_waiting", "bytes", "bytes_max")

    def __init__(self, of: Holdings, share: str) -> None:
        self._of = of
        self._share = share
        self.bytes = 0
        """How many there are; who has more of them answered adds to it."""
        self.bytes_max = of.bytes_max
        self._begun_bytes = 0
        """Of them, those of frames that have not ended."""
        self._connections = 0
        self._waiting: dict[Connection, None] = {}
        """Connections that are not read from until there is room."""

    def join(self) -> None:
        """One more connection is the client's."""
        self._connections += 1

    def leave(self, connection: Connection) -> None:
        """A connection is gone; what it asked for may be under way yet."""
        self._connections -= 1
        self._waiting.pop(connection, None)
        self._settle()

    def give_back(self, size: int) -> None:
        """So many were answered."""
        self.bytes -= size
        if self._waiting or not (self.bytes or self._connections):
            self._settle()

    def begin(self, more: int) -> None:
        """So many more, or fewer, are of frames that have not ended."""
        self.bytes += more
        self._begun_bytes += more
        if more < 0 and (self._waiting or not (self.bytes or self._connections)):
            self._settle()

    def wait(self, connection: Connection) -> None:
        """Read no more from a connection until something was answered; QuotaExceeded (429) if nothing is under way."""
        if self.bytes == self._begun_bytes:
            raise QuotaExceeded(
                f'client "{self._share}" has begun frames of {self._begun_bytes} bytes and ended none of them, and '
                f"unanswered_bytes_per_client_max is {self.bytes_max}; send fewer at once, or raise the setting"
            )
        if connection not in self._waiting:
            self._waiting[connection] = None
            connection.hold()

    def _settle(self) -> None:
        if self._waiting and (self.bytes <= self.bytes_max or self.bytes == self._begun_bytes):
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.release()
        if not self.bytes and not self._connections:
            self._of.forget(self._share)


class Holdings:
    """Those of all clients."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._by_share: dict[str, Holding] = {}

    def __len__(self) -> int:
        return len(self._by_share)

    def of(self, share: str) -> Holding:
        """That of a client, for one more connection of it."""
        found = self._by_share.get(share)
        if found is None:
            found = self._by_share[share] = Holding(self, share)
        found.join()
        return found

    def forget(self, share: str) -> None:
        """It has no connection any more, and holds nothing."""
        self._by_share.pop(share, None)
