"""Group commit: who commits, in which order, and who hears of it."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from headwater.errors import Closed, Conflict, DiskFull, Failed
from headwater.log import group_commit as module
from headwater.log.group_commit import GroupCommit
from headwater.log.items import Call
from log.recorder import WAIT_S, Note, Recorder, raising


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    closer = threading.Thread(target=made.commit.close, daemon=True)  # beside, lest a hang of it hides what failed
    closer.start()
    closer.join(WAIT_S)
    assert not closer.is_alive()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


# Who commits


def test_a_caller_that_finds_nobody_committing_does_it_itself(recorder: Recorder) -> None:
    before = threading.active_count()
    for number in range(3):
        recorder.commit.submit_and_wait(Note(number))
    assert recorder.groups == [[0], [1], [2]]
    assert set(recorder.threads) == {threading.current_thread().name}
    assert threading.active_count() == before


def test_what_nobody_waits_for_is_committed_by_the_commit_thread(recorder: Recorder) -> None:
    item = Note("soon")
    recorder.commit.submit(item)
    item.wait()
    assert recorder.threads == ["headwater-log"]


def test_what_arrives_meanwhile_becomes_the_next_group_in_the_order_of_submit(recorder: Recorder) -> None:
    items = [Note(number) for number in range(5)]
    with recorder.held():
        for item in items:
            recorder.commit.submit(item)
        assert recorder.groups == []
    for item in items:
        item.wait()
    assert recorder.groups == [[0, 1, 2, 3, 4]]


def test_a_caller_that_leads_hands_over_to_the_commit_thread_when_others_wait(recorder: Recorder) -> None:
    first, second = Note("first"), Note("second")

    def meanwhile(items: list[Note]) -> None:
        if items[0] is first:
            recorder.commit.submit(second)

    recorder.before = meanwhile
    recorder.commit.submit_and_wait(first)
    second.wait()
    assert recorder.groups == [["first"], ["second"]]
    assert recorder.threads == [threading.current_thread().name, "headwater-log"]


def test_after_the_commit_thread_is_done_a_caller_commits_itself_again(recorder: Recorder) -> None:
    for number in range(20):
        soon = Note(f"soon {number}")
        recorder.commit.submit(soon)
        soon.wait()
        recorder.commit.run(lambda: None)  # by now nobody else commits
        recorder.commit.submit_and_wait(Note(f"now {number}"))
    assert recorder.threads == ["headwater-log", threading.current_thread().name] * 20


def test_enqueue_gives_a_place_in_the_order_and_drive_waits_for_it(recorder: Recorder) -> None:
    first, second = Note("first"), Note("second")
    recorder.commit.enqueue(first)
    recorder.commit.enqueue(second)
    assert recorder.groups == []
    recorder.commit.drive(second)
    assert recorder.groups == [["first", "second"]]
    assert not first.is_waiting
    recorder.commit.drive(first)  # done already
    assert recorder.groups == [["first", "second"]]


def test_kick_commits_what_was_enqueued_and_does_nothing_when_there_is_nothing(recorder: Recorder) -> None:
    recorder.commit.kick()
    item = Note("a")
    recorder.commit.enqueue(item)
    recorder.commit.kick()
    item.wait()
    assert recorder.groups == [["a"]]


# From many threads


def test_sixteen_threads_commit_everything_once_and_each_in_its_order(recorder: Recorder) -> None:
    def work(thread: int) -> None:
        for number in range(50):
            recorder.commit.submit_and_wait(Note((thread, number)))

    in_threads(16, work)
    names: list[Any] = recorder.names
    assert sorted(names) == [(thread, number) for thread in range(16) for number in range(50)]
    for thread in range(16):
        assert [number for owner, number in names if owner == thread] == list(range(50))


def test_one_group_is_committed_at_a_time(recorder: Recorder) -> None:
    busy = threading.Lock()
    overlaps: list[str] = []

    def alone(_: object = None) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(threading.current_thread().name)
            return
        for _ in range(100):  # long enough for others to have a chance
            pass
        busy.release()

    recorder.before = alone

    def work(thread: int) -> None:
        for number in range(30):
            item = Note((thread, number))
            if number % 3 == 0:
                recorder.commit.submit_and_wait(item)
            elif number % 3 == 1:
                recorder.commit.submit(item)
                item.wait()
            else:
                recorder.commit.run(alone)

    in_threads(16, work)
    assert overlaps == []
    assert len(recorder.names) == 16 * 20


# Futures


def test_a_future_has_the_result_once_it_is_committed(recorder: Recorder) -> None:
    item = Note("a")
    item.future = future = Future[object]()
    with recorder.held():
        recorder.commit.submit(item)
        assert not future.done()
    assert future.result(WAIT_S) == "receipt of a"


def test_a_future_has_the_error(recorder: Recorder) -> None:
    recorder.before = raising(DiskFull("full"))
    item = Note("a")
    item.future = future = Future[object]()
    recorder.commit.submit(item)
    assert isinstance(future.exception(WAIT_S), DiskFull)


def test_a_future_that_was_cancelled_disturbs_nobody(recorder: Recorder) -> None:
    cancelled, other = Note("cancelled"), Note("other")
    cancelled.future = future = Future[object]()
    with recorder.held():
        recorder.commit.submit(cancelled)
        recorder.commit.submit(other)
        assert future.cancel()
    other.wait()
    assert recorder.groups == [["cancelled", "other"]]


# Errors


def test_an_error_of_a_group_is_that_of_each_of_its_items_and_later_groups_go_on(recorder: Recorder) -> None:
    items = [Note(number) for number in range(3)]
    recorder.before = raising(DiskFull("the disk is full"))
    with recorder.held():
        for item in items:
            recorder.commit.submit(item)
    for item in items:
        with pytest.raises(DiskFull):
            item.wait()
    recorder.before = lambda _: None
    recorder.commit.submit_and_wait(Note("after"))
    assert recorder.groups == [[0, 1, 2], ["after"]]


def test_an_error_that_is_not_ours_becomes_failed(recorder: Recorder) -> None:
    recorder.before = raising(OSError("no such luck"))
    with pytest.raises(Failed, match="no such luck"):
        recorder.commit.submit_and_wait(Note("a"))


def test_items_that_were_finished_before_the_error_stay_finished(recorder: Recorder) -> None:
    def before(items: list[Note]) -> None:
        items[0].finish()
        items[1].finish(Conflict("of its own"))
        raise DiskFull("full")

    items = [Note(number) for number in range(3)]
    with recorder.held():
        recorder.before = before
        for item in items:
            recorder.commit.submit(item)
    items[0].wait()
    with pytest.raises(Conflict):
        items[1].wait()
    with pytest.raises(DiskFull):
        items[2].wait()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_a_caller_that_is_interrupted_while_it_commits_gives_up_the_role(
    recorder: Recorder, error: BaseException
) -> None:
    recorder.before = raising(error)
    with pytest.raises(type(error)):
        recorder.commit.submit_and_wait(Note("interrupted"))
    recorder.before = lambda _: None
    in_threads(1, lambda _: recorder.commit.submit_and_wait(Note("after")))
    assert recorder.names == ["interrupted", "after"]


class Torn(BaseException):
    """What no `except Exception` catches."""


def test_a_commit_thread_that_is_torn_down_leaves_nobody_waiting(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # what the thread may say as it goes
    recorder.before = raising(Torn())
    item = Note("torn")
    recorder.commit.submit(item)
    with pytest.raises(Torn):
        item.wait()
    recorder.before = lambda _: None
    in_threads(1, lambda _: recorder.commit.submit_and_wait(Note("after")))
    assert recorder.names == ["torn", "after"]


def test_a_caller_that_is_gone_does_not_keep_the_rest_of_its_group_waiting(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers of a group wake each other; one that was interrupted while it waited wakes nobody."""
    monkeypatch.setattr(module, "WAKE_S_MAX", 0.05)
    gone = Note("gone")
    gone.expect()
    waiting = [threading.Thread(target=recorder.commit.submit_and_wait, args=(Note(n),), daemon=True) for n in range(4)]
    with recorder.held():
        recorder.commit.enqueue(gone)
        for thread in waiting:
            thread.start()
    for thread in waiting:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in waiting)


