"""The server: the embedded bus behind a port.

It puts the parts together, listens, and ends them in good order. Everything below runs on one event loop; commits and
what blocks run in threads beside it.
"""

from __future__ import annotations

import asyncio
import ssl

from headwater import threads
from headwater.channels.runner import ChannelRunner
from headwater.config import Serving
from headwater.core import Core
from headwater.errors import Closed, Malformed
from headwater.mqtt.connection import MqttConnection
from headwater.mqtt.greeting import Greeter
from headwater.mqtt.tunnel import TunnelledConnection
from headwater.native.connection import NativeConnection
from headwater.server.answers import Answers
from headwater.server.attention import Attention
from headwater.server.bell import Wakes
from headwater.server.broker import Broker
from headwater.server.entry import Entry
from headwater.server.exposure import check_exposure, is_loopback
from headwater.server.listener import Listener
from headwater.server.log import Log
from headwater.server.outbox import Outbox
from headwater.server.sessions import Sessions
from headwater.server.tls import Tls, open_tls
from headwater.server.watch.figures import Collector
from headwater.server.watch.health import Health
from headwater.server.watch.overview import Overview
from headwater.server.watch.pulse import Pulse
from headwater.server.watch.sys_topics import Telling
from headwater.settings import Loaded, given
from headwater.store.files import DiskFiles

WORKERS = 8
"""Threads for what blocks: subscribing, listing, purging."""
BACKLOG = 4096
"""Connections that the system holds until they are accepted."""

log = Log("headwater.server")


