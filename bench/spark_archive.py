"""How fast the log is archived, and how fast history is read: `python bench/spark_archive.py [--rows 2000000]`.

Messages of 400 bytes, all different, in batches of 1,000. Archived is what is committed to the Iceberg table, durable;
the session is warm (a small archive went before). Then the same aggregate over `headwater.spark.table` and over
`spark.read.parquet` of the same files, in turns, warm, medians.

With `--roots 1000` it archives so many small roots instead, and says how much longer the last tenth took than the
first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import headwater
from headwater.lake.lake import open_lake
from headwater.spark import session
from headwater.spark.pipelines.archive import Archive
from spark import BATCH, PAYLOAD_BYTES, median_s

QUERY = "select root, count(*), sum(length(payload)), max(offset), max(timestamp) from {} group by root"


def fill(folder: str, rows: int, topics: int) -> None:
    """Payloads that are all different: Parquet would store a few that repeat once, and measure nothing."""
    with headwater.open(folder) as bus:
        for start in range(0, rows, BATCH):
            drawn = os.urandom(BATCH * PAYLOAD_BYTES)
            bus.publish_many(
                [
                    (f"home/device{(start + n) % topics}/temp", drawn[n * PAYLOAD_BYTES : (n + 1) * PAYLOAD_BYTES])
                    for n in range(BATCH)
                ]
            )


def many_roots(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as temporary:
        with headwater.open(f"{temporary}/data") as bus:
            bus.publish_many([(f"root{n % count}/a", b"x") for n in range(10 * count)])
        spark = session("bench", master="local[2]")
        archive = Archive(spark, f"{temporary}/lake", {"data": f"{temporary}/data"})
        times, start = [], time.perf_counter()
        for _ in archive.round():
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
        part = max(1, count // 10)
        # The very first are left out: Spark compiles what it runs.
        first, last = statistics.median(times[part : 2 * part]), statistics.median(times[-part:])
        print(f"{count} roots: {first:.3f} s a root at first, {last:.3f} s at last: {last / first:.2f}×", flush=True)
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--roots", type=int, help="archive so many small roots, and nothing else")
    parser.add_argument("--data", help="a folder that was filled before, or is to be kept")
    args = parser.parse_args()
    if args.roots:
        many_roots(args.roots)
        return
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as temporary:
        folder = args.data or f"{temporary}/data"
        if not Path(folder).exists():
            fill(folder, args.rows, args.topics)
        spark = session("bench", master="local[2]")
        fill(f"{temporary}/small", 20_000, 1)
        for _ in Archive(spark, f"{temporary}/small-lake", {"data": f"{temporary}/small"}).round():
            pass
        for turn in range(2):
            archive = Archive(spark, f"{temporary}/lake{turn}", {"data": folder})
            start = time.perf_counter()
            rows = sum(step.rows for step in archive.round())
            took = time.perf_counter() - start
            print(f"archive, log to committed     {rows / took:12,.0f} rows/s   {took:.2f} s")
        archived = open_lake(f"{temporary}/lake0").archived()["home"]
        spark.read.parquet(*(file.path for file in archived.files)).createOrReplaceTempView("files")
        headwater.spark.table(spark, "home/#", data=folder, lake=f"{temporary}/lake0").createOrReplaceTempView(
            "history"
        )
        medians = {}
        for name in ("files", "history", "files", "history"):
            medians[name], times = median_s(lambda name=name: spark.sql(QUERY.format(name)).collect(), args.runs)  # type: ignore[misc]
            shown = " ".join(f"{value:.2f}" for value in times)
            print(
                f"aggregate over {name:14} {args.rows / medians[name]:12,.0f} rows/s   {medians[name]:.2f} s  ({shown})"
            )
        print(f"history against files: {medians['files'] / medians['history']:.2f}×")
        spark.stop()


if __name__ == "__main__":
    main()
