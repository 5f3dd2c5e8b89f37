"""Publishing: what a receipt promises, together and one by one, again and later."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from headwater import (
    Bus,
    Closed,
    Config,
    Conflict,
    Malformed,
    ManualClock,
    Outgoing,
    QuotaExceeded,
    ReadOnly,
    TooLarge,
)


def payloads(bus: Bus, filter: str = "#") -> list[bytes]:
    return [message.payload for message in bus.replay(filter)]


def test_offsets_count_from_one_within_each_root(bus: Bus) -> None:
    assert [bus.publish(topic, b"x").offset for topic in ("a/1", "a/2", "b/1", "a/1")] == [1, 2, 1, 3]


def test_what_was_published_is_there_after_a_restart(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/kitchen", b"21.5", key=b"k", headers=[("u", "C"), ("u", "F")], ttl_s=3600)
    with headwater.open(tmp_path / "data") as bus:
        (message,) = bus.replay("home/#")
    assert (message.topic, message.offset, message.payload, message.key) == ("home/kitchen", 1, b"21.5", b"k")
    assert message.headers == (("u", "C"), ("u", "F"))
    assert dict(message.headers) == {"u": "F"}


def test_a_receipt_returns_once_another_process_can_read_the_message(bus: Bus, tmp_path: Path) -> None:
    code = """
import sys, headwater
with headwater.open(sys.argv[1], read_only=True) as bus:
    print([message.payload for message in bus.replay("a/#")])
    try:
        bus.publish("a/b", b"2")
    except headwater.ReadOnly as error:
        print(error.code)
