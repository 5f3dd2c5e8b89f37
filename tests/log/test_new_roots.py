"""New roots: who waits until they are made, and who does not."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.faulty_files import Crash, FaultyFiles
from faults.faulty_state import FaultyState
from headwater.config import Config
from headwater.errors import DiskFull, Failed, HeadwaterError, PartlyStored, QuotaExceeded, TooManyFiles
from headwater.log.items import Call
from headwater.log.publish import Publish
from headwater.store.files import DiskFiles
from log.place import WAIT_S, Place


class SlowFiles(DiskFiles):
    """A disk on which folders are made once the test says so, or not at all."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.made: list[str] = []
        self.refuse: dict[str, BaseException] = {}

    def make_folder(self, path: str) -> None:
        if "/streams/" in path:
            self.reached.set()
            assert self.go_on.wait(WAIT_S)
            name = path.rsplit("-", 1)[1]
            if name in self.refuse:
                raise self.refuse[name]
            self.made.append(name)
        super().make_folder(path)


class Slow:
    """A place on such a disk, with a root that is there: old."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.files = SlowFiles()
        self.place = Place(str(folder / "data"), Config(**config), self.files)
        self.commit = self.place.roots.commit
        self.place.publish(self.place.one("old/a"))
        self.files.made.clear()
        self.files.reached.clear()

    def hold(self) -> None:
        self.files.go_on.clear()

    def begin(self, item: Publish) -> Publish:
        """A call whose root is being made from now on, until `go_on`."""
        self.hold()
        self.commit.submit(item)
        assert self.files.reached.wait(WAIT_S)
        return item

    def end(self) -> None:
        self.files.go_on.set()

    def names(self) -> list[str]:
        return sorted(root.name for root in self.place.roots.all())


Made = Callable[..., Slow]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Made]:
    made: list[Slow] = []

    def make(**config: Any) -> Slow:
        made.append(Slow(tmp_path, **config))
        return made[-1]

    yield make
    for one in made:
        one.end()
        one.place.close()


def outcome(item: Publish) -> HeadwaterError | None:
    try:
        item.wait()
    except HeadwaterError as error:
        return error
    return None


def test_what_comes_to_other_roots_is_committed_while_one_is_made(slow: Made) -> None:
    here = slow()
    new = here.begin(here.place.one("new/a"))
    for number in range(2, 5):
        assert here.place.publish(here.place.one("old/a")).offset == number
    assert new.is_waiting
    assert here.names() == ["old"]
    here.end()
    new.wait()
    assert here.names() == ["new", "old"]
    assert here.place.payloads("new") == [b"x"]


def test_a_group_with_a_root_that_is_new_goes_on_without_it(slow: Made) -> None:
    here = slow()
    here.hold()
    items = [here.place.one("old/a"), here.place.one("new/a"), here.place.one("old/b"), here.place.one("new/b")]
    here.commit.submit_all(items)
    items[0].wait()
    items[2].wait()
    assert items[1].is_waiting
    assert items[3].is_waiting
    here.end()
    assert [outcome(item) for item in items] == [None] * 4
    assert here.place.topics() == {"old/a": 2, "old/b": 1, "new/a": 1, "new/b": 1}


def test_many_who_publish_to_one_new_root_at_once_have_it_made_once(slow: Made) -> None:
    here = slow()
    first = here.begin(here.place.one("new/a"))
    offsets: list[int] = []

    def publish() -> None:
        offsets.append(here.place.publish(here.place.one("new/b")).offset)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    here.end()
    for thread in threads:
        thread.join(WAIT_S)
    first.wait()
    assert first.runs[0][1] == 1
    assert sorted(offsets) == list(range(2, 10))
    assert here.files.made == ["new"]


def test_a_call_that_names_several_new_roots_has_them_made_at_once(slow: Made) -> None:
    here = slow()
    receipts = here.place.publish(here.place.many("b/1", "c/1", "old/a", "b/2"))
    assert [receipt.offset for receipt in receipts] == [1, 1, 2, 2]
    assert here.files.made == ["b", "c"]
    assert [here.place.log.create(root).number for root in ("old", "b", "c")] == [1, 2, 3]


def test_what_comes_behind_a_call_that_waits_stays_behind_it(slow: Made) -> None:
    here = slow()
    here.hold()
    both, behind, free = here.place.many("new/a", "old/a"), here.place.one("old/b"), here.place.one("other/a")
    here.end()
    here.place.publish(here.place.one("other/a"))
    here.hold()
    here.commit.submit_all([both, behind, free])
    free.wait()
    assert behind.is_waiting
    late = here.place.one("old/c")
    here.commit.submit(late)
    here.end()
    assert [outcome(item) for item in (both, behind, late)] == [None] * 3
    assert here.place.payloads("old") == [b"x", b"old/a", b"x", b"x"]
    assert [item.runs[-1][1] for item in (both, behind, late)] == [2, 3, 4]


def test_what_arrived_while_others_of_its_group_were_committed_keeps_its_order(
    slow: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = slow()
    late = [here.place.one("new/a", b"%d" % number) for number in range(2, 6)]
    told = here.place.on_durable

    def submit(appended: Any) -> Any:  # in the midst of a group, and then when it is over
        if late:
            here.commit.submit(late.pop(0))
        return told(appended)

    monkeypatch.setattr(here.place, "on_durable", submit)
    items = [here.place.one("old/a"), here.place.one("new/a", b"1")]
    rest = list(late)
    here.hold()
    here.commit.submit_all(items)
    items[0].wait()
    for item in rest[1:]:
        late.remove(item)
        here.commit.submit(item)
    here.end()
    for item in (*items, *rest):
        item.wait()
    assert here.place.payloads("new") == [b"1", b"2", b"3", b"4", b"5"]


def test_a_call_behind_a_publish_that_waits_is_done_after_it(slow: Made) -> None:
    here = slow()
    here.hold()
    item = here.place.one("new/a")
    call = Call(here.names)
    here.commit.enqueue(item)
    here.commit.submit(call)
    here.end()
    call.wait()
    assert call.answer == ["new", "old"]


def test_roots_that_are_being_made_count_against_the_limit(slow: Made) -> None:
    here = slow(roots_max=2)
    first = here.begin(here.place.one("b/1"))
    with pytest.raises(QuotaExceeded, match="there are 2 roots"):
        here.place.publish(here.place.one("c/1"))
    here.end()
    first.wait()
    assert here.names() == ["b", "old"]
    assert here.files.made == ["b"]


def test_a_call_with_more_new_roots_than_there_is_room_for_has_those_made_that_fit(slow: Made) -> None:
    here = slow(roots_max=3)
    with pytest.raises(PartlyStored) as told:
        here.place.publish(here.place.many("a/1", "b/1", "c/1"))
    assert isinstance(told.value.refused["c"], QuotaExceeded)
    assert here.files.made == ["a", "b"]


def test_for_what_is_refused_nothing_is_made(slow: Made) -> None:
    here = slow(topics_per_root_max=2)
    with pytest.raises(QuotaExceeded):
        here.place.publish(here.place.many("new/1", "new/2", "new/3"))
    assert here.files.made == []
    assert not here.place.roots.limits.coming


def test_if_one_of_two_cannot_be_made_what_comes_to_the_other_is_stored(slow: Made) -> None:
    here = slow()
    here.files.refuse["b"] = OSError(errno.ENOSPC, "no room")
    with pytest.raises(PartlyStored) as told:
        here.place.publish(here.place.many("a/1", "b/1"))
    assert isinstance(told.value.refused["b"], DiskFull)
    assert here.names() == ["a", "old"]
    here.files.refuse.clear()
    assert here.place.publish(here.place.one("b/1")).offset == 1


def test_everybody_who_waited_is_told_why_a_root_could_not_be_made(slow: Made) -> None:
    here = slow()
    here.files.refuse["new"] = TooManyFiles("no more")
    items = [here.begin(here.place.one("new/a"))]
    items += [here.place.one("new/b") for _ in range(3)]
    for item in items[1:]:
        here.commit.submit(item)
    here.end()
    assert [type(outcome(item)) for item in items] == [TooManyFiles] * 4
    here.files.refuse.clear()
    assert here.place.publish(here.place.one("new/a")).offset == 1
    assert not here.place.roots.new_roots._failures


def test_a_disk_that_fails_while_a_root_is_made_is_told_and_others_go_on(slow: Made) -> None:
    here = slow()
    here.files.refuse["new"] = OSError(errno.EIO, "bad disk")
    for _ in range(2):
        with pytest.raises(HeadwaterError):
            here.place.publish(here.place.one("new/a"))
    assert here.place.publish(here.place.one("old/a")).offset == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("not ours")])
def test_whoever_waits_is_told_when_the_making_is_interrupted(slow: Made, error: BaseException) -> None:
    here = slow()
    here.files.refuse["new"] = error
    items = [here.begin(here.place.one("new/a")), here.place.one("new/a")]
    here.commit.submit(items[1])
    here.end()
    for item in items:
        with pytest.raises((KeyboardInterrupt, Failed)):
            item.wait()
    here.files.refuse.clear()
    assert here.place.publish(here.place.one("new/a")).offset == 1
    assert here.place.publish(here.place.one("old/a")).offset == 2


def test_without_memory_everybody_is_told(slow: Made) -> None:
    here = slow()
    here.files.refuse["new"] = OSError(errno.ENOMEM, "no memory")
    item = here.begin(here.place.one("new/a"))
    here.end()
    with pytest.raises(Failed, match="memory"):
        item.wait()


def test_a_large_group_of_a_new_root_is_written_once_that_is_made(slow: Made) -> None:
    here = slow(bulk_bytes_min=1000)
    large = here.begin(here.place.one("new/a", bytes(5000)))
    small = here.place.one("new/a", b"small")
    here.commit.submit(small)
    assert here.place.publish(here.place.one("old/a")).offset == 2
    here.end()
    large.wait()
    small.wait()
    assert here.place.payloads("new") == [bytes(5000), b"small"]
    here.files.refuse["full"] = OSError(errno.ENOSPC, "no room")
    with pytest.raises(DiskFull):
        here.place.publish(here.place.one("full/a", bytes(5000)))


def test_a_root_waits_for_a_large_group_that_is_on_its_way_and_comes_before_the_next(
    slow: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = slow(bulk_bytes_min=1000)
    reached, go_on = threading.Event(), threading.Event()
    datasync = type(here.place.log.create("old")).sync

    def sync(self: Any) -> None:
        if self.root == "old" and self.segments[-1].end > 5000:
            reached.set()
            assert go_on.wait(WAIT_S)
        datasync(self)

    monkeypatch.setattr(type(here.place.log.create("old")), "sync", sync)
    large = [here.place.one("old/a", bytes(5000)) for _ in range(3)]
    here.commit.submit(large[0])
    assert reached.wait(WAIT_S)
    new = here.place.one("new/a")
    here.commit.submit(new)
    for item in large[1:]:
        here.commit.submit(item)
    assert new.is_waiting
    go_on.set()
    for item in (new, *large):
        item.wait()
    assert here.place.payloads("new") == [b"x"]
    assert len(here.place.payloads("old")) == 4


def test_a_crash_before_the_first_message_leaves_no_root_to_be_seen() -> None:
    """Whenever the power goes, the root is there if its message was acknowledged, and takes messages either way."""
    syncs = 0
    while True:
        files, state = FaultyFiles(), FaultyState()
        place = Place("data", files=files, state=state)
        place.publish(place.one("old/a"))
        last, acked = files.syncs + syncs, False

        def on_sync(path: str, number: int, last: int = last) -> None:
            if number > last:
                raise Crash

        files.on_sync = on_sync
        try:
            place.publish(place.many("b/1", "c/1"))
            acked = True
        except (Crash, HeadwaterError):
            pass
        for seed in range(6):
            again = Place("data", files=files.crash(random.Random(seed)), state=state.process_kill())
            found = {name: again.payloads(name) for name in ("b", "c")}
            assert not acked or found == {"b": [b"b/1"], "c": [b"c/1"]}
            assert all(again.payloads(root.name) for root in again.roots.all())
            receipts = again.publish(again.many("b/2", "c/2", "old/b"))
            assert [receipt.offset for receipt in receipts] == [1 + len(found["b"]), 1 + len(found["c"]), 2]
            again.close()
        if acked:
            break
        syncs += 1
    assert syncs > 4
