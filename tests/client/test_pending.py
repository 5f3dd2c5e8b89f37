"""Receipts on their way: to everybody who has one they are futures as any other."""

from __future__ import annotations

import concurrent.futures
import threading
import time

import pytest

from headwater.client.pending import Pending
from headwater.message import Receipt

RECEIPT = Receipt("home/a", 1, 5, False)


@pytest.fixture
def lock() -> threading.Condition:
    return threading.Condition()


def started(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_receipt_is_there_once_it_is_settled(lock: threading.Condition) -> None:
    one = Pending(lock)
    assert not one.done()
    with pytest.raises(TimeoutError):
        one.result(0.001)
    with pytest.raises(TimeoutError):
        one.exception(0.001)
    assert one._waiters == []  # nobody who gave up is remembered
    Pending.settle(lock, [(one, RECEIPT)])
    assert (one.done(), one.result(), one.exception(0)) == (True, RECEIPT, None)


def test_each_of_many_who_wait_is_woken_by_its_own_and_by_no_other(lock: threading.Condition) -> None:
    pending = [Pending(lock) for _ in range(20)]
    found: dict[int, Receipt] = {}

    def wait(place: int) -> None:
        found[place] = pending[place].result(10)

    threads = [started(lambda place=place: wait(place)) for place in range(20)]
    while any(not one._waiters for one in pending):
        time.sleep(0.001)
    Pending.settle(lock, [(one, RECEIPT) for one in pending[:10]])
    for thread in threads[:10]:
        thread.join(10)
    assert sorted(found) == list(range(10))
    assert all(thread.is_alive() for thread in threads[10:])
    Pending.settle(lock, [(one, RECEIPT) for one in pending[10:]])
    for thread in threads:
        thread.join(10)
    assert sorted(found) == list(range(20))


def test_an_error_is_raised_to_whoever_waits(lock: threading.Condition) -> None:
    one = Pending(lock)
    errors: list[BaseException | None] = []
    thread = started(lambda: errors.append(one.exception(10)))
    while not one._waiters:
        time.sleep(0.001)
    one.set_exception(ValueError("no"))
    thread.join(10)
    assert repr(errors) == "[ValueError('no')]"
    with pytest.raises(ValueError, match="no"):
        one.result()


def test_one_that_was_cancelled_stays_so_and_its_waiter_is_woken(lock: threading.Condition) -> None:
    one, other = Pending(lock), Pending(lock)
    met: list[str] = []

    def wait() -> None:
        try:
            one.result(10)
        except concurrent.futures.CancelledError:
            met.append("cancelled")

    thread = started(wait)
    while not one._waiters:
        time.sleep(0.001)
    assert one.cancel()
    thread.join(10)
    assert met == ["cancelled"]
    Pending.settle(lock, [(one, RECEIPT), (other, RECEIPT)])
    assert one.cancelled()
    assert other.result(0) == RECEIPT
    assert not other.cancel()


def test_callbacks_and_the_functions_of_the_standard_library_work(lock: threading.Condition) -> None:
    pending = [Pending(lock) for _ in range(3)]
    called: list[Receipt] = []
    pending[0].add_done_callback(lambda one: called.append(one.result()))
    timer = threading.Timer(0.05, lambda: Pending.settle(lock, [(one, RECEIPT) for one in pending]))
    timer.start()
    assert concurrent.futures.wait(pending, 10).not_done == set()
    assert [one.result() for one in concurrent.futures.as_completed(pending, 10)] == [RECEIPT] * 3
    timer.join()
    assert called == [RECEIPT]
    pending[1].add_done_callback(lambda one: called.append(one.result()))
    assert called == [RECEIPT] * 2
