"""The subscriber: state machine, streams and stored rows joined, from the threads of many consumers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

import headwater
from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater import Config, Failed, ManualClock, Message, Outgoing, Recalled, Unwritable
from headwater.bus import Bus
from headwater.delivery.cursor import Budget
from headwater.delivery.lane import Remote
from headwater.delivery.options import Options
from headwater.store import state as rows
from headwater.store.state import MemoryState

WAIT_S = 60.0


class GatedState(MemoryState):
    """Rows in memory whose writing can be held up, counted, or made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.writes = 0
        self.waiting = threading.Event()
        self.error: Exception | None = None

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        if not self.gate.is_set():
            self.waiting.set()
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.writes += 1
        super().write(rows)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state() -> GatedState:
    return GatedState()


@pytest.fixture
def bus(clock: ManualClock, state: GatedState) -> Iterator[Bus]:
    with headwater.open(":memory:", clock=clock, state=state) as made:
        yield made


def settle(bus: Bus) -> None:
    """Return when every timer that is due by now has rung."""
    for _ in range(2):
        done = threading.Event()
        bus.core.timers.set(done, bus.core.clock.monotonic_us(), done.set)
        assert done.wait(WAIT_S)
    bus.core.rows.run(lambda: None)  # what they stored is there


def publish(bus: Bus, count: int, topic: str = "jobs/x", first: int = 0) -> None:
    bus.publish_many([(topic, b"%d" % number) for number in range(first, first + count)])


def payloads(messages: Any) -> list[bytes]:
    return [message.payload for message in messages]


def states(bus: Bus) -> list[tuple[int, str]]:
    return [(one.offset, one.state) for one in bus.states("s")]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


# Acks are durable


