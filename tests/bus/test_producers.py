"""Idempotent producers: what is sent again is stored once."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, Held, in_threads, payloads
from headwater import Config, Conflict, ManualClock, QuotaExceeded
from headwater.bus import Bus


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
        repeats = {producer: bus.publish("x/y", b"", producer=producer, sequence=1).duplicate for producer in "bcda"}
    assert repeats == {"b": True, "c": True, "d": True, "a": False}


def test_a_repeat_of_what_is_stored_is_answered_though_a_later_sequence_comes_in_the_same_group() -> None:
    with headwater.open(":memory:") as bus:
        first = bus.publish("jobs/x", b"1", producer="p", sequence=1)
        checks, commit = bus.core.checks, bus.core.roots.commit
        later = checks.one("jobs/x", b"3", False, None, (), None, "p", 3, None)
        again = checks.one("jobs/x", b"1", False, None, (), None, "p", 1, None)
        commit.submit_all([later, again])
        later.wait()
        again.wait()
        assert (again.runs[0][1], again.runs[0][3]) == (first.offset, True)
        assert [message.payload for message in bus.replay("jobs/#")] == [b"1", b"3"]
