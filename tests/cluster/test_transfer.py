"""A node takes a copy of another: over real NATS servers, in real folders, from processes that are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.nodes import SMALL, Node, another, first, rows, segments
from headwater.clock import SystemClock
from headwater.cluster import copies as copying
from headwater.cluster import transfer as transferring
from headwater.cluster.copies import COPY, DIGEST, PIECE, Copies
from headwater.cluster.engine import Handler
from headwater.cluster.nats_engine import NatsEngine
from headwater.cluster.record import Position
from headwater.cluster.transfer import Transfer
from headwater.config import Clustering, Config
from headwater.errors import DiskFull, Owned, Unavailable
from headwater.store.files import DiskFiles

Engines = Callable[[str], NatsEngine]
BUS = "orders"
CONFIG = Config(segment_bytes=65_536, disk_free_bytes_min=0)


@dataclass
class Source:
    """A node that follows, and hands out copies; `between` may do something to what it answers."""

    path: str
    engine: NatsEngine
    name: str
    asked: list[str] = field(default_factory=list)
    between: Callable[[str, Handler, bytes], bytes] = lambda _, handler, data: handler(data)
    is_answering: bool = False

    def start(self, node: Node) -> Source:
        self.replica = node.follow()
        self.copies = Copies(self.path, DiskFiles(), SystemClock())
        self.copies.take = self.replica.snapshot
        if not self.is_answering:
            self.engine.answer(self.name, {verb: self._handler(verb) for verb in self.copies.handlers()})
        self.is_answering = True
        return self

    def _handler(self, verb: str) -> Handler:
        def answer(data: bytes) -> bytes:
            self.asked.append(verb)
            return self.between(verb, self.copies.handlers()[verb], data)

        return answer

    def stop(self) -> None:
        self.copies.close()
        self.replica.close()


@pytest.fixture
def filled(tmp_path: Path) -> Node:
    """A node's folder with some segments, rows, and a mark of a lake."""
    node = first(tmp_path / "n1")
    leader = node.lead(1)
    for place in range(12):
        leader.bus.publish_many([(f"t/{place}", bytes([place]) * 900) for _ in range(20)])
    leader.bus.subscribe("t/#", id="them")
    leader.core.data.mark_archived("lake", {"t": 7})
    leader.settle()
    leader.close()
    node.followed().close()
    return node


@pytest.fixture
def source(filled: Node, engines: Engines) -> Iterator[Source]:
    made = Source(filled.path, engines("n1"), "n1").start(filled)
    yield made
    made.stop()


def same(one: str, other: str) -> None:
    assert segments(one) == segments(other)
    assert len(segments(one)) > 3
    assert rows(one) == rows(other)
    assert (Path(one) / "archived/lake").read_bytes() == (Path(other) / "archived/lake").read_bytes()
    assert not (Path(other) / "incoming").exists()


def taken(path: Path, engine: NatsEngine, **settings: object) -> Transfer:
    return Transfer(str(path), engine, BUS, CONFIG, **settings)  # type: ignore[arg-type]


def test_a_new_node_takes_a_copy_and_goes_on_with_records(
    filled: Node, source: Source, engines: Engines, tmp_path: Path
):
    transfer = taken(tmp_path / "n2", engines("n2"))
    position = transfer.run(["n1"], 0)
    assert position == source.replica.position
    assert transfer.bytes_fetched == transfer.bytes
    assert not list((tmp_path / "n1/copies").iterdir())
    source.replica.close()
    leader = filled.lead(2)
    leader.bus.publish("t/new", b"new")
    leader.settle()
    leader.close()
    joined = Node(str(tmp_path / "n2"), filled.bed, filled.config)
    joined.followed().close()
    filled.followed().close()
    same(filled.path, joined.path)
    source.start(filled)


def test_a_leader_hands_out_copies_while_it_goes_on(filled: Node, engines: Engines, tmp_path: Path):
    leader = filled.lead(2)
    ended = threading.Event()

    def publish() -> None:
        while not ended.is_set():
            leader.bus.publish("t/more", bytes(500))

    publishing = threading.Thread(target=publish)
    publishing.start()
    copies = Copies(filled.path, DiskFiles(), SystemClock())
    copies.take = leader.replication.snapshot
    engines("n1").answer("n1", copies.handlers())
    try:
        position = taken(tmp_path / "n2", engines("n2")).run(["n1"], 0)
    finally:
        ended.set()
        publishing.join()
    leader.settle()
    leader.close()
    assert position.number < leader.sequencer.position.number
    joined = Node(str(tmp_path / "n2"), filled.bed, filled.config)
    joined.followed().close()
    filled.followed().close()
    same(filled.path, joined.path)


