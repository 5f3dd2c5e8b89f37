"""Those who ask in SQL over HTTP: at most `http_queries_max` at a time, one of each client, each for `http_query_s`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

import msgspec

from headwater.admin.gate import Caller
from headwater.admin.query.process import LINE_BYTES_MAX, Answered, Told
from headwater.arrow import check_installed
from headwater.errors import Failed, NotAllowed, QuotaExceeded, TimedOut
from headwater.log.root import CLOSED
from headwater.serving.outside import Outside

COMMAND = (sys.executable, "-m", "headwater.admin.query")
ROWS_MAX = 10_000
"""Rows that an answer may have over HTTP."""


class Queries:
    """Counts and runs them."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._asking: set[str] = set()

    async def run(self, query: str, rows_max: int, caller: Caller) -> Answered:
        """The first rows of an answer; TimedOut (504) if it takes too long. Whoever gives it up ends it."""
        outside = self._outside
        check_installed("duckdb", "numpy", "pyarrow")
        if not outside.folder or outside.node:
            raise NotAllowed("a node of a cluster answers no SQL over HTTP; ask with: headwater sql --url …")
        if caller.name in self._asking:
            raise QuotaExceeded(f'"{caller.name}" has a query running; wait until it ends, or stop it')
        if len(self._asking) >= outside.queries_max:
            raise QuotaExceeded(
                f"there are {outside.queries_max} queries running, the most (http_queries_max); try again in a moment"
            )
        told = Told(
            query=query,
            rows_max=rows_max,
            closed=() if caller.role == "admin" else CLOSED,
            asked_by=caller.name,
            folder=outside.folder,
            lake=outside.lake,
            memory_bytes=outside.query_memory_bytes,
        )
        self._asking.add(caller.name)
        try:
            async with asyncio.timeout(outside.query_s):
                return await _aside(told)
        except TimeoutError:
            raise TimedOut(
                f"the query took longer than {outside.query_s:.0f} s (http_query_s), and was ended; narrow it, or ask "
                "with: headwater sql"
            ) from None
        finally:
            self._asking.discard(caller.name)


async def _aside(told: Told) -> Answered:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES_MAX
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(told) + b"\n")
        line = await process.stdout.readline()
    finally:
        await _end(process)
    if not line:
        raise Failed("the query ended without an answer: it may have been more than this machine has memory for")
    answered = msgspec.json.decode(line, type=Answered)
    answered.check()
    return answered


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)  # Process.kill would take its exit code from whoever waits for it
    await asyncio.shield(process.wait())
