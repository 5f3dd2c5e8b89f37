"""All channels of a server: started and ended as their rows change, and kept in touch with their receivers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from typing import Any, cast

from headwater.access.destination import Destinations
from headwater.access.name import EVERYONE
from headwater.channels.channel import Channel
from headwater.channels.registry import STOPPED, ChannelRegistry, Status
from headwater.channels.row import ChannelRow
from headwater.channels.tcp import Greeting, TcpChannel
from headwater.delivery.options import CHANNEL_PREFIX
from headwater.errors import HeadwaterError, NotAllowed, NotFound, QuotaExceeded, SecretMissing
from headwater.native.connection import NativeConnection
from headwater.server.connection import Connection
from headwater.server.extension import Extension
from headwater.server.listener import READ_BYTES
from headwater.server.log import Log
from headwater.server.server import Server
from headwater.server.session import Session
from headwater.server.workers import Workers
from headwater.store.keys import is_sealed
from headwater.wire import administration as wire
from headwater.wire.administration import ChannelTrial
from headwater.wire.requests import SubscribeTo

TRIALS_MAX = 16
"""Trials of channels at once; one more: QuotaExceeded (429)."""
SWEEP_S = 1.0
"""How often it is looked whether receivers are still there."""

BEGINNING = Status("connecting", "", "", 0)

log = Log("headwater.server")


class ChannelRunner(Extension):
    """Every channel of a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.loop = server.loop
        self.executor: Workers = server.executor
        self.readers: Workers = server.readers
        self.resolvers: Executor = server.sessions.side_pools.names.pool
        """Threads that look up names."""
        self.broker = server.broker
        self.wakes = server.wakes
        self.outbox = server.outbox
        self.attention = server.attention
        self.answers = server.answers
        self.slices = server.sessions.slices
        self.serving = server.serving
        self.counts = server.core.roots.counts
        self.registry = server.core.registry(ChannelRegistry)
        self.registry.channels_max = self.serving.channels_max
        self.registry.channels_per_client_max = self.serving.channels_per_client_max
        self.registry.destinations = Destinations(self.serving.channel_hosts)
        self.answers.offer("channels", self.registry)
        self.answers.offer("pushing", self, is_told=True)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.frame_bytes_max = server.listener.limits.frame_bytes_max
        self._channels: dict[str, Channel] = {}
        self._connections: dict[Connection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._trials = 0

    # Coming and going

    async def start(self) -> None:
        """Push what there is to push, and hear of changes from now on."""
        self.registry.status = self.status
        self.registry.trial = self.try_out
        self.registry.on_change = self._from_any_thread
        for row in self.registry.rows():
            self._renew(row.id)
        self.recheck((EVERYONE,))
        self._sweep()

    def _from_any_thread(self, id: str) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._renew, id)

    def _renew(self, id: str) -> None:
        """A channel was made, changed or removed."""
        row, channel = self.registry.get(id), self._channels.get(id)
        if channel is not None and channel.row == row:
            return
        if row is None:
            if channel is not None:
                del self._channels[id]
                channel.end()
        elif channel is None:
            self._begin(row, 0)
        else:
            channel.end()
            self._begin(row, channel.delivered)

    def _replace(self, channel: Channel) -> None:
        channel.end()
        self._begin(channel.row, channel.delivered)

    def _begin(self, row: ChannelRow, delivered: int) -> None:
        if is_sealed(row.secret):
            self._channels.pop(row.id, None)  # until its secret is given again
            return
        channel = self._channels[row.id] = self._make(row, delivered)
        channel.begin()

    def _make(self, row: ChannelRow, delivered: int) -> Channel:
        if row.kind == "tcp":
            return TcpChannel(self, row, delivered)
        from headwater.channels.http import HttpChannel  # h11 is loaded by those who need it

        return HttpChannel(self, row, delivered)

    async def close(self) -> None:
        """The server ends: nothing is pushed any more, and channels stay as they are stored."""
        self.registry.on_change = None
        self.registry.trial = None
        self.registry.status = lambda _: STOPPED
        if self._sweeper is not None:
            self._sweeper.cancel()
        ending, self._channels = list(self._channels.values()), {}
        for channel in ending:
            channel.end()
        await asyncio.gather(*(channel.left for channel in ending))
        for connection in tuple(self._connections):
            connection.abort()

    # Requests and rights

    # What operations of the table ask, besides what the registry answers

    def add_channels(self, session: Session, request: wire.AddChannels) -> Callable[[], Any]:
        """All of these channels, or none."""
        return lambda: self.registry.add_many(request.channels, check=request.check)

    def subscribe_to(self, session: Session, request: SubscribeTo) -> Callable[[], Any]:
        """A channel of a client's own."""
        broker, user = self.broker, session.row.user
        broker.check_channel(user, request.filter)
        spec = wire.ChannelSpec(
            id=request.id,
            name=request.name or user,
            filter=request.filter,
            destination_host=request.destination_host,
            destination_port=request.destination_port,
            start=request.start,
            options=request.options,
        )
        client = broker.clients.get(user)
        return lambda: self.registry.subscribe_to(spec, user, client.id if client is not None else "")

    def work_to_remove(self, session: Session, name: str) -> Callable[[], Any] | None:
        """What removes a client's own channel, by its id or its subscription's; None if no channel is meant."""
        if not name.startswith(CHANNEL_PREFIX) and self.broker.core.dispatcher.row(name) is not None:
            return None
        row = self.registry.get(name.removeprefix(CHANNEL_PREFIX))
        if row is None:
            return None
        if row.owner != session.row.user:
            raise NotAllowed(
                f'channel "{row.id}" is not one of client "{session.row.user}"; an administrator may remove it with: '
                f"headwater channels remove {row.id}"
            )
        return lambda: self.registry.remove(row.id, force=True)

    def is_owner(self, user: str, subscription: str) -> bool:
        row = self.registry.get(subscription.removeprefix(CHANNEL_PREFIX))
        return row is not None and row.owner == user

    def check_owner(self, row: ChannelRow) -> None:
        """NotAllowed (403) if the client that a channel is of may not have it any more."""
        if row.owner:
            self.broker.check_subscribe(row.owner, "", row.filter)
            self.broker.check_channel(row.owner, row.filter)

    def recheck(self, users: Collection[str]) -> None:
        """Rules or clients have changed: channels of clients that are gone go too, those without a right wait."""
        is_for_all = EVERYONE in users
        for channel in tuple(self._channels.values()):
            row = channel.row
            if not row.owner or not (is_for_all or row.owner in users):
                continue
            if self._is_gone(row):
                self.executor.submit(self._remove, row)
                continue
            try:
                self.check_owner(row)
                is_denied = False
            except NotAllowed:
                is_denied = True
            if is_denied != channel.is_denied:
                self._replace(channel)

    def _is_gone(self, row: ChannelRow) -> bool:
        """Whether the client that a channel is of was removed from the registry."""
        client = self.broker.clients.get(row.owner) if row.owner_id else None
        return bool(row.owner_id) and (client is None or client.id != row.owner_id)

    def _remove(self, row: ChannelRow) -> None:
        try:
            self.registry.remove(row.id, force=True)
        except NotFound:
            return
        log.info("channel-removed", channel=row.id, owner=row.owner, reason="its client was removed")

    # Looking

    def status(self, id: str) -> Status:
        """What a channel is doing; from any thread."""
        channel = self._channels.get(id)
        if channel is not None:
            return channel.status
        row = self.registry.get(id)
        try:
            if row is not None:
                self.registry.check_secret(row)
        except SecretMissing as error:
            return Status("failing", str(error.args[0]), "", 0)
        return BEGINNING

    def try_channel(self, session: Session, request: wire.TryChannel) -> Callable[[], Future[ChannelTrial]]:
        """Reach a channel's destination: no thread waits for it."""
        return lambda: asyncio.run_coroutine_threadsafe(self._try_out(request.id), self.loop)

    def try_out(self, id: str) -> ChannelTrial:
        """Reach a channel's destination; from any thread but the loop's."""
        return asyncio.run_coroutine_threadsafe(self._try_out(id), self.loop).result()

    async def _try_out(self, id: str) -> ChannelTrial:
        if self._trials >= TRIALS_MAX:
            raise QuotaExceeded(f"{self._trials} trials of channels are under way; try again when some are done")
        self._trials += 1
        try:
            return await self._tried(id)
        finally:
            self._trials -= 1

    async def _tried(self, id: str) -> ChannelTrial:
        channel = self._channels.get(id)
        if channel is None:
            if (row := self.registry.get(id)) is not None:
                self.registry.check_secret(row)
            raise NotFound(f'there is no channel "{id}"; headwater channels list shows those that are')
        clock = self.broker.clock
        begun_us = clock.monotonic_us()
        try:
            await channel.find()
            ok, detail = True, await channel.try_out()
        except HeadwaterError as error:
            ok, detail = False, str(error.args[0])
        return ChannelTrial(ok=ok, detail=detail, took_s=(clock.monotonic_us() - begun_us) / 1e6)

    # Connections to receivers

    def on_connection(self, connection: Connection) -> None:
        self._connections[connection] = None

    def on_lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        _greeting(connection).fail(None)
        if connection.session is not None:
            connection.session.on_lost(connection)

    def on_refused(self, connection: Connection, error: HeadwaterError) -> None:
        """It is closed for what the receiver did."""
        log.at_will(logging.INFO, "receiver-refused", error=str(error))
        _greeting(connection).on_refused(error)

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        now_s = self.loop.time()
        for connection in tuple(self._connections):
            connection.sweep(now_s)


def _greeting(connection: Connection) -> Greeting:
    greeting = cast(NativeConnection, connection).greeting
    assert isinstance(greeting, Greeting)
    return greeting
