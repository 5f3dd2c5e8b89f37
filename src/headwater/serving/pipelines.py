"""The process beside the server that runs its pipelines: those of `[pipelines]`, all of them on one Spark.

Each is what one would write after `headwater pipeline`. The process begins those that fail again, and says how each is;
it is a `Child` of the server, and begun again itself where it ends.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from headwater.config import Serving
from headwater.errors import Malformed
from headwater.server.log import Log
from headwater.server.server import Server
from headwater.serving.child import Child
from headwater.store.owner import socket_of
from headwater.wire.administration import Job

RUNS = ("archive", "rollup", "run")
"""What a pipeline of the server may be: those that go on, or end and can be begun again."""
COMMAND = (sys.executable, "-m", "headwater.cli.pipeline.supervised")
RESTART_S = 1.0
BEGINNING, WAITING = "beginning", "waiting"

log = Log("headwater.server.pipelines")


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told at its start: a line on its input, which stays open as long as the server is there."""

    pipelines: dict[str, str]
    folder: str
    url: str
    """Of the server, for the folder's user."""
    lake: str
    restart_s_max: float


def words_of(name: str, command: str) -> list[str]:
    """The words of a pipeline; Malformed says what is wrong with them."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Malformed(f"pipelines.{name} is {command!r}: {error}") from None
    if not words or words[0] not in RUNS:
        raise Malformed(
            f"pipelines.{name} is {command!r}; write what comes after `headwater pipeline`, beginning with "
            f"{', '.join(RUNS[:-1])} or {RUNS[-1]}: archive --every 30s"
        )
    return words


def check_pipelines(commands: Mapping[str, str]) -> None:
    """That each is one that a server may run."""
    for name, command in commands.items():
        words_of(name, command)


class Pipelines:
    """Has the process run, and knows how each pipeline is."""

    def __init__(self, server: Server, serving: Serving) -> None:
        self._server = server
        self._serving = serving
        self._jobs: dict[str, Job] = {}
        self._child = Child(
            COMMAND, self._told, self._hear, self._on_end, RESTART_S, serving.pipelines_restart_s_max, DEVNULL
        )

    def start(self) -> None:
        """Have them run, if there are any."""
        if not self._serving.pipelines:
            return
        now_us = self._server.core.clock.now_us()
        self._jobs = {
            name: Job(name=name, command=command, state=BEGINNING, since_us=now_us)
            for name, command in self._serving.pipelines.items()
        }
        self._server.broker.overview.jobs = self.jobs
        self._child.start()

    def jobs(self) -> list[Job]:
        """How each pipeline is, in the order of the settings; from any thread."""
        return list(self._jobs.values())

    def _on_end(self, code: int, again_s: float) -> None:
        log.warning("pipelines-ended", code=code, again_s=again_s)
        reason = f"the process of the pipelines ended ({code}); it is begun again in {again_s:.0f} s"
        now_us = self._server.core.clock.now_us()
        for name, job in self._jobs.items():
            error = job.error or reason
            self._jobs[name] = msgspec.structs.replace(
                job, state=WAITING, since_us=now_us, restarts=job.restarts + 1, error=error
            )

    def _told(self) -> Told:
        core = self._server.core
        folder = str(Path(core.folder).absolute())
        return Told(
            pipelines=self._serving.pipelines,
            folder=folder,
            url=f"headwater+unix://{quote(socket_of(folder))}",
            lake=core.config.lake,
            restart_s_max=self._serving.pipelines_restart_s_max,
        )

    async def _hear(self, pid: int, said: asyncio.StreamReader) -> None:
        log.info("pipelines", pid=pid, names=",".join(self._serving.pipelines))
        with suppress(OSError, ValueError, msgspec.DecodeError):
            while line := await said.readline():
                self._note(msgspec.json.decode(line, type=Job))

    def _note(self, job: Job) -> None:
        before = self._jobs.get(job.name)
        if before is None:
            return
        if job.error and job.error != before.error:
            log.warning("pipeline-failed", name=job.name, reason=job.error)
        self._jobs[job.name] = job

    async def stop(self) -> None:
        """End them: each goes on where it was when it is begun again."""
        await self._child.stop()
