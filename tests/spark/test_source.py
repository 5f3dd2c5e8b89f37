"""`format("headwater")` in a real Spark session."""

from __future__ import annotations

from datetime import UTC

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

import headwater
from spark.beside import Owner
from spark.rows import by_place, replayed
from spark.test_reading import SMALL, fill

pytestmark = pytest.mark.xdist_group("spark")
PUSH = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("source") / "data"
    with headwater.open(path, SMALL) as bus:
        fill(bus, "home")
        fill(bus, "office", 120)
        bus.publish("home/late", b"x", ttl_s=0.001)
        bus.purge("home/3/#")
    return path


def load(spark, folder, **options):
    return spark.read.format("headwater").option("data", str(folder)).options(**options).load()


def plain(row: Row) -> tuple[object, ...]:
    """A row as a replay says it; Spark gives local times without a zone, and bytearrays."""
    key = None if row.key is None else bytes(row.key)
    return (row.root, row.topic, row.offset, row.timestamp.astimezone(UTC), key, row.headers, bytes(row.payload))


def test_a_frame_has_what_a_replay_yields(spark, folder):
    frame = load(spark, folder)
    assert frame.dtypes == [
        ("root", "string"),
        ("topic", "string"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("key", "binary"),
        ("headers", "map<string,string>"),
        ("payload", "binary"),
    ]
    assert by_place(map(plain, frame.collect())) == replayed(folder)


def test_partitions_of_any_size_give_the_same_rows(spark, folder):
    frame = load(spark, folder, messagesPerPartition="50")
    assert frame.rdd.getNumPartitions() >= 9
    assert by_place(map(plain, frame.collect())) == replayed(folder)


@pytest.mark.parametrize(
    "where",
    [
        "root = 'office'",
        "topic = 'home/2/temp' and offset between 100 and 200",
        "topic like 'home/2%' or offset < 3",
        "topic != 'home/2/temp' and offset in (1, 2, 3)",
        "timestamp > timestamp'2020-01-01 00:00:00' and offset > 290",
        "timestamp < timestamp'2020-01-01 00:00:00'",
        "key is null and offset <= 10",
        "headers['n'] = 'last' and offset <= 10",
        "topic is null",
    ],
)
def test_a_filter_says_the_same_with_and_without_push_down(spark, folder, everything, where):
    expected = by_place(map(plain, everything.where(where).collect()))
    assert by_place(map(plain, load(spark, folder, pushFilters="true").where(where).collect())) == expected
    assert by_place(map(plain, load(spark, folder).where(where).collect())) == expected


@pytest.fixture(scope="module")
def everything(spark, folder):
    """All rows, kept, so that filters on them are Spark's own."""
    frame = load(spark, folder).cache()
    assert frame.count() == len(replayed(folder))
    yield frame
    frame.unpersist()


def test_a_pushed_filter_does_not_read_what_it_rules_out(spark, folder):
    frame = load(spark, folder, messagesPerPartition="10", pushFilters="true")
    assert frame.where("offset > 295 and root = 'home'").rdd.getNumPartitions() == 1


def test_a_session_without_push_down_reads_all_the_same(spark, folder):
    spark.conf.set(PUSH, "false")
    try:
        assert load(spark, folder).where("offset > 295").count() == 4
        with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
            load(spark, folder, pushFilters="true", reader="python").count()
    finally:
        spark.conf.set(PUSH, "true")


def test_a_frame_may_be_used_with_several_filters(spark, folder):
    frame = load(spark, folder)
    every = len(replayed(folder))
    assert frame.where("offset = 1").count() == 2
    assert frame.count() == every, "as it would not be if filters were pushed unasked: Spark keeps the last ones"
    both = frame.where("root = 'home' and offset = 1").union(frame.where("root = 'office' and offset = 2"))
    assert sorted((row.root, row.offset) for row in both.collect()) == [("home", 1), ("office", 2)]


def test_a_frame_is_what_there_was_when_it_was_first_used(spark, tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, count=5)
        frame = load(spark, tmp_path / "data")
        assert frame.count() == 5
        fill(bus, count=5)
        assert frame.count() == 5
        assert load(spark, tmp_path / "data").count() == 10


def test_a_topic_filter_that_matches_nothing_is_an_empty_frame(spark, folder):
    assert load(spark, folder, topics="nothing/#").count() == 0
    assert load(spark, folder, topics="nothing/#").columns[0] == "root"


def test_a_schema_may_have_fewer_columns(spark, folder):
    frame = spark.read.format("headwater").schema("offset long, topic string").option("data", str(folder)).load()
    assert frame.where("topic = 'home/late'").count() == 0
    assert frame.columns == ["offset", "topic"]
    assert frame.count() == len(replayed(folder))


def test_aggregates_go_through_sql(spark, folder):
    load(spark, folder).createOrReplaceTempView("messages")
    found = spark.sql("select root, count(*) as n, max(offset) as last from messages group by root order by root")
    assert [tuple(row) for row in found.collect()] == [("home", 240, 300), ("office", 120, 120)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topics": "home/*"}, "Malformed(422)"),
        ({"topicz": "home"}, 'did you mean "topics"'),
        ({"endingOffsets": '{"home": 10000}'}, "beyond its end"),
        ({"data": "/nowhere"}, "NotFound(404)"),
    ],
)
def test_a_wrong_option_is_a_typed_error_before_any_row(spark, folder, options, told):
    with pytest.raises(PySparkException) as caught:
        load(spark, folder, **options).count()
    assert told in str(caught.value)


def test_a_wrong_column_is_told_which_there_are(spark, folder):
    with pytest.raises(PySparkException, match="there are root string, topic string"):
        spark.read.format("headwater").schema("value string").option("data", str(folder)).load().count()


def test_a_corrupt_segment_is_a_typed_error(spark, tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    log = sorted((tmp_path / "data/streams/1-home").glob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(PySparkException) as caught:
        load(spark, tmp_path / "data").count()
    assert 'of "home" are gone (damaged' in str(caught.value)
    assert 280 <= load(spark, tmp_path / "data", failOnDataLoss="false").count() < 300


def test_reading_beside_an_owner_that_publishes(spark, tmp_path):
    with Owner(tmp_path / "data") as owner:
        acked = dict(owner.acked)
        found = load(spark, tmp_path / "data", messagesPerPartition="500").collect()
    for root, number in acked.items():
        offsets = sorted(row.offset for row in found if row.root == root)
        assert offsets == list(range(1, len(offsets) + 1))
        assert len(offsets) >= number
