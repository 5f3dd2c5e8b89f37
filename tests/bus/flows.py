"""What the tests of the embedded bus share: waiting, counting, and keeping the committing thread busy."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import headwater
from headwater import Config, ManualClock, Message, Retention
from headwater.bus import Bus

WAIT_S = 60.0
SMALL = Config(segment_bytes=64 * 1024)


def settle(bus: Bus) -> None:
    """Return when every timer that is due by now has rung, and retention is done."""
    for _ in range(2):  # the second for those that the first ones set
        done = threading.Event()
        bus.core.timers.set(done, bus.core.clock.monotonic_us(), done.set)
        assert done.wait(WAIT_S)
        bus.core.upkeep.join()
    bus.core.rows.run(lambda: None)  # what they stored is there


def payloads(messages: Iterable[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def some(sub: Any, count: int, timeout_s: float = WAIT_S) -> list[Message]:
    """So many messages, waiting for each."""
    found: list[Message] = []
    for _ in range(count):
        message = sub.next(timeout_s=timeout_s)
        assert message is not None, f"{len(found)} of {count} messages came: {payloads(found)}"
        found.append(message)
    return found


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def publish_numbers(bus: Bus, count: int, topic: str = "jobs/x", first: int = 0) -> None:
    bus.publish_many([(topic, payload) for payload in numbers(count, first)])


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S * 3)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Held:
    """Keeps the thread that commits busy, so that what is published meanwhile makes one group."""

    def __init__(self, bus: Bus) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: bus.core.roots.commit.run(self._hold), daemon=True)

    def _hold(self) -> None:
        self._inside.set()
        self._go_on.wait(WAIT_S)

    def __enter__(self) -> Held:
        self._thread.start()
        assert self._inside.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(WAIT_S)


def aged(folder: Path, clock: ManualClock, **rule: Any) -> Bus:
    return headwater.open(folder, Config(segment_bytes=64 * 1024, retention=Retention(**rule)), clock=clock)


def with_dead(bus: Bus, count: int = 3, **options: Any) -> Any:
    """A subscription with so many dead letters."""
    sub = bus.subscribe("jobs/#", id="s", start="earliest", **options)
    publish_numbers(bus, count)
    for message in sub.batch(100, WAIT_S):
        message.reject(f"no {message.payload.decode()}")
    return sub
