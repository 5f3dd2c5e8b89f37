"""An event loop of the simulated world: asyncio's own, over a network and a clock that the world decides about."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sim.green import Threads
from sim.network import Network, Server
from sim.world import SECOND_US, Process, World

TURN_US = 4
"""What a turn of a loop takes that does not sleep: whoever goes round until something comes does so a few times."""


class Selector:
    """Where a loop sleeps until there is something to do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._thread: Any = None
        self._is_rung = False

    def select(self, timeout: float | None) -> list[Any]:
        world = self._world
        self._thread = world.current
        if timeout is None:
            while not self._is_rung:
                world.park()
        elif timeout > 0:
            until_us = world.now_us + int(timeout * SECOND_US) + 1
            while not self._is_rung and world.now_us < until_us:
                world.park(until_us)
        else:
            world.now_us += TURN_US
            world.step_aside()
        self._is_rung = False
        return []

    def ring(self) -> None:
        self._is_rung = True
        if self._thread is not None:
            self._world.wake(self._thread)


class Handle(asyncio.Handle):
    """What a loop has to do; asyncio's own asks the loop each time whether it is to be debugged."""

    __slots__ = ()

    def __init__(
        self, callback: Any, args: Any, loop: asyncio.AbstractEventLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class Loop(base_events.BaseEventLoop):
    """A loop of one process."""

    _closed: bool
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, process: Process, network: Network, threads: Threads) -> None:
        super().__init__()
        self.process = process
        self.world = process.world
        self._network = network
        self._clock_resolution = 1e-6
        self._selector = Selector(self.world)
        self._default_executor = threads.ThreadPoolExecutor(8, "default")
        process.on_death.append(self._die)

    def _die(self) -> None:
        self._ready.clear()
        self._scheduled.clear()

    def __del__(self) -> None:
        """Nobody closes the loop of a process that was killed."""

    def time(self) -> float:
        return self.world.tick() / SECOND_US

    def _run_once(self) -> None:
        """A turn, as asyncio's own is, without what the world does itself or has no need of: asyncio's took a tenth of
        a story."""
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        world, selector = self.world, self._selector
        if ready:
            selector.select(0)
        elif scheduled:
            selector.select(max(0.0, scheduled[0].when() - world.tick() / SECOND_US))
        else:
            selector.select(None)
        end_s = world.tick() / SECOND_US + self._clock_resolution
        while scheduled and scheduled[0].when() < end_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]
            ready.append(handle)
        for _ in range(len(ready)):
            now = ready.popleft()
            if not now._cancelled:
                now._run()

    def call_soon(  # type: ignore[override]  # its types are asyncio's own
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _write_to_self(self) -> None:
        self._selector.ring()

    def call_soon_threadsafe(  # type: ignore[override]  # its types are asyncio's own
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = Handle(callback, args, self, context)
        if not self.process.is_dead:
            if self._closed:
                raise RuntimeError("Event loop is closed")
            self._ready.append(handle)
            self._selector.ring()
        return handle

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Have something done in its turn, from outside; nothing happens if it is over."""
        if not self.process.is_dead and not self._closed:
            self._ready.append(Handle(callback, args, self, None))
            self._selector.ring()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.world.trouble(self.process, str(context.get("message")), context.get("exception"))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run until it is done; the body of a thread."""
        thread = self.world.current
        assert thread is not None
        thread.loop = self
        self._thread_id = 1
        asyncio._set_running_loop(self)
        task = self.create_task(work)
        try:
            while not task.done():
                self._run_once()
            task.result()
        finally:
            asyncio._set_running_loop(None)
            thread.loop = None

    # As the loops in threads of our clients are run

    def run_forever(self) -> None:
        thread = self.world.current
        assert thread is not None
        thread.loop = self
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                self._run_once()
        finally:
            self._stopping = False
            asyncio._set_running_loop(None)
            thread.loop = None

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Its threads end with their process."""

    # The network

    async def create_server(  # type: ignore[override]  # of the many ways to listen, one
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Server:
        return self._network.listen(self, protocol_factory, port)

    async def create_connection(  # type: ignore[override]  # as above
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        return await self._network.connect(self, protocol_factory, port)
