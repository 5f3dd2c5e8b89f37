"""Retention, and compression."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater
from bus.flows import aged, payloads, settle, some
from headwater import Config, Gap, ManualClock, Message, Retention
from headwater.bus import Bus

# Retention


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
        sub = bus.subscribe("jobs/#", id="s", start="earliest", on_gap=on_gap)  # type: ignore[call-overload]
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


def test_a_bus_that_is_closed_while_it_looks_at_subscriptions_has_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(":memory:")
    core, looks, goes_on = bus.core, threading.Event(), threading.Event()

    def expire(check: Callable[[], None]) -> None:
        looks.set()
        assert goes_on.wait(60)
        check()

    monkeypatch.setattr(core.dispatcher, "expire", expire)
    round_ = threading.Thread(target=core.upkeep.go_round)
    round_.start()
    assert looks.wait(60)
    core.upkeep.close()
    goes_on.set()
    round_.join()
    assert not [event for event in core.events.all() if event.kind == "trouble"]
    bus.close()
