"""`bus.sql`: topics are tables, only what a query needs is read, and it reaches nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headwater
import headwater.aio
import headwater.bus
from client.served import Served
from headwater import Closed, Config, Gap, Malformed, ManualClock, NotAllowed, NotFound, TooLarge
from headwater.arrow import reader
from headwater.arrow.bounds import FAR_US, Bounds
from headwater.arrow.schema import SCHEMA
from headwater.arrow.sql import Query
from headwater.arrow.table import Table
from headwater.clock import from_datetime
from headwater.message import Extent

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def bus() -> Iterator[headwater.bus.Bus]:
    with headwater.open(":memory:") as found:
        found.publish_many([(f"home/{n % 3}/temp", f"{n}.5".encode()) for n in range(9)])
        found.publish_many(
            [("mill/a", b'{"celsius": 21, "sensor": {"id": "x"}}'), ("mill/b", b"\xff"), ("mill/b", b"")]
        )
        yield found


def test_the_example_of_the_documents(bus: headwater.bus.Bus):
    found = bus.sql("select topic, avg(value) as mean from 'home/#' group by 1 order by 1")
    assert list(found) == [("home/0/temp", 3.5), ("home/1/temp", 4.5), ("home/2/temp", 5.5)]
    assert found.rows()[0] == {"topic": "home/0/temp", "mean": 3.5}
    assert found.columns == ["topic", "mean"]
    assert len(found) == 3
    assert pa.table(found).equals(found.arrow)
    assert list(found.frame("pandas")["mean"]) == [3.5, 4.5, 5.5]
    assert repr(found).splitlines() == ["topic        mean", *(f"home/{n}/temp  {n + 3}.5" for n in range(3))]
    assert "<td>home/0/temp</td>" in found._repr_html_()


def test_payloads_are_text_numbers_and_json_where_they_are_such(bus: headwater.bus.Bus):
    asked = "select text, value, json, json->>'$.sensor.id' as id from '#' order by root, \"offset\""
    found = list(bus.sql(asked))
    assert found[0] == ("0.5", 0.5, "0.5", None)
    assert found[9:] == [
        ('{"celsius": 21, "sensor": {"id": "x"}}', None, '{"celsius": 21, "sensor": {"id": "x"}}', "x"),
        (None, None, None, None),
        ("", None, None, None),
    ]
    bus.publish("mill/c", b"nan")
    assert list(bus.sql("select value from 'mill/c'")) == [(None,)]


def test_fields_are_columns_of_the_query(bus: headwater.bus.Bus):
    asked = "select topic, celsius from 'mill/#' where celsius > 20"
    assert list(bus.sql(asked, fields={"celsius": float})) == [("mill/a", 21.0)]
    with pytest.raises(Malformed, match="the name of a column"):
        bus.sql(asked, fields={"value": float})


def test_parameters_are_no_part_of_the_text(bus: headwater.bus.Bus):
    asked = "select count(*) from 'home/#' where topic = $topic"
    assert list(bus.sql(asked, {"topic": "home/1/temp"})) == [(3,)]
    assert list(bus.sql("select count(*) from 'home/#' where topic = ?", ["' or true --"])) == [(0,)]


def test_tables_join_and_are_scanned_as_often_as_they_are_named(bus: headwater.bus.Bus):
    asked = "select count(*) from 'home/#' a join 'home/0/temp' b using (topic)"
    assert list(bus.sql(asked)) == [(9,)]
    asked = """
        with home as (select * from 'home/#')
        select (select count(*) from home), (select max(value) from 'home/#')
    """
    assert list(bus.sql(asked)) == [(9, 8.5)]
    assert list(bus.sql("select count(*) from 'mill/#' where topic in (select topic from 'mill/b')")) == [(2,)]
    assert ("value", "DOUBLE") in {row[:2] for row in bus.sql("describe 'home/#'")}
    words = (
        "trim(both ' ' from text), position('.' in text), timestamp at time zone 'UTC', extract(year from timestamp)"
    )
    assert len(bus.sql(f"select {words} from 'home/#'")) == len(bus.sql("select 1 from 'home/#'"))
    assert len(bus.sql("summarize 'home/#'")) == len(bus.sql("describe 'home/#'"))


@pytest.mark.parametrize(
    ("query", "error", "says"),
    [
        ("selec", Malformed, 'syntax error at or near "selec"'),
        ("select nope from 'home/#'", Malformed, "nope"),
        ("select offset from 'home/#'", Malformed, 'write it as "offset"'),
        ("select topic from home/#", Malformed, "in quotes: from 'home/#'"),
        ("select celsius from 'home/#'", Malformed, "of a field of JSON write json->>"),
        ("select 1; select 2", Malformed, "one select"),
        ("drop table x", Malformed, "one select"),
        ("create table x as select * from 'home/#'", Malformed, "one select"),
        ("copy (select 1) to 'x'", Malformed, "one select"),
        ("set memory_limit = '1TB'", Malformed, "one select"),
        ("attach 'x'", Malformed, "one select"),
        ("select * from read_csv('/etc/passwd')", NotAllowed, "no files"),
        ("select * from read_blob('/etc/passwd')", NotAllowed, "no files"),
        ("select * from glob('/etc/*')", NotAllowed, "no files"),
        ("select * from duckdb_settings()", NotAllowed, "of the process that answers"),
        ("select (select max(value) from DuckDB_Settings()) from 'home/#'", NotAllowed, "of the process that answers"),
        ("select current_setting('secret_directory')", NotAllowed, "of the process that answers"),
        ("select * from query('select * from duckdb_settings()')", NotAllowed, "of the process that answers"),
        ("select * from PG_catalog.pg_settings", NotAllowed, "of the process that answers"),
        ("with x as (from information_schema.tables) from x", NotAllowed, "of the process that answers"),
        ("select * from 'hme/#'", NotFound, 'did you mean "home"'),
        ("select * from '/etc/passwd'", NotFound, "no root"),
        ("select * from home", NotFound, "from 'home/#'"),
        ("select * from 'home/#/x'", Malformed, "last level"),
        ("select * from secret", NotFound, "no root"),
        ("select if(a < 9000, 1, error('boom')) from range(10000) t(a)", Malformed, "boom"),
        (7, Malformed, "not int"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(bus: headwater.bus.Bus, query: Any, error: type[Exception], says: str):
    secret = pa.table({"value": [1]})  # a variable of the program, which DuckDB would find
    with pytest.raises(error, match=says) as raised:
        bus.sql(query)
    assert "\n" not in str(raised.value)
    assert secret.num_rows


def test_memory_is_bounded_and_so_is_the_answer():
    with headwater.open(":memory:", Config(sql_memory_bytes="32MiB")) as bus:
        bus.publish_many([("home/x", b"x" * 1000)] * 1000)
        with pytest.raises(TooLarge, match="sql_memory_bytes"):
            bus.sql("select a.payload from 'home/#' a, range(100)")
        with pytest.raises(TooLarge, match="sql_memory_bytes"):
            bus.sql("select count(*) from (select text || range as t from 'home/#', range(1000) order by t)")
        assert list(bus.sql("select count(*) from 'home/#', range(100)")) == [(100_000,)]


def scans(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What readings a query asks for."""
    asked: list[dict[str, Any]] = []

    class Noted(reader.Asked):
        def __init__(self, filter: str, **options: Any) -> None:
            super().__init__(filter, **options)
            if "columns" in options:
                asked.append(options)

    monkeypatch.setattr("headwater.arrow.table.Asked", Noted)
    return asked


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select topic, count(*) from 'home/#' group by 1", ["topic"]),
        ("select count(*) from 'home/#'", ["root"]),
        ("select avg(value) from 'home/#'", ["payload"]),
        ("select topic from 'home/#' where timestamp > now()", ["topic", "timestamp"]),
    ],
)
def test_only_the_columns_that_a_query_needs_are_made(
    bus: headwater.bus.Bus, monkeypatch: pytest.MonkeyPatch, query: str, columns: list[str]
):
    asked = scans(monkeypatch)
    bus.sql(query)
    assert [options["columns"] for options in asked] == [columns]


