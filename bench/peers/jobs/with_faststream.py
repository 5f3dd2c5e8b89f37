"""FastStream: a durable consumer of JetStream, of which a hundred jobs are pulled at once, each acked after it ran."""

from __future__ import annotations

import asyncio

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, PullSub
from nats.aio.client import Client

from bench.peers.jobs.done import Done

STREAM, SUBJECT = "jobs", "jobs.nothing"
AT_ONCE = 100


def fill(url: str, jobs: int) -> None:
    asyncio.run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    client = Client()
    await client.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=[SUBJECT])
    for first in range(0, jobs, AT_ONCE):
        some = range(first, min(jobs, first + AT_ONCE))
        await asyncio.gather(*(stream.publish(SUBJECT, b"%d" % number) for number in some))
    await client.close()


def work(url: str, jobs: int) -> dict[str, float]:
    return asyncio.run(_work(url, jobs))


async def _work(url: str, jobs: int) -> dict[str, float]:
    broker = NatsBroker(url, logger=None)
    app = FastStream(broker, logger=None)
    done = Done(jobs, app.exit)

    async def nothing(_: int) -> None:
        done.one()

    broker.subscriber(
        SUBJECT,
        stream=JStream(STREAM, subjects=[SUBJECT], declare=False),
        durable="work",
        pull_sub=PullSub(batch_size=AT_ONCE),
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )(nothing)
    await app.run()
    return done.figures()
