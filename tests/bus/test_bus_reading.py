"""Live subscriptions, retained values, replay, follow, requests; and the everyday work of a bus."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import headwater
from headwater import Bus, Closed, Config, Gap, Malformed, ManualClock, NewerFormat, Owned, Retention, TimedOut


def payloads(bus: Bus, filter: str = "#") -> list[bytes]:
    return [message.payload for message in bus.replay(filter)]


def test_retained_values_come_first_and_flagged(bus: Bus) -> None:
    bus.publish("a/b", b"old", retain=True)
    bus.publish("a/b", b"kept", retain=True)
    bus.publish("a/c", b"not kept")
    with bus.subscribe("a/#") as live:
        bus.publish("a/c", b"new")
        first, second = live.next(5), live.next(5)
        assert first is not None
        assert second is not None
        assert (first.payload, first.retained) == (b"kept", True)
        assert (second.payload, second.retained) == (b"new", False)
        first.ack()
    sub = bus.subscribe("a/#", id="s", start="latest")
    (message,) = sub.batch(5, 0)
    assert (message.payload, message.retained) == (b"kept", True)
    sub.ack([message])
    assert sub.next(0) is None


def test_an_empty_payload_clears_a_retained_value(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("a/b", b"1", retain=True)
        bus.publish("a/c", b"2", retain=True)
        bus.publish("a/b", b"", retain=True)
    with headwater.open(tmp_path / "data") as bus:
        assert [message.topic for message in bus.retained("a/#")] == ["a/c"]
        assert {topic.topic: topic.retained for topic in bus.topics()} == {"a/b": False, "a/c": True}


def test_a_retained_value_is_dropped_at_its_ttl(clock: ManualClock, settle: Callable[[Bus], None]) -> None:
    with headwater.open(":memory:", Config(retention_interval_s=10), clock=clock) as bus:
        bus.publish("a/b", b"short", retain=True, ttl_s=5)
        bus.publish("a/c", b"long", retain=True, ttl_s=50)
        sub = bus.subscribe("a/#", id="s")
        clock.advance(6)
        assert [message.payload for message in bus.retained("a/#")] == [b"long"]
        assert [message.payload for message in sub.batch(5, 0)] == [b"long"]
        clock.advance(10)
        settle(bus)
        root = bus._roots.get("a")
        assert root is not None
        assert root.retained.count == 1


def test_a_message_that_outlived_its_ttl_is_not_delivered(timed: Bus, clock: ManualClock) -> None:
    timed.publish_many([headwater.Outgoing("a/b", b"short", ttl_s=5), ("a/b", b"long")])
    sub = timed.subscribe("a/#", id="s", start="earliest")
    clock.advance(6)
    assert [message.payload for message in sub.batch(5, 0)] == [b"long"]
    assert payloads(timed) == [b"long"]


def test_a_slow_live_reader_loses_the_oldest_and_knows_how_many(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(live_messages_max=5)) as bus:
        live = bus.subscribe("a/#")
        for n in range(8):
            bus.publish("a/b", b"%d" % n)
        bus.publish_many([("a/b", b"%d" % n) for n in range(8, 15)])
        assert live.dropped == 10
        assert [message.payload for message in live.batch(100, 0)] == [b"10", b"11", b"12", b"13", b"14"]


def test_a_slow_live_reader_may_be_disconnected_instead(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(live_messages_max=5)) as bus:
        live = bus.subscribe("a/#", when_full="disconnect")
        bus.publish_many([("a/b", b"x")] * 6)
        with pytest.raises(Closed, match="too slow"):
            live.next(1)


def test_a_live_reader_gets_only_what_matches(bus: Bus) -> None:
    with bus.subscribe("a/+/temp") as live, bus.subscribe("#") as everything:
        bus.publish_many(
            [("a/1/temp", b"1"), ("a/1/hum", b"2"), ("b/1/temp", b"3"), ("a/2/temp", b"4"), ("$x/y", b"5")]
        )
        assert [message.payload for message in live.batch(10, 5)] == [b"1", b"4"]
        seen = [message.payload for message in everything.batch(10, 5)] + [m.payload for m in everything.batch(10, 0)]
        assert sorted(seen) == [b"1", b"2", b"3", b"4"]
    bus.publish("a/1/temp", b"after")
    with pytest.raises(Closed):
        live.next(0)


def test_replay_by_offset_by_dict_and_by_time(timed: Bus, clock: ManualClock) -> None:
    timed.publish_many([("a/x", b"1"), ("b/x", b"2")])
    clock.advance(60)
    moment = timed.now
    timed.publish_many([("a/x", b"3"), ("b/x", b"4")])
    assert [message.payload for message in timed.replay("a/#", after=1)] == [b"3"]
    assert [message.payload for message in timed.replay("#", after={"a": 2})] == [b"2", b"4"]
    assert [message.payload for message in timed.replay("#", since=moment)] == [b"3", b"4"]
    assert [message.payload for message in timed.replay("#", since=moment + timedelta(days=1))] == []
    assert payloads(timed) == [b"1", b"2", b"3", b"4"]
    for wrong in ({"after": 1}, {"after": -1}, {"after": {"a": "x"}}, {"after": 1, "since": moment}, {"since": 5}):
        with pytest.raises(Malformed):
            timed.replay("#", **wrong)  # type: ignore[arg-type]


def test_follow_has_no_gap_and_no_repeat_under_concurrent_publishing(bus: Bus) -> None:
    bus.publish_many([("a/h", b"x")] * 500)

    def publish(number: int) -> None:
        for n in range(100):
            if n % 3:
                bus.publish(f"a/{number}", b"x")
            else:
                bus.publish_many([(f"a/{number}", b"x"), ("b/other", b"y"), ("a/y", b"z")])

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen = []
    with bus.follow("a/#", after=100) as follow:
        while len(seen) < 400 + 4 * (66 + 34 * 2):
            message = follow.next(20)
            assert message is not None
            seen.append(message.offset)
        assert follow.next(0) is None
    for thread in threads:
        thread.join(20)
    assert seen == list(range(101, 101 + len(seen)))


def test_a_request_is_answered_by_whoever_subscribes(bus: Bus) -> None:
    with bus.subscribe("rpc/sum") as requests:

        def serve() -> None:
            message = requests.next(20)
            assert message is not None
            message.reply(b"3")

        thread = threading.Thread(target=serve)
        thread.start()
        assert bus.request("rpc/sum", b"[1,2]", timeout_s=20).payload == b"3"
        thread.join(20)
        with pytest.raises(TimedOut) as error:
            bus.request("rpc/sum", b"[1,2]", timeout_s=0.05)
        assert error.value.retryable


def test_purge_removes_messages_topics_and_retained_values_and_nobody_misses_them(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish_many([("a/old/1", b"1"), ("a/new", b"2")])
        bus.publish("a/old/2", b"3", retain=True)
        sub = bus.subscribe("a/#", id="s", start="earliest")
        assert bus.purge("a/old/#") == 2
        bus.publish("a/old/1", b"4")
        assert [message.payload for message in sub.batch(9, 0)] == [b"2", b"4"]
    with headwater.open(tmp_path / "data") as bus:
        assert payloads(bus) == [b"2", b"4"]
        assert [(topic.topic, topic.messages) for topic in bus.topics()] == [("a/new", 1), ("a/old/1", 1)]
        assert bus.retained("#") == []
        bus.purge("a/#")
        bus.publish("a/b", b"5")
        sub = bus.subscribe("a/#", id="s")
        assert [message.payload for message in sub.batch(9, 0)] == [b"5"]
        assert [message.payload for message in bus.replay("a/#", after=0)] == [b"5"]


def test_a_backup_of_a_running_bus_has_all_of_one_moment(bus: Bus, tmp_path: Path) -> None:
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            bus.publish_many([("a/b", b"x"), ("c/d", b"y")])

    thread = threading.Thread(target=publish)
    bus.publish("a/b", b"first", retain=True)
    sub = bus.subscribe("a/#", id="s", start="earliest")
    first = sub.next(5)
    assert first is not None
    first.ack()
    thread.start()
    bus.backup(tmp_path / "backup")
    bus.publish("late/x", b"too late")
    stop.set()
    thread.join(20)
    with pytest.raises(Malformed):
        bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(Malformed):
        headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored", read_only=True) as reader:
        assert payloads(reader, "a/#")[0] == b"first"
    with headwater.open(tmp_path / "restored") as restored:
        assert len(payloads(restored, "a/#")) == len(payloads(restored, "c/#")) + 1
        assert payloads(restored, "late/#") == []
        assert [info.floors for info in restored.subscriptions()] == [{"a": 1}]
        assert [message.payload for message in restored.retained("#")] == [b"first"]
        assert restored.events() == []
        restored.publish("a/b", b"on")


def test_a_second_owner_is_refused_and_told_who_the_first_is(bus: Bus, tmp_path: Path) -> None:
    code = "import sys, headwater\ntry: headwater.open(sys.argv[1])\nexcept headwater.Owned as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=True, timeout=60
    )
    assert f"process {os.getpid()}" in done.stdout
    with pytest.raises(Owned):
        headwater.open(tmp_path / "data")


def test_a_folder_of_a_newer_format_or_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "VERSION").write_text('{"format": 99}')
    with pytest.raises(NewerFormat):
        headwater.open(tmp_path / "newer")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    with pytest.raises(Malformed, match=r"notes\.txt"):
        headwater.open(tmp_path / "theirs")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["notes.txt"]
    assert [path.name for path in (tmp_path / "newer").iterdir()] == ["VERSION"]


def fill(bus: Bus, megabytes: float) -> None:
    for _ in range(round(megabytes * 16)):
        bus.publish_many([("a/b", b"x" * 1000)] * 64)


def test_retention_by_bytes_waits_for_durable_subscriptions(
    clock: ManualClock, small_segments: Config, settle: Callable[[Bus], None], tmp_path: Path
) -> None:
    config = msgspec.structs.replace(small_segments, retention_roots={"a": Retention(bytes=200_000)})
    with headwater.open(tmp_path / "data", config, clock=clock) as bus:
        sub = bus.subscribe("a/#", id="s", start="earliest", max_in_flight=10_000)
        bus.publish("a/kept", b"retained", retain=True)
        fill(bus, 1)
        clock.advance(2)
        settle(bus)
        messages = sub.batch(10_000, 0)
        assert messages[0].offset == 1
        sub.ack(messages)
        clock.advance(2)
        settle(bus)
        assert next(iter(bus.replay("a/#"))).offset > 500
        assert [message.payload for message in bus.retained("a/#")] == [b"retained"]
        with pytest.raises(Gap) as error:
            list(bus.replay("a/#", after=0))
        assert (error.value.code, error.value.first) == (410, 1)
        assert bus.events() == []


def test_retention_by_age(clock: ManualClock, small_segments: Config, settle: Callable[[Bus], None]) -> None:
    config = msgspec.structs.replace(small_segments, retention=Retention(age_s=100))
    with headwater.open(":memory:", config, clock=clock) as bus:
        fill(bus, 0.5)
        clock.advance(60)
        fill(bus, 0.1)
        settle(bus)
        count = len(payloads(bus))
        clock.advance(50)
        settle(bus)
        assert 0 < len(payloads(bus)) < count
        clock.advance(100)
        settle(bus)
        assert payloads(bus) == []
        assert bus.publish("a/b", b"next").offset == count + 1


def test_beyond_the_hard_cap_unacked_messages_go_and_the_subscriber_gets_a_typed_gap(
    clock: ManualClock, small_segments: Config, settle: Callable[[Bus], None]
) -> None:
    config = msgspec.structs.replace(small_segments, retention=Retention(hard_bytes=200_000))
    with headwater.open(":memory:", config, clock=clock) as bus:
        sub = bus.subscribe("a/#", id="s", start="earliest")
        skips = bus.subscribe("a/#", id="skips", start="earliest", on_gap="skip")
        fill(bus, 1)
        clock.advance(2)
        settle(bus)
        assert any(event.kind == "retention" for event in bus.events())
        seen = sub.batch(100, 0)  # what it had at hand already
        sub.ack(seen)
        with pytest.raises(Gap) as error:
            sub.next(0)
        after = sub.next(0)
        assert after is not None
        assert (error.value.root, error.value.first, error.value.last) == ("a", len(seen) + 1, after.offset - 1)
        skips.ack(skips.batch(100, 0))
        skipped = skips.next(0)
        assert skipped is not None
        assert skipped.offset == after.offset


def test_a_bus_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with headwater.open(":memory:") as bus:
        bus.publish("a/b", b"1", retain=True)
        sub = bus.subscribe("a/#", id="s", start="earliest")
        sub.ack(sub.batch(1, 0))
        with pytest.raises(Malformed):
            bus.backup(tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []


def test_topics_count_messages_over_restarts(tmp_path: Path) -> None:
    for _ in range(3):
        with headwater.open(tmp_path / "data", Config(checkpoint_batches=2)) as bus:
            for _ in range(3):
                bus.publish_many([("a/1", b"x"), ("a/2", b"x"), ("b/1", b"x")])
    with headwater.open(tmp_path / "data") as bus:
        assert [(topic.topic, topic.messages, topic.last_offset) for topic in bus.topics()] == [
            ("a/1", 9, 17),
            ("a/2", 9, 18),
            ("b/1", 9, 9),
        ]
        assert [topic.topic for topic in bus.topics("a/+")] == ["a/1", "a/2"]
