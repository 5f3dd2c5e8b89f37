"""Nodes and NATS servers are killed, stand still and are cut off, one after the other and at random, under mixed work:
nothing that was acknowledged is lost, nothing is there twice, and all nodes have the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.conftest import runs_nats
from cluster.load import Load
from cluster.rig import NODES, Rig

pytestmark = pytest.mark.xdist_group("nats")

KINDS = ("kill", "stop", "cut")
LONG_ROUNDS = 10


class Rounds:
    """What happens to a cluster."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.story: list[str] = []

    def play(self, kind: str, *, is_node: bool, place: int, hold_s: float) -> None:
        """Something happens to one of the six for a while, and everybody comes back."""
        begun = time.monotonic()
        end = self._begin(kind, is_node, place)
        time.sleep(hold_s)
        end()
        held = time.monotonic()
        self.rig.wait("all three nodes", self.rig.is_whole)
        who = f"{'n' if is_node else 'nats'}{place + 1}"
        back_s = time.monotonic() - held
        self.story.append(f"{kind} {who} for {held - begun:.1f} s; whole after {back_s:.1f} s more")

    def _begin(self, kind: str, is_node: bool, place: int) -> Callable[[], None]:
        rig = self.rig
        match kind, is_node:
            case "kill", True:
                rig.kill_node(place)
                return lambda: rig.start_node(place)
            case "kill", False:
                rig.servers.kill(place)
                return lambda: rig.servers.start([place])
            case "stop", True:
                rig.pause_node(place, True)
                return lambda: rig.pause_node(place, False)
            case "stop", False:
                rig.pause_server(place, True)
                return lambda: rig.pause_server(place, False)
            case "cut", True:
                rig.cut_node(place, True)
                return lambda: rig.cut_node(place, False)
        rig.cut_server(place, True)
        return lambda: rig.cut_server(place, False)

    def judge(self, load: Load) -> None:
        """Nobody publishes any more: whether all is as it should be."""
        load.judge()
        self.rig.wait("all three nodes", self.rig.is_whole)
        one, *others = self.rig.digests()
        for other in others:
            assert other.rows == one.rows
            assert other.segments == one.segments
        pauses = [round(pause, 1) for pause in sorted(load.pauses_s)[-len(self.story) :]]
        said = [*self.story, f"{len(load.acked)} acked, {len(load.once)} by QoS 2; the longest pauses: {pauses} s"]
        print("\n".join(said))  # noqa: T201  # for whoever runs it with -s


def test_one_fault_of_each_kind_costs_nothing_that_was_acknowledged(tmp_path: Path):
    runs_nats()
    with Rig(tmp_path, lease_s=1.5) as rig:
        load, rounds = Load(rig), Rounds(rig, 0)
        load.start()
        try:
            rounds.play("kill", is_node=True, place=rig.leader(), hold_s=3)
            rounds.play("stop", is_node=True, place=rig.leader(), hold_s=4)
            rounds.play("cut", is_node=True, place=rig.leader(), hold_s=4)
            rounds.play("kill", is_node=False, place=rig.stream_place(), hold_s=1)
        finally:
            load.stop()
        rounds.judge(load)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(5))
def test_fifty_rounds_cost_nothing_that_was_acknowledged(tmp_path: Path, seed: int):
    runs_nats()
    with Rig(tmp_path, lease_s=3.0) as rig:
        load, rounds = Load(rig), Rounds(rig, seed)
        rng = rounds.rng
        load.start()
        try:
            for _ in range(LONG_ROUNDS):
                kind, is_node, place = rng.choice(KINDS), rng.random() < 0.5, rng.randrange(NODES)
                rounds.play(kind, is_node=is_node, place=place, hold_s=20 if kind == "stop" else rng.uniform(1, 12))
                time.sleep(rng.uniform(0, 3))
        finally:
            load.stop()
        rounds.judge(load)
