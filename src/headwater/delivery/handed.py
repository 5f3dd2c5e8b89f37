"""What a consumer was handed, and what it can say about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.delivery.lane import Lease
from headwater.message import Message, Receipt
from headwater.store.batch import Batch

if TYPE_CHECKING:
    from headwater.delivery.subscriber import Subscriber


class Held:
    """Where messages of one hand-out came from: what `message.ack()` and its sisters speak to."""

    __slots__ = ("lease", "subscriber")

    def __init__(self, subscriber: Subscriber, lease: Lease) -> None:
        self.subscriber = subscriber
        self.lease = lease

    def ack(self, messages: Sequence[Message], wait: bool) -> None:
        self.subscriber.ack(messages, wait)

    def nack(self, message: Message, error: str | BaseException, delay_s: float | None) -> None:
        self.subscriber.nack(message, error, delay_s)

    def reject(self, message: Message, error: str | BaseException) -> None:
        self.subscriber.reject(message, error)

    def extend(self, message: Message, seconds: float) -> None:
        self.subscriber.extend(message, seconds)

    def reply(self, message: Message, payload: bytes) -> Receipt:
        return self.subscriber.reply(message, payload)


class Handed:
    """Messages of one root that one consumer was given together: places in a batch, or copies of single ones."""

    __slots__ = ("batch", "lease", "messages", "places", "root")

    def __init__(
        self,
        lease: Lease,
        root: str,
        batch: Batch | None = None,
        places: Sequence[int] = (),
        messages: Sequence[Message] = (),
    ) -> None:
        self.lease = lease
        self.root = root
        self.batch = batch
        self.places = places
        self.messages = messages

    @property
    def bytes(self) -> int:
        """Of a batch, its share."""
        batch = self.batch
        if batch is None:
            return sum(len(message.payload) for message in self.messages)
        return len(batch.data) * len(self) // batch.header.count

    def __len__(self) -> int:
        return len(self.places) or len(self.messages)
