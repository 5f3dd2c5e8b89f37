"""Accepting: who knocks is let in, some at a time, and nobody while there is no room.

A connection takes a descriptor from the moment it is accepted, and files need descriptors too. So the server looks
before it accepts: what waits in the system's backlog costs it nothing. Promises: no more descriptors are taken than
`connections_max` and a few to be told that there are too many; TLS that is not through counts like a connection; a
crowd that comes at once is let in over several turns of the loop, between which everybody else is served; whoever
speaks no TLS where it is spoken is told so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from headwater.errors import HeadwaterError
from headwater.server.log import Log
from headwater.server.network import network_of
from headwater.server.peek import peek
from headwater.store.unix_socket import within_reach

BACKLOG = 4096
"""Connections that the system holds until they are accepted."""
ACCEPTED_AT_ONCE_MAX = 8
"""In one turn of the loop."""
STARVED_S = 0.1
"""How long nobody is accepted once the system has no more descriptors, or no memory, for one more."""
STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
TLS_HANDSHAKE = b"\x16"
"""What the first record of every client with TLS begins with."""
NO_TLS = "this port speaks TLS: addresses begin with headwaters://, mqtts:// or https://"
PLAIN_BYTES_MAX = 64 * 1024
"""As much is read of a client without TLS before it is told: what is left unread would take the answer with it."""

log = Log("headwater.server.accepting")


Make = Callable[[], asyncio.BaseProtocol]
Peer = tuple[str, int]
"""An address and a port."""
TLS_WEIGHT = 2
"""As how many a connection with TLS counts among those that nobody knows yet: it takes 50 to 100 KiB of buffers and
keys before anybody knows who it is, and all of them are to fit into 64 MiB."""


class Introductions(Protocol):
    """What is believed about connections that others pass on."""

    async def read(self, loop: asyncio.AbstractEventLoop, made: socket.socket) -> Peer | None:
        """Whom a connection that begins is of; None if it is of whoever is at its other end. HeadwaterError: refuse it;
        OSError: it went."""


class Keeper(Protocol):
    """Whoever keeps those who come: knows whether there is room, and for whom."""

    loop: asyncio.AbstractEventLoop

    @property
    def handshake_s(self) -> float:
        """How long TLS may take, and to say whose a connection is."""

    @property
    def has_room(self) -> bool:
        """Whether one more may be accepted, if only to be told that there are too many."""

    def when_room(self, call: Callable[[], None]) -> None:
        """Have something called as soon as one more may be accepted."""

    def on_arrival(self, network: str, weight: int) -> bool:
        """Somebody is accepted, and counts as so many until connected: 0 if that is at once. False if there is no
        place for one that has something to do before."""

    def on_arrived(self, network: str, weight: int) -> None:
        """Somebody is connected, or has gone before that."""


class Door:
    """Sockets that are listened on."""

    def __init__(
        self,
        keeper: Keeper,
        make: Make,
        sockets: list[socket.socket],
        context: ssl.SSLContext | None = None,
        introductions: Introductions | None = None,
        to_plain: bytes = b"",
    ) -> None:
        """`to_plain` is said to a client that speaks no TLS, where there is a `context`, before it is closed."""
        self._keeper = keeper
        self._loop = keeper.loop
        self._make = make
        self._sockets = sockets
        self._context = context
        self._introductions = introductions
        self._to_plain = to_plain
        self._coming: dict[asyncio.Task[None], list[socket.socket]] = {}
        """Those on the way in, and the socket of each whose task has not begun."""
        self._is_open = False
        self._is_closed = False
        self.open()

    @property
    def port(self) -> int:
        """Of the first of its sockets."""
        found: int = self._sockets[0].getsockname()[1]
        return found

    def open(self) -> None:
        """Accept whoever comes, as far as there is room."""
        if not self._is_open and not self._is_closed:
            self._is_open = True
            for one in self._sockets:
                self._loop.add_reader(one, self._on_knock, one)

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            for one in self._sockets:
                self._loop.remove_reader(one)

    def _on_knock(self, door: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            if not self._keeper.has_room:
                self._shut()
                self._keeper.when_room(self.open)
                return
            try:
                made, peer = door.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in STARVED:
                    raise
                log.warning("not-accepted", reason=error.strerror or error, advice="raise the limit of open files")
                self._shut()
                self._loop.call_later(STARVED_S, self.open)
                return
            self._take(made, peer)

    def _take(self, made: socket.socket, peer: object) -> None:
        network = network_of(str(peer[0])) if isinstance(peer, tuple) and peer else "unix"
        weight = TLS_WEIGHT if self._context is not None else int(self._introductions is not None)
        if not self._keeper.on_arrival(network, weight):
            made.close()
            return
        made.setblocking(False)
        if made.family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        unclaimed = [made]
        task = self._loop.create_task(self._connect(unclaimed))
        self._coming[task] = unclaimed

        def on_end(_: asyncio.Task[None]) -> None:
            del self._coming[task]
            self._keeper.on_arrived(network, weight)
            for one in unclaimed:  # it was cancelled before its first step
                one.close()

        task.add_done_callback(on_end)

    async def _connect(self, unclaimed: list[socket.socket]) -> None:
        make = self._make
        if self._introductions is not None:
            try:
                async with asyncio.timeout(self._keeper.handshake_s):
                    stated = await self._introductions.read(self._loop, unclaimed[0])
            except OSError:  # it went, or said nothing in time
                return
            except HeadwaterError as error:
                log.at_will(logging.WARNING, "not-believed", address=_from(unclaimed[0]), reason=error)
                return
            if stated is not None:
                make = partial(introduced, self._make, stated)
        if self._context is not None and not await self._speaks_tls(unclaimed[0]):
            return
        made = unclaimed.pop()
        with suppress(OSError):  # it went, or spoke no TLS, or not in time
            await self._loop.connect_accepted_socket(
                make,
                made,
                ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else self._keeper.handshake_s,
            )

    async def _speaks_tls(self, made: socket.socket) -> bool:
        """Whether a client begins with TLS; one that begins with something else is told, one that went is not."""
        try:
            async with asyncio.timeout(self._keeper.handshake_s):
                first = await peek(self._loop, made, 1)
        except OSError:
            return False
        if first == TLS_HANDSHAKE:
            return True
        log.at_will(logging.INFO, "no-tls", address=_from(made), advice=NO_TLS)
        with suppress(OSError):
            made.recv(PLAIN_BYTES_MAX)
            made.send(self._to_plain)
            made.shutdown(socket.SHUT_WR)
        return False

    def close(self) -> None:
        """Listen no more; those who are not through yet are let go."""
        self._shut()
        self._is_closed = True
        for one in self._sockets:
            one.close()
        for task, unclaimed in tuple(self._coming.items()):
            # One without TLS that has begun is connected by the next turn, and is the keeper's; if its task were
            # cancelled in between, uvloop would lose the socket, and nobody would hear of its end.
            if unclaimed or self._context is not None:
                task.cancel()


def introduced(make: Make, stated: Peer) -> asyncio.BaseProtocol:
    """A protocol for a connection of somebody else than is at its other end."""
    made = make()
    made.stated = stated  # type: ignore[attr-defined]  # all that listen where nodes pass connections on have it
    return made


def _from(made: socket.socket) -> str:
    try:
        return str(made.getpeername()[0])
    except OSError:
        return "-"


async def listen(
    keeper: Keeper,
    make: Make,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    introductions: Introductions | None = None,
    to_plain: bytes = b"",
) -> Door:
    """Listen on every address of a host; OSError if that cannot be."""
    found = await keeper.loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    unknown: OSError | None = None
    try:
        for family, kind, number, _, place in dict.fromkeys(found):
            try:
                made = socket.socket(family, kind, number)
            except OSError as error:
                unknown = error  # the machine knows the address, and does not speak its family
                continue
            sockets.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(place)
        if not sockets:
            raise unknown or OSError(errno.EADDRNOTAVAIL, "it has no address")
        return _open(keeper, make, sockets, context, introductions, to_plain)
    except OSError:
        for one in sockets:
            one.close()
        raise


async def listen_unix(keeper: Keeper, make: Make, path: str) -> Door:
    """Listen on a Unix socket; OSError if that cannot be."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with within_reach(path) as near:
            made.bind(near)
        return _open(keeper, make, [made], None)
    except OSError:
        made.close()
        raise


def _open(
    keeper: Keeper,
    make: Make,
    sockets: list[socket.socket],
    context: ssl.SSLContext | None,
    introductions: Introductions | None = None,
    to_plain: bytes = b"",
) -> Door:
    for one in sockets:
        one.setblocking(False)
        one.listen(BACKLOG)
    return Door(keeper, make, sockets, context, introductions, to_plain)
