"""`bus.arrow`: the rows that `replay` gives, whatever became of the log, from every kind of bus."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
import headwater.aio
import headwater.bus
from client.served import Served
from headwater import Config, Gap, Malformed, ManualClock, NotAllowed, Outgoing
from headwater.arrow import reader
from headwater.clock import to_datetime
from headwater.message import Message
from spark import lakes

SMALL = Config(segment_bytes=64 * 1024)
WAIT_S = 60.0


def row_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in ("root", "topic", "offset", "timestamp", "key", "payload")), tuple(row["headers"]))


def row_of_message(message: Message) -> tuple[Any, ...]:
    headers = tuple(dict(message.header_pairs).items())
    return (message.root, message.topic, message.offset, message.timestamp, message.key, message.payload, headers)


def table(found: Any) -> pa.Table:
    read = pa.Table.from_batches(list(found), found.schema)
    read.validate(full=True)
    return read


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted(map(row_of, table(found).to_pylist()), key=lambda row: (row[0], row[2]))


def replayed(found: Any) -> list[tuple[Any, ...]]:
    return sorted(map(row_of_message, found), key=lambda row: (row[0], row[2]))


def publish(bus: Any, count: int, roots: tuple[str, ...] = ("home",), size: int = 0) -> None:
    bus.publish_many(
        [
            Outgoing(
                f"{roots[n % len(roots)]}/{n % 5}/temp",
                b"%d" % n + b"." * size,
                key=b"k%d" % n if n % 2 else None,
                headers={"n": str(n)} if n % 3 == 0 else (),
            )
            for n in range(count)
        ]
    )


def until_no_feed(bus: Any) -> None:
    ends = time.monotonic() + WAIT_S
    while bus._client._feeds:
        assert time.monotonic() < ends, "the server was not told"
        time.sleep(0.01)


@pytest.fixture
def bus() -> Iterator[headwater.bus.Bus]:
    with headwater.open(":memory:") as found:
        yield found


TOPICS = st.sampled_from(["a/x", "a/y", "a", "b/x", "c/x/y"])
MOVES = st.lists(
    st.tuples(st.just("publish"), st.lists(TOPICS, min_size=1, max_size=5), st.booleans())
    | st.tuples(st.just("purge"), st.sampled_from(["a/x", "a/#", "+/x", "b/#"]), st.none())
    | st.tuples(st.just("pass"), st.integers(1, 100), st.none())
    | st.tuples(st.just("trim"), st.sampled_from(["a", "b"]), st.none()),
    max_size=12,
)


@given(MOVES, st.sampled_from(["#", "a/#", "+/x", "b/x", "none/#"]), st.integers(0, 6), st.integers(1, 8))
def test_it_gives_the_rows_of_replay_in_their_order(
    moves: list[tuple[str, Any, Any]], filter: str, after: int, upto: int
):
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        for move, what, ends in moves:
            root = bus.core.roots.get(what) if move == "trim" else None
            if move == "publish":
                bus.publish_many([Outgoing(topic, topic.encode(), ttl_s=50 if ends else None) for topic in what])
            elif move == "purge":
                bus.purge(what)
            elif move == "pass":
                clock.advance(what)
            elif root is not None:
                root.stream.trim(root.stream.durable)
        there = {"a": after, "b": after, "c": after}
        for options in ({}, {"upto": {"a": upto, "c": upto}}, {"since": bus.now - timedelta(seconds=60)}):
            assert rows(bus.arrow(filter, **options)) == replayed(bus.replay(filter, **options))
        try:
            expected = replayed(bus.replay(filter, after=there))
        except Gap:
            with pytest.raises(Gap):
                table(bus.arrow(filter, after=there))
        else:
            assert rows(bus.arrow(filter, after=there)) == expected
        for name in "abc":
            found = table(bus.arrow(f"{name}/#"))["offset"].to_pylist()
            assert found == sorted(set(found))


def test_columns_are_those_that_are_asked_for(bus: headwater.bus.Bus):
    publish(bus, 10)
    found = table(bus.arrow("home/#", columns=["offset", "topic"]))
    assert found.column_names == ["offset", "topic"]
    assert found["offset"].to_pylist() == list(range(1, 11))
    assert bus.arrow("nothing/#", columns=[]).schema == pa.schema([])
    assert table(bus.arrow("nothing/#")).num_rows == 0


def test_what_is_asked_for_wrongly_is_said_before_anything_is_read(bus: headwater.bus.Bus):
    for options, says in (
        ({"columns": ["value"]}, 'no column "value"; there are root, topic'),
        ({"columns": "topic"}, "a list of names"),
        ({"columns": ["topic", "topic"]}, "named twice"),
        ({"fields": ["celsius"]}, 'fields={"celsius": float}'),
        ({"fields": {"celsius": list}}, "one of float, int, str, bool"),
        ({"fields": {"topic": str}}, "the name of a column"),
        ({"fields": {"a..b": str}}, "is no field"),
        ({"until": "now"}, "use a datetime"),
        ({"after": 3, "since": bus.now}, "not both"),
        ({"on_gap": "no"}, '"raise" or "skip"'),
    ):
        with pytest.raises(Malformed, match=says.replace("(", r"\(").replace("{", r"\{")):
            bus.arrow("home/#", **options)
    with pytest.raises(Malformed, match="reaches over several roots"):
        bus.arrow("#", after=3)
    with pytest.raises(Malformed):
        bus.arrow("home/#/x")


def test_fields_of_json_are_columns_and_null_where_there_is_none(bus: headwater.bus.Bus):
    payloads = [
        b'{"celsius": 21.5, "count": 3, "ok": true, "sensor": {"id": "a"}}',
        b'{"celsius": 21, "count": 3.5, "ok": 1, "sensor": "a"}',
        b'{"celsius": "21.5", "count": 9223372036854775808, "sensor": {"id": 7}}',
        b"no json",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
    ]
    bus.publish_many([("home/x", payload) for payload in payloads])
    fields = {"celsius": float, "count": int, "ok": bool, "sensor.id": str}
    found = table(bus.arrow("home/#", columns=["offset"], fields=fields))
    nothing = (None, None, None, None)
    assert found.column_names == ["offset", *fields]
    assert list(zip(*(found[name].to_pylist() for name in fields), strict=True)) == [
        (21.5, 3, True, "a"),
        (21.0, None, None, None),
        *[nothing] * 5,
    ]


def test_many_roots_are_gathered_together_within_bounds(bus: headwater.bus.Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "ROWS", 100)
    roots = tuple(f"root{n}" for n in range(reader.ROOTS_KEPT_MAX * 2))
    for _ in range(3):
        publish(bus, 1000, roots)
    gathered: list[int] = []
    seen = reader.Gatherer._add

    def add(self: reader.Gatherer, found: Any) -> None:
        seen(self, found)
        gathered.append(self._rows)

    monkeypatch.setattr(reader.Gatherer, "_add", add)
    assert rows(bus.arrow("#")) == replayed(bus.replay("#"))
    assert max(gathered) < 200


def test_large_payloads_are_not_kept_when_nobody_asks_for_them(bus: headwater.bus.Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "BYTES", 100_000)
    for _ in range(20):
        publish(bus, 10, size=2000)
    held: list[int] = []
    seen = reader.Gatherer._add

    def add(self: reader.Gatherer, found: Any) -> None:
        seen(self, found)
        held.append(self._held)

    monkeypatch.setattr(reader.Gatherer, "_add", add)
    assert table(bus.arrow("home/#", columns=["topic"])).num_rows == 200
    assert max(held) < 150_000


def test_it_ends_before_a_moment():
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        moments: list[datetime] = []
        for n in range(4):
            bus.publish("home/x", b"%d" % n)
            clock.advance(10)
            moments.append(to_datetime(clock.now_us()))
        for since in moments:
            for until in moments:
                found = table(bus.arrow("home/#", since=since, until=until))["offset"].to_pylist()
                assert found == [n + 2 for n, moment in enumerate(moments[:-1]) if since <= moment < until]
        assert table(bus.arrow("home/#", until=moments[2], upto={"home": 2})).num_rows == 2
        assert table(bus.arrow("home/#", until=moments[2], upto={"hall": 2})).num_rows == 0


def test_what_was_purged_while_it_was_read_is_left_out(bus: headwater.bus.Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "ROWS", 10)
    monkeypatch.setattr("headwater.arrow.columns.ROWS", 10)
    for _ in range(4):
        publish(bus, 10)
    found = bus.arrow("home/#")
    first = found.read_next_batch()
    assert first.num_rows == 10
    bus.purge("home/1/temp")
    assert "home/1/temp" not in {row["topic"] for batch in found for row in batch.to_pylist()}


# A folder: compressed, damaged, beside its owner


@pytest.mark.parametrize("read_only", [False, True])
def test_a_folder_gives_what_replay_gives(tmp_path: Path, read_only: bool):
    folder = tmp_path / "data"
    config = Config(segment_bytes=64 * 1024, compression="zstd")
    with headwater.open(folder, config) as bus:
        for _ in range(20):
            publish(bus, 100, ("home", "office"), size=50)
        bus.purge("home/2/#")
        if not read_only:
            assert rows(bus.arrow("#")) == replayed(bus.replay("#"))
            return
        with headwater.open(folder, read_only=True) as beside:
            assert rows(beside.arrow("#")) == replayed(beside.replay("#"))
            assert table(beside.arrow("home/#")).num_rows > 0
            publish(bus, 10)
            beside.refresh()
            assert rows(beside.arrow("#")) == replayed(beside.replay("#"))


def test_what_is_damaged_is_a_gap_that_can_be_skipped(tmp_path: Path):
    folder = tmp_path / "data"
    with headwater.open(folder, SMALL) as bus:
        for _ in range(40):
            publish(bus, 50, size=100)
        path = min((folder / "streams").glob("*/*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with headwater.open(folder, SMALL) as bus:
        with pytest.raises(Gap, match="on_gap=") as gap:
            table(bus.arrow("home/#"))
        found = table(bus.arrow("home/#", on_gap="skip"))["offset"].to_pylist()
        lost = range(gap.value.first, gap.value.last + 1)
        assert found == [offset for offset in range(1, 2001) if offset not in lost]


# Lake and log


def archived_log(tmp_path: Path, upto: int, forgotten: int, clock: ManualClock) -> headwater.bus.Bus:
    """100 messages, one a minute: the first of them in a lake, and some of these in the log no more."""
    bus = headwater.open(tmp_path / "data", SMALL, lake=tmp_path / "lake", clock=clock)
    for n in range(100):
        bus.publish(f"home/{n % 3}/temp", b"%d" % n, key=b"k" if n % 2 else None, headers={"n": "1"} if n % 5 else ())
        clock.advance(60)
        if n % 10 == 9:
            publish(bus, 1, ("yard",))
            bus.core.roots.commit.run(bus.core.data.streams.seal)
    lakes.archive(tmp_path / "lake", bus, "home", upto)
    root = bus.core.roots.get("home")
    assert root is not None
    bus.core.roots.commit.run(lambda: root.stream.trim(forgotten))
    return bus


@pytest.mark.parametrize(("upto", "forgotten"), [(60, 40), (100, 100)])
def test_lake_and_log_are_one(tmp_path: Path, upto: int, forgotten: int):
    clock = ManualClock()
    with archived_log(tmp_path, upto, forgotten, clock) as bus:
        assert table(bus.arrow("home/#"))["offset"].to_pylist() == list(range(1, 101))
        ranges: list[dict[str, Any]] = [{}, {"after": {"home": 33}}, {"upto": {"home": 70}}]
        ranges.append({"since": bus.now - timedelta(minutes=70)})
        for filter in ("#", "home/1/temp", "+/2/#"):
            for options in ranges:
                assert rows(bus.arrow(filter, **options)) == replayed(bus.replay(filter, **options))
        moments = [bus.now - timedelta(minutes=minutes) for minutes in (95, 45, 30, 1)]
        for n, until in enumerate(moments):
            for since in moments[:n]:
                found = table(bus.arrow("home/#", columns=["offset"], since=since, until=until))
                assert found["offset"].to_pylist() == [
                    message.offset for message in bus.replay("home/#", since=since) if message.timestamp < until
                ]
        bus.purge("home/1/temp")
        assert rows(bus.arrow("#")) == replayed(bus.replay("#"))
        with headwater.open(tmp_path / "data", read_only=True, lake=tmp_path / "lake") as beside:
            assert rows(beside.arrow("#")) == replayed(bus.replay("#"))


def test_a_server_sends_what_its_lake_has(tmp_path: Path):
    archived_log(tmp_path, 60, 40, ManualClock()).close()
    config = Config(lake=str(tmp_path / "lake"))
    with Served(tmp_path / "data", config) as served, headwater.connect(served.url) as bus:
        assert rows(bus.arrow("#")) == replayed(served.bus.replay("#"))
        assert table(bus.arrow("home/#")).num_rows == 100


# Served


def test_a_server_sends_them_and_no_more_than_somebody_may_read(tmp_path: Path):
    with Served(tmp_path / "data", auth="scram") as served:
        served.bus.clients.add("ann", "secret")
        served.bus.acl.allow("ann", "subscribe", "home/#")
        for _ in range(3):
            publish(served.bus, 1000, ("home", "office"))
        served.bus.purge("home/2/#")
        with headwater.connect(served.url.replace("://", "://ann:secret@")) as bus:
            assert rows(bus.arrow("home/#")) == replayed(served.bus.replay("home/#"))
            some: dict[str, Any] = {"after": 100, "upto": {"home": 900}}
            assert rows(bus.arrow("home/+/temp", **some)) == replayed(served.bus.replay("home/+/temp", **some))
            assert table(bus.arrow("home/#", until=bus.now - timedelta(days=1))).num_rows == 0
            with pytest.raises(NotAllowed):
                table(bus.arrow("office/#"))


def test_a_reader_that_is_dropped_in_the_middle_leaves_nothing_behind(tmp_path: Path):
    with Served(tmp_path / "data") as served:
        for _ in range(20):
            publish(served.bus, 3000, size=300)
        with headwater.connect(served.url) as bus:
            found = bus.arrow("home/#")
            assert found.read_next_batch().num_rows
            del found
            gc.collect()
            until_no_feed(bus)
            found = bus.arrow("home/#")
            del found
            gc.collect()
            until_no_feed(bus)


async def in_loop(bus: Any) -> list[tuple[Any, ...]]:
    found = bus.arrow("home/#")
    assert found.schema.names[0] == "root"
    read = await found.read_all()
    async with bus.arrow("home/#", columns=["topic"]) as some:
        async for batch in some:
            assert batch.schema.names == ["topic"]
            break
    with pytest.raises(StopAsyncIteration):
        await anext(some)
    with pytest.raises(Malformed):
        bus.arrow("home/#", columns=["value"])
    with pytest.raises(Malformed):
        await bus.arrow("home/#/x").read_all()
    return sorted(map(row_of, read.to_pylist()), key=lambda row: (row[0], row[2]))


def test_with_asyncio_record_batches_come_one_after_another(tmp_path: Path):
    async def connected(url: str) -> list[tuple[Any, ...]]:
        async with headwater.aio.connect(url) as bus:
            found = await in_loop(bus)
            moment = bus.now - timedelta(days=1)
            assert not (await bus.arrow("home/#", until=moment).read_all()).num_rows
            return found

    async def opened() -> list[tuple[Any, ...]]:
        async with headwater.aio.open(tmp_path / "data") as bus:
            return await in_loop(bus)

    with Served(tmp_path / "data") as served:
        for _ in range(3):
            publish(served.bus, 5000)
        expected = replayed(served.bus.replay("home/#"))
        assert asyncio.run(connected(served.url)) == expected
    assert asyncio.run(opened()) == expected