def test_conditions_keep_what_cannot_hold_from_being_read(monkeypatch: pytest.MonkeyPatch):
    clock = ManualClock(from_datetime(NOON))
    with headwater.open(":memory:", clock=clock) as bus:
        for n in range(10):
            bus.publish("home/x", b"%d" % n)
            bus.publish("mill/x", b"%d" % n)
            clock.advance(86_400)
        asked = scans(monkeypatch)
        day = NOON + timedelta(days=5)
        found = bus.sql("select value from '#' where timestamp >= $day and root = 'home'", {"day": day})
        assert [value for (value,) in found] == [5, 6, 7, 8, 9]
        assert asked[0]["upto"] == {"home": 10}
        assert asked[0]["since"] == day - timedelta(days=1)
        assert list(bus.sql("select count(*) from '#' where topic = 'mill/x' or topic = 'mill/y'")) == [(10,)]
        assert asked[1]["upto"] == {"mill": 10}
        assert list(bus.sql("select count(*) from '#' where \"offset\" > 100")) == [(0,)]
        assert len(asked) == 2
        assert list(bus.sql("select count(*) from 'home/#'", since=day, until=day + timedelta(days=2))) == [(2,)]


def test_a_query_sees_what_there_was_when_it_was_asked(bus: headwater.bus.Bus):
    query = Query(bus, "select count(*) from 'home/#'", None, 1 << 28)
    table = Table(bus, "home/#", bus.extents("home/#"), {})
    bus.publish("home/0/temp", b"later")
    assert sum(batch.num_rows for batch in table.scanner(["topic"]).to_reader()) == 9
    assert list(query.answer()) == [(10,)]


