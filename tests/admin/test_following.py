"""Followers whose token is removed, and those who have nothing to hear."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request

from headwater.admin.api.cursor import Cursor
from headwater.admin.api.following import Followers
from headwater.admin.client import Admin
from headwater.admin.gate import REMEMBERED_US, Gate
from headwater.clock import SECOND_US, ManualClock
from headwater.errors import Unauthenticated
from headwater.serving.outside import Outside

ASKED = Request({"type": "http", "headers": [(b"authorization", b"Bearer hwt_a_b")], "client": ("10.0.0.1", 1)})


class _Quiet:
    """A bus on which nothing happens, and which knows one token until that is removed."""

    def __init__(self) -> None:
        self.is_removed = False
        self.is_left = False

    async def ask(self, _: object) -> Any:
        if self.is_removed:
            raise Unauthenticated("no such token")
        return SimpleNamespace(client="ann", role="reader")

    def follow(self, *_: object, **__: object) -> _Quiet:
        return self

    async def batch(self, _: int) -> list[Any]:
        await asyncio.Event().wait()
        return []

    async def close(self) -> None:
        self.is_left = True


def test_a_stream_ends_when_its_token_is_removed_and_until_then_says_that_it_lives():
    bus, clock = _Quiet(), ManualClock()
    admin = Admin(bus)
    followers = Followers(Gate(admin, Outside(url=""), clock), 1, quiet_s=0.01)

    async def run() -> list[bytes]:
        told = []
        async for event in await followers.follow(ASKED, "ann", admin, "home/#", Cursor("home/#", {}), from_now=False):
            told.append(event)
            if len(told) == 3:
                bus.is_removed = True
                clock.advance(REMEMBERED_US / SECOND_US)
        return told

    first, *quiet, last = asyncio.run(run())
    assert first == b"retry: 1000\nid: 0\n\n"
    assert set(quiet) == {b":\n\n"}
    assert last.startswith(b"event: error\ndata: ")
    assert b"Unauthenticated" in last
    assert bus.is_left
