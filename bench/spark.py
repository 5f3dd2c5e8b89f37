"""How fast Spark reads the log: `python bench/spark.py [--rows 2000000] [--topics 1]`.

Messages of 400 bytes in batches of 1,000, as a publisher sends them; queries over every row, warm, the median of
some runs; the start of the session is not counted. Each query goes to both readers and to zstd Parquet of the same
rows by turns, and the last column says how much longer it took than the latter.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import headwater
from headwater.spark import session
from headwater.spark.jar import find

AGGREGATE = ("count(*)", "sum(length(payload))", "max(offset)", "max(timestamp)", "max(topic)")
QUERIES: dict[str, Callable[[Any], Any]] = {
    "count": lambda frame: frame.count(),
    "groupBy topic": lambda frame: frame.groupBy("topic").count().collect(),
    "sum(length(payload))": lambda frame: frame.selectExpr("sum(length(payload))").collect(),
    "aggregate": lambda frame: frame.selectExpr(*AGGREGATE).collect(),
}
BATCH = 1000
PAYLOAD_BYTES = 400


def fill(folder: str, rows: int, topics: int) -> None:
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(BATCH)]
    with headwater.open(folder) as bus:
        soon = []
        for start in range(0, rows, BATCH):
            names = [f"home/device{(start + n) % topics}/temp" for n in range(BATCH)]
            soon.append(bus.publish_many_soon(list(zip(names, payloads, strict=True))))
            if len(soon) > 64:
                soon.pop(0).result()
        for future in soon:
            future.result()


def median_s(work: Callable[[], object], runs: int) -> tuple[float, list[float]]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times), times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--data", help="a folder that was filled before, or is to be kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as temporary:
        folder = args.data or f"{temporary}/data"
        if not Path(folder).exists():
            fill(folder, args.rows, args.topics)
        spark = session("bench", master="local[2]")

        def aggregate(where: str, **options: str) -> Callable[[], object]:
            """Planned anew in each run: a frame keeps its plan."""

            def run() -> None:
                frame = spark.read.format("headwater").options(**options).load()
                (row,) = frame.where(where).selectExpr(*AGGREGATE).collect()
                if where == "true":
                    assert row[0] == args.rows, row

            return run

        compare(spark, folder, f"{temporary}/parquet", args)
        tail = f"offset > {args.rows - 1000}"
        report("folder, all columns", aggregate("true", data=folder), args)
        report("folder, one topic", aggregate("topic = 'home/device0/temp'", data=folder), args)
        report("folder, last 1,000, pushed", aggregate(tail, data=folder, pushFilters="true"), args)
        with served(folder) as url:
            report("server, all columns", aggregate("true", url=url), args)
        spark.stop()


def compare(spark: Any, folder: str, parquet: str, args: argparse.Namespace) -> None:
    """Both readers and Parquet, by turns."""

    def load(reader: str) -> Any:
        # Each time a new one: options stay with the object that they were given to.
        return spark.read.format("headwater").option("data", folder).option("reader", reader).load()

    load("python").write.option("compression", "zstd").parquet(parquet)
    readers = ("python",) if find() is None else ("python", "jvm")
    frames: dict[str, Callable[[], Any]] = {"parquet": lambda: spark.read.parquet(parquet)}
    for reader in readers:
        frames[reader] = partial(load, reader)
    for query, ask in QUERIES.items():
        times: dict[str, list[float]] = {name: [] for name in frames}
        for _ in range(args.runs + 1):
            for name, made in frames.items():
                start = time.perf_counter()
                ask(made())
                times[name].append(time.perf_counter() - start)
        peer = statistics.median(times["parquet"][1:])
        for name, taken in times.items():
            median = statistics.median(taken[1:])
            print(
                f"{query:22} {name:8} {args.rows / median:12,.0f} rows/s   {median:.2f} s   {median / peer:.2f}x",
                flush=True,
            )


@contextmanager
def served(folder: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "headwater",
        "serve",
        "--data",
        folder,
        "--port",
        str(port),
        "--no-http",
        "--no-mqtt",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"headwater://127.0.0.1:{port}"
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def report(name: str, work: Callable[[], object], args: argparse.Namespace) -> None:
    median, times = median_s(work, args.runs)
    shown = " ".join(f"{value:.2f}" for value in times)
    print(f"{name:30} {args.rows / median:12,.0f} rows/s   {median:.2f} s  ({shown})", flush=True)


if __name__ == "__main__":
    main()
