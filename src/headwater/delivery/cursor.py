"""A cursor: reads one stream onwards from a position, and finds the messages that a filter wants.

Everything that reads does it through here: durable subscriptions, replay, follow, the counting of lag. What was
purged or has outlived its ttl is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from headwater.config import Config
from headwater.log.purges import Purges
from headwater.log.root import Root
from headwater.store.batch import BadBatch, Batch
from headwater.store.log import Hole

Wanted = Callable[[str], bool]


class Cursor:
    """A place in a stream, moving on."""

    __slots__ = ("_bytes", "_read", "_wanted", "position", "root")

    def __init__(self, root: Root, wanted: Wanted, position: int, config: Config) -> None:
        self.root = root
        self.position = position
        """The next offset to look at."""
        self._wanted = wanted
        self._bytes = config.read_bytes
        self._read: list[Batch | Hole] = []

    def next(self, now_us: int, upto: int | None = None) -> tuple[Batch, Sequence[int]] | Hole | None:
        """The next batch with wanted messages and their places, or a hole; None at the end, or past `upto`."""
        while True:
            if upto is not None and self.position > upto:
                return None
            if not self._read:
                self._read = list(self.root.stream.read(self.position, self._bytes))[::-1]
            if not self._read:
                return None
            found = self._read.pop()
            if isinstance(found, Hole):
                self.position = found.last + 1
                if found.last <= self.root.purged_upto:
                    continue
                return found
            try:
                places = places_in(found, self._wanted, self.position, self.root.purges, now_us)
            except BadBatch as error:
                self.position = found.last_offset + 1
                return Hole(found.first_offset, found.last_offset, f"damaged: {error}")
            self.position = found.last_offset + 1
            if places:
                return found, places


def estimate(count: int, seen: int, unseen: int) -> int:
    """How many of all messages match, going by those that were seen; if none was, all may."""
    return count + (unseen if not seen else round(unseen * count / seen))


def places_in(batch: Batch, wanted: Wanted, position: int, purges: Purges, now_us: int) -> Sequence[int]:
    """The places of the messages in a batch, from a position on, that are wanted and still there."""
    body = batch.body
    selected = body.select(wanted)
    places: Sequence[int] = range(body.count) if selected is None else selected
    first = batch.first_offset
    if position > first:
        places = [place for place in places if first + place >= position]
    if purges.highest >= first:
        places = _unpurged(batch, places, purges)
    expiries = body.expiries
    if expiries is not None:
        places = [place for place in places if not 0 < expiries[place] <= now_us]
    return places


def _unpurged(batch: Batch, places: Sequence[int], purges: Purges) -> Sequence[int]:
    """Those of the places whose messages were not purged."""
    body, first = batch.body, batch.first_offset
    uptos = purges.uptos(body.names)
    reached = [upto for upto in uptos if upto >= first]
    if not reached:
        return places
    if min(reached) < batch.last_offset:  # it was purged while messages of it were there already, and others not yet
        topics, by_name = body.topics, dict(zip(body.names, uptos, strict=True))
        return [place for place in places if first + place > by_name[topics[place]]]
    left = body.places_of([number for number, upto in enumerate(uptos) if upto < first])
    return left if len(places) == body.count else sorted(set(left).intersection(places))


def keys_of(batch: Batch, places: Sequence[int]) -> list[bytes | str]:
    """What order="key" goes by: a message's key, or its topic when it has none."""
    body = batch.body
    topics, keys = body.topics, body.keys or tuple(repeat(None, body.count))
    return [topics[place] if keys[place] is None else keys[place] or b"" for place in places]
