"""Reading folders as Spark's planner and tasks do: the same messages as a replay, however they are cut, and whichever
reader it is: each test is for both."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

import headwater
import headwater.bus
from headwater.errors import Gap, Malformed, NotFound
from headwater.spark.folder import Folder
from headwater.spark.pieces import Pieces
from headwater.spark.reading import keep_what_is_loaded
from headwater.spark.spans import pack
from headwater.store.log import Hole
from spark.beside import Owner
from spark.rows import batches, partitions, replayed, rows

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("reader")]
KIB = 1024
SMALL = headwater.Config(segment_bytes=64 * KIB)
EARLY = datetime(2020, 1, 1, tzinfo=UTC)


def fill(bus: headwater.bus.Bus, root: str = "home", count: int = 300, size: int = 700) -> None:
    """Batches of 1 to 20 messages."""
    done = batch = 0
    while done < count:
        batch = batch % 20 + 1
        messages = [
            headwater.Outgoing(
                f"{root}/{(done + n) % 5}/temp",
                (b"%d" % (done + n)).ljust(size, b"."),
                key=b"k%d" % n if n % 3 else None,
                headers=(("unit", "C"), ("n", str(n)), ("n", "last")) if n % 2 else (),
            )
            for n in range(min(batch, count - done))
        ]
        bus.publish_many(messages)
        done += len(messages)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two roots, several segments each."""
    path = tmp_path_factory.mktemp("spark") / "data"
    with headwater.open(path, SMALL) as bus:
        fill(bus, "home")
        fill(bus, "office", 120)
    assert len(list((path / "streams/1-home").glob("*.log"))) > 3
    return path


def test_rows_are_what_a_replay_yields(folder):
    assert rows(folder) == replayed(folder)
    assert len(rows(folder)) == 420


@pytest.mark.parametrize("topics", ["#", "home/#", "+/3/temp", "home/3/temp", "home", "nothing/#", "home/none"])
def test_topics_choose_as_filters_do(folder, topics):
    assert rows(folder, topics=topics) == replayed(folder, topics)


def test_what_a_worker_has_loaded_is_left_out_of_its_collections_once(folder):
    gc.unfreeze()
    keep_what_is_loaded.cache_clear()
    try:
        batches(folder)
        kept = gc.get_freeze_count()
        batches(folder)
        assert 0 < gc.get_freeze_count() <= kept
    finally:
        gc.unfreeze()


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 500), start=st.integers(1, 300), length=st.integers(0, 300))
def test_any_split_of_a_range_gives_the_same_rows(folder, count, start, length):
    end = min(301, start + length)
    found = partitions(
        folder,
        topics="home/#",
        messagesPerPartition=count,
        startingOffsets=f'{{"home": {start}}}',
        endingOffsets=f'{{"home": {end}}}',
    )
    assert [row for part in found for row in part] == [
        row for row in replayed(folder, "home/#") if start <= row[2] < end
    ]
    assert all(len(part) <= count for part in found)


@settings(max_examples=15, deadline=None)
@given(bytes_max=st.integers(1, 200_000))
def test_any_split_by_bytes_has_every_offset_once(folder, bytes_max):
    with Folder(str(folder)) as log:
        spans = list(log.spans("home", 1, 300, bytes_max, None))
    assert [offset for span in spans for offset in range(span.first, span.last + 1)] == list(range(1, 301))
    if bytes_max > 20_000:
        assert all(span.bytes < 2 * bytes_max for span in spans)


def test_small_reads_are_one_partition_and_one_record_batch(folder):
    assert [len(part) for part in batches(folder, topics="home/#")] == [1]


