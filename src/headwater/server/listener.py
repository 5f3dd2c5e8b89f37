"""The listener: takes in who connects, and keeps an eye on connections as long as they last.

How a client is greeted is its protocol's affair. Promises: a connection that is not through its handshake in time is
closed; however many connect, no more than the limits are held, and nobody has all of what there is for those whom
nobody knows yet: of handshakes each network has a share, and of memory each connection a little.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from headwater.config import Config, Serving
from headwater.errors import Failed, HeadwaterError, QuotaExceeded, TimedOut
from headwater.server.accepting import TLS_WEIGHT
from headwater.server.attention import Attention
from headwater.server.bell import Wakes
from headwater.server.connection import Connection
from headwater.server.holdings import Holdings
from headwater.server.log import Log
from headwater.server.memory import give_back
from headwater.server.network import network_of
from headwater.server.outbox import Outbox
from headwater.server.turns import Turns
from headwater.wire.handshake import Limits

if TYPE_CHECKING:
    from headwater.server.broker import Broker

READ_BYTES = 256 * 1024
"""How much is read from a connection at once, into one buffer for all of them."""
HELLO_READ_BYTES_MIN = 4096
"""How much is read at once, at least, from one that nobody knows yet; else `hello_bytes_max`."""
REFUSED_AT_ONCE_MAX = 8
"""Connections beyond `connections_max` that are accepted at a time, to be told so; others wait to be accepted."""
LOOK_S = 0.05
"""How often it is looked for those who have gone before they were known,"""
LOOKED_AT_ONCE_MAX = 64
"""and at how many."""
LEFT_MIN = 64
"""Connections with TLS that have to leave unregistered until their memory is given back to the system,"""
GIVE_BACK_S = 5.0
"""and how long after the last time."""
FRAME_SLACK_BYTES = 4096
"""What a frame may have besides its batch."""

log = Log("headwater.server")


class Listener:
    """All connections of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        config: Config,
        serving: Serving,
        wakes: Wakes,
        outbox: Outbox,
        attention: Attention,
    ) -> None:
        self.loop = loop
        self.wakes = wakes
        self.outbox = outbox
        self.attention = attention
        self.serving = serving
        self.turns = Turns(loop)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._small_buffer = self.buffer[: max(HELLO_READ_BYTES_MIN, serving.hello_bytes_max)]
        self._broker = broker
        self._counts = broker.core.roots.counts
        self._connections: dict[Connection, None] = {}  # in the order in which they came
        self._greeting: dict[Connection, None] = {}
        self._by_network: Counter[str] = Counter()
        self.greeting_by_network: Counter[str] = Counter()
        self.greeting_weight = 0
        """Of those that are not registered, as many as they count as;"""
        self.arriving_weight = 0
        """the same of those whose TLS is not through, or who have yet to say whose they are."""
        self.tls_left = 0
        """Connections with TLS that have left unregistered since memory was given back."""
        self._given_back_s = loop.time()
        self.arriving = 0
        """Those that are accepted, and not connected yet;"""
        self.arriving_by_network: Counter[str] = Counter()
        """of those, the ones that count."""
        self._when_room: list[Callable[[], None]] = []
        self._is_draining = False
        self._is_empty = asyncio.Event()
        self.limits = limits_of(config, serving)
        self._holdings = Holdings(max(serving.unanswered_bytes_per_client_max, self.limits.frame_bytes_max))
        self._sweeper = loop.call_later(self._sweep_s, self._sweep)
        self._looker: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Those that are open."""
        return tuple(self._connections)

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._connections)

    @property
    def handshake_s(self) -> float:
        """How long TLS may take."""
        return self.serving.handshake_s

    @property
    def has_room(self) -> bool:
        """Whether one more may be accepted, if only to be told that there are too many."""
        return len(self._connections) + self.arriving < self.serving.connections_max + REFUSED_AT_ONCE_MAX

    # Coming and going

    def when_room(self, call: Callable[[], None]) -> None:
        """Have something called as soon as one more may be accepted."""
        self._when_room.append(call)

    def _look_for_room(self) -> None:
        if self._when_room and self.has_room:
            calls, self._when_room = self._when_room, []
            for call in calls:
                call()

    def on_arrival(self, network: str, weight: int) -> bool:
        """Somebody is accepted, and soon connected. False if TLS would have to be through first, or whose it is be
        said, and too many wait for that: others are connected, and told that there are too many."""
        serving = self.serving
        if weight:
            greeting = self.greeting_by_network[network] + self.arriving_by_network[network]
            if (
                self.greeting_weight + self.arriving_weight + weight > serving.handshakes_max
                or greeting + weight > serving.handshakes_per_address_max
            ):
                self._counts.refuse(QuotaExceeded.code)
                return False
            self.arriving_by_network[network] += weight
            self.arriving_weight += weight
        self.arriving += 1
        return True

    def on_arrived(self, network: str, weight: int) -> None:
        """Somebody is connected, or has gone before that."""
        self.arriving -= 1
        if weight:
            self._less(self.arriving_by_network, network, weight)
            self.arriving_weight -= weight
        self.tls_left += weight == TLS_WEIGHT  # less one if it is connected
        self._look_for_room()

    def on_connection(self, connection: Connection) -> None:
        """Somebody has connected."""
        peer = connection.peer
        connection.address = str(peer[0]) if isinstance(peer, tuple) and peer else "unix"
        connection.network = network_of(connection.address)
        connection.limit_reads(self._small_buffer)
        connection.turns, connection.is_known = self.turns, False
        self._counts.connections += 1
        self._connections[connection] = None
        self._greeting[connection] = None
        self._look_soon()
        self._by_network[connection.network] += 1
        weight = weight_of(connection)
        self.greeting_by_network[connection.network] += weight
        self.greeting_weight += weight
        self.tls_left -= connection.has_tls
        serving = self.serving
        if connection.is_inner:
            return
        if self._is_draining:
            connection.say_goodbye(QuotaExceeded("the server is stopping; connect again in a while"), reconnect=True)
        elif len(self._connections) > serving.connections_max:
            connection.refuse(QuotaExceeded("the server has as many connections as it takes (connections_max)"))
        elif self.greeting_weight > serving.handshakes_max:
            connection.refuse(QuotaExceeded("too many are connecting at once (handshakes_max); try again in a while"))
        elif not connection.is_passed_on:
            self._check_share(connection)

    def on_address(self, connection: Connection, address: str) -> None:
        """A connection that another process passes on comes from this address."""
        self._less(self._by_network, connection.network)
        weight = weight_of(connection)
        self._less(self.greeting_by_network, connection.network, weight)
        connection.address, connection.network = address, network_of(address)
        self._by_network[connection.network] += 1
        self.greeting_by_network[connection.network] += weight
        self._check_share(connection)

    def _check_share(self, connection: Connection) -> None:
        """Refuse it if its network has more than its share."""
        serving, network = self.serving, connection.network
        if self.greeting_by_network[network] > serving.handshakes_per_address_max:
            connection.refuse(
                QuotaExceeded(
                    "too many are connecting at once from your address (handshakes_per_address_max); "
                    "try again in a while"
                )
            )
        elif self._by_network[network] > serving.connections_per_address_max:
            connection.refuse(QuotaExceeded("too many connections from your address (connections_per_address_max)"))

    @staticmethod
    def _less(counts: Counter[str], network: str, weight: int = 1) -> None:
        counts[network] -= weight
        if counts[network] <= 0:
            del counts[network]

    def _end_greeting(self, connection: Connection) -> bool:
        """It is registered, or gone: whether it was among those that greet."""
        if connection not in self._greeting:
            return False
        del self._greeting[connection]
        weight = weight_of(connection)
        self.greeting_weight -= weight
        self._less(self.greeting_by_network, connection.network, weight)
        return True

    def on_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)
        if connection.is_known:
            self._note("disconnected", connection, reason="lost" if connection.is_cut else "closed")
        self.turns.forget(connection)
        is_stranger = self._end_greeting(connection)
        self._counts.handshakes_failed += is_stranger
        self.tls_left += is_stranger and connection.has_tls
        self._less(self._by_network, connection.network)
        if connection.session is not None:
            connection.session.on_lost(connection)
        if not self._connections:
            self._is_empty.set()
        self._look_for_room()

    def on_registered(self, connection: Connection) -> None:
        """A connection has its session."""
        self._end_greeting(connection)
        connection.is_known = True
        self._note("connected", connection)
        connection.limit_reads(self.buffer)
        if connection.share and not connection.is_closed:
            connection.hold_for(self._holdings)

    def on_refused(self, connection: Connection, error: HeadwaterError) -> None:
        """A connection is closed for what its client did."""
        self._counts.refuse(error.code)
        self._note("refused", connection, logging.INFO, error=str(error))

    def on_not_registered(self, connection: Connection, error: BaseException) -> None:
        """A connection got no session, as the one that it named is gone, say, and may ask for another."""
        self._note("request-refused", connection, code=getattr(error, "code", Failed.code), reason=str(error))

    def _note(self, event: str, connection: Connection, level: int = logging.DEBUG, **fields: object) -> None:
        """A line in the log about a connection."""
        session = "-" if connection.session is None else connection.session.name
        user = connection.user or connection.claimed or "-"
        known = {"session": session, "user": user, "address": connection.address}
        log.at_will(level, event, **known, **fields)

    # While it lasts

    @property
    def _sweep_s(self) -> float:
        serving = self.serving
        shortest_s = min(serving.keepalive_s, serving.handshake_s, serving.frame_s, serving.linger_s)
        return max(0.05, min(1.0, shortest_s / 4))

    def _sweep(self) -> None:
        """Look after all connections at once: a timer for each would cost more than the connection."""
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)
        now_s, serving = self.loop.time(), self.serving
        for connection in tuple(self._greeting):
            is_waited_for = connection.is_held and connection.is_writable and not connection.is_in_line
            if now_s - connection.begun_s > serving.handshake_s and not is_waited_for:
                connection.refuse(TimedOut(f"the handshake took longer than {serving.handshake_s:g} s (handshake_s)"))
        for connection in tuple(self._connections):
            connection.sweep(now_s)
        if self.tls_left >= LEFT_MIN and now_s >= self._given_back_s + GIVE_BACK_S:
            self.tls_left, self._given_back_s = 0, now_s
            self.loop.run_in_executor(None, give_back)

    def _look_for_hung_up(self) -> None:
        """End those who have gone while nothing is read from them: some at a time, as each takes its while."""
        self._looker = None
        first = tuple(islice(self._greeting, LOOKED_AT_ONCE_MAX))
        for connection in first:
            if connection.is_held and connection not in self.turns and connection.is_hung_up:
                connection.abort()
            else:
                self._greeting[connection] = self._greeting.pop(connection)  # the turn of others
        self._look_soon()

    def _look_soon(self) -> None:
        if self._looker is None and self._greeting and not self._is_draining:
            self._looker = self.loop.call_later(LOOK_S, self._look_for_hung_up)

    def drain(self, tell: Callable[[Connection], None]) -> None:
        """Take no more, and say so to those that are here."""
        self._is_draining = True
        for connection in tuple(self._connections):
            tell(connection)

    async def emptied(self) -> None:
        """Return once nobody is connected."""
        if self._connections:
            self._is_empty.clear()
            await self._is_empty.wait()

    def close(self) -> None:
        """End every connection."""
        self._is_draining = True
        self._sweeper.cancel()
        if self._looker is not None:
            self._looker.cancel()
        for connection in tuple(self._connections):
            connection.abort()


def weight_of(connection: Connection) -> int:
    """As how many a connection counts as long as it is not registered."""
    return TLS_WEIGHT if connection.has_tls else 1


def is_local(address: str) -> bool:
    """Whether a peer is on this machine."""
    return address in ("unix", "::1") or address.startswith("127.")


def limits_of(config: Config, serving: Serving) -> Limits:
    """What clients are told."""
    return Limits(
        frame_bytes_max=config.batch_bytes_max + FRAME_SLACK_BYTES,
        batch_bytes_max=config.batch_bytes_max,
        message_bytes_max=config.message_bytes_max,
        key_bytes_max=config.key_bytes_max,
        headers_max=config.headers_max,
        header_bytes_max=config.header_bytes_max,
        topic_bytes_max=config.topic_bytes_max,
        topic_levels_max=config.topic_levels_max,
        root_bytes_max=config.root_bytes_max,
        producer_bytes_max=config.producer_bytes_max,
        producer_window=config.producer_window,
        max_in_flight_max=config.max_in_flight_max,
        publishes_in_flight_max=serving.publishes_in_flight_max,
        subscriptions_per_session_max=serving.subscriptions_per_session_max,
        session_expire_after_s_max=serving.session_expire_after_s_max,
        keepalive_s=serving.keepalive_s,
    )
