"""Publishing, alone, together, soon and from many threads."""

from __future__ import annotations

import json
import signal
import threading
from array import array
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater
from bus.flows import WAIT_S, Held, in_threads, numbers, payloads, python
from faults.faulty_files import FaultyFiles
from headwater import (
    Config,
    Conflict,
    HeadwaterError,
    Malformed,
    ManualClock,
    Outgoing,
    QuotaExceeded,
    Receipt,
    TooLarge,
)
from headwater.bus import Bus
from headwater.log import checks
from headwater.store.state import MemoryState

READ_ALL = """
import json, sys, headwater
with headwater.open(sys.argv[1], read_only=True) as bus:
    print(json.dumps([[m.topic, m.offset, m.payload.decode()] for m in bus.replay(sys.argv[2])]))
"""


def test_publish_returns_once_the_message_is_on_disk_where_another_process_reads_it(bus: Bus, folder: Path) -> None:
    receipt = bus.publish("home/kitchen/temp", b"21.5")
    assert (receipt.topic, receipt.offset, receipt.duplicate) == ("home/kitchen/temp", 1, False)
    read = python(READ_ALL, folder, "home/#")
    assert json.loads(read.stdout) == [["home/kitchen/temp", 1, "21.5"]], read.stderr


PUBLISH_AND_DIE = """
import os, sys, headwater
bus = headwater.open(sys.argv[1])
bus.publish("a/b", b"1")
bus.publish_many([("a/b", b"2"), ("c/d", b"3")])
bus.publish_soon("a/b", b"4").result()
os.kill(os.getpid(), 9)
"""


def test_what_was_published_survives_a_kill(folder: Path) -> None:
    assert python(PUBLISH_AND_DIE, folder).returncode == -signal.SIGKILL
    with headwater.open(folder) as bus:
        assert payloads(bus.replay("a/#")) == [b"1", b"2", b"4"]
        assert payloads(bus.replay("c/#")) == [b"3"]


def test_a_message_arrives_with_all_that_it_was_published_with(timed: Bus) -> None:
    headers = (("unit", "C"), ("unit", "°C"), ("", ""))
    receipt = timed.publish("home/küche", b"\x00\xff", key=b"k", headers=headers, retain=True, ttl_s=60)
    (message,) = timed.replay("home/#")
    assert (message.topic, message.root, message.offset) == ("home/küche", "home", 1)
    assert (message.payload, message.key, message.header_pairs) == (b"\x00\xff", b"k", headers)
    assert message.timestamp == receipt.timestamp == timed.now == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (message.attempt, message.retained) == (1, False)
    assert dict(message.headers) == {"unit": "°C", "": ""}


def test_headers_may_be_a_dict(bus: Bus) -> None:
    bus.publish("a/b", b"", headers={"x": "1", "y": "2"})
    assert next(bus.replay("a/#")).header_pairs == (("x", "1"), ("y", "2"))


def test_bytes_like_payloads_and_keys_are_taken(bus: Bus) -> None:
    bus.publish("a/b", bytearray(b"1"), key=memoryview(b"k"))  # type: ignore[arg-type]
    message = next(bus.replay("a/#"))
    assert (message.payload, message.key) == (b"1", b"k")


def test_payloads_of_any_buffer_keep_their_bytes(bus: Bus) -> None:
    wide = memoryview(array("i", [1, 2]))
    mixed: list[Any] = [("a/b", wide), ("a/b", bytearray(b"x")), ("a/b", memoryview(b"yz")), ("a/b", b"hello")]
    bus.publish("a/b", wide)
    bus.publish_many(mixed)
    bus.publish_many([Outgoing("a/b", wide), Outgoing("a/b", b"end")])
    plain = wide.tobytes()
    assert payloads(bus.replay("a/#")) == [plain, plain, b"x", b"yz", b"hello", plain, b"end"]


