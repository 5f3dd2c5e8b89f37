"""A selection: messages of one root that leave together, in the one form in which everybody is given them.

It is all of a batch, the messages at some places of one, or single messages that come again or come first. A protocol
turns it into its packets; bytes are shared between all who are given the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from headwater.delivery.lane import Lease
from headwater.message import Message
from headwater.store.batch import Batch

NO_LIMIT = 1 << 62
"""More bytes or messages than there are."""


class Selection(msgspec.Struct, eq=False):
    """Messages that leave together."""

    root: str
    batch: Batch | None
    count: int
    """How many messages it is."""
    places: Sequence[int] | None = None
    """Of the messages in the batch; None for all of them."""
    messages: Sequence[Message] = ()
    """In place of a batch."""
    lease: Lease | None = None
    """Under which a consumer of a durable subscription was given them."""

    @property
    def lease_number(self) -> int:
        """What the client calls the lease; 0 if there is none."""
        return self.lease.number if self.lease is not None else 0

    def fitting(self, bytes_max: int) -> int:
        """How many messages, from the first on, have payloads of so many bytes together; at least one."""
        batch = self.batch
        if batch is not None:
            return batch.body.fitting(range(batch.count) if self.places is None else self.places, bytes_max)
        return max(1, sum(size <= bytes_max for size in accumulate(len(one.payload) for one in self.messages)))

    def cut(self, count: int) -> tuple[Selection, Selection]:
        """The first so many of them, and the rest."""
        if self.batch is None:
            return self._with(None, self.messages[:count]), self._with(None, self.messages[count:])
        there = range(self.batch.count) if self.places is None else self.places
        return self._with(there[:count]), self._with(there[count:])

    def _with(self, places: Sequence[int] | None, messages: Sequence[Message] = ()) -> Selection:
        count = len(messages if places is None else places)
        return Selection(self.root, self.batch, count, places, messages, self.lease)

    def taken(self, origin: Any = None) -> Sequence[Message]:
        """The messages themselves, of this origin."""
        if self.batch is not None:
            return self.batch.body.messages(self.batch.first_offset, self.places, origin)
        if all(message.origin is origin for message in self.messages):
            return self.messages
        return [msgspec.structs.replace(message, origin=origin) for message in self.messages]
