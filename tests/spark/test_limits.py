"""The limits of a micro-batch count what matches: of a folder and of a server, bounded however long the log is."""

from __future__ import annotations

import json
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
from headwater.client.bus import Bus as Connection
from headwater.clock import ManualClock
from headwater.errors import Malformed
from headwater.server import answers
from headwater.spark import limits
from headwater.spark.options import check_streaming, read_options
from headwater.spark.served import Served as Log
from headwater.spark.streaming import StreamReader
from headwater.store.fronts import READ_BYTES
from headwater.wire.requests import Count
from spark.rows import SCHEMA
from spark.test_reading import SMALL, fill
from spark.test_streaming import read

pytestmark = pytest.mark.xdist_group("spark")

ALL = ReadAllAvailable()
Offsets = dict[str, int]


class Place:
    """A bus, and how its reader finds it."""

    def __init__(self, bus: headwater.bus.Bus, options: dict[str, str]) -> None:
        self.bus = bus
        self.options = options

    def reader(self, clock: ManualClock | None = None, **more: object) -> StreamReader:
        asked = read_options({**self.options, **{name: str(value) for name, value in more.items()}})
        check_streaming(asked)
        return StreamReader(asked, SCHEMA, clock)


@pytest.fixture(params=["folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as held:
        if request.param == "folder":
            bus = held.enter_context(headwater.open(tmp_path / "data", SMALL))
            yield Place(bus, {"data": str(tmp_path / "data")})
        else:
            server = held.enter_context(Served(tmp_path / "data", SMALL))
            yield Place(server.bus, {"url": server.url})


def micro_batches(stream: StreamReader, limit: int) -> list[tuple[Offsets, list[tuple[str, int]]]]:
    """Where each ends and what it has, until there is no more."""
    place, found = stream.initialOffset(), []
    while (end := stream.latestOffset(place, ReadMaxRows(limit))) != place:
        assert all(upto >= place.get(root, 1) for root, upto in end.items())
        found.append((end, read(stream, place, end)))
        place = end
    stream.stop()
    return found


def test_a_micro_batch_has_as_many_as_match(place: Place) -> None:
    fill(place.bus, "home", 300)  # every fifth is of home/2
    found = micro_batches(place.reader(topics="home/2/temp"), 7)
    assert [len(rows) for _, rows in found] == [7] * 8 + [4]
    assert found[0][0] == {"home": found[0][1][-1][1] + 1}, "it ends behind the last that it has"
    assert [offset for _, rows in found for _, offset in rows] == list(range(3, 301, 5))
    whole = micro_batches(place.reader(topics="home/#"), 70)
    assert [len(rows) for _, rows in whole] == [70] * 4 + [20]


def test_several_filters_and_several_roots_share_the_limit(place: Place) -> None:
    fill(place.bus, "home", 300)
    fill(place.bus, "office", 100)
    fill(place.bus, "yard", 50)
    found = micro_batches(place.reader(topics="home/1/temp, home/2/temp, office/3/#, yard/#"), 40)
    rows = [row for _, some in found for row in some]
    assert [len(some) for _, some in found] == [40] * 4 + [30]
    assert sorted(rows) == sorted(
        [("home", n) for n in range(1, 301) if n % 5 in (2, 3)]
        + [("office", n) for n in range(4, 101, 5)]
        + [("yard", n) for n in range(1, 51)]
    )
    roots = [{root for root, _ in some} for _, some in found]
    assert roots[0] == {"home", "office", "yard"}


def test_what_one_root_has_not_goes_to_the_others(place: Place) -> None:
    fill(place.bus, "home", 300)
    fill(place.bus, "office", 60)
    (first, *_) = micro_batches(place.reader(topics="+/nothing, office/#"), 50)
    assert first[0] == {"home": 301, "office": 51}
    assert len(first[1]) == 50


def test_a_filter_that_matches_nothing_moves_on_in_bounded_looks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = 90
    for n in range(batches):
        place.bus.publish_many([("home/1/temp", b"%d" % n)] * 4)
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 20 * READ_BYTES)
    found = micro_batches(place.reader(topics="home/9/temp"), 3)
    assert [end["home"] for end, _ in found] == [81, 161, 241, 321, 361], "20 batches at a time"
    assert not any(rows for _, rows in found)
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 1)
    found = micro_batches(place.reader(topics="home/9/temp"), 100)
    assert [end["home"] for end, _ in found] == [101, 201, 301, 361], "and never by less than the limit"