def test_messages_of_1000_topics(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        for turn in range(3):
            bus.publish_many([(f"home/{n}/temp", b"%d" % turn) for n in range(1000)])
    assert rows(tmp_path / "data") == replayed(tmp_path / "data")
    assert rows(tmp_path / "data", topics="home/7/temp") == replayed(tmp_path / "data", "home/7/temp")


def test_zstd_bodies(tmp_path):
    config = headwater.Config(segment_bytes=64 * KIB, compression="zstd", compression_bytes_min=100)
    with headwater.open(tmp_path / "data", config) as bus:
        fill(bus)
    assert rows(tmp_path / "data") == replayed(tmp_path / "data")
    assert len(rows(tmp_path / "data")) == 300


def test_batches_larger_than_a_read(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/a", b"small")
        bus.publish_many([("home/b", b"x" * (1 << 20))] * 12)
        bus.publish("home/a", b"small")
    found = rows(tmp_path / "data")
    assert [len(row[6]) for row in found] == [5, *[1 << 20] * 12, 5]


def test_expired_messages_are_left_out(tmp_path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([headwater.Outgoing("home/a", b"%d" % n, ttl_s=0.001 if n % 2 else 3600) for n in range(10)])
        bus.publish("home/a", b"for ever")
    assert [row[6] for row in rows(tmp_path / "data")] == [b"0", b"2", b"4", b"6", b"8", b"for ever"]
    assert rows(tmp_path / "data") == replayed(tmp_path / "data")


def test_purged_messages_are_left_out(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        bus.purge("home/3/#")
        fill(bus, count=50)
        assert rows(tmp_path / "data") == replayed(tmp_path / "data"), "beside the owner"
    found = rows(tmp_path / "data")
    assert found == replayed(tmp_path / "data")
    assert {row[1] for row in found if row[2] <= 300} == {f"home/{n}/temp" for n in (0, 1, 2, 4)}
    assert len(found) == 240 + 50


def test_what_was_erased_by_its_key_is_left_out(tmp_path):
    with headwater.open(tmp_path) as bus:
        bus.publish_many([headwater.Outgoing(f"home/{n % 3}", b"%d" % n, key=b"%d" % (n % 4)) for n in range(100)])
        bus.publish("home/none", b"no key")
        bus.erase(b"1", "home/+")
        bus.erase(b"2", "home/2")
        bus.publish("home/1", b"later", key=b"1")
    assert rows(tmp_path) == replayed(tmp_path)
    assert len(rows(tmp_path)) == 102 - 25 - 9


def test_a_whole_root_that_was_purged_is_no_loss(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
        bus.purge("home/#")
        fill(bus, count=5)
    assert [row[2] for row in rows(tmp_path / "data", startingOffsets='{"home": 1}')] == list(range(301, 306))


# Where a read begins and ends


def test_a_read_between_times(tmp_path):
    clock = headwater.ManualClock()
    begin = clock.now_us()
    with headwater.bus.Bus(tmp_path / "data", clock=clock) as bus:
        for n in range(10):
            bus.publish("home/a", b"%d" % n)
            clock.advance(60)

    def at(minutes: int) -> str:
        moment = datetime.fromtimestamp(begin / 1e6, UTC) + timedelta(minutes=minutes)
        return moment.isoformat()

    found = rows(tmp_path / "data", startingOffsets=at(3), endingOffsets=at(7))
    assert [row[6] for row in found] == [b"3", b"4", b"5", b"6"]
    assert len(rows(tmp_path / "data", startingOffsets=EARLY.isoformat())) == 10


def test_offsets_per_root_leave_the_others_whole(folder):
    found = rows(folder, startingOffsets='{"home": 299}')
    assert [row[2] for row in found if row[0] == "home"] == [299, 300]
    assert sum(row[0] == "office" for row in found) == 120


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endingOffsets": '{"home": 302}'}, "the newest is 300"),
        ({"startingOffsets": '{"home": 302}'}, "the newest is 300"),
        ({"startingOffsets": '{"home": 9}', "endingOffsets": '{"home": 8}'}, "exchange them"),
        ({"startingOffsets": '{"hoem": 9}'}, "there are home, office"),
    ],
)
def test_offsets_that_are_not_there_are_refused(folder, options, told):
    with pytest.raises(Malformed) as caught:
        rows(folder, **options)
    assert told in str(caught.value)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(NotFound, match="no Headwater folder"):
        rows(tmp_path)


def test_an_empty_bus_has_no_rows(tmp_path):
    headwater.open(tmp_path / "data").close()
    assert rows(tmp_path / "data") == []


# Pushed filters


@pytest.mark.parametrize(
    ("filter", "keeps"),
    [
        (spark.EqualTo(("root",), "office"), lambda row: row[0] == "office"),
        (spark.EqualTo(("topic",), "home/2/temp"), lambda row: row[1] == "home/2/temp"),
        (spark.StringStartsWith(("topic",), "home/2"), lambda row: row[1].startswith("home/2")),
        (spark.GreaterThan(("offset",), 110), lambda row: row[2] > 110),
        (spark.In(("offset",), (1, 120, 300)), lambda row: row[2] in {1, 120, 300}),
        (spark.Not(spark.EqualTo(("offset",), 5)), lambda row: row[2] != 5),
        (spark.LessThan(("timestamp",), EARLY), lambda row: False),
        (spark.GreaterThan(("timestamp",), EARLY), lambda row: True),
        (spark.IsNull(("offset",)), lambda row: False),
    ],
)
def test_a_pushed_filter_leaves_exactly_what_it_says(folder, filter, keeps):
    assert rows(folder, [filter]) == [row for row in replayed(folder) if keeps(row)]


def test_a_pushed_filter_on_offsets_prunes_segments(folder):
    with Folder(str(folder)) as log:
        all_bytes = log.bytes_between("home", 1, 300)
        assert log.bytes_between("home", 290, 300) < all_bytes / 5
    assert len(partitions(folder, [spark.GreaterThan(("offset",), 290)], messagesPerPartition=10)) == 1


# Loss and damage


def retained_from(folder: Path) -> int:
    """Have retention delete the oldest two segments of home."""
    first = int(sorted((folder / "streams/1-home").glob("*.log"))[2].stem)
    with headwater.open(folder, SMALL) as bus:
        root = bus.core.roots.get("home")
        assert root is not None
        bus.core.roots.commit.run(lambda: root.stream.trim(first - 1))
    return first


def test_messages_that_retention_took_are_an_error_only_if_they_were_asked_for(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    first = retained_from(tmp_path / "data")
    assert [row[2] for row in rows(tmp_path / "data")] == list(range(first, 301))
    with pytest.raises(Gap) as caught:
        rows(tmp_path / "data", startingOffsets='{"home": 1}')
    assert (caught.value.root, caught.value.first, caught.value.last) == ("home", 1, first - 1)
    assert "failOnDataLoss" in str(caught.value)
    found = rows(tmp_path / "data", startingOffsets='{"home": 1}', failOnDataLoss=False)
    assert [row[2] for row in found] == list(range(first, 301))


def test_a_corrupt_batch_is_an_error_that_names_it(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    whole = rows(tmp_path / "data")
    log = sorted((tmp_path / "data/streams/1-home").glob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(Gap, match="damaged") as caught:
        rows(tmp_path / "data")
    lost = caught.value
    found = rows(tmp_path / "data", failOnDataLoss=False)
    assert found == [row for row in whole if not lost.first <= row[2] <= lost.last]
    assert 0 < lost.last - lost.first < 20


def test_a_missing_or_stale_index_is_no_matter(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    whole = rows(tmp_path / "data")
    indexes = sorted((tmp_path / "data/streams/1-home").glob("*.idx"))
    indexes[0].unlink()
    indexes[1].write_bytes(indexes[1].read_bytes()[:48])
    indexes[2].write_bytes(b"\xff" * 48)
    assert rows(tmp_path / "data") == whole
    assert rows(tmp_path / "data", messagesPerPartition=7) == whole


def test_segments_that_go_while_they_are_read_are_named(tmp_path):
    with headwater.open(tmp_path / "data", SMALL) as bus:
        fill(bus)
    with Folder(str(tmp_path / "data")) as log:
        ((span,),) = pack(log.spans("home", 1, 300, 1 << 30, None), 1 << 30, None)
    first = retained_from(tmp_path / "data")
    pieces = list(Pieces(str(tmp_path / "data"), span))
    assert isinstance(pieces[0], Hole)
    assert (pieces[0].first, pieces[0].last) == (1, first - 1)
    assert not any(isinstance(piece, Hole) for piece in pieces[1:])


# Beside an owner


def test_reading_beside_an_owner_that_publishes(tmp_path):
    with Owner(tmp_path / "data") as owner:
        for turn in range(6):
            acked = dict(owner.acked)
            found = rows(tmp_path / "data", messagesPerPartition=[97, 100_000][turn % 2])
            for root, number in acked.items():
                mine = [row for row in found if row[0] == root]
                assert [row[2] for row in mine] == list(range(1, len(mine) + 1))
                assert [int(row[6].rstrip(b".")) for row in mine] == list(range(1, len(mine) + 1))
                assert len(mine) >= number, "what was acknowledged is there"
    assert rows(tmp_path / "data") == replayed(tmp_path / "data")


def test_a_killed_owner_leaves_what_it_acknowledged(tmp_path):
    with Owner(tmp_path / "data") as owner:
        owner.kill()
    found = rows(tmp_path / "data")
    for root, number in owner.acked.items():
        assert sum(row[0] == root for row in found) >= number
