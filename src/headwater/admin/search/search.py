"""A search through a range of messages, as far as it is let: until it has found enough, was stopped, or is at the end.

It reads as `replay` does, bodies as they stand: beside the owner of a folder, or sent by a server, which then paces it
and reads no disk on its loop. Promises: what is found comes in the order in which `replay` gives it, each once;
`places` is where to go on, so that nothing is looked at twice and nothing is left out; at most `most` messages, or
`BYTES_MAX` of their payloads, are held.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from headwater.admin.search.wanted import Wanted
from headwater.arrow.source import Archived, Piece, Readable, Source
from headwater.clock import SECOND_US, from_datetime
from headwater.errors import Closed, Gap, Malformed
from headwater.message import Extent, Message
from headwater.store.body import Body, encode_body
from headwater.topics.name import compile_filter

MOST = 100
MOST_MAX = 1000
BYTES_MAX = 8 << 20
"""Of the payloads that are found; it ends with the message that reaches this."""
COLUMNS = ("topic", "offset", "timestamp", "key", "headers", "payload")
"""What is read of messages that only a lake has."""


class Asked(NamedTuple):
    """What is searched, and for what."""

    filter: str
    wanted: Wanted
    after: Mapping[str, int] | None = None
    """Only what is behind these offsets, by root."""
    since: datetime | None = None
    until: datetime | None = None
    most: int = MOST

    def check(self) -> None:
        """Malformed (422) unless it can be searched for."""
        if not 1 <= self.most <= MOST_MAX:
            raise Malformed(f"a search finds at most {MOST_MAX} messages at a time, and {self.most} are asked for")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise Malformed("a search ends after it begins; state a later until, or an earlier since")


class Progress(NamedTuple):
    """How far a search is."""

    looked: int = 0
    total: int = 0
    found: int = 0


class Search:
    """One search: `run` it in a thread, look at how far it is from any other, and `stop` it from there."""

    def __init__(self, bus: Readable, asked: Asked, tell: Callable[[Search], None] = lambda _: None) -> None:
        """`tell` is called again and again while it runs."""
        asked.check()
        self._tell = tell
        self._bus = bus
        self._asked = asked
        self._wants_topic = compile_filter(asked.filter)
        self._is_stopped = False
        self._source: Source | None = None
        self._begins: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._bytes = 0
        self.places = dict(asked.after or {})
        """Of each root the offset up to which it was looked at."""
        self.found: list[Message] = []
        self.gaps: list[Gap] = []
        self.is_end = False
        """Whether all of the range was looked at."""

    @property
    def total(self) -> int:
        """How many offsets the range has; 0 until that is known."""
        return sum(max(0, end - self._begins[root]) for root, end in self._ends.items())

    @property
    def looked(self) -> int:
        """How many of them it has passed."""
        if self.is_end:
            return self.total
        passed = ((root, self.places.get(root, 0) + 1) for root in self._ends)
        return sum(max(0, min(at, self._ends[root]) - self._begins[root]) for root, at in passed)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self.looked, self.total, len(self.found))

    def stop(self) -> None:
        """Have it end soon, with what it has; from any thread."""
        self._is_stopped = True
        source = self._source
        if source is not None:
            source.close()

    def to_its_end(self) -> Search:
        """The same search, which has run."""
        self.run()
        return self

    def run(self) -> None:
        """Search."""
        upto = self._measure()
        asked = self._asked
        self._source = source = self._bus._columns(
            asked.filter, COLUMNS, after=dict(self.places) or None, since=asked.since, upto=upto
        )
        try:
            while not self._is_stopped:
                try:
                    piece = source.next()
                except Gap as gap:
                    self._miss(gap)
                    continue
                if piece is None:
                    self.is_end = True
                    return
                opened = _opened(piece)
                if isinstance(opened, Gap):
                    self._miss(opened)
                elif not self._look(opened):
                    return
                self._tell(self)
        except Closed:
            if not self._is_stopped:
                raise
        finally:
            source.close()

    def _miss(self, gap: Gap) -> None:
        self.gaps.append(gap)
        self.places[gap.root] = max(gap.last, self.places.get(gap.root, 0))

    def _measure(self) -> dict[str, int] | None:
        """How much there is to look at; the last offset of each root, if the range ends before now."""
        moments = [moment for moment in (self._asked.since, self._asked.until) if moment is not None]
        extents = self._bus.extents(self._asked.filter, moments)
        for extent in extents:
            after = self.places.get(extent.root)
            since = extent.places[0] if self._asked.since is not None else extent.first
            self._begins[extent.root] = since if after is None else after + 1
            self._ends[extent.root] = extent.places[-1] if self._asked.until is not None else extent.end
        return None if self._asked.until is None else {one.root: _last(one) for one in extents}

    def _look(self, piece: Opened) -> bool:
        """Take what is wanted out of some messages; False if that is enough."""
        body = piece.body
        until_us = None if self._asked.until is None else from_datetime(self._asked.until)
        for place in self._asked.wanted.places(body, self._sifted(piece)):
            offset = piece.offset(place)
            message = _message(body, place, offset)
            if until_us is not None and message.time_us >= until_us:
                continue
            self.found.append(message)
            self._bytes += len(message.payload)
            if len(self.found) >= self._asked.most or self._bytes >= BYTES_MAX:
                self.places[piece.root] = offset
                return False
        self.places[piece.root] = max(piece.last, self.places.get(piece.root, 0))
        return True

    def _sifted(self, piece: Opened) -> Sequence[int] | None:
        """The places of what is there to be seen; None if that is all of it. A server has sifted what it sends."""
        raw = piece.raw
        if raw is None:
            return None
        body, purges = piece.body, raw.purges
        chosen = [number for number, name in enumerate(body.names) if self._wants_topic(name)]
        places = None if len(chosen) == len(body.names) else body.places_of(chosen)
        now_us = round(self._bus.now.timestamp() * SECOND_US)
        if raw.first <= piece.offset(0) and piece.last <= raw.last and body.expiries is None and not len(purges):
            return places
        return [
            place
            for place in (range(body.count) if places is None else places)
            if raw.first <= piece.offset(place) <= raw.last
            and not (body.expiries is not None and 0 < body.expiries[place] <= now_us)
            and not (len(purges) and purges.hides(*_named(body, place, piece.offset(place))))
        ]


def _named(body: Body, place: int, offset: int) -> tuple[str, int, bytes | None]:
    """Topic, offset and key of a message."""
    return body.topics_at([place])[0], offset, None if body.keys is None else body.keys[place]


class Opened(NamedTuple):
    """Some messages of a root, as they stand."""

    root: str
    body: Body
    first: int
    deltas: Sequence[int] | None
    last: int
    raw: Piece | None
    """What it was made of, if that has more than is asked for."""

    def offset(self, place: int) -> int:
        return self.first + (place if self.deltas is None else self.deltas[place])


def _opened(found: Piece | Archived) -> Opened | Gap:
    """The messages; or that they cannot be read."""
    if isinstance(found, Archived):
        return _of_lake(found)
    # What a server sends is what is asked for: it says so by having no end of its own.
    raw = None if found.last == Piece._field_defaults["last"] else found
    try:
        body = Body(found.body)
    except (ValueError, struct.error) as error:
        return Gap(found.root, found.first_offset, found.last_offset, f"damaged: {error}")
    return Opened(found.root, body, found.first_offset, found.deltas, found.last_offset, raw)


def _of_lake(found: Archived) -> Opened:
    rows: dict[str, Any] = found.rows.to_pydict()
    offsets: list[int] = rows["offset"]
    times = [round(moment.timestamp() * SECOND_US) for moment in rows["timestamp"]]
    body = encode_body(
        rows["topic"],
        rows["payload"],
        times,
        keys=rows["key"],
        headers=[tuple(pairs or ()) for pairs in rows["headers"]],
    )
    deltas = [offset - offsets[0] for offset in offsets]
    return Opened(found.root, Body(body), offsets[0], deltas, offsets[-1], None)


def _message(body: Body, place: int, offset: int) -> Message:
    (message,) = body.messages(offset - place, (place,))
    return message


def _last(extent: Extent) -> int:
    """The last offset before the end of a range; where that is in the lake alone, the last of those."""
    return extent.places[-1] - 1
