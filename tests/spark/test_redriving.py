"""Dead letters mended in a DataFrame: real Spark, a real server, each handed once to its own subscription."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  # as Spark's users call it
from pyspark.sql.types import StructType

import headwater
from headwater.errors import Malformed
from headwater.spark.redriving import check_letters, groups
from headwater.spark.sink import batch_writer, stream_writer
from spark.served import Server

pytestmark = pytest.mark.xdist_group("spark")
SECRET = "hush-hush-hush"
LETTER = "subscription string, topic string, offset bigint, dead_at timestamp, payload binary, key binary, "
LETTER += "headers map<string,string>"
URL = "headwater://127.0.0.1:7411"


def columns(ddl: str) -> StructType:
    return cast("StructType", StructType.fromDDL(ddl))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("redrive") / "data", "sparky", SECRET) as made:
        yield made


@pytest.fixture
def bus(server: Server) -> Iterator[headwater.client.bus.Bus]:
    with headwater.connect(server.url) as made:
        yield made


def kill(bus, id: str, root: str, count: int):
    """A subscription that gave up on so many messages of a root; they are there already, or published now."""
    if not any(one.topic == f"{root}/x" for one in bus.topics(f"{root}/#")):
        bus.publish_many([headwater.Outgoing(f"{root}/x", b'{"t": "%d"}' % n, key=b"k") for n in range(count)])
    sub = bus.subscribe(f"{root}/#", id=id, start="earliest", order="none", max_in_flight=10_000)
    killed = 0
    while killed < count:
        for message in sub.batch(1000, 10):
            message.reject("not a number")
            killed += 1
    return sub


def dead(spark, server: Server, root: str):
    frame = spark.read.format("headwater").option("url", server.url).option("table", "dead_letters").load()
    return frame.where(F.col("root") == root)


def redrive(frame, server: Server, **options: object) -> None:
    writer = frame.write.format("headwater").option("url", server.url).option("mode", "redrive").options(**options)
    writer.mode("append").save()


def take(sub, count: int) -> list[headwater.Message]:
    found: list[headwater.Message] = []
    while len(found) < count:
        more = sub.batch(count, 10)
        assert more, f"{len(found)} of {count} came"
        found += more
    return found


MEND = "regexp_replace(cast(payload as string), '\"', '')"


def test_mended_rows_go_to_their_own_subscription_in_order_and_a_write_once(spark, server, bus):
    subs = {name: kill(bus, name, "mend", 200) for name in ("one", "two")}
    other = bus.subscribe("mend/#", id="bystander", start="latest")
    mended = dead(spark, server, "mend").where("offset <= 150").withColumn("payload", F.expr(MEND))
    mended = mended.repartition(5, "offset").cache()
    assert mended.count() == 300
    redrive(mended, server, writeId="mend-numbers")
    for name, sub in subs.items():
        found = take(sub, 150)
        assert [message.offset for message in found] == list(range(1, 151))
        assert found[7].payload == b"{t: 7}"
        origin = dict(found[7].headers)
        assert origin["headwater-dead-from"] == name
        assert (origin["headwater-dead-topic"], origin["headwater-dead-offset"]) == ("mend/x", "8")
        assert (origin["headwater-dead-error"], origin["headwater-dead-mended"]) == ("not a number", "payload")
        sub.ack(found)
        assert sub.next(0.05) is None
        assert [letter.offset for letter in bus.dead_letters(name)] == list(range(151, 201))
    redrive(mended, server, writeId="mend-numbers")
    assert all(sub.next(0.05) is None for sub in subs.values())
    assert other.next(0.05) is None
    assert len(list(bus.replay("mend/#"))) == 200
    mended.unpersist()


def test_one_row_that_is_no_letter_leaves_all_as_it_was(spark, server, bus):
    sub = kill(bus, "careful", "care", 20)
    good = dead(spark, server, "care")
    with pytest.raises(PySparkException, match="read them again"):
        redrive(good.union(good.limit(1).withColumn("offset", F.lit(999).cast("bigint"))), server)
    assert len(bus.dead_letters("careful")) == 20
    assert sub.next(0.05) is None
    redrive(good, server)
    assert [message.offset for message in take(sub, 20)] == list(range(1, 21))


def row(**changes: object) -> dict[str, object]:
    letter = {"subscription": "s", "topic": "a/b", "offset": 1, "dead_at": 7, "payload": "x"}
    return {**letter, "key": None, "headers": None, **changes}


def letters_of(*rows: dict[str, object]):
    names = {
        "subscription": pa.string(),
        "topic": pa.string(),
        "offset": pa.int64(),
        "dead_at": pa.timestamp("us", "UTC"),
    }
    names |= {"payload": pa.string(), "key": pa.binary(), "headers": pa.map_(pa.string(), pa.string())}
    return list(groups([pa.RecordBatch.from_pylist(list(rows), pa.schema(names))]))


def test_letters_of_a_task_are_sent_by_subscription():
    found = letters_of(row(), row(subscription="t", key=b"k", headers=[("a", "b")]), row(offset=2, dead_at=8))
    assert [(name, [one.offset for one in letters]) for name, letters in found] == [("s", [1, 2]), ("t", [1])]
    ((_, (first, second)), (_, (third,))) = found
    assert (first.payload, first.key, first.header_pairs, first.dead_at_us, second.dead_at_us) == (b"x", None, (), 7, 8)
    assert (third.key, third.header_pairs) == (b"k", (("a", "b"),))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row(payload=None)], 'column "payload" may not be null'),
        ([row(), row(dead_at=None)], 'column "dead_at" may not be null'),
        ([row(headers=[("a", None)])], 'header "a" of a row is null'),
        ([row(), row(dead_at=8)], "mended twice"),
    ],
)
def test_a_row_that_is_no_letter_is_refused(rows, says):
    with pytest.raises(Malformed, match=says):
        letters_of(*rows)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (LETTER.replace("dead_at timestamp, ", ""), 'no column "dead_at"; keep it'),
        (LETTER.replace(", key binary", ""), 'no column "key"; keep it'),
        (f"{LETTER}, extra string", "drop it"),
        (LETTER.replace("payload", "paylod"), 'rename it to "payload"'),
        (LETTER.replace("bigint", "string"), "cast it to bigint"),
        (f"{LETTER}, key binary", '2 columns "key"'),
    ],
)
def test_a_frame_that_is_no_dead_letters_is_refused(spark, schema, says):
    with pytest.raises(Malformed, match=says):
        check_letters(columns(schema))


def test_columns_of_the_table_that_say_nothing_here_may_stay_or_go(spark):
    whole = LETTER.replace("payload binary", "payload string")
    check_letters(columns(f"{whole}, root string, timestamp timestamp, attempts int, errors array<string>"))
    check_letters(columns(LETTER))


def test_a_mode_that_is_none_and_a_stream_are_refused(spark):
    schema = columns(LETTER)
    with pytest.raises(Malformed, match='use "publish", or "redrive"'):
        batch_writer({"url": URL, "mode": "append"}, schema, overwrite=False)
    with pytest.raises(Malformed, match="foreachBatch"):
        stream_writer({"url": URL, "mode": "redrive"}, schema)
