"""Handlers that are run in threads, embedded and served: acks, failures, order, turns, and how it stops."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwater
import headwater.bus
from headwater import Conflict, Malformed, Message, Reject, Retry
from headwater.work.pace import Pace
from headwater.work.pool import FLUSH_US
from work.shifts import WAIT_S, running, until


def publish(bus: Any, count: int, topic: str = "a/b") -> None:
    bus.publish_many([(topic, b"%d" % number) for number in range(count)])


def lag(bus: Any, id: str = "s") -> int:
    found: int = next(one.lag for one in bus.subscriptions() if one.id == id)
    return found


def test_a_message_whose_handler_returns_is_acked_in_order_once(bus: Any) -> None:
    publish(bus, 500)
    seen: list[int] = []

    @bus.handler("a/#", id="s", start="earliest", workers=4)  # type: ignore[untyped-decorator]  # of any bus
    def handle(message: Message) -> None:
        seen.append(message.offset)

    with running(bus) as shift:
        until(lambda: len(seen) == 500)
        publish(bus, 100)
        until(lambda: len(seen) == 600)
    assert seen == list(range(1, 601))
    assert shift.tally() == {"done": 600, "retried": 0, "rejected": 0, "recalled": 0}
    assert lag(bus) == 0
    assert bus.subscriptions()[0].in_flight == 0


def test_an_exception_nacks_with_its_traceback_and_holds_back_what_is_behind_it(bus: Any, caplog: Any) -> None:
    publish(bus, 10)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if message.offset == 4 and message.attempt < 3:
            raise ValueError("too\nhot")

    bus.consume("a/#", handle, id="s", start="earliest", retry_delay_s=0, max_attempts=5)
    with caplog.at_level(logging.WARNING, "headwater.work"), running(bus) as shift:
        until(lambda: len(seen) == 12)
    expected = [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (4, 3), *((offset, 1) for offset in range(5, 11))]
    assert seen == expected
    assert shift.tally() == {"done": 10, "retried": 2, "rejected": 0, "recalled": 0}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "handle failed message 4" in lines[0]
    assert "attempt 1: ValueError: too hot" in lines[0]


def test_what_fails_to_the_end_is_a_dead_letter_with_its_tracebacks(bus: Any) -> None:
    publish(bus, 2)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 1:
            raise ValueError("always")

    bus.consume("a/#", handle, id="s", start="earliest", retry_delay_s=0, max_attempts=2)
    with running(bus):
        until(lambda: seen == [1, 1, 2])
    (letter,) = bus.dead_letters("s")
    assert letter.attempts == 2
    assert all(error.startswith("ValueError: always\n") and "in handle" in error for error in letter.errors)
    assert "pool.py" not in letter.errors[0]


def test_reject_makes_a_dead_letter_and_what_is_behind_it_goes_on(bus: Any) -> None:
    publish(bus, 3)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 2:
            raise Reject("no such room")

    bus.consume("a/#", handle, id="s", start="earliest")
    with running(bus) as shift:
        until(lambda: len(seen) == 3)
    assert seen == [1, 2, 3]
    assert shift.tally() == {"done": 2, "retried": 0, "rejected": 1, "recalled": 0}
    assert [letter.errors for letter in bus.dead_letters("s")] == [("no such room",)]


def test_retry_chooses_the_delay(bus: Any) -> None:
    publish(bus, 1)
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise Retry("busy", after_s=0)
        raise Retry("later", after_s=3000)

    bus.consume("a/#", handle, id="s", start="earliest", retry_delay_s=300)
    with running(bus):
        until(lambda: attempts == [1, 2, 3])
        until(lambda: bus.subscriptions()[0].retrying == 1)
    assert [one.errors for one in bus.states("s")] == [("busy", "busy", "later")]


@pytest.mark.parametrize("after_s", [-1, float("nan"), float("inf"), "soon"])
def test_a_delay_that_cannot_be_is_malformed(after_s: Any) -> None:
    with pytest.raises(Malformed, match="after_s"):
        Retry("why", after_s=after_s)


def test_a_delay_over_the_limit_is_one_of_the_bus_own(bus: Any) -> None:
    publish(bus, 1)
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            raise Retry("too late", after_s=1e12)

    bus.consume("a/#", handle, id="s", start="earliest", retry_delay_s=0)
    with running(bus):
        until(lambda: len(attempts) == 2)
    assert attempts == [1, 2]


def test_what_the_handler_said_itself_counts(bus: Any) -> None:
    publish(bus, 4)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if message.offset == 1:
            message.ack()
        elif message.offset == 2 and message.attempt == 1:
            message.nack("by hand", delay_s=0)
        elif message.offset == 3:
            message.reject("by hand")

    bus.consume("a/#", handle, id="s", start="earliest", order="none", workers=1)
    with running(bus):
        until(lambda: len(seen) == 5)
    assert sorted(seen) == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
    assert lag(bus) == 0
    assert [letter.offset for letter in bus.dead_letters("s")] == [3]


def test_strict_order_is_one_at_a_time_however_many_workers_are_stated(bus: Any) -> None:
    publish(bus, 40)
    at_work, most, seen = 0, 0, []
    lock = threading.Lock()

    def handle(message: Message) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        threading.Event().wait(0.002)
        seen.append(message.offset)
        with lock:
            at_work -= 1

    bus.consume("a/#", handle, id="s", start="earliest", workers=8)
    with running(bus):
        until(lambda: len(seen) == 40)
    assert (most, seen) == (1, list(range(1, 41)))


def test_without_order_as_many_as_stated_work_at_once(bus: Any) -> None:
    publish(bus, 12)
    together = threading.Barrier(3)
    seen: list[int] = []

    def handle(message: Message) -> None:
        together.wait(WAIT_S)  # which only passes if three are here
        seen.append(message.offset)

    bus.consume("a/#", handle, id="s", start="earliest", order="none", workers=3)
    with running(bus, workers=5) as shift:
        until(lambda: len(seen) == 12)
    assert sorted(seen) == list(range(1, 13))
    assert shift.tally()["done"] == 12


def test_keyed_order_is_kept_within_each_key_by_several_workers_and_under_failures(bus: Any) -> None:
    for number in range(60):
        bus.publish("a/b", b"%d" % number, key=b"%d" % (number % 7))
    seen: dict[bytes, list[int]] = defaultdict(list)
    busy: set[bytes] = set()
    wrong: list[int] = []
    together = threading.Barrier(2)
    met = threading.Event()
    failed: set[int] = set()

    def handle(message: Message) -> None:
        assert message.key is not None
        if message.key in busy:
            wrong.append(message.offset)
        busy.add(message.key)
        try:
            if not met.is_set():
                try:
                    together.wait(1)
                    met.set()
                except threading.BrokenBarrierError:
                    together.reset()
            if message.offset % 10 == 0 and message.offset not in failed:
                failed.add(message.offset)
                raise ValueError("once")
            seen[message.key].append(message.offset)
        finally:
            busy.discard(message.key)

    bus.consume("a/#", handle, id="s", start="earliest", order="key", workers=4, retry_delay_s=0)
    with running(bus) as shift:
        until(lambda: sum(map(len, seen.values())) >= 60 and lag(bus) == 0)
    assert not wrong
    assert met.is_set(), "two keys were never worked on at once"
    assert all(offsets == sorted(offsets) for offsets in seen.values()), seen
    assert sum(map(len, seen.values())) == 60
    # Nothing of a key is begun while a failure of it is said: so nothing that is handled was recalled.
    assert shift.tally() == {"done": 60, "retried": 6, "rejected": 0, "recalled": 0}


def test_live_subscriptions_take_handlers_and_go_on_after_a_failure(bus: Any, caplog: Any) -> None:
    bus.publish("a/retained", b"0", retain=True)
    seen: list[bytes] = []

    @bus.handler("a/#")  # type: ignore[untyped-decorator]  # of any bus
    def handle(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == b"0":
            raise ValueError("no")

    with running(bus) as shift:
        until(lambda: seen == [b"0"])
        publish(bus, 3)
        until(lambda: len(seen) == 4)
    assert seen == [b"0", b"0", b"1", b"2"]
    assert shift.tally() == {"done": 2, "retried": 2, "rejected": 0, "recalled": 0}
    assert "(live): ValueError: no" in caplog.text


def test_a_handler_that_is_registered_while_others_run_is_run_too(bus: Any) -> None:
    seen: list[str] = []
    bus.consume("a/#", lambda message: seen.append(message.topic), id="a")
    with running(bus) as shift:
        until(lambda: bool(bus.subscriptions()))
        bus.consume("b/#", lambda message: seen.append(message.topic), id="b")
        bus.publish("a/1", b"")
        bus.publish("b/1", b"")
        until(lambda: sorted(seen) == ["a/1", "b/1"])
        with pytest.raises(Conflict, match="already"):
            bus.run()
    assert [tally.subscription for tally in shift.shift.handlers] == ["a", "b"]


def test_it_ends_when_no_subscription_is_left(bus: Any) -> None:
    seen: list[int] = []
    bus.publish("a/1", b"")
    bus.consume("a/#", lambda message: seen.append(message.offset), id="s", start="earliest")
    with running(bus):
        until(lambda: seen == [1])
        until(lambda: lag(bus) == 0)
        ended = threading.Thread(target=bus._workers.pool.wait)
        ended.start()
        bus.unsubscribe("s")
        ended.join(WAIT_S)
        assert not ended.is_alive()


def test_close_finishes_what_is_begun_and_gives_back_what_is_not(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        begun.set()
        go.wait(WAIT_S)
        seen.append(message.offset)

    with headwater.open(tmp_path) as bus:
        publish(bus, 10)
        bus.consume("a/#", handle, id="s", start="earliest")
        with running(bus):
            assert begun.wait(WAIT_S)
            closing = threading.Thread(target=bus.close)
            closing.start()
            until(lambda: bus._workers.pool is None or bus._workers.pool.is_stopping)
            go.set()
            closing.join(WAIT_S)
            assert not closing.is_alive()
    with headwater.open(tmp_path) as bus, bus.subscribe("a/#", id="s") as sub:
        message = sub.next(WAIT_S)
        assert message is not None
        assert (message.offset, message.attempt) == (len(seen) + 1, 1)


def test_a_handler_may_close_its_bus(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as bus:
        publish(bus, 3)
        bus.consume("a/#", lambda _: bus.close(), id="s", start="earliest")
        with running(bus):
            until(lambda: bus._workers.pool is None)


def test_what_waits_behind_a_slow_message_keeps_its_time(bus: Any) -> None:
    """Nothing of a batch times out while a message before it takes most of its own time."""
    publish(bus, 6)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        threading.Event().wait(0.4)

    bus.consume("a/#", handle, id="s", start="earliest", ack_timeout_s=1, order="key", workers=1)
    # As if its handler had been quick until now: all six are taken at once.
    with running(bus) as shift:
        until(lambda: bus._workers.pool is not None and bool(bus._workers.pool.roster.queues))
        bus._workers.pool.roster.queues[0].pace.size = 6
        until(lambda: len(seen) >= 6 and lag(bus) == 0)
    assert seen == [(offset, 1) for offset in range(1, 7)]
    assert shift.tally()["done"] == 6


def test_a_handler_that_takes_longer_than_its_ack_timeout_is_told_of_and_order_holds(bus: Any, caplog: Any) -> None:
    publish(bus, 3)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if message.offset == 2 and message.attempt == 1:
            until(lambda: any(one.attempts for one in bus.states("s")))

    bus.consume("a/#", handle, id="s", start="earliest", ack_timeout_s=0.3, retry_delay_s=0)
    with running(bus) as shift:
        until(lambda: len(seen) >= 4 and lag(bus) == 0)
    assert seen == [(1, 1), (2, 1), (2, 2), (3, 1)]
    assert shift.tally() == {"done": 3, "retried": 0, "rejected": 0, "recalled": 1}
    assert "handled but not acked" in caplog.text


def test_what_came_again_while_a_handler_took_too_long_is_handled_at_once(bus: Any) -> None:
    """It waits behind what was taken back, which alone is dropped."""
    publish(bus, 2)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if len(seen) == 1:
            jobs = bus._workers.pool.roster.queues[0]._jobs
            until(lambda: any(one.attempt == 2 for job in jobs for one in tuple(job.messages)))

    bus.consume("a/#", handle, id="s", start="earliest", order="key", workers=2, ack_timeout_s=0.5, retry_delay_s=0)
    with running(bus) as shift:
        until(lambda: len(seen) >= 3 and lag(bus) == 0)
    assert seen == [(1, 1), (1, 2), (2, 1)]
    assert shift.tally() == {"done": 2, "retried": 0, "rejected": 0, "recalled": 1}


@pytest.mark.parametrize("order", ["strict", "key"])
@pytest.mark.parametrize(("ack_timeout_s", "raises"), [(0, False), (300, True)])
def test_what_is_behind_a_message_that_its_handler_acked_is_handled_at_once(
    bus: Any, order: str, ack_timeout_s: float, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of it later is refused, though nothing was taken back."""
    monkeypatch.setattr(Pace, "note", lambda *_: None)
    for _ in range(6):
        publish(bus, 1)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 1:  # until all others can be taken at once
            bus._workers.pool.roster.queues[0].pace.size = 6
            until(lambda: isinstance(bus, headwater.bus.Bus) or bus.subscriptions()[0].in_flight == 6)
        elif message.offset == 2:
            message.ack()
            threading.Event().wait(2 * FLUSH_US / 1e6)
            if raises:
                raise ValueError("after all")

    bus.consume("a/#", handle, id="s", start="earliest", order=order, workers=2, ack_timeout_s=ack_timeout_s)
    with running(bus):
        until(lambda: len(seen) == 6 and lag(bus) == 0)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_what_was_handled_is_acked_while_a_message_behind_it_is_stuck(bus: Any) -> None:
    publish(bus, 6)
    stuck = threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset)
        if message.offset == 6:
            stuck.wait(WAIT_S)

    bus.consume("a/#", handle, id="s", start="earliest")
    with running(bus):
        try:
            until(lambda: len(seen) == 6 and lag(bus) == 1)
        finally:
            stuck.set()
    assert lag(bus) == 0


