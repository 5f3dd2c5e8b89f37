"""A session as it is stored: a row, and one more for each subscription that it takes from.

    E session id                          SessionRow
    e session id, NUL, subscription id    SubscriptionOf

So one more subscription is one more row, however many there are. Up to format 2 of the folder they stood in the
session's own row, where they are still found: whoever goes on with such a session gives them rows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.store import state as rows
from headwater.store.state import Rows, State, key_words


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
    """Those that go on when the session is resumed, the oldest first; in a row that is written, none."""
    client: str | None = None
    """The id that an MQTT client chose; None for a native session."""
    began_us: int = 0
    """When an MQTT client began it."""
    owner_id: str = ""
    """Of a client in the registry: its id there, as another may come by the same name."""
    share: str = ""
    """Whose share it counts in, if that is not its user's."""


def key_of(session: str) -> bytes:
    """Where a session is stored."""
    return rows.SESSION + session.encode()


def held_key(session: str, subscription: str) -> bytes:
    """Where it is stored that a session takes from a subscription."""
    return key_words(rows.HELD, session, subscription)


def row_of(row: SessionRow) -> Rows:
    """A session without its subscriptions."""
    return {key_of(row.id): rows.pack(msgspec.structs.replace(row, subscriptions=()) if row.subscriptions else row)}


def rows_of(row: SessionRow) -> Rows:
    """A session and all its subscriptions."""
    held: Rows = {held_key(row.id, one.id): rows.pack(one) for one in row.subscriptions}
    return {**row_of(row), **held}


def keys_held(state: State, session: str) -> list[bytes]:
    """Where it is stored what a session takes from."""
    return [key for key, _ in state.scan(held_key(session, ""))]


def stored_sessions(state: State) -> list[SessionRow]:
    """Every session, as it is stored, with its subscriptions."""
    return stored(state)[0]


def stored(state: State) -> tuple[list[SessionRow], Rows]:
    """The same, and what is to be written: rows for subscriptions that have none, and none for those whose session is
    gone, as after a crash in its last moment."""
    sessions = [msgspec.msgpack.decode(value, type=SessionRow) for _, value in state.scan(rows.SESSION)]
    changed: Rows = {}
    for row in sessions:
        if row.subscriptions:
            changed.update(rows_of(row))
    held: dict[str, list[SubscriptionOf]] = {row.id: list(row.subscriptions) for row in sessions}
    for key, value in state.scan(rows.HELD):
        session = key[len(rows.HELD) :].partition(b"\0")[0].decode()
        if session in held:
            held[session].append(msgspec.msgpack.decode(value, type=SubscriptionOf))
        else:
            changed[key] = None
    return [_with(row, held[row.id]) for row in sessions], changed


def _with(row: SessionRow, held: list[SubscriptionOf]) -> SessionRow:
    return msgspec.structs.replace(row, subscriptions=tuple(sorted(held, key=lambda one: one.number)))
