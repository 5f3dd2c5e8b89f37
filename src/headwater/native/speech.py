"""Speech: how messages, and what is said about them without being asked, are put into frames of the native protocol."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from headwater.delivery.selection import Selection
from headwater.message import Message
from headwater.server.connection import Connection
from headwater.server.pump import Pump
from headwater.server.slices import Slices
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.wire import batches, requests
from headwater.wire.batches import Range
from headwater.wire.frame import Kind, pack
from headwater.wire.requests import Notice, encode

ROOM_MAX = 1 << 40


class Speech:
    """Whoever speaks the native protocol to the other side of a connection: a session, or a channel."""

    __slots__ = ()

    connection: Connection | None

    @property
    @abstractmethod
    def slices(self) -> Slices:
        """Where parts of batches are remembered."""

    @property
    def room(self) -> int:
        """Credit is all that bounds what is sent."""
        return ROOM_MAX

    @property
    def share_max(self) -> int:
        """How many messages it takes at once of a subscription that others take from, too."""
        return ROOM_MAX

    def deliver(self, pump: Pump, selection: Selection) -> int:
        """Send messages; how many bytes that took of the credit."""
        batch, places, lease = selection.batch, selection.places, selection.lease_number
        if batch is None:
            return self._deliver_messages(pump, selection.root, selection.messages, lease)
        root, first_offset = selection.root.encode(), batch.first_offset
        if places is None or len(places) == batch.count:
            return self._send(pump.number, root, first_offset, batch.count, batch.crc, batch.data, None, lease)
        first = places[0]
        body, crc = self.slices.get(batch, places)
        is_dense = places[-1] - first + 1 == len(places)
        deltas = None if is_dense else [place - first for place in places]
        return self._send(pump.number, root, first_offset + first, len(places), crc, body, deltas, lease)

    def _deliver_messages(self, pump: Pump, root: str, messages: Sequence[Message], lease: int) -> int:
        name, size = root.encode(), 0
        if not lease:  # retained messages, of a topic each: in the order of their offsets they are one frame
            messages = sorted(messages, key=attrgetter("offset"))
        for (attempt, is_retained), run in groupby(messages, key=lambda one: (one.attempt, one.retained)):
            flags = batches.RETAINED if is_retained else 0
            for near in _near(list(run)):
                body = encode_messages(near)
                first, crc = near[0].offset, checksum(body)
                deltas = [one.offset - first for one in near]
                size += self._send(pump.number, name, first, len(near), crc, body, deltas, lease, attempt, flags)
        return size

    def _send(
        self,
        number: int,
        root: bytes,
        first_offset: int,
        count: int,
        crc: int,
        body: bytes,
        deltas: Sequence[int] | None,
        lease: int,
        attempt: int = 1,
        flags: int = 0,
    ) -> int:
        assert self.connection is not None
        size = len(body)
        head = batches.pack_deliver(number, lease, root, first_offset, count, crc, size, attempt, deltas, flags)
        self.connection.write_batch(head, body)
        return size

    def recall(self, pump: Pump, ranges: Sequence[Range]) -> None:
        """Say that messages were taken back."""
        if self.connection is not None:
            self.connection.write(batches.pack_ranges(Kind.RECALL, pump.number, 0, ranges))

    def notice(self, number: int, what: str, error: BaseException | None = None, count: int = 0) -> None:
        """Tell the client something about a subscription."""
        if self.connection is not None:
            problem = requests.problem_of(error) if error is not None else None
            said = Notice(what=what, problem=problem, count=count)  # type: ignore[arg-type]  # one of the literals
            self.connection.write(pack(Kind.NOTICE, number, encode(said)))


DELTA_MAX = (1 << 32) - 1


def _near(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Runs of messages whose offsets can be told from the first one's."""
    start = 0
    for place in range(1, len(messages) + 1):
        if place == len(messages) or not 0 < messages[place].offset - messages[start].offset <= DELTA_MAX:
            yield messages[start:place]
            start = place


def encode_messages(messages: Sequence[Message]) -> bytes:
    """A body of messages that come from here and there."""
    return encode_body(
        [one.topic for one in messages],
        [one.payload for one in messages],
        [one.time_us for one in messages],
        keys=[one.key for one in messages],
        headers=[one.header_pairs for one in messages],
    )
