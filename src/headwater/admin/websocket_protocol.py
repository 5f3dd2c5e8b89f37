"""A WebSocket, of which little is read as long as nobody knows the MQTT client behind it.

What a WebSocket holds of a message that has not ended is as long as a message may be: as much as a hello, until the
tunnel says that the server has let the client in (`OPEN` in the scope's extensions).
"""

from __future__ import annotations

from asyncio import BaseTransport
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from headwater.server.accepting import Peer
from headwater.serving.outside import Outside

TUNNEL_PATH = "/mqtt"
OPEN = "headwater.open"
READ_BYTES = "max_size"
"""What asyncio calls how much it reads at once from a connection without TLS."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket."""

    hello_bytes_max = 16 * 1024
    stated: Peer | None = None
    """Where another node that passes the connection on says that it comes from."""

    def connection_made(self, transport: BaseTransport) -> None:
        """It is a WebSocket from now on."""
        super().connection_made(transport)
        if self.stated is not None:
            self.client = self.stated

    def handle_connect(self, event: Request) -> None:
        """Somebody asks for one."""
        super().handle_connect(event)
        if event.path.partition("?")[0] != TUNNEL_PATH or self.conn.max_message_size is None:
            return
        message_bytes, read_bytes = self.conn.max_message_size, getattr(self.transport, READ_BYTES, None)
        self.conn.max_message_size = self.hello_bytes_max
        if read_bytes is not None:
            setattr(self.transport, READ_BYTES, self.hello_bytes_max)

        def lift() -> None:
            self.conn.max_message_size = message_bytes
            if read_bytes is not None:
                setattr(self.transport, READ_BYTES, read_bytes)

        extensions: dict[str, Any] = self.scope["extensions"]
        extensions[OPEN] = lift


def websocket_of(outside: Outside) -> type[WebSocketProtocol]:
    """WebSockets as the settings limit them."""
    return type("OutsideWebSocket", (WebSocketProtocol,), {"hello_bytes_max": outside.hello_bytes_max})
