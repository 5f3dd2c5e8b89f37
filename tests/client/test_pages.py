"""Listings are asked for page by page, by threads and with asyncio alike, and of servers that know no pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from headwater.client.pages import listed
from headwater.wire.administration import Client, ListClients
from headwater.wire.request import PAGE_MAX

COUNTS = (0, 1, PAGE_MAX - 1, PAGE_MAX, PAGE_MAX + 1, 2 * PAGE_MAX, 2 * PAGE_MAX + 1)


def clients(count: int) -> list[Client]:
    return [Client(str(number), f"{number:05}", 0, 0) for number in range(count)]


def paging(there: list[Client], asked: list[ListClients]) -> Callable[[Any], list[Client]]:
    def ask(request: ListClients) -> list[Client]:
        asked.append(request)
        left = [one for one in there if request.after is None or one.name > request.after]
        return left[: min(request.limit or PAGE_MAX, PAGE_MAX)]

    return ask


@pytest.mark.parametrize("count", COUNTS)
def test_all_pages_are_asked_for(count: int) -> None:
    there = clients(count)
    asked: list[ListClients] = []
    assert listed(paging(there, asked), ListClients, attrgetter("name")) == there
    assert len(asked) == count // PAGE_MAX + 1
    assert [one.after for one in asked] == [None, *(f"{n * PAGE_MAX - 1:05}" for n in range(1, len(asked)))]


@pytest.mark.parametrize("count", COUNTS)
def test_with_asyncio_what_is_told_is_awaited(count: int) -> None:
    there = clients(count)
    answer = paging(there, [])

    async def ask(request: Any) -> list[Client]:
        await asyncio.sleep(0)
        return answer(request)

    async def run() -> list[Client]:
        found: list[Client] = await listed(ask, ListClients, attrgetter("name"))
        return found

    assert asyncio.run(run()) == there


@pytest.mark.parametrize("count", COUNTS)
def test_a_server_that_tells_all_at_once_is_understood(count: int) -> None:
    there = clients(count)
    asked: list[ListClients] = []

    def ask(request: Any) -> list[Client]:
        asked.append(request)
        assert len(asked) <= 2, "it is asked for ever"
        return list(there)

    assert listed(ask, ListClients, attrgetter("name")) == there


def test_a_limit_and_a_place_are_kept_to() -> None:
    there = clients(2 * PAGE_MAX)
    asked: list[ListClients] = []
    found = listed(paging(there, asked), ListClients, attrgetter("name"), PAGE_MAX + 2, after="00004")
    assert found == there[5 : 5 + PAGE_MAX + 2]
    assert [one.limit for one in asked] == [PAGE_MAX, 2]


def test_what_goes_wrong_is_told() -> None:
    def ask(_: object) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        listed(ask, ListClients, attrgetter("name"))
