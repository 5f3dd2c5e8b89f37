"""A question and its answer, beside nats-py: `python bench/request_reply.py [--rounds 7] [--requests 1000]`.

A server of ours and a nats-server run on loopback; who answers is a process of its own, and so is who asks, one
question at a time. Rounds of both take turns. Told are the medians of a question until its answer, and the ratio: with
asyncio and with threads over a connection, and inside one process, all beside nats-py, which has asyncio alone. Those
of asyncio run in its own loop and in uvloop, which clients for threads have where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nats
import uvloop

import headwater
import headwater.aio
from bench.peers.brokers import PEERS, START_S, program_of
from bench.peers.brokers import headwater as serve
from bench.peers.brokers import nats as serve_nats
from bench.peers.processes import Process, wait_for_port

GOAL = 1.2
TOPIC = "rpc/echo"
PAYLOAD = b"x" * 100
WARM = 200


# Who answers, in a process of its own


async def answer_nats(url: str) -> None:
    client = await nats.connect(url)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe("rpc.echo", cb=answer)
    await client.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


async def answer_asyncio(url: str) -> None:
    async with headwater.aio.connect(url) as bus, bus.subscribe(TOPIC) as questions:
        print("ready", flush=True)
        async for question in questions:
            await question.reply(question.payload)


def answer_threads(url: str) -> None:
    with headwater.connect(url) as bus, bus.subscribe(TOPIC) as questions:
        print("ready", flush=True)
        for question in questions:
            question.reply(question.payload)


ANSWERING: dict[str, Callable[[str], object]] = {
    "nats": lambda url: asyncio.run(answer_nats(url)),
    "nats-uvloop": lambda url: uvloop.run(answer_nats(url)),
    "asyncio": lambda url: asyncio.run(answer_asyncio(url)),
    "uvloop": lambda url: uvloop.run(answer_asyncio(url)),
    "threads": answer_threads,
}


@contextmanager
def answering(kind: str, url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.request_reply", "--answer", kind, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


# Who asks


async def time_each(count: int, ask: Callable[[], Awaitable[object]]) -> list[float]:
    took = []
    for _ in range(WARM + count):
        begun = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - begun)
    return took[WARM:]


async def ask_nats(url: str, count: int) -> list[float]:
    client = await nats.connect(url)
    try:
        return await time_each(count, lambda: client.request("rpc.echo", PAYLOAD, timeout=10))
    finally:
        await client.close()


async def ask_asyncio(url: str, count: int) -> list[float]:
    async with headwater.aio.connect(url) as bus:
        return await time_each(count, lambda: bus.request(TOPIC, PAYLOAD))


def ask_bus(bus: Any, count: int) -> list[float]:
    took = []
    for _ in range(WARM + count):
        begun = time.perf_counter()
        bus.request(TOPIC, PAYLOAD)
        took.append(time.perf_counter() - begun)
    return took[WARM:]


def ask_threads(url: str, count: int) -> list[float]:
    with headwater.connect(url) as bus:
        return ask_bus(bus, count)


def ask_inside(folder: str, count: int) -> list[float]:
    with headwater.open(folder) as bus:
        questions = bus.subscribe(TOPIC)

        def answer() -> None:
            for question in questions:
                question.reply(question.payload)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return ask_bus(bus, count)
        finally:
            questions.close()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answer", nargs=2, metavar=("KIND", "URL"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=1000)
    given = parser.parse_args()
    if given.answer:
        ANSWERING[given.answer[0]](given.answer[1])
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        urls = {}
        for name, launch, program in (
            ("headwater", serve, "src"),
            ("nats", serve_nats(""), program_of(PEERS["nats"], "")),
        ):
            at = Path(folder, name)
            at.mkdir()
            started = launch(program, at)
            process = Process(started.command, started.environment, at)
            stack.callback(process.kill)
            port = next(iter(started.ports.values()))
            wait_for_port(port, process, START_S)
            urls[name] = f"{name}://127.0.0.1:{port}"
        count, ours = given.requests, urls["headwater"]
        ways: dict[str, tuple[str, str, Callable[[], list[float]]]] = {
            "nats-py, asyncio": ("nats", urls["nats"], lambda: asyncio.run(ask_nats(urls["nats"], count))),
            "nats-py, uvloop": ("nats-uvloop", urls["nats"], lambda: uvloop.run(ask_nats(urls["nats"], count))),
            "headwater, asyncio": ("asyncio", ours, lambda: asyncio.run(ask_asyncio(ours, count))),
            "headwater, uvloop": ("uvloop", ours, lambda: uvloop.run(ask_asyncio(ours, count))),
            "headwater, threads": ("threads", ours, lambda: ask_threads(ours, count)),
            "headwater, embedded": ("", "", lambda: ask_inside(f"{folder}/inside", count)),
        }
        medians: dict[str, list[float]] = {title: [] for title in ways}
        for _ in range(given.rounds):
            for title, (kind, url, ask) in ways.items():
                with answering(kind, url) if kind else ExitStack():
                    medians[title].append(statistics.median(ask()))
    asyncios, uvloops, *_ = (statistics.median(found) for found in medians.values())
    for title, found in medians.items():
        took = statistics.median(found)
        beside = f"  {took / asyncios:.2f}x, {took / uvloops:.2f}x with uvloop (goal: {GOAL})"
        goal = "" if title.startswith("nats") else beside
        print(f"{title:22s} p50 {took * 1e6:6.0f} µs{goal}")


if __name__ == "__main__":
    main()