def test_bounds_are_those_of_the_condition():
    time = lambda moment: pa.scalar(moment, SCHEMA.field("timestamp").type)  # noqa: E731
    root, stamp, offset = pc.field("root"), pc.field("timestamp"), pc.field("offset")
    home, mill = Extent("home", 1, 10), Extent("mill", 1, 1000)
    later = Bounds((stamp > time(NOON)) & (root == "home"), SCHEMA)
    assert later.since_us() == from_datetime(NOON)
    assert (later.may_have(home), later.may_have(mill)) == (True, False)
    assert Bounds(stamp < time(NOON), SCHEMA).since_us() == 0
    assert Bounds((stamp > time(NOON)) | (offset == 3), SCHEMA).since_us() == 0
    assert not Bounds(offset > 100, SCHEMA).may_have(home)
    assert Bounds(offset > 100, SCHEMA).may_have(mill)
    assert Bounds(pc.field("topic") == "home", SCHEMA).may_have(home)
    assert Bounds(stamp >= time(NOON + timedelta(days=365 * 200)), SCHEMA).since_us() == FAR_US


def test_an_error_of_the_log_is_the_error_of_the_query(tmp_path: Path):
    folder = tmp_path / "data"
    with headwater.open(folder) as bus:
        for _ in range(40):
            bus.publish_many([("home/x", b"x" * 100)] * 50)
    path = min((folder / "streams").glob("*/*.log"))
    data = bytearray(path.read_bytes())
    data[100_000] ^= 0xFF
    path.write_bytes(data)
    with headwater.open(folder) as bus:
        with pytest.raises(Gap):
            bus.sql("select count(*) from 'home/#'")
        assert list(bus.sql("select count(*) from 'home/#'", on_gap="skip")) == [(1950,)]


def test_a_frame_is_one_of_the_library_that_is_there(bus: headwater.bus.Bus, monkeypatch: pytest.MonkeyPatch):
    found = bus.frame("home/#", columns=["topic", "payload"])
    assert list(found.columns) == ["topic", "payload"]
    assert len(found) == 9
    with pytest.raises(Malformed, match='"pandas" or "polars"'):
        bus.frame("home/#", library="dask")  # type: ignore[arg-type]
    monkeypatch.setattr("headwater.arrow.result.find_spec", lambda name: None)
    with pytest.raises(Malformed, match="pip install polars"):
        bus.frame("home/#", library="polars")
    with pytest.raises(Malformed, match="pip install pandas"):
        bus.frame("home/#")
    monkeypatch.setattr("headwater.arrow.find_spec", lambda name: None)
    for ask in (bus.arrow, bus.frame, bus.sql):
        with pytest.raises(Malformed, match=r"pip install 'headwater\[arrow\]'"):
            ask("select 1")


def test_a_server_answers_as_far_as_one_may_read(tmp_path: Path):
    async def ask(url: str) -> Any:
        async with headwater.aio.connect(url) as bus:
            return list(await bus.sql("select count(*) from 'home/#'")), len(await bus.frame("home/#"))

    with Served(tmp_path / "data", auth="scram") as served:
        served.bus.clients.add("ann", "secret")
        served.bus.acl.allow("ann", "subscribe", "home/#")
        served.bus.publish_many([("home/x", b"1"), ("mill/x", b"2")])
        url = served.url.replace("://", "://ann:secret@")
        with headwater.connect(url) as bus:
            assert list(bus.sql("select count(*), avg(value) from 'home/#'")) == [(1, 1.0)]
            with pytest.raises(NotAllowed, match="mill/#"):
                bus.sql("select count(*) from 'mill/#'")
            assert bus._client._feeds == {}
        assert asyncio.run(ask(url)) == ([(1,)], 1)


def test_an_interrupt_that_comes_before_duckdb_begins_is_not_forgotten(
    bus: headwater.bus.Bus, monkeypatch: pytest.MonkeyPatch
):
    said: list[Exception] = []
    looked = Query._check_wanted

    def look(self: Query) -> None:
        looked(self)
        if self._is_answering:
            self.interrupt()  # at the last moment at which nobody looks

    def ask() -> None:
        try:
            bus.sql("select count(*) from range(1000000000000) where hash(range) = 7")
        except Closed as error:
            said.append(error)

    monkeypatch.setattr(Query, "_check_wanted", look)
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    assert not asking.is_alive()
    assert len(said) == 1


def test_a_query_that_nobody_waits_for_is_interrupted(bus: headwater.bus.Bus):
    bus.publish_many([("home/x", b"x")] * 1000)
    ended: list[object] = []
    seen = Query.answer

    def answer(self: Query) -> Any:
        try:
            return seen(self)
        except Closed as error:
            ended.append(error)
            raise

    async def go() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Query, "answer", answer)
            shell = headwater.aio.Bus(bus)
            asked = asyncio.ensure_future(
                shell.sql("select count(*) from 'home/#', range(1000000000000) where hash(text || range) = 7")
            )
            await asyncio.sleep(0.2)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await asyncio.get_running_loop().shutdown_default_executor()  # waits for its threads

    asyncio.run(go())
    assert len(ended) == 1
