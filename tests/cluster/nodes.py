"""Nodes in one process, over an engine in memory: who leads and who follows is up to the test."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from cluster.memory_engine import Bed, Faults, MemoryEngine
from headwater.bus import Bus
from headwater.clock import Clock, SystemClock
from headwater.cluster.adoption import adopt
from headwater.cluster.checkpoint import LOCAL
from headwater.cluster.follower import Following
from headwater.cluster.record import Epoch, Position
from headwater.cluster.replica import Replica
from headwater.cluster.replication import Replication
from headwater.cluster.sequencer import Sequencer
from headwater.cluster.snapshot import Snapshot
from headwater.config import Config
from headwater.core import Core
from headwater.store.files import Files
from headwater.store.rocks import RocksState
from headwater.store.state import State

BUS = "orders"
SMALL = Config(
    segment_bytes=65_536,
    checkpoint_bytes=30_000,
    checkpoint_batches=50,
    bulk_bytes_min=8_000,
    preallocate_bytes=0,
    disk_free_bytes_min=0,
)


@dataclass
class Leader:
    """A core that leads, and what it stands on."""

    bus: Bus
    sequencer: Sequencer
    replication: Replication
    engine: MemoryEngine

    @property
    def core(self) -> Core:
        return self.bus.core

    def settle(self) -> Position:
        """All that was written is carried out."""
        self.core.settle()
        self.core.rows.flush()
        self.core.state.sync()
        return self.sequencer.position

    def close(self) -> None:
        """A planned step-down."""
        self.bus.close()
        self.sequencer.stop("a planned step-down")
        self.engine.close()

    def drop(self) -> None:
        """What becomes of a leader that is none any more."""
        self.sequencer.stop("another leads")
        self.core.drop()
        self.engine.close()


@dataclass
class Node:
    """One node's folder."""

    path: str
    bed: Bed
    config: Config = SMALL
    clock: Clock = field(default_factory=SystemClock)
    files: Files | None = None
    state: State | None = None

    def follow(self) -> Replica:
        return Replica(self.path, self.config, clock=self.clock, files=self.files, state=self.state)

    def catch_up(self, replica: Replica) -> Following:
        """Apply all that the stream has."""
        following = Following(replica.position, replica.written)
        for sequence in range(replica.position.sequence + 1, self.bed.last + 1):
            record = following.read(sequence, self.bed.messages[sequence])
            if record is not None:
                replica.apply(record, following.position)
        return following

    def followed(self) -> Replica:
        """A replica that has applied all there is."""
        replica = self.follow()
        self.catch_up(replica)
        return replica

    def lead(self, epoch: int, faults: Faults | None = None, **engine: int) -> Leader:
        """Lead, from where the stream ends."""
        replica = self.follow()
        following = self.catch_up(replica)
        replica.close()
        made = MemoryEngine(self.bed, faults, **engine)
        sequencer = Sequencer(made, replica.position, following.end, epoch, self.clock)
        sequencer.commit([Epoch(epoch, self.path, BUS)])
        replication = Replication(sequencer)
        bus = Bus(
            self.path,
            self.config,
            files=self.files,
            state=self.state,
            clock=self.clock,
            replication=replication,
        )
        return Leader(bus, sequencer, replication, made)


def first(path: Path, config: Config = SMALL) -> Node:
    """The first node of a new bus."""
    adopt(str(path), BUS, config)
    return Node(str(path), Bed(), config)


def another(node: Node, path: Path) -> Node:
    """A node that joins with a snapshot of one that follows."""
    replica = node.follow()
    try:
        fetch(str(path), replica.snapshot(f"{path}.snapshot"), f"{path}.snapshot")
    finally:
        replica.close()
    return Node(str(path), node.bed, node.config)


def fetch(path: str, snapshot: Snapshot, source: str) -> None:
    """What a node that joins does with another's snapshot, without the wire between."""
    for file in snapshot.files:
        target = Path(path) / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((Path(source) / file.name).read_bytes()[: file.bytes])


def segments(path: str) -> dict[str, str]:
    """What every segment has, and how long it is; zeros ahead of an active one do not count."""
    found = {}
    for folder, _, names in os.walk(f"{path}/streams"):
        for name in names:
            if name.endswith(".log"):
                data = Path(folder, name).read_bytes().rstrip(b"\0")
                found[f"{Path(folder).name}/{name}"] = f"{len(data)} {hashlib.sha256(data).hexdigest()[:16]}"
    return found


def rows(path: str) -> dict[bytes, bytes]:
    """All rows but those that are each node's own; nobody may have it open."""
    state = RocksState(f"{path}/state")
    try:
        return {key: value for key, value in state.scan(b"") if key[:1] not in LOCAL}
    finally:
        state.close()
