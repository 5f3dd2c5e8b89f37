from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from headwater import aio
from headwater.admin.dashboard.pager import LOOKED_MAX, PAGE, SAMPLE, SAMPLED_OFFSETS, Page, Pager
from headwater.errors import Malformed, NotFound

T = TypeVar("T")


def on_a_bus(work: Callable[[aio.Bus], Awaitable[T]]) -> T:
    async def run() -> T:
        async with aio.open(":memory:") as bus:
            return await work(bus)

    return asyncio.run(run())


def offsets(page: Page) -> list[int]:
    return [message.offset for message in page.messages]


def test_pages_go_back_to_the_first_message() -> None:
    async def work(bus: aio.Bus) -> None:
        await bus.publish_many([("a/b", b"x")] * 120)
        pager = Pager(bus, "a/b")
        page = await pager.newest()
        assert offsets(page) == list(range(120, 120 - PAGE, -1))
        page = await pager.upto(page.first - 1)
        page = await pager.upto(page.first - 1)
        assert (offsets(page)[-1], page.is_first) == (1, True)

    on_a_bus(work)


def test_a_rare_topic_is_found_among_others() -> None:
    async def work(bus: aio.Bus) -> None:
        await bus.publish("a/rare", b"1")
        await bus.publish_many([("a/often", b"x")] * 5_000)
        await bus.publish("a/rare", b"2")
        await bus.publish_many([("a/often", b"x")] * 500)
        page = await Pager(bus, "a/rare").newest()
        assert (offsets(page), page.is_first) == ([5_002, 1], True)
        assert offsets(await Pager(bus, "a/+").newest())[0] == 5_502

    on_a_bus(work)


def test_a_page_by_time_ends_with_what_was_published_by_then() -> None:
    async def work(bus: aio.Bus) -> None:
        receipt = await bus.publish("a/b", b"1")
        pager = Pager(bus, "a/b")
        assert offsets(await pager.at_time(datetime.now(UTC) + timedelta(days=1))) == [1]
        assert offsets(await pager.at_time(receipt.timestamp - timedelta(days=1))) == []

    on_a_bus(work)


def test_what_comes_fast_is_sampled() -> None:
    async def work(bus: aio.Bus) -> None:
        pager = Pager(bus, "a/#")
        await bus.publish_many([("a/b", b"x")] * 100)
        page = await pager.since(0)
        assert (offsets(page)[0], len(page.messages), page.left_out, page.is_sampled) == (100, SAMPLE, 80, False)
        await bus.publish_many([("a/b", b"x")] * (SAMPLED_OFFSETS + 500))
        page = await pager.since(page.last)
        assert (len(page.messages), page.is_sampled) == (SAMPLE, True)
        assert (await pager.since(page.last)).messages == ()

    on_a_bus(work)


def test_one_message_is_read_by_its_offset() -> None:
    async def work(bus: aio.Bus) -> None:
        await bus.publish_many([("a/b", b"1"), ("a/c", b"2")])
        assert (await Pager(bus, "a/c").one(2)).payload == b"2"
        with pytest.raises(NotFound):
            await Pager(bus, "a/c").one(1)

    on_a_bus(work)


@pytest.mark.parametrize("filter", ["#", "+/b", ""])
def test_a_filter_over_several_roots_has_no_pages(filter: str) -> None:
    with pytest.raises(Malformed):
        Pager(None, filter)


def test_an_empty_root_is_an_empty_page() -> None:
    page = on_a_bus(lambda bus: Pager(bus, "nothing/#").newest())
    assert (page.messages, page.is_first) == ((), True)


def test_a_page_looks_only_so_far_back(tmp_path: Path) -> None:
    async def work(bus: aio.Bus) -> None:
        await bus.publish("a/rare", b"1")
        for _ in range(6):
            await bus.publish_many([("a/often", b"")] * 100_000)
        page = await Pager(bus, "a/+").upto(600_001)
        assert len(page.messages) == PAGE
        page = await Pager(bus, "a/rare").upto(600_001)
        assert (page.messages, page.is_first) == ((), False)
        assert page.last - page.first < 4 * LOOKED_MAX

    on_a_bus(work)
