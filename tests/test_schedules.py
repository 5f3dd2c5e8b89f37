"""Messages that are published again and again, on a clock that the tests move."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import payloads, settle
from headwater import Config, Conflict, Malformed, ManualClock, NotFound, QuotaExceeded, ReadOnly, TooLarge
from headwater.bus import Bus
from headwater.message import Message
from headwater.store import state as rows

DAY_S = 86_400
MIDNIGHT_US = 1_767_225_600_000_000
"""2026-01-01T00:00Z."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(MIDNIGHT_US)


def pass_time(bus: Bus, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    settle(bus)


def times(messages: list[Message]) -> list[str]:
    """What each message says that it is for."""
    return [dict(message.headers)["scheduled-for"].removesuffix(":00+00:00") for message in messages]


def history(bus: Bus, filter: str = "jobs/#") -> list[Message]:
    return list(bus.replay(filter))


def test_each_time_brings_one_message_as_it_was_given(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        made = bus.schedule(
            "jobs/nightly", b"run", cron="0  3 * * *", key=b"k", headers={"a": "b"}, retain=True, ttl_s=600
        )
        assert (made.id, made.cron, made.next_at, made.last_at) == (
            "jobs/nightly",
            "0 3 * * *",
            datetime(2026, 1, 1, 3, tzinfo=UTC),
            None,
        )
        pass_time(bus, clock, 3 * 3600 - 1)
        assert history(bus) == []
        pass_time(bus, clock, 1)
        (one,) = history(bus)
        assert (one.payload, one.key, one.header_pairs[0], one.timestamp) == (b"run", b"k", ("a", "b"), bus.now)
        assert len(bus.retained("jobs/#")) == 1
        pass_time(bus, clock, 601)
        assert len(bus.retained("jobs/#")) == 0
        for _ in range(2):
            pass_time(bus, clock, DAY_S)
        (info,) = bus.schedules()
        assert (info.last_at, info.next_at) == (
            datetime(2026, 1, 3, 3, tzinfo=UTC),
            datetime(2026, 1, 4, 3, tzinfo=UTC),
        )
        assert bus.ends()["jobs"] == 3


def test_a_zone_says_whose_time_it_is(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        made = bus.schedule("jobs/x", b"", cron="0 3 * * *", zone="America/New_York")
        assert made.next_at == datetime(2026, 1, 1, 8, tzinfo=UTC)


def test_of_the_times_that_passed_while_the_bus_was_down_the_first_is_caught_up(tmp_path: Path, clock: ManualClock):
    with headwater.open(tmp_path, clock=clock) as bus:
        bus.schedule("jobs/x", b"", cron="0 3 * * *")
    clock.advance(3 * DAY_S)
    for _ in range(2):
        with headwater.open(tmp_path, clock=clock) as bus:
            settle(bus)
            assert times(history(bus)) == ["2026-01-01T03:00"]
    with headwater.open(tmp_path, clock=clock) as bus:
        pass_time(bus, clock, 4 * 3600)
        assert times(history(bus)) == ["2026-01-01T03:00", "2026-01-04T03:00"]


def test_of_the_times_that_pass_in_a_leap_the_first_is_caught_up(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        bus.schedule("jobs/x", b"", cron="*/10 * * * *")
        pass_time(bus, clock, 3600)
        pass_time(bus, clock, 600)
        assert times(history(bus)) == ["2026-01-01T00:10", "2026-01-01T01:10"]


KILLED = """
import os, signal, sys
import headwater, headwater.schedules
from headwater import ManualClock

folder, point = sys.argv[1:]
clock = ManualClock(1_767_225_600_000_000)
bus = headwater.open(folder, clock=clock)
for number in range(20):
    bus.schedule(f"jobs/{number}", b"", cron="0 * * * *")

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if point == "before":
    bus.core.schedules._commit.submit = die
else:  # the messages are on disk, and nothing else says so
    bus.core.schedules._book.write = die
clock.advance(3600)
signal.pause()
"""


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_time_brings_one_message_whenever_the_process_is_killed(tmp_path: Path, clock: ManualClock, point: str):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "data", point], timeout=120, check=False)
    assert done.returncode == -9
    clock.advance(3600)
    with headwater.open(tmp_path / "data", clock=clock) as bus:
        assert len(bus.schedules()) == 20
        settle(bus)
        found = history(bus)
        assert sorted(message.topic for message in found) == sorted(f"jobs/{number}" for number in range(20))
        assert set(times(found)) == {"2026-01-01T01:00"}
        pass_time(bus, clock, 3600)
        assert bus.ends()["jobs"] == 40


def test_a_row_that_is_behind_what_was_published_brings_nothing_again_and_loses_no_time(
    tmp_path: Path, clock: ManualClock
):
    with headwater.open(tmp_path, clock=clock) as bus:
        bus.schedule("jobs/x", b"", cron="0 * * * *")
        ((key, old),) = bus.core.state.scan(rows.SCHEDULE)
        for _ in range(2):
            pass_time(bus, clock, 3600)
        bus.core.state.commit({key: old})
    clock.advance(1800)
    clock.advance(1800)  # 03:00, while it is closed
    with headwater.open(tmp_path, clock=clock) as bus:
        settle(bus)
        settle(bus)
        assert times(history(bus)) == ["2026-01-01T01:00", "2026-01-01T02:00", "2026-01-01T03:00"]


def test_the_same_again_changes_nothing_and_a_missed_time_is_caught_up_all_the_same(tmp_path: Path, clock: ManualClock):
    def say(bus: Bus) -> None:
        bus.schedule("jobs/x", b"1", cron="0 3 * * *", headers={"a": "b"})

    with headwater.open(tmp_path, clock=clock) as bus:
        say(bus)
        audit = bus.ends()["$sys"]
        say(bus)
        assert bus.ends()["$sys"] == audit
    clock.advance(DAY_S)
    with headwater.open(tmp_path, clock=clock) as bus:
        say(bus)
        settle(bus)
        assert times(history(bus)) == ["2026-01-01T03:00"]


def test_another_message_keeps_its_times_and_another_line_begins_anew(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        first = bus.schedule("jobs/x", b"1", cron="0 3 * * *", id="x")
        pass_time(bus, clock, DAY_S)
        second = bus.schedule("jobs/y", b"2", cron="0 3 * * *", id="x")
        assert (second.last_us, second.next_us) == (first.next_us, first.next_us + DAY_S * 1_000_000)
        third = bus.schedule("jobs/y", b"2", cron="0 1 * * *", id="x")
        assert (third.last_us, third.next_at) == (0, datetime(2026, 1, 2, 1, tzinfo=UTC))
        assert len(bus.schedules()) == 1
        pass_time(bus, clock, DAY_S)
        assert [(one.topic, one.payload) for one in history(bus)] == [("jobs/x", b"1"), ("jobs/y", b"2")]


def test_what_is_removed_comes_no_more_and_can_be_made_again(tmp_path: Path, clock: ManualClock):
    with headwater.open(tmp_path, clock=clock) as bus:
        bus.schedule("jobs/x", b"", cron="0 * * * *")
        pass_time(bus, clock, 3600)
        bus.unschedule("jobs/x")
        with pytest.raises(NotFound, match=r"bus\.schedules"):
            bus.unschedule("jobs/x")
        pass_time(bus, clock, 3600)
    with headwater.open(tmp_path, clock=clock) as bus:
        pass_time(bus, clock, 3600)
        assert len(history(bus)) == 1
        bus.schedule("jobs/x", b"", cron="0 * * * *")
        pass_time(bus, clock, 3600)
        assert times(history(bus)) == ["2026-01-01T01:00", "2026-01-01T04:00"]


def test_a_schedule_that_cannot_be_is_refused_and_nothing_changed(clock: ManualClock):
    with headwater.open(":memory:", Config(schedules_max=1, schedule_bytes_max=10), clock=clock) as bus:
        there = bus.schedule("jobs/x", b"1", cron="0 3 * * *")
        with pytest.raises(Malformed, match="bad day"):
            bus.schedule("jobs/x", b"2", cron="0 0 31 2 *")
        with pytest.raises(Malformed, match="zone"):
            bus.schedule("jobs/x", b"2", cron="0 3 * * *", zone="Mars")
        with pytest.raises(Malformed, match="wildcards"):
            bus.schedule("jobs/#", b"2", cron="0 3 * * *")
        with pytest.raises(Malformed, match="payload"):
            bus.schedule("jobs/x", None, cron="0 3 * * *")  # type: ignore[arg-type]
        for id in ("", "a\0b", "\ud800", 5):
            with pytest.raises(Malformed, match="id is"):
                bus.schedule("jobs/x", b"2", cron="0 3 * * *", id=id)  # type: ignore[arg-type]
        with pytest.raises(TooLarge, match="schedule_bytes_max"):
            bus.schedule("jobs/x", b"2" * 11, cron="0 3 * * *")
        with pytest.raises(QuotaExceeded, match="schedules_max"):
            bus.schedule("jobs/y", b"2", cron="0 3 * * *")
        assert bus.schedules() == [there]
        assert bus.schedule("jobs/x", b"3", cron="0 3 * * *").payload == b"3"


def test_a_message_that_finds_no_room_is_tried_again(clock: ManualClock):
    with headwater.open(":memory:", Config(roots_max=1), clock=clock) as bus:
        bus.publish("other/x", b"")
        bus.schedule("jobs/x", b"", cron="0 * * * *")
        pass_time(bus, clock, 3600)
        assert any("could not be published" in event.text for event in bus.events())
        bus.remove_root("other")
        pass_time(bus, clock, 6)
        assert times(history(bus)) == ["2026-01-01T01:00"]


def test_they_are_listed_in_pages_and_beside_the_owner(tmp_path: Path, clock: ManualClock):
    with headwater.open(tmp_path, clock=clock) as bus:
        for name in "bca":
            bus.schedule(f"jobs/{name}", b"", cron="0 3 * * *", id=name)
        assert [one.id for one in bus.schedules()] == ["a", "b", "c"]
        assert [one.id for one in bus.schedules(after="a", limit=1)] == ["b"]
        with headwater.open(tmp_path, read_only=True) as beside:
            bus.unschedule("b")
            beside.refresh()
            assert [one.id for one in beside.schedules()] == ["a", "c"]
            with pytest.raises(ReadOnly):
                beside.schedule("jobs/x", b"", cron="0 3 * * *")
            with pytest.raises(ReadOnly):
                beside.unschedule("a")


def test_a_row_that_is_damaged_keeps_nothing_else_from_coming(tmp_path: Path, clock: ManualClock):
    with headwater.open(tmp_path, clock=clock) as bus:
        bus.schedule("jobs/x", b"", cron="0 * * * *")
        bus.core.state.commit({rows.SCHEDULE + b"bad": b"\xc1"})
    clock.advance(3600)
    with headwater.open(tmp_path, clock=clock) as bus:
        settle(bus)
        assert len(history(bus)) == 1
        assert any("schedule b'bad' is damaged" in event.text for event in bus.events())


def test_thousands_that_are_due_at_once_all_come(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        for number in range(1100):
            bus.schedule("jobs/x", b"", cron="0 3 * * *", id=str(number))
        pass_time(bus, clock, 3 * 3600)
        settle(bus)
        assert bus.ends()["jobs"] == 1100
        assert {one.next_at for one in bus.schedules()} == {datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=1)}


def test_who_changed_them_is_in_the_audit_without_the_message(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        bus.schedule("jobs/x", b"secret", cron="0 3 * * *")
        bus.unschedule("jobs/x")
        entries = [message.json() for message in bus.replay("$sys/audit")]
        assert [(one["what"], one["target"]) for one in entries] == [
            ("scheduled", "jobs/x"),
            ("unscheduled", "jobs/x"),
        ]
        assert b"secret" not in b"".join(payloads(bus.replay("$sys/audit")))


def test_conflict_is_for_clients_of_a_server_alone(clock: ManualClock):
    with headwater.open(":memory:", clock=clock) as bus:
        from headwater.schedules import Owner

        bus.core.schedules.add("jobs/x", b"", cron="0 3 * * *", owner=Owner("ann", is_admin=False))
        with pytest.raises(Conflict, match="another id"):
            bus.core.schedules.add("jobs/x", b"", cron="0 3 * * *", owner=Owner("bob", is_admin=False))
        assert bus.schedule("jobs/x", b"", cron="0 3 * * *").client == ""
