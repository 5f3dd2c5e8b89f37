"""Aside: who is committed while a large group is written, and what stays behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from headwater.errors import Failed
from headwater.log import group_commit as module
from headwater.log.aside import InFlight
from headwater.log.group_commit import GroupCommit
from headwater.log.items import Call
from log.recorder import WAIT_S, Note, Recorder, raising


class Heavy(Note):
    """Something for one root or several."""

    touched: tuple[str, ...]

    @property
    def roots(self) -> Sequence[str]:
        return self.touched


def heavy(name: object, *roots: str, weight: int = 1) -> Heavy:
    return Heavy(name, roots, weight=weight)


class Written:
    """A large group that is on disk once the test says so."""

    waits: Sequence[Note] = ()

    def __init__(self, apart: Aside, items: list[Note]) -> None:
        self._apart = apart
        self.items = items
        self.thread = ""

    def write(self) -> None:
        self.thread = threading.current_thread().name
        self._apart.begun.append(self)
        self._apart.reached.set()
        assert self._apart.go_on.wait(WAIT_S)
        if self._apart.error is not None:
            raise self._apart.error

    def end(self, error: BaseException | None, behind: Sequence[Note]) -> bool:
        if error is not None:
            return False
        self._apart.recorder.groups.append([item.name for item in self.items])
        for item in self.items:
            item.finish()
        return False


class Aside:
    """A group commit whose large groups, of 10 or more, wait for the test."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.begun: list[Written] = []
        self.recorder = Recorder()
        self.commit = self.recorder.commit = GroupCommit[Note](
            "log", self.recorder._commit, 1000, 1000, apart=lambda items: Written(self, items), apart_weight_min=10
        )


@pytest.fixture
def aside() -> Iterator[Aside]:
    made = Aside()
    yield made
    made.go_on.set()
    closer = threading.Thread(target=made.commit.close, daemon=True)
    closer.start()
    closer.join(WAIT_S)
    assert not closer.is_alive()


def begin(aside: Aside, root: str = "large") -> Heavy:
    """A large group that is on its way."""
    item = heavy(root, root, weight=10)
    aside.commit.submit(item)
    assert aside.reached.wait(WAIT_S)
    return item


def test_others_are_committed_while_a_large_group_is_written(aside: Aside) -> None:
    large = begin(aside)
    aside.commit.submit_and_wait(heavy("a", "small"))
    later = heavy("b", "small")
    aside.commit.submit(later)
    later.wait()
    assert large.is_waiting
    aside.go_on.set()
    large.wait()
    assert aside.recorder.groups == [["a"], ["b"], ["large"]]


