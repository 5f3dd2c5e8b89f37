"""SQL over HTTP: what it answers, what it refuses, and what becomes of a query that takes too long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

import headwater
from admin.served import Served
from headwater.admin.dashboard.sql import chart_of
from headwater.admin.gate import Caller
from headwater.admin.query.process import Answered
from headwater.admin.query.queries import Queries
from headwater.errors import NotAllowed, QuotaExceeded, TimedOut
from headwater.serving.outside import Outside

PATH = "/v1/sql"
ENDLESS = "select count(*) from range(100000000000) a, 'home/#'"
ANN, ROOT = Caller("ann", "reader"), Caller("root", "admin")


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("home/hall", b"19.0"), ("home/kitchen", b"21.5"), ("home/kitchen", b"22.5")])
    return Outside(url="", folder=str(tmp_path / "data"), query_s=300.0)


def test_topics_are_asked_over_http(served: Served, http: httpx.Client) -> None:
    with headwater.connect(served.url) as bus:
        bus.publish_many([("asked/a", b"%d" % n) for n in range(10)])
    query = "select topic, sum(value) as total, max(\"offset\") as last from 'asked/#' group by 1"
    assert http.get(PATH, params={"query": query}).json() == {
        "columns": [["topic", "string"], ["total", "double"], ["last", "int64"]],
        "rows": [["asked/a", 45.0, 10]],
        "total": 1,
    }
    found = http.get(PATH, params={"query": "select payload from 'asked/#'", "limit": 3}).json()
    assert (found["rows"], found["total"]) == ([["0"], ["1"], ["2"]], 10)


@pytest.mark.parametrize(
    ("query", "code", "said"),
    [
        ("select * from read_csv('/etc/passwd')", 403, "no files or networks"),
        ("attach '/tmp/other.db'", 422, "a query is one select"),
        ("select 1; select 2", 422, "a query is one select"),
        ("select * from 'nowhere/#'", 404, "no root"),
        ("selec", 422, "selec"),
        ("x" * 9000, 422, "8000"),
    ],
)
def test_what_is_no_question_to_topics_is_refused(http: httpx.Client, query: str, code: int, said: str) -> None:
    answer = http.get(PATH, params={"query": query})
    assert (answer.status_code, said in answer.text) == (code, True), answer.text


def test_a_reader_asks_only_what_a_reader_sees(outside: Outside) -> None:
    async def ask(caller: Caller, query: str) -> Answered:
        return await Queries(outside).run(query, 10, caller)

    with pytest.raises(NotAllowed, match='"ann" does not see all that "\\$sys/#" matches'):
        asyncio.run(ask(ANN, "select * from (select topic from '$sys/#')"))
    with headwater.open(outside.folder) as bus:
        bus.acl.allow("ann", "publish", "home/#")
    assert asyncio.run(ask(ROOT, "select * from '$sys/audit'")).total == 1
    assert asyncio.run(ask(ANN, "select avg(value) from 'home/#'")).rows == [[21.0]]


def test_one_that_takes_too_long_is_ended_and_each_client_has_one(outside: Outside) -> None:
    async def ask() -> None:
        queries = Queries(Outside(url="", folder=outside.folder, query_s=1.0))
        running = asyncio.ensure_future(queries.run(ENDLESS, 10, ANN))
        await asyncio.sleep(0)
        with pytest.raises(QuotaExceeded, match="has a query running"):
            await queries.run("select 1", 10, ANN)
        with pytest.raises(TimedOut, match="http_query_s"):
            await running
        assert (await Queries(outside).run("select 1 as one", 10, ROOT)).rows == [[1]]

    asyncio.run(ask())


def test_those_that_run_at_a_time_have_a_limit_whoever_asks(outside: Outside) -> None:
    async def ask() -> None:
        queries = Queries(Outside(url="", folder=outside.folder, queries_max=1))
        running = asyncio.ensure_future(queries.run(ENDLESS, 10, ANN))
        await asyncio.sleep(0)
        with pytest.raises(QuotaExceeded, match="http_queries_max"):
            await queries.run("select 1", 10, ROOT)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await queries.run("select 1 as one", 10, ROOT)).rows == [[1]]

    asyncio.run(ask())


def test_numbers_beside_the_first_column_are_drawn() -> None:
    columns = [("topic", "string"), ("n", "int64"), ("text", "string"), ("mean", "double")]
    found = Answered(columns=columns, rows=[["a", 1, "x", 0.5], ["b", "9007199254740993", "y", None]], total=2)
    drawn = chart_of(found)
    assert drawn is not None
    assert [(one["name"], one["type"], one["data"]) for one in drawn["series"]] == [
        ("n", "bar", [1, None]),
        ("mean", "bar", [0.5, None]),
    ]
    over_time = chart_of(Answered(columns=[("at", "timestamp[us]"), ("n", "int64")], rows=[["x", 1], ["y", 2]]))
    assert over_time is not None
    assert over_time["series"][0]["type"] == "line"
    assert chart_of(Answered(columns=columns, rows=found.rows[:1])) is None
    assert chart_of(Answered(columns=[("n", "int64")], rows=[[1], [2]])) is None
