"""Random work on leaders, random faults of the engine, random crashes and changes of who leads; then everybody is
asked what they have.

What is checked: all that was acknowledged is there, at the offset that was told; nothing is there twice; what one node
has at a position, every other has, to the byte; a folder that a crash has left goes on from its checkpoint.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from cluster.memory_engine import Bed, Faults
from cluster.nodes import BUS, SMALL, Leader, Node
from faults.faulty_files import Crash, FaultyFiles
from faults.faulty_state import FaultyState
from headwater.cluster.adoption import adopt
from headwater.cluster.checkpoint import LOCAL
from headwater.errors import HeadwaterError, NotFound, Unavailable
from headwater.message import Receipt
from headwater.store.files import Files

FOLDER = "data"
NODES = 3
ROUNDS = 5
STEPS = 25
ROOTS = ("home", "away", "far")
MUCH = 9_000


@dataclass
class Story:
    """One random run."""

    seed: int
    rng: random.Random = field(init=False)
    nodes: list[Node] = field(init=False)
    acked: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """By payload, where it was said to be."""
    under_way: list[tuple[bytes, str, Future[Receipt]]] = field(default_factory=list)
    purged: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    count: int = 0
    crashes: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        files, state = FaultyFiles(), FaultyState()
        adopt(FOLDER, BUS, SMALL, files=files, state=state)
        bed = Bed()
        self.nodes = [
            Node(FOLDER, bed, SMALL, files=files.process_kill(), state=state.process_kill()) for _ in range(NODES)
        ]

    def play(self) -> None:
        for number in range(ROUNDS):
            leading = self.rng.randrange(NODES)
            self.lead(self.nodes[leading], [node for node in self.nodes if node is not self.nodes[leading]], number)
        self.judge()

    # A round

    def lead(self, node: Node, others: list[Node], number: int) -> None:
        self.epoch += 1
        node.files, node.state = fresh(node)
        rng = self.rng
        faults = Faults(rng.randrange(1 << 30), lost=20, unheard=20, doubled=30, late=20) if number % 2 else None
        leader = node.lead(self.epoch, faults, part_bytes_max=rng.choice((2_000, 1 << 20)))
        for _ in range(STEPS):
            self.step(leader)
            if rng.random() < 0.1:
                self.follow(rng.choice(others))
        ends: list[Callable[[Leader, Node, list[Node]], None]] = [self.close, self.kill, self.power_loss, self.overtake]
        rng.choice(ends)(leader, node, others)
        self.settle()

    def step(self, leader: Leader) -> None:
        rng = self.rng
        steps = [self.publish] * 6 + [self.publish_soon] * 4 + [self.publish_many] * 4 + [self.consume] * 2
        steps += [self.checkpoint, self.purge, self.remove, self.write_rows, self.quiet]
        try:
            rng.choice(steps)(leader)
        except Unavailable:
            while leader.sequencer.is_suspended and leader.sequencer.stopped is None:
                threading.Event().wait(0.001)

    def payload(self, size: int = 0) -> bytes:
        self.count += 1
        return b"%d " % self.count + b"x" * size

    def publish(self, leader: Leader) -> None:
        payload, topic = self.payload(self.rng.choice((0, 400))), f"{self.rng.choice(ROOTS)}/{self.rng.randrange(5)}"
        receipt = leader.bus.publish(topic, payload, retain=self.rng.random() < 0.2)
        self.acked[payload] = (topic, receipt.offset)

    def publish_soon(self, leader: Leader) -> None:
        payload, topic = self.payload(self.rng.choice((100, MUCH))), f"{self.rng.choice(ROOTS)}/soon"
        with suppress(Unavailable):
            self.under_way.append((payload, topic, leader.bus.publish_soon(topic, payload)))

    def publish_many(self, leader: Leader) -> None:
        given = [(f"{self.rng.choice(ROOTS)}/many", self.payload(200)) for _ in range(self.rng.randrange(1, 20))]
        for (topic, payload), receipt in zip(given, leader.bus.publish_many(given), strict=True):
            self.acked[payload] = (topic, receipt.offset)

    def consume(self, leader: Leader) -> None:
        root = self.rng.choice(ROOTS)
        with leader.bus.subscribe(f"{root}/#", id=root, on_gap="skip") as consumer:
            taken = consumer.batch(5, timeout_s=0)
            for message in taken[:-1]:
                message.ack()
            for message in taken[-1:]:
                message.nack("no")

    def checkpoint(self, leader: Leader) -> None:
        leader.replication.checkpoint()

    def purge(self, leader: Leader) -> None:
        if self.rng.random() < 0.3:
            root = self.rng.choice(ROOTS)
            self.settle()
            leader.bus.purge(f"{root}/#")
            self.purged[root] = self.count

    def remove(self, leader: Leader) -> None:
        if self.rng.random() < 0.3:
            root = self.rng.choice(ROOTS)
            self.settle()
            try:
                leader.bus.remove_root(root, force=True)
            except NotFound:
                return
            self.purged[root] = self.count

    def write_rows(self, leader: Leader) -> None:
        leader.core.state.write({b"z%d" % self.rng.randrange(20): self.rng.choice((None, b"%d" % self.count))})

    def quiet(self, leader: Leader) -> None:
        leader.engine.is_up = False
        self.publish_soon(leader)
        threading.Event().wait(0.01)
        leader.engine.is_up = True

    # The others

    def follow(self, node: Node) -> None:
        """Apply what there is, and perhaps lose power."""
        node.files, node.state = fresh(node)
        replica = node.follow()
        if self.rng.random() < 0.5:
            self.crash_within(node, lambda: node.catch_up(replica))
            return
        node.catch_up(replica)
        if self.rng.random() < 0.5:
            self.crash(node)
        else:
            replica.close()

    def crash_within(self, node: Node, work: Callable[[], object]) -> None:
        """Lose power at some sync, if it comes to that."""
        files = node.files
        assert isinstance(files, FaultyFiles)
        at = files.syncs + self.rng.randrange(1, 6)

        def hook(_: str, number: int) -> None:
            if number >= at:
                raise Crash

        files.on_sync = hook
        try:
            work()
        except (Crash, HeadwaterError, OSError):
            pass
        self.crash(node)

    def crash(self, node: Node) -> None:
        self.crashes += 1
        files, state = node.files, node.state
        assert isinstance(files, FaultyFiles)
        assert isinstance(state, FaultyState)
        if self.rng.random() < 0.3:
            node.files, node.state = files.process_kill(), state.process_kill()
        else:
            node.files, node.state = files.crash(self.rng), state.crash(self.rng)

    # Ends of a leader

    def close(self, leader: Leader, node: Node, _: list[Node]) -> None:
        try:
            leader.close()
        except HeadwaterError:  # the engine was silent: what was to be noted at the end is not
            leader.drop()
            self.crash(node)

    def kill(self, leader: Leader, node: Node, _: list[Node]) -> None:
        leader.sequencer.stop("it is killed")
        leader.engine.close()
        self.crash(node)
        end(leader)

    def power_loss(self, leader: Leader, node: Node, _: list[Node]) -> None:
        def work() -> None:
            for _ in range(10):
                self.publish_soon(leader)
            leader.replication.checkpoint()
            self.publish_many(leader)

        before, threading.excepthook = threading.excepthook, lambda _: None
        try:
            self.crash_within(node, work)
        finally:
            leader.sequencer.stop("its power is gone")
            leader.engine.close()
            end(leader)
            threading.excepthook = before

    def overtake(self, leader: Leader, node: Node, others: list[Node]) -> None:
        """Another takes over while groups are under way, and this one notices by its next record."""
        other = self.rng.choice(others)
        for _ in range(5):
            self.publish_soon(leader)
        other.files, other.state = fresh(other)
        self.epoch += 1
        while True:
            try:
                second = other.lead(self.epoch)
                break
            except HeadwaterError:  # a message of the old one has come in between: it reads on
                self.epoch += 1
                other.files, other.state = fresh(other)
        with suppress(Unavailable):  # where the old one's message comes in between, there is to be a third
            self.publish(second)
        while leader.sequencer.stopped is None:
            with suppress(Unavailable):
                self.publish(leader)
        with suppress(Unavailable):
            self.publish(second)
        end(leader)
        self.close(second, other, others)
        node.files, node.state = fresh(node)

    def settle(self) -> None:
        """What was said of that which was under way."""
        for payload, topic, future in self.under_way:
            try:
                self.acked[payload] = (topic, future.result(20).offset)
            except (HeadwaterError, Crash):
                pass
        self.under_way.clear()

    # In the end

    def judge(self) -> None:
        found = []
        for node in self.nodes:
            node.files, node.state = fresh(node)
            replica = node.followed()
            found.append((replica.position, segments_of(node), rows_of(node)))
            replica.close()
        for other in found[1:]:
            assert other[0] == found[0][0]
            assert {name: len(data) for name, data in other[1].items()} == {
                name: len(data) for name, data in found[0][1].items()
            }
            assert other[1] == found[0][1]
            assert other[2] == found[0][2]
        self.epoch += 1
        node = self.rng.choice(self.nodes)
        leader = node.lead(self.epoch)
        there: dict[bytes, tuple[str, int]] = {}
        for message in leader.bus.replay("#"):
            if message.topic.partition("/")[0] in ROOTS:
                assert message.payload not in there, "it is there twice"
                there[message.payload] = (message.topic, message.offset)
        for payload, place in self.acked.items():
            if int(payload.partition(b" ")[0]) > self.purged.get(place[0].partition("/")[0], 0):
                assert there.get(payload) == place
        leader.close()


def end(leader: Leader) -> None:
    """A leader whose folder is gone."""
    try:
        leader.drop()
    except (HeadwaterError, OSError, Crash):
        pass


def fresh(node: Node) -> tuple[FaultyFiles, FaultyState]:
    """The same disk, as a new process finds it after the last one ended."""
    assert isinstance(node.files, FaultyFiles)
    assert isinstance(node.state, FaultyState)
    return node.files.process_kill(), node.state.process_kill()


def everything(files: Files) -> dict[str, bytes]:
    """All segments."""
    return {
        f"{name}/{segment}": files.read(f"{FOLDER}/streams/{name}/{segment}").rstrip(b"\0")
        for name in files.list(f"{FOLDER}/streams")
        for segment in files.list(f"{FOLDER}/streams/{name}")
        if segment.endswith(".log")
    }


def segments_of(node: Node) -> dict[str, bytes]:
    assert node.files is not None
    return everything(node.files)


def rows_of(node: Node) -> dict[bytes, bytes]:
    assert node.state is not None
    return {key: value for key, value in node.state.scan(b"") if key[:1] not in LOCAL}


@pytest.mark.parametrize("seed", range(10))
def test_nothing_that_was_acknowledged_is_lost_and_all_nodes_have_the_same(seed: int) -> None:
    Story(seed).play()


@pytest.mark.soak
def test_the_same_for_a_thousand_stories() -> None:
    for seed in range(1000, 2000):
        Story(seed).play()
