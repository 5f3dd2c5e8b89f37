"""The sources of columns: bodies of batches as they are stored, and rows of a lake.

A bus has one (`Bus._columns`): the embedded one goes through its streams, the served one has bodies sent to it. Both
go from history into the log without a gap or a repeat, as `replay` does, since they are what it reads with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, cast

from headwater.config import Connecting
from headwater.delivery.replay import After, Reading
from headwater.errors import Closed
from headwater.log.purges import Purges
from headwater.message import Extent, TopicInfo
from headwater.store.batch import Batch
from headwater.wire.contents import Deliver

NO_PURGES = Purges()
PREFETCH_MESSAGES = 50_000
PREFETCH_BYTES = 16 << 20
"""The prefetch window of a served reading, at least: a few record batches."""


def window(settings: Connecting) -> tuple[int, int]:
    """How many messages, and how many bytes of them, a server may send ahead."""
    return max(settings.prefetch_messages, PREFETCH_MESSAGES), max(settings.prefetch_bytes, PREFETCH_BYTES)


class Piece(NamedTuple):
    """A body, and what of it is asked for."""

    root: str
    first_offset: int
    last_offset: int
    body: bytes
    deltas: Sequence[int] | None = None
    """How far each offset is from the first; None if they are dense."""
    first: int = 1
    last: int = 1 << 62
    purges: Purges = NO_PURGES


class Archived(NamedTuple):
    """Rows of a root that a lake has."""

    root: str
    rows: Any


class Source(Protocol):
    """Gives the messages of a reading, some at a time."""

    def next(self) -> Piece | Archived | None:
        """What comes next, by root in the order of offsets; None at the end. It may raise a Gap, and be asked on."""

    def close(self) -> None:
        """Read no more."""


class Readable(Protocol):
    """What a bus is for whoever reads it as columns; may be asked from any thread but that of a loop of its own."""

    @property
    def now(self) -> datetime: ...

    def extents(self, filter: str = "#", moments: Sequence[datetime] = ()) -> list[Extent]: ...

    def topics(self, filter: str = "#") -> list[TopicInfo]: ...

    def _columns(
        self,
        filter: str,
        columns: Sequence[str],
        *,
        after: After = None,
        since: datetime | None = None,
        upto: Mapping[str, int] | None = None,
    ) -> Source: ...


class SentReading(Protocol):
    """What a server sends of a reading."""

    def take_batch(self) -> Deliver | None: ...
    def close(self) -> None: ...


class Received:
    """The messages of a served bus."""

    def __init__(self, reading: SentReading) -> None:
        self._reading = reading

    def next(self) -> Piece | None:
        """What comes next; the server has left out what is not asked for."""
        found = self._reading.take_batch()
        if found is None:
            return None
        last = found.first_offset + (found.count - 1 if found.deltas is None else found.deltas[-1])
        return Piece(found.root, found.first_offset, last, found.body, found.deltas)

    def close(self) -> None:
        """Read no more."""
        self._reading.close()


class Stored:
    """The messages of an embedded bus."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._begins = reading.begins

    def next(self) -> Piece | Archived | None:
        """What comes next."""
        found = self._reading.take_unsifted()
        if found is None:
            if self._reading.is_closed:
                raise Closed("the reading was closed before its end")
            return None
        root, lot, last = found
        if not isinstance(lot, Batch):
            return Archived(root.name, cast(Any, lot).batch)
        begin = self._begins[root.name]
        return Piece(root.name, lot.first_offset, lot.last_offset, lot.data, None, begin, last, root.purges)

    def close(self) -> None:
        """Read no more."""
        self._reading.close()
