"""A subscription as workers see it: what waits, in which order, and what is dropped behind what failed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from headwater.errors import Closed, Failed, Gap, HeadwaterError, QuotaExceeded
from headwater.message import Message
from headwater.work.handlers import handler_of
from headwater.work.pace import GROWTH, SIZE_MAX, SLICE_US, Pace
from headwater.work.queue import RETRY_US, Queue
from headwater.work.roster import Roster


def message(offset: int, key: bytes | None = None, topic: str = "a/b") -> Message:
    return Message(topic, offset, b"", 0, key)


def queue(found: list[Message], workers: int = 4, **options: Any) -> Queue:
    """A queue over messages that are there."""

    def poll(size: int) -> list[Message]:
        taken = found[:size]
        del found[:size]
        return taken

    made = Queue(handler_of("a/#", print, id="s", **options), None, poll, workers)
    made.pace.size = 100
    return made


def offsets(job: Any) -> list[int]:
    return [one.offset for one in job.messages]


def test_a_strict_queue_has_one_worker_and_drops_what_is_behind_a_failure() -> None:
    made = queue([message(offset) for offset in range(1, 6)], order="strict")
    assert made.limit == 1
    job = made.take(0)
    assert job is not None
    failed = job.messages.popleft()
    made.begin_failing()
    assert made.take(0) is None
    (chain,) = made.behind(job, (failed,))
    made.end_failing(job, chain)
    assert offsets(job) == []


def test_a_keyed_queue_keeps_a_key_in_one_job_and_drops_that_key_alone() -> None:
    messages = [message(offset, b"%d" % (offset % 5)) for offset in range(1, 41)]
    made = queue(messages, order="key")
    jobs = []
    while (job := made.take(0)) is not None:
        jobs.append(job)
    where = Counter(one.key for job in jobs for one in {m.key: m for m in job.messages}.values())
    assert set(where.values()) == {1}
    assert sum(len(job.messages) for job in jobs) == 40
    assert all(offsets(job) == sorted(offsets(job)) for job in jobs)
    job = max(jobs, key=lambda one: len(one.messages))
    failed = job.messages.popleft()
    made.begin_failing()
    (chain,) = made.behind(job, (failed,))
    assert {one.key for one in chain} == {failed.key}
    made.end_failing(job, chain)
    assert failed.key not in {one.key for one in job.messages}


def test_what_comes_for_a_key_that_is_worked_on_waits_in_its_job() -> None:
    there = [message(1, b"k")]
    made = queue(there, order="key")
    job = made.take(0)
    assert job is not None
    there += [message(2, b"k")]
    assert made.take(0) is None
    assert offsets(job) == [1, 2]
    job.messages.clear()
    made.leave(job)
    assert made.take(0) is None


def test_without_order_others_get_what_waits_behind_a_message_that_is_stuck() -> None:
    made = queue([message(offset) for offset in range(1, 6)], order="none")
    job = made.take(0)
    assert job is not None
    job.messages.popleft()
    assert not made.loosen(100, stuck_us=100)
    assert made.loosen(101, stuck_us=100)
    other = made.take(101)
    assert other is not None
    assert (offsets(job), offsets(other)) == ([], [2, 3, 4, 5])


@pytest.mark.parametrize("order", ["strict", "key"])
def test_where_order_binds_they_stay_behind_it(order: str) -> None:
    made = queue([message(offset) for offset in range(1, 6)], order=order, workers=1)
    job = made.take(0)
    assert job is not None
    assert not made.loosen(1000, stuck_us=100)
    assert len(job.messages) == 5


def test_what_waits_for_a_third_of_its_time_gets_more_of_it_once() -> None:
    made = queue([message(offset) for offset in range(1, 4)], ack_timeout_s=3.0)
    job = made.take(0)
    assert job is not None
    job.messages.popleft()
    assert made.untimed(1_000_000) == []
    assert [one.offset for one in made.untimed(1_000_001)] == [2, 3]
    assert made.untimed(1_000_002) == []


def test_a_queue_without_an_ack_timeout_needs_none() -> None:
    made = queue([message(1), message(2)], ack_timeout_s=0.0)
    assert made.take(0) is not None
    assert made.untimed(1 << 60) == []


def test_quick_handlers_have_many_at_once_and_slow_ones_one() -> None:
    pace = Pace()
    assert pace.size == 1
    sizes = []
    for _ in range(20):
        pace.note(pace.size, pace.size)  # a microsecond each
        sizes.append(pace.size)
    assert sizes == sorted(sizes)
    assert all(after <= GROWTH * before for before, after in pairwise(sizes))
    assert sizes[-1] == SIZE_MAX
    pace.note(10, 10 * SLICE_US)
    assert pace.size == 1


def test_queues_have_their_turns_and_one_that_is_full_is_remembered() -> None:
    roster = Roster()
    first, second = queue([], order="strict"), queue([], order="none", workers=2)
    for one in (first, second):
        roster.add(one)
        assert roster.wake(one)
        assert not roster.wake(one)
    assert roster.next() is first
    assert not roster.wake(first)  # it has all the workers that it may have
    assert roster.leave(first, is_more=False)
    assert [roster.next(), roster.next(), roster.next()] == [second, first, None]
    assert roster.wake(second)  # one more may be at it
    roster.end(first)
    assert not roster.leave(first, is_more=True)
    assert not roster.is_over


@pytest.mark.parametrize(
    ("error", "goes_on", "is_more", "retry_us"),
    [
        (Gap("home", 1, 2, "retention"), True, True, None),
        (Failed("the disk is gone"), True, False, 5 + RETRY_US),
        (QuotaExceeded("too many"), True, False, 5 + RETRY_US),
        (Closed("the subscription is deleted"), False, False, None),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_what_could_not_be_read_is_read_again_unless_it_is_gone(
    error: HeadwaterError, goes_on: bool, is_more: bool, retry_us: int | None
) -> None:
    one = queue([])
    assert one.goes_on(error, 5) is goes_on
    assert (one.is_more, one.retry_us) == (is_more, retry_us)
