"""What a search takes, and what it costs others: `python bench/search.py [--messages 1000000] [--rounds 5]`.

A server has so many messages of 400 bytes of JSON. Somebody publishes one message after another, each on disk before
the next, by turns alone and while the HTTP API searches all of them for a field. Told are how long the search takes,
and the ratio of the medians of the publisher's p99; the goals are 3 s and 2.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import headwater

GOAL_S = 3.0
GOAL = 2.0
BATCH = 1000
SIZE = 400
RARE = 9973
CONDITIONS = ('$.sensor == "a"', "$.celsius > 35", '$.tags[*] == "none"')


def reading(number: int) -> tuple[str, bytes]:
    """A message of the history."""
    said = {
        "sensor": "a" if number % RARE == 0 else f"s{number % 300}",
        "celsius": round(random.gauss(21, 3), 2),
        "number": number,
        "tags": ["indoor", "cellar"],
        "note": "",
    }
    said["note"] = "x" * (SIZE - len(json.dumps(said)))
    return f"home/room-{number % 1000:03}/climate", json.dumps(said).encode()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """The native URL of a server, and that of its API."""
    command = [sys.executable, "-m", "headwater", "serve", "--data", str(folder), "--port", "0", "--http-port", "0"]
    process = subprocess.Popen([*command, "--no-mqtt", "--log-level", "error"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        native, http = (re.findall(r"\w+://\S+", process.stdout.readline())[0] for _ in range(2))
        yield native, http
    finally:
        process.terminate()
        process.wait()


def search(http: str, where: str) -> tuple[float, int]:
    """Seconds that a search through all messages takes, and how many it finds."""
    begun, after, found = time.perf_counter(), "", 0
    while True:
        asked = urllib.parse.urlencode({"filter": "home/#", "where": where, "limit": 1000, "after": after})
        with urllib.request.urlopen(f"{http}/v1/messages/search?{asked}", timeout=60) as answer:
            page = json.load(answer)
        found, after = found + len(page["messages"]), page["next"]
        if page["is_end"]:
            return time.perf_counter() - begun, found


def latencies(bus: headwater.Bus, over: threading.Event) -> list[float]:
    """How long publishes take, in ms."""
    took = []
    while not over.is_set():
        begun = time.perf_counter()
        bus.publish("others/a", b"x" * SIZE)
        took.append(1000 * (time.perf_counter() - begun))
    return took


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


def p99_while(bus: headwater.Bus, work: Callable[[], object]) -> tuple[float, float]:
    """The publisher's p99 in ms while something is done, and how many seconds that takes."""
    over = threading.Event()
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.extend(latencies(bus, over)))
    thread.start()
    begun = time.perf_counter()
    work()
    took_s = time.perf_counter() - begun
    over.set()
    thread.join()
    return p99(took), took_s


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--messages", type=int, default=1_000_000)
    asked.add_argument("--rounds", type=int, default=5)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        random.seed(1)
        with headwater.open(folder) as bus:
            for start in range(0, given.messages, BATCH):
                bus.publish_many([reading(number) for number in range(start, start + BATCH)])
        with served(folder) as (native, http), headwater.connect(native) as bus:
            for where in CONDITIONS:
                took = [search(http, where) for _ in range(3)]
                took_s = statistics.median(seconds for seconds, _ in took)
                print(f"{where:28} {took_s:6.2f} s   {took[0][1]:>7,} found   (goal {GOAL_S:g} s)", flush=True)
            alone: list[float] = []
            under: list[float] = []
            for where in CONDITIONS[:2] * given.rounds:
                slow_ms, took_s = p99_while(bus, lambda where=where: search(http, where))  # type: ignore[misc]
                under.append(slow_ms)
                alone.append(p99_while(bus, lambda: time.sleep(1.5))[0])
                print(
                    f"{where:28} {took_s:6.2f} s   p99 alone {alone[-1]:6.2f} ms   while it runs {under[-1]:6.2f} ms",
                    flush=True,
                )
    ratio = statistics.median(under) / statistics.median(alone)
    print(f"publish p99: {ratio:.2f}x of alone (goal {GOAL:g}x)")


if __name__ == "__main__":
    main()
