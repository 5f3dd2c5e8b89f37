"""The buses of the fixtures: as `headwater.open` and `headwater.connect` give them, with what tests ask for besides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headwater
import headwater.bus
import headwater.client.bus
from headwater import threads
from headwater.config import Connecting, Serving
from headwater.message import Message
from headwater.server.server import Server
from headwater.serving.composition import server_of

SETTLED_S_MAX = 10.0
"""How long a look waits for timers that are due."""


class Bus(headwater.bus.Bus):
    """A bus in memory."""

    def published(self, filter: str = "#") -> list[Message]:
        """What was published so far, oldest first within each root: also by `send`, which nobody waits for, and by the
        bus itself, as far as it is due."""
        for _ in range(2):  # the second for what the first has made due
            rung = threads.Event()
            self.core.timers.set(rung, self.core.clock.monotonic_us(), rung.set)
            rung.wait(SETTLED_S_MAX)
        self.core.settle()
        return list(self.replay(filter))


class ServedBus(headwater.client.bus.Bus):
    """A client of a server in a thread of this process."""

    served: headwater.bus.Bus
    """What the server serves, to look behind it."""

    @property
    def url(self) -> str:
        """What others connect to: `headwater.connect(served_bus.url)`."""
        return self.folder

    def published(self, filter: str = "#") -> list[Message]:
        """What was published so far, oldest first within each root; also by `send` of this client."""
        self.ends()  # the server has what this client said before
        self.served.core.settle()
        return list(self.replay(filter))


@contextmanager
def serving(folder: Path) -> Iterator[ServedBus]:
    """Serve a folder for as long as the block, to a client that is given, and whoever else connects."""
    with headwater.open(folder) as bus:
        server = server_of(bus.core, Serving(port=0, http=False, mqtt=False))
        loop = asyncio.new_event_loop()
        thread = threads.Thread(target=loop.run_forever, name="headwater-served-bus", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result()
            try:
                with _connected(server, bus) as client:
                    yield client
            finally:
                asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _connected(server: Server, bus: headwater.bus.Bus) -> ServedBus:
    client = ServedBus(server.url, Connecting())
    client.served = bus
    return client
