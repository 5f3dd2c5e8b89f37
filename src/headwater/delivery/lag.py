"""The lag of a durable subscription: how many messages there are that nothing is known of yet, root by root.

Promises: each batch is counted once; who is in a hurry has the rest estimated. No locks: whoever serves the
subscription holds its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from headwater.clock import Clock
from headwater.config import Config
from headwater.delivery.cursor import Cursor, Matcher, estimate
from headwater.delivery.subscription import Subscription
from headwater.log.root import Root
from headwater.store.log import Hole
from headwater.topics.name import is_everything_of


class Lag:
    """That of one subscription."""

    __slots__ = ("_clock", "_config", "_machine", "_matcher", "_roots", "counted")

    def __init__(
        self, machine: Subscription, matcher: Matcher, roots: Mapping[int, Root], config: Config, clock: Clock
    ) -> None:
        """`roots` are those that there are, by their streams."""
        self._machine = machine
        self._matcher = matcher
        self._roots = roots
        self._config = config
        self._clock = clock
        self.counted: dict[int, tuple[int, int]] = {}
        """Per stream: up to which offset messages were counted, and how many matching ones there were."""

    def pending(self, stream: int, known: set[tuple[int, int]]) -> int:
        """Matching messages that nothing is known of yet; each batch is looked at once."""
        return self._count(stream, known, None)[0]

    def pending_roughly(self, stream: int, messages_max: int) -> tuple[int, int]:
        """The same without looking at more than about so many messages, the others estimated; and how many those
        are."""
        root, ahead, position = self._roots[stream], self._machine.ahead(stream), self._machine.position(stream)
        if is_everything_of(self._matcher.filter, root.name) and not root.purges:
            return root.stream.durable - max(position, root.stream.first_offset) + 1 - len(ahead), 0
        count, unseen = self._count(stream, {(stream, offset) for offset in ahead}, messages_max)
        return estimate(count, self.counted[stream][0] - position + 1, unseen), unseen

    def _count(self, stream: int, known: set[tuple[int, int]], messages_max: int | None) -> tuple[int, int]:
        position = self._machine.position(stream)
        upto, count = self.counted.get(stream, (position - 1, 0))
        if upto < position - 1:
            upto, count = position - 1, 0
        root = self._roots[stream]
        cursor = Cursor(root, self._matcher, upto + 1, self._config)
        last = None if messages_max is None else upto + messages_max
        now_us = self._clock.now_us()
        while (found := cursor.next(now_us, last)) is not None:
            if not isinstance(found, Hole):
                first = found[0].first_offset
                count += sum((stream, first + place) not in known for place in found[1]) if known else len(found[1])
        self.counted[stream] = (cursor.position - 1, count)
        return count, max(0, root.stream.durable - cursor.position + 1)

    def recount(self, stream: int) -> None:
        """What is pending has changed otherwise than by being handed out."""
        self.counted.pop(stream, None)

    def count_down(self, stream: int, offsets: Sequence[int]) -> None:
        """These are pending no more; those of which something was known were not counted as if they were."""
        known = self.counted.get(stream)
        if known is not None:
            upto, count = known
            first, last, ahead = offsets[0], offsets[-1], self._machine.ahead(stream)
            handed = len(offsets) - (bisect_right(ahead, last) - bisect_left(ahead, first) if ahead else 0)
            if last > upto or count < handed:
                del self.counted[stream]
            else:
                self.counted[stream] = (upto, count - handed)
