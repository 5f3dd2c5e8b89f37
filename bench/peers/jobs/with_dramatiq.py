"""dramatiq: one process with its eight threads, each of which acks what it has done."""

from __future__ import annotations

from dramatiq import Worker, actor
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import default_middleware

from bench.peers.jobs.done import Done
from headwater import threads

THREADS = 8
"""As `dramatiq -p 1` starts."""


def fill(url: str, jobs: int) -> None:
    nothing = actor(lambda _: None, actor_name="nothing", broker=_broker(url))
    for number in range(jobs):
        nothing.send(number)


def work(url: str, jobs: int) -> dict[str, float]:
    broker, is_over = _broker(url), threads.Event()
    done = Done(jobs, is_over.set)
    actor(lambda _: done.one(), actor_name="nothing", broker=broker)
    worker = Worker(broker, worker_threads=THREADS)
    worker.start()
    is_over.wait()
    worker.stop()
    return done.figures()


def _broker(url: str) -> RedisBroker:
    return RedisBroker(url=url, middleware=[one() for one in default_middleware if one.__name__ != "Prometheus"])
