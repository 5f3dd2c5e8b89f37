"""A service: a server with its protocols, the process beside it for HTTP, and word of both in the folder."""

from __future__ import annotations

import errno
from collections.abc import Callable

from headwater.config import Serving
from headwater.core import Core
from headwater.errors import Conflict, Failed, HeadwaterError
from headwater.mqtt.protocol import MqttProtocol
from headwater.server.connection import Elsewhere
from headwater.server.exposure import is_loopback
from headwater.server.log import Log
from headwater.server.watch.cluster import ClusterView
from headwater.serving.composition import server_of
from headwater.serving.pipelines import Pipelines
from headwater.serving.sidecar import Sidecar
from headwater.serving.whereabouts import Whereabouts
from headwater.settings import Loaded

log = Log("headwater.server.process")


class Service:
    """A core that is served, from its first client to its last."""

    def __init__(
        self, core: Core, loaded: Loaded, announce: Callable[[str], None], cluster: ClusterView | None
    ) -> None:
        """`announce` gets each URL once clients may come; `cluster` is the node that this is, if it is one."""
        self.server = server_of(core, loaded.serving, loaded)
        self.server.cluster = cluster
        self._serving = loaded.serving
        self._announce = announce
        self._whereabouts = Whereabouts(self.server)
        self._sidecar = Sidecar(self.server, loaded, self._tell)
        self._pipelines = Pipelines(self.server, loaded.serving)

    def _tell(self, url: str) -> None:
        self._whereabouts.note(url)
        self._announce(url)

    async def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Listen; `before` is called once that is possible, before anybody is told."""
        serving, server = self._serving, self.server
        try:
            await server.start()
        except HeadwaterError as error:
            if isinstance(error.__cause__, OSError):
                raise unable_to_listen(error.__cause__, serving, is_socket=server.port != 0) from None
            raise
        before()
        warn_of_plain_text(serving)
        await self._whereabouts.begin()
        self._tell(server.url)
        if serving.mqtt:
            await self._listen_mqtt()
        await self._sidecar.start()
        self._pipelines.start()

    async def _listen_mqtt(self) -> None:
        """Serve MQTT; whoever came for the rest is served though the port is taken."""
        mqtt = self.server.extension(MqttProtocol)
        try:
            await mqtt.listen()
        except OSError as error:
            advice = "end who has the port, use --mqtt-port (0: a free one), or --no-mqtt"
            log.warning("mqtt-failed", reason=error.strerror or str(error), advice=advice)
        for url in mqtt.urls:
            self._tell(url)

    def reload(self) -> None:
        """Read certificates, clients and rules anew; what is wrong is logged, and the old ones stay."""
        try:
            is_whole = self.server.reload()
            if is_whole:
                self._sidecar.reload()
        except Exception:  # whatever a file or a row holds, those who are connected stay so
            log.error("reload-failed")
        else:
            log.info("reloaded", certificates="new" if is_whole else "kept")

    async def stop(self, elsewhere: Elsewhere | None = None) -> None:
        """Take nobody in any more, finish what is under way, tell the clients, where to go on if that is known, and
        end."""
        self.server.elsewhere = elsewhere
        self._whereabouts.end()
        await self._pipelines.stop()
        await self._sidecar.stop()
        log.info("draining", seconds_max=self._serving.drain_s)
        try:
            await self.server.drain()
        except Exception:  # the rest of the end is due all the same
            log.error("drain-failed")
        await self.server.stop()


def unable_to_listen(error: OSError, serving: Serving, is_socket: bool) -> HeadwaterError:
    """What to do about it; once there is a port, it was the Unix socket."""
    if is_socket:
        why = error.strerror or str(error)
        return Failed(f'cannot listen on the socket "{serving.unix_path}": {why}; use a short path in a folder of ours')
    where = f"port {serving.port} of {serving.host}"
    match error.errno:
        case errno.EADDRINUSE:
            return Conflict(f"{where} is in use, perhaps by another headwater; end that, or use --port (0: a free one)")
        case errno.EACCES | errno.EPERM:
            return Failed(f"{where} is not open to this user; use a port from 1024 up")
        case errno.EADDRNOTAVAIL:
            return Failed(f"{serving.host} is no address of this machine; use one that it has with --host")
        case _:
            return Failed(f"cannot listen on {where}: {error.strerror or error}")


def warn_of_plain_text(serving: Serving) -> None:
    """Say which doors beyond loopback take what is not encrypted."""
    advice = "what is sent can be read on the way; give --tls-certificate"
    if serving.tls_certificate:
        # The port of MQTT without TLS is on loopback, unless somebody says where it is to be.
        hosts = {serving.mqtt_host} if serving.mqtt and serving.mqtt_host else set()
        advice = "MQTT without TLS can be read on the way; leave mqtt_host out, and it is on loopback alone"
    else:
        hosts = {serving.host}
        hosts |= {serving.http_host or serving.host} if serving.http else set()
        hosts |= {serving.mqtt_host or serving.host} if serving.mqtt else set()
    for host in sorted(hosts):
        if host != "localhost" and not is_loopback(host):
            log.warning("plain-text", host=host, advice=advice)