def test_a_look_is_one_for_all_roots(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("home", "office"):
        for n in range(30):
            place.bus.publish_many([(f"{root}/1/temp", b"%d" % n)] * 4)
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 20 * READ_BYTES)
    start = {"home": 1, "office": 1}
    stream = place.reader(topics="+/9/temp")
    assert stream.latestOffset(start, ReadMaxRows(6)) == {"home": 81, "office": 4}
    stream.stop()


def test_where_a_look_ends_no_micro_batch_has_more_than_the_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place.bus, "home", 300)
    fill(place.bus, "office", 200)
    for batches in (1, 3, 10):
        monkeypatch.setattr(limits, "LOOK_BYTES_MAX", batches * READ_BYTES)
        found = micro_batches(place.reader(topics="+/2/temp"), 11)
        assert max(len(rows) for _, rows in found) <= 11
        assert sorted(row for _, rows in found for row in rows) == sorted(
            [("home", n) for n in range(3, 301, 5)] + [("office", n) for n in range(3, 201, 5)]
        )


def test_what_fits_is_not_looked_at(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place.bus, "home", 50)

    def refused(*_: object) -> Any:
        raise AssertionError("nothing is to be counted")

    monkeypatch.setattr(limits, "_ends_of", refused)
    assert place.reader(topics="home/2/temp").latestOffset({"home": 1}, ReadMaxRows(50)) == {"home": 51}
    assert place.reader(topics="home/#").latestOffset({"home": 1}, ReadMaxRows(20)) == {"home": 21}


def test_available_now_ends_where_it_began_to_read(place: Place) -> None:
    fill(place.bus, "home", 100)
    stream = place.reader(topics="home/2/temp")
    stream.prepareForTriggerAvailableNow()
    fill(place.bus, "home", 100)
    assert micro_batches(stream, 1000)[-1][0] == {"home": 101}
    assert micro_batches(stream, 9)[-1][0] == {"home": 101}


def test_a_least_size_counts_what_matches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    stream = place.reader(clock, topics="home/2/temp", minMessagesPerTrigger=10, maxTriggerDelay="60s")
    fill(place.bus, "home", 3)
    start = stream.latestOffset(stream.initialOffset(), ALL)
    assert start == {"home": 4}, "the first one of a run does not wait"
    fill(place.bus, "home", 45)  # nine of home/2, as it begins anew
    clock.advance(2)
    assert stream.latestOffset(start, ALL) == start
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 1)  # a batch at a time
    for _ in range(6):
        place.bus.publish("home/1/temp", b"x")
    clock.advance(2)
    assert all(stream.latestOffset(start, ALL) == start for _ in range(10))
    place.bus.publish("home/2/temp", b"x")
    clock.advance(2)
    assert stream.latestOffset(start, ALL) == {"home": 56}
    place.bus.publish_many([("home/1/temp", b"x")] * 30)
    clock.advance(50)
    assert all(stream.latestOffset({"home": 56}, ALL) == {"home": 56} for _ in range(3))
    clock.advance(10)
    assert stream.latestOffset({"home": 56}, ALL) == {"home": 86}, "it waits no longer than it is told"


def test_of_a_server_that_cannot_tell_every_message_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path / "data", SMALL) as server:
        fill(server.bus, "home", 60)
        clock = ManualClock()
        options = {"topics": "home/2/temp", "minMessagesPerTrigger": "20", "maxTriggerDelay": "60s"}
        stream = StreamReader(read_options({"url": server.url, **options}), SCHEMA, clock)

        def refused(*_: object) -> Any:
            raise Malformed("a request cannot be read")

        monkeypatch.setattr(Connection, "count_matching", refused)
        assert stream.latestOffset({"home": 1}, ReadMaxRows(25)) == {"home": 26}
        assert stream.latestOffset({"home": 26}, ReadMaxRows(25)) == {"home": 51}
        assert stream.latestOffset({"home": 51}, ReadMaxRows(25)) == {"home": 51}
        stream.stop()


