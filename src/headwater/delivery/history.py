"""History: what a log no longer has, and somebody else kept.

A reading that meets a hole in the log asks a `History` for it before it calls it a gap. The lake is one; nothing here
knows how it is read. Promises: what is asked for comes in order, once, in lots of bounded size; what nobody has is
told as a hole; a lot that could not be read is read again by the next try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any, Protocol, TypeVar

import msgspec

from headwater.log.purges import Purges
from headwater.message import Headers, Message
from headwater.store.log import Hole

Wanted = Callable[[str], bool]
T = TypeVar("T")


class Stretch(msgspec.Struct, frozen=True):
    """Offsets of a root that the log does not have."""

    root: str
    first: int
    last: int
    reason: str
    """Why the log does not have them."""
    since_us: int | None = None
    """Begin with the first message sent at or after this, and miss nothing before it; None: begin with `first`."""


class Lot(msgspec.Struct, frozen=True):
    """Some messages of a root, in order, as columns; there may be none."""

    root: str
    upto: int
    """Everything up to here was looked at."""
    offsets: Sequence[int] = ()
    topics: Sequence[str] = ()
    payloads: Sequence[bytes] = ()
    times_us: Sequence[int] = ()
    keys: Sequence[bytes | None] = ()
    headers: Sequence[Headers] = ()

    @property
    def time_us(self) -> int:
        """When the first of them was sent."""
        return self.times_us[0]

    def messages(self, origin: Any = None) -> list[Message]:
        """The messages themselves."""
        columns = (self.topics, self.offsets, self.payloads, self.times_us, self.keys, self.headers)
        return list(map(Message, *columns, repeat(False), repeat(1), repeat(origin)))

    def without(self, purges: Purges) -> Lot:
        """Without messages that were purged."""
        if not self.offsets or purges.highest < self.offsets[0]:
            return self
        hides, columns = purges.hides, (self.topics, self.offsets, self.keys)
        return self._picked([not hides(*message) for message in zip(*columns, strict=True)])

    def _picked(self, chosen: Sequence[bool]) -> Lot:
        def pick(column: Sequence[T]) -> list[T]:
            return list(compress(column, chosen))

        return Lot(
            *(self.root, self.upto, pick(self.offsets), pick(self.topics), pick(self.payloads), pick(self.times_us)),
            *(pick(self.keys), pick(self.headers)),
        )


class History(Protocol):
    """Whoever keeps what the log forgets."""

    def read(self, stretch: Stretch, wanted: Wanted, columns: Sequence[str] | None = None) -> Iterator[Lot | Hole]:
        """The messages of a stretch whose topics are wanted; nothing is looked up before the first is asked for.

        With `columns`, lots are rows of Arrow with these.
        """


class Past:
    """Reads one stretch, and knows how far it is."""

    __slots__ = ("_columns", "_history", "_lots", "_stretch", "_wanted")

    def __init__(
        self, history: History, stretch: Stretch, wanted: Wanted, columns: Sequence[str] | None = None
    ) -> None:
        self._history = history
        self._columns = columns
        self._stretch = stretch
        self._wanted = wanted
        self._lots: Iterator[Lot | Hole] | None = None

    def next(self) -> Lot | Hole | None:
        """What comes next; None at the end of the stretch."""
        if self._stretch.first > self._stretch.last:
            return None
        if self._lots is None:
            self._lots = self._history.read(self._stretch, self._wanted, self._columns)
        try:
            found = next(self._lots, None)
        except BaseException:
            self._lots = None  # an iterator that failed would pass for one at its end
            raise
        if found is not None:
            seen = found.last if isinstance(found, Hole) else found.upto
            self._stretch = msgspec.structs.replace(self._stretch, first=seen + 1, since_us=None)
        return found
