"""A cursor: reads one stream onwards from a position, and finds the messages that a filter wants.

Everything that reads does it through here: durable subscriptions, replay, follow, the counting of lag. What was
purged or has outlived its ttl is passed over.

A look that others wait behind, as on the server's loop, has a budget: it goes through so many batches that are in
memory and no more, and reads no disk. What is beyond that is `UNREAD`: `read_on` reads it, a slice at a time, in a
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import repeat
from typing import Final, Literal

import msgspec

from headwater.config import Config
from headwater.log.purges import Purges
from headwater.log.root import Root
from headwater.store.batch import BadBatch, Batch
from headwater.store.body import Body
from headwater.store.log import Hole
from headwater.topics.dictionary import DICTIONARY_TOPICS_MIN, dictionary_of
from headwater.topics.name import compile_filter

LOOK_BATCHES = 64
"""Batches that a look goes through in one turn of a loop,"""
LOOK_BYTES = 1024 * 1024
"""and their bytes, about."""
SLICE_BATCHES = 128
"""The same for a slice that a thread reads."""
SLICE_BYTES = 2 * 1024 * 1024
READ_BYTES_MIN = 64 * 1024
"""What is asked of the disk at first; more each time where batches are large, up to `read_bytes`."""


Sift = Callable[[Batch, "Matcher", int, Purges, int], Sequence[int]]
"""Finds the places of messages in a batch, as `places_in` does."""


class Unread(Enum):
    """What a look answers whose budget is used up, or that would have to go to disk."""

    UNREAD = 0


UNREAD: Final = Unread.UNREAD
Next = tuple[Batch, Sequence[int]] | Hole | None


class Budget(msgspec.Struct, eq=False):
    """What looks may cost together: they go through so many batches, with so many bytes as are stored of them."""

    batches: int = LOOK_BATCHES
    bytes: int = LOOK_BYTES

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left of it."""
        return self.batches <= 0 or self.bytes <= 0


class Matcher:
    """What a filter wants of batches."""

    __slots__ = ("filter", "wanted")

    def __init__(self, filter: str) -> None:
        self.filter = filter
        self.wanted = compile_filter(filter)
        """Whether it is to have messages of a topic."""

    def select(self, body: Body) -> Sequence[int] | None:
        """The places of the messages that it wants; None for all of them."""
        names = body.names
        chosen: Sequence[int]
        if len(names) < DICTIONARY_TOPICS_MIN:
            chosen = [number for number, name in enumerate(names) if self.wanted(name)]
        else:
            chosen = dictionary_of(names).find(self.filter, self.wanted)
        return None if len(chosen) == len(names) else body.places_of(chosen)


