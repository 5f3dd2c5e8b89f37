"""A bus in memory, read-only, owned by somebody else, and closed."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import headwater
from bus.flows import WAIT_S, numbers, payloads, python, settle, with_dead
from headwater import Closed, Malformed, ManualClock, NotFound, Owned, ReadOnly
from headwater.bus import Bus
from headwater.store.files import DiskFiles, Lock


def test_a_bus_in_memory_does_everything_without_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock = ManualClock()
    with headwater.open(":memory:", clock=clock) as bus:
        sub = bus.subscribe("jobs/#", id="s", start="earliest", max_attempts=1)
        bus.publish_many([("jobs/x", b"1"), ("home/a", b"2")])
        bus.publish("home/a", b"on", retain=True)
        bus.publish("jobs/x", b"3", producer="p", sequence=1)
        bus.publish("jobs/x", b"4", deliver_at=bus.now + timedelta(seconds=5))
        clock.advance(6)
        settle(bus)
        first, *rest = sub.batch(10, 0)
        first.nack("no")
        sub.ack(sub.batch(10, 0))
        assert payloads([first, *rest]) == [b"1", b"3", b"4"]
        assert len(bus.dead_letters("s")) == bus.redrive("s") == 1
        assert payloads(bus.retained("#").values()) == [b"on"]
        assert len(list(bus.replay("#"))) == 5
        assert bus.purge("home/#") == 1
        with pytest.raises(Malformed, match="memory"):
            bus.backup(tmp_path / "backup")
    with headwater.open(":memory:") as another:
        assert another.topics() == []
    assert os.listdir(tmp_path) == []


def test_a_bus_opened_read_only_beside_its_owner_looks_at_everything(timed: Bus, folder: Path) -> None:
    sub = with_dead(timed, 2)
    timed.publish("jobs/y", b"on", retain=True)
    with headwater.open(folder, read_only=True) as reader:
        assert payloads(reader.replay("jobs/#")) == [*numbers(2), b"on"]
        assert [topic.topic for topic in reader.topics()] == ["jobs/x", "jobs/y"]
        assert payloads(reader.retained("#").values()) == [b"on"]
        assert [info.id for info in reader.subscriptions()] == ["s"]
        assert reader.subscriptions()[0].lag == 1
        assert len(reader.dead_letters("s")) == 2
        timed.publish("jobs/x", b"later")
        sub.ack(sub.batch(10, 0))
        reader.refresh()
        assert payloads(reader.replay("jobs/#"))[-1] == b"later"
        assert reader.subscriptions()[0].lag == 0


def test_a_bus_opened_read_only_changes_nothing(timed: Bus, folder: Path) -> None:
    with_dead(timed, 1).close()
    with headwater.open(folder, read_only=True) as reader:
        for change in (
            lambda: reader.publish("a/b", b""),
            lambda: reader.publish_many([("a/b", b"")]),
            lambda: reader.publish_soon("a/b", b""),
            lambda: reader.subscribe("a/b"),
            lambda: reader.subscribe("jobs/#", id="s"),
            lambda: reader.unsubscribe("s"),
            lambda: reader.redrive("s"),
            lambda: reader.drop_dead_letters("s"),
            lambda: reader.purge("#"),
            lambda: reader.backup(folder.parent / "backup"),
            lambda: reader.request("a/b", b""),
        ):
            with pytest.raises(ReadOnly) as refused:
                change()
            assert refused.value.code == 503
    assert len(timed.dead_letters("s")) == 1


def test_reading_what_is_no_folder_of_ours_is_not_found_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        headwater.open(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


OWN = """
import sys, headwater
try:
    headwater.open(sys.argv[1]).close()
except headwater.Owned as error:
    print(error)
"""


def test_a_second_owner_is_refused_naming_the_first_one_s_pid(bus: Bus, folder: Path) -> None:
    said = python(OWN, folder).stdout
    assert str(os.getpid()) in said
    assert "read_only=True" in said
    with pytest.raises(Owned, match="this process") as refused:
        headwater.open(folder)
    assert (refused.value.code, refused.value.retryable) == (409, True)
    bus.publish("a/b", b"goes on")
    bus.close()
    assert python(OWN, folder).stdout == ""


def test_a_closed_bus_says_so_and_can_be_closed_again(folder: Path) -> None:
    bus = headwater.open(folder)
    live, sub = bus.subscribe("a/#"), bus.subscribe("a/#", id="s")
    bus.close()
    bus.close()
    for use in (
        lambda: bus.publish("a/b", b""),
        lambda: bus.subscribe("a/b"),
        lambda: bus.replay("a/b"),
        bus.topics,
        bus.subscriptions,
        lambda: live.next(timeout_s=0),
        lambda: sub.next(timeout_s=0),
    ):
        with pytest.raises(Closed) as refused:
            use()
        assert refused.value.code == 503


def test_closing_wakes_everybody_who_waits(folder: Path) -> None:
    bus = headwater.open(folder)
    readers: list[Callable[[], object]] = [
        bus.subscribe("a/#").next,
        bus.subscribe("a/#", id="s").next,
        bus.follow("a/#").next,
    ]
    ended = [threading.Event() for _ in readers]

    def read(number: int) -> None:
        try:
            readers[number]()
        except Closed:
            pass
        ended[number].set()

    for number in range(len(readers)):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    bus.close()
    assert all(event.wait(WAIT_S) for event in ended)


def test_no_thread_outlives_its_bus(folder: Path, clock: ManualClock) -> None:
    before = set(threading.enumerate())
    with headwater.open(folder) as bus:
        bus.publish_soon("a/b", b"").result(WAIT_S)
        bus.subscribe("a/#", id="s", start="earliest").next(timeout_s=1).ack(wait=False)  # type: ignore[union-attr]
        assert len(set(threading.enumerate()) - before) <= 3
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    "url",
    [
        *("headwater://name:secret@host:7411", "headwaters://host", "headwater+unix:///run/x"),
        *("127.0.0.1:7411", "localhost:7411", "broker.example.org:7411", "[::1]:7411"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_the_address_of_a_server_is_no_folder_and_none_is_made(
    url: str, read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Malformed, match="did you mean connect") as refused:
        headwater.open(url, read_only=read_only)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_in_place_of_a_folder_is_named(read_only: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Malformed, match="is a file"):
        headwater.open(tmp_path / "file", read_only=read_only)


class Mounted(DiskFiles):
    """A disk that is mounted to be read only."""

    def lock(self, path: str) -> Lock:
        raise OSError(errno.EROFS, "Read-only file system", path)


def test_a_read_only_disk_is_said_to_be_one(folder: Path) -> None:
    headwater.open(folder).close()
    with pytest.raises(ReadOnly, match="mounted to be read only") as refused:
        headwater.open(folder, files=Mounted())
    assert "restore" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_this_user_may_only_read_is_looked_at_and_not_taken_for_damaged() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "data")
        with headwater.open(folder) as bus:
            bus.publish("home/x", b"1")
        for path in (Path(place), folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.seteuid(65534)
        try:
            with pytest.raises(ReadOnly, match="by this user") as refused:
                headwater.open(folder)
            with headwater.open(folder, read_only=True) as bus:
                assert [message.payload for message in bus.replay("home/x")] == [b"1"]
        finally:
            os.seteuid(0)
        assert "restore" not in str(refused.value)
