"""Nodes are restarted one after another, as for an upgrade, under somebody who publishes all the time."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

import headwater
from cluster.conftest import runs_nats
from cluster.rig import PATIENCE_S, Rig
from headwater.cluster.node import STEP_DOWN

pytestmark = pytest.mark.xdist_group("nats")


class Publisher(threading.Thread):
    """Publishes one message after another; an error ends it."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.acked: list[int] = []
        self.is_over = False
        self._url = url

    def has(self, count: int) -> bool:
        """Whether so many messages were acked."""
        return len(self.acked) >= count

    def run(self) -> None:
        with headwater.connect(self._url) as bus:
            while not self.is_over:
                self.acked.append(bus.publish("rolling/a", b"%d" % len(self.acked)).offset)


def test_a_rolling_restart_refuses_nothing(tmp_path: Path):
    runs_nats()
    with Rig(tmp_path) as rig:
        publisher = Publisher(rig.url)
        publisher.start()
        rig.wait("the first message", lambda: len(publisher.acked) or None)
        leader = rig.leader()
        for place in (*(place for place in range(3) if place != leader), leader):
            if place == leader:
                rig.engine.ask(rig.name(place), STEP_DOWN, b"", PATIENCE_S)
                rig.wait("another leader", lambda: (found := rig.leads()) is not None and found != leader)
            assert rig.end_node(place) == 0
            rig.start_node(place)
            rig.wait("all three nodes", rig.is_whole)
            rig.wait("more messages", partial(publisher.has, len(publisher.acked) + 10))
        publisher.is_over = True
        publisher.join(PATIENCE_S)
        assert not publisher.is_alive()
        assert publisher.acked == list(range(1, len(publisher.acked) + 1))
        assert [int(message.payload) for message in rig.bus.replay("rolling/#")] == list(range(len(publisher.acked)))


def ticked(rig: Rig, count: int) -> bool:
    return len(list(rig.bus.replay("rolling/#"))) >= count


@pytest.mark.soak
def test_a_recurring_message_comes_once_though_its_leader_is_killed(tmp_path: Path):
    runs_nats()
    with Rig(tmp_path) as rig:
        rig.bus.schedule("rolling/tick", b"t", cron="* * * * *")
        begun = time.time()
        for killed in range(2):
            rig.wait("a tick", partial(ticked, rig, killed + 1))
            leader = rig.leader()
            rig.kill_node(leader)
            rig.start_node(leader)
        rig.wait("a tick", partial(ticked, rig, 3))
        times = [dict(message.headers)["scheduled-for"] for message in rig.bus.replay("rolling/#")]
        assert times == sorted(set(times))
        assert len(times) <= (time.time() - begun) // 60 + 1
