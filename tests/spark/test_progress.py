"""A query's place is known to the broker from its first plan on, of a folder and of a server: nothing that it still
has to read is deleted by retention, however it ends."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import headwater
import headwater.bus
from client.served import Served
from headwater.clock import SystemClock
from headwater.config import Retention
from headwater.errors import Conflict, NotAllowed
from headwater.spark.options import check_streaming, read_options
from headwater.spark.streaming import StreamReader
from headwater.store.files import DiskFiles
from spark.rows import SCHEMA
from spark.test_reading import SMALL, fill
from spark.test_streaming import read

pytestmark = pytest.mark.xdist_group("spark")

GREEDY = msgspec.structs.replace(SMALL, retention=Retention(bytes=64 * 1024))
ALL = ReadAllAvailable()


class Place:
    """A bus, and how its reader finds it."""

    def __init__(self, bus: headwater.bus.Bus, options: dict[str, str]) -> None:
        self.bus = bus
        self.options = options

    def reader(self, **more: object) -> StreamReader:
        """What Spark's planner has, from one start of a query to its end."""
        given = {**self.options, "subscription": "job", **{name: str(value) for name, value in more.items()}}
        asked = read_options(given)
        check_streaming(asked)
        return StreamReader(asked, SCHEMA)

    def retain(self) -> int:
        """Have retention delete what it may; the oldest message of home after it."""
        root, upkeep = self.bus.core.roots.get("home"), self.bus.core.upkeep
        assert root is not None
        upkeep._config = GREEDY  # until now it deleted nothing by itself
        self.bus.core.roots.commit.run(lambda: upkeep.retain(root))
        upkeep._config = SMALL
        return root.stream.first_offset

    def standing(self) -> tuple[dict[str, int], int]:
        """Floors and lag of the query's subscription."""
        (info,) = self.bus.subscriptions()
        assert info.id == "job"
        return info.floors, info.lag


