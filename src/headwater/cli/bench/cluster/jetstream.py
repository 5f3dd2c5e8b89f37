"""JetStream without Headwater: the same servers, three replicas, synced before they answer, published to by nats-py."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from headwater.cluster.nats_connection import NatsConnection
from headwater.config import Clustering

STREAM, SUBJECT = "BENCH", "bench.raw"
CONSUMERS = 3
CALL_S = 120.0
KEPT = 256 << 20
"""Bytes that the stream keeps: the disk is not to fill up."""

T = TypeVar("T")


class JetStream:
    """A stream of its own, with consumers in processes of their own if they are asked for."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._urls = urls
        self._connection = NatsConnection(Clustering(cluster=urls), "bench")
        self._consumers: list[subprocess.Popen[bytes]] = []
        self._call(self._make())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._connection.call(work, CALL_S)

    async def _make(self) -> None:
        await self._connection.api(
            f"STREAM.CREATE.{STREAM}",
            {
                "name": STREAM,
                "subjects": [SUBJECT],
                "retention": "limits",
                "storage": "file",
                "num_replicas": 3,
                "discard": "old",
                "max_bytes": KEPT,
            },
            10.0,
        )
        self._js = self._connection.client.jetstream()

    def publish_for(self, seconds: float, size: int, in_flight: int) -> float:
        """Messages of this size a second, so many under way at once."""
        return self._call(self._publish_for(seconds, bytes(size), in_flight))

    async def _publish_for(self, seconds: float, data: bytes, in_flight: int) -> float:
        done = 0
        begun = time.perf_counter()

        async def one_after_another() -> None:
            nonlocal done
            while time.perf_counter() - begun < seconds:
                await self._js.publish(SUBJECT, data, timeout=30)
                done += 1

        await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
        return done / (time.perf_counter() - begun)

    def times_of(self, count: int, size: int) -> list[float]:
        """How long each of so many publishes takes, one after another."""
        return self._call(self._times_of(count, bytes(size)))

    async def _times_of(self, count: int, data: bytes) -> list[float]:
        found = []
        for _ in range(count):
            begun = time.perf_counter()
            await self._js.publish(SUBJECT, data, timeout=30)
            found.append(time.perf_counter() - begun)
        return found

    def consume(self) -> None:
        """Have three consumers, who read all of it from now on."""
        for _ in range(CONSUMERS):
            self._consumers.append(
                subprocess.Popen(  # noqa: S603  # our own module
                    [sys.executable, "-m", "headwater.cli.bench.cluster.jetstream", *self._urls], stdout=subprocess.PIPE
                )
            )
        for one in self._consumers:
            assert one.stdout is not None
            one.stdout.readline()

    def rest(self) -> None:
        """Have no consumers."""
        for one in self._consumers:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()
        self._consumers = []

    def close(self) -> None:
        """Let go of it."""
        self.rest()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _read(connection: NatsConnection) -> None:
    """Take all that comes, in order, as a node does."""
    taken = 0

    async def take(message: Any) -> None:
        nonlocal taken
        taken += len(message.data)

    await connection.client.jetstream().subscribe(SUBJECT, cb=take, ordered_consumer=True, deliver_policy="new")
    print("reads", flush=True)


def _main(urls: tuple[str, ...]) -> None:
    connection = NatsConnection(Clustering(cluster=urls), "bench consumer")
    connection.call(_read(connection), CALL_S)
    threading.Event().wait()


if __name__ == "__main__":
    _main(tuple(sys.argv[1:]))
