"""Those who search over HTTP: at most `http_searches_max` at a time, and `http_searches_per_client_max` of one client.

Each has a process of its own, which ends with it. On a node of a cluster, whose folder nobody reads beside it, it has
a thread instead, and the server sends it the messages. One that takes too long is stopped, and keeps what it has
found; one that nobody waits for any more is ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from headwater.admin.search.process import LINE_BYTES_MAX, Found, Said, Told
from headwater.admin.search.search import Progress, Search
from headwater.arrow.source import Readable
from headwater.errors import Failed, QuotaExceeded
from headwater.serving.outside import Outside

Tell = Callable[[Progress], None]
COMMAND = (sys.executable, "-m", "headwater.admin.search")
THREAD_TELL_S = 0.1
GONE_S = 0.5
"""How long its process may take to end behind that."""
END_S = 5.0
"""How long one that was stopped may take to say what it has found."""


class Searches:
    """Counts and runs them."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._running: Counter[str] = Counter()

    async def run(
        self,
        asked: Told,
        client: str,
        bus: Readable,
        seconds: float,
        tell: Tell = lambda _: None,
        stopping: asyncio.Event | None = None,
    ) -> Found:
        """What a client finds until there is enough, it is stopped, or for so long: QuotaExceeded (429) if there are
        too many. `bus` is that of the server, for where the folder cannot be read."""
        asked.asked.check()
        self._check_room(client)
        self._running[client] += 1
        stopping = stopping or asyncio.Event()
        watch = asyncio.get_running_loop().call_later(seconds, stopping.set)
        try:
            if self._outside.folder and not self._outside.node:
                return await self._aside(asked, tell, stopping)
            return await self._here(Search(bus, asked.asked), tell, stopping)
        finally:
            watch.cancel()
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]

    def _check_room(self, client: str) -> None:
        outside = self._outside
        if self._running[client] >= outside.searches_per_client_max:
            raise QuotaExceeded(
                f'"{client}" has {outside.searches_per_client_max} searches running, the most '
                "(http_searches_per_client_max); wait until one of them ends, or stop it"
            )
        if self._running.total() >= outside.searches_max:
            raise QuotaExceeded(
                f"there are {outside.searches_max} searches running, the most (http_searches_max); "
                "try again in a moment"
            )

    async def _aside(self, asked: Told, tell: Tell, stopping: asyncio.Event) -> Found:
        asked = msgspec.structs.replace(asked, folder=self._outside.folder, lake=self._outside.lake)
        process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES_MAX)
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(asked) + b"\n")
            return await _until(stopping, _read(process, tell), process.stdin.close)
        finally:
            await _ended(process)

    @staticmethod
    async def _here(search: Search, tell: Tell, stopping: asyncio.Event) -> Found:
        async def told() -> Found:
            running = asyncio.ensure_future(asyncio.to_thread(search.run))
            try:
                while not (await asyncio.wait((running,), timeout=THREAD_TELL_S))[0]:
                    tell(search.progress)
            finally:
                search.stop()
            await running
            return Found.by(search)

        return await _until(stopping, told(), search.stop)


async def _read(process: Process, tell: Tell) -> Found:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        said = msgspec.json.decode(line, type=Said)
        said.check()
        if said.found is not None:
            return said.found
        if said.progress is not None:
            tell(said.progress)
    raise Failed("the search ended without an answer; the log of the server's HTTP process may say why")


async def _ended(process: Process) -> None:
    """One that has said what it found ends by itself; any other is killed."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait((waiting,), timeout=GONE_S)
    finally:
        if not waiting.done():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # Process.kill would take its exit code from whoever waits for it


async def _until(stopping: asyncio.Event, finding: Awaitable[Found], stop: Callable[[], object]) -> Found:
    """What is found by its end, or soon after it is to be stopped."""
    running = asyncio.ensure_future(finding)
    waiting = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            stop()
            await asyncio.wait((running,), timeout=END_S)
        if not running.done():
            raise Failed("the search could not be stopped in time, and was ended")
        return running.result()
    finally:
        for task in (running, waiting):
            task.cancel()