def test_a_large_group_that_is_on_disk_just_as_another_begins_is_ended(
    aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins the next group has looked whether it is, and has not taken its own yet."""
    is_looked_at = threading.Event()

    class Looked(InFlight[Note]):
        is_done = False

        @property
        def is_written(self) -> bool:
            found = self.is_done
            if not found and is_looked_at.is_set() and threading.current_thread() is threading.main_thread():
                is_looked_at.clear()
                aside.go_on.set()
                end = time.monotonic() + WAIT_S
                while not self.is_done and time.monotonic() < end:
                    time.sleep(0.001)
                time.sleep(0.05)  # its thread has noted it, and goes
            return found

        @is_written.setter
        def is_written(self, value: bool) -> None:
            self.is_done = value

    monkeypatch.setattr(module, "InFlight", Looked)
    large = begin(aside)
    is_looked_at.set()
    aside.commit.submit_and_wait(heavy("small", "small"))
    waiter = threading.Thread(target=large.wait, daemon=True)
    waiter.start()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_small_ones_of_one_root_that_are_much_together_go_apart(aside: Aside) -> None:
    with aside.recorder.held():
        items = [heavy(number, "many") for number in range(10)]
        other = heavy("other", "small")
        for item in (*items[:5], other, *items[5:]):
            aside.commit.submit(item)
    other.wait()
    assert all(item.is_waiting for item in items)
    aside.go_on.set()
    for item in items:
        item.wait()
    assert aside.recorder.groups == [["other"], list(range(10))]


def test_whoever_waits_for_a_large_item_writes_it_and_nobody_else_has_to(aside: Aside) -> None:
    aside.go_on.set()
    aside.commit.submit_and_wait(heavy("own", "large", weight=10))
    aside.go_on.clear()
    aside.reached.clear()
    with aside.recorder.held():
        aside.commit.submit(heavy("another's", "large", weight=10))
    small = heavy("small", "small")
    aside.commit.submit_and_wait(small)
    assert aside.reached.wait(WAIT_S)
    assert aside.begun[0].thread == threading.current_thread().name
    assert aside.begun[1].thread == "headwater-log"


def test_a_caller_that_may_not_block_leaves_it_to_the_commit_thread(aside: Aside) -> None:
    item = heavy("large", "large", weight=10)
    assert aside.commit.commit_here(item)
    assert aside.reached.wait(WAIT_S)
    assert item.is_waiting
    assert aside.commit.commit_here(heavy("small", "small"))
    aside.go_on.set()
    item.wait()


def test_what_touches_a_closed_root_stays_and_what_comes_behind_that_too(aside: Aside) -> None:
    large = begin(aside)
    both, behind = heavy("both", "large", "b"), heavy("behind", "b")
    second, call = heavy("second", "other", weight=10), Call(lambda: aside.recorder.groups.append(["call"]))
    for item in (both, behind, second, call):
        aside.commit.submit(item)
    free = heavy("free", "c")
    aside.commit.submit_and_wait(free)
    later = heavy("later", "other")
    aside.commit.submit(later)
    aside.commit.submit_and_wait(heavy("free too", "c"))
    aside.go_on.set()
    for item in (large, both, behind, second, call, later):
        item.wait()
    assert aside.recorder.groups == [
        ["free"],
        ["free too"],
        ["large"],
        ["both", "behind"],
        ["second", "later"],
        ["call"],
    ]


def come_behind(aside: Aside) -> tuple[Heavy, Heavy]:
    """A large group that is on its way, and what came to its root since, which may wait for company."""
    large, behind = begin(aside), heavy("behind", "large")
    with aside.commit.places:
        aside.commit.add(behind, waits=False, is_due=False)
    return large, behind


def soon(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < end:
        time.sleep(0.001)
    return is_so()


def test_what_may_wait_for_company_still_may_when_a_large_group_has_ended(aside: Aside) -> None:
    large, behind = come_behind(aside)
    aside.go_on.set()
    large.wait()
    assert soon(lambda: not aside.commit._busy)
    assert behind.is_waiting
    aside.commit.kick()
    assert soon(lambda: not behind.is_waiting)
    assert aside.recorder.groups == [["large"], ["behind"]]


def test_what_was_asked_for_while_a_large_group_was_written_is_committed_after_it(aside: Aside) -> None:
    _, behind = come_behind(aside)
    aside.commit.kick()
    aside.go_on.set()
    assert soon(lambda: not behind.is_waiting)


def test_what_may_wait_for_company_goes_with_what_comes_behind_a_large_group(aside: Aside) -> None:
    _, behind = come_behind(aside)
    aside.commit.submit(heavy("another", "large"))
    aside.go_on.set()
    assert soon(lambda: not behind.is_waiting)
    assert aside.recorder.groups == [["large"], ["behind", "another"]]


def test_an_error_of_a_large_group_is_its_own(aside: Aside) -> None:
    aside.error = OSError("no such luck")
    large = begin(aside)
    aside.commit.submit_and_wait(heavy("small", "small"))
    aside.go_on.set()
    with pytest.raises(Failed, match="no such luck"):
        large.wait()
    aside.commit.submit_and_wait(heavy("after it", "large"))


def test_without_memory_for_a_large_group_everybody_is_told(aside: Aside) -> None:
    aside.error = MemoryError()
    large = begin(aside)
    behind = heavy("behind", "large")
    aside.commit.submit(behind)
    aside.commit.submit_and_wait(heavy("small", "small"))
    aside.go_on.set()
    for item in (large, behind):
        with pytest.raises(Failed, match="memory"):
            item.wait()
    with pytest.raises(Failed, match="memory"):
        aside.commit.submit_and_wait(heavy("later", "small"))


def test_without_memory_for_a_small_group_one_that_is_being_written_is_told_too(aside: Aside) -> None:
    large = begin(aside)
    aside.recorder.before = raising(MemoryError())
    with pytest.raises(Failed, match="memory"):
        aside.commit.submit_and_wait(heavy("small", "small"))
    aside.go_on.set()
    with pytest.raises(Failed, match="memory"):
        large.wait()


def test_if_no_second_thread_can_be_started_the_first_goes_on_once_it_has_written(
    aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = begin(aside)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    small = heavy("small", "small")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        aside.commit.submit(small)
    aside.go_on.set()
    small.wait()
    large.wait()
    assert aside.commit.is_alive


def test_what_the_committing_thread_does_by_itself_waits_until_the_large_group_is_written(aside: Aside) -> None:
    begin(aside)
    found: list[bool] = []

    def before(_: list[Note]) -> None:
        threading.Timer(0.05, aside.go_on.set).start()
        found.append(aside.commit.run(aside.go_on.is_set))

    aside.recorder.before = before
    aside.commit.submit_and_wait(heavy("small", "small"))
    assert found == [True]
