"""Replay and follow."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import headwater
from bus.flows import WAIT_S, in_threads, numbers, payloads, publish_numbers, some
from headwater import Config, ManualClock
from headwater.bus import Bus


def test_replay_is_history_and_ends(bus: Bus) -> None:
    publish_numbers(bus, 5)
    reading = bus.replay("jobs/#")
    publish_numbers(bus, 1, first=5)
    assert payloads(reading) == numbers(5), "what is published later is not history"
    assert payloads(bus.replay("jobs/#", after=2)) == numbers(4, 2)
    assert list(bus.replay("jobs/#", after=6)) == list(bus.replay("jobs/#", after=100)) == []
    assert list(bus.replay("jobs/none")) == list(bus.replay("other/#")) == []
    assert bus.replay("jobs/#").next(timeout_s=0).payload == b"0"  # type: ignore[union-attr]
    assert payloads(bus.replay("jobs/#").batch(3)) == numbers(3)


def test_replay_of_several_roots_starts_at_a_dict_of_offsets_or_a_time(timed: Bus, clock: ManualClock) -> None:
    for number in range(4):
        clock.advance(10)
        timed.publish("a/x", b"a%d" % number)
        timed.publish("b/x", b"b%d" % number)
    everything = [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2", b"a3", b"b3"]
    assert sorted(payloads(timed.replay("#"))) == sorted(everything)
    merged = payloads(timed.replay("#"))
    assert [payload[1:] for payload in merged] == sorted(payload[1:] for payload in merged), "merged by time"
    assert sorted(payloads(timed.replay("#", after={"a": 2, "b": 3}))) == [b"a2", b"a3", b"b3"]
    assert sorted(payloads(timed.replay("#", after={"a": 3}))) == [b"a3", b"b0", b"b1", b"b2", b"b3"]
    since = timed.now - timedelta(seconds=10)
    assert sorted(payloads(timed.replay("#", since=since))) == [b"a2", b"a3", b"b2", b"b3"]
    assert list(timed.replay("#", since=timed.now + timedelta(seconds=1))) == []


def test_follow_is_history_and_then_everything_new(bus: Bus) -> None:
    publish_numbers(bus, 3)
    with bus.follow("jobs/#", after=1) as following:
        assert payloads(some(following, 2)) == numbers(2, 1)
        assert following.next(timeout_s=0) is None
        publish_numbers(bus, 2, first=3)
        assert payloads(some(following, 2)) == numbers(2, 3)
    assert list(following) == []


def test_follow_picks_up_roots_that_appear_later(bus: Bus) -> None:
    following = bus.follow("#")
    assert following.next(timeout_s=0) is None
    bus.publish("new/x", b"1")
    assert payloads(some(following, 1)) == [b"1"]
    bus.publish("newer/x", b"2")
    assert payloads(some(following, 1)) == [b"2"]


def test_follow_crosses_from_history_to_live_with_no_gap_no_repeat_in_order_under_concurrent_publishing(
    folder: Path,
) -> None:
    config = Config(segment_bytes=64 * 1024, tail_bytes=20_000, read_bytes=10_000, open_files_max=2)
    with headwater.open(folder, config) as bus:
        total, publishers = 1600, 4
        started = threading.Barrier(publishers + 3)
        wrong: list[object] = []

        def publish(number: int) -> None:
            started.wait(WAIT_S)
            for _ in range(total // publishers // 8):
                bus.publish_many([("jobs/x", bytes(200)) for _ in range(7)])
                bus.publish("jobs/x", bytes(300))

        def follow(number: int) -> None:
            started.wait(WAIT_S)
            following = bus.follow("jobs/#", after=number * 10)
            offsets = [message.offset for message in some(following, total - number * 10)]
            if offsets != list(range(number * 10 + 1, total + 1)):
                wrong.append(offsets)

        in_threads(publishers + 3, lambda n: publish(n) if n < publishers else follow(n - publishers))
        assert wrong == []


def test_a_follower_is_woken_by_a_publish_and_ended_by_close(bus: Bus) -> None:
    following = bus.follow("jobs/#")
    found: list[bytes] = []
    ended = threading.Event()

    def read() -> None:
        found.extend(payloads(following))
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    publish_numbers(bus, 1)
    bus.close()
    assert ended.wait(WAIT_S)
    assert found in ([], numbers(1))
