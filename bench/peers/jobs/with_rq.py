"""RQ: one process that does one job after another itself (`SimpleWorker`), rather than in a fork for each."""

from __future__ import annotations

from redis import Redis
from rq import Queue, SimpleWorker

from bench.peers.jobs.done import Done

AT_ONCE = 500
running: list[Done] = []


def nothing(_: int) -> None:
    """What is called by its name."""
    running[0].one()


def fill(url: str, jobs: int) -> None:
    with Redis.from_url(url) as connection:
        queue = Queue("jobs", connection=connection)
        for first in range(0, jobs, AT_ONCE):
            some = range(first, min(jobs, first + AT_ONCE))
            queue.enqueue_many([Queue.prepare_data(nothing, (number,), result_ttl=0) for number in some])


def work(url: str, jobs: int) -> dict[str, float]:
    running.append(done := Done(jobs, lambda: None))
    with Redis.from_url(url) as connection:
        SimpleWorker(["jobs"], connection=connection).work(burst=True, logging_level="ERROR")
    return done.figures()
