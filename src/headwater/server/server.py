"""The server: a core behind ports.

It puts the parts together, listens, and ends them in good order. Everything below runs on one event loop; commits and
what blocks run in threads beside it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

from headwater.access.name import EVERYONE
from headwater.config import Serving
from headwater.core import Core
from headwater.errors import Closed, Malformed
from headwater.server import accepting
from headwater.server.answers import Answers
from headwater.server.attention import Attention
from headwater.server.bearers import Bearers
from headwater.server.bell import Wakes
from headwater.server.broker import Broker
from headwater.server.connection import Connection, Elsewhere
from headwater.server.entry import Entry
from headwater.server.exposure import check_exposure
from headwater.server.extension import Extension
from headwater.server.issuer import Issuer, check_keys
from headwater.server.listener import Listener
from headwater.server.log import Log
from headwater.server.outbox import Outbox
from headwater.server.proofs import Proofs
from headwater.server.rechecks import Rechecks
from headwater.server.sessions import Sessions
from headwater.server.tls import Tls, open_tls
from headwater.server.watch.cluster import ClusterView
from headwater.server.watch.figures import Collector
from headwater.server.watch.health import Health
from headwater.server.watch.history import BROKER_S
from headwater.server.watch.overview import Overview
from headwater.server.watch.pulse import Pulse
from headwater.server.watch.recurring import Recurring
from headwater.server.watch.sys_topics import Telling
from headwater.server.workers import Workers
from headwater.settings import Loaded, given
from headwater.store import unix_socket

WORKERS = 8
"""Threads for what blocks: subscribing, listing, purging."""
WORKERS_APART = 2
"""Of them, how many are never busy for one client alone."""
READERS = 2
"""Threads that read the log from disk for those who are behind, a slice for one after another."""

E = TypeVar("E", bound=Extension)

log = Log("headwater.server")


class Server:
    """A core that is served."""

    def __init__(
        self,
        core: Core,
        serving: Serving | None,
        settings: Loaded | None,
        extensions: Sequence[Callable[[Server], Extension]],
    ) -> None:
        """`settings` say where the server's settings came from, for those who ask; `extensions` make the protocols that
        it speaks, and whatever else takes part."""
        self.core = core
        self.serving = serving or Serving()
        self._settings = settings or given(core.config, self.serving, core.folder)
        check_exposure(self.serving)
        check_keys(self.serving)
        self.executor = Workers("headwater-worker", WORKERS, WORKERS_APART)
        self.readers = Workers("headwater-reader", READERS)
        self._doors: list[accepting.Door] = []
        self._tls: Tls | None = open_tls(self.serving)
        self._extensions = extensions
        self.cluster: ClusterView | None = None
        """The node that it is; set before it starts."""
        self.elsewhere: Elsewhere | None = None
        """Where clients are to go on once it drains, if another node is to lead."""
        self.port = 0
        """Where its protocol of its own listens."""
        self.url = ""
        """How clients find it."""
        self._is_stopping = False

    async def start(self) -> None:
        """Listen; returns once clients can connect."""
        loop = self.loop = asyncio.get_running_loop()
        core, serving = self.core, self.serving
        self.broker = Broker(core, serving)
        self.proofs = Proofs(loop, self.broker.guesses, serving)
        self.issuer = Issuer(loop, serving, core.acl, core.clock) if self.broker.methods.takes_tokens else None
        if self.issuer is not None:
            self.broker.bearers = Bearers(loop, self.broker, self.issuer)
        self.outbox = Outbox()
        self.wakes = Wakes(loop, core.dispatcher.listeners.fan_outs, self.outbox, core.clock)
        self.entry = Entry(loop, core.checks, core.roots, core.dispatcher.listeners, self.wakes, core.clock)
        self.answers = Answers(loop, self.broker)
        self.sessions = Sessions(
            *(loop, self.executor, self.readers, self.broker),
            *(self.entry, self.wakes, self.answers, serving),
        )
        self.broker.sessions = self.sessions
        self.attention = Attention(loop, core.clock, serving.attention_us)
        self.listener = Listener(loop, self.broker, core.config, serving, self.wakes, self.outbox, self.attention)
        self.rechecks = self.broker.rechecks = Rechecks(loop, self.broker)
        self.broker.acl.on_change = self.rechecks.on_rules
        self.broker.clients.on_change = self.rechecks.on_clients
        core.events.user_of = self._user_of
        core.dispatcher.on_retry = self._tell_of_retry
        core.dispatcher.on_deleted = lambda: self.rechecks.on_rules((EVERYONE,))
        self.pulse = Pulse(loop)
        collector = Collector(core, serving, self.listener, self.sessions, self.pulse)
        health = Health(core, serving, self.pulse)
        self.broker.overview = Overview(self.broker, collector, health, self._settings, self.cluster)
        self.telling = Telling(core, collector.figures)
        self.history = self.broker.overview.history
        self._recurring = [
            Recurring(loop, self.executor, self.telling.tell, serving.sys_every_s, "figures-untold"),
            Recurring(loop, self.executor, self.history.sample, BROKER_S, "history-unsampled"),
        ]
        self.broker.extensions = [make(self) for make in self._extensions]
        if not core.is_read_only:  # beside the owner, sessions that are stored are the owner's
            self.sessions.recover()
        if self.issuer is not None:
            self.issuer.start()
        try:
            for extension in self.broker.extensions:
                await extension.start()
        except OSError as error:
            self._watch_no_more()
            self.listener.close()
            self.proofs.close()
            if self.issuer is not None:
                await self.issuer.close()
            self.sessions.side_pools.close()
            self.executor.shutdown(wait=False)
            self.readers.shutdown(wait=False)
            where = f"{serving.host}:{serving.port}"
            raise Malformed(f"cannot listen on {where}: {error.strerror or error}; choose another port") from error

    def extension(self, kind: type[E]) -> E:
        """The one of this kind."""
        return next(one for one in self.broker.extensions if isinstance(one, kind))

    # Listening

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """What those that speak TLS listen with; None without a certificate."""
        return self._tls.context if self._tls is not None else None

    async def listen(
        self,
        name: str,
        make: Callable[[], Connection],
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        to_plain: bytes = b"",
    ) -> int:
        """Take clients in at a door of this name, until the server drains; answers the port.

        Where there is a `context`, `to_plain` is said to a client that speaks no TLS."""
        introductions = self.cluster.introductions(name) if self.cluster is not None else None
        door = await accepting.listen(self.listener, make, host, port, context, introductions, to_plain)
        self._doors.append(door)
        return door.port

    async def listen_unix(self, make: Callable[[], Connection], path: str) -> None:
        """The same on a Unix socket."""
        self._doors.append(await accepting.listen_unix(self.listener, make, path))

    async def open_door(self, make: Callable[[], Connection], path: str) -> asyncio.Server:
        """A Unix socket for processes of this user, who are let in however many others there are; whoever opens it
        closes it."""
        made = unix_socket.make(path)
        try:
            return await self.loop.create_unix_server(make, sock=made, backlog=accepting.BACKLOG)
        except BaseException:
            made.close()
            raise

    def reload(self) -> bool:
        """Read certificates, clients, rules and the issuer's keys again; False if the certificates are bad, and the old
        ones stay."""
        self.broker.clients.reload()
        self.broker.acl.reload()
        self.broker.tokens.reload()
        self.rechecks.on_rules((EVERYONE,))
        if self.issuer is not None:
            self.issuer.refresh()
        return self._tls is None or self._tls.reload()

    async def drain(self) -> None:
        """Take nobody in any more, finish what is under way, and tell the clients."""
        self._is_stopping = True
        for door in self._doors:
            door.close()
        for connection in self.listener.connections:
            connection.hold()
        finished = asyncio.Event()
        self.entry.when_empty(finished.set)
        try:
            async with asyncio.timeout(self.serving.drain_s):
                await finished.wait()
        except TimeoutError:
            log.warning("drain-timeout", seconds=self.serving.drain_s)
        said, elsewhere = Closed("the server is stopping"), self.elsewhere
        if elsewhere is not None:
            said = Closed("another node is to lead; go on there")
        self.listener.drain(lambda connection: connection.say_goodbye(said, True, elsewhere))
        await self._emptied()

    async def _emptied(self) -> None:
        """Wait for what was written to reach the clients, within the time there is."""
        try:
            async with asyncio.timeout(self.serving.drain_s):
                await self.listener.emptied()
        except TimeoutError:
            pass

    async def stop(self) -> None:
        """End; what is stored stays, sessions included."""
        if not self._is_stopping:
            await self.drain()
        self.core.dispatcher.listeners.fan_outs.serve(None)
        self.broker.acl.on_change = self.broker.clients.on_change = None
        self.rechecks.close()
        self.sessions.is_closing = True
        for extension in reversed(self.broker.extensions):
            await extension.close()
        self._watch_no_more()
        await self.sessions.close()
        self.listener.close()
        await self._emptied()  # those that came in the last moment, too
        self.proofs.close()
        if self.issuer is not None:
            await self.issuer.close()
        await self.loop.run_in_executor(None, self.sessions.side_pools.close)
        await self.loop.run_in_executor(None, self.executor.shutdown)
        await self.loop.run_in_executor(None, self.readers.shutdown)
        await self.loop.run_in_executor(None, self.history.close)

    def _watch_no_more(self) -> None:
        for one in self._recurring:
            one.stop()
        self.pulse.stop()

    def _tell_of_retry(self, event: str, subscription: str, root: str, offsets: Sequence[int], consumer: str) -> None:
        """A line in the log about messages that timed out, or are handed out again."""
        level = logging.INFO if event == "timed-out" else logging.DEBUG
        fields = {"subscription": subscription, "root": root, "first": min(offsets), "messages": len(offsets)}
        log.at_will(level, event, **fields, consumer=consumer or "-", user=self._user_of(consumer))

    def _user_of(self, consumer: str) -> str:
        """Whose session it is, if it is one."""
        session = self.sessions.get(consumer)
        return "-" if session is None else session.row.user or "-"