def test_others_take_over_what_waits_behind_a_message_that_is_stuck(bus: Any) -> None:
    publish(bus, 20)
    stuck = threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        if message.offset == 1:
            stuck.wait(WAIT_S)
        seen.append(message.offset)

    bus.consume("a/#", handle, id="s", start="earliest", order="none", workers=2)
    with running(bus):
        try:
            until(lambda: len(seen) == 19)
        finally:
            stuck.set()
    assert sorted(seen) == list(range(1, 21))


def test_a_thousand_subscriptions_share_eight_workers_in_turns() -> None:
    waits: dict[str, int] = {}
    count, done = 0, threading.Event()
    lock = threading.Lock()

    def handler(id: str) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            nonlocal count
            with lock:
                count += 1
                if message.offset == 20:
                    waits[id] = count
                if len(waits) == 1000:
                    done.set()

        return handle

    with headwater.open(":memory:") as bus:
        publish(bus, 20)
        for number in range(1000):
            bus.consume("a/#", handler(str(number)), id=str(number), start="earliest")
        before = threading.active_count()
        with running(bus, workers=8) as shift:
            until(lambda: bool(waits))
            threads = threading.active_count()
            assert done.wait(WAIT_S)
    # One for the runner itself, and the bus's own: who commits, and who rings timers.
    assert threads - before <= 8 + 4
    ordered = sorted(waits.values())
    assert ordered[-1] <= 3 * ordered[500]
    assert shift.shift.done == 20_000


