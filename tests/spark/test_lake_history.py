"""The lake as a log's history: replay and follow reach back beyond what the log has kept."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
import headwater.bus
from cli.command import ENVIRONMENT, command, objects, one_sentence, run
from client.served import Served
from headwater import Config, Conflict, Failed, Gap, Malformed, ManualClock, Retention
from headwater.clock import to_datetime
from headwater.delivery.history import Stretch
from headwater.lake import history as lake_history
from headwater.lake import scan as lake_scan
from headwater.lake.history import LakeHistory
from headwater.lake.lake import LakeFile
from headwater.message import Message
from headwater.mqtt.kinds import V4
from headwater.spark.pipelines.archive import Archive, Options
from mqtt.peer import Served as Devices
from spark import lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = Config(segment_bytes=64 * 1024)
WAIT_S = 60.0
Seen = tuple[Any, ...]


def seen(message: Message) -> Seen:
    return (
        *(message.topic, message.offset, message.payload, message.time_us),
        *(message.key, tuple(message.header_pairs), message.retained, message.attempt),
    )


def all_of(reading: Any) -> list[Seen]:
    return [seen(message) for message in reading]


def publish(bus: headwater.bus.Bus, count: int, root: str = "home") -> None:
    bus.publish_many(
        [
            headwater.Outgoing(
                f"{root}/{n % 3}/temp",
                b"%d" % n,
                key=b"k%d" % n if n % 2 else None,
                headers={"unit": "°C", "empty": ""} if n % 5 == 0 else {},
            )
            for n in range(count)
        ]
    )


def roll(bus: headwater.bus.Bus) -> None:
    bus.core.roots.commit.run(bus.core.data.streams.seal)


def forget(bus: headwater.bus.Bus, root: str, upto: int) -> None:
    """Delete the segments up to an offset, as retention does."""
    found = bus.core.roots.get(root)
    assert found is not None
    bus.core.roots.commit.run(lambda: found.stream.trim(upto))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def bus(tmp_path: Path, lake: Path) -> Iterator[headwater.bus.Bus]:
    with headwater.open(tmp_path / "data", SMALL, lake=lake) as made:
        yield made


def filled(bus: headwater.bus.Bus, lake: Path, archived: int = 60, forgotten: int = 40) -> list[Seen]:
    """100 messages of which some are archived, and some are in the log no more; all of them as they were."""
    for _ in range(10):
        publish(bus, 10)
        roll(bus)
    whole = all_of(bus.replay("#"))
    if archived:
        lakes.archive(lake, bus, "home", archived)
    forget(bus, "home", forgotten)
    return whole


# Lake and tail are the log


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from([0, 0, 3600, 86_400, -86_400])), min_size=2, max_size=6
    ),
    points=st.lists(st.integers(1, 150), max_size=4),
    chance=st.integers(0, 150),
    filter=st.sampled_from(["#", "home/#", "home/1/temp", "+/2/#", "home/none"]),
    after=st.integers(0, 160),
)
def test_lake_and_tail_are_the_log_for_every_archive_point(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, int]],
    points: list[int],
    chance: int,
    filter: str,
    after: int,
) -> None:
    tmp = tmp_path_factory.mktemp("points")
    clock = ManualClock()
    with headwater.open(tmp / "data", SMALL, lake=tmp / "lake", clock=clock) as bus:
        moments = []
        for size, step_s in sizes:
            clock.advance(step_s)
            moments.append(bus.now)
            publish(bus, size)
            publish(bus, 2, "yard")
            roll(bus)
        whole, last = all_of(bus.replay(filter)), bus.ends()["home"]
        ordered = all_of(bus.replay(filter, since=moments[1]))
        archived = 0
        for point in sorted({min(point, last) for point in points}):
            if point > archived:
                lakes.archive(tmp / "lake", bus, "home", point)
                archived = point
        if archived:
            forget(bus, "home", min(chance, archived))
        assert by_place(all_of(bus.replay(filter))) == by_place(whole)
        later = [one for one in whole if not one[0].startswith("home/") or one[1] > after]
        assert by_place(all_of(bus.replay(filter, after={"home": after}))) == by_place(later)
        upto = {"home": max(1, after - 5), "yard": 1}
        assert by_place(all_of(bus.replay(filter, upto=upto))) == by_place(
            [one for one in whole if one[1] <= upto[one[0].partition("/")[0]]]
        )
        if all(
            step_s >= 0 for _, step_s in sizes
        ):  # by when it was sent in the lake, by when it was appended in the log
            assert by_place(all_of(bus.replay(filter, since=moments[1]))) == by_place(ordered)


def by_place(rows: list[Seen]) -> list[Seen]:
    """By root and offset; within each root, the order must be right already."""
    for root in ("home", "yard"):
        offsets = [row[1] for row in rows if row[0].startswith(root)]
        assert offsets == sorted(offsets)
    return sorted(rows, key=lambda row: (row[0].partition("/")[0], row[1]))


def test_what_is_only_in_the_lake_is_read_from_each_place(bus: headwater.bus.Bus, lake: Path) -> None:
    whole = filled(bus, lake, 100, 100)
    assert bus.extents()[0].first == 101
    assert all_of(bus.replay("home/#")) == whole
    assert all_of(bus.replay("home/#", after=0)) == whole
    assert all_of(bus.replay("home/#", after=33)) == whole[33:]
    assert all_of(bus.replay("home/#", after=100)) == []
    moment = bus.now + timedelta(hours=1)
    assert all_of(bus.replay("home/#", since=moment)) == []
    assert all_of(bus.replay("home/#", since=moment - timedelta(days=1))) == whole


def test_a_gap_is_what_neither_has(bus: headwater.bus.Bus, lake: Path) -> None:
    whole = filled(bus, lake, archived=20, forgotten=40)
    reading = bus.replay("home/#", after=5)
    found = [next(reading) for _ in range(15)]
    assert list(map(seen, found)) == whole[5:20]
    with pytest.raises(Gap) as gap:
        next(reading)
    assert (gap.value.first, gap.value.last) == (21, 40)
    assert all_of(reading) == whole[40:]


def test_without_a_lake_yet_it_is_as_without_one(bus: headwater.bus.Bus, lake: Path) -> None:
    whole = filled(bus, lake, archived=0)
    assert all_of(bus.replay("home/#")) == whole[40:]
    with pytest.raises(Gap, match="1 to 40"):
        next(bus.replay("home/#", after=0))
    assert not lake.exists()


def test_a_damaged_batch_is_read_from_the_lake(bus: headwater.bus.Bus, lake: Path, tmp_path: Path) -> None:
    whole = filled(bus, lake, 60, 0)
    bus.close()
    segment = sorted((tmp_path / "data").rglob("*.log"))[2]
    segment.write_bytes(bytes(byte ^ 0xFF for byte in segment.read_bytes()))
    with headwater.open(tmp_path / "data", SMALL, lake=lake) as again:
        assert all_of(again.replay("home/#", after=0)) == whole


def test_what_was_purged_does_not_come_back_from_the_lake(bus: headwater.bus.Bus, lake: Path) -> None:
    whole = filled(bus, lake, 60, 0)
    bus.purge("home/1/#")
    root = bus.core.roots.get("home")
    assert root is not None
    forget(bus, "home", 60)
    bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(root))
    assert all_of(bus.replay("home/#")) == [one for one in whole if one[0] != "home/1/temp"]
    bus.purge("home/#")
    assert all_of(bus.replay("home/#", after=0)) == []


def test_the_log_is_followed_out_of_the_lake(bus: headwater.bus.Bus, lake: Path) -> None:
    whole = filled(bus, lake)
    with bus.follow("home/#", after=10) as reading:
        found = [reading.next(WAIT_S) for _ in range(90)]
        publish(bus, 1)
        found.append(reading.next(WAIT_S))
    assert [seen(one) for one in found[:90] if one is not None] == whole[10:]
    assert found[90] is not None
    assert found[90].offset == 101


def test_a_folder_is_read_beside_its_owner(bus: headwater.bus.Bus, lake: Path, tmp_path: Path) -> None:
    whole = filled(bus, lake)
    with headwater.open(tmp_path / "data", read_only=True, lake=lake) as beside:
        assert all_of(beside.replay("home/#", after=3)) == whole[3:]
        publish(bus, 10)
        lakes.archive(lake, bus, "home", 110)
        assert all_of(beside.replay("home/#", after=3)) == whole[3:]


def test_an_asyncio_reading_does_not_hold_its_loop_up(bus: headwater.bus.Bus, lake: Path, blocked: Blocked) -> None:
    whole = filled(bus, lake)

    async def read() -> list[int]:
        from headwater import aio

        reading = aio.Bus(bus).replay("home/#", after=0)
        first = asyncio.ensure_future(reading.next())
        await asyncio.to_thread(blocked.begun.wait, WAIT_S)
        assert await reading.next(timeout_s=0.01) is None
        blocked.go_on.set()
        found = [await first, *[message async for message in reading]]
        return [one.offset for one in found if one is not None]

    assert asyncio.run(read()) == [one[1] for one in whole]


def test_new_code_is_tried_on_what_only_the_lake_has(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "better.py").write_text("def better(message):\n    assert message.payload != b'3'\n")

    def better(message: Any) -> None:
        assert message.payload != b"3"

    def is_right(fails: int, tried: int) -> None:
        assert (tried, fails) == (100, 10)

    with headwater.open(tmp_path / "data", SMALL, lake=lake) as bus:
        for _ in range(10):
            publish(bus, 10)
            roll(bus)
        with bus.subscribe("home/#", id="s", start="earliest", max_attempts=1, max_in_flight=100) as sub:
            sub.ack(sub.batch(100, WAIT_S))
        lakes.archive(lake, bus, "home", 60)
        forget(bus, "home", 40)
        with headwater.open(tmp_path / "data", read_only=True, lake=lake) as beside:
            for one in (bus, beside):
                found = one.what_if("s", better, after=0)
                is_right(found.counts["fails"], len(found.trials))
                assert [trial.offset for trial in found.of("fails")] == list(range(4, 101, 10))
        said = subprocess.run(
            command("what-if", "better:better", "--id", "s", "--json", "--data", "data", "--lake", str(lake)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=120,
            check=False,
        )
        assert said.returncode == 1, said.stderr
        whole = json.loads(said.stdout.splitlines()[-1])
        is_right(whole["counts"]["fails"], whole["messages"])
    with (
        Served(tmp_path / "data", headwater.Config(lake=str(lake))) as served,
        headwater.connect(served.url) as client,
    ):
        found = client.what_if("s", better, after=0)
        is_right(found.counts["fails"], len(found.trials))


# Files come and go


def test_files_that_vanish_are_planned_anew(
    spark: SparkSession, tmp_path: Path, lake: Path, bus: headwater.bus.Bus
) -> None:
    for upto in range(3000, 12_001, 3000):
        publish(bus, 3000)
        roll(bus)
        lakes.archive(lake, bus, "home", upto)
    job = Archive(spark, str(lake), {"data": str(tmp_path / "data")}, Options(small_files_max=1, grace_s=0))
    forget(bus, "home", 12_000)
    reading = bus.replay("home/#")
    found = [next(reading).offset for _ in range(100)]
    assert list(job.compact())
    assert job.sweep() > 0
    found += [message.offset for message in reading]
    assert found == list(range(1, 12_001))


def test_a_file_that_is_missing_is_an_error_and_not_a_gap(bus: headwater.bus.Bus, lake: Path) -> None:
    filled(bus, lake)
    (path,) = lake.rglob("*.parquet")
    kept = path.read_bytes()
    path.unlink()
    reading = bus.replay("home/#", after=0)
    with pytest.raises(Failed, match="missing"):
        next(reading)
    path.write_bytes(b"damaged" * 100)
    with pytest.raises(Failed, match="cannot be read"):
        next(reading)
    path.write_bytes(kept)
    assert [message.offset for message in reading] == list(range(1, 101))


@settings(max_examples=50, deadline=None)
@given(
    days=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    bounds=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    rows=st.integers(1, 20),
)
def test_files_that_share_offsets_are_merged(
    tmp_path_factory: pytest.TempPathFactory, days: list[int], bounds: tuple[int, int], rows: int
) -> None:
    tmp = tmp_path_factory.mktemp("files")
    messages = [Message(f"home/{day}", n, b"%d" % n, n) for n, day in enumerate(days, 1)]
    files = []
    for day in set(days):
        part = [message for message in messages if message.topic == f"home/{day}"]
        lakes.write(tmp / f"{day}.parquet", part, rows_per_group=rows)
        files.append(LakeFile(str(tmp / f"{day}.parquet"), len(part), 1, part[0].offset, part[-1].offset, day, 0))
    first, last = bounds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_scan, "ROWS", rows)
        lots = list(lake_scan.lots("home", files, first, last, lambda topic: topic != "home/2"))
    found = [offset for lot in lots for offset in lot.offsets]
    assert found == [one.offset for one in messages if first <= one.offset <= last and one.topic != "home/2"]
    assert all(len(lot.offsets) <= rows + 4 for lot in lots)
    assert [lot.upto for lot in lots] == sorted({lot.upto for lot in lots})


def test_nothing_is_missed_while_retention_and_the_archive_go_on(
    spark: SparkSession, tmp_path: Path, lake: Path
) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(bytes=1), tail_bytes=0)
    with headwater.open(tmp_path / "data", config, lake=lake) as bus:
        bus.publish_many([("home/0", bytes(500))] * 500)
        job = Archive(spark, str(lake), {"data": str(tmp_path / "data")}, Options(small_files_max=3, grace_s=0))
        ending = threading.Event()
        failures: list[BaseException] = []

        def go_on(work: Callable[[], object]) -> threading.Thread:
            def run() -> None:
                try:
                    while not ending.is_set():
                        work()
                except BaseException as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def archive() -> None:
            list(job.round())
            list(job.compact())
            job.sweep()

        def retain() -> None:
            ending.wait(0.05)
            bus.core.roots.commit.run(lambda: bus.core.upkeep.retain(bus.core.roots.all()[0]))

        def send() -> None:
            ending.wait(0.01)
            bus.publish_many([(f"home/{n % 5}", bytes(500)) for n in range(40)])

        threads = [go_on(work) for work in (archive, retain, send)]
        try:
            with bus.follow("home/#", after=0) as reading:
                expected, firsts = 1, {1}
                while len(firsts) < 4:  # retention has been here three times
                    found = [message.offset for message in reading.batch(200, WAIT_S)]
                    assert found == list(range(expected, expected + len(found)))
                    expected += len(found)
                    firsts.add(bus.extents()[0].first)
                    # From the start again, while all goes on: so the follower falls behind, and out of the log.
                    assert len(list(bus.replay("home/#", upto={"home": expected - 1}))) == expected - 1
            last = bus.ends()["home"]
            assert [one.offset for one in bus.replay("home/#", upto={"home": last})] == list(range(1, last + 1))
        finally:
            ending.set()
            for thread in threads:
                thread.join(100)
        assert not failures


# Whose it is, and what it needs


def test_a_lake_of_another_bus_is_refused_when_the_bus_is_opened(
    bus: headwater.bus.Bus, lake: Path, tmp_path: Path
) -> None:
    filled(bus, lake)
    with pytest.raises(Conflict, match="belongs to another bus"):
        headwater.open(tmp_path / "other", lake=lake)
    with headwater.open(tmp_path / "other") as other:  # and the folder was let go of
        stretch = Stretch("home", 1, 5, "gone")
        with pytest.raises(Conflict, match="belongs to another bus"):
            next(LakeHistory(str(lake), other.id, None).read(stretch, bool))


def test_a_log_restored_from_an_older_backup_is_refused(bus: headwater.bus.Bus, lake: Path, tmp_path: Path) -> None:
    for _ in range(4):
        publish(bus, 10)
        roll(bus)
    bus.backup(tmp_path / "backup")
    publish(bus, 10)
    lakes.archive(lake, bus, "home", 50)
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored", SMALL, lake=lake) as restored:
        forget(restored, "home", 40)
        with pytest.raises(Conflict, match="older backup"):
            next(restored.replay("home/#"))


def test_a_missing_extra_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_history, "find_spec", lambda name: None if name == "pyiceberg" else object())
    with pytest.raises(Malformed, match=r"pip install 'headwater\[lake\]'"):
        headwater.open(tmp_path / "data", lake=tmp_path / "lake")


def test_nothing_is_loaded_before_a_reading_reaches_back_and_spark_never(
    bus: headwater.bus.Bus, lake: Path, tmp_path: Path
) -> None:
    filled(bus, lake)
    bus.close()
    code = f"""
