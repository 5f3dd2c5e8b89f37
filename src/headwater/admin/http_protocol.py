"""An HTTP connection: at most `http_connections_max` of them, and none that idles without a request.

One address has `http_connections_per_address_max` of them at most, WebSockets included. A connection on which no
request comes, or whose request's head does not end, is closed; uvicorn would wait forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwater.admin.api.problem import MEDIA_TYPE, answer
from headwater.server.accepting import TLS_HANDSHAKE, Peer
from headwater.server.network import network_of
from headwater.serving.outside import Outside

HEAD_S = 10.0
"""How long the head of a request may take."""


def _refusal(setting: str) -> bytes:
    return _last(503, f"as many are connected as may be ({setting}); come back in a moment", "Retry-After: 1\r\n")


def _last(status: int, detail: str, headers: str = "") -> bytes:
    """An answer after which the connection is closed."""
    body = bytes(answer(status, detail).body)
    phrase = HTTPStatus(status).phrase
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n{headers}"
    return head.encode() + b"Connection: close\r\n\r\n" + body


REFUSAL = _refusal("http_connections_max")
SHARE_REFUSAL = _refusal("http_connections_per_address_max")
SPEAKS_TLS = _last(400, "this port speaks TLS: begin the address with https://")
NO_HTTP = _last(400, "this port speaks HTTP, and what came is none; clients connect at port 7411 if no other was said")
SPEAKS_NO_TLS = _last(400, "this port speaks no TLS: begin the address with http://")


class HttpProtocol(H11Protocol):
    """HTTP over one connection."""

    head_s = HEAD_S
    per_address_max = 500
    stated: Peer | None = None
    """Where another node that passes the connection on says that it comes from."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None
        self._has_begun = False

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
        if not self._has_begun:
            self._has_begun = True
            if not data[:3].isalpha():  # no method begins so; who speaks something else may be waiting for an answer
                self._forget_head()
                self._refuse(SPEAKS_NO_TLS if data.startswith(TLS_HANDSHAKE) else NO_HTTP)
                return
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