"""
    bus.publish("a/b", b"1")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["[b'1']", "503"]


def test_publish_many_gives_receipts_in_the_order_of_the_call(bus: Bus) -> None:
    receipts = bus.publish_many([("a/x", b"1"), ("b/x", b"2"), ("a/y", b"3"), Outgoing("b/y", b"4", retain=True)])
    assert [(receipt.topic, receipt.offset) for receipt in receipts] == [("a/x", 1), ("b/x", 1), ("a/y", 2), ("b/y", 2)]
    assert receipts[-1].topic == "b/y"
    assert len(receipts[1:3]) == 2
    assert [message.topic for message in bus.retained("#")] == ["b/y"]


def test_publish_many_is_all_or_nothing(bus: Bus) -> None:
    for wrong in (("a/+", b"x"), ("a/x", "text"), ("a/x",), 5, Outgoing("a/x", b"x", ttl_s=-1), ("a/x", None)):
        with pytest.raises(Malformed):
            bus.publish_many([("a/x", b"1"), wrong])  # type: ignore[list-item]  # that is what is tested
    assert bus.publish_many([]) is not None
    assert payloads(bus) == []


def test_publish_soon_gives_a_future_of_the_receipt(bus: Bus) -> None:
    futures = [bus.publish_soon("a/b", b"%d" % n) for n in range(100)]
    assert [future.result(10).offset for future in futures] == list(range(1, 101))
    assert bus.publish_many_soon([("a/b", b"x")] * 2).result(10)[1].offset == 102
    assert payloads(bus)[:100] == [b"%d" % n for n in range(100)]


def test_many_threads_at_once_get_dense_offsets(bus: Bus) -> None:
    offsets: list[int] = []

    def work(number: int) -> None:
        offsets.extend([bus.publish(f"a/{number}", b"%d" % n).offset for n in range(50)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(offsets) == list(range(1, 801))
    for number in range(16):
        assert payloads(bus, f"a/{number}") == [b"%d" % n for n in range(50)]


def test_a_repeat_of_an_idempotent_producer_returns_the_first_receipt(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data") as bus:
        first = bus.publish("jobs/x", b"1", producer="importer", sequence=7)
        again = bus.publish("jobs/x", b"1", producer="importer", sequence=7)
        many = bus.publish_many([("jobs/x", b"2"), ("more/x", b"3")], producer="importer", sequence=8)
    with headwater.open(tmp_path / "data") as bus:
        later = bus.publish("jobs/x", b"1", producer="importer", sequence=7)
        many_again = bus.publish_many([("jobs/x", b"2"), ("more/x", b"3")], producer="importer", sequence=8)
        assert payloads(bus, "jobs/#") == [b"1", b"2"]
        assert payloads(bus, "more/#") == [b"3"]
    assert (again.offset, again.duplicate, later.offset, later.duplicate) == (first.offset, True, first.offset, True)
    assert [receipt.offset for receipt in many_again] == [receipt.offset for receipt in many]


def test_a_repeat_below_the_window_is_a_conflict(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(producer_window=2)) as bus:
        for sequence in (1, 2, 3):
            bus.publish("a/b", b"%d" % sequence, producer="p", sequence=sequence)
        assert bus.publish("a/b", b"2", producer="p", sequence=2).duplicate
        with pytest.raises(Conflict, match="count on from 4"):
            bus.publish("a/b", b"1", producer="p", sequence=1)
        assert payloads(bus) == [b"1", b"2", b"3"]


def test_after_a_failure_the_later_ones_of_a_producer_fail_too(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", Config(topics_per_root_max=1)) as bus:
        bus.publish("a/b", b"1", producer="p", sequence=1)
        with pytest.raises(QuotaExceeded):
            bus.publish("a/other", b"2", producer="p", sequence=2)
        with pytest.raises(Conflict, match="send 2 again first"):
            bus.publish("a/b", b"3", producer="p", sequence=3)
        bus.publish("a/b", b"2", producer="p", sequence=2)
        bus.publish("a/b", b"3", producer="p", sequence=3)
        assert payloads(bus) == [b"1", b"2", b"3"]


def test_a_delayed_message_comes_when_it_is_due_and_once(
    timed: Bus, clock: ManualClock, settle: Callable[[Bus], None]
) -> None:
    receipt = timed.publish("a/b", b"later", deliver_at=timed.now + timedelta(seconds=60), headers={"x": "1"})
    timed.publish("a/b", b"now")
    assert receipt.offset == 0
    clock.advance(59)
    settle(timed)
    assert payloads(timed) == [b"now"]
    clock.advance(2)
    sub = timed.subscribe("a/#", id="s", start="earliest")
    assert [message.payload for message in (sub.next(5), sub.next(5))] == [b"now", b"later"]
    settle(timed)
    (_, late) = timed.replay("a/#")
    assert late.headers == (("x", "1"),)


def test_a_delayed_message_survives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    with headwater.open(tmp_path / "data", clock=clock) as bus:
        bus.publish("a/b", b"later", deliver_at=bus.now + timedelta(seconds=60), retain=True)
    clock.advance(100)
    for _ in range(2):
        with headwater.open(tmp_path / "data", clock=clock) as bus:
            follow = bus.follow("a/#")
            message = follow.next(5)
            assert message is not None
            assert message.payload == b"later"
            assert payloads(bus) == [b"later"]
            assert [kept.payload for kept in bus.retained("a/#")] == [b"later"]


@pytest.mark.parametrize(
    "topic", ["", "a/+", "#", "a\0b", "x" * 2000, "/".join("a" * 100), "r" * 65, "\ud800", 5, None]
)
def test_a_bad_topic_is_refused_and_changes_nothing(bus: Bus, topic: str) -> None:
    with pytest.raises(Malformed) as error:
        bus.publish(topic, b"x")
    assert error.value.code == 422
    assert bus.topics() == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"payload": "text"}, 422),
        ({"payload": None}, 422),
        ({"payload": b"x" * 101}, 413),
        ({"key": "text"}, 422),
        ({"key": b"k" * 2000}, 413),
        ({"headers": {"a": 1}}, 422),
        ({"headers": [("a",)]}, 422),
        ({"headers": {str(n): "" for n in range(100)}}, 422),
        ({"headers": {"a": "x" * 40_000}}, 413),
        ({"ttl_s": 0}, 422),
        ({"ttl_s": "1"}, 422),
        ({"sequence": 1}, 422),
        ({"producer": "p"}, 422),
        ({"producer": "$p", "sequence": 1}, 422),
        ({"producer": "p", "sequence": -1}, 422),
        ({"deliver_at": 5}, 422),
        ({"retain": "yes"}, 422),
    ],
)
def test_bad_input_gets_a_typed_error_and_changes_nothing(
    tmp_path: Path, options: dict[str, object], code: int
) -> None:
    with headwater.open(tmp_path / "data", Config(message_bytes_max=100)) as bus:
        with pytest.raises((Malformed, TooLarge)) as error:
            bus.publish("a/b", **{"payload": b"x", **options})  # type: ignore[arg-type]
        assert error.value.code == code
        assert payloads(bus) == []
        assert bus.topics() == []


def test_quotas_refuse_a_call_as_a_whole(tmp_path: Path) -> None:
    config = Config(roots_max=2, topics_per_root_max=2, retained_per_root_max=1)
    with headwater.open(tmp_path / "data", config) as bus:
        for too_many in (
            [("a/1", b""), ("b/1", b""), ("c/1", b"")],
            [("a/1", b""), ("a/2", b""), ("a/3", b"")],
            [Outgoing("a/1", b"x", retain=True), Outgoing("a/2", b"x", retain=True)],
        ):
            with pytest.raises(QuotaExceeded) as error:
                bus.publish_many(too_many)  # type: ignore[arg-type]
            assert (error.value.code, error.value.retryable) == (429, True)
        assert bus.topics() == []
        bus.publish_many([("x/1", b""), ("y/1", b"")])


def test_a_closed_bus_says_so(tmp_path: Path) -> None:
    bus = headwater.open(tmp_path / "data")
    bus.close()
    bus.close()
    for call in (lambda: bus.publish("a/b", b"x"), bus.topics, lambda: bus.subscribe("a/#")):
        with pytest.raises(Closed):
            call()


def test_zstd_batches_are_smaller_and_read_as_they_were(tmp_path: Path) -> None:
    sizes = {}
    for compression in ("none", "zstd"):
        with headwater.open(tmp_path / compression, Config(compression=compression)) as bus:  # type: ignore[arg-type]
            bus.publish_many([("a/b", b"the same again and again " * 20)] * 200)
        with headwater.open(tmp_path / compression) as bus:
            assert set(payloads(bus)) == {b"the same again and again " * 20}
            sizes[compression] = sum(path.stat().st_blocks for path in (tmp_path / compression).glob("streams/*/*.log"))
    assert sizes["zstd"] < sizes["none"]


def test_a_bus_opened_to_read_changes_nothing(bus: Bus, tmp_path: Path) -> None:
    bus.publish("a/b", b"1", retain=True)
    bus.subscribe("a/#", id="s", start="earliest").close()
    with headwater.open(tmp_path / "data", read_only=True) as reader:
        for call in (
            lambda: reader.publish("a/b", b"2"),
            lambda: reader.subscribe("a/#", id="t"),
            lambda: reader.unsubscribe("s"),
            lambda: reader.purge("a/#"),
            lambda: reader.redrive("s"),
            lambda: reader.backup(tmp_path / "backup"),
        ):
            with pytest.raises(ReadOnly):
                call()
        assert [info.lag for info in reader.subscriptions()] == [1]
        bus.publish("a/b", b"2")
        assert payloads(reader) == [b"1"]
        reader.refresh()
        assert payloads(reader) == [b"1", b"2"]
        assert reader.ends() == {"a": 2}