def test_publish_many_takes_more_topics_than_are_remembered(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKED_TOPICS_MAX", 10)
    for made in (
        [(f"{'ab'[number % 2]}/{number}", b"") for number in range(25)],
        [Outgoing(f"{'ab'[number % 2]}/{number}", b"") for number in range(25)],
        [("c/1", b"")] * 25,
    ):
        assert len(bus.publish_many(made)) == 25
    assert len(bus.topics()) == 26


def test_offsets_of_a_root_are_dense_and_each_root_counts_for_itself(bus: Bus) -> None:
    offsets = [bus.publish(topic, b"").offset for topic in ("a/1", "b/1", "a/2", "a/1", "b/2", "/c", "/c")]
    assert offsets == [1, 1, 2, 3, 2, 1, 2]


def test_publish_many_answers_receipts_in_the_order_of_the_call_over_several_roots(bus: Bus) -> None:
    bus.publish("b/0", b"")
    topics = ["b/1", "a/1", "b/2", "c/1", "a/2", "b/1"]
    receipts = bus.publish_many([(topic, topic.encode()) for topic in topics])
    assert [receipt.topic for receipt in receipts] == topics
    assert [receipt.offset for receipt in receipts] == [2, 1, 3, 1, 2, 4]
    assert len(receipts) == 6
    assert receipts[1] == receipts[-5] == Receipt("a/1", 1, receipts[1].time_us)
    assert [receipt.offset for receipt in receipts[1:3]] == [1, 3]
    with pytest.raises(IndexError):
        receipts[6]
    for root in "abc":
        assert payloads(bus.replay(f"{root}/#"))[-1:] == [[t for t in topics if t.startswith(root)][-1].encode()]


def test_publish_many_takes_pairs_and_outgoing_values_and_any_iterable(bus: Bus) -> None:
    rich = Outgoing("a/2", b"2", key=b"k", headers={"h": "v"}, retain=True)
    mixed: list[tuple[str, bytes] | Outgoing] = [("a/1", b"1"), rich]
    bus.publish_many(message for message in mixed)
    first, second = bus.replay("a/#")
    assert (first.payload, first.key, first.header_pairs) == (b"1", None, ())
    assert (second.payload, second.key, second.header_pairs) == (b"2", b"k", (("h", "v"),))
    assert [message.topic for message in bus.retained("a/#").values()] == ["a/2"]


def test_publishing_nothing_is_fine(bus: Bus) -> None:
    assert list(bus.publish_many([])) == []
    assert list(bus.publish_many_soon(()).result(WAIT_S)) == []
    assert bus.topics() == []


def test_publish_many_is_one_commit(folder: Path) -> None:
    files = FaultyFiles()
    with Bus(folder, files=files, state=MemoryState()) as bus:
        many = [(f"r{number % 50}/x", b"") for number in range(500)]
        bus.publish_many(many)
        before = files.syncs
        bus.publish_many(many)
        assert files.syncs - before == 1


def test_publish_many_stores_all_or_nothing_of_a_root(folder: Path) -> None:
    with headwater.open(folder, Config(topics_per_root_max=2, message_bytes_max=10)) as bus:
        for bad, error in [
            ([("b/1", b""), ("b/2", b""), ("b/3", b"")], QuotaExceeded),
            ([("a/1", b""), ("a/2", bytes(11))], TooLarge),
            ([("a/1", b""), ("a/+", b"")], Malformed),
            ([("a/1", b""), (["a/2"], b"")], Malformed),
            ([("a/1", b""), ("a/2", None)], Malformed),
            ([("a/1", b""), ("a/2",)], Malformed),
        ]:
            with pytest.raises(error):
                bus.publish_many(bad)  # type: ignore[arg-type]
        assert bus.topics() == []
        assert bus.publish("a/9", b"").offset == 1


def test_publish_soon_answers_a_future_of_the_receipt(bus: Bus) -> None:
    futures = [bus.publish_soon("a/b", payload) for payload in numbers(100)]
    assert all(isinstance(future, Future) for future in futures)
    assert [future.result(WAIT_S).offset for future in futures] == list(range(1, 101))
    many = bus.publish_many_soon([("a/b", b"x"), ("a/c", b"y")])
    assert [receipt.offset for receipt in many.result(WAIT_S)] == [101, 102]
    assert payloads(bus.replay("a/b")) == [*numbers(100), b"x"]


def test_publish_soon_is_committed_by_close(folder: Path) -> None:
    bus = headwater.open(folder)
    futures = [bus.publish_soon("a/b", payload) for payload in numbers(50)]
    bus.close()
    assert all(future.done() for future in futures)
    with headwater.open(folder) as again:
        assert payloads(again.replay("a/#")) == numbers(50)


def test_a_callback_of_a_future_may_publish_soon_and_is_refused_to_wait(bus: Bus) -> None:
    refused: list[HeadwaterError] = []
    chained: list[Future[Receipt]] = []
    done = threading.Event()

    def callback(_: Future[Receipt]) -> None:
        try:
            bus.publish("a/b", b"refused")
        except Conflict as error:
            refused.append(error)
        chained.append(bus.publish_soon("a/b", b"chained"))
        done.set()

    with Held(bus):
        bus.publish_soon("a/b", b"first").add_done_callback(callback)
    assert done.wait(WAIT_S)
    chained[0].result(WAIT_S)
    assert len(refused) == 1
    assert payloads(bus.replay("a/#")) == [b"first", b"chained"]


def test_many_threads_publish_at_once_and_offsets_stay_dense_and_each_thread_s_order_is_kept(bus: Bus) -> None:
    offsets: list[list[int]] = [[] for _ in range(16)]

    def work(thread: int) -> None:
        for number in range(40):
            payload = b"%d %d" % (thread, number)
            match number % 4:
                case 0:
                    offsets[thread].append(bus.publish(f"a/{thread}", payload).offset)
                case 1:
                    offsets[thread].append(bus.publish_soon(f"a/{thread}", payload).result(WAIT_S).offset)
                case 2:
                    receipts = bus.publish_many([(f"a/{thread}", payload), (f"b{thread % 3}/x", payload)])
                    offsets[thread].append(receipts[0].offset)
                case _:
                    offsets[thread].append(bus.publish(f"a/{thread}", payload, key=b"k", headers={"h": "v"}).offset)

    in_threads(16, work)
    everything = list(bus.replay("a/#"))
    assert [message.offset for message in everything] == list(range(1, 641))
    assert sorted(offset for each in offsets for offset in each) == list(range(1, 641))
    for thread in range(16):
        mine = [message for message in everything if message.topic == f"a/{thread}"]
        assert payloads(mine) == [b"%d %d" % (thread, number) for number in range(40)]
        assert [message.offset for message in mine] == offsets[thread] == sorted(offsets[thread])
    assert sum(len(list(bus.replay(f"b{number}/#"))) for number in range(3)) == 160


def test_the_append_time_of_a_root_never_decreases_though_the_clock_does(timed: Bus, clock: ManualClock) -> None:
    times = []
    for step in (0, -30, 10, -5, 100):
        clock.jump(step)
        times.append(timed.publish("a/b", b"").time_us)
    assert times == sorted(times)
