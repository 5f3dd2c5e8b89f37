"""`headwater pipeline replay`: history published again, through Spark."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

import headwater
from headwater.cli.options import At, lake_of, moment, owner_url, served_by_owner
from headwater.cli.output import counted, emit, progress, safe, say
from headwater.cli.pipeline import Master, SparkLogs, check_source, running, source_of
from headwater.cli.temporary import temporary_folder, temporary_place
from headwater.clock import from_datetime
from headwater.config import Config, Serving
from headwater.errors import Malformed, Owned
from headwater.topics.name import check_filter, check_topic

if TYPE_CHECKING:
    from headwater.bus import Bus
    from headwater.spark.pipelines.replay import Pace, Replay

SPEED = re.compile(r"(\d+(?:\.\d+)?)x?")


def replay(
    at: At,
    to: Annotated[str, typer.Option("--to", metavar="PREFIX", help="What is put before each topic: replay/")],
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Sent at 2026-01-31T12:00, or 2h (ago), or later.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Sent before this; now.")] = None,
    speed: Annotated[
        str, typer.Option("--speed", metavar="N", help="How much faster than it was: 10x; max: as fast as it goes.")
    ] = "1x",
    topics: Annotated[str, typer.Option("--topics", metavar="FILTER", help="Which topics.")] = "#",
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="DIR", help="The lake: what is archived is replayed too.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Remembers how far it is: run again, it goes on from there."),
    ] = None,
    master: Master = None,
    spark_logs: SparkLogs = False,
) -> None:
    """Publish history again: home/hall/temp as replay/home/hall/temp, at the pace at which it was sent, or faster.

    First Spark puts what is asked for in order, in files in the checkpoint; then it is published, window after window,
    each once. Killed at any moment and run again with the same --checkpoint it goes on, and repeats nothing.

    With --url it reads from a server and publishes to it. With --data it owns the folder while it runs; where a server
    owns it, use --url.

    With --json: an object for each window (epoch, messages, since_us, upto_us, seconds, behind_s).
    """
    times, below = factor(speed), prefix(to)
    check_filter(topics, Config())
    since_us = None if since is None else from_datetime(moment(since, ago=True))
    until_us = from_datetime(moment(until or "0s", ago=True))
    if since_us is not None and since_us >= until_us:
        raise Malformed(f"--since {since} is not before --until {until or 'now'}; nothing was sent between them")
    check_source(at)
    with kept(checkpoint) as folder, served(at) as target, running(master, spark_logs, "headwater replay") as spark:
        from headwater.spark.pipelines.replay import Asked, History, Pace, Replay

        asked = Asked(topics, below, since, until)
        history = History(source_of(at), lake_of(lake, None), since_us, until_us)
        with closing(Replay(spark, folder, history, target, asked)) as job:
            _play(job, Pace(times), at.json)


def _play(job: Replay, pace: Pace, as_json: bool) -> None:
    left = job.plan.messages - job.plan.done
    with progress("replaying", left) as advance:
        for window in job.play(pace):
            advance(window.messages)
            if as_json:
                emit(asdict(window))
    if not as_json:
        say(f"{counted(left, 'message')} published below ", (safe(job.plan.asked.to), "cyan"))


def prefix(to: str) -> str:
    """What is put before topics; Malformed if no topic can begin with it."""
    name = to.removesuffix("/")
    if not name:
        raise Malformed(f'--to "{to}" is no prefix; name the topic below which to publish, such as replay/')
    check_topic(name, Config())
    return f"{name}/"


def factor(text: str) -> float | None:
    """How much faster than it was; None for as fast as possible."""
    if text == "max":
        return None
    found = SPEED.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise Malformed(f'--speed "{text}" is no speed; write 1x, 10x, 0.5x or max')
    return float(found[1])


@contextmanager
def kept(checkpoint: str | None) -> Iterator[str]:
    """The folder of the replay; one that is gone at the end if none is named."""
    if checkpoint is not None:
        yield checkpoint
        return
    with temporary_folder(temporary_place(), "headwater-replay") as folder:
        yield folder


@contextmanager
def served(at: At) -> Iterator[str]:
    """The server to publish to: the one that is named, or one on the folder for as long as this runs."""
    if at.url is not None:
        yield at.url
        return
    try:
        bus = headwater.open(at.data)
    except Owned as error:
        owner = served_by_owner(at.data)
        if owner is None:
            raise Owned(f"{error.args[0]}; if that is a server, replay through it, with --url") from None
        owner.close()
        yield owner_url(at.data)
        return
    with bus:
        yield from _serving(bus)


def _serving(bus: Bus) -> Iterator[str]:
    """Serve it on loopback, in a thread with a loop of its own: Spark's sink writes to servers."""
    from headwater.serving.composition import server_of

    ready, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    server = server_of(bus.core, Serving(port=0, drain_s=1.0))

    async def serve() -> None:
        try:
            await server.start()
        finally:
            ready.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="headwater-serving")
    thread.start()
    try:
        ready.wait()
        yield server.url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
