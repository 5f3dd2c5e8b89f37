"""Somebody who publishes a lot to a root of his own: those who publish to other roots do not wait for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater import Config
from headwater.bus import Bus
from headwater.errors import DiskFull, Failed, HeadwaterError, Malformed, ReadOnly
from headwater.log.checks import Checks
from headwater.log.publish import Part
from headwater.store.batch import checksum
from headwater.store.body import encode_body
from headwater.store.disk_file import DiskFile
from headwater.store.files import DiskFiles, File
from headwater.wire import batches, requests
from headwater.wire.frame import Kind, pack
from server.harness import Running

WAIT_S = 20.0
BULK = bytes(4000)
SMALL = Config(bulk_bytes_min=2000)


class Gate:
    """Where writes and syncs of the bulk root's log wait until the test lets them go."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.reached = threading.Event()
        self.error: OSError | None = None
        """What a write raises, once it is let go."""
        self.sync_error: OSError | None = None
        self.syncs = 0

    def close(self) -> None:
        self.reached.clear()
        self.is_open.clear()

    def pass_by(self) -> None:
        self.reached.set()
        assert self.is_open.wait(WAIT_S)


class GatedFile(DiskFile):
    __slots__ = ("gate",)

    gate: Gate

    def pwritev(self, buffers: Sequence[bytes | memoryview], position: int) -> None:
        self.gate.pass_by()
        error, self.gate.error = self.gate.error, None
        if error is not None:
            raise error
        super().pwritev(buffers, position)

    def datasync(self) -> None:
        self.gate.syncs += 1
        error, self.gate.sync_error = self.gate.sync_error, None
        if error is not None:
            raise error
        super().datasync()


