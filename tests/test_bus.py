"""The embedded bus, as its users meet it: every flow of DESIGN 6 and every sentence of what it promises."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
from faults.faulty_files import FaultyFiles
from headwater import (
    Bus,
    Closed,
    Config,
    Conflict,
    DiskFull,
    Failed,
    Gap,
    HeadwaterError,
    Malformed,
    ManualClock,
    Message,
    NewerFormat,
    NotFound,
    Outgoing,
    Owned,
    PartlyStored,
    QuotaExceeded,
    ReadOnly,
    Recalled,
    Receipt,
    Retention,
    TimedOut,
    TooLarge,
    outgoing,
)
from headwater.store.rocks import RocksState
from headwater.store.state import MemoryState

WAIT_S = 60.0
SMALL = Config(segment_bytes=64 * 1024)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def bus(folder: Path) -> Iterator[Bus]:
    with headwater.open(folder) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(folder: Path, clock: ManualClock) -> Iterator[Bus]:
    """A bus whose time the test moves."""
    with headwater.open(folder, clock=clock) as made:
        yield made


def settle(bus: Bus) -> None:
    """Return when every timer that is due by now has rung."""
    for _ in range(2):  # the second for those that the first ones set
        done = threading.Event()
        bus._timers.set(done, bus._clock.monotonic_us(), done.set)
        assert done.wait(WAIT_S)
    bus._rows.run(lambda: None)  # what they stored is there


def payloads(messages: Iterable[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def some(sub: Any, count: int, timeout_s: float = WAIT_S) -> list[Message]:
    """So many messages, waiting for each."""
    found: list[Message] = []
    for _ in range(count):
        message = sub.next(timeout_s=timeout_s)
        assert message is not None, f"{len(found)} of {count} messages came: {payloads(found)}"
        found.append(message)
    return found


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def publish_numbers(bus: Bus, count: int, topic: str = "jobs/x", first: int = 0) -> None:
    bus.publish_many([(topic, payload) for payload in numbers(count, first)])


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S * 3)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Held:
    """Keeps the thread that commits busy, so that what is published meanwhile makes one group."""

    def __init__(self, bus: Bus) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: bus._roots.commit.run(self._hold), daemon=True)

    def _hold(self) -> None:
        self._inside.set()
        self._go_on.wait(WAIT_S)

    def __enter__(self) -> Held:
        self._thread.start()
        assert self._inside.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join(WAIT_S)


# Publishing

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
    assert (message.payload, message.key, message.headers) == (b"\x00\xff", b"k", headers)
    assert message.timestamp == receipt.timestamp == timed.now == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (message.attempt, message.retained) == (1, False)
    assert dict(message.headers) == {"unit": "°C", "": ""}


def test_subscriptions_are_listed_in_pages(bus: Bus) -> None:
    ids = ["a", "a/b", "b", "ä", "€"]
    for id in reversed(ids):
        bus.subscribe("home/#", id=id).close()
    assert [one.id for one in bus.subscriptions()] == ids
    assert [one.id for one in bus.subscriptions(limit=2)] == ["a", "a/b"]
    assert [one.id for one in bus.subscriptions(after="a/b", limit=2)] == ["b", "ä"]
    assert [one.id for one in bus.subscriptions(after="a0")] == ["b", "ä", "€"]
    assert bus.subscriptions(after="€") == []
    with pytest.raises(Malformed):
        bus.subscriptions(limit=0)


def test_headers_may_be_a_dict(bus: Bus) -> None:
    bus.publish("a/b", b"", headers={"x": "1", "y": "2"})
    assert next(bus.replay("a/#")).headers == (("x", "1"), ("y", "2"))


def test_bytes_like_payloads_and_keys_are_taken(bus: Bus) -> None:
    bus.publish("a/b", bytearray(b"1"), key=memoryview(b"k"))  # type: ignore[arg-type]
    message = next(bus.replay("a/#"))
    assert (message.payload, message.key) == (b"1", b"k")


def test_payloads_of_any_buffer_keep_their_bytes(bus: Bus) -> None:
    wide = memoryview(array("i", [1, 2]))
    mixed: list[Any] = [("a/b", wide), ("a/b", bytearray(b"x")), ("a/b", memoryview(b"yz")), ("a/b", b"hello")]
    bus.publish("a/b", wide)  # type: ignore[arg-type]
    bus.publish_many(mixed)
    bus.publish_many([Outgoing("a/b", wide), Outgoing("a/b", b"end")])  # type: ignore[arg-type]
    plain = wide.tobytes()
    assert payloads(bus.replay("a/#")) == [plain, plain, b"x", b"yz", b"hello", plain, b"end"]


def test_publish_many_takes_more_topics_than_are_remembered(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "CHECKED_TOPICS_MAX", 10)
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
    assert (first.payload, first.key, first.headers) == (b"1", None, ())
    assert (second.payload, second.key, second.headers) == (b"2", b"k", (("h", "v"),))
    assert [message.topic for message in bus.retained("a/#")] == ["a/2"]


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
            ([("a/1", b""), ("a/2", "text")], Malformed),
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


# Idempotent producers


def test_a_repeat_returns_the_first_receipt_and_is_stored_once(bus: Bus) -> None:
    first = bus.publish("jobs/x", b"one", producer="importer", sequence=7)
    again = bus.publish("jobs/x", b"one", producer="importer", sequence=7)
    assert not first.duplicate
    assert again.duplicate
    assert (again.offset, again.time_us) == (first.offset, first.time_us)
    assert bus.publish("jobs/x", b"two", producer="importer", sequence=8).offset == 2
    assert payloads(bus.replay("jobs/#")) == [b"one", b"two"]


def test_a_sequence_counts_per_producer_and_root(bus: Bus) -> None:
    receipts = [
        bus.publish(topic, b"", producer=producer, sequence=1)
        for topic in ("a/x", "b/x")
        for producer in ("p", "q", "größe")
    ]
    assert not any(receipt.duplicate for receipt in receipts)
    assert bus.publish("a/other", b"", producer="p", sequence=1).duplicate


def test_sequences_may_leave_gaps(bus: Bus) -> None:
    for sequence in (0, 5, 1 << 40):
        assert not bus.publish("a/b", b"", producer="p", sequence=sequence).duplicate


def test_a_repeat_within_the_window_is_answered_and_below_it_is_409(folder: Path) -> None:
    with headwater.open(folder, Config(producer_window=4)) as bus:
        receipts = [bus.publish("a/b", b"", producer="p", sequence=sequence) for sequence in range(10)]
        for sequence in range(6, 10):
            assert bus.publish("a/b", b"", producer="p", sequence=sequence).offset == receipts[sequence].offset
        for sequence in (0, 5):
            with pytest.raises(Conflict, match="count on from 10") as refused:
                bus.publish("a/b", b"", producer="p", sequence=sequence)
            assert refused.value.code == 409
        assert len(list(bus.replay("a/#"))) == 10


def test_a_sequence_that_was_left_out_cannot_be_sent_later(bus: Bus) -> None:
    bus.publish("a/b", b"", producer="p", sequence=1)
    bus.publish("a/b", b"", producer="p", sequence=3)
    with pytest.raises(Conflict):
        bus.publish("a/b", b"", producer="p", sequence=2)


def test_publish_many_of_a_producer_is_repeated_as_a_whole(bus: Bus) -> None:
    messages = [("a/1", b"1"), ("b/1", b"2"), ("a/2", b"3")]
    first = bus.publish_many(messages, producer="p", sequence=1)
    again = bus.publish_many(messages, producer="p", sequence=1)
    assert [receipt.offset for receipt in again] == [receipt.offset for receipt in first] == [1, 1, 2]
    assert all(receipt.duplicate for receipt in again)
    assert payloads(bus.replay("a/#")) == [b"1", b"3"]


def test_publish_many_of_a_producer_stores_the_part_that_a_root_lacks(bus: Bus) -> None:
    bus.publish("a/1", b"1", producer="p", sequence=1)
    receipts = bus.publish_many([("a/1", b"1"), ("b/1", b"2")], producer="p", sequence=1)
    assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(1, True), (1, False)]


def test_repeats_are_known_after_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        first = bus.publish("a/b", b"", producer="p", sequence=1)
        many = bus.publish_many([("a/b", b""), ("a/c", b"")], producer="p", sequence=2)
    with headwater.open(folder) as bus:
        assert bus.publish("a/b", b"", producer="p", sequence=1).offset == first.offset
        again = bus.publish_many([("a/b", b""), ("a/c", b"")], producer="p", sequence=2)
        assert [receipt.offset for receipt in again] == [receipt.offset for receipt in many]
        assert len(list(bus.replay("a/#"))) == 3


def test_repeats_in_the_same_group_are_stored_once(bus: Bus) -> None:
    with Held(bus):
        futures = [bus.publish_soon("a/b", b"x", producer="p", sequence=sequence) for sequence in (1, 1, 2, 1, 2)]
    receipts = [future.result(WAIT_S) for future in futures]
    assert [receipt.offset for receipt in receipts] == [1, 1, 2, 1, 2]
    assert [receipt.duplicate for receipt in receipts] == [False, True, False, True, True]
    assert len(list(bus.replay("a/#"))) == 2


def test_threads_that_repeat_each_other_store_each_sequence_once(bus: Bus) -> None:
    def work(thread: int) -> None:
        for sequence in range(30):
            try:
                bus.publish("a/b", b"%d" % sequence, producer="p", sequence=sequence)
            except Conflict:
                continue  # another thread is further on, and left this one out

    in_threads(8, work)
    found = [int(payload) for payload in payloads(bus.replay("a/#"))]
    assert found == sorted(set(found))
    assert found[-1] == 29


def test_after_a_failure_the_later_ones_in_flight_fail_too_until_it_is_sent_again(folder: Path) -> None:
    with headwater.open(folder, Config(topics_per_root_max=1)) as bus:
        bus.publish("a/1", b"", producer="p", sequence=1)
        with Held(bus):
            second = bus.publish_soon("a/2", b"", producer="p", sequence=2)
            later = [bus.publish_soon("a/1", b"", producer="p", sequence=sequence) for sequence in (3, 4)]
            other = bus.publish_soon("a/1", b"", producer="q", sequence=9)
        assert isinstance(second.exception(WAIT_S), QuotaExceeded)
        for future in later:
            assert isinstance(future.exception(WAIT_S), Conflict)
        assert other.result(WAIT_S).offset == 2
        with pytest.raises(Conflict, match="send 2 again"):
            bus.publish("a/1", b"", producer="p", sequence=5)
        assert bus.publish("a/1", b"", producer="p", sequence=2).offset == 3
        assert bus.publish("a/1", b"", producer="p", sequence=3).offset == 4


def test_the_producer_unused_for_longest_is_forgotten_first(folder: Path, clock: ManualClock) -> None:
    config = Config(producers_max=3)
    with headwater.open(folder, config, clock=clock) as bus:
        for producer in "abcd":
            clock.advance(1)
            bus.publish("x/y", b"", producer=producer, sequence=1)
    with headwater.open(folder, config, clock=clock) as bus:
        clock.advance(1)
        bus.publish("x/y", b"", producer="b", sequence=2)
    with headwater.open(folder, config, clock=clock) as bus:
        repeats = {producer: bus.publish("x/y", b"", producer=producer, sequence=1).duplicate for producer in "abcd"}
    assert repeats == {"a": False, "b": True, "c": True, "d": True}


# Delayed messages


def test_a_delayed_message_is_not_delivered_before_it_is_due(timed: Bus, clock: ManualClock) -> None:
    due = timed.now + timedelta(seconds=10)
    receipt = timed.publish("jobs/x", b"later", deliver_at=due, key=b"k", headers={"a": "b"})
    assert receipt.offset == 0
    live = timed.subscribe("jobs/#")
    clock.advance(9.9)
    settle(timed)
    assert live.next(timeout_s=0) is None
    assert list(timed.replay("jobs/#")) == []
    clock.advance(0.2)
    (message,) = some(live, 1)
    assert (message.payload, message.offset, message.key, message.headers) == (b"later", 1, b"k", (("a", "b"),))
    assert message.timestamp == timed.now


def test_a_delayed_message_gets_its_offset_when_it_is_due(timed: Bus, clock: ManualClock) -> None:
    timed.publish("jobs/x", b"delayed", deliver_at=timed.now + timedelta(seconds=10))
    assert timed.publish("jobs/x", b"first").offset == 1
    clock.advance(10)
    settle(timed)
    assert timed.publish("jobs/x", b"third").offset == 3
    assert payloads(timed.replay("jobs/#")) == [b"first", b"delayed", b"third"]


def test_delayed_messages_come_in_the_order_in_which_they_are_due(timed: Bus, clock: ManualClock) -> None:
    for seconds in (30, 10, 20, 10):
        timed.publish("jobs/x", b"%d" % seconds, deliver_at=timed.now + timedelta(seconds=seconds))
    clock.advance(15)
    settle(timed)
    assert payloads(timed.replay("jobs/#")) == [b"10", b"10"]
    clock.advance(15)
    settle(timed)
    assert payloads(timed.replay("jobs/#")) == [b"10", b"10", b"20", b"30"]


def test_a_delayed_message_that_is_due_already_is_delivered_at_once(timed: Bus) -> None:
    timed.publish("jobs/x", b"", deliver_at=timed.now - timedelta(days=1))
    settle(timed)
    assert len(list(timed.replay("jobs/#"))) == 1


def test_delayed_messages_survive_a_restart_and_come_once(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        for payload in numbers(3):
            bus.publish("jobs/x", payload, deliver_at=bus.now + timedelta(seconds=10))
    clock.advance(20)
    for _ in range(2):
        with headwater.open(folder, clock=clock) as bus:
            settle(bus)
            assert payloads(bus.replay("jobs/#")) == numbers(3)


def test_retain_and_ttl_of_a_delayed_message_start_when_it_is_due(timed: Bus, clock: ManualClock) -> None:
    timed.publish("home/x", b"on", retain=True, ttl_s=5, deliver_at=timed.now + timedelta(seconds=10))
    assert timed.retained("home/#") == []
    clock.advance(12)
    settle(timed)
    assert payloads(timed.retained("home/#")) == [b"on"]
    clock.advance(6)
    assert timed.retained("home/#") == []
    assert list(timed.replay("home/#")) == []


def test_more_delayed_messages_than_a_group_may_hold_are_all_released(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, Config(group_messages_max=2), clock=clock) as bus:
        for payload in numbers(7):
            bus.publish("jobs/x", payload, deliver_at=bus.now + timedelta(seconds=10))
        live = bus.subscribe("jobs/#")
        clock.advance(11)
        assert payloads(some(live, 7)) == numbers(7)


def test_a_delayed_message_that_finds_no_room_is_tried_again_and_does_not_keep_the_bus_busy(
    folder: Path, clock: ManualClock
) -> None:
    with headwater.open(folder, Config(roots_max=2), clock=clock) as bus:
        bus.publish("b/x", b"", deliver_at=bus.now + timedelta(seconds=5))
        bus.publish("a/x", b"")
        clock.advance(6)
        settle(bus)
        troubles = [event for event in bus.events() if event.kind == "trouble"]
        assert 1 <= len(troubles) <= 2
        assert "roots_max" in troubles[0].text
        assert bus.publish("a/x", b"").offset == 2


def test_a_delay_that_is_too_long_or_one_too_many_is_refused(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, Config(delay_s_max=100, delayed_max=2), clock=clock) as bus:
        with pytest.raises(Malformed, match="delay_s_max"):
            bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=101))
        for _ in range(2):
            bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=50))
        with pytest.raises(QuotaExceeded, match="delayed_max"):
            bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=50))
        clock.advance(60)
        settle(bus)
        assert len(list(bus.replay("a/#"))) == 2
        bus.publish("a/b", b"", deliver_at=bus.now + timedelta(seconds=50))


def test_where_delayed_messages_wait_is_not_for_users(timed: Bus, clock: ManualClock) -> None:
    timed.publish("a/b", b"", deliver_at=timed.now + timedelta(seconds=5))
    with pytest.raises(Malformed, match="deliver_at"):
        timed.publish("$delayed/a/b", b"")
    assert timed.topics("#") == []
    timed.purge("#")
    clock.advance(6)
    settle(timed)
    assert len(list(timed.replay("a/#"))) == 1


# Retained messages


def test_retained_messages_come_first_and_flagged_to_a_new_live_subscriber(bus: Bus) -> None:
    bus.publish("home/b", b"old", retain=True)
    bus.publish("home/b", b"b", retain=True)
    bus.publish("home/c", b"not retained")
    bus.publish("home/a", b"a", retain=True)
    bus.publish("hall/a", b"of another root", retain=True)
    live = bus.subscribe("home/#")
    bus.publish("home/b", b"live", retain=True)
    found = live.batch(10, WAIT_S) + live.batch(10, 0)
    assert [(m.topic, m.payload, m.retained) for m in found] == [
        ("home/a", b"a", True),
        ("home/b", b"b", True),
        ("home/b", b"live", False),
    ]
    assert [m.offset for m in found] == [4, 2, 5]


def test_retained_messages_come_first_to_a_durable_subscriber_that_starts_at_latest(bus: Bus) -> None:
    bus.publish("home/a", b"retained", retain=True)
    bus.publish("home/a", b"passed over")
    sub = bus.subscribe("home/#", id="s", start="latest")
    bus.publish("home/a", b"new")
    first, second = some(sub, 2)
    assert (first.payload, first.retained) == (b"retained", True)
    assert (second.payload, second.retained) == (b"new", False)
    sub.ack([first, second])
    assert sub.next(timeout_s=0) is None


def test_a_durable_subscriber_that_starts_elsewhere_gets_no_retained_copy(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True)
    sub = bus.subscribe("home/#", id="s", start="earliest")
    (message,) = some(sub, 1)
    assert not message.retained
    message.ack()
    assert sub.next(timeout_s=0) is None


def test_the_retained_copy_comes_once_and_survives_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.publish("home/a", b"1", retain=True)
        bus.subscribe("home/#", id="s").close()
    with headwater.open(folder) as bus:
        sub = bus.subscribe("home/#", id="s")
        (message,) = some(sub, 1)
        assert message.retained
        message.ack()
    with headwater.open(folder) as bus:
        assert bus.subscribe("home/#", id="s").next(timeout_s=0) is None


def test_a_retained_message_is_cleared_by_an_empty_payload(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True)
    bus.publish("home/a", b"", retain=True)
    assert bus.retained("#") == []
    assert not bus.topics("home/a")[0].retained
    assert bus.subscribe("home/#").next(timeout_s=0) is None
    assert bus.subscribe("home/#", id="s").next(timeout_s=0) is None


def test_an_empty_payload_without_the_flag_clears_nothing(bus: Bus) -> None:
    bus.publish("home/a", b"1", retain=True)
    bus.publish("home/a", b"")
    assert payloads(bus.retained("home/a")) == [b"1"]


def test_a_retained_message_is_dropped_at_its_ttl(timed: Bus, clock: ManualClock) -> None:
    timed.publish("home/a", b"1", retain=True, ttl_s=10)
    sub = timed.subscribe("home/#", id="s")
    clock.advance(9)
    assert payloads(timed.retained("home/#")) == [b"1"]
    clock.advance(1)
    assert timed.retained("home/#") == []
    assert not timed.topics("home/#")[0].retained
    assert timed.subscribe("home/#").next(timeout_s=0) is None
    assert sub.next(timeout_s=0) is None
    clock.advance(100)
    settle(timed)  # the round that forgets them for good
    assert timed.retained("home/#") == []


def test_retained_messages_survive_a_restart(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        bus.publish("home/a", b"1", retain=True, key=b"k", headers={"h": "v"})
        bus.publish("home/b", b"2", retain=True, ttl_s=100)
        bus.publish("home/c", b"3", retain=True)
        bus.publish("home/c", b"", retain=True)
    clock.advance(50)
    with headwater.open(folder, clock=clock) as bus:
        assert [(m.payload, m.key, m.headers) for m in bus.retained("#")] == [
            (b"1", b"k", (("h", "v"),)),
            (b"2", None, ()),
        ]
        clock.advance(51)
        assert payloads(bus.retained("#")) == [b"1"]


def test_retention_cannot_take_retained_messages(folder: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(age_s=10))
    with headwater.open(folder, config, clock=clock) as bus:
        bus.publish("home/a", b"kept", retain=True)
        clock.advance(100)
        settle(bus)
        assert list(bus.replay("home/#")) == []
        assert payloads(bus.retained("home/#")) == [b"kept"]
        assert payloads(some(bus.subscribe("home/#"), 1)) == [b"kept"]


def test_one_retained_topic_more_than_allowed_is_refused(folder: Path) -> None:
    with headwater.open(folder, Config(retained_per_root_max=2)) as bus:
        bus.publish("a/1", b"1", retain=True)
        with pytest.raises(QuotaExceeded):
            bus.publish_many(
                [
                    Outgoing("a/2", b"", retain=True),
                    Outgoing("a/3", b"x", retain=True),
                    Outgoing("a/4", b"x", retain=True),
                ]
            )
        bus.publish("a/2", b"2", retain=True)
        with pytest.raises(QuotaExceeded, match="retained_per_root_max"):
            bus.publish("a/3", b"3", retain=True)
        bus.publish("a/1", b"newer", retain=True)
        bus.publish("a/3", b"not retained")
        bus.publish("a/1", b"", retain=True)
        bus.publish("a/3", b"3", retain=True)
        assert payloads(bus.retained("#")) == [b"2", b"3"]


def test_more_retained_bytes_than_allowed_are_refused_also_after_a_restart(folder: Path) -> None:
    config = Config(retained_bytes_per_root_max=10)
    with headwater.open(folder, config) as bus:
        bus.publish("a/1", b"12345", retain=True, key=b"k", headers={"h": "v"})
        with pytest.raises(QuotaExceeded, match="retained_bytes_per_root_max"):
            bus.publish("new/1", b"x" * 11, retain=True)
        with pytest.raises(QuotaExceeded):
            bus.publish_many([Outgoing("a/2", b"1", retain=True), Outgoing("a/3", b"12", retain=True)])
        bus.publish("a/1", b"1", retain=True)
        bus.publish("a/2", b"123456789", retain=True)
        assert bus.ends() == {"a": 3}
    with headwater.open(folder, config) as bus:
        with pytest.raises(QuotaExceeded):
            bus.publish("a/1", b"12", retain=True)
        bus.publish("a/1", b"12")
        bus.purge("a/2")
    with headwater.open(folder, config) as bus:
        bus.publish("a/1", b"1234567890", retain=True)
        bus.publish("a/1", b"", retain=True)
        bus.publish("a/2", b"1234567890", retain=True)
        assert payloads(bus.retained("#")) == [b"1234567890"]


# Time to live


def test_a_message_past_its_ttl_reaches_nobody(timed: Bus, clock: ManualClock) -> None:
    live = timed.subscribe("a/#")
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish_many(
        [Outgoing("a/b", b"short", ttl_s=5), Outgoing("a/b", b"long", ttl_s=50), Outgoing("a/b", b"ever")]
    )
    clock.advance(6)
    assert payloads(live.batch(10, 0)) == [b"long", b"ever"]
    assert payloads(sub.batch(10, 0)) == [b"long", b"ever"]
    assert payloads(timed.replay("a/#")) == [b"long", b"ever"]


def test_a_failed_message_past_its_ttl_is_not_tried_again(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("a/#", id="s", start="earliest")
    timed.publish("a/b", b"short", ttl_s=5)
    timed.publish("a/b", b"next")
    some(sub, 1)[0].nack("no", delay_s=1)
    clock.advance(6)
    assert payloads(sub.batch(10, 0)) == [b"next"]


# Durable subscriptions: where they start


def test_a_subscription_starts_at_earliest_latest_an_offset_or_a_time(timed: Bus, clock: ManualClock) -> None:
    for payload in numbers(5):
        clock.advance(10)
        timed.publish("a/b", payload)
    third = timed.now - timedelta(seconds=20)
    starts: list[tuple[str, str | int | datetime, list[bytes]]] = [
        ("earliest", "earliest", numbers(5)),
        ("latest", "latest", []),
        ("offset", 4, numbers(2, 3)),
        ("first", 1, numbers(5)),
        ("zero", 0, numbers(5)),
        ("beyond", 100, []),
        ("time", third, numbers(3, 2)),
        ("between", third - timedelta(seconds=1), numbers(3, 2)),
        ("past", datetime(2000, 1, 1, tzinfo=UTC), numbers(5)),
        ("future", timed.now + timedelta(days=1), []),
        ("naive", third.astimezone().replace(tzinfo=None), numbers(3, 2)),
    ]
    for name, start, wanted in starts:
        with timed.subscribe("a/#", id=name, start=start) as sub:
            assert payloads(sub.batch(100, 0)) == wanted, name
    timed.publish("a/b", b"new")
    assert payloads(timed.subscribe("a/#", id="latest").batch(10, 0)) == [b"new"]


def test_start_counts_at_the_first_use_only(bus: Bus) -> None:
    publish_numbers(bus, 3)
    bus.subscribe("jobs/#", id="s", start="latest").close()
    assert bus.subscribe("jobs/#", id="s", start="earliest").next(timeout_s=0) is None


def test_roots_that_appear_later_are_picked_up_from_their_first_message(bus: Bus) -> None:
    subs = [bus.subscribe(each, id=each) for each in ("#", "+/x", "new/#")]
    for sub in subs:
        assert sub.next(timeout_s=0) is None
    bus.publish("new/x", b"1")
    bus.publish("$box/x", b"hidden from wildcards")
    bus.publish("other/x", b"2")
    assert [sorted(payloads(sub.batch(10, WAIT_S) + sub.batch(10, 0))) for sub in subs] == [
        [b"1", b"2"],
        [b"1", b"2"],
        [b"1"],
    ]


def test_roots_that_appear_while_nobody_consumes_are_picked_up_too(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.subscribe("#", id="s").close()
        bus.publish("new/x", b"1")
    with headwater.open(folder) as bus:
        bus.publish("newer/x", b"2")
        assert sorted(payloads(bus.subscribe("#", id="s").batch(10, 0))) == [b"1", b"2"]


def test_a_subscription_gets_what_its_filter_matches_in_publish_order(bus: Bus) -> None:
    sub = bus.subscribe("home/+/temp", id="s")
    topics = ["home/a/temp", "home/a/power", "home/b/temp", "home/a/b/temp", "home/temp", "hall/a/temp", "home/a/temp"]
    bus.publish_many([(topic, b"%d" % place) for place, topic in enumerate(topics)])
    for place, topic in enumerate(topics):
        bus.publish(topic, b"%d" % (place + 10))
    assert payloads(sub.batch(100, WAIT_S)) == [b"0", b"2", b"6", b"10", b"12", b"16"]


# Durable subscriptions: taking and acking


def test_what_was_acked_is_never_delivered_again_and_what_was_not_is(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        publish_numbers(bus, 6)
        messages = sub.batch(10, WAIT_S)
        messages[0].ack()
        messages[3].ack(wait=False)
        sub.ack(messages[4:])
    with headwater.open(folder) as bus:
        sub = bus.subscribe("jobs/#", id="s")
        assert payloads(sub.batch(10, 0)) == [b"1", b"2"]


ACK_AND_DIE = """
import os, sys, headwater
bus = headwater.open(sys.argv[1])
sub = bus.subscribe("jobs/#", id="s", start="earliest")
bus.publish_many([("jobs/x", b"%d" % n) for n in range(10)])
messages = sub.batch(100, 5)
messages[0].ack()
sub.ack(messages[1:4])
messages[4].nack("failed once", delay_s=0)
os.kill(os.getpid(), 9)
"""


def test_acks_and_failures_survive_a_kill(folder: Path) -> None:
    assert python(ACK_AND_DIE, folder).returncode == -signal.SIGKILL
    with headwater.open(folder) as bus:
        assert bus.subscriptions()[0].floors == {"jobs": 4}
        sub = bus.subscribe("jobs/#", id="s")
        (failed,) = some(sub, 1)
        assert (failed.payload, failed.attempt) == (b"4", 2)
        assert bus.states("s")[0][3:] == (1, ("failed once",))
        failed.ack()
        assert payloads(sub.batch(10, WAIT_S)) == numbers(5, 5)


def test_an_ack_out_of_order_in_a_root_that_appeared_later_survives_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("#", id="s", order="none")
        publish_numbers(bus, 3)
        messages = sub.batch(10, WAIT_S)
        sub.ack(messages[1:])
    with headwater.open(folder) as bus:
        assert payloads(bus.subscribe("#", id="s").batch(10, 0)) == [b"0"]


def test_next_batch_and_iteration_hand_out_the_same_messages(bus: Bus) -> None:
    publish_numbers(bus, 6)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    first = sub.next(timeout_s=1)
    assert first is not None
    rest = sub.batch(max=2, timeout_s=1)
    iterated = []
    for message in sub:
        iterated.append(message)
        if len(iterated) == 3:
            break
    assert payloads([first, *rest, *iterated]) == numbers(6)


def test_next_answers_none_when_the_time_has_passed(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    started = time.monotonic()
    assert sub.next(timeout_s=0.05) is None
    assert sub.batch(10, timeout_s=0.05) == []
    assert 0.09 < time.monotonic() - started < WAIT_S


def test_a_consumer_that_waits_is_woken_by_a_publish(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1)))
    waiting.start()
    bus.publish("jobs/x", b"1")
    waiting.join(WAIT_S)
    assert payloads(found) == [b"1"]


def test_at_most_max_in_flight_messages_are_handed_out(bus: Bus) -> None:
    publish_numbers(bus, 10)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=3)
    messages = sub.batch(100, 0)
    assert payloads(messages) == numbers(3)
    assert sub.next(timeout_s=0) is None
    assert bus.subscriptions()[0].in_flight == 3
    messages[1].ack()
    assert payloads(sub.batch(100, 0)) == [b"3"]
    sub.ack(messages)
    assert payloads(sub.batch(100, 0)) == [b"4", b"5"]


def test_an_ack_makes_room_for_a_consumer_that_waits(bus: Bus) -> None:
    publish_numbers(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=1)
    (first,) = some(sub, 1)
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1)))
    waiting.start()
    first.ack()
    waiting.join(WAIT_S)
    assert payloads(found) == [b"1"]


def test_acking_twice_is_fine(bus: Bus) -> None:
    publish_numbers(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = sub.batch(10, 0)
    sub.ack(messages)
    sub.ack(messages)
    messages[0].ack()
    sub.ack([])


def test_ack_of_several_is_all_or_nothing(folder: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 3)
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        first, second, third = some(sub, 3)
        second.nack("no", delay_s=100)
        with pytest.raises(Recalled):
            sub.ack([third, second])
        third.ack()
    with headwater.open(folder) as bus:
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == [first.payload]


def test_a_message_is_acked_where_it_came_from(bus: Bus) -> None:
    publish_numbers(bus, 1)
    one, other = (bus.subscribe("jobs/#", id=name, start="earliest") for name in ("one", "other"))
    (message,) = some(one, 1)
    with pytest.raises(Malformed, match="other"):
        other.ack([message])
    message.ack()
    assert payloads(some(other, 1)) == [b"0"]


def test_messages_from_history_and_of_live_subscriptions_cannot_be_nacked(bus: Bus) -> None:
    live = bus.subscribe("jobs/#")
    publish_numbers(bus, 1)
    from_live, from_history = live.next(WAIT_S), next(bus.replay("jobs/#"))
    assert from_live is not None
    from_live.ack()
    for message in (from_live, from_history):
        for verb in (message.nack, message.reject, lambda message=message: message.extend(5)):
            with pytest.raises(HeadwaterError, match="subscribe with an id"):
                verb()
    with pytest.raises(HeadwaterError, match="subscribe with an id"):
        from_history.ack()


# Durable subscriptions: failing


def test_a_nack_hands_it_out_again_after_a_delay_that_doubles(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=0, retry_delay_s=1, retry_delay_s_max=8)
    timed.publish("jobs/x", b"1")
    for attempt, delay_s in enumerate([1, 2, 4, 8, 8], 1):
        (message,) = some(sub, 1)
        assert message.attempt == attempt
        message.nack(f"failure {attempt}")
        clock.advance(delay_s * 0.79)  # up to a fifth of it is drawn at random
        assert sub.next(timeout_s=0) is None
        clock.advance(delay_s * 0.22)
    assert some(sub, 1)[0].attempt == 6
    assert timed.states("s") == [("jobs", 1, "in_flight", 5, tuple(f"failure {n}" for n in range(1, 6)))]


def test_a_nack_may_state_its_delay(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest")
    timed.publish("jobs/x", b"1")
    some(sub, 1)[0].nack(delay_s=100)
    clock.advance(99)
    assert sub.next(timeout_s=0) is None
    clock.advance(1)
    (message,) = some(sub, 1)
    message.nack(ValueError("at once"), delay_s=0)
    (message,) = some(sub, 1)
    assert message.attempt == 3
    assert "at once" in timed.states("s")[0][4][1]


def test_a_consumer_that_waits_is_woken_when_a_retry_is_due(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest")
    timed.publish("jobs/x", b"1")
    some(sub, 1)[0].nack(delay_s=50)
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1, timeout_s=1000)))
    waiting.start()
    clock.advance(50)
    waiting.join(WAIT_S)
    assert [message.attempt for message in found] == [2]


def test_attempts_errors_and_the_time_of_the_next_attempt_survive_a_restart(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest")
        bus.publish("jobs/x", b"1")
        for error in ("first", "second"):
            some(sub, 1)[0].nack(error, delay_s=0 if error == "first" else 60)
    clock.advance(30)
    with headwater.open(folder, clock=clock) as bus:
        assert bus.states("s") == [("jobs", 1, "retry", 2, ("first", "second"))]
        sub = bus.subscribe("jobs/#", id="s")
        assert sub.next(timeout_s=0) is None
        clock.advance(30)
        assert some(sub, 1)[0].attempt == 3


def test_without_an_ack_in_time_it_goes_to_retry(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30, retry_delay_s=1)
    timed.publish("jobs/x", b"1")
    (message,) = some(sub, 1)
    clock.advance(29)
    settle(timed)
    assert timed.states("s")[0][2] == "in_flight"
    clock.advance(1)
    settle(timed)
    assert timed.states("s") == [("jobs", 1, "retry", 1, ("no ack within 30 s",))]
    with pytest.raises(Recalled) as late:
        message.ack()
    assert late.value.code == 409
    clock.advance(1)
    assert some(sub, 1)[0].attempt == 2


def test_extend_gives_more_time(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    publish_numbers(timed, 2)
    first, second = sub.batch(2, 0)
    clock.advance(20)
    first.extend(60)
    clock.advance(20)
    settle(timed)
    assert [state[1:3] for state in timed.states("s")] == [(1, "in_flight"), (2, "retry")]
    clock.advance(30)
    settle(timed)
    first.ack()
    with pytest.raises(Recalled):
        second.ack()
    assert timed.subscriptions()[0].floors == {"jobs": 1}


def test_an_extension_ends_too(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    timed.publish("jobs/x", b"1")
    (message,) = some(sub, 1)
    message.extend(60)
    clock.advance(61)
    settle(timed)
    with pytest.raises(Recalled):
        message.ack()


def test_the_ack_timer_starts_when_the_application_takes_the_message(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    publish_numbers(timed, 2)
    (first,) = some(sub, 1)
    first.ack()
    clock.advance(1000)
    settle(timed)
    (second,) = some(sub, 1)
    assert second.attempt == 1
    clock.advance(29)
    settle(timed)
    second.ack()


def test_without_a_timeout_a_message_may_take_for_ever(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=0)
    timed.publish("jobs/x", b"1")
    (message,) = some(sub, 1)
    clock.advance(10**7)
    settle(timed)
    message.ack()


def test_after_max_attempts_it_is_a_dead_letter_and_the_next_goes_on(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=3)
    timed.publish("jobs/x", b"bad", key=b"k", headers={"h": "v"})
    timed.publish("jobs/x", b"good")
    for attempt in (1, 2, 3):
        (message,) = some(sub, 1)
        assert (message.payload, message.attempt) == (b"bad", attempt)
        message.nack(f"failure {attempt}", delay_s=0)
    assert payloads(some(sub, 1)) == [b"good"]
    (letter,) = timed.dead_letters("s")
    assert (letter.subscription, letter.topic, letter.offset, letter.payload) == ("s", "jobs/x", 1, b"bad")
    assert (letter.key, letter.headers) == (b"k", (("h", "v"),))
    assert (letter.attempts, letter.errors) == (3, ("failure 1", "failure 2", "failure 3"))
    assert letter.timestamp == letter.dead_at == timed.now
    assert any(event.kind == "dead" for event in timed.events())
    assert timed.subscriptions()[0].dead == 1


def test_timeouts_count_as_attempts(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=2, ack_timeout_s=5, retry_delay_s=0)
    timed.publish("jobs/x", b"1")
    for _ in range(2):
        some(sub, 1)
        clock.advance(6)
        settle(timed)
    assert timed.dead_letters("s")[0].errors == ("no ack within 5 s",) * 2


def test_reject_makes_it_a_dead_letter_at_once(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    publish_numbers(bus, 2)
    first, second = sub.batch(2, 0)
    first.reject("never")
    second.ack()
    assert [(letter.payload, letter.attempts, letter.errors) for letter in bus.dead_letters("s")] == [
        (b"0", 1, ("never",))
    ]
    assert bus.subscriptions()[0].lag == 0


def test_long_errors_are_cut_and_the_newest_of_them_kept(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, Config(errors_kept=2, error_bytes_max=10), clock=clock) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=0)
        bus.publish("jobs/x", b"1")
        for number in range(4):
            some(sub, 1)[0].nack(f"{number}" + "ü" * 100, delay_s=0)
        assert bus.states("s")[0][4] == ("2" + "ü" * 4, "3" + "ü" * 4)


# Order


def test_strict_nothing_after_a_failed_message_is_handed_out_before_it_is_acked_or_dead(
    timed: Bus, clock: ManualClock
) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=2)
    publish_numbers(timed, 5)
    taken = sub.batch(3, 0)
    taken[1].nack("no", delay_s=10)
    taken[0].ack()
    with pytest.raises(Recalled, match="taken back"):
        taken[2].ack()
    assert sub.next(timeout_s=0) is None
    clock.advance(10)
    again = sub.batch(10, 0)
    assert payloads(again) == [b"1"]
    assert sub.next(timeout_s=0) is None
    again[0].ack()
    assert [(m.payload, m.attempt) for m in sub.batch(10, 0)] == [(b"2", 1), (b"3", 1), (b"4", 1)]


def test_strict_a_dead_message_lets_the_next_go_on(timed: Bus) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", max_attempts=1)
    publish_numbers(timed, 3)
    sub.batch(3, 0)[0].nack("no")
    assert payloads(sub.batch(10, 0)) == [b"1", b"2"]


def test_strict_holds_over_several_roots_and_restarts(folder: Path, clock: ManualClock) -> None:
    with headwater.open(folder, clock=clock) as bus:
        sub = bus.subscribe("#", id="s", start="earliest")
        bus.publish("a/x", b"a1")
        some(sub, 1)[0].nack("no", delay_s=10)
        bus.publish("a/x", b"a2")
        bus.publish("b/x", b"b1")
        assert sub.next(timeout_s=0) is None
    with headwater.open(folder, clock=clock) as bus:
        sub = bus.subscribe("#", id="s")
        first = sub.batch(10, 0)
        assert b"a2" not in payloads(first)
        sub.ack(first)
        clock.advance(10)
        (failed,) = some(sub, 1)
        assert failed.payload == b"a1"
        failed.ack()
        assert sorted(payloads(first + sub.batch(10, 0))) == [b"a2", b"b1"]


def test_key_a_failed_key_waits_and_the_rest_flows(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="key")
    for number, key in enumerate([b"a", b"b", b"a", None, b"b", None, b""]):
        timed.publish("jobs/x", b"%d" % number, key=key)
    taken = {message.payload: message for message in sub.batch(100, 0)}
    assert len(taken) == 7
    taken[b"0"].nack("no", delay_s=10)
    with pytest.raises(Recalled):
        taken[b"2"].ack()
    for payload in (b"1", b"3", b"4", b"5", b"6"):
        taken[payload].ack()
    timed.publish("jobs/x", b"7", key=b"a")
    timed.publish("jobs/x", b"8", key=b"b")
    assert payloads(sub.batch(100, 0)) == [b"8"]
    clock.advance(10)
    (failed,) = some(sub, 1)
    assert failed.payload == b"0"
    assert sub.next(timeout_s=0) is None
    failed.ack()
    assert payloads(sub.batch(100, 0)) == [b"2", b"7"]


def test_key_messages_without_a_key_go_by_their_topic(timed: Bus) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="key")
    timed.publish_many([("jobs/a", b"1"), ("jobs/b", b"2"), ("jobs/a", b"3")])
    taken = sub.batch(10, 0)
    taken[0].nack("no", delay_s=10)
    taken[1].ack()
    with pytest.raises(Recalled):
        taken[2].ack()


def test_none_a_failed_message_holds_up_nothing(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="none")
    publish_numbers(timed, 4)
    taken = sub.batch(3, 0)
    taken[0].nack("no", delay_s=10)
    taken[2].ack()
    assert payloads(sub.batch(10, 0)) == [b"3"]
    taken[1].ack()
    clock.advance(10)
    assert payloads(sub.batch(10, 0)) == [b"0"]


# Several consumers


@pytest.mark.parametrize("order", ["none", "key"])
def test_several_consumers_share_a_subscription_and_each_message_goes_to_one(bus: Bus, order: str) -> None:
    count, lock = 400, threading.Lock()
    got: list[tuple[bytes, int]] = []
    subs = [bus.subscribe("jobs/#", id="s", start="earliest", order=order, max_in_flight=40) for _ in range(4)]
    assert bus.subscriptions()[0].consumers == 4
    bus.publish_many([Outgoing("jobs/x", b"%d" % number, key=b"%d" % (number % 7)) for number in range(count)])
    everything = threading.Event()

    def work(consumer: int) -> None:
        sub = subs[consumer]
        while not everything.is_set():
            messages = sub.batch(5, timeout_s=0.05)
            sub.ack(messages)
            with lock:
                got.extend((message.payload, consumer) for message in messages)
                if len(got) >= count:
                    everything.set()

    in_threads(4, work)
    assert sorted(int(payload) for payload, _ in got) == list(range(count))


def test_what_one_consumer_holds_another_does_not_get(bus: Bus) -> None:
    one, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="none") for _ in range(2))
    publish_numbers(bus, 5)
    assert payloads(one.batch(2, 0) + other.batch(2, 0) + one.batch(10, 0)) == numbers(5)
    assert one.next(timeout_s=0) is other.next(timeout_s=0) is None


def test_with_strict_order_one_is_active_and_a_standby_takes_over(bus: Bus) -> None:
    active, standby = (bus.subscribe("jobs/#", id="s", start="earliest") for _ in range(2))
    publish_numbers(bus, 3)
    assert standby.next(timeout_s=0) is None
    first, second = active.batch(2, 0)
    first.ack()
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(standby, 2)))
    waiting.start()
    active.close()
    waiting.join(WAIT_S)
    assert [(m.payload, m.attempt) for m in found] == [(b"1", 1), (b"2", 1)], "a disconnect is not an attempt"
    with pytest.raises(Recalled):
        second.ack()
    found[0].ack()


def test_what_a_leaving_consumer_holds_goes_to_the_others(bus: Bus) -> None:
    one, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="none") for _ in range(2))
    publish_numbers(bus, 4)
    held = one.batch(2, 0)
    mine = other.batch(10, 0)
    one.close()
    assert sorted(payloads(other.batch(10, WAIT_S))) == sorted(payloads(held))
    other.ack(mine)
    with pytest.raises(Recalled):
        held[0].ack()


def test_a_consumer_that_is_closed_takes_nothing_more_and_the_subscription_stays(bus: Bus) -> None:
    sub, other = (bus.subscribe("jobs/#", id="s", start="earliest") for _ in range(2))
    sub.close()
    sub.close()
    with pytest.raises(Closed):
        sub.next(timeout_s=0)
    assert list(sub) == []
    assert other.next(timeout_s=0) is None
    other.close()
    assert [info.id for info in bus.subscriptions()] == ["s"]
    with bus.subscribe("jobs/#", id="s") as again:
        publish_numbers(bus, 1)
        assert payloads(some(again, 1)) == [b"0"]
    assert bus.subscriptions()[0].consumers == 0


# Seek, pause, resume, expiry


def test_seek_goes_on_from_another_place_and_takes_back_what_is_in_flight(timed: Bus, clock: ManualClock) -> None:
    for payload in numbers(6):
        clock.advance(10)
        timed.publish("jobs/x", payload)
    sub = timed.subscribe("jobs/#", id="s", start="earliest")
    held = sub.batch(3, 0)
    held[0].ack()
    for to, wanted in [
        ("earliest", numbers(6)),
        (5, numbers(2, 4)),
        ("latest", []),
        (timed.now - timedelta(seconds=20), numbers(3, 3)),
        (1, numbers(6)),
    ]:
        sub.seek(to)
        assert payloads(sub.batch(100, 0)) == wanted, to
    with pytest.raises(Recalled, match="moved"):
        held[1].ack()


def test_seek_survives_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 5)
        sub = bus.subscribe("jobs/#", id="s", start="earliest")
        sub.ack(sub.batch(10, 0))
        sub.seek(3)
    with headwater.open(folder) as bus:
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == numbers(3, 2)


def test_seek_wakes_a_consumer_that_waits(bus: Bus) -> None:
    publish_numbers(bus, 2)
    sub = bus.subscribe("jobs/#", id="s")
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 2)))
    waiting.start()
    sub.seek("earliest")
    waiting.join(WAIT_S)
    assert payloads(found) == numbers(2)


def test_a_paused_subscription_hands_out_nothing_until_it_is_resumed(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    publish_numbers(bus, 2)
    (held,) = some(sub, 1)
    sub.pause()
    assert sub.next(timeout_s=0) is None
    held.ack()
    assert bus.subscriptions()[0].paused
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1)))
    waiting.start()
    sub.resume()
    waiting.join(WAIT_S)
    assert payloads(found) == [b"1"]


def test_pause_holds_for_every_consumer_and_across_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        one, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="none") for _ in range(2))
        publish_numbers(bus, 2)
        one.pause()
        assert other.next(timeout_s=0) is None
    with headwater.open(folder) as bus:
        assert bus.subscriptions()[0].paused
        sub = bus.subscribe("jobs/#", id="s")
        assert sub.next(timeout_s=0) is None
        sub.resume()
        assert payloads(sub.batch(10, 0)) == numbers(2)
    with headwater.open(folder) as bus:
        assert not bus.subscriptions()[0].paused


def test_a_subscription_that_nobody_used_for_its_expire_after_s_is_gone(timed: Bus, clock: ManualClock) -> None:
    timed.subscribe("jobs/#", id="short", start="earliest", expire_after_s=1000).close()
    timed.subscribe("jobs/#", id="long", expire_after_s=10_000).close()
    timed.subscribe("jobs/#", id="ever").close()
    used = timed.subscribe("jobs/#", id="used", expire_after_s=1000)
    for _ in range(18):
        clock.advance(60)
        settle(timed)
    assert [info.id for info in timed.subscriptions()] == ["ever", "long", "used"]
    assert [event.kind for event in timed.events() if "short" in event.text] == ["expired"]
    used.close()
    clock.advance(900)
    settle(timed)
    assert "used" in [info.id for info in timed.subscriptions()]
    clock.advance(200)
    settle(timed)
    assert "used" not in [info.id for info in timed.subscriptions()]


def test_options_that_are_left_out_stay_as_they_were(bus: Bus) -> None:
    publish_numbers(bus, 5)
    bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=2, order="none").close()
    sub = bus.subscribe("jobs/#", id="s")
    assert len(sub.batch(10, 0)) == 2
    assert bus.subscriptions()[0].order == "none"


def test_options_may_change_while_nobody_consumes(bus: Bus) -> None:
    publish_numbers(bus, 5)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=2)
    with pytest.raises(Conflict, match="in use"):
        bus.subscribe("jobs/#", id="s", max_in_flight=3)
    bus.subscribe("jobs/#", id="s", max_in_flight=2).close()
    sub.close()
    assert len(bus.subscribe("jobs/#", id="s", max_in_flight=3).batch(10, 0)) == 3


def test_a_second_filter_for_an_id_is_409(bus: Bus) -> None:
    bus.subscribe("jobs/#", id="s").close()
    with pytest.raises(Conflict, match="jobs/#") as refused:
        bus.subscribe("jobs/x", id="s")
    assert refused.value.code == 409
    assert [info.filter for info in bus.subscriptions()] == ["jobs/#"]


def test_subscriptions_shows_lag_in_flight_retrying_and_dead(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/+", id="s", start="earliest", order="none")
    timed.publish_many([(f"jobs/{'x' if number % 2 else 'x/y'}", b"%d" % number) for number in range(20)])
    messages = sub.batch(5, 0)
    messages[0].ack()
    messages[1].nack("no")
    messages[2].reject("never")
    (info,) = timed.subscriptions()
    assert (info.id, info.filter, info.order, info.consumers, info.paused) == ("s", "jobs/+", "none", 1, False)
    assert (info.lag, info.in_flight, info.retrying, info.dead) == (8, 2, 1, 1)
    assert info.floors == {"jobs": 3}
    sub.close()
    (info,) = timed.subscriptions()
    assert (info.lag, info.in_flight, info.retrying, info.dead, info.consumers) == (8, 0, 1, 1, 0)


def test_unsubscribe_deletes_a_subscription_its_place_and_its_dead_letters(folder: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 4)
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        messages = sub.batch(10, 0)
        messages[0].reject("no")
        messages[3].ack()
        bus.unsubscribe("s")
        assert bus.subscriptions() == []
        for use in (sub.next, messages[2].ack, lambda: sub.seek("earliest"), sub.pause, sub.resume):
            with pytest.raises(HeadwaterError):
                use()
        sub.close()
        with pytest.raises(NotFound):
            bus.dead_letters("s")
        assert bus.subscriptions() == []
    with headwater.open(folder) as bus:
        again = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        assert payloads(again.batch(10, 0)) == numbers(4)
        assert bus.dead_letters("s") == []


def test_unsubscribe_wakes_a_consumer_that_waits(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    ended = threading.Event()

    def read() -> None:
        for _ in sub:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    bus.unsubscribe("s")
    assert ended.wait(WAIT_S)


# Dead letters


def with_dead(bus: Bus, count: int = 3, **options: Any) -> Any:
    """A subscription with so many dead letters."""
    sub = bus.subscribe("jobs/#", id="s", start="earliest", **options)
    publish_numbers(bus, count)
    for message in sub.batch(100, WAIT_S):
        message.reject(f"no {message.payload.decode()}")
    return sub


def test_dead_letters_are_listed_and_shown(bus: Bus) -> None:
    with_dead(bus)
    assert [letter.offset for letter in bus.dead_letters("s")] == [1, 2, 3]
    assert bus.dead_letter("s", 2).errors == ("no 1",)
    with pytest.raises(NotFound, match="no dead letter 9"):
        bus.dead_letter("s", 9)


def test_dead_letters_survive_a_restart_and_retention(folder: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(age_s=10))
    with headwater.open(folder, config, clock=clock) as bus:
        with_dead(bus, 2)
        clock.advance(100)
        settle(bus)
        assert list(bus.replay("jobs/#")) == []
    with headwater.open(folder, config, clock=clock) as bus:
        assert payloads(bus.dead_letters("s")) == numbers(2)  # type: ignore[arg-type]
        assert bus.redrive("s") == 2
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == numbers(2)


def test_redrive_hands_them_to_that_subscription_again_in_order_and_to_no_other(bus: Bus) -> None:
    sub = with_dead(bus)
    other = bus.subscribe("jobs/#", id="other", start="latest")
    live = bus.subscribe("jobs/#")
    assert bus.redrive("s") == 3
    assert bus.redrive("s") == 0
    assert bus.dead_letters("s") == []
    again = sub.batch(10, WAIT_S)
    assert payloads(again) == numbers(3)
    assert [message.attempt for message in again] == [1, 1, 1]
    sub.ack(again)
    assert sub.next(timeout_s=0) is None
    assert other.next(timeout_s=0) is None
    assert live.next(timeout_s=0) is None
    assert len(list(bus.replay("jobs/#"))) == 3


def test_redriven_messages_have_headers_that_say_where_they_came_from(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=2)
    bus.publish("jobs/x", b"1", headers=(("mine", "kept"),), key=b"k")
    for _ in range(2):
        some(sub, 1)[0].nack("no luck", delay_s=0)
    bus.redrive("s")
    (message,) = some(sub, 1)
    assert message.headers == (
        ("mine", "kept"),
        ("headwater-dead-from", "s"),
        ("headwater-dead-topic", "jobs/x"),
        ("headwater-dead-offset", "1"),
        ("headwater-dead-attempts", "2"),
        ("headwater-dead-error", "no luck"),
    )
    assert (message.topic, message.offset, message.key) == ("jobs/x", 1, b"k")
    message.reject("again")
    bus.redrive("s")
    (message,) = some(sub, 1)
    assert len(message.headers) == 6
    assert dict(message.headers)["headwater-dead-error"] == "again"


def test_some_dead_letters_can_be_redriven_or_dropped(bus: Bus) -> None:
    sub = with_dead(bus, 5)
    assert bus.redrive("s", offsets=[4, 2, 99]) == 2
    assert payloads(sub.batch(10, WAIT_S)) == [b"1", b"3"]
    assert bus.drop_dead_letters("s", offsets=[1]) == 1
    assert [letter.offset for letter in bus.dead_letters("s")] == [3, 5]
    assert bus.drop_dead_letters("s") == 2
    assert bus.dead_letters("s") == []
    assert bus.subscriptions()[0].dead == 0


def test_redrive_without_a_consumer_waits_for_one_across_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        with_dead(bus).close()
        bus.redrive("s")
    with headwater.open(folder) as bus:
        assert bus.dead_letters("s") == []
        publish_numbers(bus, 1, first=9)
        sub = bus.subscribe("jobs/#", id="s")
        found = sub.batch(10, 0) + sub.batch(10, 0)
        assert payloads(found) == [*numbers(3), b"9"]
        sub.ack(found)
    with headwater.open(folder) as bus:
        assert bus.subscribe("jobs/#", id="s").next(timeout_s=0) is None


def test_a_redriven_message_that_fails_again_is_retried_and_dies_again(timed: Bus, clock: ManualClock) -> None:
    sub = with_dead(timed, 1, max_attempts=2)
    timed.redrive("s")
    for attempt in (1, 2):
        (message,) = some(sub, 1)
        assert message.attempt == attempt
        message.nack(f"again {attempt}", delay_s=0)
    (letter,) = timed.dead_letters("s")
    assert (letter.attempts, letter.errors) == (2, ("again 1", "again 2"))


def test_with_order_key_redriven_messages_of_one_key_do_not_hold_up_another(timed: Bus) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="key")
    timed.publish("jobs/x", b"a", key=b"1")
    timed.publish("jobs/x", b"b", key=b"2")
    for message in sub.batch(10, 0):
        message.reject("no")
    timed.redrive("s")
    first, second = sub.batch(10, 0)
    first.nack("again", delay_s=10)
    second.ack()


def test_a_consumer_that_takes_while_redrive_is_being_stored_loses_nothing(clock: ManualClock) -> None:
    class SlowState(MemoryState):
        gate: threading.Event | None = None
        reached = threading.Event()

        def write(self, rows: Any) -> None:
            if self.gate is not None:
                self.reached.set()
                assert self.gate.wait(WAIT_S)
            super().write(rows)

    state = SlowState()
    with headwater.open(":memory:", state=state) as bus:
        sub = with_dead(bus, 1)
        state.gate = threading.Event()
        redriving = threading.Thread(target=bus.redrive, args=("s",))
        redriving.start()
        assert state.reached.wait(WAIT_S)
        early = sub.batch(10, 0)
        state.gate.set()
        redriving.join(WAIT_S)
        assert payloads(early or sub.batch(10, WAIT_S)) == numbers(1)


def test_beyond_dead_letters_max_the_oldest_is_dropped_and_an_event_says_so(folder: Path) -> None:
    with headwater.open(folder, Config(dead_letters_max=2)) as bus:
        with_dead(bus, 4)
        assert payloads(bus.dead_letters("s")) == numbers(2, 2)  # type: ignore[arg-type]
        assert sum(event.kind == "dead-dropped" for event in bus.events()) == 2
        assert bus.subscriptions()[0].dead == 2


# Live subscriptions


def test_a_live_subscription_gets_what_is_published_while_it_is_there(bus: Bus) -> None:
    bus.publish("home/a", b"before")
    with bus.subscribe("home/#") as live:
        publish_numbers(bus, 3, "home/a")
        bus.publish("hall/a", b"of another root")
        assert payloads(live.batch(10, WAIT_S)) == numbers(3)
    publish_numbers(bus, 3, "home/a")
    with pytest.raises(Closed):
        live.next(timeout_s=0)
    assert list(live) == []


def test_the_topics_of_sys_are_the_brokers_own(bus: Bus) -> None:
    due = datetime.now(UTC) + timedelta(seconds=60)
    for publish in (
        lambda: bus.publish("$sys/x", b"1"),
        lambda: bus.publish("$sys", b"1"),
        lambda: bus.publish_soon("$sys/x", b"1"),
        lambda: bus.publish_many([("home/x", b"1"), ("$sys/x", b"1")]),
        lambda: bus.publish("$sys/x", b"1", deliver_at=due),
        lambda: bus.stage("writer", 1, [("$sys/x", b"1")]),
    ):
        with pytest.raises(headwater.NotAllowed, match="a root of yours"):
            publish()
    assert bus.ends() == {}


def test_live_subscribers_of_every_filter_get_their_slice_of_a_batch(bus: Bus) -> None:
    topics = ["home/a/temp", "home/b/temp", "home/a/power", "hall/a/temp", "$box/x"]
    filters = ["#", "home/#", "home/+/temp", "home/a/temp", "+/a/#", "$box/#", "hall/b"]
    lives = {each: bus.subscribe(each) for each in filters}
    bus.publish_many([(topic, topic.encode()) for topic in topics])
    found = {each: sorted(payloads(live.batch(10, 0) + live.batch(10, 0))) for each, live in lives.items()}
    assert found == {
        "#": sorted(topic.encode() for topic in topics[:4]),
        "home/#": [b"home/a/power", b"home/a/temp", b"home/b/temp"],
        "home/+/temp": [b"home/a/temp", b"home/b/temp"],
        "home/a/temp": [b"home/a/temp"],
        "+/a/#": [b"hall/a/temp", b"home/a/power", b"home/a/temp"],
        "$box/#": [b"$box/x"],
        "hall/b": [],
    }


def test_a_full_live_buffer_drops_the_oldest_and_counts_them(folder: Path) -> None:
    with headwater.open(folder, Config(live_messages_max=5)) as bus:
        live = bus.subscribe("jobs/#")
        publish_numbers(bus, 4)
        publish_numbers(bus, 4, first=4)
        assert live.dropped == 3
        assert payloads(live.batch(100, 0) + live.batch(100, 0)) == numbers(5, 3)
        publish_numbers(bus, 20)
        assert live.dropped == 18
        assert payloads(live.batch(100, 0)) == numbers(5, 15)


def test_a_full_live_buffer_may_disconnect_instead(folder: Path) -> None:
    with headwater.open(folder, Config(live_messages_max=5)) as bus:
        live = bus.subscribe("jobs/#", when_full="disconnect")
        publish_numbers(bus, 6)
        with pytest.raises(Closed, match="too slow"):
            while live.next(timeout_s=0) is not None:
                pass
        publish_numbers(bus, 1)
        with pytest.raises(Closed):
            live.next(timeout_s=0)


def test_live_bytes_are_limited_too(folder: Path) -> None:
    with headwater.open(folder, Config(live_bytes_max=10_000)) as bus:
        live = bus.subscribe("jobs/#")
        for number in range(10):
            bus.publish("jobs/x", b"%d" % number * 3000)
        assert live.dropped >= 6
        found = live.batch(100, 0) + live.batch(100, 0) + live.batch(100, 0)
        assert [message.payload[:1] for message in found][-1:] == [b"9"]
        assert len(found) == 10 - live.dropped


# Replay and follow


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


# Topics, purge


def test_topics_lists_messages_last_offset_and_retained(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.publish_many([("b/x", b""), ("a/x", b""), ("a/y", b""), ("a/x", b"")])
        bus.publish("a/x", b"on", retain=True)
        wanted = [("a/x", 3, 4, True), ("a/y", 1, 2, False), ("b/x", 1, 1, False)]
        assert [(t.topic, t.messages, t.last_offset, t.retained) for t in bus.topics()] == wanted
        assert [t.topic for t in bus.topics("a/+")] == ["a/x", "a/y"]
        assert bus.topics("c/#") == []
    with headwater.open(folder) as bus:
        assert [(t.topic, t.messages, t.last_offset, t.retained) for t in bus.topics()] == wanted
        bus.publish("a/x", b"")
        assert bus.topics("a/x")[0].messages == 4


def test_one_topic_or_root_more_than_allowed_is_refused_and_nothing_is_created(folder: Path) -> None:
    with headwater.open(folder, Config(roots_max=2, topics_per_root_max=2)) as bus:
        with pytest.raises(QuotaExceeded, match="topics_per_root_max"):
            bus.publish_many([("b/1", b""), ("b/2", b""), ("b/3", b"")])
        assert bus.topics() == []
        with pytest.raises(PartlyStored, match=r'those of "c", "d", and those of "e" were not: .*roots_max'):
            bus.publish_many([("c/2", b""), ("c/3", b""), ("d/1", b""), ("e/1", b"")])
        for topic in ("c/4", "e/1"):
            with pytest.raises(QuotaExceeded) as refused:
                bus.publish(topic, b"")
            assert (refused.value.code, refused.value.retryable) == (429, True)
        bus.publish("c/2", b"")


def test_purge_removes_messages_topics_and_retained_values_for_everybody(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("home/#", id="s", start="earliest")
        live = bus.subscribe("home/#")
        bus.publish_many([("home/old/a", b"1"), ("home/new", b"2"), ("home/old/b", b"3")])
        bus.publish("home/old/a", b"kept", retain=True)
        assert len(live.batch(10, WAIT_S)) >= 1
        assert bus.purge("home/old/#") == 2
        assert bus.purge("home/old/#") == 0
        bus.publish("home/old/a", b"after")
        assert bus.topics("home/old/a")[0].messages == 1
        assert bus.retained("#") == []
        assert payloads(sub.batch(10, 0)) == [b"2", b"after"]
    with headwater.open(folder) as bus:
        assert payloads(bus.replay("home/#")) == [b"2", b"after"]
        assert [topic.topic for topic in bus.topics()] == ["home/new", "home/old/a"]
        assert payloads(bus.subscribe("home/#", id="s").batch(10, 0)) == [b"2", b"after"]


def test_purge_of_a_whole_root_frees_its_segments_and_subscribers_go_on(folder: Path) -> None:
    with headwater.open(folder, SMALL) as bus:
        sub = bus.subscribe("home/#", id="s", start="earliest")
        for _ in range(30):
            bus.publish("home/a", bytes(5000))
        (held,) = some(sub, 1)
        assert len(list((folder / "streams" / "1-home").glob("*.log"))) > 1
        assert bus.purge("home/#") == 1
        (left,) = (folder / "streams" / "1-home").glob("*.log")
        assert left.stat().st_size < 5000
        assert bus.publish("home/a", b"after").offset == 31
        assert payloads(sub.batch(10, WAIT_S)) == [b"after"]
        assert payloads(bus.replay("home/#")) == [b"after"]
        assert held.payload == bytes(5000)


def test_purge_forgets_messages_in_flight_and_failed(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/#", id="s", start="earliest", order="none")
    timed.publish_many([("jobs/a", b"1"), ("jobs/a", b"2"), ("jobs/b", b"3")])
    first, second = sub.batch(2, 0)
    first.nack("no", delay_s=10)
    timed.purge("jobs/a")
    second.ack()
    clock.advance(11)
    assert payloads(sub.batch(10, 0)) == [b"3"]
    assert timed.subscriptions()[0].lag == 1


# Request and reply


def test_a_request_is_answered_by_reply(bus: Bus) -> None:
    service = bus.subscribe("rpc/sum", id="service")

    def serve() -> None:
        (message,) = some(service, 1)
        message.reply(b"%d" % sum(json.loads(message.payload)))
        message.ack()

    serving = threading.Thread(target=serve)
    serving.start()
    reply = bus.request("rpc/sum", b"[1,2]", timeout_s=WAIT_S, headers={"trace": "7"})
    serving.join(WAIT_S)
    assert reply.payload == b"3"


def test_a_live_service_answers_many_requests_at_once(bus: Bus) -> None:
    service = bus.subscribe("rpc/echo")

    def work(number: int) -> None:
        if number == 0:
            for message in some(service, 8):
                message.reply(message.payload.upper())
            return
        assert bus.request("rpc/echo", b"r%d" % number, timeout_s=WAIT_S).payload == b"R%d" % number

    in_threads(9, work)


def test_a_request_that_nobody_answers_times_out(bus: Bus) -> None:
    with pytest.raises(TimedOut, match="nobody answered") as late:
        bus.request("rpc/nobody", b"", timeout_s=0.05)
    assert (late.value.code, late.value.retryable) == (504, True)


def test_only_a_request_can_be_answered(bus: Bus) -> None:
    live = bus.subscribe("a/#")
    bus.publish("a/b", b"")
    with pytest.raises(Conflict, match="no request"):
        some(live, 1)[0].reply(b"")


# Who may do what


@pytest.mark.parametrize("where", [None, ":memory:"])
def test_clients_and_rules_are_kept_by_the_bus(where: str | None, folder: Path) -> None:
    with headwater.open(where or folder) as bus:
        assert bus.clients is bus.clients
        assert bus.acl is bus.acl
        made = bus.clients.add("sensor-7")
        bus.acl.allow("sensor-7", "publish", "home/%u/#")
        assert bus.clients.check_secret("sensor-7", made.secret) == "sensor-7"
    if where is None:
        with headwater.open(folder) as bus:
            assert [info.id for info in bus.clients.list()] == [made.id]
            assert bus.acl.may_publish("sensor-7", "home/sensor-7/temp")


def test_beside_the_owner_clients_and_rules_are_seen_and_refreshed(folder: Path) -> None:
    with headwater.open(folder) as bus, headwater.open(folder, read_only=True) as reader:
        assert reader.clients.list() == []
        assert reader.acl.list() == []
        made = bus.clients.add("sensor-7")
        bus.acl.allow("*", "publish", "#")
        reader.refresh()
        assert [info.id for info in reader.clients.list()] == [made.id]
        assert reader.acl.may_publish("sensor-7", "home")
        with pytest.raises(ReadOnly):
            reader.clients.remove("sensor-7")
        with pytest.raises(ReadOnly):
            reader.acl.remove("*", "publish", "#")


def test_a_backup_has_clients_and_rules(bus: Bus, tmp_path: Path) -> None:
    made = bus.clients.add("sensor-7")
    bus.acl.allow("sensor-7", "publish", "#")
    bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored") as restored:
        assert restored.clients.check_secret("sensor-7", made.secret)
        assert restored.acl.list() == bus.acl.list()


def test_an_embedded_bus_loads_nothing_of_it_until_asked(folder: Path) -> None:
    code = "import sys, headwater; headwater.open(':memory:').close(); print('headwater.access' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_closed_bus_has_no_clients_and_no_rules(folder: Path) -> None:
    bus = headwater.open(folder)
    clients = bus.clients
    bus.close()
    with pytest.raises(Closed):
        _ = bus.clients
    with pytest.raises(Closed):
        _ = bus.acl
    with pytest.raises(HeadwaterError):
        clients.add("sensor-7")


# Backup and restore


def test_a_backup_is_the_bus_as_it_was_and_stays_so(folder: Path, tmp_path: Path) -> None:
    with headwater.open(folder, SMALL) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        publish_numbers(bus, 5)
        bus.publish("home/a", b"on", retain=True)
        bus.publish("jobs/x", b"5", producer="p", sequence=1)
        messages = sub.batch(10, 0)
        sub.ack(messages[:2])
        messages[2].reject("no")
        bus.backup(tmp_path / "backup")
        for _ in range(40):
            bus.publish("jobs/x", bytes(5000))
        sub.ack(messages[3:])
        with pytest.raises(Malformed, match="not empty"):
            bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(Malformed, match="not empty"):
        headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored", SMALL) as bus:
        assert payloads(bus.replay("jobs/#")) == numbers(6)
        assert payloads(bus.retained("#")) == [b"on"]
        assert [letter.offset for letter in bus.dead_letters("s")] == [3]
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == numbers(3, 3)
        assert bus.publish("jobs/x", b"5", producer="p", sequence=1).duplicate
        assert bus.publish("jobs/x", b"new").offset == 7
    with headwater.open(folder, SMALL) as bus:
        assert len(list(bus.replay("jobs/#"))) == 46


def test_a_backup_can_be_opened_itself_and_does_not_touch_its_origin(folder: Path, tmp_path: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 3)
        bus.backup(tmp_path / "backup")
        with headwater.open(tmp_path / "backup") as copy:
            copy.publish("jobs/x", b"of the copy")
            publish_numbers(bus, 1, first=3)
            assert payloads(copy.replay("jobs/#")) == [*numbers(3), b"of the copy"]
        assert payloads(bus.replay("jobs/#")) == numbers(4)


def test_a_backup_has_the_seed_of_its_folder_and_brings_back_a_version_that_is_lost(
    folder: Path, tmp_path: Path
) -> None:
    with headwater.open(folder) as bus:
        bus.publish("a/b", b"1")
        bus.backup(tmp_path / "backup")
        bus.publish("a/b", b"2")
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    for copy in ("backup", "restored"):
        assert (tmp_path / copy / "VERSION").read_bytes() == (folder / "VERSION").read_bytes()
    (folder / "VERSION").unlink()
    for read_only in (False, True):
        with pytest.raises(Malformed, match=r"VERSION.*is missing; copy it from a backup"):
            headwater.open(folder, read_only=read_only)
    (folder / "VERSION").write_bytes((tmp_path / "backup" / "VERSION").read_bytes())
    with headwater.open(folder) as bus, headwater.open(folder, read_only=True) as reader:
        for either in (bus, reader):
            assert [message.payload for message in either.replay("#")] == [b"1", b"2"]
            assert not either.events()


def test_segments_of_another_folder_are_not_believed(folder: Path, tmp_path: Path) -> None:
    for path in (folder, tmp_path / "other"):
        with headwater.open(path) as bus:
            bus.publish("a/b", b"here" if path == folder else b"elsewhere")
    (log,) = folder.glob("streams/*-a/*.log")
    log.write_bytes(next((tmp_path / "other").glob("streams/*-a/*.log")).read_bytes())
    with headwater.open(folder) as bus:
        assert [event.kind for event in bus.events()] == ["damage"]
        with pytest.raises(Gap):
            list(bus.replay("#"))


def test_a_backup_is_taken_while_others_publish(folder: Path, tmp_path: Path) -> None:
    acked: list[int] = []
    done = threading.Event()
    with headwater.open(folder, SMALL) as bus:

        def work(number: int) -> None:
            if number == 0:
                try:
                    while len(acked) < 50:
                        done.wait(0.001)
                    before = len(acked)
                    bus.backup(tmp_path / "backup")
                    acked.append(-before)
                finally:
                    done.set()
                return
            while not done.is_set():
                acked.append(bus.publish_many([("jobs/x", bytes(500)), (f"other{number}/x", b"")])[0].offset)

        in_threads(4, work)
    before = -min(acked)
    headwater.restore(tmp_path / "backup", tmp_path / "restored")
    with headwater.open(tmp_path / "restored", SMALL) as bus:
        offsets = [message.offset for message in bus.replay("jobs/#")]
        assert offsets == list(range(1, len(offsets) + 1))
        assert len(offsets) >= before
        assert not [event for event in bus.events() if event.kind == "damage"]


def test_restoring_what_is_no_backup_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        headwater.restore(tmp_path / "missing", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


# In memory, read-only, owned


def test_a_bus_in_memory_does_everything_without_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=1)
        bus.publish_many([("jobs/x", b"1"), ("home/a", b"2")])
        bus.publish("home/a", b"on", retain=True)
        bus.publish("jobs/x", b"3", producer="p", sequence=1)
        bus.publish("jobs/x", b"4", deliver_at=bus.now + timedelta(seconds=5))
        clock.advance(6)
        settle(bus)
        first, *rest = sub.batch(10, 0)
        first.nack("no")
        sub.ack(sub.batch(10, 0))
        assert payloads([first, *rest]) == [b"1", b"3", b"4"]
        assert len(bus.dead_letters("s")) == bus.redrive("s") == 1
        assert payloads(bus.retained("#")) == [b"on"]
        assert len(list(bus.replay("#"))) == 5
        assert bus.purge("home/#") == 1
        with pytest.raises(Malformed, match="memory"):
            bus.backup(tmp_path / "backup")
    with headwater.open(":memory:") as another:
        assert another.topics() == []
    assert os.listdir(tmp_path) == []


def test_a_bus_opened_read_only_beside_its_owner_looks_at_everything(timed: Bus, folder: Path) -> None:
    sub = with_dead(timed, 2)
    timed.publish("jobs/y", b"on", retain=True)
    with headwater.open(folder, read_only=True) as reader:
        assert payloads(reader.replay("jobs/#")) == [*numbers(2), b"on"]
        assert [topic.topic for topic in reader.topics()] == ["jobs/x", "jobs/y"]
        assert payloads(reader.retained("#")) == [b"on"]
        assert [info.id for info in reader.subscriptions()] == ["s"]
        assert reader.subscriptions()[0].lag == 1
        assert len(reader.dead_letters("s")) == 2
        timed.publish("jobs/x", b"later")
        sub.ack(sub.batch(10, 0))
        reader.refresh()
        assert payloads(reader.replay("jobs/#"))[-1] == b"later"
        assert reader.subscriptions()[0].lag == 0


def test_a_bus_opened_read_only_changes_nothing(timed: Bus, folder: Path) -> None:
    with_dead(timed, 1).close()
    with headwater.open(folder, read_only=True) as reader:
        for change in (
            lambda: reader.publish("a/b", b""),
            lambda: reader.publish_many([("a/b", b"")]),
            lambda: reader.publish_soon("a/b", b""),
            lambda: reader.subscribe("a/b"),
            lambda: reader.subscribe("jobs/#", id="s"),
            lambda: reader.unsubscribe("s"),
            lambda: reader.redrive("s"),
            lambda: reader.drop_dead_letters("s"),
            lambda: reader.purge("#"),
            lambda: reader.backup(folder.parent / "backup"),
            lambda: reader.request("a/b", b""),
        ):
            with pytest.raises(ReadOnly) as refused:
                change()
            assert refused.value.code == 503
    assert len(timed.dead_letters("s")) == 1


def test_reading_what_is_no_folder_of_ours_is_not_found_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        headwater.open(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


OWN = """
import sys, headwater
try:
    headwater.open(sys.argv[1]).close()
