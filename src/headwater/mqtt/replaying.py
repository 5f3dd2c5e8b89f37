"""Replays for ordinary MQTT clients: `$replay/<offset or ISO time>/<filter>` is history from there on, and then what
comes, without a gap.

    $replay/1200/home/+/temp                       from offset 1200 of the root home
    $replay/2026-11-15T09:00:00Z/#                 everything since then
    $replay/1/home/#                               from the beginning
"""

from __future__ import annotations

from datetime import UTC, datetime

from headwater.errors import Malformed

PREFIX = "$replay/"
OFFSET_DIGITS_MAX = 19

ReplayStart = int | datetime
"""The offset, or the moment, of the first message."""


def split_replay(filter: str) -> tuple[ReplayStart | None, str]:
    """Where a replay begins, and its filter; None of any other filter."""
    if not filter.startswith(PREFIX):
        return None, filter
    place, slash, rest = filter.removeprefix(PREFIX).partition("/")
    found = _place(place)
    if not slash or not rest or found is None:
        raise Malformed(
            f"{filter[:80]!r} is no replay; write $replay/1200/home/# or $replay/2026-11-15T09:00:00Z/home/#"
        )
    return found, rest


def _place(text: str) -> ReplayStart | None:
    if text.isascii() and text.isdecimal():
        return int(text) if len(text) <= OFFSET_DIGITS_MAX else None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
