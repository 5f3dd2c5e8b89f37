"""How fast Spark reads the log: `python bench/spark.py [--rows 2000000] [--topics 1]`.

Messages of 400 bytes in batches of 1,000, as a publisher sends them; an aggregate over every row, warm, the median of
some runs; the start of the session is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import headwater
from headwater.spark import session

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
        frame = spark.read.format("headwater").option("data", folder).load()
        frame.createOrReplaceTempView("log")
        queries = {
            "aggregate over all columns": "select root, count(*), sum(length(payload)), max(offset), max(timestamp) "
            "from log group by root",
            "one topic of it": "select count(*), sum(length(payload)) from log where topic = 'home/device0/temp'",
            "last 1,000 offsets": f"select count(*) from log where offset > {args.rows - 1000}",
        }
        for name, query in queries.items():
            median, times = median_s(lambda query=query: spark.sql(query).collect(), args.runs)  # type: ignore[misc]
            shown = " ".join(f"{value:.2f}" for value in times)
            print(f"{name:30} {args.rows / median:12,.0f} rows/s   {median:.2f} s  ({shown})")
        spark.stop()


if __name__ == "__main__":
    main()
