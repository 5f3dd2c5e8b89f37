"""`headwater` with a stand-in for the server, which shows what was asked of it: for tests of the process around it."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from typing import Any

from headwater.cli import main
from headwater.log.items import Call


class Server:
    """Listens, and tells on stderr what it is asked to do. What it should do badly is in STUB."""

    def __init__(self, core: Any, serving: Any, settings: Any) -> None:
        self.core = core
        self.serving = serving
        self._does = os.environ.get("STUB", "")
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._greet, self.serving.host, self.serving.port)

    async def _greet(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    def extension(self, _: Any) -> Any:
        """Nothing speaks a protocol here."""
        return types.SimpleNamespace(inner_connection=None, sidecar_connection=None)

    async def open_door(self, _: Any, path: str) -> asyncio.Server:
        return await asyncio.start_unix_server(self._greet, path)

    @property
    def url(self) -> str:
        assert self._listening is not None
        return f"headwater://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    def reload(self) -> None:
        self._tell("reload")
        if self._does == "run out of memory":
            self.core.roots.commit.submit(Call(self._run_out))
        if self._does == "fail to reload":
            raise ValueError("no such thing")

    def _run_out(self) -> None:
        raise MemoryError

    async def drain(self) -> None:
        self._tell("drain")
        if self._does == "fail to drain":
            raise ValueError("no such thing")
        if self._does == "drain for ever":
            await asyncio.Event().wait()

    async def stop(self) -> None:
        assert self._listening is not None
        self._listening.close()
        self._tell("stop")

    def _tell(self, what: str) -> None:
        os.write(2, f"stub {what}\n".encode())


if __name__ == "__main__":
    module = types.ModuleType("headwater.serving.composition")
    module.server_of = Server  # type: ignore[attr-defined]
    sys.modules["headwater.serving.composition"] = module
    main()
