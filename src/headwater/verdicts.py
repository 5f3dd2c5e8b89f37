"""What is said of messages that are handled: what an error says, and what their handler said by hand.

While a message is in a handler or a `with` block, it is known whether somebody acked, nacked or rejected it there: that
counts, and the end of the handler or block then says nothing more.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Literal

import msgspec

from headwater.errors import Malformed, Reject, Retry

TRACE_BYTES_MAX = 1024
"""Of an error with its traceback: as much as is kept of an error, unless `error_bytes_max` says otherwise."""

Said = Literal["", "ack", "nack", "reject"]
"""What was said of a message by hand, if anything."""


class Verdict(msgspec.Struct, frozen=True):
    """What is to become of a message that failed."""

    text: str
    delay_s: float | None = None
    is_final: bool = False


def error_text(error: object) -> str:
    """What is stored of an error: its text, or an exception's type and text."""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    if not isinstance(error, str):
        raise Malformed(f"error is of type {type(error).__name__}; give a str or an exception")
    return error.encode("utf-8", "replace").decode()


def verdict_of(error: BaseException, trace: TracebackType | None) -> Verdict:
    """What an error says about the message that it was raised over."""
    if isinstance(error, Reject):
        return Verdict(error_text(str(error)), is_final=True)
    if isinstance(error, Retry):
        return Verdict(error_text(str(error)), delay_s=error.after_s)
    return Verdict(traced(error, trace))


def traced(error: BaseException, trace: TracebackType | None) -> str:
    """An error with its traceback: what it is comes first, and what is too long loses its outermost calls."""
    head = "".join(traceback.format_exception_only(error)).strip()
    left = TRACE_BYTES_MAX - len(head.encode(errors="replace"))
    calls: list[str] = []
    for call in reversed(traceback.format_tb(trace)):
        left -= len(call.encode(errors="replace"))
        if left < 0:
            break
        calls.insert(0, call)
    return error_text("\n".join((head, *calls)).rstrip())


class _Handled:
    """A message that is in a handler or a block."""

    __slots__ = ("depth", "message", "said")

    def __init__(self, message: object) -> None:
        self.message = message  # held, so that its identity is nobody else's
        self.said: Said = ""
        self.depth = 1


_handled: dict[int, _Handled] = {}
"""By identity."""


def begin(message: object) -> None:
    """A handler, or a block, begins with a message."""
    handled = _handled.get(id(message))
    if handled is None:
        _handled[id(message)] = _Handled(message)
    else:
        handled.depth += 1


def end(message: object) -> Said:
    """It is over; what was said of its message by hand."""
    handled = _handled[id(message)]
    handled.depth -= 1
    if not handled.depth:
        del _handled[id(message)]
    return handled.said


def note(messages: Iterable[object], what: Said) -> None:
    """This was said of messages."""
    for message in messages if _handled else ():
        handled = _handled.get(id(message))
        if handled is not None:
            handled.said = what
