"""Consumers and buses that were garbage-collected without `close`: they are closed here, with a ResourceWarning, as
Python does it with files.

Python runs a finalizer in any thread, at any moment, whatever locks that thread holds; so they are closed by a thread
of its own.

A program that ends in order leaves in order, too: buses that are open then are closed, so that what their consumers had
counts no delivery. One that ends by an error that nobody caught does not, as a message may be what ended it.
"""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakMethod, WeakSet

from headwater import threads
from headwater.errors import HeadwaterError

P = ParamSpec("P")
R = TypeVar("R")

THREAD_NAME = "headwater-forgotten"
SETTLE_S = 10.0
"""How long `settle` waits for what is under way."""

_closing: dict[threads.Thread, None] = {}
_open: WeakSet[Any] = WeakSet()
"""Buses that are to be closed at the end of the process."""
_has_ended = False
"""The process is about to end: everything is let go of, and nothing begins."""


def has_ended() -> bool:
    """Whether the process is about to end, and nothing is told or done any more about what is let go of."""
    return _has_ended


def close_at_end(bus: Any) -> None:
    """Have a bus left in order when the process ends; it has `_close_at_end`."""
    _open.add(bus)


def let_go(what: object, said: str, close: Callable[[], object]) -> None:
    """Called where an object is finalised: close what it held, soon. `close` does not hold the object itself."""
    if not _has_ended:
        close_soon(close)
        warn_of(what, said, stacklevel=4)


def close_soon(close: Callable[[], object]) -> bool:
    """Have this done by a thread of its own; False if there can be none more, and it stays open."""
    thread = threads.Thread(target=_close, args=(close,), name=THREAD_NAME, daemon=True)
    _closing[thread] = None
    try:
        thread.start()
    except RuntimeError:
        del _closing[thread]
        return False
    return True


def warn_of(what: object, said: str, stacklevel: int = 3) -> None:
    """Tell, where an object is finalised, that it was not closed."""
    if not _has_ended:
        text = f"{said} was forgotten, and is closed now; close it yourself, or use it in `with`"
        warnings.warn(text, ResourceWarning, stacklevel=stacklevel, source=what)


def _close(close: Callable[[], object]) -> None:
    try:
        with suppress(HeadwaterError):  # what it belonged to is closed, and it with that
            close()
    finally:
        _closing.pop(threads.current_thread(), None)


def _quietly(close: Callable[[], object]) -> None:
    with suppress(Exception):  # nobody is there any more who could do something about it
        close()


def settle() -> bool:
    """Have everything closed that was forgotten, also in cycles; False if there was nothing."""
    gc.collect()
    under_way = list(_closing)
    _wait(under_way)
    return bool(under_way)


@atexit.register
def _end() -> None:
    """A thread that Python stops within the state store would take the process down with it."""
    global _has_ended  # noqa: PLW0603  (of the process, of which there is one)
    _has_ended = True
    if not isinstance(getattr(sys, "last_value", None), Exception):  # Ctrl-C is not a message's fault
        for bus in list(_open):
            close = partial(_quietly, bus._close_at_end)
            if not close_soon(close):  # as of Python 3.12, none begins once a process is about to end
                close()
    _wait(list(_closing))


def _wait(closing: list[threads.Thread]) -> None:
    for thread in closing:
        thread.join(SETTLE_S / len(closing))


def weakly(method: Callable[P, R]) -> Callable[P, R | None]:
    """A method that does not hold its object: once that is gone, nothing is done."""
    found = WeakMethod(method)

    def call(*args: P.args, **options: P.kwargs) -> R | None:
        known = found()
        return None if known is None else known(*args, **options)

    return call