except headwater.Owned as error:
    print(error)
"""


def test_a_second_owner_is_refused_naming_the_first_one_s_pid(bus: Bus, folder: Path) -> None:
    said = python(OWN, folder).stdout
    assert str(os.getpid()) in said
    assert "read_only=True" in said
    with pytest.raises(Owned, match="this process") as refused:
        headwater.open(folder)
    assert (refused.value.code, refused.value.retryable) == (409, True)
    bus.publish("a/b", b"goes on")
    bus.close()
    assert python(OWN, folder).stdout == ""


def test_a_closed_bus_says_so_and_can_be_closed_again(folder: Path) -> None:
    bus = headwater.open(folder)
    live, sub = bus.subscribe("a/#"), bus.subscribe("a/#", id="s")
    bus.close()
    bus.close()
    for use in (
        lambda: bus.publish("a/b", b""),
        lambda: bus.subscribe("a/b"),
        lambda: bus.replay("a/b"),
        bus.topics,
        bus.subscriptions,
        lambda: live.next(timeout_s=0),
        lambda: sub.next(timeout_s=0),
    ):
        with pytest.raises(Closed) as refused:
            use()
        assert refused.value.code == 503


def test_closing_wakes_everybody_who_waits(folder: Path) -> None:
    bus = headwater.open(folder)
    readers: list[Callable[[], object]] = [
        bus.subscribe("a/#").next,
        bus.subscribe("a/#", id="s").next,
        bus.follow("a/#").next,
    ]
    ended = [threading.Event() for _ in readers]

    def read(number: int) -> None:
        try:
            readers[number]()
        except Closed:
            pass
        ended[number].set()

    for number in range(len(readers)):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    bus.close()
    assert all(event.wait(WAIT_S) for event in ended)


def test_no_thread_outlives_its_bus(folder: Path, clock: ManualClock) -> None:
    before = set(threading.enumerate())
    with headwater.open(folder) as bus:
        bus.publish_soon("a/b", b"").result(WAIT_S)
        bus.subscribe("a/#", id="s", start="earliest").next(timeout_s=1).ack(wait=False)
        assert len(set(threading.enumerate()) - before) <= 3
    assert set(threading.enumerate()) <= before


# Retention


def aged(folder: Path, clock: ManualClock, **rule: Any) -> Bus:
    return headwater.open(folder, Config(segment_bytes=64 * 1024, retention=Retention(**rule)), clock=clock)


def fill(bus: Bus, clock: ManualClock, count: int = 60) -> None:
    for _ in range(count):
        clock.advance(1)
        bus.publish("jobs/x", bytes(5000))


def first_offset(bus: Bus) -> int:
    return next(message.offset for message in bus.replay("jobs/#"))


def test_retention_by_bytes_deletes_the_oldest_segments(folder: Path, clock: ManualClock) -> None:
    with aged(folder, clock, bytes=150_000) as bus:
        fill(bus, clock)
        settle(bus)
        assert 61 - 150_000 // 5000 <= first_offset(bus) <= 61 - 80_000 // 5000
        assert sum(path.stat().st_size for path in folder.rglob("*.log")) < 300_000
        assert bus.publish("jobs/x", b"").offset == 61


def test_retention_by_age_deletes_what_is_older(folder: Path, clock: ManualClock) -> None:
    with aged(folder, clock, age_s=100) as bus:
        fill(bus, clock)
        clock.advance(65)
        settle(bus)
        remaining = first_offset(bus)
        assert 1 < remaining <= 30
        clock.advance(200)
        settle(bus)
        assert list(bus.replay("jobs/#")) == []
        assert bus.publish("jobs/x", b"").offset == 61


def test_retention_is_set_per_root(folder: Path, clock: ManualClock) -> None:
    config = Config(
        segment_bytes=64 * 1024, retention=Retention(age_s=10), retention_roots={"kept": Retention(age_s=10**6)}
    )
    with headwater.open(folder, config, clock=clock) as bus:
        bus.publish_many([("jobs/x", b"1"), ("kept/x", b"2")])
        clock.advance(100)
        settle(bus)
        assert payloads(bus.replay("#")) == [b"2"]


@pytest.mark.parametrize("rule", [{"bytes": 100_000}, {"age_s": 10}], ids=["bytes", "age"])
def test_retention_never_deletes_what_a_durable_subscription_has_not_acked(
    folder: Path, clock: ManualClock, rule: dict[str, Any]
) -> None:
    with aged(folder, clock, **rule) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest")
        bus.subscribe("other/#", id="other", start="earliest")
        fill(bus, clock)
        clock.advance(100)
        settle(bus)
        assert first_offset(bus) == 1
        sub.ack(sub.batch(40, 0))
        sub.close()
        clock.advance(100)
        settle(bus)
        assert 1 < first_offset(bus) <= 41
        assert [event for event in bus.events() if event.kind in ("gap", "retention")] == []
        again = bus.subscribe("jobs/#", id="s")
        assert [message.offset for message in again.batch(100, 0)] == list(range(41, 61))


def test_what_was_purged_before_a_subscription_came_to_it_is_no_gap(folder: Path) -> None:
    with headwater.open(folder) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest")
        bus.publish_many([("jobs/x", b"%d" % number) for number in range(5)])
        assert bus.purge("jobs/#") == 1
        assert bus.publish("jobs/x", b"after").offset == 6
        assert [message.payload for message in sub.batch(10, 0)] == [b"after"]
        assert bus.events() == []


@pytest.mark.parametrize("rule", [{"hard_bytes": 150_000}, {"hard_age_s": 30}], ids=["bytes", "age"])
@pytest.mark.parametrize("on_gap", ["raise", "skip"])
def test_beyond_the_hard_cap_it_deletes_the_unacked_and_says_so_with_an_event_and_a_gap(
    folder: Path, clock: ManualClock, rule: dict[str, Any], on_gap: str
) -> None:
    with aged(folder, clock, **rule) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", on_gap=on_gap)
        fill(bus, clock, 1)
        some(sub, 1)[0].ack()
        fill(bus, clock, 90)
        clock.advance(61)
        settle(bus)
        bus.publish("jobs/x", b"last")
        assert any(event.kind == "retention" and "unacked" in event.text for event in bus.events())
        found: list[Message] = []
        gaps: list[Gap] = []
        while not found or found[-1].payload != b"last":
            try:
                messages = sub.batch(100, 0)
            except Gap as gap:
                gaps.append(gap)
                continue
            sub.ack(messages)
            found += messages
        offsets = [message.offset for message in found]
        lost = [offset for gap in gaps for offset in range(gap.first, gap.last + 1)]
        assert offsets == sorted(set(offsets))
        if on_gap == "raise":
            assert {(gap.code, gap.root) for gap in gaps} == {(410, "jobs")}
            assert sorted(lost + offsets) == list(range(2, 93)), "each message came, or was in a gap that was told"
        else:
            assert gaps == []
        assert any(event.kind == "gap" for event in bus.events())


def test_retention_says_once_what_it_deleted_unacked(folder: Path, clock: ManualClock) -> None:
    config = Config(segment_bytes=64 * 1024, retention=Retention(hard_age_s=60), retention_interval_s=10)
    with headwater.open(folder, config, clock=clock) as bus:
        bus.subscribe("jobs/#", id="s", start="earliest")
        fill(bus, clock, 90)
        for _ in range(8):
            clock.advance(15)
            settle(bus)
        ranges = [
            (int(first), int(last))
            for event in bus.events()
            if event.kind == "retention"
            for first, last in re.findall(r"messages (\d+) to (\d+)", event.text)
        ]
        told = [offset for first, last in ranges for offset in range(first, last + 1)]
        assert told == list(range(1, told[-1] + 1))
        assert all(first <= last for first, last in ranges)


def test_a_gap_is_told_to_a_subscriber_that_was_away_through_several_rounds_and_a_restart(
    folder: Path, clock: ManualClock
) -> None:
    with aged(folder, clock, hard_bytes=100_000) as bus:
        bus.subscribe("jobs/#", id="s", start="earliest").close()
        for _ in range(3):
            fill(bus, clock, 40)
            settle(bus)
            clock.advance(61)
            settle(bus)
            bus.subscriptions()
    with aged(folder, clock, hard_bytes=100_000) as bus:
        sub = bus.subscribe("jobs/#", id="s")
        gone: list[int] = []
        offsets: list[int] = []
        while not offsets:
            try:
                offsets = [message.offset for message in sub.batch(100, 0)]
            except Gap as gap:
                gone += range(gap.first, gap.last + 1)
        assert gone + offsets == list(range(1, 121))


def test_a_replay_across_deleted_messages_meets_a_gap_and_goes_on(folder: Path, clock: ManualClock) -> None:
    with aged(folder, clock, hard_bytes=100_000) as bus:
        fill(bus, clock)
        settle(bus)
        reading = bus.replay("jobs/#", after=5)
        with pytest.raises(Gap) as gap:
            next(reading)
        assert (gap.value.first, gap.value.last) == (6, first_offset(bus) - 1)
        assert next(reading).offset == gap.value.last + 1


# Compression


def test_zstd_batches_are_smaller_and_read_as_ever(folder: Path, tmp_path: Path) -> None:
    payload = b"so much air " * 100
    sizes = {}
    for compression in ("none", "zstd"):
        place = tmp_path / compression
        with headwater.open(place, Config(compression=compression, preallocate_bytes=0)) as bus:
            sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=200)
            bus.publish_many([("jobs/x", payload)] * 100)
            bus.publish("jobs/x", b"small")
            assert payloads(sub.batch(200, 0) + sub.batch(200, 0)) == [payload] * 100 + [b"small"]
        sizes[compression] = sum(path.stat().st_size for path in place.rglob("*.log"))
    assert sizes["zstd"] < sizes["none"] / 10
    with headwater.open(tmp_path / "zstd") as bus:  # whatever is set now
        assert payloads(bus.replay("jobs/#")) == [payload] * 100 + [b"small"]


# Many subscriptions


class UnsyncedState(RocksState):
    """Rows on disk that nobody waits for: 10,000 syncs are not what is measured here."""

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        self.write(rows)


def test_ten_thousand_durable_subscriptions_open_in_seconds_with_no_thread_each_and_idle(folder: Path) -> None:
    count = 10_000
    headwater.open(folder).close()
    with Bus(folder, state=UnsyncedState(f"{folder}/state")) as bus:
        for number in range(count):
            bus.subscribe(f"home/{number}", id=f"s{number}").close()
    started = time.process_time()  # of this process alone, however busy the machine is
    with headwater.open(folder) as bus:
        threads = threading.active_count()
        subs = [bus.subscribe(f"home/{number}", id=f"s{number}") for number in range(count)]
        assert time.process_time() - started < 20
        assert threading.active_count() <= threads + 1
        cpu = time.process_time()
        threading.Event().wait(0.3)
        assert time.process_time() - cpu < 0.2
        bus.publish("home/77", b"1")
        bus.publish("home/9999", b"2")
        assert payloads([*some(subs[77], 1), *some(subs[9999], 1)]) == [b"1", b"2"]
        assert subs[78].next(timeout_s=0) is None


# Bad input: a typed error, and nothing changes

LONG = ["x" * 65 + "/a", "a/" + "x" * 1023, "a" + "/b" * 32]
NO_NAMES: list[Any] = ["", "a\0b", "\ud800", *LONG, 5, None, b"a", ["a"]]
BAD_TOPICS: list[Any] = [*NO_NAMES, "a/+", "a/#", "#", "+", "a+b"]
BAD_FILTERS: list[Any] = [*NO_NAMES, "a/#/b", "a/b#", "a/b+", "+b", "a/*/b", "*", "$share/g/a"]


def nothing_changed(bus: Bus) -> bool:
    return bus.topics() == [] and bus.subscriptions() == [] and bus.publish("check/x", b"").offset >= 1


@pytest.mark.parametrize("topic", BAD_TOPICS, ids=lambda bad: repr(bad)[:20])
def test_a_malformed_topic_is_422(bus: Bus, topic: Any) -> None:
    for publish in (
        lambda: bus.publish(topic, b""),
        lambda: bus.publish_soon(topic, b""),
        lambda: bus.publish_many([("a/b", b""), (topic, b"")]),
        lambda: bus.publish_many([Outgoing("a/b", b""), Outgoing(topic, b"")]),
        lambda: bus.publish(topic, b"", deliver_at=bus.now),
        lambda: bus.request(topic, b"", timeout_s=1),
    ):
        with pytest.raises(Malformed) as refused:
            publish()
        assert refused.value.code == 422
    assert nothing_changed(bus)


@pytest.mark.parametrize("filter", BAD_FILTERS, ids=lambda bad: repr(bad)[:20])
def test_a_malformed_filter_is_422(bus: Bus, filter: Any) -> None:
    for use in (
        lambda: bus.subscribe(filter),
        lambda: bus.subscribe(filter, id="s"),
        lambda: bus.replay(filter),
        lambda: bus.follow(filter),
        lambda: bus.topics(filter),
        lambda: bus.retained(filter),
        lambda: bus.purge(filter),
    ):
        with pytest.raises(Malformed):
            use()
    assert nothing_changed(bus)


def test_an_oversized_message_is_413(folder: Path) -> None:
    config = Config(message_bytes_max=100, key_bytes_max=10, header_bytes_max=50, batch_bytes_max=2000)
    with headwater.open(folder, config) as bus:
        for publish in (
            lambda: bus.publish("a/b", bytes(101)),
            lambda: bus.publish_soon("a/b", bytes(101)),
            lambda: bus.publish_many([("a/b", b""), ("a/b", bytes(101))]),
            lambda: bus.publish_many([Outgoing("a/b", bytes(101))]),
            lambda: bus.publish("a/b", bytes(101), deliver_at=bus.now),
            lambda: bus.publish("a/b", b"", key=bytes(11)),
            lambda: bus.publish("a/b", b"", headers={"x": "y" * 50}),
            lambda: bus.publish_many([("a/b", bytes(100))] * 30),
        ):
            with pytest.raises(TooLarge) as refused:
                publish()
            assert refused.value.code == 413
        assert nothing_changed(bus)
        bus.publish("a/b", bytes(100), key=bytes(10), headers={"x": "y" * 49})


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": "text"},
        {"payload": None},
        {"payload": 5},
        {"key": "text"},
        {"key": 5},
        {"headers": {"a": 5}},
        {"headers": {5: "a"}},
        {"headers": [("a",)]},
        {"headers": [("a", "b", "c")]},
        {"headers": 5},
        {"headers": {"a": "\ud800"}},
        {"headers": {str(number): "" for number in range(65)}},
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"ttl_s": "5"},
        {"ttl_s": True},
        {"retain": "yes"},
        {"retain": 300},
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": "1"},
        {"producer": "p", "sequence": 1.5},
        {"producer": "p", "sequence": 1 << 63},
        {"producer": "", "sequence": 1},
        {"producer": "$p", "sequence": 1},
        {"producer": 5, "sequence": 1},
        {"producer": "\ud800", "sequence": 1},
        {"producer": "p" * 257, "sequence": 1},
        {"deliver_at": 5},
        {"deliver_at": "tomorrow"},
        {"deliver_at": datetime(2200, 1, 1, tzinfo=UTC)},
        {"deliver_at": datetime(2024, 1, 1, tzinfo=UTC), "producer": "p", "sequence": 1},
    ],
    ids=lambda bad: ",".join(f"{name}={value!r}"[:30] for name, value in bad.items()),
)
def test_a_malformed_publish_is_422(bus: Bus, bad: dict[str, Any]) -> None:
    given = {"payload": b"", **bad}
    for publish in (bus.publish, bus.publish_soon):
        with pytest.raises(Malformed):
            publish("a/b", **given)
    if not {"producer", "sequence", "deliver_at"} & bad.keys():
        with pytest.raises(Malformed):
            bus.publish_many([Outgoing("a/b", **given)])
    assert nothing_changed(bus)


def test_bad_input_of_one_caller_does_not_fail_the_others_of_its_group(bus: Bus) -> None:
    with Held(bus):
        good = [bus.publish_soon("a/b", b"") for _ in range(2)]
        with pytest.raises(Malformed):
            bus.publish_soon("a/b", b"", retain="yes")  # type: ignore[arg-type]
        good.append(bus.publish_soon("a/b", b""))
    assert [future.result(WAIT_S).offset for future in good] == [1, 2, 3]


@pytest.mark.parametrize(
    "bad",
    [
        {"id": ""},
        {"id": "x" * 1281},
        {"id": 5},
        {"id": b"s"},
        {"id": "\ud800"},
        {"start": "first"},
        {"start": -1},
        {"start": True},
        {"start": 1.5},
        {"start": None},
        {"order": "random"},
        {"order": ["strict"]},
        {"max_in_flight": 0},
        {"max_in_flight": 1_000_000},
        {"max_in_flight": 2.5},
        {"max_in_flight": True},
        {"max_in_flight": "5"},
        {"ack_timeout_s": -1},
        {"ack_timeout_s": float("nan")},
        {"ack_timeout_s": True},
        {"ack_timeout_s": "5"},
        {"max_attempts": -1},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"expire_after_s": 0},
        {"expire_after_s": float("inf")},
        {"expire_after_s": True},
        {"on_gap": "ignore"},
        {"retry_delay_s": -1},
        {"retry_delay_s": 10, "retry_delay_s_max": 5},
        {"retry_delay_s": True},
    ],
    ids=lambda bad: ",".join(f"{name}={value!r}"[:30] for name, value in bad.items()),
)
def test_a_malformed_subscription_is_422_and_the_folder_opens_again(folder: Path, bad: dict[str, Any]) -> None:
    with headwater.open(folder) as bus:
        with pytest.raises(Malformed):
            bus.subscribe("a/#", **{"id": "s", **bad})
        assert nothing_changed(bus)
        bus.subscribe("a/#", id="good").close()
        if "id" not in bad and "start" not in bad:
            with pytest.raises(Malformed):
                bus.subscribe("a/#", **{"id": "good", **bad})
    with headwater.open(folder) as bus:
        assert [info.id for info in bus.subscriptions()] == ["good"]


def test_a_start_offset_needs_a_filter_within_one_root(bus: Bus) -> None:
    for wide in ("#", "+/x"):
        with pytest.raises(Malformed, match="several roots"):
            bus.subscribe(wide, id="s", start=5)
    sub = bus.subscribe("#", id="s")
    with pytest.raises(Malformed, match="several roots"):
        sub.seek(5)
    with pytest.raises(Malformed):
        sub.seek("first")


@pytest.mark.parametrize(
    "bad",
    [
        {"filter": "#", "after": 5},
        {"filter": "+/x", "after": 5},
        {"after": -1},
        {"after": True},
        {"after": "5"},
        {"after": 1.5},
        {"after": {"a": -1}},
        {"after": {"a": "x"}},
        {"after": {"a": 1.5}},
        {"after": {5: 1}},
        {"since": 5},
        {"since": "today"},
        {"after": 5, "since": datetime(2024, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_a_malformed_place_to_read_from_is_422(bus: Bus, bad: dict[str, Any]) -> None:
    bus.publish("a/b", b"")
    for read in (bus.replay, bus.follow):
        with pytest.raises(Malformed):
            read(**{"filter": "a/#", **bad}).next(timeout_s=0)


def test_an_unknown_subscription_is_404(bus: Bus) -> None:
    for use in (
        lambda: bus.unsubscribe("nobody"),
        lambda: bus.dead_letters("nobody"),
        lambda: bus.dead_letter("nobody", 1),
        lambda: bus.redrive("nobody"),
        lambda: bus.drop_dead_letters("nobody"),
        lambda: bus.states("nobody"),
    ):
        with pytest.raises(NotFound, match="nobody") as refused:
            use()
        assert refused.value.code == 404
    assert nothing_changed(bus)


def test_a_malformed_answer_to_a_message_is_422_and_it_stays_in_flight(bus: Bus) -> None:
    bus.publish("a/b", b"")
    sub = bus.subscribe("a/#", id="s", start="earliest")
    (message,) = some(sub, 1)
    for answer in (
        lambda: message.nack("x", delay_s=-1),
        lambda: message.nack("x", delay_s=float("nan")),
        lambda: message.nack("x", delay_s="5"),  # type: ignore[arg-type]
        lambda: message.nack(5),  # type: ignore[arg-type]
        lambda: message.nack(None),  # type: ignore[arg-type]
        lambda: message.reject(5),  # type: ignore[arg-type]
        lambda: message.extend(0),
        lambda: message.extend(-1),
        lambda: message.extend(float("inf")),
        lambda: message.extend("5"),  # type: ignore[arg-type]
        lambda: sub.batch(0),
        lambda: sub.batch(-1),
    ):
        with pytest.raises(Malformed):
            answer()
        assert bus.states("s") == [("a", 1, "in_flight", 0, ())]
    message.ack()


def test_a_malformed_live_subscription_is_422(bus: Bus) -> None:
    with pytest.raises(Malformed, match="drop_oldest"):
        bus.subscribe("a/#", when_full="explode")  # type: ignore[arg-type]
    live = bus.subscribe("a/#")
    for size in (0, -1):
        with pytest.raises(Malformed):
            live.batch(size, timeout_s=0)


def test_one_subscription_more_than_allowed_is_429(folder: Path) -> None:
    with headwater.open(folder, Config(subscriptions_max=2)) as bus:
        for name in "ab":
            bus.subscribe("x/#", id=name).close()
        with pytest.raises(QuotaExceeded, match="subscriptions_max"):
            bus.subscribe("x/#", id="c")
        bus.subscribe("x/#", id="a").close()
        bus.unsubscribe("a")
        bus.subscribe("x/#", id="c").close()
        assert [info.id for info in bus.subscriptions()] == ["b", "c"]


def test_a_folder_of_a_newer_format_is_refused_and_left_as_it_is(folder: Path) -> None:
    with headwater.open(folder) as bus:
        bus.publish("a/b", b"")
    (folder / "VERSION").write_text('{"format": 99}')
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for read_only in (False, True):
        with pytest.raises(NewerFormat, match="99"):
            headwater.open(folder, read_only=read_only)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(Malformed, match=r"thesis\.doc"):
        headwater.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.doc"]


def test_a_disk_that_fills_up_is_503_consumers_go_on_and_publishing_resumes_when_there_is_room(folder: Path) -> None:
    files = FaultyFiles(capacity_bytes=4 << 20)
    config = Config(disk_free_bytes_min=1 << 20, preallocate_bytes=0)
    with Bus(folder, config, files=files, state=MemoryState()) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        sent = 0
        with pytest.raises(DiskFull) as full:
            while True:
                bus.publish("jobs/x", bytes(100_000))
                sent += 1
        assert (full.value.code, full.value.retryable) == (503, True)
        with pytest.raises(DiskFull):
            bus.publish_many([("jobs/x", b""), ("other/x", b"")])
        messages = sub.batch(100, 0)
        assert len(messages) == sent > 5
        sub.ack(messages)
        files.capacity_bytes = 100 << 20
        assert bus.publish("jobs/x", b"again").offset == sent + 1
        assert payloads(sub.batch(10, WAIT_S)) == [b"again"]


def test_a_failed_sync_is_never_acked_and_makes_the_stream_read_only_until_it_is_opened_again(folder: Path) -> None:
    files, state = FaultyFiles(), MemoryState()
    bus = Bus(folder, files=files, state=state)
    live = bus.subscribe("jobs/#")
    bus.publish("jobs/x", b"1")
    bus.publish("other/x", b"1")
    files.fail_sync_at = files.syncs + 1
    with pytest.raises(Failed) as failed:
        bus.publish("jobs/x", b"never acked")
    assert failed.value.code == 500
    with pytest.raises(ReadOnly, match="open it again") as refused:
        bus.publish("jobs/x", b"refused")
    assert refused.value.code == 503
    assert bus.publish("other/x", b"2").offset == 2
    assert payloads(live.batch(10, 0)) == [b"1"]
    assert payloads(bus.replay("jobs/#")) == [b"1"]
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    some(sub, 1)[0].ack()


def test_an_error_says_its_name_its_code_and_what_to_do(bus: Bus) -> None:
    with pytest.raises(HeadwaterError) as error:
        bus.publish("home/+", b"")
    assert re.match(r"Malformed\(422\): topic .*wildcards", str(error.value))


# The clock


def test_a_clock_set_a_day_ahead_or_back_expires_deletes_and_releases_nothing(folder: Path, clock: ManualClock) -> None:
    with aged(folder, clock, age_s=3600) as bus:
        bus.publish("jobs/x", b"ttl", ttl_s=600)
        bus.publish("jobs/x", b"on", retain=True, ttl_s=600)
        bus.publish("jobs/x", b"delayed", deliver_at=bus.now + timedelta(hours=1))
        sub = bus.subscribe("jobs/#", id="s", start="earliest", expire_after_s=3600)
        some(sub, 1)[0].nack("no", delay_s=60)
        for jump_s in (86_400, -86_400, -86_400, 86_400):
            clock.jump(jump_s)
            clock.advance(1)
            settle(bus)
            assert sub.next(timeout_s=0) is None
            assert payloads(bus.replay("jobs/#")) == [b"ttl", b"on"]
            assert payloads(bus.retained("#")) == [b"on"]
        assert any(event.kind == "clock" for event in bus.events())
        clock.advance(60)
        assert some(sub, 1)[0].attempt == 2


def test_what_a_step_of_the_clock_makes_due_is_delivered_once_the_step_counts_and_events_tell(
    timed: Bus, clock: ManualClock
) -> None:
    now = timed.now
    timed.publish("jobs/x", b"delayed", deliver_at=now + timedelta(minutes=40))
    clock.jump(3600)
    for _ in range(14):
        clock.advance(60)
        settle(timed)
    assert payloads(timed.replay("jobs/#")) == []
    assert timed.now == now + timedelta(minutes=14)
    for _ in range(3):
        clock.advance(60)
        settle(timed)
    assert payloads(timed.replay("jobs/#")) == [b"delayed"]
    assert timed.now == now + timedelta(minutes=17, hours=1)
    noticed, counted = [event.text for event in timed.events() if event.kind == "clock"]
    assert noticed.startswith("the machine's clock was set by +3600 s: time goes on as before (deliver_at, ttl_s, ")
    assert counted.startswith("the machine's clock was set by +3600 s more than 900 s ago, and that counts now")


def test_a_reader_opens_a_folder_after_a_backup_and_a_purge(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/a", b"1", retain=True)
        bus.publish("home/b", b"2")
        with bus.subscribe("#", id="s", start="earliest") as consumer:
            consumer.ack(consumer.batch(2, 1))
        bus.backup(tmp_path / "copy")
        bus.purge("home/a")
    with headwater.open(tmp_path / "data", read_only=True) as reader:
        assert [info.topic for info in reader.topics()] == ["home/b"]


def test_a_repeat_of_what_is_stored_is_answered_though_a_later_sequence_comes_in_the_same_group() -> None:
    with headwater.open(":memory:") as bus:
        first = bus.publish("jobs/x", b"1", producer="p", sequence=1)
        desk, commit = bus.inside.desk, bus.inside.roots.commit
        later = desk.one("jobs/x", b"3", False, None, (), None, "p", 3, None)
        again = desk.one("jobs/x", b"1", False, None, (), None, "p", 1, None)
        commit.submit_all([later, again])
        later.wait()
        again.wait()
        assert (again.runs[0][1], again.runs[0][3]) == (first.offset, True)
        assert [message.payload for message in bus.replay("jobs/#")] == [b"1", b"3"]
