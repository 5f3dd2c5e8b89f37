"""How an MQTT client wants the messages of a subscription; it is stored with its session."""

from __future__ import annotations

import msgspec


class SubscriptionOptions(msgspec.Struct, frozen=True, array_like=True):
    """What a SUBSCRIBE said about one filter."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    """0: none."""
    is_replay: bool = False
    """Whether each message is to say where and when it was published."""
    others: tuple[int, ...] = ()
    """More identifiers, where several subscriptions bring one message; never of one that is stored."""

    @property
    def identifiers(self) -> tuple[int, ...]:
        """As the properties of a PUBLISH have it."""
        return (self.identifier, *self.others) if self.identifier else ()
