"""A node that follows and serves those who read, in a test: a reading behind doors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import uvloop

import headwater
from cluster.following import Following, View
from cluster.nodes import Leader, Node
from headwater.cluster.reading import Reading
from headwater.cluster.replica import Replica
from headwater.config import Serving
from headwater.settings import given
from server.harness import PATIENCE_S


class Follower:
    """A node that follows, and serves those who read and come by its doors."""

    def __init__(self, node: Node, **serving: Any) -> None:
        self.node = node
        self.replica: Replica = node.follow()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reading-of-a-test")
        self._thread.start()
        settings = given(node.config, Serving(scram_iterations=4096, **serving), node.path)
        self.reading = Reading(View("n2"), self.replica, settings)
        self.port: int = self._run(self.reading.start())
        """Behind the doors."""
        self.doors = Following(node="n2").__enter__()
        self.doors.serve_readers(self.port, self.reading.come)

    def _run(self, work: object) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)  # type: ignore[arg-type]

    def apply(self, leader: Leader) -> None:
        """All that the leader has written."""
        leader.settle()
        self.node.catch_up(self.replica)

    def connect(self, user: str = "") -> Any:
        return headwater.connect(f"headwater://{user}127.0.0.1:{self.doors.port()}?read=any")

    def close(self) -> None:
        self.doors.__exit__()
        self._run(self.reading.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self.replica.close()