# Without memory


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
@pytest.mark.parametrize("how", ["thread", "caller", "call"])
def test_without_memory_who_waits_and_who_comes_is_told_and_nothing_more_is_committed(
    recorder: Recorder, error: Exception, how: str
) -> None:
    reasons: list[str] = []
    recorder.commit.on_given_up = reasons.append
    recorder.before = raising(error)
    waiting = [Note("meanwhile"), Note("soon")]
    future: Future[object] = Future()
    waiting[1].future = future

    def raise_it() -> None:
        for item in waiting:
            recorder.commit.enqueue(item)
        raise error

    match how:
        case "thread":
            with recorder.held():
                for item in waiting:
                    recorder.commit.submit(item)
        case "caller":
            recorder.commit.enqueue(waiting[0])
            recorder.commit.enqueue(waiting[1])
            with pytest.raises(Failed, match="out of memory"):
                recorder.commit.submit_and_wait(Note("leads"))
        case "call":
            with pytest.raises(Failed, match="out of memory"):
                recorder.commit.run(raise_it)
    with pytest.raises(Failed, match=r"out of memory while storing.*start it again"):
        waiting[0].wait()
    with pytest.raises(Failed, match="out of memory"):
        future.result(WAIT_S)
    recorder.before = lambda _: None
    for again in (recorder.commit.submit_and_wait, recorder.commit.submit, recorder.commit.enqueue):
        with pytest.raises(Failed, match="out of memory"):
            again(Note("after"))
    with pytest.raises(Failed, match="out of memory"):
        recorder.commit.run(lambda: None)
    assert not recorder.commit.commit_here(Note("after"))
    assert (recorder.commit.is_open, recorder.commit.is_alive) == (False, False)
    assert len(reasons) == 1
    assert "after" not in recorder.names


