"""The pipeline that replays: history again, under a prefix, at its pace, each message once whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater
from cli.command import one_sentence, run
from client.served import Served
from headwater import Conflict, Malformed, ManualClock, Message, Owned
from headwater.cli.pipeline.replay import factor, prefix
from headwater.clock import SECOND_US
from headwater.spark.pipelines import replay as module
from headwater.spark.pipelines.replay import Asked, History, Pace, Replay, Window
from spark import lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYTHING = Asked("#", "replay/")
START_US = 1_700_000_000 * SECOND_US


def record(folder: Path, count: int = 120, lake: Path | None = None, archived: int = 0) -> list[Message]:
    """Messages of two roots, half a second from one to the next; what they are."""
    clock = ManualClock(START_US)
    with headwater.open(folder, clock=clock) as bus:
        for n in range(count):
            headers = {"n": str(n)} if n % 3 == 0 else {}
            bus.publish(f"{('home', 'yard')[n % 2]}/{n % 5}", b"%d" % n, key=b"k" if n % 4 else None, headers=headers)
            clock.advance(0.5)
        if lake is not None:
            lakes.archive(lake, bus, "home", archived)
        return list(bus.replay("#"))


def said(message: Message) -> tuple[Any, ...]:
    return message.topic, message.payload, message.key, message.header_pairs


def check(found: list[Message], recorded: list[Message]) -> None:
    """Each once, below the prefix, and in each topic in the order in which they were recorded."""
    by_topic: dict[bool, dict[str, list[Any]]] = {True: defaultdict(list), False: defaultdict(list)}
    for message in found:
        by_topic[True][message.topic.removeprefix("replay/")].append(said(message)[1:])
    for message in recorded:
        by_topic[False][message.topic].append(said(message)[1:])
    assert by_topic[True] == by_topic[False]
    assert all(message.topic.startswith("replay/") for message in found)


def beside(tmp: Path, **more: Any) -> History:
    return History({"data": str(tmp / "data")}, **more)


def played(
    spark: SparkSession,
    tmp: Path,
    url: str,
    asked: Asked = EVERYTHING,
    name: str = "checkpoint",
    history: History | None = None,
) -> list[Window]:
    with closing(Replay(spark, str(tmp / name), history or beside(tmp), url, asked)) as job:
        return list(job.play(Pace(None)))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


# How time goes by


def test_recorded_time_goes_by_as_fast_as_it_is_told_to() -> None:
    clock = ManualClock()
    pace = Pace(10, clock)
    assert pace.reach(5_000_000) == 5_000_000
    clock.advance(2)
    assert pace.reach(5_000_000) == pace.reach(25_000_000) == 25_000_000
    assert pace.behind_s(15_000_000) == 1.0
    assert Pace(None).reach(1) is None


def test_a_replay_that_was_killed_in_a_window_goes_by_its_pace_from_the_end_of_that() -> None:
    clock = ManualClock()
    pace = Pace(10, clock)
    assert pace.behind_s(5_000_000) == 0.0  # the window is written again, and nobody waited for it
    clock.advance(2)
    assert pace.behind_s(15_000_000) == 1.0
    assert pace.reach(15_000_000) == 25_000_000


@pytest.mark.parametrize(("text", "speed"), [("10x", 10.0), ("1", 1.0), ("0.5x", 0.5), ("max", None)])
def test_speeds_are_written_like_this(text: str, speed: float | None) -> None:
    assert factor(text) == speed


@pytest.mark.parametrize("text", ["", "fast", "0x", "-1x", "10xx"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="write 1x, 10x"):
        factor(text)


def test_a_prefix_is_a_topic() -> None:
    assert prefix("replay") == prefix("replay/") == "replay/"
    for text in ("", "/", "a/+/", "#"):
        with pytest.raises(Malformed):
            prefix(text)


# What is replayed


def test_lake_and_log_are_replayed_once_in_the_order_of_each_topic(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_MESSAGES", 50)
    recorded = record(tmp_path / "data", lake=tmp_path / "lake", archived=40)
    with Served(tmp_path / "data") as server:
        root = server.bus.core.roots.get("home")
        assert root is not None
        server.bus.core.roots.commit.run(server.bus.core.data.streams.seal)
        server.bus.core.roots.commit.run(lambda: root.stream.trim(40))
        server.bus.publish("replay/old", b"replayed before")
        history = History({"url": server.url}, str(tmp_path / "lake"))
        windows = played(spark, tmp_path, server.url, history=history)
        assert len(windows) >= 3
        assert sum(window.messages for window in windows) == 120
        found = list(server.bus.replay("replay/#"))[1:]
        check(found, recorded)
        assert not (tmp_path / "checkpoint" / "messages").exists()
        assert played(spark, tmp_path, server.url) == []
        assert server.bus.ends()["replay"] == 121
        with pytest.raises(Conflict, match="name a new folder"):
            played(spark, tmp_path, server.url, Asked("home/#", "replay/"))


def test_times_and_topics_choose(spark: SparkSession, tmp_path: Path) -> None:
    recorded = record(tmp_path / "data")
    with Served(tmp_path / "data") as server:
        times = beside(tmp_path, since_us=START_US + 10 * SECOND_US, until_us=START_US + 20 * SECOND_US)
        played(spark, tmp_path, server.url, Asked("home/#", "replay/"), history=times)
        wanted = [one for one in recorded[20:40] if one.root == "home"]
        check(list(server.bus.replay("replay/#")), wanted)
        assert played(spark, tmp_path, server.url, Asked("none/#", "replay/"), name="other") == []


def test_order_is_that_of_the_topic_though_clocks_went_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_MESSAGES", 7)
    clock = ManualClock(START_US)
    with headwater.open(tmp_path / "data", clock=clock) as bus:
        for n in range(60):
            bus.publish(f"home/{n % 3}", b"%d" % n)
            clock.jump(-30 if n % 10 == 9 else 5)
        recorded = list(bus.replay("#"))
    assert [one.time_us for one in recorded] != sorted(one.time_us for one in recorded)
    with Served(tmp_path / "data") as server:
        played(spark, tmp_path, server.url)
        check(list(server.bus.replay("replay/#")), recorded)


# Whatever is killed


@pytest.mark.parametrize("moment", ["noted", "written", "done"])
def test_a_window_counts_once_wherever_it_was_interrupted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(module, "FILE_MESSAGES", 40)
    recorded = record(tmp_path / "data")

    class Killed(Exception):
        pass

    def killed(self: Replay, plan: Any) -> None:
        if plan.epoch == 1 and moment == "noted":
            raise Killed
        write(self, plan)
        if plan.epoch == 1 and moment == "written":
            raise Killed

    write = Replay._write
    with Served(tmp_path / "data") as server:
        with monkeypatch.context() as patch:
            patch.setattr(Replay, "_write", killed)
            with closing(Replay(*arguments(spark, tmp_path, server.url))) as job:
                try:
                    assert len(list(islice(job.play(Pace(None)), 2))) == 2
                    assert moment == "done"
                except Killed:
                    assert moment != "done"
        server.bus.publish("home/0", b"not part of it any more")
        played(spark, tmp_path, server.url)
        check(list(server.bus.replay("replay/#")), recorded)


def arguments(spark: SparkSession, tmp: Path, url: str) -> tuple[Any, ...]:
    return spark, str(tmp / "checkpoint"), beside(tmp), url, EVERYTHING


def test_one_at_a_time_plays_from_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path / "data", 2)
    with Served(tmp_path / "data") as server:
        with closing(Replay(*arguments(spark, tmp_path, server.url))), pytest.raises(Owned):
            Replay(*arguments(spark, tmp_path, server.url))
        (tmp_path / "else").mkdir()
        (tmp_path / "else" / "letter.txt").write_text("dear")
        with pytest.raises(Malformed, match="not of a replay"):
            played(spark, tmp_path, server.url, name="else")


# As users run it


def command(tmp: Path, *more: object) -> list[str]:
    return [
        *(sys.executable, "-m", "headwater", "pipeline", "replay", "--data", str(tmp / "data"), "--to", "replay"),
        *("--checkpoint", str(tmp / "checkpoint"), "--master", "local[2]", "--json"),
        *map(str, more),
    ]


def kill_and_check(tmp: Path, chance: random.Random, kills: int) -> None:
    """Kill the replay, and the broker in it, in the middle; then compare with what was recorded."""
    recorded = record(tmp / "data", 400)
    for _ in range(kills):
        process = subprocess.Popen(
            command(tmp, "--speed", "20x"), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 3)):
            assert process.stdout.readline(), "it ended by itself"
        time.sleep(chance.random())
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    done = subprocess.run(command(tmp, "--speed", "max"), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["messages"] for line in done.stdout.splitlines())
    with headwater.open(tmp / "data", read_only=True) as bus:
        check(list(bus.replay("replay/#")), recorded)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_killed_every_message_is_replayed_once(tmp_path: Path, seed: int) -> None:
    kill_and_check(tmp_path, random.Random(seed), kills=5)


def test_what_is_wrong_is_said_before_spark_is_started(tmp_path: Path, served: Served) -> None:
    for more, says in (
        (("--data", tmp_path / "data"), "is owned by process"),
        (("--data", tmp_path / "none"), "is no Headwater folder"),
        (("--url", served.url, "--speed", "fast"), "no speed"),
        (("--url", served.url, "--since", "1h", "--until", "2h"), "not before"),
        (("--url", served.url, "--topics", "a/#/b"), "#"),
    ):
        failed = run("pipeline", "replay", "--to", "replay", *more, code=2)
        assert one_sentence(failed.stderr), failed.stderr
        assert says in failed.stderr