def test_a_busy_subscription_does_not_hold_up_the_others() -> None:
    seen: list[str] = []
    with headwater.open(":memory:") as bus:
        publish(bus, 2000, "busy/1")
        publish(bus, 10, "calm/1")

        def slow(_: Message) -> None:
            threading.Event().wait(0.001)
            seen.append("busy")

        bus.consume("busy/#", slow, id="busy", start="earliest")
        bus.consume("calm/#", lambda _: seen.append("calm"), id="calm", start="earliest")
        with running(bus, workers=1):
            until(lambda: seen.count("calm") == 10)
    assert seen.index("calm") < 50
    assert seen.count("busy") < 500


def test_a_worker_outlives_what_nobody_expects(bus: Any, caplog: Any) -> None:
    seen: list[int] = []
    bus.consume("a/#", lambda message: seen.append(message.offset), id="s", start="earliest")
    with running(bus, workers=1):
        until(lambda: bus._workers.pool is not None and bool(bus._workers.pool.roster.queues))
        queue = bus._workers.pool.roster.queues[0]
        poll = queue._poll

        def fails_once(size: int) -> Any:
            queue._poll = poll
            raise KeyError("of nobody's")

        queue._poll = fails_once
        publish(bus, 3)
        until(lambda: seen == [1, 2, 3])
    assert "could not be worked on" in caplog.text


