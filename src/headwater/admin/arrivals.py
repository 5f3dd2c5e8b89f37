"""HTTP connections are accepted while there is room; those whose TLS handshake is under way count.

uvicorn would accept whoever comes, and count nobody before TLS is through.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable

import uvicorn

from headwater.admin.http_protocol import HEAD_S, SPEAKS_TLS, network_of_protocol
from headwater.clock import SystemClock
from headwater.server.accepting import Door, Introductions
from headwater.serving.outside import Outside

REFUSED_AT_ONCE_MAX = 8
"""Connections beyond the most that are accepted at a time, to be told so; others wait to be accepted."""
LOOK_S = 0.05
"""How often it is looked for room while there is none."""


class Arrivals:
    """Who is coming."""

    handshake_s = HEAD_S

    def __init__(self, server: uvicorn.Server, outside: Outside) -> None:
        self.loop = asyncio.get_running_loop()
        self._connections = server.server_state.connections
        self._max = outside.connections_max
        self._per_address_max = outside.connections_per_address_max
        self._arriving = 0
        self._by_network: Counter[str] = Counter()
        """Those whose TLS is not through."""

    @property
    def has_room(self) -> bool:
        """Whether one more may be accepted, if only to be told that there are too many."""
        return len(self._connections) + self._arriving < self._max + REFUSED_AT_ONCE_MAX

    def when_room(self, call: Callable[[], None]) -> None:
        """Have something called in a moment, when there may be room: uvicorn does not say who has gone."""
        self.loop.call_later(LOOK_S, call)

    def on_arrival(self, network: str, weight: int) -> bool:
        """Somebody is accepted; False if there is no place for one that has something to do before it is connected."""
        if weight:
            there = sum(network_of_protocol(one) == network for one in self._connections)
            is_full = len(self._connections) + self._arriving >= self._max
            if is_full or there + self._by_network[network] >= self._per_address_max:
                return False
            self._by_network[network] += 1
        self._arriving += 1
        return True

    def on_arrived(self, network: str, weight: int) -> None:
        """Somebody is connected, or has gone before that."""
        self._arriving -= 1
        if weight:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]


class HttpServer(uvicorn.Server):
    """uvicorn behind a door of ours."""

    def __init__(self, config: uvicorn.Config, outside: Outside, listening: socket.socket) -> None:
        super().__init__(config)
        self._outside = outside
        self._listening = listening
        self._door: Door | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve whoever comes."""
        await super().startup(sockets=[])
        self._listening.setblocking(False)
        outside = self._outside
        self._door = Door(
            *(Arrivals(self, outside), self._protocol, [self._listening], self.config.ssl),
            *(_introductions(outside), SPEAKS_TLS),
        )

    def _protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nobody in any more, and end."""
        if self._door is not None:
            self._door.close()
        await super().shutdown(sockets=[])


def _introductions(outside: Outside) -> Introductions | None:
    """What is believed of connections that another node has passed on; None where there are no others."""
    if not outside.secret:
        return None
    from headwater.cluster.preamble import Preambles

    return Preambles(outside.secret, "http", outside.node, SystemClock())
