"""How fast messages come as Arrow, without Spark: `python bench/arrow.py [--rows 1000000] [--topics 1000] [--spark]`.

Messages of 400 bytes in batches of 1,000, as a publisher sends them. `bus.arrow` beside `replay` as objects, by turns;
a count by topic with `bus.sql`, with `headwater sql` from a cold start of its process, and with --spark the same in a
session of Spark that is warm. Medians of five rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headwater
from spark import fill, served

COUNT = "select topic, count(*) from 'home/#' group by 1"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def medians(rounds: int, **works: Callable[[], object]) -> dict[str, float]:
    """By turns, so that a slow moment of the machine meets all of them; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def ways(bus: Any, rows: int) -> dict[str, Callable[[], object]]:
    """The same messages, read as objects and as columns."""

    def objects() -> None:
        assert sum(1 for _ in bus.replay("home/#")) == rows

    def arrow(**options: Any) -> None:
        assert sum(batch.num_rows for batch in bus.arrow("home/#", **options)) == rows

    return {"replay": objects, "arrow": arrow, "topics": lambda: arrow(columns=["topic"])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spark", action="store_true", help="count in Spark, too")
    parser.add_argument("--data", help="a folder that was filled before, or is to be kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as temporary:
        folder = args.data or f"{temporary}/data"
        if not Path(folder).exists():
            fill(folder, args.rows, args.topics)
        with headwater.open(folder) as bus:
            report("embedded", ways(bus, args.rows), args)
        with served(folder) as url, headwater.connect(url) as remote:
            report("served", ways(remote, args.rows), args)
        sql(folder, args)


def report(place: str, works: dict[str, Callable[[], object]], args: argparse.Namespace) -> None:
    found = medians(args.rounds, **works)
    rates = {name: f"{args.rows / taken:,.0f} rows/s" for name, taken in found.items()}
    print(f"{place}: " + ", ".join(f"{name} {rate}" for name, rate in rates.items()))
    print(f"{place}: bus.arrow is {found['replay'] / found['arrow']:.1f} times replay")


def sql(folder: str, args: argparse.Namespace) -> None:
    command = [str(Path(sys.executable).parent / "headwater"), "sql", COUNT, "--data", folder, "--json"]

    # Where it is set, Python compiles all that it loads at each start, as it does for no user.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def cold() -> None:
        done = subprocess.run(command, check=True, capture_output=True, env=environment)
        assert done.stdout.count(b"\n") == args.topics

    works: dict[str, Callable[[], object]] = {"headwater sql, from a cold start": cold}
    with headwater.open(folder, read_only=True) as bus:
        works["bus.sql"] = lambda: bus.sql(COUNT)
        if args.spark:
            from headwater.spark import jar, session

            print(f"Spark reads {'in its own process' if jar.find() else 'by Python'}")
            spark = session("bench", master="local[2]")

            def count() -> None:
                frame = spark.read.format("headwater").option("data", folder).load()
                assert len(frame.groupBy("topic").count().collect()) == args.topics

            works["Spark, warm"] = count
        found = medians(args.rounds, **works)
    for name, taken in found.items():
        beside = f", {found['Spark, warm'] / taken:.1f} times as fast as Spark" if args.spark else ""
        print(f"count by topic, {name}: {taken:.2f} s{beside}")


if __name__ == "__main__":
    main()
