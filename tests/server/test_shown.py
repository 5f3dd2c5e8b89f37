"""What nobody waits for: live subscriptions have it at once, everybody else once it is on disk, all in one order."""

from __future__ import annotations

import errno
import gc
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.config import Config
from headwater.server.connection import Connection
from headwater.store.log import Write
from headwater.store.stream import DiskStream
from headwater.wire import batches, requests
from headwater.wire.frame import Kind
from server.harness import PATIENCE_S, Peer, Running, nothing_is_committed


def say(peer: Peer, topic: str, payload: bytes, **options: Any) -> None:
    peer.publish_soon(topic, payload, flags=batches.QUIET, **options)


def test_a_live_subscription_has_it_before_it_is_on_disk_and_a_durable_one_and_follow_only_after():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "home/#")
        bob.subscribe(2, "home/#", kind="named", id="s")
        bob.subscribe(3, "home/#", kind="follow", after=1)
        with nothing_is_committed(running.bus):
            say(ann, "home/x", b"1")
            say(ann, "home/x", b"2")
            assert [(one.offset, one.payload) for one in bob.take(1, 2)] == [(2, b"1"), (3, b"2")]
            bob.quiet()
        assert [(one.offset, one.payload) for one in bob.take(2, 2)] == [(2, b"1"), (3, b"2")]
        assert [(one.offset, one.payload) for one in bob.take(3, 2)] == [(2, b"1"), (3, b"2")]
        bob.quiet()
        assert [(one.offset, one.payload) for one in running.bus.replay("home/#", after=1)] == [(2, b"1"), (3, b"2")]


def test_it_does_not_overtake_what_somebody_waits_for():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "home/#")
        with nothing_is_committed(running.bus):
            say(ann, "home/x", b"1")
            ann.publish_soon("home/x", b"2")
            say(ann, "home/x", b"3")
            ann.ping()
            assert bob.payloads(1, 1) == [b"1"]
            bob.quiet()
        got = bob.take(1, 2)
        assert [(one.offset, one.payload) for one in got] == [(3, b"2"), (4, b"3")]
        assert [one.payload for one in running.bus.replay("home/#")] == [b"0", b"1", b"2", b"3"]


def test_it_does_not_overtake_what_the_server_itself_publishes():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "home/#")
        with nothing_is_committed(running.bus):
            waiting = running.bus.publish_soon("home/x", b"1")
            say(ann, "home/x", b"2")
            ann.ping()
            bob.quiet()
        waiting.result(PATIENCE_S)
        assert [(one.offset, one.payload) for one in bob.take(1, 2)] == [(2, b"1"), (3, b"2")]


def test_another_root_does_not_hold_it_up():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        ann.publish("yard/x", b"0")
        bob.subscribe(1, "#")
        with nothing_is_committed(running.bus):
            running.bus.publish_soon("yard/x", b"1")
            say(ann, "home/x", b"2")
            assert bob.payloads(1, 1) == [b"2"]
        assert bob.payloads(1, 1) == [b"1"]


@pytest.mark.parametrize("what", ["a new topic", "a new root", "retained", "of a producer"])
def test_what_may_be_refused_or_changes_more_than_the_stream_waits_for_its_commit(what: str):
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "#")
        with nothing_is_committed(running.bus):
            match what:
                case "a new topic":
                    say(ann, "home/y", b"1")
                case "a new root":
                    say(ann, "yard/x", b"1")
                case "retained":
                    say(ann, "home/x", b"1", retain=[True])
                case _:
                    say(ann, "home/x", b"1", producer="p", sequence=1)
            ann.ping()
            bob.quiet()
        assert bob.payloads(1, 1) == [b"1"]


def test_each_has_the_offset_that_it_is_stored_under_however_they_are_mixed(tmp_path: Path):
    with Running(tmp_path) as running:
        ann, bob = running.peer(), running.peer()
        topics = [f"home/{number}" for number in range(10)]
        ann.publish(topics, [b"first"] * 10)
        bob.subscribe(1, "home/#")
        last = 0
        for number in range(600):
            payload = b"%d" % number
            if number % 7 == 0:
                last = ann.publish_soon(topics[number % 10], payload)
            elif number % 5 == 0:
                ann.publish_soon(topics, [payload] * 10, flags=batches.QUIET)
            else:
                say(ann, topics[number % 10], payload)
        ann.published(last)
        count = sum(10 if number % 7 and number % 5 == 0 else 1 for number in range(600))
        got = bob.take(1, count)
        running.until(lambda: running.bus.ends()["home"] == 10 + count)
    assert [one.offset for one in got] == list(range(11, 11 + count))
    with headwater.open(tmp_path) as bus:
        stored = [(one.offset, one.topic, one.payload) for one in bus.replay("home/#", after=10)]
    assert stored == [(one.offset, one.topic, one.payload) for one in got]


def test_a_live_subscription_with_a_narrow_filter_gets_its_messages_of_a_batch():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish(["home/x", "home/y", "home/z"], [b"0"] * 3)
        bob.subscribe(1, "home/y")
        with nothing_is_committed(running.bus):
            ann.publish_soon(["home/x", "home/y", "home/z"], [b"x", b"y", b"z"], flags=batches.QUIET)
            assert [(one.offset, one.payload) for one in bob.take(1, 1)] == [(5, b"y")]


def test_a_subscription_without_credit_gets_it_once_there_is_some_and_in_order():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "home/#", credit=1)
        for number in range(1, 6):
            say(ann, "home/x", b"%d" % number)
        assert bob.payloads(1, 1) == [b"1"]
        bob.quiet()
        bob.credit(1)
        assert bob.payloads(1, 4) == [b"2", b"3", b"4", b"5"]


