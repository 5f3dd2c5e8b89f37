"""What tests of handlers share: a shift in a thread of its own, and waiting for what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headwater.work.shift import Shift

WAIT_S = 60.0


class Running:
    """Handlers that are being run."""

    def __init__(self) -> None:
        self.shift: Shift
        self.error: BaseException | None = None

    def tally(self) -> dict[str, int]:
        (one,) = self.shift.handlers
        return {name: getattr(one, name) for name in ("done", "retried", "rejected", "recalled")}


@contextmanager
def running(bus: Any, **options: Any) -> Iterator[Running]:
    """Run the handlers of a bus for threads, until the end of the block."""
    found = Running()

    def work() -> None:
        try:
            found.shift = bus.run(**options)
        except BaseException as error:
            found.error = error

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield found
    finally:
        bus.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if found.error is not None:
        raise found.error


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something."""
    waiting = threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if is_so():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not happen")
