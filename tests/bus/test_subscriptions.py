"""Durable subscriptions as they are looked after: seek, pause, options, expiry, and ten thousand of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, numbers, payloads, publish_numbers, settle, some
from headwater import Conflict, HeadwaterError, Malformed, ManualClock, Message, NotFound, Recalled
from headwater.bus import Bus
from headwater.store.rocks import RocksState

# Seek, pause, resume, expiry


def test_seek_goes_on_from_another_place_and_takes_back_what_is_in_flight(timed: Bus, clock: ManualClock) -> None:
    for payload in numbers(6):
        clock.advance(10)
        timed.publish("jobs/x", payload)
    sub = timed.subscribe("jobs/#", id="s", start="earliest")
    held = sub.batch(3, 0)
    held[0].ack()
    for to, wanted in [
        ("earliest", numbers(6)),
        (5, numbers(2, 4)),
        ("latest", []),
        (timed.now - timedelta(seconds=20), numbers(3, 3)),
        (1, numbers(6)),
    ]:
        sub.seek(to)  # type: ignore[arg-type]
        assert payloads(sub.batch(100, 0)) == wanted, to
    with pytest.raises(Recalled, match="moved"):
        held[1].ack()


def test_seek_survives_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 5)
        sub = bus.subscribe("jobs/#", id="s", start="earliest")
        sub.ack(sub.batch(10, 0))
        sub.seek(3)
    with headwater.open(folder) as bus:
        assert payloads(bus.subscribe("jobs/#", id="s").batch(10, 0)) == numbers(3, 2)


def test_seek_wakes_a_consumer_that_waits(bus: Bus) -> None:
    publish_numbers(bus, 2)
    sub = bus.subscribe("jobs/#", id="s")
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 2)))
    waiting.start()
    sub.seek("earliest")
    waiting.join(WAIT_S)
    assert payloads(found) == numbers(2)


def test_a_paused_subscription_hands_out_nothing_until_it_is_resumed(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    publish_numbers(bus, 2)
    (held,) = some(sub, 1)
    sub.pause()
    assert sub.next(timeout_s=0) is None
    held.ack()
    assert bus.subscriptions()[0].paused
    found: list[Message] = []
    waiting = threading.Thread(target=lambda: found.extend(some(sub, 1)))
    waiting.start()
    sub.resume()
    waiting.join(WAIT_S)
    assert payloads(found) == [b"1"]


def test_pause_holds_for_every_consumer_and_across_a_restart(folder: Path) -> None:
    with headwater.open(folder) as bus:
        one, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="none") for _ in range(2))
        publish_numbers(bus, 2)
        one.pause()
        assert other.next(timeout_s=0) is None
    with headwater.open(folder) as bus:
        assert bus.subscriptions()[0].paused
        sub = bus.subscribe("jobs/#", id="s")
        assert sub.next(timeout_s=0) is None
        sub.resume()
        assert payloads(sub.batch(10, 0)) == numbers(2)
    with headwater.open(folder) as bus:
        assert not bus.subscriptions()[0].paused


def test_a_subscription_that_nobody_used_for_its_expire_after_s_is_gone(timed: Bus, clock: ManualClock) -> None:
    timed.subscribe("jobs/#", id="short", start="earliest", expire_after_s=1000).close()
    timed.subscribe("jobs/#", id="long", expire_after_s=10_000).close()
    timed.subscribe("jobs/#", id="ever").close()
    used = timed.subscribe("jobs/#", id="used", expire_after_s=1000)
    for _ in range(18):
        clock.advance(60)
        settle(timed)
    assert [info.id for info in timed.subscriptions()] == ["ever", "long", "used"]
    assert [event.kind for event in timed.events() if "short" in event.text] == ["expired"]
    used.close()
    clock.advance(900)
    settle(timed)
    assert "used" in [info.id for info in timed.subscriptions()]
    clock.advance(200)
    settle(timed)
    assert "used" not in [info.id for info in timed.subscriptions()]


def test_options_that_are_left_out_stay_as_they_were(bus: Bus) -> None:
    publish_numbers(bus, 5)
    bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=2, order="none").close()
    sub = bus.subscribe("jobs/#", id="s")
    assert len(sub.batch(10, 0)) == 2
    assert bus.subscriptions()[0].order == "none"


def test_none_is_no_limit_where_an_option_is_a_limit(bus: Bus) -> None:
    limits = ("max_attempts", "max_deliveries", "expire_after_s")
    bus.subscribe("jobs/#", id="s", max_attempts=2, max_deliveries=3, expire_after_s=600.0).close()
    bus.subscribe("jobs/#", id="s", order=None, max_in_flight=None).close()
    stated = bus.durables.options("s")
    assert [stated[name] for name in limits] == [2, 3, 600.0]
    bus.subscribe("jobs/#", id="s", max_attempts=None, max_deliveries=None, expire_after_s=None).close()
    stated = bus.durables.options("s")
    assert [stated[name] for name in limits] == [0, 0, None]
    assert (stated["order"], stated["max_in_flight"]) == ("strict", 64)
    bus.durables.create("t", "jobs/#", max_deliveries=None)
    assert bus.durables.options("t")["max_deliveries"] == 0


def test_options_may_change_while_nobody_consumes(bus: Bus) -> None:
    publish_numbers(bus, 5)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=2)
    with pytest.raises(Conflict, match="in use with other options: its "):
        bus.subscribe("jobs/#", id="s", max_in_flight=3)
    bus.subscribe("jobs/#", id="s", max_in_flight=2).close()
    sub.close()
    assert len(bus.subscribe("jobs/#", id="s", max_in_flight=3).batch(10, 0)) == 3


def test_a_second_filter_for_an_id_is_409(bus: Bus) -> None:
    bus.subscribe("jobs/#", id="s").close()
    with pytest.raises(Conflict, match="jobs/#") as refused:
        bus.subscribe("jobs/x", id="s")
    assert refused.value.code == 409
    assert [info.filter for info in bus.subscriptions()] == ["jobs/#"]


def test_subscriptions_shows_lag_in_flight_retrying_and_dead(timed: Bus, clock: ManualClock) -> None:
    sub = timed.subscribe("jobs/+", id="s", start="earliest", order="none")
    timed.publish_many([(f"jobs/{'x' if number % 2 else 'x/y'}", b"%d" % number) for number in range(20)])
    messages = sub.batch(5, 0)
    messages[0].ack()
    messages[1].nack("no")
    messages[2].reject("never")
    (info,) = timed.subscriptions()
    assert (info.id, info.filter, info.order, info.consumers, info.paused) == ("s", "jobs/+", "none", 1, False)
    assert (info.lag, info.in_flight, info.retrying, info.dead) == (8, 2, 1, 1)
    assert info.floors == {"jobs": 3}
    sub.close()
    (info,) = timed.subscriptions()
    assert (info.lag, info.in_flight, info.retrying, info.dead, info.consumers) == (8, 0, 1, 1, 0)


def test_unsubscribe_deletes_a_subscription_its_place_and_its_dead_letters(folder: Path) -> None:
    with headwater.open(folder) as bus:
        publish_numbers(bus, 4)
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        messages = sub.batch(10, 0)
        messages[0].reject("no")
        messages[3].ack()
        bus.unsubscribe("s")
        assert bus.subscriptions() == []
        for use in (sub.next, messages[2].ack, lambda: sub.seek("earliest"), sub.pause, sub.resume):
            with pytest.raises(HeadwaterError):
                use()
        sub.close()
        with pytest.raises(NotFound):
            bus.dead_letters("s")
        assert bus.subscriptions() == []
    with headwater.open(folder) as bus:
        again = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        assert payloads(again.batch(10, 0)) == numbers(4)
        assert bus.dead_letters("s") == []


def test_unsubscribe_wakes_a_consumer_that_waits(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    ended = threading.Event()

    def read() -> None:
        for _ in sub:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    bus.unsubscribe("s")
    assert ended.wait(WAIT_S)


def test_subscriptions_are_listed_in_pages(bus: Bus) -> None:
    ids = ["a", "a/b", "b", "ä", "€"]
    for id in reversed(ids):
        bus.subscribe("home/#", id=id).close()
    assert [one.id for one in bus.subscriptions()] == ids
    assert [one.id for one in bus.subscriptions(limit=2)] == ["a", "a/b"]
    assert [one.id for one in bus.subscriptions(after="a/b", limit=2)] == ["b", "ä"]
    assert [one.id for one in bus.subscriptions(after="a0")] == ["b", "ä", "€"]
    assert bus.subscriptions(after="€") == []
    with pytest.raises(Malformed):
        bus.subscriptions(limit=0)


# Many subscriptions


class UnsyncedState(RocksState):
    """Rows on disk that nobody waits for: 10,000 syncs are not what is measured here."""

    def commit(self, rows: Mapping[bytes, bytes | None]) -> None:
        self.write(rows)


def test_ten_thousand_durable_subscriptions_open_in_seconds_with_no_thread_each_and_idle(folder: Path) -> None:
    count = 10_000
    headwater.open(folder).close()
    with Bus(folder, state=UnsyncedState(f"{folder}/state")) as bus:
        for number in range(count):
            bus.subscribe(f"home/{number}", id=f"s{number}").close()
    started = time.process_time()  # of this process alone, however busy the machine is
    with headwater.open(folder) as bus:
        threads = threading.active_count()
        subs = [bus.subscribe(f"home/{number}", id=f"s{number}") for number in range(count)]
        assert time.process_time() - started < 20
        assert threading.active_count() <= threads + 1
        cpu = time.process_time()
        threading.Event().wait(0.3)
        assert time.process_time() - cpu < 0.2
        bus.publish("home/77", b"1")
        bus.publish("home/9999", b"2")
        assert payloads([*some(subs[77], 1), *some(subs[9999], 1)]) == [b"1", b"2"]
        assert subs[78].next(timeout_s=0) is None
