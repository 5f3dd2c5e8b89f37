"""Listings that come in pages: a server answers with one page at a time, and users see all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from headwater.wire.request import PAGE_BYTES, PAGE_MAX, carried

T = TypeVar("T")


async def all_pages(
    ask: Callable[[T | None, int], Awaitable[Sequence[T]]], limit: int | None = None, first: T | None = None
) -> list[T]:
    """All of a listing, or so many of it; `ask` gives what comes after one of it, at most so many.

    With a limit, it ends with a page that is short because it is large: who states one asks for pages, too.
    """
    found: list[T] = []
    last = first
    while True:
        wanted = PAGE_MAX if limit is None else min(limit - len(found), PAGE_MAX)
        page = await ask(last, wanted)
        found += page
        is_short = len(page) < wanted and (limit is not None or sum(map(carried, page)) < PAGE_BYTES)
        if not page or is_short or len(found) == limit:
            return found
        last = page[-1]
