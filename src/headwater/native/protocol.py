"""The native protocol: clients that speak it are greeted, and have sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import Malformed
from headwater.native.connection import NativeConnection
from headwater.native.greeting import Greeter
from headwater.native.session import NativeSession
from headwater.server.extension import Extension
from headwater.store import unix_socket
from headwater.wire.requests import pack_error

if TYPE_CHECKING:
    from headwater.server.server import Server
    from headwater.server.session_row import SessionRow

SPEAKS_TLS = Malformed("this port speaks TLS: begin the address with headwaters://")


class NativeProtocol(Extension):
    """Serves clients on the server's own port."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._greeter = Greeter(server.listener, server.broker, server.proofs)

    def session_of(self, row: SessionRow) -> NativeSession | None:
        return NativeSession(self.server.sessions, row) if row.client is None else None

    def connection(self) -> NativeConnection:
        """One that comes in by a public door."""
        return NativeConnection(self.server.listener, self._greeter)

    def inner_connection(self) -> NativeConnection:
        """One that comes in by the door that only the server's own processes know."""
        return NativeConnection(self.server.listener, self._greeter, is_inner=True)

    def sidecar_connection(self) -> NativeConnection:
        """That of the process that serves HTTP, by a door that only it knows."""
        connection = self.inner_connection()
        connection.is_own = True
        return connection

    async def start(self) -> None:
        server, serving = self.server, self.server.serving
        server.port = await server.listen(
            "native", self.connection, serving.host, serving.port, server.tls_context, pack_error(0, SPEAKS_TLS)
        )
        host = f"[{serving.host}]" if ":" in serving.host else serving.host
        server.url = f"{'headwater' if server.tls_context is None else 'headwaters'}://{host}:{server.port}"
        if serving.unix_path:
            self._remove_socket()
            await server.listen_unix(self.connection, serving.unix_path)

    async def close(self) -> None:
        self._remove_socket()

    def _remove_socket(self) -> None:
        if self.server.serving.unix_path:
            unix_socket.remove(self.server.serving.unix_path)
