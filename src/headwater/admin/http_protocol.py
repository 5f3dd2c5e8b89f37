"""The line to somebody who asks over HTTP: at most `http_connections_max` of them, and none that holds one for nothing.

A connection on which no request comes, or whose request's head does not end, is closed; uvicorn would wait forever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwater.admin.api.problem import MEDIA_TYPE, answer

HEAD_S = 10.0
"""How long the head of a request may take."""


def _refusal() -> bytes:
    full = answer(503, "as many are connected as may be (http_connections_max); come back in a moment")
    head = f"HTTP/1.1 503 \r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(full.body)}\r\n"
    return head.encode() + b"Retry-After: 1\r\nConnection: close\r\n\r\n" + bytes(full.body)


REFUSAL = _refusal()


class HttpProtocol(H11Protocol):
    """HTTP over one connection."""

    head_s = HEAD_S

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.write(REFUSAL)
            transport.close()
        else:
            self._wait_for_head()

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
