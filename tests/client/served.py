"""A real server for tests: an embedded bus behind a port, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from typing import Any

import headwater
import headwater.bus
from headwater.config import Config, Serving
from headwater.server.server import Server
from headwater.serving.composition import server_of
from server.site import free_port

WAIT_S = 60.0


class Served:
    """A server that can be stopped and started again on its folder and port."""

    def __init__(self, folder: str | os.PathLike[str], config: Config | None = None, **serving: Any) -> None:
        self._folder = folder
        self._config = config
        self._port = ExitStack()
        self._serving = {"port": self._port.enter_context(free_port()), **serving}
        self.bus: headwater.bus.Bus
        self.server: Server
        self.start()

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        self.bus = headwater.open(self._folder, self._config)
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)))
        self._thread.start()
        assert ready.wait(WAIT_S)

    async def _run(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.server = server_of(self.bus.core, Serving(**self._serving))
        await self.server.start()
        ready.set()
        await self._stopping.wait()
        await self.server.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()
            self.bus.close()

    def kill(self) -> None:
        """Stop it without a word to its clients: their connections are reset, whatever was under way."""
        self._loop.call_soon_threadsafe(self.server.listener.close)
        self.stop()

    def close(self) -> None:
        """Stop it, for good."""
        self.stop()
        self._port.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