class Server:
    """A bus that is served."""

    def __init__(self, core: Core, serving: Serving | None = None, settings: Loaded | None = None) -> None:
        """`settings` say where the server's settings came from, for those who ask."""
        self.core = core
        self.serving = serving or Serving()
        self._settings = settings or given(core.config, self.serving, core.folder)
        check_exposure(self.serving)
        self._executor = threads.ThreadPoolExecutor(WORKERS, "headwater-worker")
        self._servers: list[asyncio.Server] = []
        self._tls: Tls | None = open_tls(self.serving)
        self._port = 0
        self.mqtt_port = 0
        """Where it listens for MQTT; 0 if it does not."""
        self.mqtt_tls_port = 0
        self.mqtt_urls: list[str] = []
        self._greeter: Greeter | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Listen; returns once clients can connect."""
        loop = self._loop = asyncio.get_running_loop()
        self.broker = Broker(self.core, self.serving)
        self.wakes = Wakes(loop)
        core = self.core
        self.entry = Entry(loop, core.desk, core.roots, core.dispatcher, self.wakes, core.clock)
        answers = Answers(loop, self.broker)
        self.sessions = Sessions(loop, self._executor, self.broker, self.entry, self.wakes, answers, self.serving)
        self.broker.sessions = self.sessions
        attention = Attention(loop, core.clock, self.serving.attention_us)
        outbox = Outbox()
        self.channels = ChannelRunner(
            *(loop, self._executor, self.broker, self.wakes, outbox, attention, answers, self.sessions.slices)
        )
        self.broker.pushing = self.channels
        self.listener = Listener(loop, self.broker, self.core.config, self.serving, self.wakes, outbox, attention)
        self.broker.acl.on_change = self._on_rules
        self.pulse = Pulse(loop)
        collector = Collector(self.core, self.serving, self.listener, self.sessions, self.pulse)
        health = Health(self.core, self.serving, self.pulse)
        self.broker.overview = Overview(self.broker, collector, health, self._settings)
        self.telling = Telling(loop, self._executor, self.core, collector.figures, self.serving.sys_every_s)
        try:
            await self._listen(loop)
        except OSError as error:
            self.telling.stop()
            self.pulse.stop()
            self.listener.close()
            self._executor.shutdown(wait=False)
            where = f"{self.serving.host}:{self.serving.port}"
            raise Malformed(f"cannot listen on {where}: {error.strerror or error}; choose another port") from error
        self.channels.start()

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        serving = self.serving
        context = self._tls.context if self._tls is not None else None
        server = await loop.create_server(
            self._greet,
            serving.host,
            serving.port,
            ssl=context,
            ssl_handshake_timeout=serving.handshake_s if context is not None else None,
            backlog=BACKLOG,
            reuse_address=True,
        )
        self._servers.append(server)
        self._port = server.sockets[0].getsockname()[1]
        if serving.unix_path:
            self._remove_socket()
            server = await loop.create_unix_server(self._greet, serving.unix_path, backlog=BACKLOG)
            self._servers.append(server)

    async def listen_mqtt(self) -> None:
        """Serve MQTT clients, too; where there is a certificate, on a port that speaks TLS as well."""
        serving, tls = self.serving, self._tls
        plain_host = serving.mqtt_host or serving.host
        if tls is not None and not serving.mqtt_host and not is_loopback(serving.host):
            plain_host = "127.0.0.1"  # passwords do not travel in the open, unless somebody says that they may
        self.mqtt_port = await self._listen_mqtt(plain_host, serving.mqtt_port, None)
        if tls is not None:
            host = serving.mqtt_host or serving.host
            self.mqtt_tls_port = await self._listen_mqtt(host, serving.mqtt_tls_port, tls.context)

    async def _listen_mqtt(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        greeter = self._greeter = self._greeter or Greeter(self, self._executor)
        server = await self._loop.create_server(
            lambda: MqttConnection(self.listener, greeter),
            host,
            port,
            ssl=context,
            ssl_handshake_timeout=self.serving.handshake_s if context is not None else None,
            backlog=BACKLOG,
            reuse_address=True,
        )
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        scheme = "mqtt" if context is None else "mqtts"
        self.mqtt_urls.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{found}")
        return found

    async def listen_tunnels(self, path: str) -> asyncio.Server:
        """A door for MQTT clients that come over WebSockets, of which another process knows the way."""
        greeter = self._greeter = self._greeter or Greeter(self, self._executor)
        return await self._loop.create_unix_server(
            lambda: TunnelledConnection(self.listener, greeter), path, backlog=BACKLOG
        )

    def _greet(self) -> NativeConnection:
        return NativeConnection(self.listener)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def url(self) -> str:
        """How clients find it."""
        scheme = "headwaters" if self._tls is not None else "headwater"
        host = f"[{self.serving.host}]" if ":" in self.serving.host else self.serving.host
        return f"{scheme}://{host}:{self._port}"

    def reload(self) -> bool:
        """Read certificates, clients and rules again; False if the certificates are bad, and the old ones stay."""
        self.broker.clients.reload()
        self.broker.acl.reload()
        self.broker.tokens.reload()
        self.broker.recheck()
        return self._tls is None or self._tls.reload()

    def _on_rules(self) -> None:
        """Rules have changed, by whatever thread: whoever has lost a right loses it now."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.broker.recheck)

    async def drain(self) -> None:
        """Take nobody in any more, finish what is under way, and tell the clients."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        for connection in self.listener.connections:
            connection.hold()
        finished = asyncio.Event()
        self.entry.when_empty(finished.set)
        try:
            async with asyncio.timeout(self.serving.drain_s):
                await finished.wait()
        except TimeoutError:
            log.warning("drain-timeout", seconds=self.serving.drain_s)
        self.listener.drain(lambda connection: connection.say_goodbye(Closed("the server is stopping"), reconnect=True))
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
        self.broker.acl.on_change = None
        await self.channels.close()
        self.telling.stop()
        self.pulse.stop()
        await self.sessions.close()
        self.listener.close()
        await self._emptied()  # those that came in the last moment, too
        await self._loop.run_in_executor(None, self._executor.shutdown)
        self._remove_socket()

    def _remove_socket(self) -> None:
        if self.serving.unix_path:
            DiskFiles().remove_socket(self.serving.unix_path)
