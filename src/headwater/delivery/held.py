"""What a consumer can say about messages of a durable subscription that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.delivery.lane import Lease
from headwater.message import Message, Receipt

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