class Cursor:
    """A place in a stream, moving on."""

    __slots__ = ("_bytes", "_bytes_max", "_matcher", "_read", "_sift", "position", "root")

    def __init__(self, root: Root, matcher: Matcher, position: int, config: Config, sift: Sift | None = None) -> None:
        self.root = root
        self._sift = sift or places_in
        self.position = position
        """The next offset to look at."""
        self._matcher = matcher
        self._bytes_max = config.read_bytes
        self._bytes = min(READ_BYTES_MIN, config.read_bytes)
        self._read: list[Batch | Hole] = []

    @property
    def has_read(self) -> bool:
        """Whether something is at hand that was not looked at."""
        return bool(self._read)

    def next(self, now_us: int, upto: int | None = None) -> Next:
        """The next batch with wanted messages and their places, or a hole; None at the end, or past `upto`."""
        while (found := self._step(now_us, upto)) is UNREAD:
            if not self._read_more():
                return None
        return found

    def look(self, now_us: int, upto: int | None, budget: Budget) -> Next | Literal[Unread.UNREAD]:
        """The same out of memory alone and within a budget."""
        stream = self.root.stream
        while True:
            if not self._read and self.position <= (stream.durable if upto is None else min(upto, stream.durable)):
                held = stream.held(self.position, self._bytes_max)
                if held is None:
                    return UNREAD
                self._read = list(held[::-1])
            found = self._step(now_us, upto, budget)
            if found is not UNREAD or self._read:
                return found

    def read_on(self, now_us: int, upto: int | None, budget: Budget) -> None:
        """Have something at hand that is wanted, as far as the budget goes; reads the disk."""
        while True:
            position = self.position
            found = self._step(now_us, upto, budget)
            if found is not UNREAD:
                if found is not None:
                    self._put_back(found, position)
                return
            if budget.is_spent or not self._read_more():
                return

    def _put_back(self, found: tuple[Batch, Sequence[int]] | Hole, position: int) -> None:
        """Have it come again, as it is by then."""
        first, again = (found.first, found) if isinstance(found, Hole) else (found[0].first_offset, found[0])
        self._read.append(again)
        self.position = max(position, first)

    def _read_more(self) -> bool:
        """Ask the stream, for more where batches are large; where they are small, a read would take too long."""
        found = self.root.stream.read(self.position, self._bytes)
        self._read = list(found)[::-1]
        if len(found) * 2 < SLICE_BATCHES:
            self._bytes = min(self._bytes * 2, self._bytes_max)
        elif len(found) > SLICE_BATCHES:
            self._bytes = max(self._bytes // 2, min(READ_BYTES_MIN, self._bytes_max))
        return bool(found)

    def _step(self, now_us: int, upto: int | None, budget: Budget | None = None) -> Next | Literal[Unread.UNREAD]:
        """Go through what is at hand; `UNREAD` if it has nothing, or the budget is spent."""
        stream = self.root.stream
        while True:
            if self.position > (stream.durable if upto is None else min(upto, stream.durable)):
                return None
            if not self._read or (budget is not None and (budget.batches <= 0 or budget.bytes <= 0)):
                return UNREAD
            found = self._read.pop()
            if isinstance(found, Hole):
                self.position = found.last + 1
                if found.last <= self.root.purged_upto:
                    continue
                return found
            if budget is not None:
                budget.batches -= 1
                budget.bytes -= found.header.body_bytes
            try:
                places = self._sift(found, self._matcher, self.position, self.root.purges, now_us)
            except BadBatch as error:
                self.position = found.last_offset + 1
                return Hole(found.first_offset, found.last_offset, f"damaged: {error}")
            self.position = found.last_offset + 1
            if places:
                return found, places


def estimate(count: int, seen: int, unseen: int) -> int:
    """How many of all messages match, going by those that were seen; if none was, all may."""
    return count + (unseen if not seen else round(unseen * count / seen))


def places_in(batch: Batch, matcher: Matcher, position: int, purges: Purges, now_us: int) -> Sequence[int]:
    """The places of the messages in a batch, from a position on, that are wanted and still there."""
    body = batch.body
    selected = matcher.select(body)
    places: Sequence[int] = range(body.count) if selected is None else selected
    first = batch.first_offset
    if position > first:
        places = [place for place in places if first + place >= position]
    if purges.highest >= first:
        places = _unpurged(batch, places, purges)
    if purges.highest_of_keys >= first:
        places = _without_keys(batch, places, purges)
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


def _without_keys(batch: Batch, places: Sequence[int], purges: Purges) -> Sequence[int]:
    """Those of the places whose messages were not purged by their keys."""
    body, first, purged = batch.body, batch.first_offset, purges.keys
    keys = body.keys
    if keys is None or purged.isdisjoint(keys):
        return places
    topics = body.topics
    return [
        place
        for place in places
        if keys[place] not in purged or not purges.hides_key(topics[place], first + place, keys[place])
    ]


def every_place(batch: Batch, *_: object) -> Sequence[int]:
    """All of a batch, unread: for whoever sifts by columns."""
    return range(batch.count)


def keys_of(batch: Batch, places: Sequence[int]) -> list[bytes | str]:
    """What order="key" goes by: a message's key, or its topic when it has none."""
    body = batch.body
    topics, keys = body.topics, body.keys or tuple(repeat(None, body.count))
    return [topics[place] if keys[place] is None else keys[place] or b"" for place in places]
