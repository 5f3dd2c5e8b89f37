"""The doors of the product, opened to a simulated world: threads, chance, and what is logged.

Time and disk are handed in where a bus or a client is made. Everything is put back as it was at the end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures._base as futures
import functools
import gc
import hashlib
import logging
import os
import random
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from headwater import forgotten
from headwater import threads as door
from headwater.client import bus as client_bus
from headwater.client import receiver as client_receiver
from headwater.client.feed import Held
from headwater.clock import SystemClock
from headwater.server import accepting
from headwater.server.connection import Connection
from headwater.server.listener import Listener
from headwater.server.log import Flood
from sim.green import Threads
from sim.loop import Loop
from sim.network import Network, Server
from sim.world import Clock, Killed, World

NAMES = ("Condition", "Event", "Lock", "RLock", "Thread", "ThreadPoolExecutor", "current_thread", "get_ident", "local")


class Notes(logging.Handler):
    """What the product logs as an error is kept, for the judge to look at."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        self._here = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        current = self._world.current
        if record.thread == self._here and current is not None and not current.process.is_dead:
            self._world.logged.append((current.process.name, record.levelno, record.getMessage()))

    def createLock(self) -> None:  # noqa: N802  # its name is logging's
        self.lock = None


def clock_method(world: World, name: str) -> Callable[..., Any]:
    """The same of the clock of the process that asks; a real thread that a test before left behind has the real one."""
    real, here = getattr(SystemClock, name), threading.get_ident()

    def ask(clock: SystemClock, *args: Any) -> Any:
        if threading.get_ident() != here:
            return real(clock, *args)
        current = world.current
        if current is None or current.process.is_dead:
            raise Killed
        return getattr(Clock(current.process), name)(*args)

    return ask


def of_this_world(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    """The simulated one, save for a real thread that a test before left behind, which would end the world's."""
    ident = threading.get_ident
    here = ident()

    def ask(*args: Any, **kwargs: Any) -> Any:
        return (simulated if ident() == here else real)(*args, **kwargs)

    return ask


class Policy(asyncio.DefaultEventLoopPolicy):
    """Each simulated thread has its own current loop."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._world.current is not None:
            self._world.current.locals[1] = {"loop": loop}

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        assert self._world.current is not None
        loop: asyncio.AbstractEventLoop = self._world.current.locals[1]["loop"]
        return loop


all_tasks = asyncio.all_tasks
pbkdf2_hmac = functools.cache(hashlib.pbkdf2_hmac)
"""Slow on purpose, and asked again and again for the same few secrets."""


def in_order(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Tasks in the order in which they were made, which their names tell."""
    return sorted(tasks, key=lambda task: int(task.get_name().rpartition("-")[2]))


def let_go_of_messages() -> None:
    """Messages are not looked at by the collector (`gc=False`), so that a story that holds one would be kept by it."""
    for found in gc.get_objects():
        if type(found) is Held:
            found.feed = found.verbs = None  # type: ignore[assignment]  # nobody asks it any more


@contextmanager
def tidied() -> Iterator[None]:
    """What stories leave behind is collected after them, and not meanwhile: whatever a collection ends, it would end
    at a moment that no seed knows. A kill leaves coroutines where they are, of which nobody wants to hear."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    collects = gc.isenabled()
    gc.disable()
    gc.freeze()  # what was there before is not looked at
    try:
        # Whoever is killed closes nothing, and whatever is left of it is found here, by a real thread.
        with warnings.catch_warnings(), patch.object(forgotten, "close_soon", lambda _: None):
            warnings.simplefilter("ignore")
            yield
            logging.disable(logging.CRITICAL)
            let_go_of_messages()
            while gc.collect():
                pass  # the first ends coroutines where they are, and only the next takes what they held
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)


async def listen(listener: Listener, make: Callable[[], Connection], host: str, port: int, *_: object) -> Server:
    """A port of the simulated network, in which nothing waits to be accepted."""
    loop = listener.loop
    assert isinstance(loop, Loop)
    return await loop.create_server(make, host, port)


@contextmanager
def opened(world: World, network: Network, seed: int) -> Iterator[Threads]:
    """While it is open, the product's threads are this world's, and its chance comes from a seed."""
    threads = Threads(world)
    chance = random.Random(seed ^ 0x5EED)
    logger = logging.getLogger("headwater")
    handlers, propagates = logger.handlers[:], logger.propagate
    before = random.getstate()
    with ExitStack() as stack:
        made = SimpleNamespace(**{name: of_this_world(getattr(door, name), getattr(threads, name)) for name in NAMES})
        for name in NAMES:
            stack.enter_context(patch.object(door, name, getattr(made, name)))
        stack.enter_context(patch.object(futures, "threading", made))
        for name in ("now_us", "monotonic_us", "read", "wait"):  # of whoever was handed no other clock
            stack.enter_context(patch.object(SystemClock, name, clock_method(world, name)))
        # What is left out of a flood of lines is remembered from one story to the next.
        stack.enter_context(patch.object(Flood, "admits", lambda *_: True))
        own = random.Random()
        for module, name, drawn in (
            (secrets, "token_bytes", lambda length=32: chance.randbytes(length)),
            (os, "urandom", chance.randbytes),
        ):
            stack.enter_context(patch.object(module, name, of_this_world(getattr(module, name), drawn)))
        for name in ("random", "uniform"):  # what others draw is not missing here
            shared = of_this_world(getattr(own, name), getattr(random, name))
            stack.enter_context(patch.object(random, name, shared))
        stack.enter_context(patch.object(hashlib, "pbkdf2_hmac", pbkdf2_hmac))
        stack.enter_context(patch.object(accepting, "listen", listen))
        stack.enter_context(patch.object(os, "sched_yield", lambda: None))  # there is nobody to yield to
        random.seed(seed)
        stack.callback(random.setstate, before)
        logger.handlers, logger.propagate = [Notes(world)], False
        stack.callback(setattr, logger, "handlers", handlers)
        stack.callback(setattr, logger, "propagate", propagates)

        def new_loop() -> Loop:
            assert world.current is not None
            return Loop(world.current.process, network, threads)

        for module in (client_bus, client_receiver):
            stack.enter_context(patch.object(module, "new_loop", new_loop))
        stack.enter_context(patch.object(asyncio, "all_tasks", lambda loop=None: in_order(all_tasks(loop))))
        policy = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(Policy(world))
        stack.callback(asyncio.set_event_loop_policy, policy)
        try:
            yield threads
        finally:
            world.end()
            asyncio._set_running_loop(None)
