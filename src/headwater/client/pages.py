"""Listings that come in pages: a server answers with one page at a time, and users see all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from inspect import isawaitable
from typing import Any, TypeVar

from headwater.wire.request import PAGE_BYTES, PAGE_MAX, Request, carried

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


def listed(
    ask: Callable[[Request[Any]], Any],
    request: Callable[..., Request[list[T]]],
    place: Callable[[T], Any],
    limit: int | None = None,
    **asked: Any,
) -> Any:
    """All that a request lists, or so many: as `ask` answers, at once or as an awaitable. `place` is where in the
    listing one of it is, which the next page comes after."""
    wanted = PAGE_MAX if limit is None else min(limit, PAGE_MAX)
    first = ask(request(**asked, limit=wanted))

    async def page(last: T | None, wanted: int) -> Sequence[T]:
        told = first if last is None else ask(request(**{**asked, "after": place(last), "limit": wanted}))
        found: Sequence[T] = await told if isawaitable(told) else told
        has_no_pages = last is not None and place(last) in map(place, found)  # an older server, which tells all again
        return () if has_no_pages else found

    pages = all_pages(page, limit)
    return pages if isawaitable(first) else _at_once(pages)


def _at_once(work: Coroutine[Any, Any, list[T]]) -> list[T]:
    """What comes of something that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as done:
        found: list[T] = done.value
        return found
    raise AssertionError("it waits for something")
