"""How large a micro-batch is: its limits count the messages that match.

Where a filter is not all of a root, they are counted before anything of them is read: by the topics of each batch, on
the disk or by the server. That is bounded: of what a look does not reach, every message counts, so that a filter that
matches next to nothing in a long log moves on by a long stretch each time, and never by less than the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from headwater.spark.spans import Extent, Log, share
from headwater.spark.topics import Topics
from headwater.store.log import Counted

LOOK_BYTES_MAX = 64 << 20
"""What is read to count the messages of one micro-batch; a batch takes at least 4 KiB of it. Beyond that, every message
counts."""


Looking = Callable[[], AbstractContextManager[Log]]


def ends_of(
    looking: Looking, topics: Topics, begin: Mapping[str, int], backlog: Mapping[str, int], limit: int
) -> dict[str, int]:
    """Where a micro-batch of so many messages ends in each root: what matches is shared in proportion to what waits,
    and what one root has not goes to the others."""
    if all(map(topics.is_everything_of, backlog)):
        return {root: begin[root] + more for root, more in share(backlog, limit).items()}
    with looking() as log:
        return _ends_of(log, topics, begin, backlog, limit)


def _ends_of(
    log: Log, topics: Topics, begin: Mapping[str, int], backlog: Mapping[str, int], limit: int
) -> dict[str, int]:
    ends, left, look = dict(begin), limit, LOOK_BYTES_MAX
    waiting = {root: count for root, count in backlog.items() if count}
    while left and waiting:
        shares = share(waiting, left)
        is_all = shares == waiting
        for root, quota in shares.items():
            if not quota:
                continue
            first, last = ends[root], begin[root] + backlog[root] - 1
            end, taken = first + quota, quota
            if not is_all and look > 0 and not topics.is_everything_of(root):
                found = log.count(root, first, last, topics, quota, look)
                look -= found.bytes
                if found.messages >= quota or found.end > last:
                    end, taken = found.end, found.messages
                else:  # it was not looked at all of it
                    end = max(end, found.end)
            ends[root], left = end, left - taken
            waiting[root] = last + 1 - end
        waiting = {root: count for root, count in waiting.items() if count}
    return ends


class Waiting:
    """How many matching messages wait behind a place, counted as they come: each batch is looked at once."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int, int]] = {}
        """By root: from where on they were counted, up to where, and how many there are."""

    def are(
        self,
        least: int,
        looking: Looking,
        topics: Topics,
        start: Mapping[str, int],
        extents: Mapping[str, Extent],
    ) -> bool:
        """Whether there are so many; where that takes more than one look, the next one goes on."""
        total, unseen = 0, []
        for root, extent in extents.items():
            begin = start.get(root, extent.first)
            if topics.is_everything_of(root):
                total += max(0, extent.end - begin)
                continue
            if self._counted.get(root, (0, 0, 0))[0] != begin:
                self._counted[root] = (begin, begin, 0)
            _, upto, count = self._counted[root]
            total += count
            if upto < extent.end:
                unseen.append(root)
        if total < least and unseen:
            with looking() as log:
                total += self._count(log, unseen, topics, extents, least - total)
        return total >= least

    def _count(self, log: Log, roots: Sequence[str], topics: Topics, extents: Mapping[str, Extent], wanted: int) -> int:
        """How many more there are, until there are so many, as far as one look goes."""
        total, look = 0, LOOK_BYTES_MAX
        for root in roots:
            if total >= wanted or look <= 0:
                break
            begin, upto, count = self._counted[root]
            end = extents[root].end
            found = log.count(root, upto, end - 1, topics, wanted - total, look)
            if found.end <= upto:
                found = Counted(end, end - upto)  # nobody can tell: every message counts
            self._counted[root] = (begin, found.end, count + found.messages)
            total, look = total + found.messages, look - found.bytes
        return total