class Poor:
    """A lock for whose holder there is no memory, once it is about to take a group."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.met = 0

    def __enter__(self) -> None:
        if sys._getframe(1).f_code.co_name.startswith("_commit_"):
            self.met += 1
            raise MemoryError
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_commit_thread_that_cannot_even_take_a_group_does_not_try_for_ever(recorder: Recorder) -> None:
    poor = recorder.commit.places = Poor(recorder.commit.places)  # type: ignore[assignment]
    future: Future[object] = Future()
    item = Note("never")
    item.future = future
    recorder.commit.submit(item)
    with pytest.raises(Failed, match="out of memory"):
        future.result(WAIT_S)
    assert poor.met < 4


def test_who_waits_for_room_is_told_too() -> None:
    recorder = Recorder(items_max=1)
    recorder.before = raising(MemoryError())
    recorder.commit.enqueue(Note("first"))
    with pytest.raises(Failed, match="out of memory"):
        recorder.commit.enqueue(Note("second"))
    recorder.commit.close()


def test_where_no_thread_can_be_started_who_waits_is_told(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reasons: list[str] = []
    recorder.commit.on_given_up = reasons.append
    item = Note("never")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        recorder.commit.submit(item)
    with pytest.raises(Failed, match="no thread can be started"):
        item.wait()
    assert len(reasons) == 1
    with pytest.raises(Failed, match="no thread can be started"):
        recorder.commit.submit_and_wait(Note("after"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Torn()])
def test_a_caller_that_is_interrupted_before_its_commit_begins_leaves_nobody_waiting(
    recorder: Recorder, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come at any place, and others are in the group."""
    other = Note("other")
    recorder.commit.enqueue(other)
    with monkeypatch.context() as patch:
        patch.setattr(Note, "is_awaited", property(raising(error)))
        with pytest.raises(type(error)):
            recorder.commit.submit_and_wait(Note("interrupted"))
    with pytest.raises(type(error)):
        other.wait()


# Something to be done in the committing role


def test_run_answers_what_the_work_answers(recorder: Recorder) -> None:
    assert recorder.commit.run(lambda: 42) == 42


def test_run_raises_what_the_work_raises(recorder: Recorder) -> None:
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorder.commit.run(work)
    assert recorder.commit.run(lambda: "goes on") == "goes on"


def test_run_within_the_role_is_done_at_once(recorder: Recorder) -> None:
    assert recorder.commit.run(lambda: recorder.commit.run(lambda: "inner")) == "inner"


def test_nothing_is_committed_while_work_is_done(recorder: Recorder) -> None:
    item = Note("a")
    with recorder.held():
        recorder.commit.submit(item)
        assert item.is_waiting
    item.wait()


def test_a_call_is_an_item_that_can_be_submitted(recorder: Recorder) -> None:
    call = Call(lambda: threading.current_thread().name)
    recorder.commit.submit(call)
    call.wait()
    assert call.answer == "headwater-log"


# Calling back into it


def test_waiting_within_the_role_would_wait_for_itself_and_is_refused(recorder: Recorder) -> None:
    def work() -> None:
        recorder.commit.submit_and_wait(Note("inner"))

    with pytest.raises(Conflict, match="publish_soon"):
        recorder.commit.run(work)
    recorder.commit.submit_and_wait(Note("after"))
    assert recorder.names == ["after"], "what was refused must not be committed"