@pytest.fixture(params=["folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as held:
        if request.param == "folder":
            bus = held.enter_context(headwater.open(tmp_path / "data", SMALL))
            yield Place(bus, {"data": str(tmp_path / "data")})
        else:
            server = held.enter_context(Served(tmp_path / "data", SMALL))
            yield Place(server.bus, {"url": server.url})


def test_the_place_is_known_from_the_first_plan_on(place: Place) -> None:
    fill(place.bus)
    query = place.reader()
    start = query.initialOffset()
    query.latestOffset(start, ALL)
    assert place.standing() == ({"home": 0}, 300)
    assert place.retain() == 1
    assert place.bus.durables.options("job")["expire_after_s"] == 35 * 86_400.0
    query.stop()


def test_a_place_moves_when_a_batch_is_done_and_not_when_the_next_one_begins(place: Place) -> None:
    fill(place.bus)
    query = place.reader()
    start = query.initialOffset()
    end = query.latestOffset(start, ReadMaxRows(200))
    assert query.initialOffset() == start
    query.partitions(start, end)
    assert place.standing()[1] == 300, "planned is not done"
    assert query.latestOffset(end, ALL) == {"home": 301}
    assert place.standing() == ({"home": 200}, 100)
    assert 1 < place.retain() <= 201
    query.commit(end)
    query.partitions(end, {"home": 301})
    assert place.standing() == ({"home": 200}, 100)
    query.latestOffset({"home": 301}, ALL)  # Spark asks this when it has nothing to do, and before AvailableNow ends
    assert place.standing() == ({"home": 300}, 0)
    query.stop()


def test_a_batch_that_was_cut_short_is_whole_when_it_is_repeated(place: Place) -> None:
    fill(place.bus, count=100)
    killed = place.reader()
    start = killed.initialOffset()
    first = killed.latestOffset(start, ALL)
    killed.partitions(start, first)
    killed.latestOffset(first, ALL)
    fill(place.bus)
    second = killed.latestOffset(first, ALL)
    killed.partitions(first, second)
    fill(place.bus)
    place.retain()
    again = place.reader()
    assert [offset for _, offset in read(again, first, second)] == list(range(101, 401))
    assert again.latestOffset(second, ALL) == {"home": 701}
    assert place.standing()[1] == 300
    for one in (killed, again):
        one.stop()


@pytest.mark.parametrize("start", ["earliest", "latest", "2020-01-01T00:00:00Z"])
def test_a_first_batch_that_was_cut_short_begins_where_it_did(place: Place, start: str) -> None:
    fill(place.bus, count=100)
    killed = place.reader(startingOffsets=start)
    begin = killed.initialOffset()
    fill(place.bus)
    end = killed.latestOffset(begin, ALL)
    killed.partitions(killed.initialOffset(), end)
    fill(place.bus)
    fill(place.bus, "office", 10)
    place.retain()
    again = place.reader(startingOffsets=start)
    found = read(again, again.initialOffset(), end)  # all that Spark has in its checkpoint is the end
    assert [offset for _, offset in found] == list(range(begin["home"], 401))
    assert place.standing() == ({"home": begin["home"] - 1, "office": 0}, 711 - begin["home"])
    for one in (killed, again):
        one.stop()


def test_a_query_from_the_latest_on_reads_what_comes_while_it_is_planned(place: Place) -> None:
    fill(place.bus, count=10)
    query = place.reader(startingOffsets="latest")
    start = query.initialOffset()
    fill(place.bus, count=5)
    end = query.latestOffset(start, ALL)
    fill(place.bus, count=5)
    assert read(query, query.initialOffset(), end) == [("home", offset) for offset in range(11, 16)]
    query.stop()


def test_what_retention_took_before_it_knew_of_a_query_is_no_loss(place: Place) -> None:
    fill(place.bus)
    query = place.reader()
    assert query.initialOffset() == {"home": 1}
    first = place.retain()
    assert first > 1
    end = query.latestOffset({"home": 1}, ALL)
    assert read(query, query.initialOffset(), end) == [("home", offset) for offset in range(first, 301)]
    query.stop()


def test_roots_that_begin_later_are_kept_from_their_first_message_on(place: Place) -> None:
    query = place.reader()
    assert query.latestOffset(query.initialOffset(), ALL) == {}
    fill(place.bus)
    assert place.retain() == 1
    assert place.standing() == ({"home": 0}, 300)
    assert len(read(query, {}, query.latestOffset({}, ALL))) == 300
    query.stop()


def test_a_place_that_stands_still_is_told_again_before_it_expires(place: Place, monkeypatch: Any) -> None:
    fill(place.bus, count=5)
    query = place.reader(subscriptionExpireAfterS=40)
    query.latestOffset({"home": 6}, ALL)
    assert place.standing() == ({"home": 5}, 0)
    assert place.bus.durables.options("job")["expire_after_s"] == 40.0
    place.bus.unsubscribe("job")
    query.latestOffset({"home": 6}, ALL)
    assert place.bus.subscriptions() == [], "nothing is told twice"
    moved_us = SystemClock().monotonic_us() + 10_000_000
    monkeypatch.setattr(SystemClock, "monotonic_us", lambda _: moved_us)
    query.latestOffset({"home": 6}, ALL)
    assert place.standing() == ({"home": 5}, 0)
    query.stop()


def test_a_place_that_was_deleted_under_a_query_is_kept_again_and_for_as_long(place: Place) -> None:
    fill(place.bus, count=5)
    query = place.reader()
    query.latestOffset({"home": 2}, ALL)
    assert place.standing() == ({"home": 1}, 4)
    place.bus.unsubscribe("job")
    query.latestOffset({"home": 4}, ALL)
    assert place.standing() == ({"home": 3}, 2)
    assert place.bus.durables.options("job")["expire_after_s"] == 35 * 86_400.0
    query.stop()


def test_a_name_that_another_filter_has_is_refused(place: Place) -> None:
    fill(place.bus, count=5)
    place.bus.durables.create("job", "home/#")
    query = place.reader()
    with pytest.raises(Conflict, match='"job" has the filter "home/#", not "#"'):
        query.latestOffset({}, ALL)
    query.stop()


def test_a_checkpoint_of_another_bus_moves_no_place(place: Place) -> None:
    fill(place.bus, count=5)
    query = place.reader()
    query.latestOffset({"home": 2}, ALL)
    for call in (lambda: query.latestOffset({"home": 9}, ALL), lambda: query.partitions({"home": 9}, {"home": 12})):
        with pytest.raises(Conflict, match="another bus"):
            call()
    assert place.standing() == ({"home": 1}, 4)
    query.stop()


def test_a_reader_travels_to_tasks(place: Place) -> None:
    fill(place.bus, count=5)
    query = place.reader()
    pickle.loads(pickle.dumps(place.reader()))
    assert query.latestOffset(query.initialOffset(), ALL) == {"home": 6}
    query.stop()


def test_a_folder_that_may_only_be_read_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    with headwater.open(tmp_path / "data") as bus:
        query = Place(bus, {"data": str(tmp_path / "data")}).reader()

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(DiskFiles, "make_folder", refuse)
        with pytest.raises(NotAllowed, match="let this user write there"):
            query.latestOffset({}, ALL)
        query.stop()


def test_a_first_batch_whose_beginning_nobody_remembers_is_an_error(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        fill(bus, count=10)
        options = {"data": str(tmp_path / "data"), "startingOffsets": "latest"}
        query = StreamReader(read_options(options), SCHEMA)
        with pytest.raises(Conflict, match="where it began"):
            query.partitions(query.initialOffset(), {"home": 8})
        lossy = StreamReader(read_options({**options, "failOnDataLoss": "false"}), SCHEMA)
        assert read(lossy, lossy.initialOffset(), {"home": 8}) == []


# With Spark


def run_now(spark: Any, place: Place, checkpoint: Path, seen: list[int], fails: bool = False) -> None:
    def take(frame: Any, _: int) -> None:
        rows = [row.offset for row in frame.collect()]
        if fails:
            raise RuntimeError("killed")
        seen.extend(rows)

    query = (
        spark.readStream.format("headwater")
        .options(**place.options, subscription="job")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if fails:
        with pytest.raises(Exception, match="killed"):
            query.awaitTermination(250)
    else:
        assert query.awaitTermination(250)


def test_runs_in_a_row_with_retention_between_them_have_each_message_once(
    spark: Any, place: Place, tmp_path: Path
) -> None:
    seen: list[int] = []
    fill(place.bus)
    run_now(spark, place, tmp_path / "place", seen, fails=True)
    assert place.standing()[1] == 300
    assert place.retain() == 1
    run_now(spark, place, tmp_path / "place", seen)
    assert place.standing() == ({"home": 300}, 0), "what is done is known when the run has ended"
    fill(place.bus, count=200)
    assert 1 < place.retain() <= 301
    run_now(spark, place, tmp_path / "place", seen)
    assert seen == list(range(1, 501))
    assert place.standing()[1] == 0


@pytest.mark.parametrize("place", ["server"], indirect=True)
def test_a_running_query_with_nothing_to_do_shows_no_lag(spark: Any, place: Place, tmp_path: Path) -> None:
    fill(place.bus, count=50)
    query = (
        spark.readStream.format("headwater")
        .options(**place.options, subscription="job")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "place"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        until = time.monotonic() + 120
        while not (place.bus.subscriptions() and place.standing()[1] == 0) and time.monotonic() < until:
            time.sleep(0.1)
        assert place.standing() == ({"home": 50}, 0)
    finally:
        query.stop()
