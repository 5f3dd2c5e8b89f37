"""What every reader for threads has: consumers, live subscriptions, history and receivers, embedded or served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import isfinite
from types import TracebackType
from typing import Self

from headwater.errors import Closed, HeadwaterError, Malformed
from headwater.message import Message, fail
from headwater.verdicts import verdict_of


class Reader(ABC):
    """Takes messages in its caller's thread; a `with` block closes it at its end.

    What an error leaves the block with, of a durable subscription, is nacked with that error: messages that were taken
    last and are not acked.
    """

    _keeps: object = None
    """What lives as long as it: the bus that it was made by."""
    _last: Sequence[Message] = ()
    """What a consumer handed out last."""

    @abstractmethod
    def batch(self, max: int = 100, timeout_s: float | None = None) -> list[Message]:
        """Up to `max` messages that are there; waits for the first of them."""

    @abstractmethod
    def close(self) -> None:
        """Take no more."""

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when the time has passed, or at the end of history."""
        found = self.batch(1, timeout_s)
        return found[0] if found else None

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.next()
            except Closed:
                return
            if message is not None:
                yield message

    def __repr__(self) -> str:
        return told_of(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if isinstance(error, Exception) and self._last:  # Ctrl-C is not the messages' fault
                verdict = verdict_of(error, trace)
                for message in self._last:
                    with suppress(HeadwaterError):  # done already, or taken back behind one that failed
                        fail(message, verdict)
        finally:
            self.close()


def told_of(reader: object) -> str:
    """What a reader's repr says: what it is, of what, and whether it goes on."""
    name, wanted = getattr(reader, "id", None), getattr(reader, "filter", "")
    dropped = getattr(reader, "dropped", 0)
    is_closed = bool(getattr(reader, "_closed", False)) or getattr(reader, "ended", None) is not None
    told = (
        type(reader).__name__.removeprefix("Embedded"),
        f'"{name}" of "{wanted}"' if name else f'"{wanted}"',
        f"({dropped} dropped)" if dropped else "",
        "(closed)" if is_closed else "",
    )
    return f"<{' '.join(part for part in told if part)}>"


def check_take(max: int, timeout_s: float | None) -> None:
    """Malformed (422) unless a batch of so many can be asked for, and waited for so long."""
    if type(max) is not int or max < 1:
        raise Malformed(f"a batch of {max!r} messages; ask for 1 or more")
    if timeout_s is not None:
        check_timeout(timeout_s)


def check_timeout(timeout_s: float) -> None:
    """Malformed (422) unless so long can be waited."""
    try:
        if isfinite(timeout_s):
            return
    except (TypeError, OverflowError):
        pass
    raise Malformed(f"timeout_s is {timeout_s!r}; use a number of seconds, or leave it out")
