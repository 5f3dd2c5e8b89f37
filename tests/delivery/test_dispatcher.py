"""The dispatcher: who is told of which batch, and subscriptions as rows that are loaded when they are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import pytest

import headwater
from faults.faulty_state import FaultyState
from headwater import Bus, Config, Conflict, HeadwaterError, ManualClock, NotFound, Outgoing, QuotaExceeded
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.selection import Selection
from headwater.store.state import MemoryState


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


@pytest.fixture
def bus(clock: ManualClock, state: MemoryState) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock, state=state) as made:
        yield made


@pytest.fixture
def dispatcher(bus: Bus) -> Dispatcher:
    return bus.core.dispatcher


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
        bus.core.roots.commit.run(partial(bus.core.dispatcher.listen, wanted, ear))
    return ears


def keys(state: MemoryState) -> list[bytes]:
    return [key[:1] for key, _ in state.scan(b"")]


# Telling


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
    bus.core.roots.commit.run(lambda: bus.core.dispatcher.listen("home/+", ear))
    bus.publish_many([("home/a", b""), ("home/a/b", b"")])
    bus.publish("home/a", b"")
    assert [sorted(heard) for heard in ear.heard] == [["home/a", "home/a/b"], ["home/a"]]


def test_a_listener_that_left_hears_nothing(bus: Bus) -> None:
    ear, other = listen(bus, "home/#", "home/#")
    bus.core.roots.commit.run(lambda: bus.core.dispatcher.leave(ear))
    bus.publish("home/a", b"")
    assert (ear.heard, other.heard) == ([], [["home/a"]])


def test_nobody_is_told_before_the_message_is_durable(bus: Bus) -> None:
    seen: list[int] = []

    class Reader(Ear):
        def deliver(self, selection: Selection) -> None:
            assert selection.batch is not None
            seen.append(bus.ends()["home"] - selection.batch.last_offset)

    bus.core.roots.commit.run(lambda: bus.core.dispatcher.listen("#", Reader()))
    bus.publish_many([("home/a", b""), ("home/b", b"")])
    assert seen == [0]


def test_retained_messages_are_those_of_every_root_that_the_filter_covers(bus: Bus, dispatcher: Dispatcher) -> None:
    bus.publish_many(
        [Outgoing(topic, topic.encode(), retain=True) for topic in ("home/a", "hall/a", "$box/a", "home/b/c")]
    )
    assert [message.topic for message in dispatcher.retained("#")] == ["home/a", "home/b/c", "hall/a"]
    assert [message.topic for message in dispatcher.retained("+/a")] == ["home/a", "hall/a"]
    assert [message.topic for message in dispatcher.retained("$box/#")] == ["$box/a"]
    assert dispatcher.retained("nowhere/#") == []


# Rows


def test_a_quiet_subscription_without_a_consumer_is_rows_and_nothing_else(
    bus: Bus, dispatcher: Dispatcher, state: MemoryState
) -> None:
    bus.publish("home/a", b"")
    for number in range(50):
        bus.subscribe("home/#", id=f"s{number}").close()
    assert not any(dispatcher.served(f"s{number}") for number in range(50))
    assert dispatcher._trees.is_empty
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
    assert first.subscriber is second.subscriber
    dispatcher.use("s", lambda subscriber: subscriber is first.subscriber or pytest.fail("another one"))
    first.close()
    assert dispatcher.served("s") is second.subscriber
    second.close()
    assert dispatcher.served("s") is None


def test_numbers_are_not_used_twice(state: MemoryState, clock: ManualClock) -> None:
    class Kept(MemoryState):
        def close(self) -> None:
            pass

    kept = Kept()
    with headwater.open(":memory:", state=kept) as bus:
        numbers = [bus.subscribe("home/#", id=name).subscriber.number for name in "ab"]
        bus.unsubscribe("b")
    with headwater.open(":memory:", state=kept) as bus:
        numbers.append(bus.subscribe("home/#", id="c").subscriber.number)
    assert numbers == [1, 2, 3]


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


def test_floors_rise_past_what_does_not_match_and_that_is_kept(bus: Bus, dispatcher: Dispatcher) -> None:
    bus.subscribe("home/wanted", id="s", start="earliest").close()
    bus.publish_many([("home/other", b"")] * 100)
    root = bus.core.roots.all()[0]
    assert dispatcher.needed_from(root) == 101
    assert bus.subscriptions()[0].floors == {"home": 100}
    bus.publish("home/wanted", b"")
    bus.publish("home/other", b"")
    assert dispatcher.needed_from(root) == 101


def test_a_root_is_needed_from_the_lowest_floor_of_those_that_cover_it(bus: Bus, dispatcher: Dispatcher) -> None:
    bus.publish_many([("home/a", b"")] * 10)
    root = bus.core.roots.all()[0]
    assert dispatcher.needed_from(root) == 11
    for name, start in (("five", 5), ("eight", 8)):
        bus.subscribe("home/#", id=name, start=start).close()
    bus.subscribe("hall/#", id="elsewhere", start="earliest").close()
    assert dispatcher.needed_from(root) == 5
    sub = bus.subscribe("home/#", id="five")
    messages = sub.batch(100, 0)
    sub.ack(messages[:2])
    assert dispatcher.needed_from(root) == 7
    bus.unsubscribe("five")
    assert dispatcher.needed_from(root) == 8


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
    assert sub.subscriber.consumers == 1


def test_one_too_many_is_refused_and_deleting_makes_room(clock: ManualClock) -> None:
    with headwater.open(":memory:", Config(subscriptions_max=2), clock=clock) as bus:
        for name in "ab":
            bus.subscribe("x/#", id=name, expire_after_s=100).close()
        with pytest.raises(QuotaExceeded):
            bus.subscribe("x/#", id="c")
        clock.advance(101)
        assert sorted(bus.core.roots.commit.run(bus.core.dispatcher.expire)) == ["a", "b"]
        bus.subscribe("x/#", id="c").close()
        bus.subscribe("x/#", id="d").close()


def test_a_subscription_that_could_not_be_deleted_is_not_said_to_have_expired(clock: ManualClock) -> None:
    state = FaultyState()
    with headwater.open(":memory:", clock=clock, state=state) as bus:
        bus.subscribe("x/#", id="s", expire_after_s=100).close()
        clock.advance(101)
        state.fail_sync_at = state.syncs + 1
        with pytest.raises(HeadwaterError):
            bus.core.roots.commit.run(bus.core.dispatcher.expire)
        assert not [event for event in bus.events() if event.kind == "expired"]


def test_ids_of_any_characters_are_apart(bus: Bus) -> None:
    names = ["a", "a/b", "A", "ü", "\0", "a\0", " ", "🌡"]
    for name in names:
        bus.subscribe("home/#", id=name).close()
    assert sorted(info.id for info in bus.subscriptions()) == sorted(names)


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
    assert dispatcher._trees.is_empty