def test_a_server_tells_of_what_its_client_may_read(tmp_path: Path) -> None:
    with Served(tmp_path / "data", SMALL) as server, headwater.connect(server.url) as bus:
        fill(server.bus, "home", 100)
        asked = Count(filter="home/#", root="home", first=1, last=1000, messages=1000, bytes=1 << 40)
        assert bus.ask(asked).messages == 100
        assert bus.ask(asked).end == 101, "no further than the log goes"
        for other in ({"filter": "office/#"}, {"root": "nowhere"}, {"root": "home/2"}, {"messages": 0}, {"first": 101}):
            changed = msgspec.structs.replace(asked, **other)
            found = bus.ask(changed)
            assert (found.end, found.messages) == (changed.first, 0), other
        assert bus.ask(msgspec.structs.replace(asked, among=("+/2/temp", "home/3/#", "office/#"))).messages == 40
        with pytest.raises(Malformed):
            bus.ask(msgspec.structs.replace(asked, among=("home/#/x",)))
        log = Log(server.url, read_options({"url": server.url, "topics": "home/2/temp,home/3/#"}).topics)
        assert log.count("home", 1, 100, log._topics, 1000, 1 << 30).messages == 40
        log.close()


def test_a_server_counts_in_slices_and_no_further_than_it_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path / "data", SMALL) as server, headwater.connect(server.url) as bus:
        for _ in range(50):
            server.bus.publish_many([("home/1/temp", b"x"), ("home/2/temp", b"x")])
        whole = bus.ask(Count(filter="home/2/#", root="home", first=2, last=100, messages=1000, bytes=1 << 40))
        assert (whole.end, whole.messages, whole.bytes) == (101, 50, 50 * READ_BYTES)
        slices: list[int] = []
        count = server.bus.core.count

        def noted(*args: Any) -> Any:
            slices.append(args[-1])
            return count(*args)

        monkeypatch.setattr(server.bus.core, "count", noted)
        monkeypatch.setattr(answers, "COUNT_BYTES", 4 * READ_BYTES)
        asked = Count(filter="home/2/#", root="home", first=2, last=100, messages=1000, bytes=1 << 40)
        assert bus.ask(asked) == whole
        assert slices == [4 * READ_BYTES] * 13
        assert bus.ask(msgspec.structs.replace(asked, messages=21)).end == 43
        assert bus.ask(msgspec.structs.replace(asked, bytes=6 * READ_BYTES)).end == 13
        monkeypatch.setattr(answers, "COUNT_BYTES_MAX", 10 * READ_BYTES)
        assert bus.ask(asked).end == 21


# With Spark


def run_once(spark: Any, options: dict[str, str], checkpoint: Path) -> tuple[list[list[int]], list[Offsets]]:
    """The offsets of the rows of each micro-batch, and where each ended by the checkpoint."""
    found: list[list[int]] = []

    def take(batch: Any, _: int) -> None:
        found.append(sorted(row.offset for row in batch.select("offset").collect()))

    frame = spark.readStream.format("headwater").options(**options).load()
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(250)
    places = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return found, [json.loads(path.read_text().splitlines()[-1]) for path in places]


def test_spark_reads_as_many_as_match_from_folder_and_server_with_either_reader(
    spark: Any, reader: str, tmp_path: Path
) -> None:
    with Served(tmp_path / "data", SMALL) as server:
        fill(server.bus, "home", 300)
        fill(server.bus, "office", 10)
        matching = list(range(3, 301, 5))
        for number, source in enumerate(({"data": str(tmp_path / "data")}, {"url": server.url})):
            options = {**source, "reader": reader, "maxMessagesPerTrigger": "25"}
            found, places = run_once(spark, {**options, "topics": "home/2/temp"}, tmp_path / f"some{number}")
            assert found == [matching[:25], matching[25:50], matching[50:]]
            assert places == [{"home": matching[24] + 1}, {"home": matching[49] + 1}, {"home": 301}]
            found, places = run_once(spark, {**options, "topics": "home/none, office/#"}, tmp_path / f"none{number}")
            assert found == [list(range(1, 11))]
            assert places == [{"home": 301, "office": 11}]