@pytest.mark.parametrize("order", ["strict", "key"])
def test_what_a_handler_says_by_hand_counts_and_nothing_behind_a_nack_is_begun(
    bus: Any, order: str, caplog: Any
) -> None:
    publish(bus, 8)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if message.offset == 2:
            message.ack()
        elif message.offset == 4 and message.attempt == 1:
            message.nack("not yet")
        elif message.offset == 6:
            message.reject("never")

    bus.consume("a/#", handle, id="s", start="earliest", order=order, retry_delay_s=0)
    with caplog.at_level(logging.WARNING, "headwater.work"), running(bus) as shift:
        until(lambda: len(seen) == 9)
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (5, 1), (6, 1), (7, 1), (8, 1)]
    assert shift.tally() == {"done": 7, "retried": 1, "rejected": 1, "recalled": 0}
    assert [letter.errors for letter in bus.dead_letters("s")] == [("never",)]
    assert lag(bus) == 0
    assert not caplog.records


def test_an_error_after_an_ack_by_hand_is_logged_and_changes_nothing(bus: Any, caplog: Any) -> None:
    publish(bus, 2)
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset)
        message.ack()
        raise ValueError("too late")

    bus.consume("a/#", handle, id="s", start="earliest", retry_delay_s=0)
    with caplog.at_level(logging.WARNING, "headwater.work"), running(bus) as shift:
        until(lambda: len(seen) == 2)
    assert lag(bus) == 0
    assert seen == [1, 2]
    assert shift.tally() == {"done": 2, "retried": 0, "rejected": 0, "recalled": 0}
    assert len(caplog.records) == 2
    assert all("failed after its ack of message" in one.getMessage() for one in caplog.records)


