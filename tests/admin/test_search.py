"""Searches over HTTP and through the admin client, beside a server that goes on."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

import headwater
import headwater.admin
from admin.served import Served
from headwater import aio
from headwater.admin.client import Admin
from headwater.admin.search.process import Told
from headwater.admin.search.searches import Searches
from headwater.errors import Malformed, QuotaExceeded
from headwater.serving.outside import Outside

PATH = "/v1/messages/search"


def publish(served: Served, root: str, count: int = 300) -> None:
    with headwater.connect(served.url) as bus:
        for start in range(0, count, 100):
            bus.publish_many(
                [(f"{root}/a", json.dumps({"n": n, "even": n % 2 == 0}).encode()) for n in range(start, start + 100)]
            )


def test_a_field_is_searched_for_a_page_after_another(served: Served, http: httpx.Client) -> None:
    publish(served, "sought")
    asked: dict[str, str | int] = {"filter": "sought/#", "where": "$.even == true and $.n >= 100", "limit": 60}
    first = http.get(PATH, params=asked).json()
    assert [json.loads(one["payload"])["n"] for one in first["messages"]] == list(range(100, 220, 2))
    assert (first["is_end"], first["looked"], first["total"]) == (False, 219, 300)
    second = http.get(PATH, params={**asked, "after": first["next"]}).json()
    assert [json.loads(one["payload"])["n"] for one in second["messages"]] == list(range(220, 300, 2))
    assert (second["is_end"], second["looked"], second["total"], second["gaps"]) == (True, 81, 81, [])
    with headwater.connect(served.url) as bus:
        bus.publish("sought/a", b'{"n": 1000, "even": true}')
        assert [
            one["offset"] for one in http.get(PATH, params={**asked, "after": second["next"]}).json()["messages"]
        ] == [301]
        bus.publish("sought/b", "ünd", key=b"k1", headers={"unit": "C"})
    for other in ({"text": "ü"}, {"key": "k"}, {"header": "unit=C"}):
        (one,) = http.get(PATH, params={"filter": "sought/#", **other}).json()["messages"]
        assert one["payload"] == "ünd"


def test_a_search_that_cannot_be_is_refused(http: httpx.Client) -> None:
    for asked, said in (
        ({"where": "sensor == 1"}, "begins with"),
        ({"filter": "a/#/b"}, "#"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "ends after"),
        ({"wher": "x"}, "did you mean where"),
        ({"limit": 1001}, "limit"),
    ):
        answer = http.get(PATH, params=asked)
        assert (answer.status_code, said in answer.text) == (422, True), answer.text


def test_the_admin_client_searches_for_threads_and_for_asyncio(served: Served) -> None:
    publish(served, "hunted", 200)
    with headwater.admin.connect(served.url) as admin:
        found = admin.search("hunted/#", "$.n == 150")
        assert [one.json() for one in found.found] == [{"n": 150, "even": True}]
        assert found.is_end

    async def search() -> int:
        async with await aio.connect(served.url) as bus:
            return len((await Admin(bus).search("hunted/#", "$.even", most=1000)).found)

    assert asyncio.run(search()) == 200


def test_of_one_client_and_in_all_only_so_many_run_and_one_that_takes_too_long_keeps_what_it_has(
    served: Served,
) -> None:
    publish(served, "shared", 100)

    async def search() -> None:
        async with await aio.connect(served.url) as bus:
            searches = Searches(Outside(url="", searches_max=2, searches_per_client_max=1))
            asked, readable, held = Told(filter="shared/#", where="$.n < 3"), bus._readable(), asyncio.Event()
            told: list[object] = []

            async def run(client: str) -> int:
                return len((await searches.run(asked, client, readable, 60, told.append)).rows)

            first = asyncio.create_task(run("ann"))
            await asyncio.sleep(0)
            with pytest.raises(QuotaExceeded, match="http_searches_per_client_max"):
                await run("ann")
            second = asyncio.create_task(run("bob"))
            await asyncio.sleep(0)
            with pytest.raises(QuotaExceeded, match="http_searches_max"):
                await run("cid")
            assert [await first, await second] == [3, 3]
            with pytest.raises(Malformed, match="begins with"):
                await searches.run(Told(filter="#", where="n"), "ann", readable, 60)
            held.set()
            cut = await searches.run(asked, "ann", readable, 60, stopping=held)
            assert len(cut.rows) <= 3
            assert await run("ann") == 3

    asyncio.run(search())
