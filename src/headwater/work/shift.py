"""A shift: what handlers did from the moment they were run until they stopped, in figures."""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct):
    """What became of the messages of one handler."""

    handler: str
    """The function's name."""
    subscription: str
    """The id; of a live subscription its filter."""
    done: int = 0
    """Handled, and acked."""
    retried: int = 0
    """Failed, and to be tried again; or dead, if it was their last attempt."""
    rejected: int = 0
    """Dead letters by the handler's own word."""
    recalled: int = 0
    """Handled, but too late, or on a connection that was lost: they come again."""
    busy_us: int = 0
    """Spent in the handler, over all workers."""


class Shift(msgspec.Struct, frozen=True):
    """What `bus.run()` returns."""

    seconds: float
    """How long it ran."""
    handlers: list[Tally]
    """In the order in which they were registered."""

    @property
    def done(self) -> int:
        """Messages that were handled, and acked."""
        return sum(tally.done for tally in self.handlers)

    @property
    def failed(self) -> int:
        """Messages whose handler raised something."""
        return sum(tally.retried + tally.rejected for tally in self.handlers)
