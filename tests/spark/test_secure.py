"""SCRAM over TLS through the option `url`, for source, lake and sink; and the secret, which nobody gets to see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import headwater
from client.served import Served
from headwater.spark.pipelines.archive import Archive
from server.authority import LOCAL, Authority

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

SECRET = "hush-hush-hush"
COUNT = 500
WAIT_S = 90


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a server that lets in whoever has the secret, and shows a certificate."""
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server", "localhost", others=LOCAL)
    served = Served(tmp_path / "data", auth="scram", tls_certificate=certificate, tls_key=key, guess_delay_s_max=0.2)
    with served as server:
        server.bus.clients.add("spark", SECRET)
        for action in ("publish", "subscribe", "create", "admin"):
            server.bus.acl.allow("spark", action, "#")
        server.bus.publish_many([(f"home/{n % 3}", b"%d" % n) for n in range(COUNT)])
        yield f"headwaters://spark:{SECRET}@localhost:{server.port}?ca={authority.path}"


def plans(frame: DataFrame) -> str:
    """All that Spark shows of what it is going to do."""
    return str(frame._jdf.queryExecution().toString()) + str(frame._jdf.queryExecution().stringWithStats())


def shown(query: Any) -> str:
    """All that Spark shows of a stream, and of how it went."""
    assert query.awaitTermination(WAIT_S)
    return str(query._jsq.explainInternal(True)) + "".join(one.json for one in query.recentProgress) + str(query.status)


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_source_and_lake_over_tls(spark: SparkSession, tmp_path: Path, url: str) -> None:
    lake = str(tmp_path / "lake")
    assert sum(step.rows for step in Archive(spark, lake, {"url": url}).round()) == COUNT
    with headwater.connect(url) as bus:
        bus.publish("home/0", b"next")
    frame = spark.read.format("headwater").options(url=url, messagesPerPartition="200").load()
    assert frame.count() == COUNT + 1
    table = headwater.spark.table(spark, "home/#", url=url, lake=lake)
    assert table.count() == COUNT + 1
    stream = spark.readStream.format("headwater").options(url=url, lake=lake, subscription="job").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("secure")
        .option("checkpointLocation", str(tmp_path / "place"))
        .trigger(availableNow=True)
        .start()
    )
    assert SECRET not in plans(frame) + plans(table) + shown(query) + repr(frame) + str(query.exception())
    assert spark.table("secure").count() == COUNT + 1
    for folder in ("place", "lake"):
        assert SECRET.encode() not in written(tmp_path / folder)


def test_sink_over_tls(spark: SparkSession, tmp_path: Path, url: str) -> None:
    source = spark.readStream.format("headwater").options(url=url, topics="home/#").load()
    copied = source.selectExpr("concat('copy/', topic) topic", "payload")
    query = (
        copied.writeStream.format("headwater")
        .option("url", url)
        .option("checkpointLocation", str(tmp_path / "place"))
        .trigger(availableNow=True)
        .start()
    )
    assert SECRET not in shown(query)
    assert SECRET.encode() not in written(tmp_path / "place")
    with headwater.connect(url) as bus:
        assert [message.payload for message in bus.replay("copy/#")] == [b"%d" % n for n in range(COUNT)]


def wrong(url: str) -> str:
    return url.replace(SECRET, "wrong-" + SECRET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong, r"Unauthenticated\(401\)"),
        (lambda url: url.partition("?")[0], "certificate"),
        (lambda url: url + "&x=1", r"Malformed\(422\)"),
    ],
)
def test_what_goes_wrong_is_said_without_the_secret(spark: SparkSession, url: str, change: Any, message: str) -> None:
    with pytest.raises(PySparkException, match=message) as reading:
        spark.read.format("headwater").option("url", change(url)).load().count()
    rows = spark.range(3).selectExpr("'a/x' topic", "cast(id as string) payload")
    with pytest.raises(PySparkException, match=message) as writing:
        rows.write.format("headwater").options(url=change(url), reconnectS="0").mode("append").save()
    assert SECRET not in f"{reading.value}{writing.value}"


def test_a_stream_that_fails_does_not_show_the_secret(spark: SparkSession, url: str) -> None:
    stream = spark.readStream.format("headwater").option("url", wrong(url)).load()
    with pytest.raises(StreamingQueryException, match=r"Unauthenticated\(401\)") as caught:
        stream.writeStream.format("noop").start().awaitTermination(WAIT_S)
    assert "Logical Plan" in str(caught.value)
    assert SECRET not in str(caught.value)
