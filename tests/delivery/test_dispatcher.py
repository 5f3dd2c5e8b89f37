"""The dispatcher: who is told of which batch, and subscriptions as rows that are loaded when they are needed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headwater
from faults.faulty_state import FaultyState
from headwater import Conflict, HeadwaterError, ManualClock, NotFound
from headwater.bus import Bus
from headwater.delivery.dispatcher import Dispatcher
from headwater.store.state import MemoryState


def keys(state: MemoryState) -> list[bytes]:
    return [key[:1] for key, _ in state.scan(b"")]


# Rows


def test_a_quiet_subscription_without_a_consumer_is_rows_and_nothing_else(
    bus: Bus, dispatcher: Dispatcher, state: MemoryState
) -> None:
    bus.publish("home/a", b"")
    for number in range(50):
        bus.subscribe("home/#", id=f"s{number}").close()
    assert not any(dispatcher.served(f"s{number}") for number in range(50))
    assert dispatcher.listeners.count == 0
    assert keys(state).count(b"U") == 50
    assert keys(state).count(b"C") == 50
    assert set(keys(state)) == {b"B", b"C", b"N", b"U"}


def test_a_subscription_is_loaded_while_it_is_looked_at_and_let_go(bus: Bus, dispatcher: Dispatcher) -> None:
    bus.subscribe("home/#", id="s").close()
    assert dispatcher.use("s", lambda subscriber: subscriber.options.id) == "s"
    assert dispatcher.served("s") is None
    with pytest.raises(ZeroDivisionError):
        dispatcher.use("s", lambda _: 1 // 0)
    assert dispatcher.served("s") is None
    with pytest.raises(NotFound):
        dispatcher.use("nobody", lambda _: None)


def test_while_it_is_served_everybody_uses_the_same(bus: Bus, dispatcher: Dispatcher) -> None:
    first, second = bus.subscribe("home/#", id="s"), bus.subscribe("home/#", id="s")
    assert first.subscriber is second.subscriber  # type: ignore[attr-defined]
    dispatcher.use("s", lambda subscriber: subscriber is first.subscriber or pytest.fail("another one"))  # type: ignore[attr-defined]
    first.close()
    assert dispatcher.served("s") is second.subscriber  # type: ignore[attr-defined]
    second.close()
    assert dispatcher.served("s") is None


def test_deleting_leaves_no_row_behind(bus: Bus, state: MemoryState) -> None:
    bus.publish("home/a", b"0", retain=True)
    sub = bus.subscribe("home/#", id="s", order="none")
    bus.publish_many([("home/a", b"%d" % number) for number in range(1, 6)])
    copy, first, second, third, *_ = sub.batch(10, 0)
    first.nack("no")
    second.reject("never")
    third.ack()
    copy.nack("no")
    assert {b"U", b"C", b"A", b"F", b"Q", b"L"} <= set(keys(state))
    bus.unsubscribe("s")
    assert not {b"U", b"C", b"A", b"F", b"Q", b"L"} & set(keys(state))


# Options


def test_options_are_kept_as_they_were_unless_stated(bus: Bus, dispatcher: Dispatcher) -> None:
    stated: dict[str, Any] = {
        "order": "none",
        "max_in_flight": 7,
        "ack_timeout_s": 5.0,
        "max_attempts": 2,
        "expire_after_s": 100.0,
        "on_gap": "skip",
        "retry_delay_s": 0.5,
        "retry_delay_s_max": 9.0,
    }
    bus.subscribe("home/#", id="s", **stated).close()
    bus.subscribe("home/#", id="s", max_attempts=3).close()
    row = dispatcher.row("s")
    assert row is not None
    assert {name: getattr(row.options, name) for name in stated} == {**stated, "max_attempts": 3}


def test_what_contradicts_is_refused_and_changes_nothing(bus: Bus, dispatcher: Dispatcher) -> None:
    sub = bus.subscribe("home/#", id="s", max_in_flight=5)
    before = dispatcher.row("s")
    others: list[tuple[str, dict[str, Any]]] = [
        ("home/+", {}),
        ("home/#", {"max_in_flight": 6}),
        ("home/#", {"order": "key"}),
    ]
    for other, options in others:
        with pytest.raises(Conflict):
            bus.subscribe(other, id="s", **options)
    assert dispatcher.row("s") == before
    assert sub.subscriber.consumers.count == 1  # type: ignore[attr-defined]


def test_a_subscription_that_could_not_be_deleted_is_not_said_to_have_expired(clock: ManualClock) -> None:
    state = FaultyState()
    with headwater.open(":memory:", clock=clock, state=state) as bus:
        bus.subscribe("x/#", id="s", expire_after_s=100).close()
        clock.advance(101)
        state.fail_sync_at = state.syncs + 1
        with pytest.raises(HeadwaterError):
            bus.core.roots.commit.run(bus.core.dispatcher.expire)
        assert not [event for event in bus.events() if event.kind == "expired"]


# Threads


def test_threads_that_come_go_look_and_delete_leave_it_in_order(bus: Bus, dispatcher: Dispatcher) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                name = f"s{(number + step) % 3}"
                try:
                    with bus.subscribe("home/#", id=name, start="earliest", order="none") as sub:
                        bus.publish("home/a", b"")
                        for message in sub.batch(5, 0):
                            message.ack(wait=False)
                    bus.subscriptions()
                    if step % 10 == 9:
                        bus.unsubscribe(name)
                except (NotFound, headwater.Closed, headwater.Recalled):
                    continue  # another thread deleted it
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert not any(dispatcher.served(f"s{number}") for number in range(3))
    assert dispatcher.listeners.count == 0