import sys, headwater
with headwater.open({str(tmp_path / "data")!r}, lake={str(lake)!r}) as bus:
    assert len(list(bus.replay("home/#", after=50))) == 50
    print(*{{"pyarrow", "pyiceberg", "pyspark"}} & set(sys.modules))
    assert len(list(bus.replay("home/#"))) == 100
    print(*sorted({{"pyarrow", "pyiceberg", "pyspark"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "pyarrow pyiceberg"]


def test_the_command_reads_the_lake_beside_the_owner_and_at_a_server(
    served: Served, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(served.bus, lake)

    def offsets(*arguments: object, code: int = 0) -> list[int]:
        return [found["offset"] for found in objects("replay", "home/#", *arguments, code=code)]

    data = ("--data", tmp_path / "data")
    assert offsets(*data) == list(range(41, 101))
    assert offsets(*data, "--lake", lake) == offsets("--url", served.url) == list(range(1, 101))
    assert offsets("--url", served.url, "--after", 12, "--count", 3) == [13, 14, 15]
    monkeypatch.setitem(ENVIRONMENT, "HEADWATER_LAKE", str(lake))
    assert offsets(*data, "--count", 1) == offsets("--url", served.url, "--count", 1) == [1]
    refused = run("replay", "home/#", "--url", served.url, "--lake", lake, code=2)
    assert one_sentence(refused.stderr)
    assert "serve --lake" in refused.stderr


# Served


class Blocked:
    """Holds up whoever reads the lake, until told otherwise."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Blocked:
    block, archived = Blocked(), LakeHistory._archived

    def wait(self: LakeHistory, stretch: Stretch) -> Any:
        block.begun.set()
        assert block.go_on.wait(WAIT_S)
        return archived(self, stretch)

    monkeypatch.setattr(LakeHistory, "_archived", wait)
    return block


@pytest.fixture
def served(tmp_path: Path, lake: Path) -> Iterator[Served]:
    from msgspec.structs import replace

    with Served(tmp_path / "data", replace(SMALL, lake=str(lake))) as made:
        yield made


@pytest.mark.parametrize("prefetch", [7, 10_000])
def test_a_server_reaches_back_for_its_clients(served: Served, lake: Path, prefetch: int) -> None:
    whole = filled(served.bus, lake)
    with headwater.connect(served.url, headwater.Connecting(prefetch_messages=prefetch)) as client:
        assert all_of(client.replay("home/#")) == whole
        assert all_of(client.replay("home/1/+", after=11)) == [
            one for one in whole[11:] if one[0].startswith("home/1/")
        ]
        assert all_of(client.replay("home/#", after=5, upto={"home": 50})) == whole[5:50]
        with client.follow("home/#", after=30) as reading:
            found = [reading.next(WAIT_S) for _ in range(70)]
            client.publish("home/x", b"new")
            newest = reading.next(WAIT_S)
        assert [seen(one) for one in found if one is not None] == whole[30:]
        assert newest is not None
        assert newest.offset == 101


def test_a_client_hears_of_what_neither_has_and_why_the_lake_cannot_be_read(served: Served, lake: Path) -> None:
    whole = filled(served.bus, lake, archived=20, forgotten=40)
    with headwater.connect(served.url) as client:
        reading = client.replay("home/#", after=0)
        assert [seen(next(reading)) for _ in range(20)] == whole[:20]
        with pytest.raises(Gap, match="21 to 40"):
            next(reading)
        assert all_of(reading) == whole[40:]
        (path,) = lake.rglob("*.parquet")
        path.unlink()
        with pytest.raises(Failed, match="is missing"):
            next(client.replay("home/#", after=0))


def test_a_server_goes_on_serving_while_the_lake_is_read(served: Served, lake: Path, blocked: Blocked) -> None:
    whole = filled(served.bus, lake)
    with headwater.connect(served.url) as client:
        reading = client.replay("home/#")
        assert blocked.begun.wait(WAIT_S)
        assert client.publish("other/x", b"meanwhile").offset == 1
        assert client.topics("other/#")
        blocked.go_on.set()
        assert all_of(reading) == whole


def test_a_client_may_leave_while_the_lake_is_read(served: Served, lake: Path, blocked: Blocked) -> None:
    filled(served.bus, lake)
    with headwater.connect(served.url) as client:
        reading = client.replay("home/#")
        assert blocked.begun.wait(WAIT_S)
        reading.close()
        blocked.go_on.set()
        assert client.topics("home/#")


# MQTT clients reach back, too


@pytest.fixture
def devices(tmp_path: Path, lake: Path) -> Iterator[Devices]:
    from msgspec.structs import replace

    with Devices(tmp_path / "data", replace(SMALL, lake=str(lake))) as made:
        yield made


def test_a_replay_of_an_mqtt_client_begins_in_the_lake_and_goes_on_in_the_log_and_live(
    devices: Devices, lake: Path
) -> None:
    whole = filled(devices.bus, lake)
    peer = devices.mqtt()
    assert peer.subscribe("$replay/11/home/#", qos=1) == (0,)
    found = [peer.got() for _ in range(90)]
    said = [dict(one.properties.user_properties) for one in found]
    assert [(one.topic, int(of["headwater-offset"]), one.payload) for one, of in zip(found, said, strict=True)] == [
        one[:3] for one in whole[10:]
    ]
    assert [datetime.fromisoformat(of["headwater-time"]) for of in said] == [to_datetime(one[3]) for one in whole[10:]]
    assert [tuple((name, of[name]) for name, _ in one[5]) for of, one in zip(said, whole[10:], strict=True)] == [
        one[5] for one in whole[10:]
    ]
    devices.bus.publish("home/x", b"new")
    assert peer.got().payload == b"new"
    peer.quiet()


def test_a_replay_of_an_mqtt_client_from_a_moment_that_only_the_lake_has(devices: Devices, lake: Path) -> None:
    whole = filled(devices.bus, lake)
    old = devices.mqtt("old", V4)
    moment = to_datetime(whole[20][3]).isoformat()
    assert old.subscribe(f"$replay/{moment}/home/1/+") == (0,)
    wanted = [one[2] for one in whole if one[3] >= whole[20][3] and one[0].startswith("home/1/")]
    assert old.payloads(len(wanted)) == wanted
    old.quiet()


def test_a_replay_of_an_mqtt_client_passes_over_what_neither_has(devices: Devices, lake: Path) -> None:
    whole = filled(devices.bus, lake, archived=20, forgotten=40)
    peer = devices.mqtt()
    peer.subscribe("$replay/1/home/#")
    assert peer.payloads(80) == [one[2] for one in whole[:20] + whole[40:]]


def test_an_mqtt_client_whose_replay_cannot_be_read_loses_its_connection_and_the_others_go_on(
    devices: Devices, lake: Path
) -> None:
    filled(devices.bus, lake)
    for path in lake.rglob("*.parquet"):
        path.unlink()
    peer, other = devices.mqtt(), devices.mqtt()
    other.subscribe("home/x")
    peer.subscribe("$replay/1/home/#")
    assert peer.ends() is not None
    devices.bus.publish("home/x", b"new")
    assert other.got().payload == b"new"


def test_mqtt_clients_are_served_while_the_lake_is_read_and_may_leave(
    devices: Devices, lake: Path, blocked: Blocked
) -> None:
    whole = filled(devices.bus, lake)
    peer, other = devices.mqtt(), devices.mqtt()
    peer.subscribe("$replay/1/home/#")
    other.subscribe("$replay/1/home/#")
    assert blocked.begun.wait(WAIT_S)
    peer.subscribe("other/#")
    devices.bus.publish("other/x", b"meanwhile")
    assert peer.got().payload == b"meanwhile"
    other.unsubscribe("$replay/1/home/#")
    blocked.go_on.set()
    assert peer.payloads(100) == [one[2] for one in whole]
    other.quiet()


# What if


def test_a_what_if_has_each_message_of_lake_and_log_once_with_what_became_of_it(
    bus: headwater.bus.Bus, lake: Path
) -> None:
    filled(bus, lake, archived=0, forgotten=0)
    options: dict[str, Any] = {"order": "none", "max_in_flight": 100, "states": "stream"}
    with bus.subscribe("home/#", id="s", start="earliest", **options) as sub:
        messages = sub.batch(100, WAIT_S)
        messages[9].reject("the tenth")
        sub.ack(messages[:9] + messages[10:])
    bus.drop_dead_letters("s")
    bus.core.lives.write()
    roll(bus)
    for root, archived, forgotten in (("home", 60, 40), ("$sys", bus.ends()["$sys"], bus.ends()["$sys"])):
        lakes.archive(lake, bus, root, archived)  # 41 to 60 are in both, and what was told in the lake alone
        forget(bus, root, forgotten)
    assert [one.first for one in bus.extents("$sys/#")] == [bus.ends()["$sys"] + 1]
    seen: list[int] = []

    def better(message: Message) -> None:
        seen.append(message.offset)
        bus.publish("noted/x", message.payload)

    found = bus.what_if("s", better)
    assert seen == [one.offset for one in found.trials] == list(range(1, 101))
    assert [one.before.error for one in found.trials if one.before.end == "dead"] == ["the tenth"]
    assert (found.counts["succeeds"], found.ends) == (1, {"acked → acked": 99, "dead → acked": 1})
    assert found.notes == ()
    with headwater.open(bus.folder, read_only=True) as beside:  # which is not told of a lake
        (note,) = beside.what_if("s", lambda _: None, after=0).notes
        assert "1 to 40" in note
