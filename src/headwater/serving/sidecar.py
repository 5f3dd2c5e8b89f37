"""The sidecar: the process beside the server that serves HTTP, so that whoever looks does not slow the messages.

It is a `Child` of the server, started once the native port listens, and comes in through a door of its own: a Unix
socket in a folder that only this user may enter.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec

from headwater.mqtt.protocol import MqttProtocol
from headwater.native.protocol import NativeProtocol
from headwater.server.accepting import Door
from headwater.server.log import Log
from headwater.server.server import Server
from headwater.serving.child import Child
from headwater.serving.outside import RELOAD, Listening, Outside
from headwater.settings import Loaded
from headwater.store.files import DiskFiles

NEEDED = ("fastapi", "fastapi_offline", "nicegui", "prometheus_client", "uvicorn")
"""Of the extra `headwater[server]`."""
RESTART_S = 0.5

log = Log("headwater.server.sidecar")


class Sidecar:
    """Has the process run, and has doors for it."""

    def __init__(self, server: Server, settings: Loaded, announce: Callable[[str], None]) -> None:
        self._server = server
        self._serving = settings.serving
        self._process_settings = settings.process
        self._announce = announce
        self._files = DiskFiles()
        self._folder = ""
        self._doors: list[asyncio.Server | Door] = []
        command = (sys.executable, "-m", "headwater.admin")
        restart_s_max = self._serving.http_restart_s_max
        self._child = Child(command, self._outside, self._hear, self._on_end, RESTART_S, restart_s_max)

    async def start(self) -> None:
        """Have the process started, unless it is not wanted or cannot be."""
        if not self._serving.http:
            return
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            log.info("no-http", missing=missing[0], advice="pip install 'headwater[server]'")
            return
        self._folder = self._files.make_private_folder("headwater-")
        native, mqtt = self._server.extension(NativeProtocol), self._server.extension(MqttProtocol)
        self._doors.append(await self._server.open_door(native.sidecar_connection, self._path))
        if self._serving.mqtt:
            self._doors.append(await mqtt.listen_tunnels(self._mqtt_path))
        self._child.start()

    @property
    def _path(self) -> str:
        return f"{self._folder}/door"

    @property
    def _mqtt_path(self) -> str:
        return f"{self._folder}/mqtt"

    async def _hear(self, pid: int, output: asyncio.StreamReader) -> None:
        try:
            said = msgspec.json.decode(await output.readline(), type=Listening)
        except (OSError, ValueError, msgspec.DecodeError):
            said = Listening(error="it ended before it listened")
        if said.url:
            log.info("http", url=said.url, pid=pid)
            self._announce(said.url)
        else:
            log.warning("http-failed", reason=said.error, advice="use --http-port (0: a free one), or --no-http")

    def _on_end(self, code: int, _: float) -> None:
        log.warning("http-ended", code=code)

    def _outside(self) -> Outside:
        serving, cluster = self._serving, self._server.cluster
        return Outside(
            url=f"headwater+unix://{self._path}",
            folder=str(Path(self._server.core.folder).absolute()),
            lake=self._server.core.config.lake,
            mqtt_path=self._mqtt_path if serving.mqtt else "",
            host=serving.http_host or serving.host,
            port=serving.http_port,
            is_open=not serving.methods,
            tls_certificate=serving.tls_certificate,
            tls_key=serving.tls_key,
            body_bytes_max=serving.http_body_bytes_max,
            body_s=serving.http_body_s,
            connections_max=serving.http_connections_max,
            connections_per_address_max=serving.http_connections_per_address_max,
            hello_bytes_max=serving.hello_bytes_max,
            followers_max=serving.http_followers_max,
            followers_per_client_max=serving.http_followers_per_client_max,
            searches_max=serving.http_searches_max,
            searches_per_client_max=serving.http_searches_per_client_max,
            queries_max=serving.http_queries_max,
            query_s=serving.http_query_s,
            query_memory_bytes=self._server.core.config.sql_memory_bytes,
            node=cluster.node if cluster is not None else "",
            secret=cluster.secret if cluster is not None else b"",
            log_json=self._process_settings.log_json,
            log_level=self._process_settings.log_level,
        )

    def reload(self) -> None:
        """Have it use the certificate as it is now; it logs whether it does. One that is being started does anyway."""
        if self._serving.tls_certificate:
            self._child.tell(RELOAD)

    async def stop(self) -> None:
        await self._child.stop()
        for door in self._doors:
            door.close()
        if self._folder:
            self._files.remove_tree(self._folder)
