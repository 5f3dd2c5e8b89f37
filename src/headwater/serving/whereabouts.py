"""The whereabouts of a server, in the folder that it owns: its addresses, and a socket for the folder's user.

Commands that meet a folder with an owner find the server there, and go through it as its administrator: whoever may
read and write the folder may do all that one may, whatever `auth` is. Promises: nobody else comes in by that socket; a
server that cannot have one serves all the same.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from headwater.errors import HeadwaterError
from headwater.native.protocol import NativeProtocol
from headwater.server.log import Log
from headwater.server.server import Server
from headwater.server.tls import own_authority
from headwater.store import unix_socket
from headwater.store.files import DiskFiles
from headwater.store.owner import Owner, leave, socket_of, withdraw

log = Log("headwater.server.whereabouts")


class Whereabouts:
    """Says where a server is, in its folder."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._files = DiskFiles()
        self._folder = server.core.folder
        self._owner = Owner(pid=os.getpid(), ca=own_authority(server.serving.tls_certificate))
        self._socket: asyncio.Server | None = None

    async def begin(self) -> None:
        """Let the folder's user in."""
        path = socket_of(self._folder)
        try:
            self._socket = await self._server.open_door(self._server.extension(NativeProtocol).inner_connection, path)
        except (OSError, HeadwaterError) as error:
            log.warning("no-owner-socket", path=path, reason=error)
            return
        self._leave()

    def note(self, url: str) -> None:
        """It is found there, too."""
        if url.startswith("mqtt"):
            self._owner = msgspec.structs.replace(self._owner, mqtt=(*self._owner.mqtt, url))
        else:
            what = "http" if url.startswith("http") else "url"
            self._owner = msgspec.structs.replace(self._owner, **{what: url})
        if self._socket is not None:
            self._leave()

    def _leave(self) -> None:
        try:
            leave(self._files, self._folder, self._owner)
        except OSError as error:
            log.warning("no-owner-address", reason=error)

    def end(self) -> None:
        """Let nobody in any more; those who are here stay until the server ends."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        try:
            withdraw(self._files, self._folder)
            unix_socket.remove(socket_of(self._folder))
        except (OSError, HeadwaterError) as error:
            log.warning("owner-address-left", reason=error)
