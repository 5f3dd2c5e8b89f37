"""A machine's clock that is set."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from bus.flows import aged, payloads, settle, some
from headwater import ManualClock
from headwater.bus import Bus


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
            assert payloads(bus.retained("#").values()) == [b"on"]
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
