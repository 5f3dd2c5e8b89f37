"""Tables of SQL: those that a session makes, and the catalog in which every root is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE
from typing import Any

import pytest
from pyspark.errors import PySparkException

import headwater
from headwater.errors import Malformed
from headwater.spark import catalog
from headwater.spark.jar import find
from headwater.spark.sink import write_options
from headwater.spark.topics import Topics
from spark.served import Server

pytestmark = pytest.mark.xdist_group("spark")

TEMPERATURES = [("home/kitchen/temp", b"21.5"), ("home/hall/temp", b"19.0"), ("my-office/door", b"open")]


@pytest.fixture
def folder(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many(TEMPERATURES)
        bus.publish("home/kitchen/temp", b"22.0")
    return str(tmp_path / "data")


# What Python tells of a catalog


def test_roots_are_tables_and_so_are_filters(folder):
    given = {"data": folder}
    assert catalog.tables(given, "") == ["home", "my-office"]
    found = catalog.table(given, "", "my-office")
    assert found is not None
    assert found.options["topics"] == "my-office/#"
    assert found.schema.startswith("root string, topic string, offset bigint")
    found = catalog.table(given, "", "home/+/temp")
    assert found is not None
    assert found.options["topics"] == "home/+/temp"
    assert catalog.table(given, "", "office") is None
    assert catalog.table(given, "office", "home") is None
    with pytest.raises(Malformed, match="goes on after #"):
        catalog.table(given, "", "home/#/temp")


def test_what_the_broker_knows_is_in_a_namespace_of_its_own(folder):
    given = {"data": folder, "lake": "somewhere", "failOnDataLoss": "false"}
    assert catalog.tables(given, "state") == ["dead_letters", "subscriptions", "message_states"]
    found = catalog.table(given, "state", "dead_letters")
    assert found is not None
    assert found.options == {"data": folder, "table": "dead_letters"}
    assert catalog.table(given, "state", "home") is None


def test_a_catalog_is_told_where_the_bus_is_or_finds_it_in_the_environment(folder, monkeypatch):
    monkeypatch.delenv("HEADWATER_URL", raising=False)
    with pytest.raises(Malformed, match="say where the messages are"):
        catalog.tables({}, "")
    monkeypatch.setenv("HEADWATER_DATA", folder)
    assert catalog.tables({}, "") == ["home", "my-office"]
    with pytest.raises(Malformed, match="each of its tables says that itself"):
        catalog.tables({"data": folder, "topics": "home/#"}, "")


def test_a_table_is_read_and_written_and_each_leaves_out_what_is_for_the_other():
    given = {
        "provider": "headwater",
        "url": "headwater://127.0.0.1",
        "topics": "home/one",
        "ttl": "1h",
        "typed": "true",
    }
    options = write_options(given)
    assert (options.topic, options.table, options.ttl_us) == ("home/one", Topics(("home/one",)), 3_600_000_000)
    assert write_options({**given, "topics": "home/#"}).topic is None
    several = write_options({**given, "topics": "home/#, office/door"})
    assert (several.topic, several.table) == (None, Topics(("home/#", "office/door")))
    with pytest.raises(Malformed, match="INSERT INTO a table of topics"):
        write_options({"provider": "headwater", "url": "headwater://127.0.0.1", "table": "dead_letters"})
    with pytest.raises(Malformed, match="a folder has one owner"):
        write_options({"provider": "headwater", "data": "var/data"})
    with pytest.raises(Malformed, match='no option "topics" of a write'):
        write_options({"url": "headwater://127.0.0.1", "topics": "home/#"})


# In Spark


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served") / "data"
    with headwater.open(folder) as bus:
        bus.publish_many(TEMPERATURES)
    with Server(folder) as made:
        yield made


@pytest.fixture
def session(spark, server):
    """A session of its own with a catalog `hw` of the server: one that has a catalog keeps it as it is."""
    if find() is None:
        pytest.skip("tables are in the jar, which is not built: `make jvm` does it, where there is javac")
    made = spark.newSession()
    made.conf.set("spark.sql.catalog.hw", "headwater.spark.HeadwaterCatalog")
    made.conf.set("spark.sql.catalog.hw.url", server.url)
    return made


@pytest.fixture
def sql(session):
    """Ask the session."""

    def ask(query: str) -> list[tuple[Any, ...]]:
        return [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in session.sql(query).collect()]

    return ask


def test_a_catalog_lists_roots_and_its_tables_are_read_and_described(sql):
    assert {("", "home", False), ("", "my-office", False)} <= set(sql("SHOW TABLES IN hw"))
    assert sql("SHOW NAMESPACES IN hw") == [("state",)]
    assert ("state", "subscriptions", False) in sql("SHOW TABLES IN hw.state")
    assert sql("SELECT topic, payload FROM hw.home WHERE offset <= 2 ORDER BY offset") == TEMPERATURES[:2]
    assert sql("SELECT payload FROM hw.`home/hall/+`") == [(b"19.0",)]
    assert sql("SELECT count(*) FROM hw.`nothing/yet/#`") == [(0,)]
    assert sql("SELECT * FROM hw.state.dead_letters") == []
    assert ("headers", "map<string,string>", None) in sql("DESCRIBE hw.home")
    assert "in Spark's own process" in sql("EXPLAIN SELECT topic FROM hw.home WHERE offset > 1")[0][0]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM hw.nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM hw.nowhere.home", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SHOW TABLES IN hw.nowhere", "SCHEMA_NOT_FOUND"),
        ("SELECT * FROM hw.`home/#/temp`", "goes on after #"),
        ("CREATE TABLE hw.other (topic string)", "it is not made, changed or dropped"),
        ("DROP TABLE hw.home", "it is not made, changed or dropped"),
        ("CREATE NAMESPACE hw.other", "it is not made, changed or dropped"),
        ("INSERT INTO hw.home (topic, payload) VALUES ('office/x', X'00')", 'topic "office/x" is none of this table'),
        ("INSERT OVERWRITE hw.home (topic, payload) VALUES ('home/x', X'00')", "not overwritten"),
        ("INSERT INTO hw.state.dead_letters SELECT * FROM hw.state.dead_letters", "INSERT INTO a table of topics"),
    ],
)
def test_what_a_catalog_refuses_is_told(sql, query: str, said: str):
    with pytest.raises(Exception, match=said):
        sql(query)


def test_an_insert_publishes(sql, server):
    sql("INSERT INTO hw.`alerts/#` (topic, payload, key) VALUES ('alerts/heat', X'4f', X'6b')")
    sql("INSERT INTO hw.alerts SELECT * FROM hw.alerts")
    with headwater.connect(server.url) as bus:
        found = [(m.topic, m.payload, m.key, m.offset) for m in bus.replay("alerts/#")]
    assert found == [("alerts/heat", b"O", b"k", 1), ("alerts/heat", b"O", b"k", 2)]
    assert ("", "alerts", False) in sql("SHOW TABLES IN hw")


def test_a_table_of_a_session_keeps_its_options(sql, session, server):
    where = f"USING headwater OPTIONS (url '{server.url}', topics 'copies/#')"
    try:
        sql(f"CREATE TABLE copies {where} AS SELECT 'copies/a' AS topic, payload FROM hw.`home/hall/temp`")
        sql("INSERT INTO copies VALUES ('copies/b', X'62')")
        more = session.sql("SELECT 'copies/c' AS topic, X'63' AS payload").write.format("headwater")
        more.mode("append").saveAsTable("copies")
        rows = [("copies/a", b"19.0"), ("copies/b", b"b"), ("copies/c", b"c")]
        assert sql("SELECT * FROM copies ORDER BY topic") == rows
        sql(f"CREATE TABLE whole {where}")
        assert ("offset", "bigint", None) in sql("DESCRIBE whole")
        assert sql("SELECT topic, payload FROM whole ORDER BY topic") == rows
        query = session.readStream.table("whole").writeStream.format("memory").queryName("streamed")
        query.trigger(availableNow=True).start().awaitTermination()
        assert sql("SELECT count(*) FROM streamed") == [(3,)]
    finally:
        for name in ("copies", "whole", "streamed"):
            sql(f"DROP TABLE IF EXISTS {name}")


def test_a_wrong_option_of_a_table_is_refused_when_it_is_made(sql, spark, server):
    with pytest.raises(PySparkException, match='did you mean "url"'):
        sql(f"CREATE TABLE wrong USING headwater OPTIONS (uri '{server.url}')")
    frame = (
        spark.sql("SELECT 'copies/d' AS topic, X'64' AS payload").write.format("headwater").option("url", server.url)
    )
    with pytest.raises(PySparkException, match="CREATE TABLE … USING headwater OPTIONS"):
        frame.saveAsTable("wrong")
    assert ("default", "wrong", False) not in sql("SHOW TABLES IN spark_catalog.default")


# From the command line


def test_tables_that_are_kept_are_there_in_the_next_session_and_a_warm_one_answers(folder, tmp_path):
    """Spark is started twice: by a query that makes a table, and to be kept warm for those that come."""
    asked = (sys.executable, "-m", "headwater", "pipeline")
    kept = ("--data", folder, "--tables", str(tmp_path / "tables"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*asked, *words), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    where = f"USING headwater OPTIONS (data '{folder}', topics 'home/kitchen/#')"
    made = run("sql", *kept, "-e", f"CREATE TABLE spark_catalog.default.kitchen {where}")
    assert made.returncode == 0, made.stderr
    serving = subprocess.Popen(
        (*asked, "serve", *kept, "--port", "0", "--json"), cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        assert serving.stdout is not None
        environment["HEADWATER_SPARK"] = address = json.loads(serving.stdout.readline())["address"]
        found = run("sql", "--json", "-e", "SELECT payload, offset FROM spark_catalog.default.kitchen ORDER BY offset")
        assert [json.loads(line) for line in found.stdout.splitlines()] == [
            {"payload": "21.5", "offset": 1},
            {"payload": "22.0", "offset": 3},
        ]
        assert "my-office" in run("sql", "-e", "SHOW TABLES").stdout
        wrong = run("sql", "-e", "SELECT * FROM nowhere")
        assert wrong.returncode == 2
        assert "TABLE_OR_VIEW_NOT_FOUND" in wrong.stderr
        assert "Traceback" not in wrong.stderr
        environment["HEADWATER_SPARK"] = address.partition("token=")[0] + "token=another"
        assert run("sql", "-e", "SHOW TABLES").returncode != 0
    finally:
        serving.terminate()
        serving.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "tables"]
