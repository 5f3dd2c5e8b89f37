"""What is retained, read for one subscription: slice by slice, as its reader takes it.

Whoever subscribes gets all that was retained when it subscribed, however much that is, and nobody keeps it for them:
what is kept is how far in the topics they are. Promises: no more than a slice is in memory; a message that was
published after the subscription began comes by itself, and not from here; slices are read outside of every lock and
loop.
"""

from __future__ import annotations

from collections import deque

from headwater.clock import Clock
from headwater.config import KIB
from headwater.delivery.rows import RetainedRef, RetainedRest, Waiting
from headwater.delivery.selection import Selection
from headwater.log.root import retained_message
from headwater.log.roots import Roots
from headwater.message import Message, expiry_of

FIRST_ROWS = 100
"""Rows that are looked at while somebody subscribes: few retained messages come as they were then."""
RETAINED_ROWS = 128
RETAINED_BYTES = 256 * KIB
"""Rows that are looked at in one slice, and bytes of messages with which it ends."""


class RetainedReading:
    """The retained messages that a filter matches, as of when it was made."""

    __slots__ = ("_after", "_at", "_clock", "_covered", "_filter", "_found", "_roots")

    def __init__(self, roots: Roots, clock: Clock, filter: str, first_rows: int = 0) -> None:
        """In the committing role, so that what is published from now on is told apart; the first rows are looked at."""
        self._roots = roots
        self._clock = clock
        self._filter = filter
        self._covered = [(root, root.stream.durable) for root in roots.covered(filter) if root.retained.count]
        self._at = 0
        self._after = ""
        self._found: deque[Selection] = deque()
        if first_rows and self.is_unread:
            self.read_on(first_rows)

    @property
    def is_over(self) -> bool:
        """Whether all of them were taken."""
        return not self._found and self._at >= len(self._covered)

    @property
    def is_unread(self) -> bool:
        """Whether the next of them are still to be read."""
        return not self._found and self._at < len(self._covered)

    def take(self) -> Selection | None:
        """The next of those that were read, without those whose ttl is over by now."""
        if not self._found:
            return None
        found = self._found.popleft()
        now_us = self._clock.now_us()
        if any(0 < expiry_of(one) <= now_us for one in found.messages):
            valid = [one for one in found.messages if not 0 < expiry_of(one) <= now_us]
            return Selection(found.root, None, len(valid), None, valid)
        return found

    def read_on(self, rows_max: int = RETAINED_ROWS) -> None:
        """Read the next slice; by one thread at a time, and not in a loop."""
        found, at, after = self._roots.look_at(lambda: self._look(rows_max))
        self._found.extend(found)  # first: whoever takes meanwhile must not think that it was all
        self._at, self._after = at, after

    def _look(self, rows_max: int) -> tuple[list[Selection], int, str]:
        """A slice, and how far it goes; this may be called again, and changes nothing."""
        at, after, left, room, now_us = self._at, self._after, rows_max, RETAINED_BYTES, self._clock.now_us()
        selections: list[Selection] = []
        while at < len(self._covered) and left > 0 and room > 0:
            root, upto = self._covered[at]
            if self._roots.get(root.name) is root:
                page = root.retained.page(self._filter, after, now_us, left, room)
                messages = [retained_message(row, topic) for topic, row in page.found if row.offset <= upto]
                if messages:
                    selections.append(Selection(root.name, None, len(messages), None, messages))
                left -= page.looked
                room -= page.size
                if page.last is not None:
                    after = page.last
                    continue
            at, after = at + 1, ""
        return selections, at, after


def retained_messages(roots: Roots, filter: str, now_us: int) -> list[Message]:
    """Retained messages that a filter matches, by topic."""
    return [
        retained_message(row, topic)
        for root in roots.covered(filter)
        for topic, row in root.retained.find(filter, now_us)
    ]


def retained_copies(
    roots: Roots, filter: str, upto: dict[int, int], now_us: int
) -> tuple[dict[int, dict[int, Waiting]], dict[int, RetainedRest]]:
    """By stream and offset; those above the offset of their stream come by themselves. So many are looked at as
    nobody notices, and of each stream it is told what is left to look at."""
    found: dict[int, dict[int, Waiting]] = {}
    rests: dict[int, RetainedRest] = {}
    left = FIRST_ROWS
    for root in roots.covered(filter):
        number, after = root.stream.number, "" if root.retained.count else None
        if after is not None and left > 0:
            page = root.retained.page(filter, after, now_us, left, RETAINED_BYTES)
            for topic, row in page.found:
                if row.offset <= upto[number]:
                    found.setdefault(number, {})[row.offset] = RetainedRef(topic, row.key)
            left, after = left - page.looked, page.last
        if after is not None:
            rests[number] = RetainedRest(after, upto[number])
    return found, rests
