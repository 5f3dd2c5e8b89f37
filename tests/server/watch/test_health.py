"""Health: each thing that can ail a server is told, with what to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from faults.faulty_files import FaultyFiles
from faults.faulty_state import FaultyState
from headwater.bus import Bus
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.server.watch import health as checking
from headwater.wire import administration as wire
from server.harness import Peer, Running


class Disk:
    """What a server's bus stands on, to be broken."""

    def __init__(self) -> None:
        self.files = FaultyFiles()
        self.state = FaultyState()

    def bus(self) -> Bus:
        return Bus("data", Config(disk_free_bytes_min=1000), files=self.files, state=self.state)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@contextmanager
def served(disk: Disk) -> Iterator[Running]:
    """A server on it; however it ends, what is broken need not end well."""
    bus = disk.bus()
    try:
        with Running(bus=bus, loop_lag_s_max=60.0) as running:
            yield running
    finally:
        with suppress(HeadwaterError, OSError):
            bus.close()


def ailing(peer: Peer) -> dict[str, str]:
    """What is not well, and what is said about it."""
    found: wire.Health = peer.ask(wire.CheckHealth())
    assert [one.name for one in found.checks] == ["disk", "streams", "state", "access", "commits", "loop"]
    assert found.ok == all(one.ok for one in found.checks)
    return {one.name: one.detail for one in found.checks if not one.ok}


def test_a_server_that_does_its_work_is_well():
    with Running(loop_lag_s_max=60.0) as running:
        peer = running.peer()
        peer.publish("home/a")
        assert ailing(peer) == {}


def test_a_disk_that_is_nearly_full_ails(disk: Disk):
    with served(disk) as running:
        peer = running.peer()
        assert ailing(peer) == {}
        disk.files.capacity_bytes = 10
        assert "free some room" in ailing(peer)["disk"]


def test_a_stream_whose_sync_failed_ails_until_the_server_is_started_again(disk: Disk):
    with served(disk) as running:
        peer = running.peer()
        peer.publish("home/a")
        disk.files.fail_sync_at = disk.files.syncs + 1
        with pytest.raises(HeadwaterError):
            peer.publish("home/a")
        found = ailing(peer)
        assert list(found) == ["streams"]
        assert '"home"' in found["streams"]
        assert "start the server again" in found["streams"]


def test_a_state_store_that_failed_ails(disk: Disk):
    with served(disk) as running:
        peer = running.peer()
        disk.state.fail_sync_at = disk.state.syncs + 1
        with pytest.raises(HeadwaterError):
            peer.subscribe(1, "home/#", kind="named", id="s")
        assert "opened again by itself" in ailing(peer)["state"]


def test_lost_messages_are_told_and_the_server_can_do_its_work_all_the_same(disk: Disk):
    with disk.bus() as bus:
        for _ in range(20):
            bus.publish("home/a", b"x" * 2000)
    (folder,) = disk.files.list("data/streams")
    (name,) = [name for name in disk.files.list(f"data/streams/{folder}") if name.endswith(".log")]
    disk.files.flip(f"data/streams/{folder}/{name}", 5000)
    disk.state = FaultyState()  # so that recovery looks at everything
    with served(disk) as running:
        found: wire.Health = running.peer().ask(wire.CheckHealth())
        assert found.ok
        (streams,) = [one for one in found.checks if one.name == "streams"]
        assert 'messages are lost: 3 to 3 of "home"' in streams.detail


def test_a_group_that_waits_for_the_disk_ails(disk: Disk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checking, "COMMIT_US_MAX", 0)
    with served(disk) as running:
        peer = running.peer()
        reached, go_on = threading.Event(), threading.Event()

        def hang(path: str, number: int) -> None:
            reached.set()
            go_on.wait(60)

        disk.files.on_sync = hang
        publishing = threading.Thread(target=running.bus.publish, args=("home/a", b"1"))
        publishing.start()
        try:
            assert reached.wait(60)
            time.sleep(0.01)
            assert "whether the disk answers" in ailing(peer)["commits"]
        finally:
            disk.files.on_sync = None
            go_on.set()
            publishing.join()
        assert ailing(peer) == {}


def test_an_event_loop_that_is_held_up_ails():
    with Running(loop_lag_s_max=0.05) as running:
        peer = running.peer()
        running.call(lambda: time.sleep(0.5))
        assert "loop_lag_s_max" in ailing(peer)["loop"]
