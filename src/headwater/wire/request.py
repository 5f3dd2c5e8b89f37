"""What every request is made of: its kind of struct, and the numbers that its fields are within."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from headwater.errors import Malformed

TIME_US_MAX = 253_402_300_799_000_000
"""The last second of the year 9999, where calendars end."""
SECONDS_MAX = 1e10
OPTIONS_MAX = 32
CAUSE_MAX = 200
"""Characters of what was sent that an error repeats."""

PAGE_MAX = 1000
"""Rows of a listing that one answer has, at most;"""
PAGE_BYTES = 1024 * 1024
"""and bytes that they carry: it ends with the row that reaches this. So a page that has fewer of both is the last."""
SUBSCRIPTION_BYTES = 32
"""Of each subscription of a session, besides its filter and its id."""

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack has none above 2**64 - 1."""
Micros = Annotated[int, msgspec.Meta(ge=0, le=TIME_US_MAX)]
"""A moment: microseconds since 1970, UTC."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
"""A duration; neither negative, nor infinite, nor no number."""

A = TypeVar("A")

Option = str | int | float | bool | None
Options = Annotated[dict[str, Option], msgspec.Meta(max_length=OPTIONS_MAX)]
"""Those of a durable subscription that a request states."""
OPTION_NAMES = frozenset(
    (
        *("order", "max_in_flight", "ack_timeout_s", "max_attempts", "max_deliveries"),
        *("expire_after_s", "on_gap", "on_resume", "retry_delay_s", "retry_delay_s_max", "states"),
    )
)
"""Options that a request may name; `id` and `filter` are fields of it, where they are checked against the rules."""


def check_options(options: Mapping[str, Option]) -> None:
    """Malformed unless each is one that a durable subscription has."""
    unknown = options.keys() - OPTION_NAMES
    if unknown:
        raise Malformed(f"option {min(unknown)[:CAUSE_MAX]!r} is not known; use {', '.join(sorted(OPTION_NAMES))}")


class Request(msgspec.Struct, Generic[A], frozen=True, kw_only=True, tag_field="do", tag=True, omit_defaults=True):
    """Something that a client asks for, and what it is answered with."""


class Change(Request[A], Generic[A], frozen=True, kw_only=True):
    """A request of administrators that changes something; it is in the audit."""

    by: str | None = None
    """Who wants it, where an administrator's connection acts for others, as the HTTP API does; from anybody else
    it is NotAllowed (403)."""


def carried(one: object) -> int:
    """Bytes that a row of a listing carries, as pages count them: payload, key, headers, errors, a schema's text, and
    the subscriptions of a session."""
    headers: Iterable[tuple[str, str]] = getattr(one, "header_pairs", ())
    errors: Iterable[str] = getattr(one, "errors", ())
    subscriptions: Iterable[Any] = getattr(one, "subscriptions", ())
    payload = getattr(one, "payload", None)  # the `text` of what has one is that payload, and may be none
    size = len(getattr(one, "text", "") if payload is None else payload) + len(getattr(one, "key", b"") or b"")
    size += sum(SUBSCRIPTION_BYTES + len(sub.filter) + len(sub.id or "") for sub in subscriptions)
    return size + sum(len(name) + len(value) for name, value in headers) + sum(map(len, errors))


class Page(Generic[A]):
    """Rows of a listing that fit into one answer."""

    __slots__ = ("_bytes_left", "_count_left", "rows")

    def __init__(self, limit: int | None = None) -> None:
        self.rows: list[A] = []
        self._count_left = rows_max(limit)
        self._bytes_left = PAGE_BYTES

    @property
    def is_full(self) -> bool:
        """Whether it takes no more."""
        return self._count_left <= 0 or self._bytes_left <= 0

    def add(self, one: A) -> None:
        """One more row."""
        self.rows.append(one)
        self._count_left -= 1
        self._bytes_left -= carried(one)

    def rest(self) -> Page[A]:
        """An empty one for the rest, to be tried and then taken, or thrown away."""
        made: Page[A] = Page()
        made._count_left, made._bytes_left = self._count_left, self._bytes_left
        return made

    def take(self, rest: Page[A]) -> None:
        """What was put on its rest."""
        self.rows += rest.rows
        self._count_left, self._bytes_left = rest._count_left, rest._bytes_left


def page_of(rows: Iterable[A], limit: int | None) -> list[A]:
    """The first of these that fit into one answer."""
    page: Page[A] = Page(limit)
    for one in rows:
        page.add(one)
        if page.is_full:
            break
    return page.rows


def page_after(rows: Iterable[A], key: Callable[[A], Any], after: Any | None, limit: int | None) -> list[A]:
    """The next of these after a key, in the order of their keys, as many as fit into one answer.

    Each page looks at all of them and sorts few, so that other threads have their turn meanwhile.
    """
    left = rows if after is None else (one for one in rows if key(one) > after)
    return page_of(nsmallest(rows_max(limit), left, key=key), limit)


def rows_max(limit: int | None) -> int:
    """Rows that a page has, at most."""
    return min(limit or PAGE_MAX, PAGE_MAX)