def test_a_callback_that_waits_is_refused_and_one_that_does_not_is_fine(recorder: Recorder) -> None:
    refused: list[BaseException] = []
    inner = Note("inner")

    def callback(_: Future[object]) -> None:
        try:
            recorder.commit.submit_and_wait(Note("waits"))
        except Conflict as error:
            refused.append(error)
        recorder.commit.submit(inner)

    item = Note("outer")
    item.future = Future[object]()
    item.future.add_done_callback(callback)
    recorder.commit.submit(item)
    inner.wait()
    assert len(refused) == 1
    assert recorder.names == ["outer", "inner"]


# Limits


@pytest.mark.parametrize(("weight_max", "items_max"), [(10, 1000), (1000, 2)], ids=["weight", "items"])
def test_whoever_submits_beyond_the_limit_waits_until_there_is_room(weight_max: int, items_max: int) -> None:
    recorder = Recorder(weight_max, items_max)
    submitted, released = threading.Event(), threading.Event()

    def third() -> None:
        submitted.set()
        recorder.commit.submit_and_wait(Note(3, weight=5))
        released.set()

    thread = threading.Thread(target=third)
    with recorder.held():
        for number in (1, 2):
            recorder.commit.submit(Note(number, weight=5))
        assert (recorder.commit.is_full, recorder.commit.is_open) == (True, False)
        thread.start()
        assert submitted.wait(WAIT_S)
        assert not released.is_set()
    thread.join(WAIT_S)
    assert released.is_set()
    assert recorder.groups == [[1, 2], [3]]
    assert (recorder.commit.is_full, recorder.commit.is_open) == (False, True)
    recorder.commit.close()
    assert not recorder.commit.is_open


def test_an_item_heavier_than_the_limit_goes_alone() -> None:
    recorder = Recorder(weight_max=10)
    recorder.commit.submit_and_wait(Note("heavy", weight=1000))
    recorder.commit.submit_and_wait(Note("light"))
    assert recorder.names == ["heavy", "light"]
    recorder.commit.close()


def test_the_committing_thread_itself_does_not_wait_for_room() -> None:
    recorder = Recorder(items_max=1)
    inner = [Note(number) for number in range(5)]

    def work() -> None:
        for item in inner:
            recorder.commit.submit(item)

    recorder.commit.run(work)
    for item in inner:
        item.wait()
    assert recorder.names == list(range(5))
    recorder.commit.close()


def test_sixteen_threads_within_a_tight_limit_all_get_through() -> None:
    recorder = Recorder(items_max=2)

    def work(thread: int) -> None:
        for number in range(20):
            item = Note((thread, number))
            recorder.commit.submit(item)
            item.wait()

    in_threads(16, work)
    assert len(recorder.names) == 320
    assert max(map(len, recorder.groups)) <= 2
    recorder.commit.close()


# Closing


def test_closing_commits_what_is_pending_and_accepts_nothing_more() -> None:
    recorder = Recorder()
    item = Note("pending")
    recorder.commit.enqueue(item)
    recorder.commit.close()
    assert recorder.names == ["pending"]
    item.wait()
    with pytest.raises(Closed, match="open it again"):
        recorder.commit.submit_and_wait(Note("late"))
    with pytest.raises(Closed):
        recorder.commit.submit(Note("late"))
    with pytest.raises(Closed):
        recorder.commit.run(lambda: None)
    recorder.commit.close()
    assert recorder.names == ["pending"]


def test_closing_waits_for_the_group_under_way_and_ends_the_thread() -> None:
    recorder = Recorder()
    item = Note("soon")
    inside, go_on = threading.Event(), threading.Event()

    def before(_: list[Note]) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    recorder.before = before
    recorder.commit.submit(item)
    assert inside.wait(WAIT_S)
    closer = threading.Thread(target=recorder.commit.close)
    closer.start()
    go_on.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert not item.is_waiting
    (thread,) = recorder.commit._committers
    assert not thread.is_alive()


def test_whoever_waits_for_room_when_it_is_closed_is_told() -> None:
    recorder = Recorder(items_max=1)
    told: list[BaseException] = []
    waits = threading.Event()

    def late() -> None:
        waits.set()
        try:
            recorder.commit.submit_and_wait(Note("late"))
        except Closed as error:
            told.append(error)

    thread = threading.Thread(target=late)
    closer = threading.Thread(target=recorder.commit.close)
    with recorder.held():
        recorder.commit.submit(Note("first"))
        thread.start()
        assert waits.wait(WAIT_S)
        closer.start()
    thread.join(WAIT_S)
    closer.join(WAIT_S)
    assert not thread.is_alive()
    assert not closer.is_alive()
    assert len(told) + recorder.names.count("late") == 1
    assert "first" in recorder.names


