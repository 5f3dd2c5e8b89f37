"""Listeners: who is told of which messages, and when."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from headwater.bus import Bus
from headwater.delivery.selection import Selection


class Ear:
    """Hears of batches."""

    wants_places: ClassVar[bool] = True
    takes_early: ClassVar[bool] = False

    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    def deliver(self, selection: Selection) -> None:
        self.heard.append([message.topic for message in selection.taken()])


def listen(bus: Bus, *filters: str) -> list[Ear]:
    ears = [Ear() for _ in filters]
    for wanted, ear in zip(filters, ears, strict=True):
        bus.core.roots.commit.run(partial(bus.core.dispatcher.listeners.listen, wanted, ear))
    return ears


def test_each_listener_hears_once_of_the_messages_that_match(bus: Bus) -> None:
    everything, below, one, other = listen(bus, "#", "home/+/temp", "home/a/temp", "hall/#")
    bus.publish_many([("home/a/temp", b""), ("home/b/temp", b""), ("home/a/temp", b""), ("home/a/power", b"")])
    bus.publish("home/a/power", b"")
    bus.publish("hall/x", b"")
    assert everything.heard == [
        ["home/a/temp", "home/b/temp", "home/a/temp", "home/a/power"],
        ["home/a/power"],
        ["hall/x"],
    ]
    assert below.heard == [["home/a/temp", "home/b/temp", "home/a/temp"]]
    assert one.heard == [["home/a/temp", "home/a/temp"]]
    assert other.heard == [["hall/x"]]


def test_a_listener_with_several_filters_that_match_hears_of_a_message_once(bus: Bus) -> None:
    (ear,) = listen(bus, "home/#")
    bus.core.roots.commit.run(lambda: bus.core.dispatcher.listeners.listen("home/+", ear))
    bus.publish_many([("home/a", b""), ("home/a/b", b"")])
    bus.publish("home/a", b"")
    assert [sorted(heard) for heard in ear.heard] == [["home/a", "home/a/b"], ["home/a"]]


def test_a_listener_that_left_hears_nothing(bus: Bus) -> None:
    ear, other = listen(bus, "home/#", "home/#")
    bus.core.roots.commit.run(lambda: bus.core.dispatcher.listeners.leave(ear))
    bus.publish("home/a", b"")
    assert (ear.heard, other.heard) == ([], [["home/a"]])


def test_nobody_is_told_before_the_message_is_durable(bus: Bus) -> None:
    seen: list[int] = []

    class Reader(Ear):
        def deliver(self, selection: Selection) -> None:
            assert selection.batch is not None
            seen.append(bus.ends()["home"] - selection.batch.last_offset)

    bus.core.roots.commit.run(lambda: bus.core.dispatcher.listeners.listen("#", Reader()))
    bus.publish_many([("home/a", b""), ("home/b", b"")])
    assert seen == [0]
