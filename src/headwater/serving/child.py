"""A process beside the server: told in one line what it needs, begun again when it ends, and ended with the server.

That line is JSON on its input, which nobody else can read. The input stays open as long as the server is there: its end
tells the process that the server is gone, however that came about. The server works without it, and never waits for it.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

STEADY_S = 60.0
"""One that lasted for so long was a good one: the next delay is a short one again."""
END_S = 5.0
"""How long it may take to end by itself."""
LINE_BYTES_MAX = 64 * 1024


class Child:
    """Starts the process, starts it again, and ends it."""

    def __init__(
        self,
        command: Sequence[str],
        told: Callable[[], msgspec.Struct],
        hear: Callable[[int, asyncio.StreamReader], Awaitable[None]],
        on_end: Callable[[int, float], None],
        restart_s: float,
        restart_s_max: float,
        stderr: int | None = None,
    ) -> None:
        """`told` gives what it is told at its start, `hear` is given its pid and its output, and `on_end` its exit code
        and after how long it is begun again: `restart_s` at first, which doubles with each time after."""
        self._command = command
        self._told = told
        self._hear = hear
        self._on_end = on_end
        self._restart_s = restart_s
        self._restart_s_max = restart_s_max
        self._stderr = stderr
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None

    def start(self) -> None:
        """Have it run."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        """Start it, again and again."""
        loop = asyncio.get_running_loop()
        delay_s = self._restart_s
        while True:
            begun_s = loop.time()
            code = await self._run()
            if loop.time() - begun_s > STEADY_S:
                delay_s = self._restart_s
            self._on_end(code, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, self._restart_s_max)

    async def _run(self) -> int:
        """Start it, and wait for its end."""
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._stderr,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for the server, which ends it in order
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it has ended already: its output says no more
            process.stdin.write(msgspec.json.encode(self._told()) + b"\n")
            await process.stdin.drain()
        await self._hear(process.pid, process.stdout)
        return await process.wait()

    def tell(self, line: bytes) -> None:
        """Tell it something later; one that is being started has it from what it is told then."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.write(line)

    async def stop(self) -> None:
        """End it, if it was started."""
        if self._task is not None:
            self._task.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
