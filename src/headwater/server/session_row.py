"""A session as it is stored."""

from __future__ import annotations

import msgspec


class SubscriptionOf(msgspec.Struct, frozen=True, array_like=True):
    """A durable subscription that a session takes from."""

    number: int
    kind: str
    id: str
    filter: str
    credit_messages: int
    credit_bytes: int


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is stored."""

    id: str
    user: str
    expire_after_s: float
    subscriptions: tuple[SubscriptionOf, ...] = ()
