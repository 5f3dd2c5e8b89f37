"""How fast Spark's rows become messages: `python bench/spark_sink.py [--rows 2000000] [--roots 1] [--topics 100]`.

Rows of 400 bytes from a Parquet file, written by `format("headwater")` to a server of its own: staged, committed, and
then seen. Warm, the median of some runs; the start of the session is not counted. Beside it the same rows go to Spark's
own sink for nothing (`noop`), which shows what is left for a sink to take.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import headwater
from headwater.spark import session

PAYLOAD_BYTES = 400


def timed(work: Callable[[], object], runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--runs", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        serve = [
            sys.executable,
            "-m",
            "headwater",
            "serve",
            "--data",
            f"{folder}/data",
            "--port",
            "0",
            "--no-http",
            "--no-mqtt",
        ]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        spark = session("bench", master="local[2]")
        try:
            spark.range(0, args.rows, 1, 4).selectExpr(
                f"concat('root', id % {args.roots}, '/device', id % {args.topics}, '/temp') topic",
                f"cast(rpad(cast(id as string), {PAYLOAD_BYTES}, sha2(cast(id as string), 512)) as binary) payload",
            ).write.parquet(f"{folder}/rows")
            frame = spark.read.parquet(f"{folder}/rows")

            def sink() -> None:
                frame.write.format("headwater").option("url", url).mode("append").save()

            def nothing() -> None:
                frame.write.format("noop").mode("overwrite").save()

            for name, work in {"noop": nothing, "headwater": sink}.items():
                times = timed(work, args.runs)
                median = statistics.median(times[1:] or times)
                shown = " ".join(f"{value:.2f}" for value in times)
                print(f"{name:12} {args.rows / median:12,.0f} rows/s   {median:.2f} s  ({shown})", flush=True)
            with headwater.connect(url) as bus:
                seen = sum(topic.messages for topic in bus.topics())
                print(f"{seen:,} messages seen, {args.rows * args.runs:,} written")
        finally:
            spark.stop()
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
