"""A timer hog: a client with every right, most of what is due is its own, and none of it can be published."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

import headwater
from bus.flows import payloads, settle, some
from headwater import Config, ManualClock, releases, schedules
from headwater.bus import Bus
from headwater.delivery import letterbox, life
from headwater.log import delays

AT_ONCE = 5
MANY = 4 * AT_ONCE
CONFIG = Config(retained_per_root_max=1)
"""With one that is retained below `full`, no other can be."""


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name in (
        (delays, "RELEASED_MAX"),
        (releases, "AGAIN_MAX"),
        (schedules, "RELEASED_MAX"),
        (life, "AT_ONCE_MAX"),
        (letterbox, "AT_ONCE_MAX"),
    ):
        monkeypatch.setattr(where, name, AT_ONCE)


@pytest.fixture
def bus(clock: ManualClock) -> Iterator[Bus]:
    with headwater.open(":memory:", CONFIG, clock=clock) as bus:
        bus.publish("full/there", b"", retain=True)
        bus.publish("full/there", b"x", retain=True)
        yield bus


def pass_time(bus: Bus, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    for _ in range(MANY):
        settle(bus)


def test_schedules_that_fail_keep_nobody_elses_waiting(bus: Bus, clock: ManualClock) -> None:
    for number in range(MANY):
        bus.schedule(f"full/{number:03}", b"x", cron="* * * * *", retain=True)
    bus.schedule("fine/x", b"mine", cron="* * * * *")
    for minute in range(1, 4):
        pass_time(bus, clock, 60)
        assert len(list(bus.replay("fine/x"))) == minute


def test_delayed_messages_that_fail_keep_nobody_elses_waiting(bus: Bus, clock: ManualClock) -> None:
    for number in range(MANY):
        bus.publish(f"full/{number}", b"x", retain=True, deliver_at=bus.now + timedelta(seconds=1))
    pass_time(bus, clock, 1)
    for after_s in (0.001, 1, releases.AGAIN_US / 1e6):
        before = len(list(bus.replay("fine/x")))
        bus.publish("fine/x", b"mine", deliver_at=bus.now + timedelta(seconds=after_s))
        pass_time(bus, clock, after_s)
        assert len(list(bus.replay("fine/x"))) == before + 1
    assert list(bus.replay("full/+", since=bus.now)) == []


def test_what_failed_is_published_once_it_can_be(bus: Bus, clock: ManualClock) -> None:
    for number in range(MANY):
        bus.publish("full/one", b"%d" % number, retain=True, deliver_at=bus.now + timedelta(seconds=1))
    pass_time(bus, clock, 1)
    assert payloads(bus.replay("full/one")) == []
    bus.publish("full/there", b"", retain=True)
    for _ in range(MANY // AT_ONCE):
        pass_time(bus, clock, releases.AGAIN_US / 1e6)
    assert payloads(bus.replay("full/one")) == [b"%d" % number for number in range(MANY)]


def test_a_message_that_begins_to_wait_behind_others_that_were_looked_at_is_found(bus: Bus, clock: ManualClock) -> None:
    for number in range(MANY):
        bus.publish(f"full/{number}", b"x", retain=True, deliver_at=bus.now + timedelta(seconds=number))
    earlier = bus.now + timedelta(seconds=1.5)
    pass_time(bus, clock, MANY)
    bus.publish("fine/x", b"late", deliver_at=earlier)
    pass_time(bus, clock, 0.001)
    assert payloads(bus.replay("fine/x")) == [b"late"]


@pytest.mark.parametrize(
    ("what", "filter", "after_us"),
    [("delays", "many/#", 1_000_000), ("states", "$sys/states/s", 100_000), ("letterbox", "$dead/s", 0)],
)
def test_the_timers_ring_for_others_between_two_goes(
    bus: Bus, clock: ManualClock, what: str, filter: str, after_us: int
) -> None:
    """However much is due at one moment, what is due for others then comes before the whole of it."""
    seen: list[int] = []

    def ring() -> None:
        seen.append(len(list(bus.replay(filter))))

    bus.publish_many([("jobs/x", b"%d" % number) for number in range(MANY)])
    sub = bus.subscribe("jobs/#", id="s", start="earliest", states="stream" if what == "states" else "off")
    messages = some(sub, MANY)
    pass_time(bus, clock, 1)
    told = len(list(bus.replay(filter)))
    with bus.core.timers._changed:  # which ring for nobody meanwhile
        for message in messages:
            if what == "delays":
                bus.publish("many/x", b"", deliver_at=bus.now + timedelta(seconds=1))
            elif what == "states":
                message.ack()
            else:
                message.reject("bad")
        bus.core.timers.set("other", bus.core.clock.monotonic_us() + after_us, ring)
    pass_time(bus, clock, 1)
    assert len(list(bus.replay(filter))) == told + MANY
    assert seen
    assert seen[0] <= told + 2 * AT_ONCE
