"""Those who follow messages as server-sent events, each with its place: at most `http_followers_max`, and
`http_followers_per_client_max` of one client.

An event's id is where its follower is, so that a client that comes back with `Last-Event-ID` goes on with the next
message: no gap, no repeat. Where a filter reaches over very many roots, only the last event of a write has one, and a
client that was cut off within a write gets some of it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from fastapi import Request

from headwater.admin.api.cursor import Cursor
from headwater.admin.api.payload import shown_message
from headwater.admin.client import Admin
from headwater.admin.gate import LOCAL, Gate
from headwater.errors import Gap, HeadwaterError, QuotaExceeded
from headwater.topics.name import filter_covers_root

QUIET_S = 15.0
"""With nothing to tell for so long, a comment is sent, so that nobody in between takes the connection for dead."""
RETRY_MS = 1000
"""How long a browser waits before it comes back."""
WRITE_MESSAGES_MAX = 500
ROOTS_MAX = 32
"""Roots in a cursor that is told with each event; beyond it, once a write."""


class Followers:
    """Counts and serves them."""

    def __init__(
        self, gate: Gate, followers_max: int, per_client_max: int | None = None, quiet_s: float = QUIET_S
    ) -> None:
        self._gate = gate
        self._max = followers_max
        self._per_client_max = followers_max if per_client_max is None else per_client_max
        self._quiet_s = quiet_s
        self._running: Counter[str] = Counter()

    async def follow(
        self, request: Request, client: str, broker: Admin, filter: str, cursor: Cursor, *, from_now: bool
    ) -> AsyncIterator[bytes]:
        """The events of one follower: QuotaExceeded (429) if there are too many."""
        self._check_room(client)
        if from_now:
            for root, end in (await broker.bus.ends()).items():
                if filter_covers_root(filter, root):
                    cursor.advance(root, end)
        return self._events(request, client, broker, filter, cursor)

    def _check_room(self, client: str) -> None:
        if self._running.total() >= self._max:
            raise QuotaExceeded(f"there are {self._max} followers, the most (http_followers_max); end one of them")
        if client != LOCAL and self._running[client] >= self._per_client_max:
            raise QuotaExceeded(
                f'"{client}" follows {self._per_client_max} times, the most (http_followers_per_client_max); end one '
                "of them, or raise the setting"
            )

    async def _events(
        self, request: Request, client: str, broker: Admin, filter: str, cursor: Cursor
    ) -> AsyncIterator[bytes]:
        try:
            self._check_room(client)  # others may have come while this one was on its way
        except QuotaExceeded as error:
            yield _refusal(error)
            return
        self._running[client] += 1
        reading = broker.bus.follow(filter, after=cursor.after, since=cursor.since)
        try:
            yield b"retry: %d\nid: %s\n\n" % (RETRY_MS, str(cursor).encode())
            async for event in self._told(request, reading, filter, cursor):
                yield event
        finally:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]
            await reading.close()

    async def _told(self, request: Request, reading: Any, filter: str, cursor: Cursor) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        checked_s = loop.time()
        try:
            while True:
                try:
                    async with asyncio.timeout(self._quiet_s):
                        found = await reading.batch(WRITE_MESSAGES_MAX)
                except TimeoutError:
                    yield b":\n\n"
                except Gap as gap:
                    cursor.advance(gap.root, gap.last)
                    told = {"root": gap.root, "first": gap.first, "last": gap.last, "reason": gap.reason}
                    yield _event(told, str(cursor), b"gap")
                else:
                    if not found:
                        return
                    yield _write(found, cursor)
                if loop.time() - checked_s >= self._quiet_s:
                    checked_s = loop.time()
                    (await self._gate.admit(request)).check_sight(filter)
        except HeadwaterError as error:
            yield _refusal(error)


def _write(messages: Sequence[Any], cursor: Cursor) -> bytes:
    events = []
    last = len(messages) - 1
    for at, message in enumerate(messages):
        cursor.advance(message.root, message.offset)
        place = str(cursor) if at == last or cursor.roots <= ROOTS_MAX else None
        events.append(_event(shown_message(message), place))
    return b"".join(events)


def _refusal(error: HeadwaterError) -> bytes:
    told = {"kind": type(error).__name__, "code": error.code, "detail": str(error.args[0])}
    return _event(told, None, b"error")


def _event(told: dict[str, Any], id: str | None, kind: bytes = b"message") -> bytes:
    place = b"" if id is None else b"id: %s\n" % id.encode()
    return b"event: %s\n%sdata: %s\n\n" % (kind, place, msgspec.json.encode(told))
