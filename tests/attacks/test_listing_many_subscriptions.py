"""Thousands of durable subscriptions are listed: nobody is loaded or held up for it, and each figure is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headwater
from headwater import ManualClock
from headwater.bus import Bus
from headwater.delivery import backlog, cursor, directory, listing
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.listing import Listing
from headwater.log.group_commit import GroupCommit
from headwater.store.state import MemoryState
from headwater.wire import requests
from server.harness import Running

SUBSCRIPTIONS = 500
MESSAGES = 50


@pytest.fixture
def bus(clock: ManualClock, state: MemoryState) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock, state=state) as made:
        yield made


def test_a_list_is_read_row_by_row_and_the_log_once(
    bus: Bus, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SUBSCRIPTIONS):
        bus.core.durables.create(f"s{number:04}", f"home/{number % 10}/#", start="earliest")
    for number in range(MESSAGES):
        bus.publish(f"home/{number % 10}/x", b"")
    counts = {"scans": 0, "looks": 0, "loads": 0, "roles": 0}
    real_scan = state.scan

    def scan(*args: Any) -> Iterator[tuple[bytes, bytes]]:
        counts["scans"] += 1
        return real_scan(*args)

    def counted(owner: Any, name: str, what: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any) -> Any:
            counts[what] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(state, "scan", scan)
    counted(cursor, "places_in", "looks")
    counted(Dispatcher, "_load", "loads")
    counted(GroupCommit, "run", "roles")
    found = bus.subscriptions()
    assert [info.lag for info in found] == [MESSAGES // 10] * SUBSCRIPTIONS
    assert counts["loads"] == 0
    assert counts["looks"] <= MESSAGES
    assert counts["scans"] < 20
    assert counts["roles"] < 5
    page = bus.subscriptions(after="s0099", limit=100)
    assert page == found[100:200]
    assert counts["looks"] <= 2 * MESSAGES


def test_each_is_told_as_it_would_be_if_it_were_loaded(bus: Bus, clock: ManualClock) -> None:
    bus.publish("home/a", b"kept", retain=True)
    for number, wanted in enumerate(("home/a", "home/+", "home/#", "#", "+/b", "hall/#", "home/a/#", "none/x")):
        for start in ("earliest", "latest", 7):
            if start == 7 and wanted[0] in "#+":
                continue
            bus.core.durables.create(f"{number}{start}", wanted, start=start)
    for number in range(20):
        bus.publish_many([("home/a", b""), ("home/b", b"1"), ("hall/b", b"2")])
        bus.publish("home/a", b"", ttl_s=1.0 if number % 2 else None)
    with bus.subscribe("home/#", id="2earliest") as sub:
        messages = sub.batch(10, timeout_s=0)
        sub.ack(messages[:3])
        messages[5].ack()
        messages[6].reject("no")
        messages[7].nack("not now")
    clock.advance(5)
    bus.purge("home/b")
    bus.publish("home/b", b"")
    dispatcher = bus.core.dispatcher
    dispatcher.at_rest.known.clear()
    expected = [dispatcher.info(row) for row in dispatcher.directory.each()]
    assert bus.subscriptions() == expected
    dispatcher.at_rest.known.clear()
    assert bus.subscriptions() == expected
    with bus.subscribe("home/#", id="2latest"):
        served = {info.id: info for info in bus.subscriptions()}
        assert served["2latest"].consumers == 1
        assert len(served) == len(expected)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches that are looked at, one by one; and all subscriptions of a root are counted together, however few."""
    monkeypatch.setattr(backlog, "LEARN_MESSAGES_MIN", 0)
    looked: list[int] = []
    real = cursor.places_in

    def places_in(batch: Any, *args: Any) -> Any:
        looked.append(batch.first_offset)
        return real(batch, *args)

    monkeypatch.setattr(cursor, "places_in", places_in)
    return looked


def pages(bus: Bus) -> list[headwater.SubscriptionInfo]:
    found: list[headwater.SubscriptionInfo] = []
    while page := bus.subscriptions(after=found[-1].id if found else None, limit=50):
        found += page
    return found


def test_the_log_is_read_once_for_all_pages_and_then_only_what_is_new(bus: Bus, looks: list[int]) -> None:
    for number in range(SUBSCRIPTIONS):
        bus.core.durables.create(f"s{number:04}", f"home/{number % 10}/#", start="earliest")
    for number in range(MESSAGES):
        bus.publish(f"home/{number % 10}/x", b"")
    assert [info.lag for info in pages(bus)] == [MESSAGES // 10] * SUBSCRIPTIONS
    assert len(looks) == MESSAGES
    looks.clear()
    bus.publish("home/3/x", b"")
    assert [info.lag for info in pages(bus)] == [MESSAGES // 10 + (n % 10 == 3) for n in range(SUBSCRIPTIONS)]
    assert set(looks) == {MESSAGES + 1}


def test_what_is_remembered_is_right_after_a_purge_an_expiry_a_seek_and_a_new_one(
    bus: Bus, clock: ManualClock, looks: list[int]
) -> None:
    for number in range(60):
        bus.core.durables.create(f"s{number:02}", f"home/{number % 3}/#", start="earliest")
    for number in range(30):
        bus.publish(f"home/{number % 3}/x", b"", ttl_s=5.0 if number < 3 else None)

    def lags() -> list[int]:
        return [info.lag for info in pages(bus)]

    assert lags() == lags() == [10] * 60
    clock.advance(10)
    assert lags() == [9] * 60
    bus.purge("home/1/#")
    assert lags() == lags() == [9, 0, 9] * 20
    bus.core.durables.seek("s00", 10)
    bus.core.durables.delete("s02")
    bus.core.durables.create("s02", "home/0/#", start="earliest")
    assert lags() == lags() == [7, 0, 9, *([9, 0, 9] * 19)]


def test_over_the_wire_no_look_is_at_many_of_those_that_the_asker_may_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "INFOS_AT_ONCE", 20)
    with Running(auth="scram") as running:
        running.client("ann", allow=["subscribe home/#"])
        for number in range(100):
            running.bus.core.durables.create(f"s{number:03}", "hall/#" if number % 50 else "home/#")
        peer = running.peer("ann")
        looks: list[int] = []
        real_after, real_decode = Listing.infos_after, directory.decode

        def infos_after(self: Listing, *args: Any) -> Any:
            looks.append(0)
            return real_after(self, *args)

        def decode(value: bytes) -> Any:
            if looks:
                looks[-1] += 1
            return real_decode(value)

        monkeypatch.setattr(Listing, "infos_after", infos_after)
        monkeypatch.setattr(directory, "decode", decode)
        assert [info.id for info in peer.ask(requests.Subscriptions())] == ["s000", "s050"]
        assert [info.id for info in peer.ask(requests.Subscriptions(after="s000", limit=1))] == ["s050"]
        assert [info.id for info in peer.ask(requests.Subscriptions(after="s050", limit=1))] == []
        assert len(looks) > 100 // 20
        assert max(looks) <= 20
