"""Floors: what retention has to leave."""

from __future__ import annotations

from headwater.bus import Bus
from headwater.delivery.dispatcher import Dispatcher


def test_floors_rise_past_what_does_not_match_and_that_is_kept(bus: Bus, dispatcher: Dispatcher) -> None:
    bus.subscribe("home/wanted", id="s", start="earliest").close()
    bus.publish_many([("home/other", b"")] * 100)
    root = bus.core.roots.all()[0]
    assert dispatcher.floors.needed_from(root) == 101
    assert bus.subscriptions()[0].floors == {"home": 100}
    bus.publish("home/wanted", b"")
    bus.publish("home/other", b"")
    assert dispatcher.floors.needed_from(root) == 101


def test_a_root_is_needed_from_the_lowest_floor_of_those_that_cover_it(bus: Bus, dispatcher: Dispatcher) -> None:
    bus.publish_many([("home/a", b"")] * 10)
    root = bus.core.roots.all()[0]
    assert dispatcher.floors.needed_from(root) == 11
    for name, start in (("five", 5), ("eight", 8)):
        bus.subscribe("home/#", id=name, start=start).close()
    bus.subscribe("hall/#", id="elsewhere", start="earliest").close()
    assert dispatcher.floors.needed_from(root) == 5
    sub = bus.subscribe("home/#", id="five")
    messages = sub.batch(100, 0)
    sub.ack(messages[:2])
    assert dispatcher.floors.needed_from(root) == 7
    bus.unsubscribe("five")
    assert dispatcher.floors.needed_from(root) == 8