class GatedFiles(DiskFiles):
    """The disk, with a gate before what is written to the root `bulk`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        if write and not create and "-bulk/" in path and path.endswith(".log"):
            file = GatedFile(path, os.O_RDWR | os.O_CLOEXEC)
            file.gate = self.gate
            return file
        return super().open(path, create=create, write=write)


@pytest.fixture
def files() -> GatedFiles:
    return GatedFiles()


@pytest.fixture
def gate(files: GatedFiles) -> Gate:
    return files.gate


@pytest.fixture
def bus(tmp_path: Path, files: GatedFiles) -> Iterator[Bus]:
    with Bus(str(tmp_path / "bus"), SMALL, files=files) as made:
        made.publish("bulk/x", b"first")
        made.publish("small/x", b"first")
        yield made
        files.gate.is_open.set()


def payloads(bus: Bus, filter: str) -> list[bytes]:
    return [message.payload for message in bus.replay(filter)]


def test_another_roots_publish_is_acked_while_a_large_one_is_written(bus: Bus, gate: Gate) -> None:
    gate.close()
    large = bus.publish_soon("bulk/x", BULK)
    assert gate.reached.wait(WAIT_S)
    assert bus.publish_soon("small/x", b"1").result(WAIT_S).offset == 2
    assert bus.publish_soon("other/x", b"of a root that is new").result(WAIT_S).offset == 1
    assert [one.result(WAIT_S).offset for one in [bus.publish_soon("small/y", b"") for _ in range(3)]] == [3, 4, 5]
    assert not large.done()
    gate.is_open.set()
    assert large.result(WAIT_S).offset == 2
    assert payloads(bus, "bulk/#") == [b"first", BULK]


def test_the_callers_of_other_threads_are_let_go_too(bus: Bus, gate: Gate) -> None:
    """Whoever waits in a thread of his own commits by himself, where nobody else does."""
    gate.close()
    done: list[int] = []
    writer = threading.Thread(target=lambda: done.append(bus.publish("bulk/x", BULK).offset))
    writer.start()
    assert gate.reached.wait(WAIT_S)
    others = [threading.Thread(target=bus.publish, args=(f"small/{number}", b"")) for number in range(4)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert not done
    gate.is_open.set()
    writer.join(WAIT_S)
    assert done == [2]


def test_a_root_keeps_its_order_while_something_large_of_it_is_written(bus: Bus, gate: Gate) -> None:
    gate.close()
    futures: list[Any] = [bus.publish_soon("bulk/x", BULK)]
    assert gate.reached.wait(WAIT_S)
    futures.append(bus.publish_soon("bulk/x", b"small, behind it"))
    futures.append(bus.publish_soon("bulk/x", BULK + b"another"))
    both = [("bulk/x", b"of two roots"), ("small/x", b"of two roots")]
    many: list[Any] = []
    thread = threading.Thread(target=lambda: many.append(bus.publish_many(both)))
    thread.start()
    wait_for(lambda: len(bus.core.roots.commit._aside.stays) == 3)
    after = bus.publish_soon("small/x", b"behind what stays")
    assert bus.publish_soon("other/x", b"").result(WAIT_S).offset == 1
    assert not after.done()
    gate.is_open.set()
    assert [future.result(WAIT_S).offset for future in futures] == [2, 3, 4]
    thread.join(WAIT_S)
    assert [receipt.offset for receipt in many[0]] == [5, 2]
    assert after.result(WAIT_S).offset == 3
    expected = [b"first", BULK, b"small, behind it", BULK + b"another", b"of two roots"]
    assert payloads(bus, "bulk/#") == expected


def test_two_large_ones_to_different_roots_wait_for_each_other_and_others_do_not(bus: Bus, gate: Gate) -> None:
    gate.close()
    first = bus.publish_soon("bulk/x", BULK)
    assert gate.reached.wait(WAIT_S)
    second = bus.publish_soon("large/x", BULK)
    behind = bus.publish_soon("large/x", b"behind it")
    assert bus.publish_soon("small/x", b"").result(WAIT_S).offset == 2
    assert not second.done()
    assert not behind.done()
    gate.is_open.set()
    assert first.result(WAIT_S).offset == 2
    assert (second.result(WAIT_S).offset, behind.result(WAIT_S).offset) == (1, 2)


def test_what_touches_everything_waits_for_the_large_one(bus: Bus, gate: Gate) -> None:
    gate.close()
    large = bus.publish_soon("bulk/x", BULK)
    assert gate.reached.wait(WAIT_S)
    looked: list[object] = []

    def look() -> None:
        looked.append(bus.core.roots.settled(lambda roots: {root.name: root.stream.durable for root in roots}))

    thread = threading.Thread(target=look)
    thread.start()
    assert bus.publish_soon("small/x", b"").result(WAIT_S).offset == 2
    assert not looked
    gate.is_open.set()
    thread.join(WAIT_S)
    assert looked == [{"bulk": 2, "small": 2}]
    assert large.done()


def test_closing_waits_for_it(tmp_path: Path, files: GatedFiles) -> None:
    bus = Bus(str(tmp_path / "bus"), SMALL, files=files)
    bus.publish("bulk/x", b"first")
    files.gate.close()
    large = bus.publish_soon("bulk/x", BULK)
    assert files.gate.reached.wait(WAIT_S)
    closer = threading.Thread(target=bus.close)
    closer.start()
    files.gate.is_open.set()
    closer.join(WAIT_S)
    assert large.result(0).offset == 2
    with Bus(str(tmp_path / "bus"), SMALL) as again:
        assert payloads(again, "bulk/#") == [b"first", BULK]


def test_if_there_is_no_room_for_it_what_came_behind_it_is_refused_with_it(bus: Bus, gate: Gate) -> None:
    """Or that would stand before it, when it comes again."""
    gate.close()
    large = bus.publish_soon("bulk/x", BULK)
    assert gate.reached.wait(WAIT_S)
    behind = bus.publish_soon("bulk/x", b"behind it")
    assert bus.publish_soon("small/x", b"").result(WAIT_S).offset == 2
    gate.error = OSError(errno.ENOSPC, "no room")
    gate.is_open.set()
    for future in (large, behind):
        with pytest.raises(DiskFull):
            future.result(WAIT_S)
    assert bus.publish("bulk/x", b"again").offset == 2
    assert payloads(bus, "bulk/#") == [b"first", b"again"]


def test_if_its_sync_fails_its_root_alone_is_read_only(tmp_path: Path, bus: Bus, gate: Gate) -> None:
    gate.sync_error = OSError(errno.EIO, "it broke")
    with pytest.raises(Failed):
        bus.publish("bulk/x", BULK)
    with pytest.raises(ReadOnly):
        bus.publish("bulk/x", b"later")
    assert bus.publish("small/x", b"").offset == 2
    assert payloads(bus, "bulk/#") == [b"first"]


def test_it_goes_to_disk_in_pieces_while_others_use_it(bus: Bus, gate: Gate) -> None:
    """So that no sync of theirs has to wait for all of it."""
    before = gate.syncs
    bus.publish("small/x", b"")
    bus.publish("bulk/x", bytes(9 * SMALL.bulk_bytes_min))
    assert gate.syncs - before >= 9
    assert len(payloads(bus, "bulk/#")[-1]) == 9 * SMALL.bulk_bytes_min


def test_the_disk_is_not_used_for_less_than_it_gives_by_one_who_is_alone(tmp_path: Path, files: GatedFiles) -> None:
    with Bus(str(tmp_path / "alone"), SMALL, files=files) as bus:
        bus.publish("bulk/x", BULK)
        before = files.gate.syncs
        bus.publish("bulk/x", bytes(9 * SMALL.bulk_bytes_min))
        assert files.gate.syncs - before == 1


# Over the wire


def long_frame(id: int, root: str, count: int = 2, *, crc: int | None = None, **options: Any) -> bytes:
    """A PUBLISH frame that no single read brings."""
    body = encode_body([f"{root}/x"] * count, [bytes(400_000)] * count, 1)
    told = checksum(body) if crc is None else crc
    return b"".join(batches.pack_publish(id, root, count, told, body, **options))


@pytest.fixture
def running() -> Iterator[Running]:
    with Running() as made:
        yield made


def test_the_loop_serves_others_while_a_long_publish_is_checked(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, check = threading.Event(), threading.Event(), Checks.body

    def slow(self: Checks, root: str, *given: Any, **more: Any) -> Part:
        if root == "bulk":
            begun.set()
            assert go_on.wait(WAIT_S)
        return check(self, root, *given, **more)

    monkeypatch.setattr(Checks, "body", slow)
    publisher, other = running.peer(), running.peer()
    publisher.send(long_frame(7, "bulk"))
    assert begun.wait(WAIT_S)
    try:
        assert other.publish("small/x", b"") == 1
    finally:
        go_on.set()
    assert publisher.published(7).first_offset == 1


def test_what_comes_behind_a_long_publish_comes_after_it(running: Running) -> None:
    peer = running.peer()
    frames = [long_frame(101, "bulk"), long_frame(102, "bulk")]
    peer.send(*frames, pack(Kind.PING, 0, b"behind"), requests.pack_request(103, requests.Topics()))
    small = peer.publish_soon("bulk/x", b"last")
    assert peer.published(small).first_offset == 5
    assert [peer.published(number).first_offset for number in (101, 102)] == [1, 3]
    assert peer.publish("bulk/x", b"the last") == 6


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        pytest.param(long_frame(5, "bulk", crc=1), Malformed, id="a wrong checksum"),
        pytest.param(long_frame(5, "bulk", producer="$mine"), Malformed, id="a wrong producer"),
    ],
)
def test_a_long_publish_that_is_wrong_is_refused_and_disturbs_nobody(
    running: Running, frame: bytes, error: type[HeadwaterError]
) -> None:
    peer = running.peer()
    peer.send(frame)
    small = peer.publish_soon("small/x", b"")
    with pytest.raises(error):
        peer.published(5)
    assert peer.published(small).first_offset == 1
    assert running.bus.ends().keys() == {"small"}


def test_one_that_leaves_while_its_publish_is_checked_is_forgotten(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, check = threading.Event(), threading.Event(), Checks.body

    def slow(self: Checks, *given: Any, **more: Any) -> Part:
        begun.set()
        assert go_on.wait(WAIT_S)
        return check(self, *given, **more)

    monkeypatch.setattr(Checks, "body", slow)
    peer = running.peer()
    session = peer.session
    peer.send(long_frame(7, "bulk"))
    assert begun.wait(WAIT_S)
    again = running.peer(session=session)
    go_on.set()
    monkeypatch.undo()
    assert again.publish("bulk/x", b"") == 1


def wait_for(test: Callable[[], bool]) -> None:
    end = threading.Event()
    for _ in range(int(WAIT_S * 200)):
        if test():
            return
        end.wait(0.005)
    raise AssertionError("it did not happen")