def test_a_block_within_a_handler_says_what_becomes_of_its_message(bus: Any, caplog: Any) -> None:
    publish(bus, 2)
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        with message:
            seen.append((message.offset, message.attempt))
            if message.attempt == 1 and message.offset == 1:
                raise Retry("busy", after_s=0)

    bus.consume("a/#", handle, id="s", start="earliest")
    with caplog.at_level(logging.WARNING, "headwater.work"), running(bus) as shift:
        until(lambda: len(seen) == 3)
    assert seen == [(1, 1), (1, 2), (2, 1)]
    assert shift.tally() == {"done": 2, "retried": 1, "rejected": 0, "recalled": 0}
    assert not caplog.records


def test_a_handler_that_returns_what_nobody_runs_has_failed(bus: Any) -> None:
    publish(bus, 2)

    seen: list[int] = []

    async def really(message: Message) -> None: ...

    def handle(message: Message) -> Any:
        seen.append(message.offset)
        return really(message)

    bus.consume("a/#", handle, id="s", start="earliest", max_attempts=1)
    with running(bus):
        until(lambda: len(seen) == 2)
    letters = bus.dead_letters("s")
    assert len(letters) == 2
    assert "it returned a coroutine" in letters[0].errors[0]
    assert "really" in letters[0].errors[0]