def test_an_ack_returns_when_its_rows_are_written_and_not_before(bus: Bus, state: GatedState) -> None:
    publish(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    first, second = sub.batch(2, 0)
    state.gate.clear()
    thread, results = in_thread(first.ack)
    assert state.waiting.wait(WAIT_S)
    assert results == []
    second.ack(wait=False)
    state.gate.set()
    thread.join(WAIT_S)
    assert results == [None]


def test_an_ack_after_one_that_did_not_wait_returns_when_that_is_written(bus: Bus, state: GatedState) -> None:
    publish(bus, 1)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    (message,) = sub.batch(1, 0)
    state.gate.clear()
    message.ack(wait=False)
    assert state.waiting.wait(WAIT_S)
    thread, results = in_thread(message.ack)
    thread.join(0.1)
    early = list(results)
    state.gate.set()
    thread.join(WAIT_S)
    assert (early, results) == ([], [None])


def test_what_was_acked_nacked_or_rejected_is_durable_on_return() -> None:
    state = FaultyState()
    with Bus("data", files=FaultyFiles(), state=state) as bus:
        publish(bus, 4)
        sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
        messages = sub.batch(4, 0)
        for answer, kind in (
            (messages[1].ack, b"A"),
            (messages[2].nack, b"F"),
            (messages[3].reject, b"L"),
            (messages[0].ack, b"C"),
        ):
            before = {key: row for key, row in state.durable().items() if key.startswith(kind)}
            answer()
            assert {key: row for key, row in state.durable().items() if key.startswith(kind)} != before


def test_acks_of_a_moment_go_into_one_write(bus: Bus, state: GatedState) -> None:
    publish(bus, 50)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
    messages = sub.batch(50, 0)
    state.gate.clear()
    before = state.writes
    leader, _ = in_thread(messages[0].ack)
    assert state.waiting.wait(WAIT_S)
    others = [in_thread(message.ack)[0] for message in messages[1:]]
    for message in messages[1:]:
        message.ack(wait=False)
    state.gate.set()
    for thread in (leader, *others):
        thread.join(WAIT_S)
    bus.subscriptions()
    assert state.writes - before <= 5


def test_an_ack_of_many_is_one_write(bus: Bus, state: GatedState) -> None:
    publish(bus, 60)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = [message for _ in range(6) for message in sub.batch(10, 0)]
    before = state.writes
    sub.ack(messages)
    assert state.writes - before == 1
    assert bus.subscriptions()[0].floors == {"jobs": 60}


def test_when_the_state_store_fails_whoever_acks_is_told_and_what_memory_knows_is_stored_with_the_next(
    bus: Bus, state: GatedState
) -> None:
    publish(bus, 3)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = sub.batch(3, 0)
    state.error = OSError("no such luck")
    with pytest.raises(Failed, match="no such luck"):
        messages[0].ack()
    state.error = None
    assert any(event.kind == "trouble" for event in bus.events())
    assert bus.publish("jobs/x", b"").offset == 4
    messages[1].ack()
    assert [int.from_bytes(row, "big") for _, row in state.scan(rows.FLOOR)] == [2]
    bus.close()


# Handing out


def test_a_busy_root_does_not_starve_the_others(bus: Bus) -> None:
    sub = bus.subscribe("#", id="s", start="earliest", order="none", max_in_flight=10)
    publish(bus, 100, "busy/x")
    publish(bus, 3, "quiet/x")
    seen: list[str] = []
    for _ in range(4):
        messages = sub.batch(10, 0)
        seen += [message.root for message in messages]
        sub.ack(messages)
    assert seen.count("quiet") == 3


def test_a_batch_is_handed_out_piece_by_piece(bus: Bus) -> None:
    publish(bus, 10)
    sub = bus.subscribe("jobs/#", id="s", start=3)
    assert [payloads(sub.batch(size, 0)) for size in (1, 3, 100)] == [
        [b"2"],
        [b"3", b"4", b"5"],
        [b"6", b"7", b"8", b"9"],
    ]


def test_what_is_handed_out_again_keeps_its_place_and_says_which_attempt_it_is(bus: Bus, clock: ManualClock) -> None:
    publish(bus, 4)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
    messages = sub.batch(4, 0)
    for place in (2, 0):
        messages[place].nack("no", delay_s=5)
    clock.advance(5)
    again = sub.batch(10, 0)
    assert [(message.payload, message.attempt) for message in again] == [(b"0", 2), (b"2", 2)]


def test_a_lease_of_what_is_handed_out_again_has_its_messages_in_the_order_of_their_offsets(bus: Bus) -> None:
    for number in range(20):
        bus.publish("jobs/x", b"", key=b"%d" % (number % 3))
    first, other = (bus.subscribe("jobs/#", id="s", start="earliest", order="key") for _ in range(2))
    first.batch(20, 0)
    first.close()
    found = other.batch(20, 0)
    assert sorted(message.offset for message in found) == list(range(1, 21))
    assert [message.offset for message in found] != list(range(1, 21)), "not key by key"
    leases = [message.origin.lease.offsets for message in found]
    assert all(offsets == sorted(offsets) for offsets in leases), leases


def test_messages_that_are_gone_by_the_time_of_their_retry_are_passed_over(bus: Bus, clock: ManualClock) -> None:
    bus.publish_many([Outgoing("jobs/a", b"1", ttl_s=5), Outgoing("jobs/b", b"2"), Outgoing("jobs/a", b"3")])
    sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
    for message in sub.batch(3, 0):
        message.nack("no", delay_s=10)
    bus.purge("jobs/b")
    clock.advance(10)
    assert payloads(sub.batch(10, 0)) == [b"3"]
    assert states(bus) == [(3, "in_flight")]


def test_a_standby_gets_nothing_and_the_active_everything(bus: Bus) -> None:
    active, standby = (bus.subscribe("jobs/#", id="s", start="earliest") for _ in range(2))
    publish(bus, 3)
    assert standby.batch(10, 0) == []
    assert payloads(active.batch(10, 0)) == [b"0", b"1", b"2"]
    assert standby.batch(10, 0) == []


# Time


def test_an_ack_timeout_fires_while_nobody_asks(bus: Bus, clock: ManualClock) -> None:
    publish(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", ack_timeout_s=30)
    sub.batch(2, 0)
    clock.advance(30)
    settle(bus)
    assert states(bus) == [(1, "retry"), (2, "pending")]


def test_an_ack_timeout_fires_though_a_retry_is_due_that_nobody_takes(bus: Bus, clock: ManualClock) -> None:
    publish(bus, 2)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none", ack_timeout_s=30)
    held, failed = sub.batch(2, 0)
    failed.nack("no", delay_s=1)
    clock.advance(1)
    settle(bus)
    assert states(bus) == [(1, "in_flight"), (2, "retry")]
    clock.advance(30)
    settle(bus)
    assert states(bus) == [(1, "retry"), (2, "retry")]
    with pytest.raises(Recalled):
        held.ack()


def test_each_hand_out_has_a_timeout_of_its_own(bus: Bus, clock: ManualClock) -> None:
    publish(bus, 3)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none", ack_timeout_s=30)
    for _ in range(3):
        sub.batch(1, 0)
        clock.advance(10)
    settle(bus)
    assert [state for _, state in states(bus)] == ["retry", "in_flight", "in_flight"]
    clock.advance(10)
    settle(bus)
    assert [state for _, state in states(bus)] == ["retry", "retry", "in_flight"]


def test_leases_that_are_over_take_no_memory(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s", start="earliest", max_in_flight=4)
    publish(bus, 2000)
    for _ in range(2000):
        messages = sub.batch(1, 0)
        sub.ack(messages, wait=False)
    assert len(sub.subscriber.timeouts.deadlines) < 200  # type: ignore[attr-defined]


# Waking


def test_a_consumer_that_waits_is_woken_by_what_it_waits_for_and_by_nothing_else(bus: Bus) -> None:
    sub = bus.subscribe("jobs/x", id="s")
    before = sub.subscriber.waiters.version  # type: ignore[attr-defined]
    publish(bus, 3, "jobs/y")
    publish(bus, 3, "other/x")
    assert sub.subscriber.waiters.version == before  # type: ignore[attr-defined]
    publish(bus, 1)
    assert sub.subscriber.waiters.version > before  # type: ignore[attr-defined]


def test_wakers_are_called_and_can_be_taken_away(bus: Bus) -> None:
    sub = bus.subscribe("jobs/#", id="s")
    called: list[None] = []
    sub.subscriber.waiters.set(sub.ticket, lambda: called.append(None))  # type: ignore[attr-defined]
    publish(bus, 1)
    assert called
    sub.subscriber.waiters.set(sub.ticket, None)  # type: ignore[attr-defined]
    called.clear()
    publish(bus, 1)
    assert called == []


def test_an_ack_soon_is_told_by_its_future(bus: Bus, state: GatedState) -> None:
    publish(bus, 1)
    sub = bus.subscribe("jobs/#", id="s", start="earliest")
    messages = sub.batch(1, 0)
    state.gate.clear()
    future = sub.subscriber.settlement.ack_soon(messages)  # type: ignore[attr-defined]
    assert not future.done()
    state.gate.set()
    assert future.result(WAIT_S) is None
    assert sub.subscriber.settlement.ack_soon([]).result(WAIT_S) is None  # type: ignore[attr-defined]


# Lag


def test_lag_counts_what_matches_and_is_not_acked_however_far_the_consumer_is(bus: Bus, clock: ManualClock) -> None:
    def lag() -> int:
        return bus.subscriptions()[0].lag

    sub = bus.subscribe("jobs/+", id="s", start="earliest", order="none", max_in_flight=10)
    assert lag() == 0
    for number in range(20):
        bus.publish("jobs/x" if number % 2 else "jobs/x/y", b"")
    assert lag() == lag() == 10
    messages = sub.batch(4, 0)
    assert lag() == 10
    sub.ack(messages[:2])
    messages[2].nack("no", delay_s=5)
    messages[3].reject("never")
    assert lag() == 7
    bus.publish("jobs/x", b"")
    assert lag() == 8
    sub.close()
    assert lag() == 8
    sub = bus.subscribe("jobs/+", id="s")
    clock.advance(5)
    sub.ack(sub.batch(100, 0))
    sub.ack(sub.batch(100, 0))
    assert lag() == 0


# Threads


@pytest.mark.parametrize("order", ["strict", "key", "none"])
def test_consumers_in_many_threads_that_fail_now_and_then_get_everything_done_once(order: str) -> None:
    total, keys = 300, 5
    with headwater.open(":memory:", Config(retry_delay_s=0, retry_delay_s_max=0)) as bus:
        bus.publish_many([Outgoing("jobs/x", b"%d" % n, key=b"%d" % (n % keys)) for n in range(total)])
        done: list[int] = []
        lock = threading.Lock()
        finished = threading.Event()

        def consume(number: int) -> None:
            with bus.subscribe(  # type: ignore[call-overload]
                "jobs/#", id="s", start="earliest", order=order, max_attempts=0, max_in_flight=16
            ) as sub:
                while not finished.is_set():
                    for message in sub.batch(4, timeout_s=0.02):
                        try:
                            if message.attempt == 1 and int(message.payload) % 7 == number:
                                message.nack("not by me")
                                continue
                            with lock:  # as done before the ack, as a consumer's own work is
                                message.ack(wait=False)
                                done.append(int(message.payload))
                        except Recalled:
                            continue
                    if len(done) >= total:
                        finished.set()

        threads = [in_thread(partial(consume, number)) for number in range(4)]
        for thread, results in threads:
            thread.join(WAIT_S)
            assert results == [None]
        assert sorted(done) == list(range(total))
        if order == "strict":
            assert done == sorted(done)
        if order == "key":
            for key in range(keys):
                mine = [number for number in done if number % keys == key]
                assert mine == sorted(mine)
        assert bus.subscriptions()[0].lag == 0


def test_seeking_and_pausing_amid_consumers_breaks_nothing(bus: Bus) -> None:
    publish(bus, 200)
    sub = bus.subscribe("jobs/#", id="s", start="earliest", order="none")
    stop = threading.Event()

    def consume() -> None:
        with bus.subscribe("jobs/#", id="s") as mine:
            while not stop.is_set():
                for message in mine.batch(10, 0):
                    try:
                        message.ack(wait=False)
                    except Recalled:
                        pass

    threads = [in_thread(consume) for _ in range(3)]
    for number in range(40):
        sub.seek(1 + number)
        sub.pause()
        sub.resume()
    stop.set()
    for thread, results in threads:
        thread.join(WAIT_S)
        assert results == [None]
    sub.seek("earliest")
    found: list[Message] = []
    while messages := sub.batch(100, 0):
        sub.ack(messages)
        found += messages
    assert payloads(found) == [b"%d" % number for number in range(200)]


def test_a_consumer_that_gives_back_what_it_holds_stays_and_takes_it_again_in_order(bus: Bus) -> None:
    consumer = bus.subscribe("jobs/#", id="s", start="earliest")
    publish(bus, 3)
    assert payloads(consumer.batch(2)) == [b"0", b"1"]
    consumer.subscriber.consumers.give_back(consumer.ticket)  # type: ignore[attr-defined]
    assert [(message.payload, message.attempt) for message in consumer.batch(10)] == [(b"0", 1), (b"1", 1), (b"2", 1)]


def test_what_memory_reflects_is_stored_first_when_the_state_takes_writes_again() -> None:
    state = FaultyState()
    state.mends = True
    with headwater.open(":memory:", state=state) as bus:
        publish(bus, 4)
        sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=1)
        messages = sub.batch(4, 0)
        messages[0].ack()
        state.fail_sync_at = state.syncs + 1
        with pytest.raises(Failed):
            messages[1].reject("no good")
        with pytest.raises(Unwritable):
            messages[2].ack()
        assert not [key for key in state.durable() if key.startswith(rows.DEAD)]
        assert bus.core.rows.resume()
        assert [key for key in state.durable() if key.startswith(rows.DEAD)]
        messages[2].ack()
        assert [int.from_bytes(row, "big") for key, row in state.durable().items() if key[:1] == rows.FLOOR] == [3]


def test_a_subscription_that_could_not_be_stored_is_not_there_and_its_number_is_given_once() -> None:
    state = FaultyState()
    state.mends = True
    with headwater.open(":memory:", state=state) as bus:
        bus.subscribe("jobs/#", id="first").close()
        state.fail_sync_at = state.syncs + 1
        with pytest.raises(Failed):
            bus.subscribe("jobs/#", id="second")
        assert bus.core.rows.resume()
        assert [info.id for info in bus.subscriptions()] == ["first"]
        bus.subscribe("jobs/#", id="third").close()
        assert len({row.number for row in bus.core.dispatcher.directory.each()}) == 2


def test_what_bytes_kept_back_is_told_though_the_messages_that_left_were_small(bus: Bus) -> None:
    bus.subscribe("jobs/#", id="s", start="earliest").close()
    bus.publish_many([("jobs/x", b"1"), ("jobs/x", bytes(5000)), ("jobs/x", b"3")])
    ticket, told = Remote("a"), list[int]()
    subscriber = bus.core.dispatcher.attach(Options(id="s", filter="jobs/#"), {}, "latest", ticket)
    subscriber.waiters.set(ticket, lambda: told.append(1))
    (first,) = subscriber.hand(ticket, 10, 1000, Budget())
    assert (first.count, told) == (1, [1])
    assert sum(one.count for one in subscriber.hand(ticket, 10, 10_000, Budget())) == 2
