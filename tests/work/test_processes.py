"""Processes that run handlers and end in the middle of one: SIGTERM finishes it, kill -9 has its message come again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headwater
from cli.command import ENVIRONMENT
from client.served import Served
from work.shifts import WAIT_S, until

THREADS = """
import os, sys, time, headwater
where, notes, slow = sys.argv[1:]
bus = headwater.connect(where) if "://" in where else headwater.open(where)

@bus.handler("a/#", id="s", start="earliest", ORDER)
def handle(message):
    os.write(1, b"begun %d %d\\n" % (message.offset, message.attempt))
    while message.offset == int(slow) and not os.path.exists(notes):
        time.sleep(0.01)
    os.write(1, b"done %d\\n" % message.offset)

with bus:
    shift = bus.run()
os.write(1, b"left %d\\n" % shift.done)
"""
TASKS = """
import asyncio, os, sys, headwater.aio
where, notes, slow = sys.argv[1:]
bus = headwater.aio.connect(where) if "://" in where else headwater.aio.open(where)

@bus.handler("a/#", id="s", start="earliest", ORDER)
async def handle(message):
    os.write(1, b"begun %d %d\\n" % (message.offset, message.attempt))
    while message.offset == int(slow) and not os.path.exists(notes):
        await asyncio.sleep(0.01)
    os.write(1, b"done %d\\n" % message.offset)

shift = asyncio.run(bus.run())
os.write(1, b"left %d\\n" % shift.done)
"""
SCRIPTS = {"threads": THREADS, "tasks": TASKS}
COUNT = 20
SLOW = 7


class Process:
    """A process that runs handlers, and what it said."""

    def __init__(self, script: str, where: str, notes: Path, slow: int, order: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", script.replace("ORDER", order), where, str(notes), str(slow)],
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (nothing else is done there)
        )
        self.lines: list[str] = []

    def read_until(self, line: str) -> None:
        assert self._child.stdout is not None
        while not self.lines or self.lines[-1] != line:
            found = self._child.stdout.readline().decode().strip()
            assert found, f"it ended: {self.lines}"
            self.lines.append(found)

    def signal(self, number: int) -> None:
        os.kill(self._child.pid, number)

    def end(self) -> int:
        rest, _ = self._child.communicate(timeout=WAIT_S)
        self.lines += rest.decode().split("\n")[:-1]
        return self._child.returncode

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()

    def offsets(self, word: str) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith(word)]


@contextmanager
def place(kind: str, folder: Path) -> Iterator[str]:
    """Where a process is to work: a folder, or a server on it."""
    with headwater.open(folder) as bus:
        bus.publish_many([("a/b", b"%d" % number) for number in range(COUNT)])
    if kind == "embedded":
        yield str(folder)
        return
    with Served(folder) as served:
        yield served.url


@contextmanager
def process(*arguments: Any) -> Iterator[Process]:
    made = Process(*arguments)
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize(
    ("kind", "script", "number"),
    [
        ("embedded", "threads", signal.SIGTERM),
        ("embedded", "tasks", signal.SIGINT),
        ("served", "threads", signal.SIGINT),
        ("served", "tasks", signal.SIGTERM),
    ],
)
def test_a_signal_finishes_the_handlers_that_run_and_takes_no_more(
    tmp_path: Path, kind: str, script: str, number: int
) -> None:
    notes, order = tmp_path / "go", 'order="strict"'
    with place(kind, tmp_path / "data") as where:
        with process(SCRIPTS[script], where, notes, SLOW, order) as worker:
            worker.read_until(f"begun {SLOW} 1")
            worker.signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                worker._child.wait(0.3)  # it waits for its handler
            notes.touch()
            assert worker.end() == 0
        assert worker.offsets("done") == list(range(1, SLOW + 1))
        assert worker.lines[-1] == f"left {SLOW}"
        with process(SCRIPTS[script], where, notes, SLOW, order) as worker:
            worker.read_until(f"done {COUNT}")
            worker.signal(number)
            assert worker.end() == 0
        assert worker.offsets("begun") == list(range(SLOW + 1, COUNT + 1))
        assert all(line.endswith(" 1") for line in worker.lines if line.startswith("begun"))


@pytest.mark.parametrize(("kind", "script"), [("embedded", "threads"), ("served", "threads"), ("served", "tasks")])
def test_after_kill_9_what_was_not_acked_comes_again_and_nothing_is_lost(
    tmp_path: Path, kind: str, script: str
) -> None:
    notes, order = tmp_path / "go", 'order="strict"'
    with place(kind, tmp_path / "data") as where:
        with process(SCRIPTS[script], where, notes, SLOW, order) as worker:
            worker.read_until(f"begun {SLOW} 1")
            worker.signal(signal.SIGKILL)
            assert worker.end() == -signal.SIGKILL
        notes.touch()
        with process(SCRIPTS[script], where, notes, SLOW, order) as worker:
            worker.read_until(f"done {COUNT}")
            worker.signal(signal.SIGTERM)
            assert worker.end() == 0
        again = worker.offsets("begun")
        assert again[0] <= SLOW
        assert again == list(range(again[0], COUNT + 1))


def test_the_second_signal_does_not_wait(tmp_path: Path) -> None:
    with place("embedded", tmp_path / "data") as where:
        with process(THREADS, where, tmp_path / "never", SLOW, 'order="strict"') as worker:
            worker.read_until(f"begun {SLOW} 1")
            worker.signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker._child.wait(1.5)  # in which what was handled before is acked
            worker.signal(signal.SIGINT)
            assert worker.end() != 0
        with headwater.open(where) as bus, bus.subscribe("a/#", id="s") as sub:
            message = sub.next(WAIT_S)
            assert message is not None
            assert (message.offset, message.attempt) == (SLOW, 1)


def test_several_workers_of_a_server_share_a_subscription_and_one_that_dies_costs_nothing(tmp_path: Path) -> None:
    notes, order = tmp_path / "go", 'order="none", workers=1, max_in_flight=4'
    with place("served", tmp_path / "data") as url:
        with process(THREADS, url, notes, 1, order) as first:
            first.read_until("begun 1 1")
            with process(THREADS, url, notes, 0, order) as second, headwater.connect(url) as bus:
                first.signal(signal.SIGKILL)
                first.end()
                until(lambda: bus.subscriptions()[0].lag == 0)
                second.signal(signal.SIGTERM)
                assert second.end() == 0
        assert sorted({*first.offsets("done"), *second.offsets("done")}) == list(range(1, COUNT + 1))
