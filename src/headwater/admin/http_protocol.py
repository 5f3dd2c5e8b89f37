"""The line to somebody who asks over HTTP: at most `http_connections_max` of them, and none that holds one for nothing.

One address has `http_connections_per_address_max` of them at most, WebSockets included. A connection on which no
request comes, or whose request's head does not end, is closed; uvicorn would wait forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwater.admin.api.problem import MEDIA_TYPE, answer
from headwater.server.accepting import Peer
from headwater.server.network import network_of
from headwater.serving.outside import Outside

HEAD_S = 10.0
"""How long the head of a request may take."""


def _refusal(setting: str) -> bytes:
    full = answer(503, f"as many are connected as may be ({setting}); come back in a moment")
    head = f"HTTP/1.1 503 \r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(full.body)}\r\n"
    return head.encode() + b"Retry-After: 1\r\nConnection: close\r\n\r\n" + bytes(full.body)


REFUSAL = _refusal("http_connections_max")
SHARE_REFUSAL = _refusal("http_connections_per_address_max")


class HttpProtocol(H11Protocol):
    """HTTP over one connection."""

    head_s = HEAD_S
    per_address_max = 500
    stated: Peer | None = None
    """Where another node that passes the connection on says that it comes from."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.stated is not None:
            self.client = self.stated
            make: Any = self.ws_protocol_class
            self.ws_protocol_class = partial(_introduced, make, self.stated)  # type: ignore[assignment]  # it is called
        if self._share() > self.per_address_max:
            self._refuse(SHARE_REFUSAL)
        elif self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._refuse(REFUSAL)
        else:
            self._wait_for_head()

    def _refuse(self, refusal: bytes) -> None:
        self.connections.discard(self)  # it is none, though it may take a moment to go
        self.transport.write(refusal)
        self.transport.close()

    def _share(self) -> int:
        """How many connections there are from where this one comes from; WebSockets are among them."""
        network = network_of_protocol(self)
        return sum(network_of_protocol(one) == network for one in self.connections)

    def data_received(self, data: bytes) -> None:
        """Some of a request, or more than one."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._forget_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self.head_s, self.transport.close)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def _introduced(make: Callable[..., Any], stated: Peer, **given: Any) -> Any:
    made = make(**given)
    made.stated = stated
    return made


def network_of_protocol(protocol: Any) -> str:
    """Whom a connection counts with."""
    return network_of(protocol.client[0]) if protocol.client else ""


def http_of(outside: Outside) -> type[HttpProtocol]:
    """HTTP as the settings limit it."""
    return type("OutsideHttp", (HttpProtocol,), {"per_address_max": outside.connections_per_address_max})