def test_a_burst_of_them_is_not_dropped_for_a_reader_that_reads():
    config = Config(live_messages_max=100)
    with Running(config=config) as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "home/#")
        with nothing_is_committed(running.bus):
            for number in range(60):
                ann.publish_soon(["home/x"] * 10, [b"%d" % number] * 10, flags=batches.QUIET)
            assert len(bob.take(1, 600)) == 600
        assert not [frame for frame in bob.inbox if frame.kind == Kind.NOTICE]


def test_publishes_of_one_message_keep_the_time_at_which_they_were_sent(tmp_path: Path):
    with Running(tmp_path) as running:
        ann = running.peer()
        ann.publish("home/x", b"0")
        with nothing_is_committed(running.bus):
            for time_us in (0, 1, 2_000_000):
                ann.publish_soon("home/x", b"1", time_us=time_us)
            waiting = running.bus.publish_soon("home/x", b"embedded")
            last = ann.publish_soon("home/x", b"1", time_us=3)
        waiting.result(PATIENCE_S)
        ann.published(last)
        found: dict[bytes, list[int]] = {one.payload: [] for one in running.bus.replay("home/#", after=1)}
        for one in running.bus.replay("home/#", after=1):
            found[one.payload].append(one.time_us)
    assert found[b"1"] == [0, 1, 2_000_000, 3]
    assert found[b"embedded"][0] > 2_000_000


def test_a_request_finds_what_its_client_published_before_it():
    with Running() as running:
        ann = running.peer()
        for number in range(50):
            ann.publish_soon("home/x", b"%d" % number)
            ann.subscribe(number + 1, "home/#", kind="named", id=f"s{number}")
            ann.ask(requests.Leave(number=number + 1))
        ann.quiet()


@pytest.mark.parametrize("batch_first", [False, True])
def test_what_was_shown_and_cannot_be_stored_holds_nobody_up(batch_first: bool):
    with Running(publishes_in_flight_max=1, publish_bytes_in_flight_max=1000) as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        ann.publish("yard/x", b"0")
        bob.subscribe(1, "#")
        with nothing_is_committed(running.bus):
            for is_batch in (batch_first, not batch_first):
                if is_batch:
                    ann.publish_soon(["home/x"] * 3, [b"b" * 400] * 3, flags=batches.QUIET)
                else:
                    say(ann, "home/x", b"s" * 400)
            assert bob.payloads(1, 1)
            home = running.bus.core.roots.get("home")
            assert home is not None
            home.stream.fail("it broke")
        running.until(lambda: running.server.entry.is_empty)
        assert [one.payload for one in running.bus.replay("home/#")] == [b"0"]
        assert ann.publish("yard/x", b"1") == 2, "what failed is in flight no more"


def test_what_was_shown_stays_in_memory_no_longer_than_it_takes_to_store_it(tmp_path: Path):
    with Running(tmp_path, Config(tail_bytes=1)) as running:
        ann = running.peer()
        ann.publish("home/x", b"0")
        tracemalloc.start()
        try:
            for _ in range(3):
                ann.publish_soon(["home/x"] * 2, [b"m" * 500_000] * 2, flags=batches.QUIET)
            running.until(lambda: running.bus.ends()["home"] == 7 and running.server.entry.is_empty)
            running.until(lambda: tracemalloc.get_traced_memory()[0] < 500_000)
        finally:
            tracemalloc.stop()


def test_what_is_shown_after_a_write_that_failed_has_the_offset_that_it_is_stored_at(
    monkeypatch: pytest.MonkeyPatch,
):
    real, came, go_on = DiskStream.write, threading.Semaphore(0), threading.Semaphore(0)
    fails = iter([True, False])

    def held(stream: DiskStream, writes: Sequence[Write], buffers: Sequence[bytes]) -> None:
        came.release()
        assert go_on.acquire(timeout=PATIENCE_S)
        if next(fails, False):
            raise OSError(errno.EIO, "it fails once")
        real(stream, writes, buffers)

    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.subscribe(1, "home/#")
        monkeypatch.setattr(DiskStream, "write", held)
        say(ann, "home/x", b"lost")
        assert came.acquire(timeout=PATIENCE_S)
        say(ann, "home/x", b"moved")
        assert [(one.offset, one.payload) for one in bob.take(1, 2)] == [(2, b"lost"), (3, b"moved")]
        go_on.release()
        assert came.acquire(timeout=PATIENCE_S)
        say(ann, "home/x", b"right")
        ann.publish_soon(["home/x"] * 2, [b"too"] * 2, flags=batches.QUIET)
        ann.ping()
        bob.quiet()
        go_on.release(100)
        got = [(one.offset, one.payload) for one in bob.take(1, 3)]
        say(ann, "home/x", b"later")
        got += [(one.offset, one.payload) for one in bob.take(1, 1)]
        running.until(lambda: running.bus.ends()["home"] == 6)
        stored = [(one.offset, one.payload) for one in running.bus.replay("home/#")]
    assert stored[:2] == [(1, b"0"), (2, b"moved")]
    assert stored[2:] == got == [(3, b"right"), (4, b"too"), (5, b"too"), (6, b"later")]


def test_who_has_left_is_not_remembered_for_what_was_shown():
    with Running() as running:
        ann, bob = running.peer(), running.peer()
        ann.publish("home/x", b"0")
        bob.publish_soon(["home/x"] * 2, [b"1"] * 2, flags=batches.QUIET)
        running.until(lambda: running.bus.ends()["home"] == 3 and running.server.entry.is_empty)
        bob.close()

        def is_forgotten() -> bool:
            gc.collect()
            lines = [
                one
                for one in gc.get_objects()
                if isinstance(one, Connection) and one.listener is running.server.listener
            ]
            return lines == [running.session_of(ann).connection]

        running.until(is_forgotten)
