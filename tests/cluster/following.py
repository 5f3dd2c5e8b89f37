"""A node in a test: what a server asks of the node that it is, and doors that stand before a leader."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import uvloop

from headwater.clock import Clock, SystemClock
from headwater.cluster.doors import Doors
from headwater.cluster.leader import Leader
from headwater.cluster.preamble import Preambles
from headwater.config import Serving
from headwater.wire.administration import ClusterStatus, NodeRole
from server.harness import PATIENCE_S

SECRET = b"what all nodes of a test know"


class View:
    """A node that knows what it is told."""

    def __init__(self, node: str, role: NodeRole = "following", clock: Clock | None = None) -> None:
        self.node = node
        self.secret = SECRET
        self.clock = clock or SystemClock()
        self.said = ClusterStatus(bus="test", node=node, role=role, leader="n1", epoch=1, record=7)

    def introductions(self, door: str) -> Preambles:
        """What is believed at a door."""
        return Preambles(self.secret, door, self.node, self.clock)

    def status(self) -> ClusterStatus:
        """What it was told to say."""
        return self.said


class Following:
    """The doors of a follower, in a thread with a loop."""

    def __init__(self, node: str = "n2", **serving: Any) -> None:
        self.view = View(node)
        self._serving = Serving(
            **{"port": 0, "mqtt_port": 0, "http_port": 0, "host": "127.0.0.1", "mqtt": False, "http": False, **serving}
        )
        self._loop = uvloop.new_event_loop()
        self.troubles: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self.troubles.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, name="doors-of-a-test")

    def __enter__(self) -> Following:
        self._thread.start()
        self.doors: Doors = self.run(self._open())
        return self

    async def _open(self) -> Doors:
        doors = Doors(self.view, self._serving, self.view.clock)
        await doors.open()
        return doors

    def __exit__(self, *_: object) -> None:
        self.run(self.doors.close())
        self.run(asyncio.sleep(0.01))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        assert not self.troubles, self.troubles

    def run(self, work: Any) -> Any:
        """Await something on its loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def point(self, leader: Leader | None) -> None:
        """Have it pass on to this leader."""

        async def do() -> None:
            self.doors.point(leader)

        self.run(do())

    def serve_readers(self, port: int, come: Callable[[], None]) -> None:
        """Have those who only read served there."""

        async def before() -> None:
            await asyncio.get_running_loop().run_in_executor(None, come)

        async def do() -> None:
            self.doors.before_reads, self.doors.reads_at = before, port

        self.run(do())

    def port(self, door: str = "native") -> int:
        """Where a door of it is."""
        return self.doors.ports[door]
