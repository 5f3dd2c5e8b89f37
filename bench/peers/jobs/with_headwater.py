"""Headwater's handlers: embedded in a folder, or served."""

from __future__ import annotations

import headwater
from bench.peers.jobs.done import Done
from headwater.surface import Threaded

TOPIC = "jobs/nothing"
AT_ONCE = 1000


def _open(where: str) -> Threaded:
    return headwater.connect(where) if where.startswith("headwater://") else headwater.open(where)


def fill(where: str, jobs: int) -> None:
    with _open(where) as bus:
        bus.subscribe(TOPIC, id="work").close()
        for first in range(0, jobs, AT_ONCE):
            bus.publish_many([(TOPIC, b"%d" % number) for number in range(first, min(jobs, first + AT_ONCE))])


def work(where: str, jobs: int) -> dict[str, float]:
    with _open(where) as bus:
        done = Done(jobs)

        @bus.handler(TOPIC, id="work")
        def nothing(_: headwater.Message) -> None:
            done.one()

        bus.run()
        done.acked()
    return done.figures()
