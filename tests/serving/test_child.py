"""A process beside the server: told at its start, begun again when it ends, and ended with the server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headwater.serving import child
from headwater.serving.child import Child

ECHO = "import sys; print(sys.stdin.readline().strip(), flush=True); print(sys.stdin.readline().strip(), flush=True)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


class Told(msgspec.Struct):
    """What these are told."""

    word: str


class Beside:
    """A child, and what came of it."""

    def __init__(self, code: str, after: Callable[[Beside], None] = lambda _: None) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.ends: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self.pids: list[int] = []
        self._after = after
        command = (sys.executable, "-c", code)
        self.child = Child(command, lambda: Told("hello"), self._hear, self._on_end, 0.01, 0.02)

    async def _hear(self, pid: int, output: asyncio.StreamReader) -> None:
        self.pids.append(pid)
        while line := await output.readline():
            self.said.put_nowait(line.strip())
            self._after(self)

    def _on_end(self, *end: Any) -> None:
        self.ends.put_nowait(end)


def test_it_is_told_at_its_start_and_later_and_begun_again_with_growing_delays() -> None:
    async def run() -> None:
        beside = Beside(ECHO, lambda one: one.child.tell(b"more\n"))
        beside.child.start()
        async with asyncio.timeout(60):
            for _ in range(3):
                assert [await beside.said.get(), await beside.said.get()] == [b'{"word":"hello"}', b"more"]
            ends = [await beside.ends.get() for _ in range(3)]
        await beside.child.stop()
        assert ends == [(0, 0.01), (0, 0.02), (0, 0.02)]
        assert len(set(beside.pids)) >= 3

    asyncio.run(run())


def test_one_that_ended_before_it_was_told_is_begun_again() -> None:
    async def run() -> None:
        beside = Beside("raise SystemExit(3)")
        beside.child.start()
        async with asyncio.timeout(60):
            assert [(await beside.ends.get())[0] for _ in range(2)] == [3, 3]
        await beside.child.stop()

    asyncio.run(run())


def test_one_that_does_not_end_by_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "END_S", 0.01)

    async def run() -> None:
        beside = Beside(DEAF)
        beside.child.start()
        async with asyncio.timeout(60):
            await beside.said.get()
            await beside.child.stop()
        beside.child.tell(b"nobody hears this\n")
        assert beside.ends.empty()  # it is not begun again

    asyncio.run(run())


def test_one_that_was_never_started_is_stopped_all_the_same() -> None:
    beside = Beside(ECHO)
    asyncio.run(beside.child.stop())
    assert beside.pids == []
