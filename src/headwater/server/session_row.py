"""A session as it is stored."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.store import state as rows
from headwater.store.state import State


class SubscriptionOf(msgspec.Struct, frozen=True, array_like=True):
    """A durable subscription that a session takes from."""

    number: int
    kind: str
    id: str
    filter: str
    credit_messages: int
    credit_bytes: int
    extension: Any = None
    """What a protocol stores with it, which it alone can read."""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is stored."""

    id: str
    user: str
    expire_after_s: float
    subscriptions: tuple[SubscriptionOf, ...] = ()
    """Those that go on when the session is resumed."""
    client: str | None = None
    """The id that an MQTT client chose; None for a native session."""
    began_us: int = 0
    """When an MQTT client began it."""
    owner_id: str = ""
    """Of a client in the registry: its id there, as another may come by the same name."""
    share: str = ""
    """Whose share it counts in, if that is not its user's."""


def stored_sessions(state: State) -> list[SessionRow]:
    """Every session, as it is stored."""
    return [msgspec.msgpack.decode(value, type=SessionRow) for _, value in state.scan(rows.SESSION)]
