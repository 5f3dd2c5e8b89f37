"""The log of a server: planned over one connection, read over one for each task.

A task asks for its span and takes the batches as they are sent: the bodies are those of the segments, or cut down by
the server to the messages that match.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from headwater.client.bus import Bus
from headwater.clock import SECOND_US, SystemClock, to_datetime
from headwater.config import Connecting
from headwater.errors import Conflict, Disconnected, Gap, Malformed, NotFound
from headwater.log.purges import Purge
from headwater.message import SchemaInfo
from headwater.spark.pieces import Piece
from headwater.spark.spans import Extent, Span, cuts_by_count
from headwater.spark.topics import Topics
from headwater.store.log import Counted, Hole
from headwater.wire.administration import CreateSubscription, ShowSubscription, SubscriptionDetail
from headwater.wire.request import Option

MESSAGE_BYTES = 256
"""About what a message takes, of a server that does not tell."""
PREFETCH_MESSAGES = 50_000
PREFETCH_BYTES = 16 << 20
RECONNECT_S_MAX = 60.0
"""A task gives up after so long without its server; Spark tries it again."""
RETRY_S = 0.25


def connect(url: str, patience_s: float = 0) -> Bus:
    """A connection that gives up at last, and whose session nobody keeps; it may wait for a server that is away."""
    settings = Connecting(
        prefetch_messages=PREFETCH_MESSAGES,
        prefetch_bytes=PREFETCH_BYTES,
        reconnect_s_max=RECONNECT_S_MAX,
        request_timeout_s=RECONNECT_S_MAX,
        session_expire_after_s=RECONNECT_S_MAX,
    )
    return awaited(url, settings, patience_s)


def awaited(url: str, settings: Connecting, patience_s: float) -> Bus:
    """A connection, once there is a server, or Disconnected: a server that is restarted is away for a moment."""
    clock = SystemClock()
    until_us = clock.monotonic_us() + round(patience_s * SECOND_US)
    condition = threading.Condition()
    while True:
        try:
            return Bus(url, settings)
        except Disconnected:
            if clock.monotonic_us() >= until_us:
                raise
        with condition:
            clock.wait(condition, round(RETRY_S * SECOND_US))


class Served:
    """The log of a server, as far as topics are asked for."""

    def __init__(self, url: str, topics: Topics) -> None:
        self._bus = connect(url)
        self._topics = topics
        self._extents: dict[str, Extent] = {}
        self._purges: dict[str, list[Purge]] | None = None
        self._message_bytes: dict[str, int] = {}
        """About what a message of each root takes."""
        self._id = self._bus.id
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def bus_id(self) -> str:
        if not self._id:
            raise Malformed(
                f"{self._bus.address} does not tell which bus it serves, so its lake cannot be checked: it is of an "
                "older version; bring it up to date"
            )
        return self._id

    def refresh(self) -> None:
        self._extents, self._message_bytes, self._purges = {}, {}, None
        for found in (one for asked in self._topics.asked for one in self._bus.extents(asked)):
            self._extents[found.root] = Extent(found.root, found.first, found.end, found.purged_upto)
            count = found.end - found.first
            if found.bytes and count > 0:
                self._message_bytes[found.root] = max(1, found.bytes // count)
        if self._bus.id != self._id:
            raise Conflict(
                f"{self._bus.address} serves another bus than it did (id {self._bus.id}, before {self._id}): offsets "
                "mean other messages there; start the query with a new checkpoint location"
            )

    def extents(self, topics: Topics) -> list[Extent]:
        return list(self._extents.values())

    def purges(self, root: str) -> tuple[Purge, ...]:
        """As they are by now: a server shows them only to who asks."""
        if self._purges is None:
            self._purges = {}
            try:
                found = dict.fromkeys(one for asked in self._topics.asked for one in self._bus.purges(asked))
            except Malformed:
                found = {}  # of an older version
            for one in found:
                self._purges.setdefault(one.root, []).append(Purge(one.filter, one.upto, key=one.key))
        return tuple(self._purges.get(root, ()))

    def schemas(self) -> list[SchemaInfo]:
        try:
            return self._bus.schemas()
        except Malformed:
            return []  # of an older version, it knows of none

    def offset_at(self, root: str, time_us: int) -> int:
        for found in self._bus.extents(self._topics.of_root(root), [to_datetime(time_us)]):
            if found.root == root:
                return min(found.places[0], self._extents[root].end)
        return self._extents[root].end

    def bytes_between(self, root: str, first: int, last: int) -> int:
        return (last - first + 1) * self._message_bytes.get(root, MESSAGE_BYTES)

    def count(self, root: str, first: int, last: int, topics: Topics, messages_max: int, bytes_max: int) -> Counted:
        """How many messages of a stretch match, until there are so many, or about so much was read."""
        among = topics.among(root)
        try:
            return self._bus.count_matching(
                topics.of_root(root), among if len(among) > 1 else (), root, first, last, messages_max, bytes_max
            )
        except Malformed:
            return Counted(first, 0)  # of an older version, it cannot tell

    def spans(self, root: str, first: int, last: int, bytes_max: int, messages_max: int | None) -> Iterator[Span]:
        purged_upto, message_bytes = self._extents[root].purged_upto, self._message_bytes.get(root, MESSAGE_BYTES)
        for start, end in cuts_by_count(first, last, messages_max or max(1, bytes_max // message_bytes)):
            size = self.bytes_between(root, start, end)
            yield Span(root, start, end, bytes=size, purged_upto=purged_upto)

    def make_subscription(self, id: str, expire_after_s: float) -> None:
        """Have a subscription at the oldest messages, unless there is one of this id, whatever its options."""
        options: dict[str, Option] = {"expire_after_s": expire_after_s}
        try:
            self._bus.ask(CreateSubscription(id=id, filter=self._topics.filters[0], start="earliest", options=options))
        except Conflict:
            pass  # with another filter, it is refused when its progress is shown

    def show_progress(self, id: str, places: Mapping[str, int], expire_after_s: float | None) -> None:
        """Have a subscription on the broker stand where a query is: its lag shows, and retention waits for it."""
        self._bus.show_progress(self._topics.filters[0], id, places, expire_after_s=expire_after_s)

    def progress(self, id: str) -> dict[str, int] | None:
        """Where a subscription stands: the next offset of each root; None if there is none of this id."""
        try:
            found: SubscriptionDetail = self._bus.ask(ShowSubscription(id=id))
        except NotFound:
            return None
        return {root: floor + 1 for root, floor in found.info.floors.items()}

    def close(self) -> None:
        self._bus.close()


def served_pieces(url: str, filter: str, span: Span) -> Iterator[Piece]:
    """The batches of a span that have messages which match."""
    with (
        connect(url, RECONNECT_S_MAX) as bus,
        bus.replay(filter, after={span.root: span.first - 1}, upto={span.root: span.last}) as read,
    ):
        while True:
            try:
                found = read.take_batch()
            except Gap as gap:
                yield Hole(gap.first, gap.last, gap.reason)
                continue
            if found is None:
                return
            last = found.first_offset + (found.count - 1 if found.deltas is None else found.deltas[-1])
            yield found.first_offset, last, found.body, found.deltas, None