def test_closing_from_threads_that_publish_loses_nothing_that_was_accepted() -> None:
    recorder = Recorder()
    accepted: list[object] = []
    lock = threading.Lock()

    def work(thread: int) -> None:
        for number in range(1000):
            try:
                recorder.commit.submit_and_wait(Note((thread, number)))
            except Closed:
                return
            with lock:
                accepted.append((thread, number))
                if len(accepted) == 200:
                    closing.start()

    closing = threading.Thread(target=recorder.commit.close)
    in_threads(8, work)
    closing.join(WAIT_S)
    assert set(accepted) == set(recorder.names)
    assert len(recorder.names) == len(set(recorder.names))


# In this thread, or not at all


def test_commit_here_commits_in_the_calling_thread_when_nothing_is_on_its_way(recorder: Recorder) -> None:
    item = Note("a")
    assert recorder.commit.commit_here(item)
    assert item.is_finished
    assert recorder.threads == [threading.current_thread().name]
    recorder.commit.submit_and_wait(Note("b"))
    assert recorder.names == ["a", "b"]


def test_commit_here_does_nothing_while_something_is_on_its_way(recorder: Recorder) -> None:
    with recorder.held():
        assert not recorder.commit.commit_here(Note("a"))
    recorder.commit.enqueue(Note("b"))
    assert not recorder.commit.commit_here(Note("a"))
    recorder.commit.run(lambda: None)
    assert recorder.names == ["b"]


def test_what_arrives_while_a_caller_commits_here_is_committed_by_the_commit_thread(recorder: Recorder) -> None:
    late = Note("late")

    def meanwhile(_: list[Note]) -> None:
        recorder.before = lambda _: None
        recorder.commit.submit(late)

    recorder.before = meanwhile
    assert recorder.commit.commit_here(Note("a"))
    late.wait()
    assert recorder.names == ["a", "late"]


def append_quietly(commit: GroupCommit[Note], name: str) -> Note | None:
    """Give something a place that nobody waits for, if there is one."""
    note = Note(name)
    with commit.places:
        if not commit.is_open:
            return None
        commit.add(note, waits=False, is_due=False)
    return note


def test_nobody_gets_a_place_while_somebody_holds_them(recorder: Recorder) -> None:
    commit, other = recorder.commit, threading.Thread(target=lambda: recorder.commit.enqueue(Note("other")))
    with commit.places:
        other.start()
        other.join(0.05)
        commit.add(Note("a"), waits=False, is_due=False)
    other.join(WAIT_S)
    commit.run(lambda: None)
    assert recorder.names == ["a", "other"]


def test_there_is_no_place_in_a_group_that_is_full_or_after_the_last() -> None:
    recorder = Recorder(items_max=1)
    recorder.commit.enqueue(Note("a"))
    assert append_quietly(recorder.commit, "b") is None
    recorder.commit.close()
    assert append_quietly(recorder.commit, "c") is None
    assert recorder.names == ["a"]


def test_what_nobody_waits_for_starts_no_group_of_its_own_until_it_is_kicked(recorder: Recorder) -> None:
    """Else a group of few would follow each group, and what is on its way past them would wait for the disk."""
    commit = recorder.commit
    with recorder.held():
        commit.submit(Note("awaited"))
        assert append_quietly(commit, "quiet")
    commit.run(lambda: None)
    assert recorder.names == ["awaited", "quiet"], "it goes along with what is due"
    assert append_quietly(commit, "patient")
    with recorder.held():
        assert recorder.names[2:] == ["patient"], "or is taken along by whoever commits next"
        assert append_quietly(commit, "left")
    assert recorder.names[3:] == [], "but the end of a group is no reason for another"
    commit.kick()
    commit.close()
    assert recorder.names[3:] == ["left"]


def test_a_kick_while_a_group_is_committed_makes_what_is_pending_due(recorder: Recorder) -> None:
    with recorder.held():
        quiet = append_quietly(recorder.commit, "quiet")
        recorder.commit.kick()
    assert quiet is not None
    quiet.wait()
    assert recorder.names == ["quiet"]


def test_who_waits_for_room_behind_what_nobody_waits_for_gets_it() -> None:
    recorder = Recorder(items_max=1)
    assert append_quietly(recorder.commit, "quiet")
    in_threads(1, lambda _: recorder.commit.submit_and_wait(Note("a")))
    assert recorder.names == ["quiet", "a"]
    recorder.commit.close()
