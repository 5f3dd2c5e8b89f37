"""Celery: one process that does one job after another (`--pool solo`), and acks late."""

from __future__ import annotations

from celery import Celery

from bench.peers.jobs.done import Done

NAME = "nothing"


def _app(url: str) -> Celery:
    app = Celery("jobs", broker=url)
    app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=64)
    app.conf.update(worker_redirect_stdouts=False)
    return app


def fill(url: str, jobs: int) -> None:
    app = _app(url)
    with app.producer_pool.acquire() as producer:
        for number in range(jobs):
            app.send_task(NAME, (number,), producer=producer)


def work(url: str, jobs: int) -> dict[str, float]:
    app, done = _app(url), Done(jobs)

    def nothing(_: int) -> None:
        done.one()

    app.task(nothing, name=NAME)
    options = ["worker", "--pool", "solo", "--loglevel", "error", "--without-gossip", "--without-mingle"]
    try:
        app.worker_main([*options, "--without-heartbeat"])
    except SystemExit:
        pass
    return done.figures()