def test_what_was_cut_off_in_the_middle_goes_on_there(source: Source, engines: Engines, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(transferring, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(transferring, "PAUSE_S", 0.01)

    def cut(verb: str, handler: Handler, data: bytes) -> bytes:
        if verb == PIECE and source.asked.count(PIECE) > 12:
            raise Unavailable("the cable is out")
        return handler(data)

    source.between = cut
    with pytest.raises(Unavailable, match="the cable is out"):
        taken(tmp_path / "n2", engines("n2")).run(["n1"], 0)
    source.between = lambda _, handler, data: handler(data)
    again = taken(tmp_path / "n2", engines("n3"))
    again.run(["n1"], 0)
    assert 0 < again.bytes_fetched < again.bytes - 60_000
    assert source.asked.count(COPY) == 1
    source.replica.close()
    same(source.path, str(tmp_path / "n2"))
    source.replica = Node(source.path, None, SMALL).follow()  # type: ignore[arg-type]


def test_when_a_source_is_killed_the_rest_comes_from_another(
    filled: Node, engines: Engines, clustering: Clustering, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(transferring, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(transferring, "PIECE_S", 0.5)
    monkeypatch.setattr(transferring, "TRIES", 2)
    other = Source(str(tmp_path / "n3"), engines("n3"), "n3")
    copied = filled.follow()
    copied.snapshot(other.path)
    copied.close()
    for path in Path(other.path).rglob("*.log"):  # links no more: a folder of its own
        path.write_bytes(path.read_bytes())
    other.start(Node(other.path, filled.bed, filled.config))
    command = [sys.executable, "-m", "cluster.copy_source", filled.path, ",".join(clustering.cluster), clustering.bus]
    child = subprocess.Popen([*command, "n1", "0.05"], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        transfer = taken(tmp_path / "n2", engines("n2"))
        result: list[Position] = []
        running = threading.Thread(target=lambda: result.append(transfer.run(["n1", "n3"], 0)))
        running.start()
        while transfer.bytes_fetched < 60_000:
            running.join(0.01)
        child.kill()
        running.join(60)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]
    assert result == [other.replica.position]
    assert transfer.source == "n3"
    assert transfer.bytes_fetched == transfer.bytes  # nothing of what had come was fetched again
    other.stop()
    same(other.path, str(tmp_path / "n2"))


def test_a_byte_that_is_damaged_on_the_way_is_noticed_and_its_piece_comes_again(
    source: Source, engines: Engines, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(transferring, "PAUSE_S", 0.01)
    monkeypatch.setattr(transferring, "FILE_TRIES", 1)  # so that the file's digest does not notice it in its place
    damaged: list[str] = []

    def flip(verb: str, handler: Handler, data: bytes) -> bytes:
        said = bytearray(handler(data))
        if verb == PIECE and len(said) > 100 and not damaged:
            damaged.append(verb)
            said[77] ^= 1
        return bytes(said)

    source.between = flip
    taken(tmp_path / "n2", engines("n2")).run(["n1"], 0)
    assert damaged
    source.stop()
    same(source.path, str(tmp_path / "n2"))
    source.start(Node(source.path, None, SMALL))  # type: ignore[arg-type]


def test_a_file_that_went_bad_here_is_fetched_anew(source: Source, engines: Engines, tmp_path: Path, monkeypatch):
    def cut(verb: str, handler: Handler, data: bytes) -> bytes:
        if verb == DIGEST and source.asked.count(DIGEST) > 2:
            raise Unavailable("the cable is out")
        return handler(data)

    source.between = cut
    with pytest.raises(Unavailable):
        taken(tmp_path / "n2", engines("n2")).run(["n1"], 0)
    here = min((tmp_path / "n2/incoming/streams").rglob("*.log"))
    data = bytearray(here.read_bytes())
    data[1000] ^= 1
    here.write_bytes(data)
    source.between = lambda _, handler, asked: handler(asked)
    taken(tmp_path / "n2", engines("n3")).run(["n1"], 0)
    source.stop()
    same(source.path, str(tmp_path / "n2"))
    source.start(Node(source.path, None, SMALL))  # type: ignore[arg-type]


def test_a_node_that_is_too_far_behind_keeps_the_segments_that_it_has(
    filled: Node, source: Source, engines: Engines, tmp_path: Path
):
    taken(tmp_path / "n2", engines("n2")).run(["n1"], 0)
    source.stop()
    leader = filled.lead(2)
    leader.bus.publish_many([("t/late", bytes(900)) for _ in range(20)])
    leader.settle()
    leader.close()
    filled.followed().close()
    source.start(filled)
    transfer = taken(tmp_path / "n2", engines("n2"))
    transfer.run(["n1"], source.replica.position.sequence)
    assert transfer.bytes_fetched < transfer.bytes / 2
    source.stop()
    same(filled.path, str(tmp_path / "n2"))
    source.start(filled)


def test_a_copy_that_comes_to_nothing_leaves_the_old_folder_as_it_was(filled: Node, engines: Engines, tmp_path: Path):
    """Also where it has linked a segment of it, and the next source offers less of that."""
    late = another(filled, tmp_path / "n3")
    leader = filled.lead(2)
    leader.bus.publish("t/late", b"late")
    leader.settle()
    leader.close()
    filled.followed().close()
    old = another(filled, tmp_path / "n2")
    before = segments(old.path)

    def cut(verb: str, handler: Handler, data: bytes) -> bytes:
        if verb == DIGEST and (source is ahead or PIECE in source.asked):
            raise Unavailable("the cable is out")
        return handler(data)

    ahead = Source(filled.path, engines("n1"), "n1", between=cut).start(filled)
    behind = Source(late.path, engines("n3"), "n3", between=cut).start(late)
    try:
        for source in (ahead, behind):
            with pytest.raises(Unavailable, match="the cable is out"):
                taken(tmp_path / "n2", engines("n2")).run([source.name], 0)
        assert PIECE in behind.asked
    finally:
        ahead.stop()
        behind.stop()
    assert segments(old.path) == before


def test_a_source_that_is_as_far_behind_is_passed_over(source: Source, engines: Engines, tmp_path: Path):
    with pytest.raises(Unavailable, match="too far behind"):
        taken(tmp_path / "n2", engines("n2")).run(["n1"], source.replica.position.sequence + 1)
    assert not list((tmp_path / "n1/copies").iterdir())


def test_without_room_nothing_is_fetched(source: Source, engines: Engines, tmp_path: Path):
    config = Config(disk_free_bytes_min=1 << 62)
    with pytest.raises(DiskFull, match="make room"):
        Transfer(str(tmp_path / "n2"), engines("n2"), BUS, config).run(["n1"], 0)
    assert PIECE not in source.asked


def test_a_folder_that_somebody_has_open_is_left_alone(source: Source, engines: Engines):
    with pytest.raises(Owned):
        taken(Path(source.path), engines("n2")).run(["n1"], 0)


class Cut(Exception):
    """The process is gone."""


class Dying(DiskFiles):
    """A disk whose process dies at one of the calls that move or remove."""

    left = 1 << 30

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cut

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


def test_a_crash_while_the_copy_takes_the_old_folders_place_is_finished(
    filled: Node, source: Source, engines: Engines, tmp_path: Path
):
    engine = engines("n2")
    path = tmp_path / "n2"
    for left in range(0, 200, 3):
        files = Dying()
        transfer = taken(path, engine, files=files)
        real = transfer._take_over

        def take_over(status, files=files, left=left, real=real):
            files.left = left
            return real(status)

        transfer._take_over = take_over  # type: ignore[method-assign]
        try:
            transfer.run(["n1"], 0)
        except Cut:
            source.copies.close()
            source.copies.take = source.replica.snapshot
            taken(path, engine).finish()
            assert not (path / "incoming").exists() or (path / "incoming/COPY").exists()
            if not (path / "incoming").exists():
                Node(str(path), filled.bed, filled.config).follow().close()
        else:
            break
    else:
        pytest.fail("it never came to its end")
    source.stop()
    same(source.path, str(path))
    source.start(filled)


def test_copies_that_nobody_asks_for_are_removed(filled: Node):
    class Clock(SystemClock):
        ahead_us = 0

        def monotonic_us(self) -> int:
            return super().monotonic_us() + self.ahead_us

    clock = Clock()
    replica = filled.follow()
    copies = Copies(filled.path, DiskFiles(), clock)
    with pytest.raises(Unavailable, match="no folder"):
        copies.offer(b"")
    copies.take = replica.snapshot
    for _ in range(copying.COPIES_MAX):
        copies.offer(b"")
    with pytest.raises(Unavailable, match="already"):
        copies.offer(b"")
    assert len(list(Path(filled.path, "copies").iterdir())) == copying.COPIES_MAX
    clock.ahead_us = 1_000_000_000
    copies.sweep()
    assert not list(Path(filled.path, "copies").iterdir())
    copies.offer(b"")
    Copies(filled.path, DiskFiles(), clock)  # the next process
    assert not Path(filled.path, "copies").exists()
    replica.close()
