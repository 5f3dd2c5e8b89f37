"""The sidecar: the process beside the server that serves HTTP, so that whoever looks does not slow the messages.

It is started once the native port listens, comes in through a door of its own (a Unix socket in a folder that only this
user may enter), is started again when it dies, and ends with the server; it ends by itself if the server is killed.
The server works without it, and never waits for it.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import msgspec

from headwater.mqtt.protocol import MqttProtocol
from headwater.native.protocol import NativeProtocol
from headwater.server.accepting import Door
from headwater.server.log import Log
from headwater.server.server import Server
from headwater.serving.outside import RELOAD, Listening, Outside
from headwater.settings import Loaded
from headwater.store.files import DiskFiles

NEEDED = ("fastapi", "fastapi_offline", "nicegui", "prometheus_client", "uvicorn")
"""Of the extra `headwater[server]`."""
RESTART_S = 0.5
"""How long a process that died is left before it is started again; it doubles with each time after."""
STEADY_S = 60.0
"""One that lasted for so long was a good one: the next delay is a short one again."""
END_S = 5.0
"""How long it may take to end by itself."""
LINE_BYTES_MAX = 64 * 1024

log = Log("headwater.server.sidecar")


class Sidecar:
    """Starts the process, starts it again, and ends it."""

    def __init__(self, server: Server, settings: Loaded, announce: Callable[[str], None]) -> None:
        self._server = server
        self._serving = settings.serving
        self._process_settings = settings.process
        self._announce = announce
        self._files = DiskFiles()
        self._folder = ""
        self._doors: list[asyncio.Server | Door] = []
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None

    async def start(self) -> None:
        """Have the process started, unless it is not wanted or cannot be."""
        if not self._serving.http:
            return
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            log.info("no-http", missing=missing[0], advice="pip install 'headwater[server]'")
            return
        loop = asyncio.get_running_loop()
        self._folder = self._files.make_private_folder("headwater-")
        native, mqtt = self._server.extension(NativeProtocol), self._server.extension(MqttProtocol)
        self._doors.append(await self._server.open_door(native.sidecar_connection, self._path))
        if self._serving.mqtt:
            self._doors.append(await mqtt.listen_tunnels(self._mqtt_path))
        self._task = loop.create_task(self._keep())

    @property
    def _path(self) -> str:
        return f"{self._folder}/door"

    @property
    def _mqtt_path(self) -> str:
        return f"{self._folder}/mqtt"

    async def _keep(self) -> None:
        """Start it, again and again."""
        loop = asyncio.get_running_loop()
        delay_s = RESTART_S
        while True:
            begun_s = loop.time()
            await self._run()
            if loop.time() - begun_s > STEADY_S:
                delay_s = RESTART_S
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, self._serving.http_restart_s_max)

    async def _run(self) -> None:
        """Start it, and wait for its end."""
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headwater.admin"),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for the server, which ends it in order
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # It stays open: its end tells the process that the server is gone, however that came about.
            process.stdin.write(msgspec.json.encode(self._outside()) + b"\n")
            await process.stdin.drain()
            said = msgspec.json.decode(await process.stdout.readline(), type=Listening)
        except (OSError, ValueError, msgspec.DecodeError):
            said = Listening(error="it ended before it listened")
        if said.url:
            log.info("http", url=said.url, pid=process.pid)
            self._announce(said.url)
        else:
            log.warning("http-failed", reason=said.error, advice="use --http-port (0: a free one), or --no-http")
        code = await process.wait()
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
        process = self._process
        if self._serving.tls_certificate and process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.write(RELOAD)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._process is not None and self._process.returncode is None:
            await self._end(self._process)
        for door in self._doors:
            door.close()
        if self._folder:
            self._files.remove_tree(self._folder)

    async def _end(self, process: Process) -> None:
        process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
